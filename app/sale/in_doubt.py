"""Batches in doubt were sent to the store and not answered: they are written, or not, or still on their way."""

from collections.abc import Sequence
from typing import Final

from app.errors import FenceRefused, StockBehind, StockError, StockUnavailable
from app.sale.batch import Part
from app.stock import Fence, StockStore
from app.telemetry.observer import Observer

_ITEMS_AT_ONCE: Final = 5


class InDoubt:
    """Keeps the batches whose buyers can't be answered until the batches are resolved.

    A commit that is not answered is never sent again, and never waited for under the lock: the lock is given back, so
    that others can sell, and the batch is resolved under the next grant, before its buyers are answered.
    """

    def __init__(self, store: StockStore, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._commits: list[list[Part]] = []  # all parts of a commit have the same batch id

    def __bool__(self) -> bool:
        return bool(self._commits)

    def add(self, parts: Sequence[Part]) -> None:
        """Add the parts of a commit that was sent and not answered."""
        if parts:
            self._commits.append(list(parts))

    @property
    def has_work(self) -> bool:
        """True if something can be resolved now."""
        return any(part.item.parked is None for parts in self._commits for part in parts)

    def next_parts(self) -> list[Part]:
        """Some parts that can be resolved now: a few items, so that no grant lasts much longer than it may."""
        for commit in self._commits:
            if now := [part for part in commit if part.item.parked is None]:
                return now[:_ITEMS_AT_ONCE]
        return []

    async def resolve(self, fence: Fence, now: Sequence[Part]) -> list[tuple[Part, list[str] | StockError | None]]:
        """Resolve some parts: the ids of their orders, None if they were not written, or an error.

        A part with an error that may be transient stays in doubt. Raises `StockUnavailable` if none could be reached.
        """
        commit = next(parts for parts in self._commits if now[0] in parts)
        self._commits.remove(commit)
        answers: dict[str, list[str] | StockError | None] = {}
        try:
            answers = await self._store.resolve(fence, {part.item.sku: part.write for part in now})
        finally:
            self.add([part for part in commit if _still_in_doubt(answers, part)])
        for answer in answers.values():
            if not isinstance(answer, StockError):
                self._observer.resolved("not_committed" if answer is None else "committed")
        return [(part, answers[part.item.sku]) for part in now]

    def forget_unwanted(self) -> None:
        """Forget the parts whose buyers have all given up."""
        for parts in self._commits:
            for part in [part for part in parts if not part.wanted]:
                parts.remove(part)
                self._observer.resolved("unasked")
        self._commits = [parts for parts in self._commits if parts]


def _still_in_doubt(answers: dict[str, list[str] | StockError | None], part: Part) -> bool:
    if part.item.sku not in answers:
        return True
    return isinstance(answers[part.item.sku], FenceRefused | StockBehind | StockUnavailable)

"""What instances tell each other across their ends: the last order of each item that one of them has seen written.

A store that lost its last second, or was failed over to a late replica, is consistent in itself; nobody can see from it
alone that orders are missing. So the last order is remembered where the locks live, too, a moment after it was written.
What is remembered is replaced only by who has found that very order in the store: it can't be forgotten unnoticed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.errors import SeckillError, StockBehind, StockError
from app.locks import LockBackend
from app.stock import StockStore
from app.telemetry import logs

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.5
_AT_ONCE: Final = 500  # items
_TRIES: Final = 10
_TRIES_AT_THE_END: Final = 3
_END_WITHIN_S: Final = 5.0


class Marks:
    """Brings the store's marks to the lock system, and back. `name` is where the lock system keeps an item's mark."""

    def __init__(self, backend: LockBackend, store: StockStore, name: Callable[[str], str]) -> None:
        self._backend = backend
        self._store = store
        self._name = name
        self._kept: dict[str, str] = {}  # there, when we put or found something there last
        self._foreign: dict[str, str] = {}  # there instead of a mark
        self._keeping: asyncio.Task[None] | None = None
        self._in_trouble: set[str] = set()

    async def learn(self, skus: Sequence[str]) -> dict[str, str]:
        """Hold the store to what others have seen of some items; what that was. Raises `LockUnavailable`."""
        names = {self._name(sku): sku for sku in skus}
        recalled = await asyncio.to_thread(self._backend.recall, list(names))
        found = {names[name]: mark for name, mark in recalled.items()}
        for sku in skus:
            self._kept.pop(sku, None)
            if sku not in found:
                continue
            try:
                self._store.expect(sku, found[sku])
                self._kept[sku] = found[sku]
            except ValueError as error:
                # Somebody else's: it is left there.
                if self._foreign.get(sku) != found[sku]:
                    _log.warning("%s is %s", self._name(sku), error)
                self._foreign[sku] = found[sku]
        return found

    def keep(self) -> None:
        """From now on remember, twice a second, what was sold."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_for_ever(), name="marks")

    async def _keep_for_ever(self) -> None:
        before: dict[str, str] = {}
        while True:
            await asyncio.sleep(_EVERY_S)
            now = self._store.marks()
            await self.keep_now(before)
            before = now

    async def keep_now(self, at_least: Mapping[str, str]) -> bool:
        """Remember what is new; again, where others have put there meanwhile what is older than `at_least`.

        Whether there were answers to all that had to be asked.
        """
        marks = self._store.marks()
        todo = [sku for sku, mark in marks.items() if self._kept.get(sku) != mark]
        todo += set(self._store.unseen(marks)).difference(todo)
        answered = True
        for _ in range(_TRIES):
            again: list[str] = []
            for first in range(0, len(todo), _AT_ONCE):
                some = {sku: marks[sku] for sku in todo[first : first + _AT_ONCE]}
                try:
                    failed, outdone = await self._keep(some, at_least)
                    again += outdone
                except SeckillError as error:
                    failed, answered = dict.fromkeys(some, error), False
                except Exception:
                    _log.exception("remembering what was sold failed in a way that it must not")
                    continue
                for sku, reason in failed.items():
                    # Said once: a loss is said at each purchase, and by /readyz.
                    level = logging.DEBUG if sku in self._in_trouble else logging.WARNING
                    with logs.about(sku=sku):
                        _log.log(level, "what was sold can't be remembered beside the locks: %s", reason)
                self._in_trouble = self._in_trouble.difference(some).union(failed)
            if not again:
                break
            todo, marks = again, self._store.marks()
        return answered

    async def _keep(
        self, marks: Mapping[str, str], at_least: Mapping[str, str]
    ) -> tuple[dict[str, SeckillError], list[str]]:
        """Remember the last orders of some items: why some can't be, and those for which it takes another try.

        Each in the place of what was there last. Where somebody has put something there meanwhile, we learn what; it is
        replaced the next time, if they have not gone on by then. So of several who sell an item one keeps its mark, and
        the others see that it does.
        """
        kept = {sku: self._kept[sku] for sku in marks if sku in self._kept}  # more may be learnt while we look
        # What we have only heard of must be found before it is written over. As a rule our own sales have done that.
        unseen = self._store.unseen(marks)
        fences = await self._store.fences(unseen) if unseen else {}
        failed: dict[str, SeckillError] = {}
        lost: dict[str, str] = {}
        for sku, answer in fences.items():
            if isinstance(answer, StockBehind) and sku in kept and kept[sku] not in answer.missing:
                lost[sku] = max(answer.missing)  # those who put that there go on without knowing: they must hear of it
            elif isinstance(answer, StockError):
                failed[sku] = answer  # as it says there already
        newer = {sku: mark for sku, mark in marks.items() if sku not in failed and mark > kept.get(sku, "")}
        wanted = newer | lost
        if not wanted:
            return failed, []
        names = {sku: self._name(sku) for sku in wanted}
        done = await asyncio.to_thread(
            self._backend.remember,
            {names[sku]: mark for sku, mark in wanted.items()},
            instead_of={names[sku]: kept[sku] for sku in wanted if sku in kept},
        )
        self._kept |= {sku: mark for sku, mark in wanted.items() if names[sku] in done}
        others = [sku for sku in wanted if names[sku] not in done]
        if others:
            await self.learn(others)
        theirs = {sku: self._kept[sku] for sku in others if sku in self._kept}
        return failed, [sku for sku, mark in theirs.items() if sku in lost or mark < at_least.get(sku, "")]

    async def close(self) -> None:
        """Remember the last ones, and stop."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_WITHIN_S):
                    for _ in range(_TRIES_AT_THE_END):
                        if await self.keep_now(self._store.marks()):
                            break

"""High-water marks: the last orders of an item that a process knows of. A store that lacks them came back older."""

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

Position = tuple[int, str, str]  # an order's position: its generation, its number, the tag of its secret ("": any)
Known = TypeVar("Known")


class Watermark(Generic[Known]):
    """The orders of an item that must be in the store: some that others have seen, and the last that we have seen.

    A position identifies an order in the store: its generation, its entry, and the tag of its secret. `mark` makes it a
    text that is greater for later orders.
    """

    __slots__ = ("_mark", "_seen", "_seen_mark", "_told")

    def __init__(self, mark: Callable[[Known], str]) -> None:
        self._mark = mark
        self._seen: Known | None = None  # the last one seen here
        self._seen_mark = ""
        self._told: frozenset[Known] = frozenset()  # seen by others only

    @property
    def positions(self) -> tuple[Known, ...]:
        """The positions of all orders that must be there."""
        return tuple(self._told) if self._seen is None else (*self._told, self._seen)

    @property
    def mark(self) -> str | None:
        """The mark of the last one, None if there is none."""
        return max(map(self._mark, self.positions), default=None)

    def expect(self, position: Known) -> None:
        """Expect an order that another process has seen."""
        self._told |= {position}

    def found(self, positions: Collection[Known], last: Known | None = None) -> None:
        """Note that all of these are there; `last` is the last order of all."""
        if not self._told.isdisjoint(positions):
            self._told = self._told.difference(positions)
            self._see(max(positions, key=self._mark))
        if last is not None and last != self._seen:
            self._see(last)

    def _see(self, position: Known) -> None:
        # The answer to an older request may come after that to a later one.
        if (mark := self._mark(position)) > self._seen_mark:
            self._seen, self._seen_mark = position, mark

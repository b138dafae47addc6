"""High-water marks: the last orders of an item that a process knows of. A store that lacks them came back older."""

import hashlib
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

Position = TypeVar("Position")


def tag_of(secret: str) -> str:
    """The tag that distinguishes orders with the same number, if a store was set back; as the stores make it."""
    return hashlib.sha1(secret.encode(), usedforsecurity=False).hexdigest()[:8]


class Watermark(Generic[Position]):
    """The orders of an item that must be in the store: some that others have seen, and the last that we have seen.

    A position is what the store knows an order by: its generation, its entry, and the tag of its secret. `mark` makes
    it a text that is greater for later orders.
    """

    __slots__ = ("_mark", "_seen", "_seen_mark", "_told")

    def __init__(self, mark: Callable[[Position], str]) -> None:
        self._mark = mark
        self._seen: Position | None = None  # the last one seen here
        self._seen_mark = ""
        self._told: frozenset[Position] = frozenset()  # seen by others only

    @property
    def positions(self) -> tuple[Position, ...]:
        """The positions of all orders that must be there."""
        return tuple(self._told) if self._seen is None else (*self._told, self._seen)

    @property
    def mark(self) -> str | None:
        """The mark of the last one, None if there is none."""
        return max(map(self._mark, self.positions), default=None)

    def expect(self, position: Position) -> None:
        """Expect an order that another process has seen."""
        self._told |= {position}

    def found(self, positions: Collection[Position], last: Position | None = None) -> None:
        """Note that all of these are there; `last` is the last order of all."""
        if not self._told.isdisjoint(positions):
            self._told = self._told.difference(positions)
            self._see(max(positions, key=self._mark))
        if last is not None and last != self._seen:
            self._see(last)

    def _see(self, position: Position) -> None:
        # The answer to an older request may come after that to a later one.
        if (mark := self._mark(position)) > self._seen_mark:
            self._seen, self._seen_mark = position, mark

"""High-water marks: how far a process knows the orders of an item to go. A store that lacks them came back older."""

import hashlib
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

Position = TypeVar("Position")


def tag_of(secret: str) -> str:
    """What tells an order from another one with its number, if a store was set back; as the stores make it."""
    return hashlib.sha1(secret.encode(), usedforsecurity=False).hexdigest()[:8]


class Watermark(Generic[Position]):
    """Orders of an item that must be in the store: those that others have seen, and the last one that we have seen.

    A position is what the store knows an order by: its generation, its entry, and the tag of its secret. `mark` makes
    it a text that is greater for later orders.
    """

    __slots__ = ("_mark", "_seen", "_seen_mark", "_told")

    def __init__(self, mark: Callable[[Position], str]) -> None:
        self._mark = mark
        self._seen: Position | None = None  # the last one that we have seen there
        self._seen_mark = ""
        self._told: frozenset[Position] = frozenset()  # those that we have only heard of

    @property
    def positions(self) -> tuple[Position, ...]:
        """All that must be there."""
        return tuple(self._told) if self._seen is None else (*self._told, self._seen)

    @property
    def mark(self) -> str | None:
        """The mark of the last one, None if there is none."""
        return max(map(self._mark, self.positions), default=None)

    def expect(self, position: Position) -> None:
        """Another process has seen this order."""
        self._told |= {position}

    def found(self, positions: Collection[Position], last: Position | None = None) -> None:
        """All of these are there; `last` is the last order of all."""
        if not self._told.isdisjoint(positions):
            self._told = self._told.difference(positions)
            self._see(max(positions, key=self._mark))
        if last is not None and last != self._seen:
            self._see(last)

    def _see(self, position: Position) -> None:
        # The answer to an older question may come after that to a later one.
        if (mark := self._mark(position)) > self._seen_mark:
            self._seen, self._seen_mark = position, mark

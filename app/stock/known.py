"""What this process knows to be in a store: the last order of each item; and what it announced there."""

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

Place = TypeVar("Place")


class Known(Generic[Place]):
    """Orders of an item that must be in the store. Each read looks for them, and then only for the last one.

    A place is what the store knows an order by; `mark` makes it the text that others are told, later ones greater.
    `told`: places that we have only heard of; `announced`: the batch announced last, and the token it was under; `era`:
    of the tokens that the store told us last.
    """

    __slots__ = ("_mark", "_mark_of_seen", "_seen", "announced", "era", "told")

    def __init__(self, mark: Callable[[Place], str]) -> None:
        self._mark = mark
        self._seen: Place | None = None  # the last one that we have seen there
        self._mark_of_seen = ""
        self.told: frozenset[Place] = frozenset()
        self.announced: tuple[int, str] | None = None
        self.era: str | None = None

    def announced_under(self, token: int) -> str:
        """The batch that was announced last under this token, "" if none was."""
        return self.announced[1] if self.announced and self.announced[0] == token else ""

    @property
    def places(self) -> tuple[Place, ...]:
        """All of them."""
        return tuple(self.told) if self._seen is None else (*self.told, self._seen)

    @property
    def last(self) -> Place | None:
        """The last one."""
        return max(self.places, key=self._mark, default=None) if self.told else self._seen

    def found(self, places: Collection[Place], last: Place | None = None) -> None:
        """All of these are there; `last` is the last one that is."""
        if self.told and not self.told.isdisjoint(places):
            self.told = self.told.difference(places)
            self._see(max(places, key=self._mark))
        if last is not None and last != self._seen:
            self._see(last)

    def _see(self, place: Place) -> None:
        # The answer to an older question may come after that to a later one.
        if (mark := self._mark(place)) > self._mark_of_seen:
            self._seen, self._mark_of_seen = place, mark

"""Breadth-first search through all reachable states: the first violation that it finds has the shortest history."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

State = TypeVar("State", bound=Hashable)


class Note(NamedTuple):
    """The event of a step: a party acts on another one. A message that arrives was sent earlier: `of` says which."""

    text: str
    by: str
    to: str = ""
    of: str = ""


class Model(ABC, Generic[State]):
    """The steps from a state, and what must hold in each.

    `mechanisms` can be left out; `meaning`: what each is; `breaks`: the invariant it violates if absent; `smallest`:
    the smallest scope that shows it, if not the first. `scopes`: those that are explored whole; `lanes`: all parties.
    """

    mechanisms: ClassVar[type[StrEnum]]
    meaning: ClassVar[Mapping[Any, str]]
    breaks: ClassVar[Mapping[Any, str]]
    scopes: ClassVar[Sequence[Any]]
    smallest: ClassVar[Mapping[Any, Any]]
    start: State
    lanes: Sequence[str]

    def __init__(self, scope: Any, *, without: Collection[StrEnum] = ()) -> None:
        self.scope = scope
        self._without = without

    @classmethod
    def lacking(cls, mechanism: StrEnum) -> Self:
        """Return the model without a mechanism, in the smallest scope."""
        return cls(cls.smallest.get(mechanism, cls.scopes[0]), without={mechanism})

    def has(self, mechanism: StrEnum) -> bool:
        """Return whether the mechanism is on."""
        return mechanism not in self._without

    @abstractmethod
    def violation(self, state: State) -> str:
        """Return the promise that a state breaks; empty if it keeps all."""

    @abstractmethod
    def stuck(self, state: State) -> str:
        """Return what is wrong in a state that has no next step; empty if nothing is."""

    @abstractmethod
    def steps(self, state: State) -> Iterable[tuple[Note, State]]:
        """Yield the steps that must happen eventually."""

    @abstractmethod
    def options(self, state: State) -> Iterable[tuple[Note, State]]:
        """Yield the steps that may happen, and need not."""

    @abstractmethod
    def mishaps(self, state: State) -> Iterable[tuple[Note, State]]:
        """Yield the faults."""

    @abstractmethod
    def canonical(self, state: State) -> State:
        """Return the canonical representative of this state, which all equivalent states share."""


@dataclass(frozen=True, slots=True)
class SearchResult(Generic[State]):
    """The result of a search. `violation` and `history` are empty if no state breaks a promise."""

    states: int
    violation: str
    history: tuple[tuple[Note, State], ...]


class TooManyStates(Exception):
    """There are more states than the search may explore."""


def explore(model: Model[State], *, most: int = 5_000_000) -> SearchResult[State]:
    """Explore all states until one breaks a promise. Raises `TooManyStates`."""
    came_from: dict[State, tuple[State | None, Note]] = {model.start: (None, Note("", ""))}
    line = deque([model.start])
    while line:
        state = line.popleft()
        wrong = model.violation(state)
        ahead = [] if wrong else list(model.steps(state))
        if not wrong and not ahead:
            wrong = model.stuck(state)
        if wrong:
            return SearchResult(len(came_from), wrong, _history(came_from, state))
        for note, following in (*ahead, *model.options(state), *model.mishaps(state)):
            after = model.canonical(following)
            if after not in came_from:
                came_from[after] = (state, note)
                line.append(after)
        if len(came_from) > most:
            raise TooManyStates(f"more than {most:,} states")
    return SearchResult(len(came_from), "", ())


def _history(came_from: dict[State, tuple[State | None, Note]], state: State) -> tuple[tuple[Note, State], ...]:
    steps: list[tuple[Note, State]] = []
    before, note = came_from[state]
    while before is not None:
        steps.append((note, state))
        state = before
        before, note = came_from[state]
    return tuple(reversed(steps))

"""Breadth-first search through all reachable states: the first violation that it finds has the shortest history."""

from collections import deque
from dataclasses import dataclass

from lab.model.protocol import Note, Protocol, State, Step, canonical


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search. `violation` and `history` are empty if no state breaks a promise."""

    states: int
    violation: str
    history: tuple[Step, ...]


class TooManyStates(Exception):
    """There are more states than the search may explore."""


def explore(protocol: Protocol, *, most: int = 5_000_000) -> Found:
    """Explore all states until one breaks a promise. Raises `TooManyStates`."""
    came_from: dict[State, tuple[State | None, Note]] = {protocol.start: (None, Note("", ""))}
    line = deque([protocol.start])
    while line:
        state = line.popleft()
        wrong = protocol.violation(state)
        ahead = [] if wrong else list(protocol.steps(state))
        if not wrong and not ahead:
            wrong = protocol.stuck(state)
        if wrong:
            return Found(len(came_from), wrong, _history(came_from, state))
        for note, following in (*ahead, *protocol.deadlines(state), *protocol.mishaps(state)):
            after = canonical(following)
            if after not in came_from:
                came_from[after] = (state, note)
                line.append(after)
        if len(came_from) > most:
            raise TooManyStates(f"more than {most:,} states")
    return Found(len(came_from), "", ())


def _history(came_from: dict[State, tuple[State | None, Note]], state: State) -> tuple[Step, ...]:
    steps: list[Step] = []
    before, note = came_from[state]
    while before is not None:
        steps.append((note, state))
        state = before
        before, note = came_from[state]
    return tuple(reversed(steps))

"""Plays something that has choices in it again and again, until each way through it was gone."""

import gc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SCHEDULES_MAX: Final = 50_000  # more than that is a mistake in the scenario


class Deviation(NamedTuple):
    """At which choice something else was taken than what comes by itself, and what."""

    at: int
    option: int


class Schedule:
    """What is chosen in one run: the given deviations, and option 0 everywhere else."""

    def __init__(self, given: tuple[Deviation, ...] = ()) -> None:
        self.given = given
        self.story: list[str] = []  # what the deviations were
        self.options: list[int] = []  # how many there were at each choice; negative if all of them are free
        self._next = iter(given)
        self._coming = next(self._next, None)

    def choose(self, options: int, tell: Callable[[int], str], *, free: bool = False) -> int:
        """One of so many options; the first is what happens by itself. `free`: none of them counts as a deviation."""
        if options < 2:
            return 0
        coming, at = self._coming, len(self.options)
        self.options.append(-options if free else options)
        if coming is None or coming.at != at:
            return 0
        if coming.option >= options:
            raise NotDeterministic(f"choice {at} has {options} options, and had more")
        self._coming = next(self._next, None)
        self.story.append(f"choice {at}: {tell(coming.option)}")
        return coming.option

    def check(self) -> None:
        """Raise if not all that was given could be chosen."""
        if self._coming is not None:
            raise NotDeterministic(f"there is no choice {self._coming.at} any more")


class NotDeterministic(Exception):
    """The same choices did not lead to the same place: what is played depends on something else, too."""


class BrokenPromise(AssertionError):
    """A schedule in which something is not as it must be: none with fewer deviations is known."""

    def __init__(self, schedule: Schedule, number: int, error: BaseException) -> None:
        self.given = schedule.given
        lines = "\n".join(f"  {line}" for line in schedule.story) or "  nothing but what happens by itself"
        super().__init__(f"{type(error).__name__}: {error}\nin schedule {number}, {self.given!r}:\n{lines}")


@dataclass
class Explored:
    """What was gone through. `longest`: choices in a schedule."""

    schedules: int = 0
    longest: int = 0
    by_deviations: list[int] = field(default_factory=list)


def explore(play: Callable[[Schedule], None], *, deviations: int, schedules_max: int = SCHEDULES_MAX) -> Explored:
    """Play every schedule with at most so many deviations, those with the fewest first.

    `play` must do the same each time but for what it lets the schedule choose. Most errors need one thing or two to
    happen at an odd moment, so that a small bound finds them; what is beyond it is not looked at.
    Raises `BrokenPromise` for the first schedule in which `play` raises.
    """
    explored = Explored()
    gc.freeze()  # what is there already is not looked through again and again
    try:
        _explore(play, explored, deviations, schedules_max)
    finally:
        gc.unfreeze()
    return explored


def _explore(play: Callable[[Schedule], None], explored: Explored, deviations: int, schedules_max: int) -> None:
    levels: list[deque[tuple[Deviation, ...]]] = [deque() for _ in range(deviations + 1)]
    levels[0].append(())
    for level, waiting in enumerate(levels):
        while waiting:
            schedule = Schedule(waiting.popleft())
            explored.schedules += 1
            if explored.schedules > schedules_max:
                raise RuntimeError(f"more than {schedules_max} schedules")
            try:
                play(schedule)
                schedule.check()
            except NotDeterministic:
                raise
            except Exception as error:
                raise BrokenPromise(schedule, explored.schedules, error) from error
            explored.longest = max(explored.longest, len(schedule.options))
            first = schedule.given[-1].at + 1 if schedule.given else 0
            for at in range(first, len(schedule.options)):
                options = schedule.options[at]
                to = level if options < 0 else level + 1
                if to <= deviations:
                    levels[to].extend((*schedule.given, Deviation(at, option)) for option in range(1, abs(options)))
        explored.by_deviations.append(explored.schedules - sum(explored.by_deviations))

"""Replay a program with choices again and again, until every combination of choices has been explored."""

import gc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SCHEDULES_MAX: Final = 50_000  # a larger number is a mistake in the scenario


class Deviation(NamedTuple):
    """A choice at which another option than the default was taken, and that option."""

    at: int
    option: int


class Schedule:
    """The choices of one run: the given deviations, and option 0 everywhere else."""

    def __init__(self, given: tuple[Deviation, ...] = ()) -> None:
        self.given = given
        self.story: list[str] = []  # descriptions of the deviations
        self.options: list[int] = []  # number of options at each choice; negative if all of them are free
        self._next = iter(given)
        self._coming = next(self._next, None)

    def choose(self, options: int, tell: Callable[[int], str], *, free: bool = False) -> int:
        """Choose one of so many options; the first is the default. `free`: no option counts as a deviation."""
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
        """Raise if a given deviation was never reached."""
        if self._coming is not None:
            raise NotDeterministic(f"there is no choice {self._coming.at} any more")


class NotDeterministic(Exception):
    """The same choices did not lead to the same state: the program depends on something else, too."""


class BrokenPromise(AssertionError):
    """A schedule that breaks a promise; none with fewer deviations is known."""

    def __init__(self, schedule: Schedule, number: int, error: BaseException) -> None:
        self.given = schedule.given
        lines = "\n".join(f"  {line}" for line in schedule.story) or "  nothing but what happens by itself"
        super().__init__(f"{type(error).__name__}: {error}\nin schedule {number}, {self.given!r}:\n{lines}")


@dataclass
class Explored:
    """The extent of an exploration. `longest`: the most choices in a schedule."""

    schedules: int = 0
    longest: int = 0
    by_deviations: list[int] = field(default_factory=list)


def explore(play: Callable[[Schedule], None], *, deviations: int, schedules_max: int = SCHEDULES_MAX) -> Explored:
    """Play every schedule with at most so many deviations, in the order of their number.

    `play` must be deterministic except for the schedule's choices. Most errors need one or two events at an
    unlikely moment, so a small bound finds them; errors beyond it are not found.
    Raises `BrokenPromise` for the first schedule in which `play` raises.
    """
    explored = Explored()
    gc.freeze()  # existing objects are not scanned again and again
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

"""Run an event loop whose order of events a schedule chooses: answers, people, time, and which task runs first."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, Final, TypeVar

from tests.harness.explorer import Schedule

Result = TypeVar("Result")

_ROUNDS_MAX: Final = 20_000


class When(IntEnum):
    """When an event comes by default. As a deviation it may come at any moment."""

    IN_TURN = auto()
    WHEN_ALL_IS_QUIET = auto()
    NEVER = auto()


@dataclass(eq=False)
class Happening:
    """An event from outside; `to` names its receiver, if it is not for all."""

    name: str
    happen: Callable[[], object]
    to: str | None
    when: When


class ChosenLoop(asyncio.BaseEventLoop):
    """A loop that runs ready callbacks in rounds, as asyncio does. An outside event, or time, may come before each.

    By default ready callbacks run first, then outside events come, in their order; else time passes.
    Each other choice is a deviation. With `shuffled` a ready callback may also be put off to the end of its round,
    which asyncio does not do by itself.

    The receivers of events stand for processes, which share nothing in the loop: an event for one of them in a round in
    which another one runs could as well come after that round, and does.
    """

    # What `BaseEventLoop` runs, in its own order; its types don't show them.
    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]  # timers, whose own `_scheduled` and `_when` aren't shown either
    _stopping: bool

    def __init__(self, schedule: Schedule, *, shuffled: bool = False) -> None:
        super().__init__()
        self._schedule = schedule
        self._shuffled = shuffled
        self._outside: list[Happening] = []
        self._now = 0.0
        self._rounds = 0
        self._last_to: str | None = None
        self.calm = False  # no more deviations
        self.hurried = False  # time has passed although an event was due
        self.stood_still_s = 0.0  # time that passed before all callbacks that were due had run
        self._behind = False

    def time(self) -> float:
        """Return the seconds since the loop's beginning."""
        return self._now

    def play(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the work to its end."""
        return self.run_until_complete(work)

    def expect(
        self, name: str, happen: Callable[[], object], *, to: str | None = None, when: When = When.IN_TURN
    ) -> None:
        """Announce an event from outside."""
        self._outside.append(Happening(name, happen, to, when))
        self._outside.sort(key=lambda one: one.when)

    def choose(self, options: int, tell: Callable[[int], str]) -> int:
        """Return the schedule's choice, or the first option in calm times."""
        return 0 if self.calm else self._schedule.choose(options, lambda option: f"{self._now:.3f} s: {tell(option)}")

    def _run_once(self) -> None:
        self._rounds += 1
        if self._rounds > _ROUNDS_MAX:
            raise AssertionError("it never ends")
        while self._something_happens():
            pass
        for _ in range(len(self._ready)):
            if self._shuffled and len(self._ready) > 1 and self.choose(2, self._put_off):
                self._ready.rotate(-1)
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _put_off(self, _: int) -> str:
        return f"{self._ready[0]!r} is put off"

    def _something_happens(self) -> bool:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        goes_on = bool(self._ready or self._stopping)
        self._behind = self._behind and goes_on
        heard = [
            one for one in self._outside if not goes_on or None in (one.to, self._last_to) or one.to == self._last_to
        ]
        options: list[Happening | None] = [one for one in heard if one.when is not When.NEVER]
        if self._scheduled:
            options.append(None)
        options += [one for one in heard if one.when is When.NEVER]
        if goes_on:
            chosen = self.choose(1 + len(options), lambda option: self._tell(options[option - 1]))
            if not chosen:
                return False
            one = options[chosen - 1]
        elif not options or (options[0] and options[0].when is When.NEVER):
            raise AssertionError("everybody waits, and nothing will ever happen")
        else:
            one = options[self.choose(len(options), lambda option: self._tell(options[option]))]
        if one is None:
            self.hurried = self.hurried or goes_on or options[0] is not None
            self._last_to = None
            self._let_time_pass()
        else:
            self._outside.remove(one)
            self._last_to = one.to
            one.happen()
        return True

    def _tell(self, one: Happening | None) -> str:
        return "time passes" if one is None else one.name

    def _let_time_pass(self) -> None:
        before, self._now = self._now, max(self._now, self._scheduled[0]._when)
        if self._behind:
            self.stood_still_s += self._now - before
        self._behind = True
        while self._scheduled and self._scheduled[0]._when <= self._now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave a cancelled timer where it is."""

    def _write_to_self(self) -> None:
        """Do nothing: nobody sleeps who would have to be woken."""

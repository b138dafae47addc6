"""An event loop of which a schedule says what comes next: answers, people, time, and which task goes on first."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, Final, TypeVar

from tests.harness.explorer import Schedule

Result = TypeVar("Result")

_ROUNDS_MAX: Final = 20_000


class When(IntEnum):
    """When something comes by itself. As a deviation it may at any moment."""

    IN_TURN = auto()
    WHEN_ALL_IS_QUIET = auto()
    NEVER = auto()


@dataclass(eq=False)
class Happening:
    """Something that comes from outside; `to` whom, if not to all."""

    name: str
    happen: Callable[[], object]
    to: str | None
    when: When


class ChosenLoop(asyncio.BaseEventLoop):
    """Runs what is ready in rounds, as asyncio does. Before each something may come from outside, or time may pass.

    By itself what is ready goes on; else what is outside comes, in its order; and time passes when there is neither.
    Each other choice is a deviation. With `shuffled` one of what is ready may also be put off to the end of its round,
    which asyncio does not do by itself.

    Those to whom something comes stand for processes, which share nothing in the loop: what comes to one of them in the
    rounds in which another one goes on could as well come after these, and does.
    """

    def __init__(self, schedule: Schedule, *, shuffled: bool = False) -> None:
        super().__init__()
        self._schedule = schedule
        self._shuffled = shuffled
        self._outside: list[Happening] = []
        self._now = 0.0
        self._rounds = 0
        self._last_to: str | None = None
        self.calm = False  # nothing odd happens any more
        self.hurried = False  # time has passed although something was to come
        self.stood_still_s = 0.0  # time that passed before all had gone on for which it was time already
        self._behind = False

    def time(self) -> float:
        """Seconds since its beginning."""
        return self._now

    def play(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it to its end."""
        return self.run_until_complete(work)

    def expect(
        self, name: str, happen: Callable[[], object], *, to: str | None = None, when: When = When.IN_TURN
    ) -> None:
        """Something will come from outside."""
        self._outside.append(Happening(name, happen, to, when))
        self._outside.sort(key=lambda one: one.when)

    def choose(self, options: int, tell: Callable[[int], str]) -> int:
        """What the schedule says; the first in calm times."""
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
        """It is left where it is."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""

"""The renewer: keeps a connection's leases alive, by a timer on its event loop."""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from . import clock
from .errors import LockError, LockUnavailable
from .lease import Lease

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5  # a renewal that found no server is tried again after this long at the latest
_STUCK_S: Final = 30.0  # no call takes that long
_HAND_BACK_S: Final = 1.0  # a caller that gives a lock back waits no longer
_CALLS_MAX: Final = 64  # renewals under way at once, and as many releases
_GAP_S: Final = 0.01  # seconds between two looks at all leases
_LOOK_S: Final = 1.0  # looks at the clock this often, as timers stand still while the machine is suspended
_MIN_CALL_S: Final = 0.05  # a shorter deadline fails calls that a healthy server would have answered


@dataclass(slots=True)
class _Renewal:
    due: float
    ending: bool = False  # the lease is being given back, not renewed


class Renewer:
    """Renews its leases, each time `ratio` of a lease's TTL has passed, until the lease is given back or lost.

    A third (the default) leaves room for two failures; the articles' demo renews at 4/5. A renewal that finds no server
    is repeated every half second or faster until the lease's deadline, so an outage shorter than the rest of the
    TTL costs nothing. `on_event` hears "renewed", "retried", "lost" or "abandoned" (the owner ended), for metrics.

    For threads it runs on a thread of its own (see `portal`). If a loop hangs, its tasks lose their locks a TTL later.
    Other threads, signal handlers and finalizers may drop a lease at any moment: there is no mutex, as a dict's methods
    are atomic. A list of its items is not: making tuples may start a garbage collection half-way.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        ratio: float = 1 / 3,
        clock: Callable[[], float] = clock.now,
        on_event: Callable[[str], None] = lambda event: None,
        calls_max: int = _CALLS_MAX,
    ) -> None:
        self._loop = loop
        self._ratio = ratio
        self._clock = clock
        self._on_event = on_event
        self._closed = False
        self._paused_until = -math.inf
        self._jobs: dict[Lease, _Renewal] = {}
        self._wakes_at = math.inf  # the time of its next look
        self._looked_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[Lease, asyncio.Task[None]] = {}
        # Thousands of leases make their calls a few at a time: else all of them would be late.
        self._renewals, self._releases = asyncio.Semaphore(calls_max), asyncio.Semaphore(calls_max)

    @property
    def alive(self) -> bool:
        """True while leases are being renewed in time, or there are none."""
        overdue_s = self._clock() - max(self._next_due(), self._paused_until)
        return not self._closed and overdue_s < _STUCK_S

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        lease.keeper = self
        # Counted from when it was asked for, like its deadline: the answer may have been slow.
        self._schedule(lease, _Renewal(due=self._next_of(lease, lease.deadline - lease.ttl_s)))

    def _next_of(self, lease: Lease, asked_at: float) -> float:
        """Return when to renew a lease that was asked for then: the last time just before `renew_until`."""
        due, last = asked_at + lease.ttl_s * self._ratio, lease.renew_until - _MIN_CALL_S
        return min(due, last) if asked_at < last else due

    def drop(self, lease: Lease) -> None:
        """Stop renewing a lease. A renewal under way is not waited for; its result changes nothing any more."""
        self._jobs.pop(lease, None)

    async def hand_back(self, lease: Lease, timeout_s: float) -> None:
        """Give the lease back now, or in the background if no answer comes within a second."""
        if lease.inherited:
            return  # the loop is the parent's, too, and doesn't turn here
        if asyncio.get_running_loop() is not self._loop and not self._loop.is_closed():
            # A lease of another loop is given back there, even if that loop hangs and does it later.
            there = asyncio.run_coroutine_threadsafe(self.hand_back(lease, timeout_s), self._loop)
            await asyncio.wait({asyncio.wrap_future(there)}, timeout=_HAND_BACK_S)
            return
        self.drop(lease)
        if self._loop.is_closed():
            return
        lease.give_up()
        try:
            await self._end_in_turn(lease, min(timeout_s, _HAND_BACK_S))
        except LockUnavailable as error:
            _log.warning("%s could not be given back, and stands in the way until it is: %s", lease.name, error)
            self.end(lease)

    def end(self, lease: Lease) -> None:
        """Give the lease back in the background, trying until it has run out by itself.

        For a lease that is lost, or could not be given back at once: otherwise its key would stand in everybody's way
        for the rest of its TTL, or of its session's life, although the server came back long before.
        """
        self._schedule(lease, _Renewal(due=self._clock(), ending=True))

    def pause(self, for_s: float) -> None:
        """Do nothing for some seconds, as if it hung: for demos and tests. Signal handlers may call it."""
        self._paused_until = self._clock() + for_s

    async def close(self) -> None:
        """Stop renewing, and wait a second for the calls under way. Leases still held run out on the server.

        In that second each release that failed is tried once more.
        """
        until = self._clock() + _HAND_BACK_S
        self._closed = True
        for lease in [lease for lease, job in self._jobs.copy().items() if not job.ending]:
            self.drop(lease)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=_HAND_BACK_S)
            for task in late:
                task.cancel()  # the server is silent
            await asyncio.gather(*late, return_exceptions=True)
        left_s = max(_MIN_CALL_S, until - self._clock())
        ending, self._jobs = list(self._jobs), {}
        await asyncio.gather(*(self._end_in_turn(lease, left_s) for lease in ending), return_exceptions=True)

    def _schedule(self, lease: Lease, job: _Renewal) -> None:
        if (self._closed and not job.ending) or lease.inherited:
            return
        self._jobs[lease] = job
        if job.due >= self._wakes_at:
            return
        if asyncio._get_running_loop() is self._loop:
            self._wake_by(job.due)
        else:
            with suppress(RuntimeError):  # its loop is closed: its leases run out
                self._loop.call_soon_threadsafe(self._wake_by, job.due)

    def _next_due(self) -> float:
        return min((job.due for job in list(self._jobs.values())), default=math.inf)

    def _wake_by(self, due: float) -> None:
        """Plan the next look at all leases for that time, unless one comes earlier."""
        if due >= self._wakes_at or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = due
        wait_s = max(0.0, self._looked_at + _GAP_S - self._clock(), min(due - self._clock(), _LOOK_S))
        self._timer = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        now = self._looked_at = self._clock()
        if self._paused_until > now:
            self._timer = self._loop.call_later(min(_RETRY_S, self._paused_until - now), self._look)
            return
        due = [(lease, job) for lease, job in self._jobs.copy().items() if job.due <= now]
        # Renewals come before releases.
        for lease, job in sorted(due, key=lambda entry: (entry[1].ending, entry[0].deadline)):
            # Pushed on before the call, so that an unexpected error of the call makes no tight loop.
            job.due = now + min(_RETRY_S, lease.ttl_s * self._ratio)
            if lease not in self._tasks:  # else its last call is not over yet
                task = self._tasks[lease] = self._loop.create_task(self._do(lease, job))
                task.add_done_callback(partial(self._done, lease))
        self._wakes_at = math.inf
        self._wake_by(self._next_due())

    def _done(self, lease: Lease, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(lease, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("unexpected error in a renewal", exc_info=error)
        job = self._jobs.get(lease)
        if job is not None:
            self._wake_by(job.due)  # the renewal may be due earlier than planned

    def _is_current(self, lease: Lease, job: _Renewal) -> bool:
        return self._jobs.get(lease) is job

    async def _do(self, lease: Lease, job: _Renewal) -> None:
        if not self._is_current(lease, job):
            return  # released while the ones before it were being renewed
        if job.ending:
            await self._give_back(lease)
        else:
            await self._renew(lease, job)

    async def _renew(self, lease: Lease, job: _Renewal) -> None:
        if lease.lost:
            self._forget(lease, "lost")
        elif lease.abandoned:
            if self._is_current(lease, job):
                # Nobody could release it; renewing it would keep everybody out for ever.
                _log.error("%s: its owner ended without releasing it; giving it back", lease.name)
                lease.lose("its owner ended without releasing it")
                self._forget(lease, "abandoned")
        elif lease.overdue:
            job.due = lease.deadline
        else:
            await self._ask(lease, job)

    async def _ask(self, lease: Lease, job: _Renewal) -> None:
        asked_at = self._clock()
        failed: LockError | None = None
        held = False
        try:
            async with self._renewals:
                asked_at = self._clock()
                held = await lease.hold.renew(max(_MIN_CALL_S, min(lease.left_s, lease.ttl_s * self._ratio)))
        except LockError as error:
            failed = error
        if not self._is_current(lease, job):
            return  # released in the meantime: nobody needs the result
        if failed is not None:
            self._ask_again(lease, job, failed)
        elif held:
            lease.renewed(asked_at)
            job.due = self._next_of(lease, asked_at)
            self._tell(lease, "renewed")
        else:
            lease.lose("the server no longer knows it")
            self._forget(lease, "lost")

    def _ask_again(self, lease: Lease, job: _Renewal, error: LockError) -> None:
        _log.warning("%s could not be renewed, %.1f s left: %s", lease.name, lease.left_s, error)
        if lease.lost:
            self._forget(lease, "lost")
        else:
            # Not later than the deadline, so that subscribers hear of the loss when it happens.
            job.due = min(self._clock() + min(_RETRY_S, lease.ttl_s * self._ratio / 4), lease.deadline)
            self._tell(lease, "retried")

    async def _give_back(self, lease: Lease) -> None:
        if self._clock() >= lease.runs_out_at:
            self.drop(lease)
            return
        try:
            await self._end_in_turn(lease, max(_MIN_CALL_S, lease.ttl_s * self._ratio / 2))
        except LockUnavailable:
            return
        self.drop(lease)

    async def _end_in_turn(self, lease: Lease, timeout_s: float) -> None:
        if self._releases.locked():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._releases.acquire()
            except TimeoutError:
                raise LockUnavailable("too much is being given back at once") from None
        else:
            await self._releases.acquire()
        try:
            await lease.hold.end(timeout_s)
        finally:
            self._releases.release()

    def _forget(self, lease: Lease, event: str) -> None:
        self.drop(lease)
        if lease.granted:
            self.end(lease)  # a key, node or transaction that lives as long as its session would not end by itself
        self._tell(lease, event)

    def _tell(self, lease: Lease, event: str) -> None:
        if not lease.idle:
            if event == "lost":
                _log.warning("%s is lost: %s", lease.name, lease.reason)
            self._on_event(event)

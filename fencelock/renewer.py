"""Keeps leases alive: a scheduled daemon thread for those of threads, a timer on their loop for those of tasks."""

import asyncio
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from . import clock, fork
from .errors import LockUnavailable
from .interrupt import uninterrupted
from .lease import Lease
from .steps import in_thread, on_loop

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5  # at the latest this long after a renewal that found no server, the next one is tried
_STUCK_S: Final = 30.0  # no call takes that long: a thread that has done nothing else is stuck
_HAND_BACK_S: Final = 1.0  # whoever gives a lock back does not wait for long
_LOOK_S: Final = 1.0  # so often it looks at the clock: a wait stands still while the machine is suspended
_MIN_CALL_S: Final = 0.05  # a shorter deadline fails calls that a healthy server would have answered


@dataclass(slots=True)
class _Job:
    due: float
    ending: bool = False  # the lease is being given back, not renewed


class Renewer(ABC):
    """Renews every lease that it was given each `ratio` of its TTL, until it is taken back or lost.

    A third (the default) leaves room for two failures; the articles' demo renews at 4/5. A renewal that finds no server
    is repeated every half a second or faster until the lease's deadline, so an outage shorter than the rest of the
    TTL costs nothing. `on_event` hears "renewed", "retried", "lost" or "abandoned" (the owner ended), for metrics.

    >>> renewer = ThreadRenewer()
    >>> renewer.keep(lease)
    >>> renewer.drop(lease)
    """

    def __init__(
        self,
        *,
        ratio: float = 1 / 3,
        clock: Callable[[], float] = clock.now,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        if not 0 < ratio < 1:
            raise ValueError(f"the renewal ratio must be between 0 and 1, not {ratio}")
        self._ratio = ratio
        self._clock = clock
        self._on_event = on_event
        self._closed = False
        self._paused_until = -math.inf
        self._jobs: dict[Lease, _Job] = {}
        self._mutex = threading.Lock()
        self._wakes_at = math.inf  # when it will look by itself

    @property
    def over(self) -> bool:
        """Whether it will renew nothing any more."""
        return self._closed

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        lease.keeper = self
        # Counted from when it was asked for, like its deadline: the answer may have been slow.
        self._schedule(lease, _Job(due=lease.deadline - lease.ttl_s * (1 - self._ratio)))

    def drop(self, lease: Lease) -> None:
        """Renew it no longer. A renewal under way is not waited for; its result changes nothing any more."""
        with self._mutex:
            self._jobs.pop(lease, None)

    async def hand_back(self, lease: Lease, timeout_s: float) -> None:
        """Give the lease back now; in the background if there is no answer in time, a second at most. Never raises."""
        self.drop(lease)
        if lease.inherited:
            return
        lease.give_up()
        try:
            with uninterrupted():
                await lease.hold.end(min(timeout_s, _HAND_BACK_S))
        except LockUnavailable as error:
            _log.warning("%s could not be given back, and stands in the way until it is: %s", lease.name, error)
            self.end(lease)

    def end(self, lease: Lease) -> None:
        """Give the lease back in the background, trying until it has run out by itself anyway.

        For a lease that could not be given back at once: without this its key would stand in everybody's way for
        the rest of its TTL although the server came back long before.
        """
        self._schedule(lease, _Job(due=self._clock(), ending=True))

    def pause(self, for_s: float) -> None:
        """Do nothing for some seconds, as if it hung: for demonstrations and tests. A signal may call it."""
        self._paused_until = self._clock() + for_s

    def close(self) -> None:
        """Stop. What is still kept is kept no longer, and runs out on the server."""
        with self._mutex:
            self._closed = True
            self._jobs.clear()

    def _schedule(self, lease: Lease, job: _Job) -> None:
        with self._mutex:
            if self._closed or lease.inherited:
                return
            self._jobs[lease] = job
            sooner = job.due < self._wakes_at
        if sooner:
            self._look_soon()

    @abstractmethod
    def _look_soon(self) -> None:
        """Something is due before the moment at which it would have looked by itself."""

    def _next_due(self) -> float:
        with self._mutex:
            return min((job.due for job in self._jobs.values()), default=math.inf)

    def _take_due(self) -> "list[tuple[Lease, _Job]]":
        """What is due now: what is held before what is given back."""
        now = self._clock()
        with self._mutex:
            due = [(lease, job) for lease, job in self._jobs.items() if job.due <= now]
        return sorted(due, key=lambda entry: (entry[1].ending, entry[0].deadline))

    def _is_current(self, lease: Lease, job: _Job) -> bool:
        with self._mutex:
            return self._jobs.get(lease) is job

    async def _do(self, lease: Lease, job: _Job) -> None:
        # Pushed on before the call, so that a call that raises what it must not is not repeated in a tight loop.
        job.due = self._clock() + min(_RETRY_S, lease.ttl_s * self._ratio)
        if not self._is_current(lease, job):
            return  # released while the ones before it were being renewed
        if job.ending:
            await self._give_back(lease)
        else:
            await self._renew(lease, job)

    async def _renew(self, lease: Lease, job: _Job) -> None:
        if lease.lost:
            self._forget(lease, "lost")
            if lease.overdue:
                # What lives as long as a session (a node, a transaction) would not end by itself.
                with suppress(LockUnavailable):
                    await lease.hold.end(_MIN_CALL_S)
        elif lease.abandoned:
            if self._is_current(lease, job):
                # Nobody could release it; renewing it would keep everybody out for ever.
                _log.error("%s: its owner ended without releasing it; giving it back", lease.name)
                lease.lose("its owner ended without releasing it")
                self._forget(lease, "abandoned")
                self.end(lease)
        elif lease.overdue:
            job.due = lease.deadline
        else:
            await self._ask(lease, job)

    async def _ask(self, lease: Lease, job: _Job) -> None:
        asked_at = self._clock()
        failed: LockUnavailable | None = None
        held = False
        try:
            # Half an interval at most: on a thread other leases wait behind this one.
            held = await lease.hold.renew(max(_MIN_CALL_S, min(lease.left_s, lease.ttl_s * self._ratio / 2)))
        except LockUnavailable as error:
            failed = error
        if not self._is_current(lease, job):
            return  # released in the meantime: nobody wants to know
        if failed is not None:
            self._ask_again(lease, job, failed)
        elif held:
            lease.renewed(asked_at)
            job.due = asked_at + lease.ttl_s * self._ratio
            self._tell(lease, "renewed")
        else:
            lease.lose("the server no longer knows it")
            self._forget(lease, "lost")

    def _ask_again(self, lease: Lease, job: _Job, error: LockUnavailable) -> None:
        _log.warning("%s could not be renewed, %.1f s left: %s", lease.name, lease.left_s, error)
        if lease.lost:
            self._forget(lease, "lost")
        else:
            # Not later than the deadline: whoever asked to be told of the loss is told when it happens.
            job.due = min(self._clock() + min(_RETRY_S, lease.ttl_s * self._ratio / 4), lease.deadline)
            self._tell(lease, "retried")

    async def _give_back(self, lease: Lease) -> None:
        if self._clock() >= lease.deadline:
            self.drop(lease)
            return
        try:
            await lease.hold.end(max(_MIN_CALL_S, lease.ttl_s * self._ratio / 2))
        except LockUnavailable:
            return
        self.drop(lease)

    def _forget(self, lease: Lease, event: str) -> None:
        self.drop(lease)
        self._tell(lease, event)

    def _tell(self, lease: Lease, event: str) -> None:
        if not lease.idle:
            self._on_event(event)


class ThreadRenewer(Renewer):
    """The scheduled renewal thread: one for all leases that threads have of a backend."""

    def __init__(
        self,
        *,
        ratio: float = 1 / 3,
        clock: Callable[[], float] = clock.now,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(ratio=ratio, clock=clock, on_event=on_event)
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        # In a forked child, too: its parent's leases are its parent's to renew.
        self._jobs = {}
        self._mutex = threading.Lock()
        self._changed = threading.Event()
        self._busy_since: float | None = None
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    @property
    def alive(self) -> bool:
        """Whether leases are being kept: the thread runs and gets on, or there was no lease yet to start it for."""
        busy_since = self._busy_since
        stuck = busy_since is not None and self._clock() - busy_since > _STUCK_S
        return not self._closed and not stuck and (self._thread is None or self._thread.is_alive())

    def close(self) -> None:
        """As `Renewer` says; the thread has ended then."""
        super().close()
        thread = self._thread
        self._changed.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STUCK_S)

    def _look_soon(self) -> None:
        with self._mutex:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="fencelock-renewer", daemon=True)
                self._thread.start()
        self._changed.set()

    def _run(self) -> None:
        while not self._closed:
            with self._mutex:
                due = min((job.due for job in self._jobs.values()), default=math.inf)
                self._wakes_at = due
            if due > self._clock():
                self._changed.wait(None if math.isinf(due) else max(0.0, min(due - self._clock(), _LOOK_S)))
                self._changed.clear()
                continue
            self._busy_since = self._clock()
            try:
                self.run_due()
            except Exception:
                # The thread that keeps every lease of the process must outlive any one lease's defect.
                _log.exception("unexpected error in a renewal")
                time.sleep(_RETRY_S)
            self._busy_since = None

    def run_due(self) -> None:
        """Do all that is due now. The thread calls this; a test with a clock of its own may call it instead."""
        if (paused_s := self._paused_until - self._clock()) > 0:
            time.sleep(min(_RETRY_S, paused_s))
            return
        for lease, job in self._take_due():
            # What is held is not kept waiting by more than one call of what is given back.
            if job.ending and self._renewal_is_due():
                return
            self._busy_since = self._busy_since and self._clock()
            in_thread(self._do(lease, job))

    def _renewal_is_due(self) -> bool:
        now = self._clock()
        with self._mutex:
            return any(job.due <= now for job in self._jobs.values() if not job.ending)


class LoopRenewer(Renewer):
    """Renews what tasks of one event loop have, on that loop: if it hangs they lose it a TTL later, as they must."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        ratio: float = 1 / 3,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(ratio=ratio, on_event=on_event)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[Lease, asyncio.Task[None]] = {}

    @property
    def over(self) -> bool:
        """As `Renewer` says."""
        return super().over or self._loop.is_closed()

    async def settle(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _look_soon(self) -> None:
        with suppress(RuntimeError):  # its loop is closed: what was held there runs out
            if asyncio._get_running_loop() is self._loop:
                self._set_timer()
            else:
                self._loop.call_soon_threadsafe(self._set_timer)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._next_due()
        self._wakes_at = due
        if not math.isinf(due):
            self._timer = self._loop.call_later(max(0.0, min(due - self._clock(), _LOOK_S)), self._look)

    def _look(self) -> None:
        if self._paused_until <= self._clock():
            for lease, job in self._take_due():
                if lease not in self._tasks:  # else the last call for it is not over yet
                    task = self._tasks[lease] = self._loop.create_task(self._do_on_loop(lease, job))
                    task.add_done_callback(partial(self._done, lease))
                job.due = self._clock() + min(_RETRY_S, lease.ttl_s * self._ratio)
            self._set_timer()
        else:
            self._timer = self._loop.call_later(min(_RETRY_S, self._paused_until - self._clock()), self._look)

    def _done(self, lease: Lease, _: "asyncio.Task[None]") -> None:
        self._tasks.pop(lease, None)

    async def _do_on_loop(self, lease: Lease, job: _Job) -> None:
        try:
            await on_loop(self._do(lease, job))
        except Exception:
            _log.exception("unexpected error in a renewal")
        self._set_timer()  # it may be due earlier than was thought

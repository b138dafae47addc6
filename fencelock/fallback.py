"""A lock that may be done without: while its server is away, a few go on unlocked, and the store alone decides.

A circuit breaker around a lock system, the articles' upgrade and downgrade: a lock in Redis as long as Redis is there,
else the optimistic commit of MySQL, for a bounded number at once so that MySQL survives it. It is only as good as the
store: each of its commits must find out by itself that another one was faster (`VersionedStockStore`). Then the lock
prevents conflicts, not errors, and it does no harm that, for a moment, some sell locked and some unlocked.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from .attempt import Attempt
from .backend import LockBackend, Scope
from .backoff import Backoff
from .callbacks import Callbacks
from .common import Options
from .contender import Contender
from .errors import LockCancelled, LockUnavailable
from .grant import Grant
from .lease import Lease, Watchdog
from .lock import DistributedLock
from .renewer import Renewer, ThreadRenewer
from .steps import Pause, in_thread, on_loop
from .url import LockUrl
from .waiting import Cancel, Wait

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # so often the lock system is asked whether it is there
_LONGEST_OPEN_S: Final = 10.0
_POLL_S: Final = 0.05
_PING_S: Final = 1.0
_TTL_S: Final = 5.0  # of a grant without a lock: the renewer then looks whether its owner is still there
_WITHOUT: Final = "no lock"  # the source of such grants


class FallbackLock(DistributedLock["FallbackBackend"]):
    """The lock while it can be had; else a grant with no lock behind it, whose token is 0."""

    def __init__(self, backend: "FallbackBackend", lock: DistributedLock[Any]) -> None:
        super().__init__(backend, lock.name, lock.ttl_s)
        self._lock = lock
        backend.look()

    @override
    def _attempt(self) -> Attempt[Any]:
        return self._lock._attempt()

    @override
    async def _take(self, wait: Wait, renewer: Renewer) -> Grant:
        backend = self._backend
        backend.look()  # in a forked child nobody does yet
        while True:
            backend.ensure_open()
            grant = await (self._without(wait, renewer) if backend.degraded else self._with(wait, renewer))
            if grant is not None:
                return grant

    async def _with(self, wait: Wait, renewer: Renewer) -> Grant | None:
        """The lock; None if its system is away, or goes away while we wait."""
        backend, call_off = self._backend, Cancel()
        forgets = [wait.cancel.subscribe(call_off.set), backend.went_away.subscribe(call_off.set)]
        inner = Wait(None if wait.wait_s is None else wait.left_s, call_off)
        inner.granted = wait.granted
        try:
            return await self._lock._take(inner, renewer)
        except LockCancelled:
            if wait.cancel.is_set():
                raise
            return None
        except LockUnavailable as error:
            backend.ensure_open()
            backend.open_circuit(error)
            return None
        finally:
            for forget in forgets:
                forget()

    async def _without(self, wait: Wait, renewer: Renewer) -> Grant | None:
        """No lock, as one of few; None if its system is back."""
        backend = self._backend
        while backend.degraded:
            backend.ensure_open()
            if backend.slots.acquire(blocking=False):
                slot = _Slot(backend.slots)
                lease = Lease(f"{self.name}, unlocked", slot, _TTL_S)
                lease.on_lost(slot.free)
                # A thread's other one may hang on a server that is silent.
                (backend.watcher if renewer is backend.renewer else renewer).keep(lease)
                if renewer is not backend.renewer:
                    slot.unwatched = Watchdog(lease).watched_by(backend.watcher)
                grant = Grant(self.name, 0, _WITHOUT, lease)
                wait.granted.append(grant)
                return grant
            wait.check(self.name)
            await Pause(min(wait.left_s, _POLL_S))
        return None

    @override
    async def _queue(self) -> list[Contender]:
        return [] if self._backend.degraded else await self._lock._queue()


class _Slot:
    """One of the few grants without a lock; given back once."""

    def __init__(self, slots: threading.BoundedSemaphore) -> None:
        self._slots = slots
        self._given_back = threading.Lock()
        self.unwatched: Callable[[], None] = lambda: None

    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        self.free()

    def free(self) -> None:
        """Let another one have it."""
        self.unwatched()
        if self._given_back.acquire(blocking=False):
            self._slots.release()


class FallbackBackend(LockBackend):
    """Another backend, which may be away.

    `most`: how many may have a grant without a lock at once, in this process; `on_change` hears "away" and "back". The
    lock system is asked twice a second whether it is there; a call that fails says so, too.
    """

    def __init__(
        self, backend: LockBackend, *, most: int = 10, on_change: Callable[[str], None] = lambda event: None
    ) -> None:
        super().__init__(ttl_s=backend.ttl_s, timeout_s=backend.timeout_s, instance=backend.instance, hook=backend.hook)
        self.name = backend.name
        # What is promised must hold without the lock, too.
        self.guarantees = replace(
            backend.guarantees,
            scope=Scope.NOBODY,
            leases=False,
            fair=False,
            fencing=False,
        )
        self.renewer = backend.renewer
        self.loop_renewers = backend.loop_renewers
        self.watcher = ThreadRenewer()  # of grants without a lock; the other one may hang on a server that is silent
        self.went_away = Callbacks()  # fired while the lock system is away
        self._backend = backend
        self._on_change = on_change
        self._failures = 0
        self._backoff = Backoff(_LOOK_S, _LONGEST_OPEN_S)
        self._closed = threading.Event()
        self.slots = threading.BoundedSemaphore(most)
        self._mutex = threading.Lock()
        self._looking: threading.Thread | None = None

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        raise NotImplementedError("it is made of another backend")

    @property
    @override
    def degraded(self) -> bool:
        return self.went_away.fired

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> FallbackLock:
        return FallbackLock(self, self._backend.lock(name, ttl_s=ttl_s))

    def look(self) -> None:
        """See to it that somebody looks for the lock system."""
        with self._mutex:
            if self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(target=self._look_for_ever, name="fencelock-fallback", daemon=True)
                self._looking.start()

    def open_circuit(self, error: LockUnavailable) -> None:
        """The lock system can't be reached: go on without."""
        with self._mutex:
            self._failures += 1
            if self.degraded or self._closed.is_set():
                return
            went_away = self.went_away
            went_away.fired = True
        _log.warning("%s is away, going on without locks: %s", self.name, error)
        self._on_change("away")
        went_away.fire()

    def _close_circuit(self, failures: int) -> bool:
        with self._mutex:
            back = self.degraded and failures == self._failures
            if back:
                self.went_away = Callbacks()
        return back

    def _look_for_ever(self) -> None:
        # A lock system that answers and yet gives no locks would be back twice a second: so it is trusted less each
        # time.
        pause_s, back_at = _LOOK_S, time.monotonic()
        while not self._closed.wait(pause_s if self.degraded else _LOOK_S):
            failures = self._failures
            try:
                self._backend.ping(_PING_S)
            except LockUnavailable as error:
                self.open_circuit(error)
                continue
            except Exception:
                _log.exception("unexpected error in the look for the lock system")
                continue
            if self._close_circuit(failures):
                if time.monotonic() - back_at > _LONGEST_OPEN_S:
                    self._backoff.reset()
                pause_s, back_at = self._backoff.next_s(), time.monotonic()
                _log.warning("%s is back, and so are the locks", self.name)
                self._on_change("back")

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        """The queues of the lock system; empty while it is away."""
        if self.degraded:
            return []
        try:
            return await self._backend.queues(prefix)
        except LockUnavailable as error:
            self.ensure_open()
            self.open_circuit(error)
            return []

    @override
    async def force_released(self, name: str) -> Contender | None:
        return await self._backend.force_released(name)

    @override
    async def pinged(self, timeout_s: float) -> None:
        """Nobody needs the lock system to be there; `degraded` says whether it is."""

    @override
    def election(self, name: str) -> Any:
        return self._backend.election(name)

    @override
    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> Any:
        return self._backend.session(ttl_s=ttl_s, lease_id=lease_id)

    @override
    def election_for_tasks(self, name: str) -> Any:
        return self._backend.election_for_tasks(name)

    @override
    def session_for_tasks(self, *, ttl_s: float | None, lease_id: int | None) -> AbstractAsyncContextManager[Any]:
        return self._backend.session_for_tasks(ttl_s=ttl_s, lease_id=lease_id)

    @override
    def close(self) -> None:
        self._closed.set()
        in_thread(self.shutdown.begin())
        self._backend.close()
        self.watcher.close()
        if self._looking is not None:
            self._looking.join()

    @override
    async def leave_loop(self) -> None:
        await self._backend.leave_loop()

    @override
    async def close_on_loop(self) -> None:
        await on_loop(self.shutdown.begin())
        await self._backend.close_on_loop()
        await asyncio.to_thread(self.close)

"""A lock with a fallback: while its server is away, a few callers go on unlocked, and the store alone decides.

A circuit breaker around a lock system, the articles' upgrade and downgrade: a lock in Redis as long as Redis is there,
else the optimistic commit of MySQL, for a bounded number at once so that MySQL survives it. It is only as good as the
store: each of its commits must find out by itself that another one was faster (`VersionedStockStore`). Then the lock
prevents conflicts, not errors, and for a moment some may sell with the lock and some without, which does no harm.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from fencelock import (
    AsyncLocks,
    AsyncSession,
    Cancel,
    Contender,
    Grant,
    LockBackend,
    LockCancelled,
    LockUnavailable,
    Scope,
)
from fencelock.kit import (
    Attempt,
    Backoff,
    Ballot,
    Connection,
    Lease,
    LockUrl,
    Options,
    Wait,
    in_child,
    loop_of_threads,
    told,
)

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # the lock system is pinged this often
_LONGEST_OPEN_S: Final = 10.0
_POLL_S: Final = 0.05
_PING_S: Final = 1.0
_TTL_S: Final = 5.0  # the TTL of a grant without a lock, after which the renewer looks whether its owner is still there
_WITHOUT: Final = "no lock"  # the source of such grants


class _Connection(Connection):
    """Grants of the lock while its system answers; else grants without a lock, whose token is 0."""

    def __init__(self, backend: "FallbackBackend", inner: Connection) -> None:
        super().__init__(backend.terms)
        self.inner = inner
        self._backend = backend

    @override
    def attempt(self, name: str, ttl_s: float) -> Attempt[Any]:
        return self.inner.attempt(name, ttl_s)

    @override
    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        backend = self._backend
        backend.look()  # in a forked child nobody does yet
        while True:
            self.ensure_open()
            grant = await (self._without(name, wait) if backend.degraded else self._with(name, ttl_s, wait))
            if grant is not None:
                return grant

    async def _with(self, name: str, ttl_s: float, wait: Wait) -> Grant | None:
        """Get the lock; None if its system is away, or goes away while we wait."""
        backend, call_off = self._backend, Cancel()
        forgets = [backend.went_away.subscribe(call_off.set)]
        if wait.cancel is not None:
            forgets.append(wait.cancel.subscribe(call_off.set))
        wait.wake = call_off
        if wait.called_off:  # it was set a moment ago, when nobody was subscribed
            wait.check(name)
        inner = Wait(None if wait.wait_s is None else wait.left_s, call_off)
        try:
            return await self.inner.take(name, ttl_s, inner)
        except LockCancelled:
            if wait.called_off:
                raise
            return None
        except LockUnavailable as error:
            self.inner.ensure_open()
            backend.open_circuit(error)
            return None
        finally:
            for forget in forgets:
                forget()

    async def _without(self, name: str, wait: Wait) -> Grant | None:
        """Get one of the few grants without a lock; None if the lock system is back."""
        backend = self._backend
        while backend.degraded:
            self.ensure_open()
            self.inner.ensure_open()
            if backend.slots.acquire(blocking=False):
                slot = _Slot(backend.slots)
                lease = Lease(f"{name}, unlocked", slot, _TTL_S)
                lease.on_lost(slot.free)
                self.renewer.keep(lease)
                slot.watch(lease)
                return Grant(name, 0, _WITHOUT, lease)
            wait.check(name)
            await asyncio.sleep(min(wait.left_s, _POLL_S))
        return None

    @override
    async def queue(self, name: str) -> list[Contender]:
        return [] if self._backend.degraded else await self.inner.queue(name)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues of the lock system; empty while it is away."""
        if self._backend.degraded:
            return []
        try:
            return await self.inner.contenders(prefix)
        except LockUnavailable as error:
            self.inner.ensure_open()
            self._backend.open_circuit(error)
            return []

    @override
    async def force_release(self, name: str) -> Contender | None:
        """Take a lock from its holder. A grant without a lock can't be taken away, and nobody waits for it."""
        return await self.inner.force_release(name)

    @override
    async def ping(self, timeout_s: float) -> None:
        """Never raise: nobody needs the lock system to be there, and `degraded` says whether it is."""


class _Slot:
    """A slot among the few grants without a lock; it is given back once."""

    def __init__(self, slots: threading.BoundedSemaphore) -> None:
        self._slots = slots
        self._given_back = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, lease: Lease) -> None:
        """Free the slot at the end of its lease, on the threads' loop, even if its own loop hangs or is closed."""
        loop = loop_of_threads()

        def look() -> None:
            if not lease.lost and not self._given_back.locked():
                self._timer = loop.call_later(lease.left_s, look)

        loop.call_soon_threadsafe(look)

    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        self.free()

    def free(self) -> None:
        """Free the slot, unless that was done before."""
        if self._given_back.acquire(blocking=False):
            self._slots.release()
            if self._timer is not None:
                loop_of_threads().call_soon_threadsafe(self._timer.cancel)


class FallbackBackend(LockBackend):
    """Wraps a backend that may be away.

    `most`: the limit of grants without a lock at once in this process; `on_change` is called with "away" and "back".
    The lock system is pinged twice a second; a call that finds it away counts, too.
    """

    def __init__(
        self, backend: LockBackend, *, most: int = 10, on_change: Callable[[str], None] = lambda event: None
    ) -> None:
        self.name = backend.name
        super().__init__()
        self.terms = backend.terms
        # The promises must hold without the lock, too.
        self.guarantees = replace(
            backend.guarantees,
            scope=Scope.NOBODY,
            leases=False,
            fair=False,
            fencing=False,
        )
        self.went_away = Cancel()  # set while the lock system is away
        self._backend = backend
        self._on_change = on_change
        self._failures = 0
        self._backoff = Backoff(_LOOK_S, _LONGEST_OPEN_S)
        self._most = most
        self._begin_here()
        in_child(self._begin_here)

    def _begin_here(self) -> None:
        self.slots = threading.BoundedSemaphore(self._most)
        self._circuit = threading.RLock()  # a signal's handler may ask for a lock within it
        self._closing = threading.Event()
        self._looking: threading.Thread | None = None

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        raise NotImplementedError("it is made of another backend")

    @property
    def degraded(self) -> bool:
        """True while grants are given without a lock, as the system is away."""
        return self.went_away.is_set()

    @override
    def connect(self) -> Connection:
        self.look()
        return _Connection(self, self._backend.here())

    @override
    def check_name(self, name: str) -> None:
        self._backend.check_name(name)
        self.look()

    def look(self) -> None:
        """Make sure that the thread which pings the lock system runs."""
        with self._circuit:
            if (self._looking is None or not self._looking.is_alive()) and not self._closing.is_set():
                self._looking = threading.Thread(target=self._look_for_ever, name="fencelock-fallback", daemon=True)
                self._looking.start()

    def open_circuit(self, error: LockUnavailable) -> None:
        """Go on without locks, as the lock system can't be reached."""
        with self._circuit:
            self._failures += 1
            if self.degraded or self._closing.is_set():
                return
            self.went_away.set()
        _log.warning("%s is away, going on without locks: %s", self.name, error)
        told(self._on_change, "away")

    def _close_circuit(self, failures: int) -> bool:
        with self._circuit:
            back = self.degraded and failures == self._failures
            if back:
                self.went_away = Cancel()
        return back

    def _look_for_ever(self) -> None:
        # A lock system that answers pings and yet gives no locks would be back twice a second, so it is trusted later
        # each time.
        pause_s, back_at = _LOOK_S, time.monotonic()
        while not self._closing.wait(pause_s if self.degraded else _LOOK_S):
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
                told(self._on_change, "back")

    @override
    def ballot(self, name: str) -> Ballot:
        return self._backend.ballot(name)

    @override
    async def open_session(self, ttl_s: float, lease_id: int | None, end_lease: bool) -> AsyncSession:
        return await self._backend.open_session(ttl_s, lease_id, end_lease)

    @property
    @override
    def _renewing(self) -> bool:
        return super()._renewing and self._backend._renewing

    @override
    def _pause_renewal(self, for_s: float) -> None:
        super()._pause_renewal(for_s)
        self._backend._pause_renewal(for_s)

    @override
    def close(self) -> None:
        self._closing.set()
        super().close()
        self._backend.close()
        if self._looking is not None:
            self._looking.join()

    @override
    async def close_on_loop(self) -> None:
        self._closing.set()
        await super().close_on_loop()
        await self._backend.close_on_loop()
        await asyncio.to_thread(self.close)

    @override
    async def leave_loop(self) -> None:
        await super().leave_loop()
        await self._backend.leave_loop()


def degraded(locks: AsyncLocks) -> bool:
    """Return whether grants are given without a lock at the moment."""
    return isinstance(locks.backend, FallbackBackend) and locks.backend.degraded

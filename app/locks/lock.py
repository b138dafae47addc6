"""The template that every lock inherits: re-entrancy, owners and the forms of acquiring; nothing of any backend."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic

from app.common import clock, fork
from app.errors import LockCancelled, LockError, LockLost, LockNotHeld, LockTimeout
from app.locks.attempt import Attempt, Backend
from app.locks.contender import Contender
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.pulse import Pulse, pulse_of_loop
from app.locks.waiting import Cancel, Wait


@dataclass(slots=True)
class LockData:
    """What an owner has: its grant, and how many of its acquires are not released yet."""

    grant: Grant
    hold_count: int = 1


# For the event loop's acquires. Threads are made when none is idle, so the bound only stops a run-away; the loop's own
# executor has few threads, and waiters in it would starve everything else that uses it.
_WAITERS = fork.Threads(1024, "seckill-lock")
# Apart from the waiters: a release that queues behind them would wait for itself.
_RELEASERS = fork.Threads(32, "seckill-lock-release")


class DistributedLock(ABC, Generic[Backend]):
    """A lock that one owner among all processes has at a time, re-entrant for that owner.

    >>> with lock as grant:                       # waits as long as it takes
    ...     store.write(..., token=grant.token)
    >>> grant = lock.acquire(wait_s=2.5)          # raises LockTimeout after that
    >>> grant = lock.try_acquire()                # None if somebody else has it
    >>> lock.release()

    The owner is the current thread, unless `owner` names another (any hashable): on an event loop every task has the
    same thread, so use `on_loop`, which makes an owner for each use. An object of this class can be shared by threads.
    A lock whose owning thread has ended is given back: nobody could release it any more. After a fork what the parent
    held is the parent's alone; in the child the lock can be acquired, as by any other process.

    A backend's lock says how one attempt is made (`_attempt`), and who queues (`contenders`).
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self.name = checked_name(name)
        self._backend = backend
        # By thread *object*: identifiers are recycled, and a new thread would inherit a dead one's lock.
        self._held: dict[Hashable, LockData] = {}
        self._held_by_parent: set[Hashable] = set()
        self._mutex = threading.Lock()
        fork.in_child(self._begin_in_child)

    def _begin_in_child(self) -> None:
        self._held_by_parent |= self._held.keys()
        self._held = {}
        self._mutex = threading.Lock()

    @property
    def ttl_s(self) -> float:
        """The TTL of its leases, in seconds."""
        return self._backend.ttl_s

    @abstractmethod
    def _attempt(self) -> Attempt[Any]:
        """A new attempt to get the lock."""

    @abstractmethod
    def contenders(self) -> list[Contender]:
        """The queue: the holder first, then the waiters in the order in which they will get the lock.

        Only the holder unless `Guarantees.shows_queue`. Raises `LockUnavailable`.
        """

    def _take(self, wait: Wait) -> Grant:
        return self._attempt().until_granted(wait)

    def _give_back(self, grant: Grant) -> None:
        self._backend.renewer.hand_back(grant.lease, self._backend.timeout_s)

    def acquire(
        self, *, wait_s: float | None = None, cancel: Cancel | None = None, owner: Hashable | None = None
    ) -> Grant:
        """Own the lock, waiting for it at most `wait_s` seconds (None: as long as it takes; 0: not at all).

        Raises `LockTimeout` when the wait is over, `LockCancelled` when `cancel` is set before that, `LockUnavailable`
        when the lock's server can't be reached, and `LockLost` when this owner has the lock but its lease has ended.
        Whatever it raises, nothing of this call is left in the queue for longer than one lease TTL.
        """
        owner = _owner(owner)
        data = self._held.get(owner)
        if data is not None:
            data.grant.ensure_held()  # outside the mutex: it may call on_lost callbacks, which may use this lock
            with self._mutex:
                if self._held.get(owner) is data:
                    data.hold_count += 1
                    return data.grant
        grant = self._take(Wait(wait_s, cancel))
        grant.lease.owner = owner
        try:
            with self._mutex:
                for gone in [other for other, held in self._held.items() if held.grant.lease.abandoned]:
                    del self._held[gone]  # the renewer has given back, or will, what a dead thread left
                if owner in self._held:
                    raise LockError(f"{self.name}: owner {owner!r} acquired it twice at the same time")
                self._held[owner] = LockData(grant)
        except BaseException:
            self._give_back(grant)
            raise
        return grant

    def try_acquire(self, *, owner: Hashable | None = None) -> Grant | None:
        """Own the lock if nobody else does, else None; no waiting but for the backend's answers."""
        try:
            return self.acquire(wait_s=0, owner=owner)
        except LockTimeout:
            return None

    def release(self, *, owner: Hashable | None = None) -> None:
        """Undo one acquire; the last one gives the lock back.

        Raises `LockNotHeld` for anybody but the owner, and `LockError` in a child whose parent has it. If the lock was
        lost in the meantime the last release raises `LockLost`, after cleaning up: what was done under it may have been
        done beside another owner.
        """
        owner = _owner(owner)
        with self._mutex:
            data = self._held.get(owner)
            if data is None and owner in self._held_by_parent:
                raise LockError(f"{self.name} was acquired before the fork: only the parent process can release it")
            if data is None:
                raise LockNotHeld(f"{self.name} is not held by {_describe(owner)}")
            data.hold_count -= 1
            if data.hold_count:
                return
            del self._held[owner]
        lost = data.grant.lost
        self._give_back(data.grant)
        if lost:
            data.grant.ensure_held()

    @property
    def held_by_me(self) -> bool:
        """Whether the current thread owns the lock and has not lost it."""
        data = self._held.get(_owner(None))
        return data is not None and not data.grant.lost

    @property
    def hold_count(self) -> int:
        """How many acquires of the current thread are not released yet."""
        data = self._held.get(_owner(None))
        return 0 if data is None else data.hold_count

    def __enter__(self) -> Grant:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLost:
            if error is None:  # else the body's own error says more
                raise

    @asynccontextmanager
    async def on_loop(
        self, *, wait_s: float | None = None, owner: Hashable | None = None, hold_max_s: float | None = None
    ) -> AsyncIterator[Grant]:
        """The same as `with lock`, for a task on an event loop, which is not blocked meanwhile.

        The owner is this use of the lock, not the thread: pass an `owner` to re-enter. Cancelling the task calls the
        wait off. The lease is renewed only while the loop turns: one that is blocked has lost the lock a TTL and a
        second later. `hold_max_s`: it ends so many seconds after the grant whatever the task does, but not before its
        TTL.

        >>> async with lock.on_loop(wait_s=2.5) as grant:
        ...     await store.write(..., token=grant.token)
        """
        owner = object() if owner is None else owner
        with pulse_of_loop().felt() as pulse:
            grant = await self._acquire_on_loop(wait_s, owner, _Terms(pulse, hold_max_s))
            try:
                yield grant
            except BaseException:
                await self._release_on_loop(owner, quietly=True)
                raise
            await self._release_on_loop(owner)

    async def _acquire_on_loop(self, wait_s: float | None, owner: Hashable, terms: "_Terms") -> Grant:
        claim = _Claim()
        loop, acquire = asyncio.get_running_loop(), partial(self._acquire_for_loop, wait_s, owner, claim, terms)
        acquiring = loop.run_in_executor(_WAITERS, copy_context().run, acquire)
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            if claim.abandon():
                acquiring.add_done_callback(_retrieved)
            else:
                await self._release_on_loop(owner, quietly=True)
            raise

    def _acquire_for_loop(self, wait_s: float | None, owner: Hashable, claim: "_Claim", terms: "_Terms") -> Grant:
        grant = self.acquire(wait_s=wait_s, cancel=claim.cancel, owner=owner)
        terms.bind(grant.lease)
        if not claim.grant():
            self.release(owner=owner)
            raise LockCancelled(f"the wait for {self.name} was called off")
        return grant

    async def _release_on_loop(self, owner: Hashable, *, quietly: bool = False) -> None:
        loop, release = asyncio.get_running_loop(), partial(self.release, owner=owner)
        releasing = loop.run_in_executor(_RELEASERS, copy_context().run, release)
        try:
            await asyncio.shield(releasing)  # a cancelled task must not stop half-way through a release
        except asyncio.CancelledError:
            releasing.add_done_callback(_retrieved)
            raise
        except LockLost:
            if not quietly:
                raise


@dataclass(frozen=True, slots=True)
class _Terms:
    """How long a lease is renewed for a task: while its loop turns, and so that it ends `hold_max_s` from now."""

    pulse: Pulse
    hold_max_s: float | None

    def bind(self, lease: Lease) -> None:
        lease.pulse = self.pulse
        if self.hold_max_s is not None:
            lease.renew_until = min(lease.renew_until, clock.now() + self.hold_max_s - lease.ttl_s)


class _Claim:
    """Decides the race between a thread that gets a grant and a task that no longer wants it: exactly one is first."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._decided = False
        self.cancel = Cancel()

    def grant(self) -> bool:
        """The thread has a grant. False: nobody wants it, so release it."""
        return self._is_first()

    def abandon(self) -> bool:
        """The task gives up. False: the thread has a grant already, so release it."""
        if not self._is_first():
            return False
        self.cancel.set()
        return True

    def _is_first(self) -> bool:
        with self._mutex:
            first, self._decided = not self._decided, True
            return first


def checked_name(name: str) -> str:
    """The name, if it is one. Raises `ValueError`."""
    if not name or name.endswith("/"):
        raise ValueError(f"a name must not be empty or end in '/': {name!r}")
    return name


def _owner(owner: Hashable | None) -> Hashable:
    if owner is not None:
        return owner
    thread = threading.current_thread()
    if isinstance(thread, threading._DummyThread):
        # Its object says that it is alive for ever, and is given to the next such thread with the same identifier.
        raise LockError("this thread was not started by Python's threading module: pass an owner")
    return thread


def _describe(owner: Hashable) -> str:
    return f"thread {owner.name}" if isinstance(owner, threading.Thread) else f"owner {owner!r}"


def _retrieved(future: "asyncio.Future[Any]") -> None:
    # Nobody waits for it any more; asyncio would complain of an exception that was never looked at.
    if not future.cancelled():
        future.exception()

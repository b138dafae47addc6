"""The lock that callers see: `AsyncLock` for tasks, and `DistributedLock`, its blocking face for threads."""

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Protocol, TypedDict, TypeVar, Unpack

from . import portal
from .connection import Connection, Terms, running_loop
from .contender import Contender
from .errors import LockError, LockLost, LockNotHeld, LockTimeout
from .grant import Grant
from .hook import told
from .owners import Owned, Owners
from .waiting import Cancel, Wait, apart, insisted, keep_task, seconds

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_LEAVE_S: Final = 1.0  # a cancelled task waits no longer than this for its place in the queue to be given back


class Source(Protocol):
    """The origin of locks: a backend, or one of its sessions."""

    terms: Terms

    def here(self) -> Connection:
        """Return the running loop's connection."""

    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        """See `Connection.take`."""


class AcquireOptions(TypedDict, total=False):
    """The options of `acquire` and `holding`: see `AsyncLock.acquire`."""

    wait_s: float | None
    cancel: Cancel | None
    owner: Hashable | None
    hold_max_s: float | None


class AsyncLock(Owned):
    """A re-entrant lock for asyncio tasks: one owner among all processes has it at a time.

    >>> async with lock as grant:                       # waits as long as it takes
    ...     await store.write(..., token=grant.token)
    >>> async with lock.holding(wait_s=2.5, cancel_on_lost=True) as grant:
    ...     await store.write(..., token=grant.token)   # cancelled as soon as the lock is lost
    >>> grant = await lock.acquire(wait_s=2.5)          # raises LockTimeout after that
    >>> grant = await lock.try_acquire()                # None if somebody else has it
    >>> await lock.release()

    The owner is the current task, unless `owner` names another (any hashable). A lock whose owning task has ended is
    given back. Cancelling a task that waits takes it out of the queue.
    """

    def __init__(self, source: Source, name: str, ttl_s: float | None = None) -> None:
        self.name = checked_name(name)
        self.ttl_s = source.terms.ttl_s if ttl_s is None else seconds("ttl_s", ttl_s)
        self._source = source
        self._owners = Owners(name)

    async def contenders(self) -> list[Contender]:
        """Return the queue: the holder first, then the waiters in the order in which they will get the lock.

        Only the holder unless `Guarantees.shows_queue`. Raises `LockUnavailable`.
        """
        return await self._source.here().queue(self.name)

    async def acquire(
        self,
        *,
        wait_s: float | None = None,
        cancel: Cancel | None = None,
        owner: Hashable | None = None,
        hold_max_s: float | None = None,
    ) -> Grant:
        """Own the lock, waiting for it at most `wait_s` seconds (None: as long as it takes; 0: not at all).

        `hold_max_s`: the lease ends that many seconds after the grant even if its owner goes on, but not before its
        TTL. Raises `LockTimeout` when the wait is over, `LockCancelled` when `cancel` is set before that,
        `LockUnavailable` when the lock's server can't be reached, and `LockLost` when this owner has the lock but its
        lease has ended. If it raises, nothing of this call is left in the queue for longer than one TTL. A cancelled
        call leaves the queue first, in the background if that takes longer than a second.
        """
        owner = _task(owner)
        grant = self._owners.reenter(owner)
        if grant is not None:
            return grant
        if hold_max_s is not None:
            seconds("hold_max_s", hold_max_s, zero=True)
        terms = self._source.terms
        began, wait = terms.clock(), Wait(wait_s, cancel, clock=terms.clock)
        try:
            grant = await interruptible(self._source.take(self.name, self.ttl_s, wait), wait, self._give_back)
        except BaseException as error:
            told(terms.hook.not_granted, self.name, error, terms.clock() - began)
            raise
        granted_at = terms.clock()
        try:
            self._owners.add(owner, grant, granted_at)
        except BaseException:
            await self._give_back(grant)
            raise
        if hold_max_s is not None:
            lease = grant.lease
            lease.renew_until = min(lease.renew_until, granted_at + hold_max_s - lease.ttl_s)
            if lease.keeper is not None:
                lease.keeper.keep(lease)
        terms.tell_of(self.name, grant, granted_at - began)
        return grant

    async def _give_back(self, grant: Grant) -> None:
        keeper = grant.lease.keeper
        if keeper is not None:  # else there is nothing to give back
            await insisted(lambda: keeper.hand_back(grant.lease, self._source.terms.timeout_s))

    async def try_acquire(self, *, owner: Hashable | None = None) -> Grant | None:
        """Own the lock if nobody else does, else None; no waiting but for the backend's answers."""
        try:
            return await self.acquire(wait_s=0, owner=owner)
        except LockTimeout:
            return None

    async def release(self, *, owner: Hashable | None = None) -> None:
        """Undo one acquire; the last one gives the lock back.

        Raises `LockNotHeld` for anybody but the owner, and `LockError` in a child whose parent has it. If the lock was
        lost in the meantime the last release raises `LockLost`, after cleaning up: the work under it may have been done
        beside another owner. With the option `raise_on_lost_release=False` that is only logged.
        """
        data = self._owners.leave(_task(owner))
        if data is None:
            return
        terms, lost = self._source.terms, data.grant.lost
        try:
            await self._give_back(data.grant)
        finally:
            told(terms.hook.released, self.name, data.grant.token, terms.clock() - data.since)
        if lost and terms.raise_on_lost_release:
            data.grant.ensure_held()
        elif lost:
            _log.warning("%s was lost before it was released: %s", self.name, data.grant.lease.reason)

    @asynccontextmanager
    async def holding(self, *, cancel_on_lost: bool = False, **options: Unpack[AcquireOptions]) -> AsyncIterator[Grant]:
        """As `async with lock`, with the options of `acquire`; also a decorator.

        `cancel_on_lost`: the body is cancelled as soon as the loss of the lock is noticed, and `LockLost` raised.
        """
        owner = options["owner"] = _task(options.get("owner"))
        grant = await self.acquire(**options)
        guard = CancelOnLost(grant) if cancel_on_lost else None
        try:
            yield grant
        except BaseException as error:
            caused = guard is not None and guard.caused(error)
            await self._release_quietly(owner)
            if caused:
                grant.ensure_held()
            raise
        finally:
            if guard is not None:
                guard.end()
        await self.release(owner=owner)

    def _me(self) -> Hashable:
        return _task(None)

    async def __aenter__(self) -> Grant:
        return await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.release()
        else:
            await self._release_quietly(None)

    async def _release_quietly(self, owner: Hashable | None) -> None:
        with suppress(LockLost):  # the body's own error says more
            await self.release(owner=owner)


class CancelOnLost:
    """Cancels the current task when a grant is lost, as `asyncio.timeout` does at its deadline."""

    def __init__(self, grant: Grant) -> None:
        task = asyncio.current_task()
        if task is None:
            raise LockError("there is no task to cancel")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelled = self._over = False
        self._cancelling = task.cancelling()
        self._forget: Callable[[], None] = grant.on_lost(self._lost)

    def end(self) -> None:
        """Cancel nothing from now on: the body is over."""
        self._forget()
        if self._cancelled and not self._over:
            self._task.uncancel()
        self._over = True

    def _lost(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._over:
            self._cancelled = True
            self._task.cancel("the lock is lost")

    def caused(self, error: BaseException) -> bool:
        """Return whether our cancellation ended the body, and nobody else's."""
        self.end()
        ours = self._cancelled and self._task.cancelling() <= self._cancelling
        return ours and isinstance(error, asyncio.CancelledError)


class DistributedLock(Owned):
    """A re-entrant lock for threads: one owner among all processes has it at a time.

    >>> with lock as grant:                       # waits as long as it takes
    ...     store.write(..., token=grant.token)
    >>> with lock.holding(wait_s=2.5) as grant:   # raises LockTimeout after that
    ...     store.write(..., token=grant.token)
    >>> grant = lock.acquire(wait_s=2.5)
    >>> grant = lock.try_acquire()                # None if somebody else has it
    >>> lock.release()
    >>> @lock.holding(wait_s=0)                   # each call of the function is made under the lock
    ... def nightly(): ...

    The owner is the current thread, unless `owner` names another (any hashable). An object of this class can be shared
    by threads. A lock whose owning thread has ended is given back: nobody could release it any more. After a fork the
    parent's grants are the parent's alone; the child can acquire the lock like any other process.
    """

    def __init__(self, lock: AsyncLock) -> None:
        self.name = lock.name
        self.ttl_s = lock.ttl_s
        self._lock = lock
        self._owners = lock._owners

    def contenders(self) -> list[Contender]:
        """See `AsyncLock.contenders`."""
        return portal.run(self._lock.contenders())

    def acquire(self, **options: Unpack[AcquireOptions]) -> Grant:
        """Own the lock: see `AsyncLock.acquire`."""
        owner = options["owner"] = _thread(options.get("owner"))
        if owner is threading.current_thread() and (grant := self._owners.reenter(owner, alone=True)) is not None:
            return grant

        async def undo(_: Grant) -> None:
            data = None
            with suppress(LockNotHeld):
                data = self._owners.leave(owner)
            if data is not None:  # else another owner of the same name has acquired it again
                await self._lock._give_back(data.grant)

        return portal.run(self._lock.acquire(**options), undo)

    def try_acquire(self, *, owner: Hashable | None = None) -> Grant | None:
        """Own the lock if nobody else does, else None; no waiting but for the backend's answers."""
        try:
            return self.acquire(wait_s=0, owner=owner)
        except LockTimeout:
            return None

    def release(self, *, owner: Hashable | None = None) -> None:
        """Undo one acquire: see `AsyncLock.release`."""
        owner = _thread(owner)
        if owner is not (thread := threading.current_thread()) or not self._owners.leave_inner(thread):
            portal.run(self._lock.release(owner=owner), to_the_end=True)

    @contextmanager
    def holding(self, **options: Unpack[AcquireOptions]) -> Iterator[Grant]:
        """As `with lock`, with the options of `acquire`; also a decorator."""
        owner = options["owner"] = _thread(options.get("owner"))  # another task may close a generator
        grant = self.acquire(**options)
        try:
            yield grant
        except BaseException:
            self._release_quietly(owner)
            raise
        self.release(owner=owner)

    def _me(self) -> Hashable:
        return _thread(None)

    def __enter__(self) -> Grant:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.release()
        else:
            self._release_quietly()

    def _release_quietly(self, owner: Hashable | None = None) -> None:
        with suppress(LockLost):  # the body's own error says more
            self.release(owner=owner)


async def interruptible(
    taking: Coroutine[Any, Any, Result], wait: Wait, undo: Callable[[Result], Coroutine[Any, Any, None]]
) -> Result:
    """Await `taking` in a task of its own, so that cancelling the caller cuts no call to a server in the middle.

    If the caller is cancelled, `wait` is called off, and a result that came all the same is given to `undo`. The caller
    waits up to a second for that, and leaves the rest to the background.
    """
    me = asyncio.current_task()
    task, over = apart(taking, None if me is None else me.get_name())  # the name that the queue shows
    try:
        await over
        return task.result()
    except asyncio.CancelledError:
        wait.call_off()

        async def undo_it() -> None:
            while not task.done():
                with suppress(asyncio.CancelledError):  # the loop ends, and this still has to be done on it
                    await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                await undo(task.result())

        undoing = asyncio.create_task(undo_it())
        keep_task(undoing)
        await asyncio.wait({undoing}, timeout=_LEAVE_S)
        raise


def checked_name(name: str) -> str:
    """Return the name. Raises `ValueError` if it is no text, is empty, or ends in "/"."""
    if not isinstance(name, str) or not name or name.endswith("/"):
        raise ValueError(f"a name must be a text that is not empty and does not end in '/': {name!r}")
    return name


def _task(owner: Hashable | None) -> Hashable:
    task = asyncio.current_task(running_loop())
    if task is None and owner is None:
        raise LockError("this is no task: pass an owner")
    return task if owner is None else owner


def _thread(owner: Hashable | None) -> Hashable:
    if owner is not None:
        return owner
    gevent, monkey = sys.modules.get("gevent"), sys.modules.get("gevent.monkey")
    greenlet = gevent is not None and isinstance(gevent.getcurrent(), gevent.Greenlet)
    if greenlet and not (monkey and monkey.is_module_patched("threading")):
        raise LockError("the greenlets of a thread would own the lock together: call gevent.monkey.patch_all() first")
    thread = threading.current_thread()
    if isinstance(thread, threading._DummyThread):
        # Its object is alive for ever, and the next such thread with the same identifier gets the same object.
        raise LockError("this is a greenlet, or a thread that Python's threading module has not started: pass an owner")
    return thread

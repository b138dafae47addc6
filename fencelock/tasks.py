"""A lock's face for tasks: the same algorithm, run on the event loop itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from . import clock
from .common import Common
from .contender import Contender
from .errors import LockError, LockLost, LockTimeout
from .grant import Grant
from .lock import DistributedLock
from .owners import Owned, Owners
from .steps import on_loop, settled
from .waiting import Cancel, Wait

Result = TypeVar("Result")

_LEAVE_S: Final = 1.0  # so long a cancelled task waits at most for its place in the queue to be given back
_undoing: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


class AsyncLock(Owned):
    """A lock that one owner among all processes has at a time, re-entrant for that owner; for tasks.

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

    def __init__(self, backend: Common, lock: DistributedLock[Any]) -> None:
        self._backend = backend
        self._lock = lock
        self.name = lock.name
        self._owners = Owners(lock.name)

    @property
    def ttl_s(self) -> float:
        """The TTL of its leases, in seconds."""
        return self._lock.ttl_s

    async def contenders(self) -> list[Contender]:
        """Return the queue: see `DistributedLock.contenders`. Raises `LockUnavailable`."""
        return await on_loop(self._lock._queue())

    async def acquire(
        self, *, wait_s: float | None = None, owner: Hashable | None = None, hold_max_s: float | None = None
    ) -> Grant:
        """Own the lock, waiting for it at most `wait_s` seconds (None: as long as it takes; 0: not at all).

        `hold_max_s`: the lease ends so many seconds after the grant whatever its owner does, but not before its TTL.
        Raises what `DistributedLock.acquire` does. Cancelled, it leaves nothing in the queue: it waits a second at most
        for that, and what takes longer is done in the background.
        """
        owner = _owner(owner)
        grant = self._owners.reenter(owner)
        if grant is not None:
            return grant
        began, cancel = clock.now(), Cancel()
        taking = asyncio.create_task(
            on_loop(self._lock._take(Wait(wait_s, cancel), self._backend.loop_renewers.here())),
            name=asyncio.current_task().get_name(),  # type: ignore[union-attr] # the one that the queue shows
        )
        try:
            grant = await asyncio.shield(taking)
        except asyncio.CancelledError as error:
            cancel.set()
            self._backend.hook.not_granted(self.name, error, clock.now() - began)
            await give_up(taking, self._give_back)
            raise
        except BaseException as error:
            self._backend.hook.not_granted(self.name, error, clock.now() - began)
            raise
        try:
            self._owners.add(owner, grant)
        except BaseException:
            await self._give_back(grant)
            raise
        if hold_max_s is not None:
            lease = grant.lease
            lease.renew_until = min(lease.renew_until, clock.now() + hold_max_s - lease.ttl_s)
        self._backend.tell_of(self.name, grant, clock.now() - began)
        return grant

    async def _give_back(self, grant: Grant) -> None:
        await whole(on_loop(self._lock._give_back(grant)))

    async def try_acquire(self, *, owner: Hashable | None = None) -> Grant | None:
        """Own the lock if nobody else does, else None; no waiting but for the backend's answers."""
        try:
            return await self.acquire(wait_s=0, owner=owner)
        except LockTimeout:
            return None

    async def release(self, *, owner: Hashable | None = None) -> None:
        """Undo one acquire; the last one gives the lock back. Raises what `DistributedLock.release` does."""
        data = self._owners.leave(_owner(owner))
        if data is None:
            return
        lost = data.grant.lost
        try:
            await self._give_back(data.grant)
        finally:
            self._backend.hook.released(self.name, data.grant.token, clock.now() - data.since)
        if lost:
            data.grant.ensure_held()

    @asynccontextmanager
    async def holding(
        self,
        *,
        wait_s: float | None = None,
        owner: Hashable | None = None,
        hold_max_s: float | None = None,
        cancel_on_lost: bool = False,
    ) -> AsyncIterator[Grant]:
        """Own the lock in a block, as `async with lock` does, with terms; also a decorator. See `acquire`.

        `cancel_on_lost`: the body is cancelled as soon as the loss of the lock is noticed, and `LockLost` raised.
        """
        owner = _owner(owner)
        grant = await self.acquire(wait_s=wait_s, owner=owner, hold_max_s=hold_max_s)
        guard = _CancelOnLost(grant) if cancel_on_lost else None
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
        return _owner(None)

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


class _CancelOnLost:
    """Cancels the current task when a grant is lost; as `asyncio.timeout` does at its deadline."""

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
        """The body is over."""
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
        """Whether the body ended with our cancellation, and nobody else's."""
        self.end()
        ours = self._cancelled and self._task.cancelling() <= self._cancelling
        return ours and isinstance(error, asyncio.CancelledError)


async def give_up(taking: "asyncio.Task[Result]", undo: Callable[[Result], Coroutine[Any, Any, None]]) -> None:
    """Nobody wants any more what is being taken, and was called off; but it may have been had a moment ago.

    Waits a second at most for all to be given back; what takes longer is done in the background.
    """

    async def undo_it() -> None:
        await asyncio.wait({taking})
        if not taking.cancelled() and taking.exception() is None:
            await undo(taking.result())

    undoing = asyncio.create_task(undo_it())
    _undoing.add(undoing)
    undoing.add_done_callback(_undoing.discard)
    await asyncio.wait({undoing}, timeout=_LEAVE_S)


async def whole(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it to its end, whoever is cancelled meanwhile: what gives something back must not stop half-way."""
    return await settled(asyncio.ensure_future(work))


def _owner(owner: Hashable | None) -> Hashable:
    if owner is not None:
        return owner
    task = asyncio.current_task()
    if task is None:
        raise LockError("this is no task: pass an owner")
    return task

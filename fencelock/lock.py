"""The template that every lock inherits, and its face for threads; nothing of any backend."""

import sys
import threading
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Generic

from . import clock
from .attempt import Attempt, Backend
from .contender import Contender
from .errors import LockError, LockLost, LockTimeout
from .grant import Grant
from .interrupt import uninterrupted
from .owners import Owned, Owners
from .renewer import Renewer
from .steps import in_thread
from .waiting import Cancel, Wait


class DistributedLock(Owned, Generic[Backend]):
    """A lock that one owner among all processes has at a time, re-entrant for that owner.

    >>> with lock as grant:                       # waits as long as it takes
    ...     store.write(..., token=grant.token)
    >>> with lock.holding(wait_s=2.5) as grant:   # raises LockTimeout after that
    ...     store.write(..., token=grant.token)
    >>> grant = lock.acquire(wait_s=2.5)
    >>> grant = lock.try_acquire()                # None if somebody else has it
    >>> lock.release()
    >>> @lock.holding(wait_s=0)                   # each call of the function is made under the lock
    ... def nightly(): ...

    The owner is the current thread, unless `owner` names another (any hashable). Tasks have a face of their own: see
    `AsyncLock`. An object of this class can be shared by threads. A lock whose owning thread has ended is given back:
    nobody could release it any more. After a fork what the parent held is the parent's alone; in the child the lock can
    be acquired, as by any other process.

    A backend's lock says how one attempt is made (`_attempt`), and who queues (`_queue`).
    """

    def __init__(self, backend: Backend, name: str, ttl_s: float | None = None) -> None:
        self.name = checked_name(name)
        self._backend = backend
        self._ttl_s = backend.checked_ttl(ttl_s)
        self._owners = Owners(name)

    @property
    def ttl_s(self) -> float:
        """The TTL of its leases, in seconds."""
        return self._ttl_s

    @abstractmethod
    def _attempt(self) -> Attempt[Any]:
        """A new attempt to get the lock."""

    @abstractmethod
    async def _queue(self) -> list[Contender]:
        """What `contenders` answers."""

    async def _take(self, wait: Wait, renewer: Renewer) -> Grant:
        attempt = self._attempt()
        attempt.renewer = renewer
        return await attempt.until_granted(wait)

    async def _give_back(self, grant: Grant) -> None:
        keeper = grant.lease.keeper or self._backend.renewer
        await keeper.hand_back(grant.lease, self._backend.timeout_s)

    def contenders(self) -> list[Contender]:
        """Return the queue: the holder first, then the waiters in the order in which they will get the lock.

        Only the holder unless `Guarantees.shows_queue`. Raises `LockUnavailable`.
        """
        return in_thread(self._queue())

    def acquire(
        self, *, wait_s: float | None = None, cancel: Cancel | None = None, owner: Hashable | None = None
    ) -> Grant:
        """Own the lock, waiting for it at most `wait_s` seconds (None: as long as it takes; 0: not at all).

        Raises `LockTimeout` when the wait is over, `LockCancelled` when `cancel` is set before that, `LockUnavailable`
        when the lock's server can't be reached, and `LockLost` when this owner has the lock but its lease has ended.
        Whatever it raises, nothing of this call is left in the queue for longer than one lease TTL.
        """
        owner = _owner(owner)
        grant = self._owners.reenter(owner)
        if grant is not None:
            return grant
        wait, began = Wait(wait_s, cancel), clock.now()
        try:
            grant = in_thread(self._take(wait, self._backend.renewer))
            self._owners.add(owner, grant)
            self._backend.tell_of(self.name, grant, clock.now() - began)
        except BaseException as error:
            # A Ctrl-C may come at any moment between the server's answer and here.
            data = self._owners.get(owner)
            for unwanted in wait.granted:
                if data is not None and data.grant is unwanted:
                    self._owners.leave(owner)
                in_thread(self._give_back(unwanted))
            self._backend.hook.not_granted(self.name, error, clock.now() - began)
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
        with uninterrupted():
            data = self._owners.leave(_owner(owner))
            if data is None:
                return
            lost = data.grant.lost
            in_thread(self._give_back(data.grant))
        self._backend.hook.released(self.name, data.grant.token, clock.now() - data.since)
        if lost:
            data.grant.ensure_held()

    @contextmanager
    def holding(self, *, wait_s: float | None = None, cancel: Cancel | None = None) -> Iterator[Grant]:
        """`with lock` that waits for at most `wait_s` seconds, or until `cancel`; also a decorator. See `acquire`."""
        grant = self.acquire(wait_s=wait_s, cancel=cancel)
        try:
            yield grant
        except BaseException:
            self._release_quietly()
            raise
        self.release()

    def _me(self) -> Hashable:
        return _owner(None)

    def __enter__(self) -> Grant:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.release()
        else:
            self._release_quietly()

    def _release_quietly(self) -> None:
        with suppress(LockLost):  # the body's own error says more
            self.release()


def checked_name(name: str) -> str:
    """The name, if it is one. Raises `ValueError`."""
    if not name or name.endswith("/"):
        raise ValueError(f"a name must not be empty or end in '/': {name!r}")
    return name


def _owner(owner: Hashable | None) -> Hashable:
    if owner is not None:
        return owner
    gevent, monkey = sys.modules.get("gevent"), sys.modules.get("gevent.monkey")
    greenlet = gevent is not None and isinstance(gevent.getcurrent(), gevent.Greenlet)
    if greenlet and not (monkey and monkey.is_module_patched("threading")):
        raise LockError("the greenlets of a thread would own the lock together: call gevent.monkey.patch_all() first")
    thread = threading.current_thread()
    if isinstance(thread, threading._DummyThread):
        # Its object says that it is alive for ever, and is given to the next such thread with the same identifier.
        raise LockError("this thread was not started by Python's threading module: pass an owner")
    return thread

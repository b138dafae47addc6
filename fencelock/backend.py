"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, Unpack

from .common import Common, Options
from .contender import Contender
from .errors import LockError
from .lock import DistributedLock
from .renewer import Renewer
from .steps import in_thread, on_loop
from .tasks import AsyncLock
from .url import LockUrl


class Scope(StrEnum):
    """The owners that a lock keeps apart."""

    EVERYBODY = "all processes"
    PROCESS = "the threads of one process"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The promises of a backend's locks. The contract suite holds them to it, and docs/locks.md has a table of them.

    - `scope`: the owners that they keep apart.
    - `leases`: a holder that is gone, or can't be reached, has the lock for a TTL at most, and is told.
    - `fair`: contenders are served in the order of their arrival.
    - `fencing`: each grant has a token greater than all before it, of whichever lock, for a store to check.
    - `survives_silence`: a server pause shorter than the TTL does not lose the lock.
    - `survives_restart`: neither does a crash and restart (from disk) within the TTL.
    - `survives_cut`: neither do connections that are cut; without it, the next one may have the lock a moment before
      its holder is told.
    - `shows_queue`: `contenders` shows the waiters, not only the holder.
    - `elects`: there are elections.
    - `forces_release`: `force_release` can take a lock from its holder.
    """

    scope: Scope = Scope.EVERYBODY
    leases: bool = True
    fair: bool = False
    fencing: bool = False
    survives_silence: bool = False
    survives_restart: bool = False
    survives_cut: bool = False
    shows_queue: bool = False
    elects: bool = False
    forces_release: bool = False


class LockBackend(Common, ABC):
    """A connection to a lock system: a process opens it once, takes all its locks from it, and closes it at its end."""

    guarantees: Guarantees

    @classmethod
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        """The backend that a URL names. Doesn't connect yet. Raises `ConfigurationError`, which quotes no secret."""
        url.refuse_rest()  # for those that have no server
        return cls(**options)

    @property
    def aio(self) -> "AsyncLocks":
        """The face of this connection for tasks."""
        return AsyncLocks(self)

    @abstractmethod
    def lock(self, name: str, *, ttl_s: float | None = None) -> DistributedLock[Any]:
        """Return the lock of that name, a new object at each call. `ttl_s`: the TTL of its leases, in seconds."""

    async def force_released(self, name: str) -> Contender | None:
        """What `force_release` does, in steps."""
        raise LockError(f"{self.name} can't force a release: only etcd and redis can")

    def force_release(self, name: str) -> Contender | None:
        """Take a lock from a holder that hangs, and return that one, if any; the next in line gets it at once.

        The holder goes on until its next renewal tells it, so only a store that checks tokens is safe from it. Raises
        `LockUnavailable`, and `LockError` where that can't be done.
        """
        return in_thread(self.force_released(name))

    @abstractmethod
    async def queues(self, prefix: str) -> list[Contender]:
        """What `contenders` answers, in steps."""

    async def pinged(self, timeout_s: float) -> None:
        """What `ping` does, in steps."""

    def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues of all locks whose names begin with `prefix`. Raises `LockUnavailable`."""
        return in_thread(self.queues(prefix))

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds. Blocks."""
        in_thread(self.pinged(timeout_s))

    def election(self, name: str) -> Any:
        """Return the `Election` of that name. Raises `LockError` where there are none."""
        raise LockError(f"{self.name} has no elections")

    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> Any:
        """Begin a `Session`, a lease for several locks and elections. Raises `LockUnavailable` and `LockLost`.

        Raises `LockError` where there are none.
        """
        raise LockError(f"{self.name} has no sessions")

    def election_for_tasks(self, name: str) -> Any:
        """What `election` is for tasks."""
        return self.election(name)  # which raises

    def session_for_tasks(self, *, ttl_s: float | None, lease_id: int | None) -> AbstractAsyncContextManager[Any]:
        """What `session` is for tasks: a block."""
        raise LockError(f"{self.name} has no sessions")

    @property
    def degraded(self) -> bool:
        """True while grants are given without a lock (see `FallbackBackend`)."""
        return False

    @property
    def renewing(self) -> bool:
        """True while leases are being renewed."""
        return self.renewer.alive

    def pause_renewal(self, for_s: float) -> None:
        """Renew nothing for some seconds, as if the renewal hung."""
        for renewer in (self.renewer, *self.loop_renewers):
            renewer.pause(for_s)

    def close(self) -> None:
        """Have the waiters leave their queues, close the connections, stop renewing. Locks still held run out."""
        in_thread(self.shutdown.begin())
        in_thread(self._give_up_idle(None))
        self._disconnect()
        for renewer in (self.renewer, *self.loop_renewers):
            renewer.close()

    async def close_on_loop(self) -> None:
        """The same, for a task."""
        await on_loop(self.shutdown.begin())
        await self.leave_loop()
        await asyncio.to_thread(self.close)

    async def leave_loop(self) -> None:
        """Close the running loop's part of it. Locks still held there run out; threads and other loops go on."""
        renewer = self.loop_renewers.pop()
        if renewer is not None:
            await renewer.settle()
            await on_loop(self._give_up_idle(renewer))
            renewer.close()
        await self._disconnect_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _give_up_idle(self, renewer: Renewer | None) -> None:
        """Give back what is kept for later, and renewed by that one (None: by anybody)."""

    def _disconnect(self) -> None:
        """Close the connections."""

    async def _disconnect_loop(self) -> None:
        """Close those of the running loop."""


class AsyncLocks:
    """The face of a `LockBackend` for tasks. `backend`: its face for threads."""

    def __init__(self, backend: "LockBackend") -> None:
        self.backend = backend

    @property
    def ttl_s(self) -> float:
        """The TTL of a lease in seconds, unless a lock has its own."""
        return self.backend.ttl_s

    @property
    def name(self) -> str:
        """The lock system's name, for people."""
        return self.backend.name

    @property
    def guarantees(self) -> Guarantees:
        """The promises of its locks."""
        return self.backend.guarantees

    @property
    def degraded(self) -> bool:
        """True while grants are given without a lock (see `FallbackBackend`)."""
        return self.backend.degraded

    @property
    def renewing(self) -> bool:
        """True while leases are being renewed."""
        return self.backend.renewing

    def pause_renewal(self, for_s: float) -> None:
        """Renew nothing for some seconds, as if the renewal hung."""
        self.backend.pause_renewal(for_s)

    def lock(self, name: str, *, ttl_s: float | None = None) -> AsyncLock:
        """Return the lock of that name, a new object at each call. `ttl_s`: the TTL of its leases, in seconds."""
        return AsyncLock(self.backend, self.backend.lock(name, ttl_s=ttl_s))

    async def force_release(self, name: str) -> Contender | None:
        """Take a lock from a holder that hangs: see `LockBackend.force_release`."""
        return await on_loop(self.backend.force_released(name))

    def election(self, name: str) -> Any:
        """Return the `AsyncElection` of that name. Raises `LockError` where there are none."""
        return self.backend.election_for_tasks(name)

    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> AbstractAsyncContextManager[Any]:
        """Hold an `AsyncSession` in a block: see `LockBackend.session`."""
        return self.backend.session_for_tasks(ttl_s=ttl_s, lease_id=lease_id)

    async def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues of all locks whose names begin with `prefix`. Raises `LockUnavailable`."""
        return await on_loop(self.backend.queues(prefix))

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds."""
        await on_loop(self.backend.pinged(timeout_s))

    async def leave_loop(self) -> None:
        """Close the running loop's part of a connection that threads or other loops go on to use."""
        await self.backend.leave_loop()

    async def close(self) -> None:
        """Have the waiters leave their queues, close the connections, stop renewing. Locks still held run out."""
        await self.backend.close_on_loop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

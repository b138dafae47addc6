"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

import asyncio
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

from .aio import AsyncLocks
from .contender import Contender
from .errors import LockError, LockUnavailable
from .grant import Grant
from .hook import Hook
from .per_loop import PerLoop
from .renewer import LoopRenewer, Renewer, ThreadRenewer
from .steps import in_thread, on_loop
from .url import LockUrl
from .waiting import Shutdown

if TYPE_CHECKING:
    from .etcd.election import Election
    from .etcd.session import Session
    from .lock import DistributedLock


_CALLS_MAX: Final = 64  # of tasks that want a lock, on one loop


class Scope(StrEnum):
    """Whom a lock keeps apart."""

    EVERYBODY = "all processes"
    PROCESS = "the threads of one process"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a backend's locks promise. The contract suite holds them to it, and docs/locks.md has a table of it.

    `scope`: whom they keep apart; `leases`: a holder that is gone, or can't be reached, has the lock for a TTL at most,
    and is told; `fair`: contenders are served in the order of their arrival; `fencing`: each grant has a token greater
    than all before it, of whichever lock, for a store to check; `survives_silence`: a server pause shorter than the TTL
    does not lose the lock; `survives_restart`: neither does a crash and restart (from disk) within the TTL;
    `survives_cut`: neither do connections that are cut; without, the next one may have it a moment before its holder
    is told;
    `shows_queue`: `contenders` shows the waiters, not only the holder; `elects`: there are elections; `forces_release`:
    `force_release` can take a lock from its holder.
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


class Options(TypedDict, total=False):
    """What all backends take.

    `ttl_s`: TTL of a lease in seconds (5): what a dead holder costs at most. `renew_ratio`: a lease is renewed each
    time this part of its TTL has passed (1/3). `timeout_s`: deadline of a call in seconds (2). `instance`: who we are
    in the queue (the host's name). `hook`: told what happens.
    """

    ttl_s: float
    renew_ratio: float
    timeout_s: float
    instance: str
    hook: Hook


class LockBackend(ABC):
    """What a process opens once and closes at its end.

    `name`: of the lock system, for people; `renewer`: the thread that keeps the leases of all its threads' locks;
    `loop_renewers`: what does so for tasks, on their loop; `hook`: told what happens.
    """

    name: str
    guarantees: Guarantees

    def __init__(self, **options: Unpack[Options]) -> None:
        self.ttl_s = options.get("ttl_s", 5.0)
        self.timeout_s = options.get("timeout_s", 2.0)
        self.instance = options.get("instance") or socket.gethostname()
        self.hook = options.get("hook") or Hook()
        ratio, on_event = options.get("renew_ratio", 1 / 3), self.hook.renewal
        self.renewer = ThreadRenewer(ratio=ratio, on_event=on_event)
        self.loop_renewers = PerLoop(lambda loop: LoopRenewer(loop, ratio=ratio, on_event=on_event))
        self.turns = PerLoop(lambda _: asyncio.Semaphore(_CALLS_MAX))
        self.shutdown = Shutdown()

    @classmethod
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        """The backend that a URL names. Doesn't connect yet. Raises `ConfigurationError`, which quotes no secret."""
        url.refuse_rest()  # for those that have no server
        return cls(**options)

    @property
    def aio(self) -> "AsyncLocks":
        """The same connection, for tasks."""
        return AsyncLocks(self)

    @abstractmethod
    def lock(self, name: str, *, ttl_s: float | None = None) -> "DistributedLock[Any]":
        """The lock of that name; each call makes an object of its own. `ttl_s`: of its leases, in seconds."""

    async def force_released(self, name: str) -> Contender | None:
        """What `force_release` does, in steps."""
        raise LockError(f"{self.name} can't force a release: only etcd and redis can")

    def force_release(self, name: str) -> Contender | None:
        """Take a lock from a holder that hangs: the next in line gets it at once; the one who had it, if anybody.

        The holder goes on until its next renewal tells it, so only a store that checks tokens is safe from it. Raises
        `LockUnavailable`, and `LockError` where that can't be done.
        """
        return in_thread(self.force_released(name))

    @abstractmethod
    async def queues(self, prefix: str) -> list[Contender]:
        """What `contenders` answers, in steps."""

    async def pinged(self, timeout_s: float) -> None:  # noqa: B027 - some have no server
        """What `ping` does, in steps."""

    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of all locks whose names begin with `prefix`. Raises `LockUnavailable`."""
        return in_thread(self.queues(prefix))

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds. Blocks."""
        in_thread(self.pinged(timeout_s))

    def election(self, name: str) -> "Election":
        """The election of that name. Raises `LockError` where there are none."""
        raise LockError(f"{self.name} has no elections")

    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> "Session":
        """A lease for several locks and elections; see `fencelock.etcd.session`. Raises `LockUnavailable`, `LockLost`.

        `LockError` where there are none.
        """
        return in_thread(self.begin_session(self.renewer, ttl_s=ttl_s, lease_id=lease_id))

    def begin_session(
        self, renewer: Renewer, *, ttl_s: float | None = None, lease_id: int | None = None
    ) -> "Coroutine[Any, Any, Session]":
        """What `session` does, in steps; `renewer`: who keeps it. Raises `LockError` at once where there are none."""
        raise LockError(f"{self.name} has no sessions")

    def checked_ttl(self, ttl_s: float | None) -> float:
        """The TTL of a lock's leases in seconds. Raises `ValueError`."""
        if ttl_s is None:
            return self.ttl_s
        if not 0 < ttl_s < math.inf:
            raise ValueError(f"a lock's ttl_s must be more than 0, not {ttl_s}")
        return float(ttl_s)

    def tell_of(self, name: str, grant: Grant, waited_s: float) -> None:
        """Have the hook hear of a grant, and of its loss."""
        hook = self.hook
        hook.granted(name, grant.token, waited_s)
        if type(hook).lost is not Hook.lost:
            grant.on_lost(lambda: hook.lost(name, grant.token, grant.lease.reason))

    @property
    def degraded(self) -> bool:
        """Whether grants are given without a lock for now (see `FallbackBackend`)."""
        return False

    @property
    def renewing(self) -> bool:
        """Whether leases are being renewed."""
        return self.renewer.alive

    def pause_renewal(self, for_s: float) -> None:
        """Renew nothing for some seconds, as if the renewal hung."""
        for renewer in (self.renewer, *self.loop_renewers):
            renewer.pause(for_s)

    def ensure_open(self) -> None:
        """Raise `LockUnavailable` once it is being closed."""
        if self.shutdown.begun:
            raise LockUnavailable(f"the connection to {self.name} is closed")

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
        """Close what the running loop has of it. Locks still held there run out; threads and other loops go on."""
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

    async def _give_up_idle(self, renewer: Renewer | None) -> None:  # noqa: B027 - most keep nothing
        """Give back what is kept for later, and renewed by that one (None: by anybody)."""

    def _disconnect(self) -> None:  # noqa: B027 - some have none
        """Close the connections."""

    async def _disconnect_loop(self) -> None:  # noqa: B027 - some have none
        """Close those of the running loop."""

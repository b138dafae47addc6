"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, Unpack

from . import fork, portal
from .connection import Connection, Options, Terms, closed, running_loop
from .contender import Contender
from .election import AsyncElection, Ballot, Election
from .errors import LockError
from .grant import Grant
from .hook import Hook
from .leading import AsyncLeading, Leading
from .lock import AsyncLock, DistributedLock, checked_name, interruptible
from .once import AsyncOnce, Once, Slots
from .session import AsyncSession, Session
from .url import LockUrl
from .waiting import Wait, seconds


class Scope(StrEnum):
    """The owners that a lock keeps apart."""

    EVERYBODY = "all processes"
    MACHINE = "all processes of one machine"
    PROCESS = "the threads of one process"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The promises of a backend's locks. The contract suite holds them to it, and docs/locks.md has a table of them.

    - `scope`: the owners that they keep apart.
    - `leases`: a holder that dies, or is cut off, has the lock for a TTL at most, and its grant says that it is lost.
    - `fair`: contenders are served in the order of their arrival.
    - `fencing`: each grant has a token greater than all before it, of whichever lock, for a store to check.
    - `survives_silence`: a server pause shorter than the TTL does not lose the lock.
    - `survives_restart`: neither does a crash and restart (from disk) within the TTL.
    - `survives_cut`: neither do connections that are cut; without it, the next holder may have the lock a moment before
      its last one knows.
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


# The guarantees of a server that keeps its grants on disk, and gives each a number.
LASTING: Final = Guarantees(fencing=True, survives_silence=True, survives_restart=True, survives_cut=True, elects=True)


class LockBackend(ABC):
    """A lock system as a process opens it once and closes it at its end: for threads, and as `aio` for tasks.

    It has a connection for each event loop that uses it: one for all threads, on the loop of `portal`.
    """

    name: str
    guarantees: Guarantees

    def __init__(self, **options: Unpack[Options]) -> None:
        self.terms = Terms(self.name, options)
        self._closed = False
        self._begin()
        fork.in_child(self._begin_in_child)

    def _begin(self) -> None:
        # Without a mutex: a signal's handler may close, too, and the methods of a dict are atomic.
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}

    def _begin_in_child(self) -> None:
        fork.keep(self._connections)
        self._begin()

    @classmethod
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        """Return the backend that a URL names. Doesn't connect yet. Raises `ConfigurationError`, quoting no secret."""
        url.refuse_rest()  # for backends that have no server
        return cls(**options)

    @abstractmethod
    def connect(self) -> Connection:
        """Make a connection for the running loop, at its first use."""

    def here(self) -> Connection:
        """Return the running loop's connection. Raises `LockUnavailable` once the backend is closed."""
        loop = running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            if self._closed:
                raise closed(self.name)
            connection = self.connect()
            for over in [one for one in list(self._connections) if one.is_closed()]:
                self._connections.pop(over, None)
            self._connections[loop] = connection
        return connection

    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        """Get a lock, on the running loop."""
        return await self.here().take(name, ttl_s, wait)

    @property
    def aio(self) -> "AsyncLocks":
        """This backend's locks, for tasks."""
        return AsyncLocks(self)

    @property
    def ttl_s(self) -> float:
        """TTL of a lease in seconds, unless a lock has its own."""
        return self.terms.ttl_s

    @property
    def timeout_s(self) -> float:
        """Deadline of a call in seconds."""
        return self.terms.timeout_s

    @property
    def instance(self) -> str:
        """Our name in the queues."""
        return self.terms.instance

    @property
    def hook(self) -> Hook:
        """The hook that hears of grants, releases, losses and renewals."""
        return self.terms.hook

    @hook.setter
    def hook(self, hook: Hook) -> None:
        self.terms.hook = hook

    def lock(self, name: str, *, ttl_s: float | None = None) -> DistributedLock:
        """Return the lock of that name; each call makes an object of its own. `ttl_s`: of its leases, in seconds."""
        return DistributedLock(self.aio.lock(name, ttl_s=ttl_s))

    def check_name(self, name: str) -> None:  # noqa: B027 - most take any
        """Raise `ValueError` if this can't be a lock's name here."""

    def force_release(self, name: str) -> Contender | None:
        """Take a lock from a holder that hangs, and return that holder, if any; the next in line gets it at once.

        The holder goes on until its next renewal, so only a store that checks tokens is safe from it. Raises
        `LockUnavailable`, and `LockError` where that can't be done.
        """
        return portal.run(self.aio.force_release(name))

    def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues of all locks whose names begin with `prefix`. Raises `LockUnavailable`."""
        return portal.run(self.aio.contenders(prefix))

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds. Blocks."""
        portal.run(self.aio.ping(timeout_s))

    def election(self, name: str) -> Election:
        """Return the election of that name. Raises `LockError` where there are none."""
        return Election(self.aio.election(name))

    def once(self, name: str, **options: Unpack[Slots]) -> Once:
        """Return a block, or a decorator, whose body is started once at most for each slot in the whole cluster.

        A slot is `every_s` seconds (1 or more) of the hosts' clocks, counted from midnight of UTC where these divide a
        day; or `slot` names it, with up to 255 characters: "2026-11-28" for a day of local time, "schema-7" for good
        (the last 500 of such names are remembered). It is written down, beyond all leases, before the body starts: so
        it is not started again when clocks differ, or a run takes longer, or fails, or dies with its process. The body
        gets a `Start`, or None where it is not to run; then the `reason` is logged. While an earlier slot's run goes
        on, a slot is waited for `wait_s` seconds (None: as long as it takes), and then left out; "ttl", the default: a
        TTL and a bit, for so long a dead run blocks the slot. `cancel` ends the wait.

        `again`: start a slot that was started before, when no run of it goes on: for an operator, after a run that
        died.

        A server that loses writes forgets started slots: Redis without `appendfsync always`, or after a failover.
        Raises `LockUnavailable` if it is unknown whether the slot was recorded: nothing starts here, and the slot may
        count as started. Raises `LockCancelled`, `LockError` where there are no elections, and `ValueError`.
        """
        return Once(self.aio.once(name, **options))

    def leading(self, name: str, value: str = "") -> Leading:
        """Return a block, or a decorator, whose body runs on one instance at a time: the leader of an election.

        `value`: what it proclaims. The body gets its `Leadership`, whose `trusted_s` says for how long it is certain.
        A block raises `LockLost` when its term was lost; a decorated function that raises it gets the next term.
        Raises `LockUnavailable`, and `LockError` where there are no elections.
        """
        return Leading(self.aio.leading(name, value))

    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None, end_lease: bool = False) -> Session:
        """Begin a session, a lease for several locks and elections. Raises `LockUnavailable` and `LockLost`.

        `lease_id`: joins a lease that another program has granted, and leaves it alone in the end, unless `end_lease`:
        then it ends with this session, for all that use it, as Go's `Session.Close` has it. Raises `LockError` where
        there are none.
        """
        return Session(portal.run(self.begin_session(ttl_s, lease_id, end_lease), AsyncSession.undo))

    async def begin_session(self, ttl_s: float | None, lease_id: int | None, end_lease: bool) -> AsyncSession:
        """Begin a session on the running loop; if the caller is cancelled, nothing is left of it."""
        ttl_s = self.ttl_s if ttl_s is None else seconds("ttl_s", ttl_s)
        return await interruptible(self.open_session(ttl_s, lease_id, end_lease), Wait(), AsyncSession.undo)

    async def open_session(self, ttl_s: float, lease_id: int | None, end_lease: bool) -> AsyncSession:
        """Ask the server for a session's lease: see `session`."""
        raise LockError(f"{self.name} has no sessions")

    def ballot(self, name: str) -> Ballot:
        """Return the `Ballot` of an election, on the running loop's connection."""
        raise LockError(f"{self.name} has no elections")

    @property
    def _renewing(self) -> bool:
        """True while leases are being renewed."""
        return not self._closed and all(one.renewer.alive for one in list(self._connections.values()))

    def _pause_renewal(self, for_s: float) -> None:
        """Renew nothing for some seconds, as if the renewal hung."""
        for connection in list(self._connections.values()):
            connection.renewer.pause(for_s)

    def close(self) -> None:
        """Have the waiters leave their queues, close the connections, stop renewing. Locks still held run out."""
        loop = portal.loop()
        connection = self._end(loop)
        if connection is not None:
            portal.run(connection.close())
            self._connections.pop(loop, None)  # not before: a caller that is refused or interrupted can close again

    async def close_on_loop(self) -> None:
        """As `close`, for a task."""
        loop = running_loop()
        connection = self._end(loop)
        if connection is not None:
            await connection.close()
            self._connections.pop(loop, None)

    def _end(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        """Close the other loops' connections, in the background, and return this loop's."""
        self._closed = True
        for other in [one for one in list(self._connections) if one is not loop]:
            connection = self._connections.pop(other, None)
            if connection is not None and not other.is_closed():
                closing = connection.close()
                try:
                    asyncio.run_coroutine_threadsafe(closing, other)
                except RuntimeError:  # it is closed
                    closing.close()
        return self._connections.get(loop)

    async def leave_loop(self) -> None:
        """Close the running loop's connection. Locks still held there run out; threads and other loops go on."""
        connection = self._connections.pop(running_loop(), None)
        if connection is not None:
            await connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLocks:
    """A lock backend, for tasks. `backend`: the same, for threads.

    `name`: the lock system's, for people; `guarantees`: the promises of its locks; `ttl_s`: see `LockBackend`.
    """

    def __init__(self, backend: LockBackend) -> None:
        self.backend = backend
        self.name = backend.name
        self.guarantees = backend.guarantees
        self.ttl_s = backend.ttl_s

    def lock(self, name: str, *, ttl_s: float | None = None) -> AsyncLock:
        """Return the lock of that name; each call makes an object of its own. `ttl_s`: of its leases, in seconds."""
        self.backend.check_name(checked_name(name))
        return AsyncLock(self.backend, name, ttl_s)

    async def force_release(self, name: str) -> Contender | None:
        """Take a lock from a holder that hangs: see `LockBackend.force_release`."""
        return await self.backend.here().force_release(name)

    def election(self, name: str) -> AsyncElection:
        """Return the election of that name. Raises `LockError` where there are none."""
        name = checked_name(name)
        if not self.guarantees.elects:
            raise LockError(f"{self.name} has no elections")
        return AsyncElection(lambda: self.backend.ballot(name))

    def once(self, name: str, **options: Unpack[Slots]) -> AsyncOnce:
        """Start a body once at most for each slot in the whole cluster: see `LockBackend.once`."""
        return AsyncOnce(self.election(name), name, ttl_s=self.ttl_s, **options)

    def leading(self, name: str, value: str = "") -> AsyncLeading:
        """Run a body on one instance at a time: see `LockBackend.leading`. Its task is cancelled with its term."""
        return AsyncLeading(self.election(name), name, value)

    @asynccontextmanager
    async def session(
        self, *, ttl_s: float | None = None, lease_id: int | None = None, end_lease: bool = False
    ) -> AsyncIterator[AsyncSession]:
        """Hold a session in a block: see `LockBackend.session`."""
        session = await self.backend.begin_session(ttl_s, lease_id, end_lease)
        try:
            yield session
        finally:
            await session.close()

    async def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues of all locks whose names begin with `prefix`. Raises `LockUnavailable`."""
        return await self.backend.here().contenders(prefix)

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds."""
        await self.backend.here().ping(timeout_s)

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

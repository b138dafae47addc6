"""A session: one lease for several locks and elections, for tasks and for threads."""

from abc import ABC, abstractmethod
from typing import Self

from . import portal
from .connection import Connection, Terms
from .election import AsyncElection, Ballot, Election
from .grant import Grant
from .lease import Lease, Leased
from .lock import AsyncLock, DistributedLock, checked_name
from .waiting import Wait, insisted


class AsyncSession(Leased, ABC):
    """A lease for several locks and elections, kept renewed until `close`, or the end of the connection or the loop.

    Locks that are given no session share the lease of a default one. Make a session for locks that are useless without
    each other, or for a lease that another program has granted, which does not end with this session (but see
    `end_lease` of `LockBackend.session`). Unlike in Go, two tasks of a session are two contenders.

    >>> async with locks.session(ttl_s=10) as session:
    ...     async with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()
    """

    __slots__ = ("_joined", "terms")

    def __init__(self, lease: Lease, terms: Terms, *, joined: bool) -> None:
        super().__init__(lease)
        self.terms = terms
        self._joined = joined  # it is another program's lease

    @property
    @abstractmethod
    def lease_id(self) -> int:
        """The id of its lease on the server."""

    @property
    def ttl_s(self) -> float:
        """The server's TTL: for so many seconds the session outlives its process."""
        return self.lease.ttl_s

    @abstractmethod
    def here(self) -> Connection:
        """Return the connection that renews it."""

    @abstractmethod
    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        """See `Connection.take`."""

    @abstractmethod
    def ballot(self, name: str) -> Ballot:
        """Return an election's `Ballot` under the session's lease."""

    def lock(self, name: str) -> AsyncLock:
        """Return a lock under the session's lease."""
        return AsyncLock(self, name)

    def election(self, name: str) -> AsyncElection:
        """Return an election under the session's lease."""
        name = checked_name(name)
        return AsyncElection(lambda: self.ballot(name))

    async def undo(self) -> None:
        """Drop a session that nobody wants any more, but not a lease that it has joined."""
        if self._joined:
            self._orphan()
        else:
            await self.close()

    def _orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself; its locks stay held until then."""
        self.here().renewer.drop(self.lease)

    async def close(self) -> None:
        """End the session, with its lease unless that is another program's: its locks are free at once.

        Never raises, and may be called again.
        """
        self.lease.lose("the session was closed")  # before somebody else can have its locks
        await insisted(lambda: self.here().renewer.hand_back(self.lease, self.terms.timeout_s))


class Session(Leased):
    """As `AsyncSession`, for threads.

    >>> with backend.session(ttl_s=10) as session:
    ...     with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()
    """

    __slots__ = ("_session",)

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session.lease)
        self._session = session

    @property
    def lease_id(self) -> int:
        """See `AsyncSession.lease_id`."""
        return self._session.lease_id

    @property
    def ttl_s(self) -> float:
        """See `AsyncSession.ttl_s`."""
        return self.lease.ttl_s

    def lock(self, name: str) -> DistributedLock:
        """See `AsyncSession.lock`."""
        return DistributedLock(self._session.lock(name))

    def election(self, name: str) -> Election:
        """See `AsyncSession.election`."""
        return Election(self._session.election(name))

    def close(self) -> None:
        """See `AsyncSession.close`."""
        portal.run(self._session.close(), to_the_end=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

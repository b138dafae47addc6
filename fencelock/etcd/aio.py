"""etcd's elections and sessions, for tasks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from ..common import Common
from ..contender import Contender
from ..lease import Leased
from ..steps import on_loop
from ..tasks import AsyncLock, give_up, whole
from ..waiting import Cancel, Wait
from .election import END, Election, Leader, Leadership, Observation
from .session import Session


class AsyncLeadership(Leased):
    """Proof that a candidate was elected: see `Leadership`."""

    __slots__ = ("_leadership",)

    def __init__(self, leadership: Leadership) -> None:
        super().__init__(leadership.lease)
        self._leadership = leadership

    @property
    def key(self) -> str:
        """The leadership's key in etcd."""
        return self._leadership.key

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._leadership.token

    @property
    def source(self) -> str:
        """The lock system that gives the tokens: see `Grant`."""
        return self._leadership.source

    async def proclaim(self, value: str) -> None:
        """Proclaim another value. Raises `LockLost` if another one leads, `LockUnavailable` if that can't be known."""
        await on_loop(self._leadership.proclaimed(value))

    async def record(self, value: str) -> None:
        """Write a record that outlasts the leadership. Raises the errors of `Leadership.record`."""
        await on_loop(self._leadership.written(value))

    async def resign(self) -> None:
        """Give the leadership up; the next in line has it at once. Never raises, and may be called again."""
        await whole(on_loop(self._leadership.resigned()))


class AsyncElection:
    """An `Election` for tasks; the loop renews a leadership.

    >>> election = locks.election("/jobs/auditor")
    >>> async with election.campaigning("me") as leadership:   # waits until it is elected
    ...     await leadership.proclaim("me, and all is well")
    >>> await election.leader()                                # None while nobody leads
    >>> async for leader in election.observe():                # now, and each time that another one leads or says more
    ...     print(leader.value if leader else "nobody")
    """

    def __init__(self, election: Election) -> None:
        self._election = election

    async def campaign(self, value: str, *, wait_s: float | None = None) -> AsyncLeadership:
        """Stand for election, and wait until one is elected, at most `wait_s` seconds.

        Raises `LockTimeout` or `LockUnavailable`. The leadership is no task's: it lasts until `resign`, the end of the
        connection, or of the loop.
        """
        backend, cancel = self._election.backend, Cancel()
        renewer = backend.loop_renewers.here()
        standing = asyncio.create_task(on_loop(self._election.elected(value, Wait(wait_s, cancel), renewer)))
        try:
            return AsyncLeadership(await asyncio.shield(standing))
        except asyncio.CancelledError:
            cancel.set()
            await give_up(standing, lambda leadership: on_loop(leadership.resigned()))
            raise

    @asynccontextmanager
    async def campaigning(self, value: str, *, wait_s: float | None = None) -> AsyncIterator[AsyncLeadership]:
        """Lead in a block, and resign at its end."""
        leadership = await self.campaign(value, wait_s=wait_s)
        try:
            yield leadership
        finally:
            await leadership.resign()

    async def candidates(self) -> list[Contender]:
        """Return the leader and the candidates behind it, in their order. Raises `LockUnavailable`."""
        return await on_loop(self._election.queue())

    async def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """Return the leader, if there is one. Raises `LockUnavailable`."""
        return await on_loop(self._election.first(timeout_s))

    async def recorded(self) -> str | None:
        """Return the last record of a leader, past or present; None if there is none. Raises `LockUnavailable`."""
        return await on_loop(self._election.read())

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """Yield the leader, and then each change: see `Election.observe`. A caller that stops early may `aclose` it."""
        watching = Observation(self._election, Cancel())
        try:
            while (found := await on_loop(watching.next())) is not END:
                yield cast(Leader | None, found)
        finally:
            watching.close()


class AsyncSession(Leased):
    """A lease for several locks and elections, which the loop renews: see `Session`."""

    __slots__ = ("_backend", "_session")

    def __init__(self, backend: Common, session: Session) -> None:
        super().__init__(session.lease)
        self._backend = backend
        self._session = session

    @classmethod
    async def open(cls, backend: Common, beginning: Coroutine[Any, Any, Session], *, borrowed: bool) -> "AsyncSession":
        """A session that begins (`Session.begin`); `borrowed`: under a lease of another program's."""
        opening = asyncio.create_task(on_loop(beginning))

        async def undo(session: Session) -> None:
            if borrowed:
                session.orphan()
            else:
                await on_loop(session.ended())

        try:
            return cls(backend, await asyncio.shield(opening))
        except asyncio.CancelledError:
            await give_up(opening, undo)
            raise

    @property
    def lease_id(self) -> int:
        """The number that etcd has for the lease."""
        return self._session.lease_id

    @property
    def ttl_s(self) -> float:
        """The TTL that the server gave, in seconds: the session outlives its process by so much."""
        return self.lease.ttl_s

    def lock(self, name: str) -> AsyncLock:
        """Return a lock under the session's lease."""
        return AsyncLock(self._backend, self._session.lock(name))

    def election(self, name: str) -> AsyncElection:
        """Return an election under the session's lease."""
        return AsyncElection(self._session.election(name))

    def orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself: what is locked stays so until then."""
        self._session.orphan()

    async def close(self) -> None:
        """End the session: all that is locked under it is free at once. Never raises, and may be called again."""
        await whole(on_loop(self._session.ended()))

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
    """Proof that one was elected: see `Leadership`."""

    __slots__ = ("_leadership",)

    def __init__(self, leadership: Leadership) -> None:
        super().__init__(leadership.lease)
        self._leadership = leadership

    @property
    def key(self) -> str:
        """Its key in etcd."""
        return self._leadership.key

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._leadership.token

    @property
    def source(self) -> str:
        """Whose numbers the tokens are."""
        return self._leadership.source

    async def proclaim(self, value: str) -> None:
        """Say something else. Raises `LockLost` if one leads no more, `LockUnavailable` if that can't be known."""
        await on_loop(self._leadership.proclaimed(value))

    async def record(self, value: str) -> None:
        """Write down what shall outlast the leadership. Raises what `Leadership.record` does."""
        await on_loop(self._leadership.written(value))

    async def resign(self) -> None:
        """Give the leadership up; the next in line has it at once. Never raises, and may be called again."""
        await whole(on_loop(self._leadership.resigned()))


class AsyncElection:
    """As `Election`, for tasks; a leadership is renewed by the loop.

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
        """The leader and those who stand behind it, in their order. Raises `LockUnavailable`."""
        return await on_loop(self._election.queue())

    async def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """Who leads now, if anybody. Raises `LockUnavailable`."""
        return await on_loop(self._election.first(timeout_s))

    async def recorded(self) -> str | None:
        """What a leader has written down last, whoever leads now; None if none has. Raises `LockUnavailable`."""
        return await on_loop(self._election.read())

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """The leader now, and then each change: see `Election.observe`. Whoever ends it before may `aclose` it."""
        watching = Observation(self._election, Cancel())
        try:
            while (found := await on_loop(watching.next())) is not END:
                yield cast(Leader | None, found)
        finally:
            watching.close()


class AsyncSession(Leased):
    """One lease for several locks and elections: see `Session`. Renewed by the loop."""

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
        """etcd's number of it."""
        return self._session.lease_id

    @property
    def ttl_s(self) -> float:
        """What the server gave: how long the session outlives its process."""
        return self.lease.ttl_s

    def lock(self, name: str) -> AsyncLock:
        """A lock under the session's lease."""
        return AsyncLock(self._backend, self._session.lock(name))

    def election(self, name: str) -> AsyncElection:
        """An election under the session's lease."""
        return AsyncElection(self._session.election(name))

    def orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself: what is locked stays so until then."""
        self._session.orphan()

    async def close(self) -> None:
        """End the session: all that is locked under it is free at once. Never raises, and may be called again."""
        await whole(on_loop(self._session.ended()))

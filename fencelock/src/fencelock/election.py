"""Elections on a lock's queue: the first of several candidates leads, and says something that all can hear."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol, cast

from . import fork, portal
from .connection import Connection
from .contender import Contender
from .errors import LockLost, LockUnavailable
from .grant import Grant
from .hook import told
from .lock import interruptible
from .waiting import Cancel, Wait, Waiters, Wake, insisted

_AWAY_PAUSE_S: Final = 0.1
_LOOK_AGAIN_S: Final = 0.5  # where nothing tells of news


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader, as everybody can see it.

    `key`: its place in the queue; `value`: its proclamation; `token`: the fencing token of its leadership; `revision`
    grows with each proclamation.
    """

    key: str
    value: str
    token: int
    revision: int


class Lookout(Protocol):
    """Reports changes of leader."""

    async def pause_s(self) -> float:
        """Return for how many seconds to sleep before the next look, unless woken; 0: look now."""

    def close(self) -> None:
        """Watch no longer."""


class Ballot(ABC):
    """An election as a lock system runs it, on one connection. All methods but `lookout` raise `LockUnavailable`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name

    @abstractmethod
    async def stand(self, value: str, wait: Wait) -> Grant:
        """Queue, then lead with that value proclaimed: see `Attempt.until_granted`."""

    @abstractmethod
    async def say(self, grant: Grant, value: str) -> bool:
        """Change the proclaimed value; False if the grant leads no more."""

    @abstractmethod
    async def record(self, grant: Grant, value: str) -> bool:
        """Write down a value that outlasts the lead; False if the grant leads no more."""

    @abstractmethod
    async def recorded(self) -> str | None:
        """Return the value that was written down last, if any."""

    @abstractmethod
    async def leader(self, timeout_s: float | None) -> Leader | None:
        """Return the leader, if anybody leads."""

    async def candidates(self) -> list[Contender]:
        """Return the leader and the candidates behind it: without an override, the lock's queue."""
        return await self.connection.queue(self.name)

    def lookout(self, wake: Wake) -> Lookout:
        """Return a `Lookout` that sets `wake` when there may be news: without an override, one that only looks."""
        return _Looks(self.connection.waiters)


class _Looks:
    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters

    async def pause_s(self) -> float:
        return _LOOK_AGAIN_S * self._waiters.crowd

    def close(self) -> None:
        """There is nothing to close."""


class AsyncLeadership(Grant):
    """Proof that a candidate was elected. It is a grant: it is renewed, it can be lost, and its token fences."""

    __slots__ = ("_ballot", "_since", "_unhear")

    def __init__(self, ballot: Ballot, grant: Grant) -> None:
        super().__init__(grant.key, grant.token, grant.source, grant.lease)
        self._ballot = ballot
        self._since = ballot.connection.terms.clock()
        self._unhear: Callable[[], None] | None = None

    def _tell(self, waited_s: float) -> None:
        """Report this term, and its loss or end, to the hook."""
        hook, name = self._ballot.connection.terms.hook, self._ballot.name
        told(hook.granted, name, self.token, waited_s)
        self._unhear = self.on_lost(lambda: told(hook.lost, name, self.token, self.lease.reason))

    async def proclaim(self, value: str) -> None:
        """Change the proclaimed value. Raises `LockLost` if we lead no more, `LockUnavailable` if that is unknown."""
        self.ensure_held()
        if not await self._ballot.say(self, value):
            self._lost()

    async def record(self, value: str) -> None:
        """Write down a value that outlasts the leadership: see `AsyncElection.recorded`. Only the leader can.

        Raises `LockLost` and `LockUnavailable`, the latter also for more than etcd takes in one value (1.5 MiB).
        """
        self.ensure_held()
        if not await self._ballot.record(self, value):
            self._lost()

    def _lost(self) -> None:
        self.lease.lose("its key is gone")
        raise LockLost(f"{self.key} leads no more: its key is gone")

    async def resign(self) -> None:
        """Give the leadership up; the next in line leads at once. Never raises, and may be called again."""
        unhear, self._unhear = self._unhear, None
        if unhear is not None:
            unhear()
        self.lease.lose("its holder has resigned")  # before another one can lead
        connection = self._ballot.connection
        try:
            await insisted(lambda: connection.renewer.hand_back(self.lease, connection.timeout_s))
        finally:
            if unhear is not None:
                terms = connection.terms
                told(terms.hook.released, self._ballot.name, self.token, terms.clock() - self._since)


class AsyncElection:
    """First come, first elected. In etcd, candidates of Go's `concurrency.Election` stand in the same line.

    >>> election = locks.election("/jobs/auditor")
    >>> async with election.campaigning("me") as leadership:   # waits until it is elected
    ...     await leadership.proclaim("me, and all is well")
    >>> await election.leader()                                # None while nobody leads
    >>> async for leader in election.observe():                # now, and each time that another one leads or says more
    ...     print(leader.value if leader else "nobody")

    A leadership is renewed by the loop.
    """

    def __init__(self, ballot: Callable[[], Ballot]) -> None:
        self.ballot = ballot  # on the running loop's connection

    async def campaign(
        self, value: str, *, wait_s: float | None = None, cancel: Cancel | None = None
    ) -> AsyncLeadership:
        """Stand for election with a text to proclaim, and wait to be elected, at most `wait_s` seconds.

        Raises `LockTimeout`, `LockCancelled`, or `LockUnavailable`; nothing of this call is then left in the queue for
        longer than a TTL. The leadership belongs to no thread or task: it lasts until `resign`, or until the
        connection or the loop ends.
        """
        ballot = self.ballot()
        terms = ballot.connection.terms
        began, wait = terms.clock(), Wait(wait_s, cancel, clock=terms.clock)

        async def stand() -> AsyncLeadership:
            return AsyncLeadership(ballot, await ballot.stand(value, wait))

        try:
            leadership = await interruptible(stand(), wait, lambda leadership: leadership.resign())
        except BaseException as error:
            told(terms.hook.not_granted, ballot.name, error, terms.clock() - began)
            raise
        leadership._tell(terms.clock() - began)
        return leadership

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
        return await self.ballot().candidates()

    async def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """Return the leader, if anybody leads. Raises `LockUnavailable`."""
        return await self.ballot().leader(timeout_s)

    async def recorded(self) -> str | None:
        """Return the leaders' last record, also if nobody leads now; None: there is none. Raises `LockUnavailable`."""
        return await self.ballot().recorded()

    async def observe(self, *, cancel: Cancel | None = None) -> AsyncGenerator[Leader | None, None]:
        """Yield the leader now, and again after each change of leader or proclamation; None: nobody leads.

        Each look yields the state of that moment; a state that has passed while the caller was busy is skipped. It
        waits for a server that is away. It ends with `cancel`, `aclose` or the connection, and in a forked child.
        """
        observation = Observation(self, cancel or Cancel())
        try:
            while (found := await observation.next()) is not END:
                yield cast(Leader | None, found)
        finally:
            observation.close()


class _End:
    """The type of `END`: no more leaders will be reported."""


END: Final = _End()


class Observation:
    """An observation of an election, which has no part in a child that is forked: the connection is the parent's."""

    def __init__(self, election: AsyncElection, cancel: Cancel) -> None:
        self._ballot = election.ballot()
        self._cancel = cancel
        self._wake = Wake()
        self._lookout = self._ballot.lookout(self._wake)
        self._last: Leader | _End | None = END  # no answer yet
        self._forget = cancel.subscribe(self._wake.set)
        self._generation = fork.generation

    async def next(self) -> Leader | _End | None:
        """Wait for an answer other than the last one, and return the leader (None: nobody leads), or `END`."""
        waiters = self._ballot.connection.waiters
        with waiters.waiting(self._wake):
            while self._generation == fork.generation and not (self._cancel.is_set() or waiters.dismissed):
                try:
                    # Look at the beginning, and after each answer, as time has passed since.
                    pause_s = await self._lookout.pause_s()
                    if (now := await self._ballot.leader(None)) != self._last:
                        self._last = now
                        return now
                except LockUnavailable:
                    pause_s = _AWAY_PAUSE_S
                await self._wake.wait(pause_s)
        return END

    def close(self) -> None:
        """Watch no longer."""
        if self._generation == fork.generation:
            self._forget()
            self._lookout.close()


# -- for threads -----------------------------------------------------------------------------------------------------


class Leadership(Grant):
    """As `AsyncLeadership`, for threads."""

    __slots__ = ("_leadership",)

    def __init__(self, leadership: AsyncLeadership) -> None:
        super().__init__(leadership.key, leadership.token, leadership.source, leadership.lease)
        self._leadership = leadership

    def proclaim(self, value: str) -> None:
        """See `AsyncLeadership.proclaim`."""
        self.ensure_held()  # so that a callback that hears of the loss may try
        portal.run(self._leadership.proclaim(value))

    def record(self, value: str) -> None:
        """See `AsyncLeadership.record`."""
        self.ensure_held()
        portal.run(self._leadership.record(value))

    def resign(self) -> None:
        """See `AsyncLeadership.resign`."""
        portal.run(self._leadership.resign(), to_the_end=True)

    def __enter__(self) -> "Leadership":
        return self

    def __exit__(self, *_: object) -> None:
        self.resign()


class Election:
    """As `AsyncElection`, for threads.

    >>> election = backend.election("/jobs/auditor")
    >>> with election.campaign("me") as leadership:      # waits until it is elected
    ...     leadership.proclaim("me, and all is well")
    >>> for leader in election.observe(cancel=cancel):   # now, and each time that another one leads or says more
    ...     print(leader.value if leader else "nobody")
    """

    def __init__(self, election: AsyncElection) -> None:
        self._election = election

    def campaign(self, value: str, *, wait_s: float | None = None, cancel: Cancel | None = None) -> Leadership:
        """See `AsyncElection.campaign`."""
        campaign = self._election.campaign(value, wait_s=wait_s, cancel=cancel)
        return Leadership(portal.run(campaign, lambda leadership: leadership.resign()))

    def candidates(self) -> list[Contender]:
        """See `AsyncElection.candidates`."""
        return portal.run(self._election.candidates())

    def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """See `AsyncElection.leader`."""
        return portal.run(self._election.leader(timeout_s=timeout_s))

    def recorded(self) -> str | None:
        """See `AsyncElection.recorded`."""
        return portal.run(self._election.recorded())

    def observe(self, *, cancel: Cancel | None = None) -> Generator[Leader | None, None, None]:
        """See `AsyncElection.observe`. Blocks between the answers."""
        cancel = cancel or Cancel()

        async def begin() -> Observation:
            return Observation(self._election, cancel)

        observation = portal.run(begin())
        try:
            while (found := portal.run(observation.next())) is not END:
                yield cast(Leader | None, found)
        finally:
            # Any thread may finalise this, even the loop's.
            portal.loop().call_soon_threadsafe(observation.close)

"""A lock system in memory, for the tests of programs that use locks: nothing sleeps, and everything can be broken.

>>> locks = MemoryLocks(ttl_s=5)              # in the place of connect("redis://...", ttl_s=5)
>>> lock = locks.lock("/jobs/nightly")
>>> with pytest.raises(LockLost), lock as grant:
...     thief = locks.server.steal("/jobs/nightly")   # this process stood still, and another one has the lock
...     assert not grant.lost                         # nobody has told us yet
...     locks.server.advance(2)                       # seconds, in which a renewal comes
...     assert grant.lost

The time of a server stands still but for `advance`, and skips waits: a call to a frozen server fails at once, as if its
timeout had passed, and a wait for a stolen lock ends at once, with the lock or with `LockTimeout`. Between the threads
and tasks of the test itself waits are real: a wait in vain takes its seconds, and moves the time by them. This is for
tests: its locks exclude only users of the same server object, in one process.
"""

import asyncio
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Self, Unpack, cast

from typing_extensions import override

from . import clock, fork
from .backend import Guarantees, LockBackend, Scope
from .block import at_once
from .connection import Attempt, Connection, Options, PlaceLost, Terms
from .contender import Contender, describe, parse_owner
from .election import Ballot, Leader, Lookout
from .errors import LockError, LockUnavailable
from .grant import Grant
from .hook import told
from .lease import Lease
from .renewer import Renewer
from .url import LockUrl
from .waiting import Wait, Wake, seconds

_RETRY_S: Final = 0.5  # a call of the renewer's that failed is repeated
_POLL_S: Final = 0.01  # if time passes by itself, a waiter looks no more often
_THIEF: Final = '{"instance":"a thief"}'


@dataclass(eq=False, slots=True)
class _Entry:
    """A contender's entry in a queue, and its hold; the first one owns the lock, from its grant on."""

    server: "MemoryServer"
    name: str
    key: str
    token: int  # when it came, if it is a waiter
    owner: str
    since: float
    ends_at: float  # a waiter's wait, or a lease that is not renewed
    wake: Wake | None = None  # None: a thief
    is_over: Callable[[], bool] = bool  # whether its loop is closed
    lease: Lease | None = None  # once it is granted
    said: str = ""
    revision: int = 0

    @property
    def granted(self) -> bool:
        return self.lease is not None or self.wake is None

    async def renew(self, timeout_s: float) -> bool:
        self.server._reach()
        if self.lease is None or not self.server._knows(self):
            return False
        self.ends_at = self.server.now() + self.lease.ttl_s
        return True

    async def end(self, timeout_s: float) -> None:
        self.server._reach()
        self.server._remove(self)


class MemoryServer:
    """The server of locks in memory, which a test can disturb. Several `MemoryLocks` may use it: as many instances.

    `clock`: in seconds; None: time stands still, except for `advance`. Any thread or task may call its methods.
    """

    _named: ClassVar[dict[str, "MemoryServer"]] = {}

    def __init__(self, name: str = "", *, clock: Callable[[], float] | None = None) -> None:
        self.name = name
        self._stands = clock is None
        self._records: dict[str, str] = {}
        self._clock = clock or float
        self._ahead_s = 0.0
        self._number = 0
        self._frozen = False
        self._begin()
        fork.in_child(self._begin)  # its locks are the parent's

    def _begin(self) -> None:
        self._source = f"memory:{self.name}:{os.getpid()}"  # a forked child has another source of tokens
        self._mutex, self._moving = threading.RLock(), threading.RLock()
        self._queues: dict[str, list[_Entry]] = {}
        self._lookouts: dict[str, list[Wake]] = {}
        self._renewers: list[_Renewer] = []

    @classmethod
    def named(cls, name: str) -> "MemoryServer":
        """Return the server that `memory://name` opens in this process. Its time passes, as a program expects it."""
        return cls._named.setdefault(name, cls(name, clock=clock.now))

    # -- what a test does --------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return its time in seconds. The deadlines of grants are on this clock, not on that of `fencelock.now`."""
        return self._clock() + self._ahead_s

    def advance(self, for_s: float) -> None:
        """Let some seconds pass: renewals come when they are due, and leases run out in order.

        Callbacks of `on_lost` are called in here. Threads and tasks whose turn it is are woken; a task goes on when its
        loop turns. Raises `ValueError`.
        """
        self._advance_to(self.now() + seconds("for_s", for_s))

    def lose(self, name: str) -> None:
        """Take a lock from its holder at once; the next waiter gets it. Raises `LockError` if the lock is free."""
        entry = self._take_away(name)
        if entry is None:
            raise LockError(f"nobody has {name}")
        if entry.lease is not None:
            entry.lease.lose("the server no longer knows it")
            if isinstance(entry.lease.keeper, _Renewer):
                entry.lease.keeper.look_at(entry.lease)

    def steal(self, name: str, *, for_s: float = math.inf) -> int:
        """Give a lock to somebody else, for some seconds or until `lose`, and return the token of that grant.

        Its holder, if any, learns that from the next renewal, like a process that stood still beyond its TTL. Raises
        `ValueError`.
        """
        now = self.now()
        ends_at = now + seconds("for_s", for_s, zero=True)
        with self._mutex:
            if (held := self._holder(name)) is not None:
                self._queues[name].remove(held)
            token = self._next_number()
            thief = _Entry(self, name, f"{name}/{token:x}", token, _THIEF, now, ends_at)
            self._queues.setdefault(name, []).insert(0, thief)
        self._wake(name)
        return token

    def freeze(self) -> None:
        """Answer nobody from now on: calls raise `LockUnavailable`, and leases run out."""
        self._frozen = True
        self._wake_all()

    def thaw(self) -> None:
        """Answer again; each renewal and release that found no answer is repeated at once."""
        was_frozen, self._frozen = self._frozen, False
        for renewer in list(self._renewers):
            renewer.look(everything=was_frozen)
        self._expire()
        self._wake_all()

    def restart(self, *, forget: bool = False) -> None:
        """Begin anew with all it had, or `forget` holders, waiters and records. Tokens go on rising in any case."""
        with self._mutex:
            wakes = [entry.wake for entry, _ in self._entries() if forget and entry.wake]
            if forget:
                self._queues.clear()
                self._records.clear()
        self.thaw()
        for wake in wakes:
            wake.set()

    # -- what its clients do -----------------------------------------------------------------------------------------

    def _reach(self, timeout_s: float = 0) -> None:
        """Make a call. Raises `LockUnavailable` if it is frozen, after `timeout_s` seconds if its time stands still."""
        if self._frozen:
            if self._stands and timeout_s:  # not in a renewal, which is a part of an advance
                self._advance_to(self.now() + timeout_s)
            raise LockUnavailable(f"memory://{self.name} does not answer")
        self._expire()

    def _advance_to(self, until: float) -> None:
        with self._moving:
            self._settle()
            while (moment := min(self._next_at(), until)) > self.now():
                self._ahead_s = max(self._ahead_s, moment - self._clock())
                self._settle()

    def _pause_s(self) -> float:
        """Return for how many seconds a waiter may sleep unless it is woken."""
        return math.inf if self._stands else max(_POLL_S, self._next_at() - self.now())

    def _next_number(self) -> int:
        with self._mutex:
            self._number += 1
            return self._number

    def _enqueue(self, entry: _Entry) -> None:
        with self._mutex:
            self._queues.setdefault(entry.name, []).append(entry)

    def _first(self, name: str) -> _Entry | None:
        with self._mutex:
            return next(iter(self._queues.get(name, ())), None)

    def _knows(self, entry: _Entry) -> bool:
        return entry in self._queues.get(entry.name, ())

    def _entries(self, prefix: str = "") -> list[tuple[_Entry, bool]]:
        """Return all entries under a prefix in their order, and whether each is the first."""
        with self._mutex:
            names = sorted(name for name in self._queues if f"{name}/".startswith(prefix))
            return [(one, not number) for name in names for number, one in enumerate(self._queues[name])]

    def _grant(self, entry: _Entry, lease: Lease) -> None:
        """Give the lock to the first in its queue."""
        with self._mutex:
            if entry.token < self._number:  # others may have been granted since it came
                entry.token = self._next_number()
            entry.lease, entry.ends_at, entry.revision = lease, self.now() + lease.ttl_s, entry.token
        self._wake(entry.name, 0)

    def _say(self, name: str, key: str, value: str) -> bool:
        """Proclaim or record a text of the holder; False if it doesn't hold the lock any more."""
        with self._mutex:
            holder = self._holder(name)
            if holder is None or holder.key != key:
                return False
            holder.said, holder.revision = value, self._next_number()
        self._wake(name, 0)
        return True

    def _remove(self, entry: _Entry) -> None:
        with self._mutex:
            queue = self._queues.get(entry.name, [])
            if entry in queue:
                queue.remove(entry)
            if not queue:
                self._queues.pop(entry.name, None)
        self._wake(entry.name)

    def _take_away(self, name: str) -> _Entry | None:
        self._expire()
        entry = self._holder(name)
        if entry is not None:
            self._remove(entry)
        return entry

    def _watch(self, name: str, wake: Wake) -> Callable[[], None]:
        """Have `wake` set by each change of the holder or its proclamation; the returned function ends that."""
        with self._mutex:
            wakes = self._lookouts.setdefault(name, [])
            wakes.append(wake)
        return lambda: wakes.remove(wake)

    def _serve(self, renewer: "_Renewer") -> Callable[[], None]:
        """Wake a renewer whenever time has moved; the returned function ends that."""
        renewers = self._renewers
        renewers.append(renewer)
        return lambda: renewers.remove(renewer) if renewer in renewers else None

    def _holder(self, name: str) -> _Entry | None:
        first = self._first(name)
        return first if first is not None and first.granted else None

    def _next_at(self) -> float:
        moments = [entry.ends_at for entry, _ in self._entries()] + [one.due_at() for one in list(self._renewers)]
        now = self.now()
        return min((moment for moment in moments if moment > now), default=math.inf)

    def _settle(self) -> None:
        for renewer in list(self._renewers):
            renewer.look()
        self._expire()

    def _expire(self) -> None:
        now = self.now()
        for entry, first in self._entries():
            if entry.is_over():
                if entry.lease is not None:
                    entry.lease.lose("its event loop is closed")
                self._remove(entry)
            elif entry.ends_at <= now and (entry.granted or not first):  # else it is about to have the lock
                self._remove(entry)

    def _wake(self, name: str, waiters: int | None = 1) -> None:
        with self._mutex:
            wakes = [one.wake for one in self._queues.get(name, [])[:waiters] if one.wake]
            wakes += self._lookouts.get(name, [])
        for wake in wakes:
            wake.set()

    def _wake_all(self) -> None:
        for name in {*self._queues, *self._lookouts}:
            self._wake(name, None)


class _Renewer(Renewer):
    """Renews when its server's time is moved, in the thread that moves it; where time passes, by a timer as well."""

    stands = False

    def due_at(self) -> float:
        """Return when it will do something."""
        return max(self._next_due(), self._paused_until)

    def look(self, *, everything: bool = False) -> None:
        """Do everything that is due now, or `everything` that waits."""
        now = self._clock()
        for job in list(self._jobs.values()) if everything else ():
            job.due = now
        while self._paused_until <= now and (due := [one for one, job in list(self._jobs.items()) if job.due <= now]):
            for lease in due:
                self.look_at(lease)

    def look_at(self, lease: Lease) -> None:
        """Renew a lease, or give it back."""
        if (job := self._jobs.get(lease)) is not None:
            job.due = self._clock() + min(_RETRY_S, lease.ttl_s * self._ratio)
            at_once(self._do(lease, job))  # calls to a server in memory are answered at once

    @override
    def _wake_by(self, due: float) -> None:
        if not self.stands:
            super()._wake_by(due)


class _Place(Attempt["_Connection"]):
    """A caller's attempt, with its entry in the queue. A waiter's lease ends only with its loop."""

    entry: _Entry | None = None
    said = ""
    ends_at = math.inf  # the caller's wait, on the real clock

    @override
    async def take(self, wait: Wait) -> Grant | float:
        server = self.connection.server
        server._reach(0 if self.answered else wait.call_s(self.timeout_s))
        if self.lease is None or self.entry is None:
            self.entry = self._enqueued(wait)
            self.lease = Lease(self.entry.key, self.entry, math.inf)
        entry, first = self.entry, server._first(self.name)
        if server._stands and first is not None and first.wake is None:  # a thief has it: only time ends that
            until = min(wait.deadline, first.ends_at)
            if until < math.inf:
                server._advance_to(until)
        if not server._knows(entry):
            if wait.left_s:
                raise PlaceLost
            return 0.0  # its time was over first
        if server._first(self.name) is not entry:
            if not server._stands or clock.now() < self.ends_at:
                return server._pause_s()
            server._advance_to(wait.deadline)  # the holder is of this test, and has not moved the time
            return 0.0
        self.lease = Lease(entry.key, entry, self.ttl_s, clock=server.now)
        server._grant(entry, self.lease)
        self.renewer.keep(self.lease)
        return Grant(entry.key, entry.token, server._source, self.lease)

    def _enqueued(self, wait: Wait) -> _Entry:
        server, number = self.connection.server, self.connection.server._next_number()
        owner = describe(self.connection.terms.instance)
        key, is_over = f"{self.name}/{number:x}", asyncio.get_running_loop().is_closed
        entry = _Entry(server, self.name, key, number, owner, server.now(), wait.deadline, self.wake, is_over)
        entry.said = self.said
        self.ends_at = clock.now() + wait.left_s
        server._enqueue(entry)
        return entry


class _Ballot(Ballot):
    """An election on a lock's queue: its owner leads."""

    connection: "_Connection"

    def __init__(self, connection: "_Connection", name: str) -> None:
        super().__init__(connection, name)
        self._server = connection.server

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        place = self.connection.attempt(self.name, self.connection.terms.ttl_s)
        place.said = value
        return await place.until_granted(wait)

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        self._server._reach(self.connection.timeout_s)
        return self._server._say(self.name, grant.key, value)

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        self._server._reach(self.connection.timeout_s)
        leader = self._server._first(self.name)
        if leader is None or leader.key != grant.key:
            return False
        self._server._records[self.name] = value
        return True

    @override
    async def recorded(self) -> str | None:
        self._server._reach(self.connection.timeout_s)
        return self._server._records.get(self.name)

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        self._server._reach()  # observers ask again and again
        leader = self._server._first(self.name)
        if leader is None or not leader.granted:
            return None
        return Leader(leader.key, leader.said, leader.token, leader.revision)

    @override
    def lookout(self, wake: Wake) -> Lookout:
        return _Lookout(self._server, self.name, wake)


class _Lookout:
    def __init__(self, server: MemoryServer, name: str, wake: Wake) -> None:
        self._server = server
        self.close = server._watch(name, wake)

    async def pause_s(self) -> float:
        return self._server._pause_s()


class _Connection(Connection):
    """An event loop's connection to the server."""

    renewer: _Renewer

    def __init__(self, terms: Terms, server: MemoryServer) -> None:
        super().__init__(terms)
        self.server = server
        self.renewer = _Renewer(
            asyncio.get_running_loop(),
            ratio=terms.renew_ratio,
            clock=terms.clock,
            on_event=lambda event: told(terms.hook.renewal, event),
        )
        self.renewer.stands = server._stands
        self._leave_server = server._serve(self.renewer)

    @override
    def attempt(self, name: str, ttl_s: float) -> _Place:
        return _Place(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        self.server._reach(self.timeout_s)
        return [self._contender(*entry) for entry in self.server._entries(prefix)]

    def _contender(self, entry: _Entry, holds: bool) -> Contender:
        now = self.server.now()
        left_s = entry.ends_at - now if entry.granted and entry.ends_at < math.inf else None
        return Contender(entry.key, entry.token, parse_owner(entry.owner)[0], now - entry.since, left_s, holds)

    @override
    async def ping(self, timeout_s: float) -> None:
        self.server._reach(timeout_s)

    @override
    async def force_release(self, name: str) -> Contender | None:
        self.server._reach(self.timeout_s)
        entry = self.server._take_away(name)
        return None if entry is None else self._contender(entry, True)

    @override
    async def disconnect(self) -> None:
        self._leave_server()


class MemoryLocks(LockBackend):
    """The locks of a server in memory, as one instance of a program opens them.

    `server`: to share with other instances; None: a new one. For the rest see `Options`. `memory://name` is one with
    the server `MemoryServer.named(name)`.
    """

    name = "memory"
    _survives: Final = {"survives_silence": True, "survives_restart": True, "survives_cut": True}
    _more: Final = {"shows_queue": True, "elects": True, "forces_release": True}
    guarantees = Guarantees(Scope.PROCESS, fair=True, fencing=True, **_survives, **_more)

    def __init__(self, server: MemoryServer | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.server = server or MemoryServer()
        self.terms.clock = self.server.now

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options()
        return cls(MemoryServer.named(url.rest), **options)

    @override
    def connect(self) -> Connection:
        return _Connection(self.terms, self.server)

    @override
    def ballot(self, name: str) -> Ballot:
        return _Ballot(cast(_Connection, self.here()), name)

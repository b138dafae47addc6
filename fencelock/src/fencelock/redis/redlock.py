"""Redlock: a lock that the majority of several independent Redis servers has given.

Source: S. Sanfilippo, "Distributed Locks with Redis" (redis.io). Read M. Kleppmann, "How to do distributed locking",
too: it rests on clocks and gives no fencing token, so the store can only compare the values that were read.
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from ..backend import Guarantees, LockBackend
from ..backoff import Backoff
from ..connection import Attempt, Connection, Options, Terms
from ..contender import Contender, describe, parse_owner
from ..errors import ConfigurationError, LockUnavailable
from ..grant import Grant
from ..lease import Lease
from ..url import LockUrl
from ..waiting import Wait
from .client import RedisClient, Script
from .lock import names_under

_EXTEND: Final = Script("redlock_extend.lua")
_RELEASE: Final = Script("redlock_release.lua")
_DRIFT: Final = 0.01  # the part of the TTL by which a server's clock may run faster than ours
_DRIFT_S: Final = 0.002
_LONGEST_CALL_S: Final = 0.5
_SHORTEST_CALL_S: Final = 0.05  # a shorter deadline fails calls that a healthy server would have answered
_SERVERS_MIN: Final = 3


Question = Callable[[RedisClient], Coroutine[Any, Any, Any]]


class RedlockConnection(Connection):
    """The servers, asked all at once, so that a frozen server delays no other's answer."""

    calls_max = 16  # each call asks all servers: with more at once, all would be late until the connections are made

    def __init__(self, terms: Terms, urls: Sequence[str]) -> None:
        super().__init__(terms)
        self.clients = [RedisClient(url, min(terms.timeout_s, _LONGEST_CALL_S)) for url in urls]
        # The limit of requests for locks to each server at once, including abandoned ones.
        self.room = {client: asyncio.Semaphore(4 * self.calls_max) for client in self.clients}
        self.majority = len(urls) // 2 + 1
        self._tasks: set[asyncio.Task[Any]] = set()  # calls that nobody waits for

    async def ask(self, question: Question, enough: Callable[[list[Any]], bool] = lambda answers: False) -> list[Any]:
        """Ask all servers, and return their answers; once these are `enough`, the others are not waited for.

        Raises `LockUnavailable` if neither a majority nor `enough` answered.
        """
        left = {asyncio.create_task(question(client)) for client in self.clients}
        self._tasks |= left
        answers: list[Any] = []
        failure = None
        for task in left:
            task.add_done_callback(self._retrieved)
        while left and not enough(answers):
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                try:
                    answers.append(one.result())
                except LockUnavailable as error:
                    failure = error
        if len(answers) < self.majority and not enough(answers):
            text = f"only {len(answers)} of {len(self.clients)} servers can be asked: {failure}"
            raise LockUnavailable(text) from failure
        return answers

    def _retrieved(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio would log an error that nobody has read

    def agreed(self, answers: list[Any]) -> bool:
        """Return whether a majority says yes."""
        return sum(map(bool, answers)) >= self.majority

    @override
    def attempt(self, name: str, ttl_s: float) -> "_RedlockAttempt":
        return _RedlockAttempt(self, name, ttl_s)

    @override
    async def queue(self, name: str) -> list[Contender]:
        return await self._holders(lambda client: _look(client, [name]))

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        async def look(client: RedisClient) -> list[tuple[str, str, int]]:
            return await _look(client, await names_under(client, prefix, "string"))

        return await self._holders(look)

    async def _holders(self, look: Question) -> list[Contender]:
        """Return the owners that a majority of the servers names."""
        seen = [one for answer in await self.ask(look) for one in answer]
        left_ms = {(name, value): left for name, value, left in seen}
        counted = Counter((name, value) for name, value, _ in seen).items()
        agreed = [(*one, left_ms[one]) for one, count in counted if count >= self.majority]
        return sorted((_holder(*one) for one in agreed), key=lambda one: one.key)

    @override
    async def ping(self, timeout_s: float) -> None:
        await self.ask(lambda client: client.ping(timeout_s))

    @override
    async def disconnect(self) -> None:
        # Wait for the calls, which have deadlines: the release may not have reached the last server yet.
        if self._tasks:
            await asyncio.wait(self._tasks)
        for client in self.clients:
            await client.close()


class _RedlockAttempt(Attempt[RedlockConnection]):
    """An attempt to get a majority; without one it gives its keys back, and tries again soon. No token, not fair."""

    def __init__(self, connection: RedlockConnection, name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._servers = connection
        self._ttl_ms = round(ttl_s * 1000)
        brief_s = max(_SHORTEST_CALL_S, ttl_s * connection.terms.renew_ratio / 2)
        self._call_s = min(connection.clients[0].timeout_s, brief_s)
        self._valid_s = ttl_s * (1 - _DRIFT) - _DRIFT_S
        # With jitter: two attempts with half of the servers each would collide again.
        self._backoff = Backoff(0.02, 0.15, jitter=True)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        await self.leave(in_background=True)  # the value of a try that was not answered
        who = {"id": uuid.uuid4().hex} | json.loads(describe(self.connection.terms.instance))
        value = json.dumps(who, separators=(",", ":"))
        name, servers = self.name, self._servers
        hold = _RedlockHold(servers, name, self._ttl_ms, value, self._call_s)
        lease = self.lease = Lease(name, hold, self._valid_s)
        got = await servers.ask(hold.set_key, servers.agreed)
        if servers.agreed(got) and not lease.lost:
            self.renewer.keep(lease)
            return Grant(f"{name}/{who['id']}", 0, "redlock", lease)
        if any(got) or len(got) < len(servers.clients):  # a server that has not answered may have our key
            await self.leave(in_background=not any(got))
        self.lease = None
        return self._backoff.next_s()


class _RedlockHold:
    """Our value, which is unique, on the servers that took it."""

    def __init__(self, servers: RedlockConnection, name: str, ttl_ms: int, value: str, call_s: float) -> None:
        self._servers = servers
        self._name = name
        self._ttl_ms = ttl_ms
        self._value = value
        self._call_s = call_s
        self._turns: dict[RedisClient, asyncio.Lock] = {}  # one for each server that was asked for the lock
        self._all = False  # whether `end` must get an answer of all servers

    async def set_key(self, client: RedisClient) -> bool:
        """Ask a server for the lock."""
        room = self._servers.room[client]
        if room.locked():
            raise LockUnavailable("too many calls are unanswered")
        turn = self._turns[client] = asyncio.Lock()
        async with room, turn:
            asked = client.do("set", self._name, self._value, nx=True, px=self._ttl_ms, timeout_s=self._call_s)
            return bool(await asked)

    async def _release(self, client: RedisClient) -> bool:
        """Give it back, after the answer to `set_key`, which else could reach the server later than this."""
        if client not in self._turns:
            return False
        async with self._turns[client]:
            return bool(await client.run(_RELEASE, [self._name], [self._value], self._call_s))

    async def renew(self, timeout_s: float) -> bool:
        def extend(client: RedisClient) -> Coroutine[Any, Any, Any]:
            return client.run(_EXTEND, [self._name], [self._ttl_ms, self._value], self._call_s)

        return self._servers.agreed(await self._servers.ask(extend, self._servers.agreed))

    async def end(self, timeout_s: float) -> None:
        # Once a majority has given it back, others can have it, and it runs out on the rest. After a failure all are
        # asked until they answer, as servers come back one after the other.
        servers, least = self._servers, len(self._servers.clients) if self._all else self._servers.majority
        self._all = True
        told = await servers.ask(self._release, lambda answers: len(answers) >= least)
        if len(told) < least:
            raise LockUnavailable("not all servers have been told that it is free")


async def _look(client: RedisClient, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return the name, value and remaining TTL in ms of each key that is there."""
    found = []
    for name in names:
        value = await client.do("get", name)
        if value:
            found.append((name, value, await client.do("pttl", name)))
    return found


def _holder(name: str, value: str, left_ms: int) -> Contender:
    owner, waited_s = parse_owner(value)
    key = f"{name}/{owner.pop('id', value)}"  # the value of another program serves as its name
    return Contender(key, 0, owner, waited_s, max(0, left_ms) / 1000, holds=True)


class RedlockBackend(LockBackend):
    """Redlock's locks, on three or more independent servers, best an odd number.

    `urls`: of redis-py's form, in a list or separated by commas; for the rest see `Options`. A call to one of the
    servers has half a second at most.
    """

    name = "redlock"
    guarantees = Guarantees(survives_silence=True, survives_restart=True, survives_cut=True)

    def __init__(self, urls: Sequence[str] | str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        urls = urls.split(",") if isinstance(urls, str) else urls
        if len(urls) < _SERVERS_MIN:
            raise ConfigurationError(f"a majority that can be lost needs {_SERVERS_MIN} servers at least")
        if any("+" in url.partition("://")[0] for url in urls):
            raise ConfigurationError("redlock's servers are independent: redis://, rediss:// or unix://, each of them")
        if len({RedisClient.check(url) for url in urls}) < len(urls):
            raise ConfigurationError("redlock's servers must be different ones: one that is named twice counts twice")
        self._urls = urls

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        place, mark, query = url.rest.partition("?")
        login, at, _ = place.rpartition("@")
        scheme = "rediss" if url.secure else "redis"
        return cls([f"{scheme}://{login}{at}{host}{url.path}{mark}{query}" for host in url.hosts], **options)

    @override
    def connect(self) -> Connection:
        return RedlockConnection(self.terms, self._urls)

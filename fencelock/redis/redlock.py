"""Redlock: a lock that the majority of several independent Redis servers has given.

Source: S. Sanfilippo, "Distributed Locks with Redis" (redis.io). Read M. Kleppmann, "How to do distributed locking",
too: it rests on clocks and gives no fencing token, so the store can only be guarded by comparing what was read.
"""

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import as_completed
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from .. import fork
from ..attempt import Attempt
from ..backend import Guarantees, LockBackend
from ..backoff import Backoff
from ..common import Options
from ..contender import Contender, describe, parse_owner
from ..errors import ConfigurationError, LockUnavailable
from ..grant import Grant
from ..lease import Lease
from ..lock import DistributedLock
from ..per_loop import PerLoop
from ..steps import Step, in_thread, on_loop
from ..url import LockUrl
from ..waiting import Wait
from .client import RedisClient, Script
from .lock import names_under

_EXTEND: Final = Script("redlock_extend.lua")
_RELEASE: Final = Script("redlock_release.lua")
_DRIFT: Final = 0.01  # how much faster a server's clock may run than ours, as part of the TTL
_DRIFT_S: Final = 0.002
_LONGEST_CALL_S: Final = 0.5
_CALLS_MAX: Final = 16  # under way at once to each server
_SERVERS_MIN: Final = 3


Question = Callable[[RedisClient], Coroutine[Any, Any, Any]]


class _Servers:
    """The servers, asked all at once: in threads of their own, or in tasks. One that is frozen delays no other's."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self.clients = [RedisClient(url, timeout_s=timeout_s) for url in urls]
        self.majority = len(urls) // 2 + 1
        self.call_s = 2 * timeout_s  # to connect, and to answer
        self.threads = [fork.Threads(_CALLS_MAX, "fencelock-redlock") for _ in urls]
        self.tasks: set[asyncio.Task[Any]] = set()  # calls that nobody waits for

    async def ask(self, question: Question, enough: Callable[[list[Any]], bool] = lambda answers: False) -> list[Any]:
        """The answers of those that could be asked; once they are `enough`, nobody waits for the others.

        Raises `LockUnavailable` if no majority could be asked.
        """
        answers, failure = await _AllAsked(self, question, enough)
        if len(answers) < self.majority and not enough(answers):
            text = f"only {len(answers)} of {len(self.clients)} servers can be asked: {failure}"
            raise LockUnavailable(text) from failure
        return answers

    async def ask_majority(self, question: Question) -> None:
        """Have a majority answer. The others are asked once, and not waited for. Raises `LockUnavailable`."""
        await self.ask(question, lambda answers: len(answers) >= self.majority)

    async def ask_for_majority(self, question: Question) -> bool:
        """Whether a majority says yes; then nobody waits for the others. Raises `LockUnavailable`."""
        return self._agreed(await self.ask(question, self._agreed))

    def _agreed(self, answers: list[Any]) -> bool:
        return sum(map(bool, answers)) >= self.majority

    def close(self) -> None:
        # The calls first, which have deadlines: the last server may not have been told yet that a lock is free.
        for threads in self.threads:
            threads.pool.shutdown()
        for client in self.clients:
            client.close()

    async def close_on_loop(self) -> None:
        if self.tasks:
            await asyncio.wait(self.tasks)
        for client in self.clients:
            await client.close_on_loop()


Answers = tuple[list[Any], LockUnavailable | None]


class _AllAsked(Step[Answers]):
    """The answers of the servers, and why others gave none."""

    def __init__(self, servers: _Servers, question: Question, enough: Callable[[list[Any]], bool]) -> None:
        self._servers = servers
        self._question = question
        self._enough = enough

    def in_thread(self) -> Answers:
        """A thread for each server."""
        # Nobody waits for a call that has not begun by then. Made all the same, such calls would pile up before a
        # server that is frozen, and delay those that somebody waits for.
        begin_by = time.monotonic() + self._servers.call_s

        def ask(client: RedisClient) -> Any:
            if time.monotonic() > begin_by:
                raise LockUnavailable("too many calls wait for an answer")
            return in_thread(self._question(client))

        pairs = zip(self._servers.threads, self._servers.clients, strict=True)
        asked = [threads.pool.submit(ask, client) for threads, client in pairs]
        answers: list[Any] = []
        failure = None
        for one in as_completed(asked):
            try:
                answers.append(one.result())
            except LockUnavailable as error:
                failure = error
            if self._enough(answers):
                break
        return answers, failure

    async def on_loop(self) -> Answers:
        """A task for each server."""
        asked = {asyncio.create_task(on_loop(self._question(client))) for client in self._servers.clients}
        self._servers.tasks |= asked
        for task in asked:
            task.add_done_callback(self._servers.tasks.discard)
        answers: list[Any] = []
        failure = None
        left = asked
        while left and not self._enough(answers):
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                try:
                    answers.append(one.result())
                except LockUnavailable as error:
                    failure = error
        for one in left:
            one.add_done_callback(_retrieved)
        return answers, failure


def _retrieved(task: "asyncio.Task[Any]") -> None:
    # Nobody waits for it any more; asyncio would complain of an exception that was never looked at.
    if not task.cancelled():
        task.exception()


class RedlockLock(DistributedLock["RedlockBackend"]):
    """Re-entrant; not fair, no token. An attempt without a majority gives back what it got, and tries again soon."""

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name, self.ttl_s)

    @override
    async def _queue(self) -> list[Contender]:
        return await _holders(self._backend.servers, lambda client: _look(client, [self.name]))


class _Attempt(Attempt["RedlockBackend"]):
    def __init__(self, backend: "RedlockBackend", name: str, ttl_s: float) -> None:
        super().__init__(backend, name, ttl_s)
        self._servers = backend.servers
        self._ttl_ms = round(ttl_s * 1000)
        self._valid_s = ttl_s * (1 - _DRIFT) - _DRIFT_S
        # By chance: two attempts with half of the servers each would do the same again.
        self._backoff = Backoff(0.02, 0.15, jitter=True)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        who = {"id": uuid.uuid4().hex} | json.loads(describe(self.backend.instance))
        value = json.dumps(who, separators=(",", ":"))
        name, ttl_ms, servers = self.name, self._ttl_ms, self._servers

        async def set_key(client: RedisClient) -> bool:
            return bool(await client.do("set", name, value, nx=True, px=ttl_ms))

        lease = self.lease = Lease(name, _Hold(servers, name, ttl_ms, value), self._valid_s)
        got = sum(await servers.ask(set_key))
        if got >= servers.majority and not lease.lost:
            self.renewer.keep(lease)
            return Grant(f"{name}/{who['id']}", 0, "redlock", lease)
        if got:
            await self.leave()
        self.lease = None
        return self._backoff.next_s()


class _Hold:
    """A value that is ours alone, on those servers that took it."""

    def __init__(self, servers: _Servers, name: str, ttl_ms: int, value: str) -> None:
        self._servers = servers
        self._name = name
        self._ttl_ms = ttl_ms
        self._value = value

    async def renew(self, timeout_s: float) -> bool:
        return await self._servers.ask_for_majority(
            lambda client: client.run(_EXTEND, [self._name], [self._ttl_ms, self._value])
        )

    async def end(self, timeout_s: float) -> None:
        # Where a majority has given it back others can have it; what is left on the rest runs out there.
        await self._servers.ask_majority(lambda client: client.run(_RELEASE, [self._name], [self._value]))


async def _look(client: RedisClient, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Name, value and remaining TTL in ms of those keys that are there."""
    found = []
    for name in names:
        value = await client.do("get", name)
        if value:
            found.append((name, value, await client.do("pttl", name)))
    return found


async def _agreed(servers: _Servers, look: Question) -> list[tuple[str, str, int]]:
    """What a majority of the servers says, of what `_look` finds."""
    seen = [one for answer in await servers.ask(look) for one in answer]
    left_ms = {(name, value): left for name, value, left in seen}
    counted = Counter((name, value) for name, value, _ in seen).items()
    return [(*one, left_ms[one]) for one, count in counted if count >= servers.majority]


async def _holders(servers: _Servers, look: Question) -> list[Contender]:
    """The owner that a majority of the servers names."""
    return sorted((_holder(*one) for one in await _agreed(servers, look)), key=lambda one: one.key)


def _holder(name: str, value: str, left_ms: int) -> Contender:
    owner, waited_s = parse_owner(value)
    key = f"{name}/{owner.pop('id', value)}"  # another program's value is its name
    return Contender(key, 0, owner, waited_s, max(0, left_ms) / 1000, holds=True)


class RedlockBackend(LockBackend):
    """Three or more independent servers, best an odd number.

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
        # Each attempt asks all servers: more at once, and all are late where connections have yet to be made.
        self.turns = PerLoop(lambda _: asyncio.Semaphore(_CALLS_MAX))
        brief_s = self.ttl_s * options.get("renew_ratio", 1 / 3) / 2
        self.servers = _Servers(urls, min(self.timeout_s, _LONGEST_CALL_S, brief_s))

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        place, mark, query = url.rest.partition("?")
        login, at, _ = place.rpartition("@")
        scheme = "rediss" if url.secure else "redis"
        return cls([f"{scheme}://{login}{at}{host}{url.path}{mark}{query}" for host in url.hosts], **options)

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> RedlockLock:
        return RedlockLock(self, name, ttl_s)

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        async def look(client: RedisClient) -> list[tuple[str, str, int]]:
            return await _look(client, await names_under(client, prefix, "string"))

        return await _holders(self.servers, look)

    @override
    async def pinged(self, timeout_s: float) -> None:
        await self.servers.ask(lambda client: client.ping(timeout_s))

    @override
    def _disconnect(self) -> None:
        self.renewer.close()  # it asks them, on threads that are about to end
        self.servers.close()

    @override
    async def _disconnect_loop(self) -> None:
        await self.servers.close_on_loop()

"""Redlock: a lock that the majority of several independent Redis servers has given.

Source: S. Sanfilippo, "Distributed Locks with Redis" (redis.io). Read M. Kleppmann, "How to do distributed locking",
too: it rests on clocks and gives no fencing token, so the store can only be guarded by comparing what was read.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from typing import Any, Final, Self

from typing_extensions import Unpack, override

from app.common import fork
from app.common.backoff import Backoff
from app.errors import ConfigurationError, LockUnavailable
from app.locks.attempt import Attempt
from app.locks.backend import Guarantees, LockBackend, Options
from app.locks.contender import Contender, describe, parse_owner
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.redis.client import RedisClient, Script
from app.locks.url import LockUrl
from app.locks.waiting import Wait

_EXTEND: Final = Script("redlock_extend.lua")
_RELEASE: Final = Script("redlock_release.lua")
_DRIFT: Final = 0.01  # how much faster a server's clock may run than ours, as part of the TTL
_DRIFT_S: Final = 0.002
_LONGEST_CALL_S: Final = 0.5
_CALLS_MAX: Final = 16  # under way at once to each server
_SERVERS_MIN: Final = 3
_MANY: Final = 1000


class _Servers:
    """The servers, asked all at once. Each has threads of its own: calls to one that is frozen delay no other's."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self._clients = [RedisClient(url, timeout_s=timeout_s) for url in urls]
        self.majority = len(urls) // 2 + 1
        self._call_s = 2 * timeout_s  # to connect, and to answer
        self._threads = [fork.Threads(_CALLS_MAX, "seckill-redlock") for _ in urls]

    def ask(
        self, question: Callable[[RedisClient], Any], enough: Callable[[list[Any]], bool] = lambda answers: False
    ) -> list[Any]:
        """The answers of those that could be asked; once they are `enough`, nobody waits for the others.

        Raises `LockUnavailable` if no majority could be asked.
        """
        asked = self._send(question)
        answers, failure = [], None
        for one in as_completed(asked):
            try:
                answers.append(one.result())
            except LockUnavailable as error:
                failure = error
            if enough(answers):
                return answers
        if len(answers) < self.majority:
            raise LockUnavailable(f"only {len(answers)} of {len(asked)} servers can be asked: {failure}") from failure
        return answers

    def ask_majority(self, question: Callable[[RedisClient], Any]) -> None:
        """Have a majority answer. The others are asked once, and not waited for. Raises `LockUnavailable`."""
        self.ask(question, lambda answers: len(answers) >= self.majority)

    def ask_for_majority(self, question: Callable[[RedisClient], Any]) -> bool:
        """Whether a majority says yes; then nobody waits for the others. Raises `LockUnavailable`."""
        return self._agreed(self.ask(question, self._agreed))

    def _agreed(self, answers: list[Any]) -> bool:
        return sum(map(bool, answers)) >= self.majority

    def _send(self, question: Callable[[RedisClient], Any]) -> list["Future[Any]"]:
        # Nobody waits for a call that has not begun by then. Made all the same, such calls would pile up before a
        # server that is frozen, and delay those that somebody waits for.
        begin_by = time.monotonic() + self._call_s

        def ask(client: RedisClient) -> Any:
            if time.monotonic() > begin_by:
                raise LockUnavailable("too many calls wait for an answer")
            return question(client)

        return [pool.submit(ask, client) for pool, client in zip(self._threads, self._clients, strict=True)]

    def close(self) -> None:
        # The calls first, which have deadlines: the last server may not have been told yet that a lock is free.
        for pool in self._threads:
            pool.shutdown()
        for client in self._clients:
            client.close()


class RedlockLock(DistributedLock["RedlockBackend"]):
    """Re-entrant; not fair, no token. An attempt without a majority gives back what it got, and tries again soon."""

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        def look(client: RedisClient) -> list[tuple[str, str, int]]:
            with client.commands() as redis:
                value = redis.get(self.name)
                return [(self.name, value, redis.pttl(self.name))] if value else []

        return _holders(self._backend.servers, look)


class _Attempt(Attempt["RedlockBackend"]):
    def __init__(self, backend: "RedlockBackend", name: str) -> None:
        super().__init__(backend, name)
        self._servers = backend.servers
        self._ttl_ms = round(backend.ttl_s * 1000)
        self._valid_s = backend.ttl_s * (1 - _DRIFT) - _DRIFT_S
        # By chance: two attempts with half of the servers each would do the same again.
        self._backoff = Backoff(0.02, 0.15, jitter=True)

    @override
    def take(self, wait: Wait) -> Grant | float:
        who = {"id": uuid.uuid4().hex} | json.loads(describe(self.backend.instance))
        value = json.dumps(who, separators=(",", ":"))
        name, ttl_ms, servers = self.name, self._ttl_ms, self._servers

        def set_key(client: RedisClient) -> bool:
            with client.commands() as redis:
                return bool(redis.set(name, value, nx=True, px=ttl_ms))

        lease = self.lease = Lease(name, _Hold(servers, name, ttl_ms, value), self._valid_s)
        got = sum(servers.ask(set_key))
        if got >= servers.majority and not lease.lost:
            self.backend.renewer.keep(lease)
            return Grant(f"{name}/{who['id']}", 0, "redlock", lease)
        if got:
            self.leave()
        self.lease = None
        return self._backoff.next_s()


class _Hold:
    """A value that is ours alone, on those servers that took it."""

    def __init__(self, servers: _Servers, name: str, ttl_ms: int, value: str) -> None:
        self._servers = servers
        self._name = name
        self._ttl_ms = ttl_ms
        self._value = value

    def renew(self, timeout_s: float) -> bool:
        return self._servers.ask_for_majority(
            lambda client: client.run(_EXTEND, [self._name], [self._ttl_ms, self._value])
        )

    def end(self, timeout_s: float) -> None:
        # Where a majority has given it back others can have it; what is left on the rest runs out there.
        self._servers.ask_majority(lambda client: client.run(_RELEASE, [self._name], [self._value]))


def _holders(servers: _Servers, look: Callable[[RedisClient], list[tuple[str, str, int]]]) -> list[Contender]:
    """The owner that a majority of the servers names: name, value, and remaining TTL in ms."""
    seen = [one for answer in servers.ask(look) for one in answer]
    left_ms = {(name, value): left for name, value, left in seen}
    found = []
    for (name, value), count in Counter((name, value) for name, value, _ in seen).items():
        owner, waited_s = parse_owner(value)
        if count >= servers.majority and "id" in owner:  # else it is another program's
            left_s = max(0, left_ms[name, value]) / 1000
            found.append(Contender(f"{name}/{owner.pop('id')}", 0, owner, waited_s, left_s, holds=True))
    return sorted(found, key=lambda one: one.key)


class RedlockBackend(LockBackend):
    """Three or more independent servers, best an odd number.

    `urls`: of redis-py's form, in a list or separated by commas; for the rest see `Options`. A call to one of the
    servers has half a second at most.
    """

    name = "redlock"
    guarantees = Guarantees(survives_silence=True, survives_restart=True)

    def __init__(self, urls: Sequence[str] | str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        urls = urls.split(",") if isinstance(urls, str) else urls
        if len(urls) < _SERVERS_MIN:
            raise ConfigurationError(f"a majority that can be lost needs {_SERVERS_MIN} servers at least")
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
    def lock(self, name: str) -> RedlockLock:
        return RedlockLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        def look(client: RedisClient) -> list[tuple[str, str, int]]:
            with client.commands() as redis:
                names = [name for name in redis.scan_iter(count=_MANY, _type="string") if name.startswith(prefix)]
                return [(name, value, redis.pttl(name)) for name in names if (value := redis.get(name))]

        return _holders(self.servers, look)

    @override
    def ping(self, timeout_s: float) -> None:
        self.servers.ask(lambda client: client.ping(timeout_s))

    @override
    def _disconnect(self) -> None:
        self.renewer.close()  # it asks them, on threads that are about to end
        self.servers.close()

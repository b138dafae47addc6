"""Redlock: a lock that the majority of several independent Redis servers has given.

Source: S. Sanfilippo, "Distributed Locks with Redis" (redis.io). Read M. Kleppmann, "How to do distributed locking",
too: it rests on clocks and gives no fencing token, so the store can only be guarded by comparing what was read.
"""

import json
import random
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from app.common.blocking import Waiters
from app.errors import ConfigurationError, LockUnavailable
from app.locks.backend import Guarantees, LockBackend, Portrait
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant, read_who, who
from app.locks.redis.client import RedisClient, Script
from app.locks.renewer import Renewer
from app.locks.waiting import Wait, Wake

_EXTEND: Final = Script("redlock_extend.lua")
_RELEASE: Final = Script("redlock_release.lua")
_DRIFT: Final = 0.01  # how much faster a server's clock may run than ours, as part of the TTL
_DRIFT_S: Final = 0.002
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.1
_SERVERS_MIN: Final = 3
_MANY: Final = 1000


class _Servers:
    """The servers, asked all at once."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self._clients = [RedisClient(url, timeout_s=timeout_s) for url in urls]
        self.majority = len(urls) // 2 + 1
        self._threads = ThreadPoolExecutor(max_workers=16 * len(urls), thread_name_prefix="seckill-redlock")

    def ask(self, question: Callable[[RedisClient], Any]) -> list[Any]:
        """The answers of those that could be asked. Raises `LockUnavailable` if that was no majority."""
        asked = [self._threads.submit(question, client) for client in self._clients]
        answers, failure = [], None
        for one in asked:
            try:
                answers.append(one.result())
            except LockUnavailable as error:
                failure = error
        if len(answers) < self.majority:
            raise LockUnavailable(f"only {len(answers)} of {len(asked)} servers can be asked: {failure}") from failure
        return answers

    def ask_everybody(self, question: Callable[[RedisClient], Any]) -> None:
        """The same; raises `LockUnavailable` if a single one could not be asked, after the others were."""
        asked = [self._threads.submit(question, client) for client in self._clients]
        failures = [error for one in asked if isinstance(error := one.exception(), LockUnavailable)]
        if failures:
            raise failures[0]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._threads.shutdown()


class RedlockLock(DistributedLock):
    """Re-entrant; not fair, no token. Who can't have it gives back what they got of it, and tries again soon."""

    def __init__(
        self, servers: _Servers, renewer: Renewer, waiters: Waiters, name: str, *, ttl_s: float, instance: str
    ) -> None:
        super().__init__(name)
        self._servers = servers
        self._renewer = renewer
        self._waiters = waiters
        self._ttl_ms = round(ttl_s * 1000)
        self._valid_s = ttl_s * (1 - _DRIFT) - _DRIFT_S
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        wake = Wake()
        with self._waiters.waiting(wake.set):
            forget = wait.cancel.subscribe(wake.set)
            try:
                return self._wait_for(wait, wake, abandoned)
            finally:
                forget()

    def _wait_for(self, wait: Wait, wake: Wake, abandoned: Callable[[], bool]) -> Grant:
        pause_s = _FIRST_PAUSE_S
        answered_at = None
        while True:
            if self._waiters.closing:
                raise LockUnavailable("the connections to the Redis servers are closed")
            if wait.cancel.is_set():
                wait.check(self.name)
            try:
                grant = self._attempt(abandoned)
                if grant is not None:
                    return grant
                answered_at = time.monotonic()
                wait.check(self.name)
            except LockUnavailable:
                # A majority that is away for a moment costs nobody who waits their wait.
                if answered_at is None or time.monotonic() - answered_at > self._ttl_ms / 1000:
                    raise
            # By chance: two who have half of the servers each would else do the same again.
            wake.wait(min(wait.left_s, pause_s * random.uniform(0.5, 1.5)))  # noqa: S311 - no secret
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _attempt(self, abandoned: Callable[[], bool]) -> Grant | None:
        value = json.dumps({"id": uuid.uuid4().hex} | who(self._instance), separators=(",", ":"))
        name, ttl_ms, servers = self.name, self._ttl_ms, self._servers

        def renew(_: float) -> bool:
            answers = servers.ask(lambda client: client.run(_EXTEND, [name], [ttl_ms, value]))
            return sum(map(bool, answers)) >= servers.majority

        def end(_: float) -> None:
            servers.ask_everybody(lambda client: client.run(_RELEASE, [name], [value]))

        def take(client: RedisClient) -> bool:
            with client.commands() as redis:
                return bool(redis.set(name, value, nx=True, px=ttl_ms))

        lease = Lease(name, self._valid_s, asked_at=time.monotonic(), renew=renew, end=end, abandoned=abandoned)
        try:
            got = sum(servers.ask(take))
        except BaseException:
            self._renewer.end(lease)  # some may have given it
            raise
        if got >= servers.majority and not lease.lost:
            self._renewer.keep(lease)
            return Grant(f"{name}/{json.loads(value)['id']}", 0, "redlock", lease)
        if got:
            self._renewer.hand_back(lease, 0)
        return None

    def _give_back(self, grant: Grant) -> None:
        self._renewer.hand_back(grant.lease, 0)

    def contenders(self) -> list[Contender]:
        """Who holds it."""

        def look(client: RedisClient) -> list[tuple[str, str, int]]:
            with client.commands() as redis:
                value = redis.get(self.name)
                return [(self.name, value, redis.pttl(self.name))] if value else []

        return _holders(self._servers, look)


def _holders(servers: _Servers, look: Callable[[RedisClient], list[tuple[str, str, int]]]) -> list[Contender]:
    """Who has a majority, of what the servers say: name, value, and what is left of the TTL in ms."""
    seen = [one for answer in servers.ask(look) for one in answer]
    left_ms = {(name, value): left for name, value, left in seen}
    found = []
    for (name, value), count in Counter((name, value) for name, value, _ in seen).items():
        owner, waited_s = read_who(value)
        if count >= servers.majority and "id" in owner:  # else it is somebody else's
            left_s = max(0, left_ms[name, value]) / 1000
            found.append(Contender(f"{name}/{owner.pop('id')}", 0, owner, waited_s, left_s, holds=True))
    return sorted(found, key=lambda one: one.key)


class RedlockBackend(LockBackend):
    """Three or more independent servers, best an odd number. `timeout_s`: deadline of a call to one of them."""

    name = "redlock"
    guarantees = Guarantees(survives_silence=True, survives_restart=True)
    portrait = Portrait(
        works=(
            "The same key is set on several servers that know nothing of each other; whoever has the majority within "
            "the TTL, less what the clocks may drift, has the lock, and else gives back what they got and tries again."
        ),
        costs="1 call to each server to acquire, 1 to release; for a wait as much for each attempt",
        fails=(
            "if clocks jump, or a server forgets what it gave and comes back at once, two may have it, and there is no "
            "token by which a store could tell; with the majority away nobody gets it"
        ),
        choose="if there are independent Redis servers and nothing better; with `SECKILL_GUARD=compare`",
    )

    def __init__(
        self,
        urls: Sequence[str] | str,
        *,
        ttl_s: float = 5.0,
        renew_ratio: float = 1 / 3,
        instance: str | None = None,
        timeout_s: float = 0.5,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(Renewer(ratio=renew_ratio, told=told))
        urls = urls.split(",") if isinstance(urls, str) else urls
        if len(urls) < _SERVERS_MIN:
            raise ConfigurationError(f"a majority that can be lost needs {_SERVERS_MIN} servers at least")
        self._servers = _Servers(urls, min(timeout_s, ttl_s * renew_ratio / 2))
        self._waiters = Waiters()
        self._ttl_s = ttl_s
        self._instance = instance or socket.gethostname()

    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; each call makes an object of its own."""
        return RedlockLock(self._servers, self.renewer, self._waiters, name, ttl_s=self._ttl_s, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """Who holds the locks whose names begin with `prefix`."""

        def look(client: RedisClient) -> list[tuple[str, str, int]]:
            with client.commands() as redis:
                names = [name for name in redis.scan_iter(count=_MANY, _type="string") if name.startswith(prefix)]
                return [(name, value, redis.pttl(name)) for name in names if (value := redis.get(name))]

        return _holders(self._servers, look)

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless a majority answers."""

        def ping(client: RedisClient) -> None:
            with client.commands() as redis:
                redis.ping()

        self._servers.ask(ping)

    def close(self) -> None:
        """Close the connections and stop renewing. Those who wait leave first."""
        self._waiters.send_away()
        self.renewer.close()
        self._servers.close()

"""The Redis lock: a key with a TTL, in the layout of Redisson's RLock, so that Java services share it."""

import json
import math
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from app.errors import LockUnavailable
from app.locks.backend import Guarantees, LockBackend, Portrait
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant, read_who, who
from app.locks.redis.client import RedisClient, Script
from app.locks.renewer import Renewer
from app.locks.waiting import AWAY_PAUSE_S, Wait, Wake

_TAKE: Final = Script("take.lua")
_RENEW: Final = Script("renew.lua")
_RELEASE: Final = Script("release.lua")
_REPLACE: Final = Script("replace.lua")
TOKENS: Final = "seckill_lock_tokens"  # one counter for all locks: their tokens can be compared
OWNER: Final = "seckill_lock_owner:"
_SHORTEST_PAUSE_S: Final = 0.005
LOOK_AGAIN_S: Final = 1.0  # for what no message tells: a lock that was deleted by hand
_MANY: Final = 1000


class Hold:
    """One owner's hold of a lock, as its lease sees it. It doesn't know the lock, so that that can become garbage."""

    def __init__(self, client: RedisClient, name: str, owner: str, ttl_ms: int) -> None:
        self.client = client
        self.name = name
        self.owner = owner
        self.channel = redisson("redisson_lock__channel", name)
        self.uncertain = False  # whether a try is out that may have got it
        self._ttl_ms = ttl_ms

    def renew(self) -> bool:
        """Another TTL, if it is still ours."""
        keys = [self.name, OWNER + self.name]
        return bool(self.client.run(_RENEW, keys, [self._ttl_ms, self.owner], brief=True))

    def end(self) -> None:
        """Give it back, if it is still ours."""
        self.client.run(_RELEASE, [self.name, OWNER + self.name], [self.owner, self.channel], brief=True)


class RedisLock(DistributedLock):
    """Re-entrant, fenced by a counter, not fair: when it is given back all who wait try at once.

    Those who wait subscribe to Redisson's channel for it. A failover to a replica that did not have it yet, or a store
    that lost its last second, gives it twice: that is what the token is for.

    >>> with RedisBackend("redis://127.0.0.1:6379").lock("orders") as grant:
    ...     store.write(..., token=grant.token)
    """

    hold_kind: type[Hold] = Hold

    def __init__(self, client: RedisClient, renewer: Renewer, name: str, *, ttl_s: float, instance: str) -> None:
        super().__init__(name)
        self._client = client
        self._renewer = renewer
        self._ttl_s = ttl_s
        self._ttl_ms = math.ceil(ttl_s * 1000)
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        hold = self._hold(self._client.new_owner())
        wake = Wake()
        with self._client.waiters.waiting(
            wake.set
        ):  # until we have withdrawn: a place is given up before all is closed
            try:
                return self._wait_for(hold, wait, wake, abandoned)
            except BaseException:
                self._withdraw(hold)
                raise

    def _wait_for(self, hold: Hold, wait: Wait, wake: Wake, abandoned: Callable[[], bool]) -> Grant:
        with ExitStack() as listening:
            listening.callback(wait.cancel.subscribe(wake.set))
            heard = False
            answered_at = 0.0
            while True:
                self._check(wait)
                try:
                    taken = self._attempt(hold, abandoned)
                    if isinstance(taken, Grant):
                        return taken
                    answered_at = time.monotonic()
                    self._check(wait, over=True)
                    if not heard:
                        listening.enter_context(self._client.listening(self._channel_of(hold.owner), wake.set))
                        heard = True
                        continue  # it may have been given back before we listened
                    wake.wait(min(wait.left_s, self._pause_s(taken)))
                except LockUnavailable:
                    # One that is away for a moment costs nobody who waits their wait.
                    if self._client.waiters.closing or time.monotonic() - answered_at > self._ttl_s:
                        raise
                    wake.wait(min(AWAY_PAUSE_S, wait.left_s))

    def _check(self, wait: Wait, *, over: bool = False) -> None:
        """Raise if there is no reason to wait; the first attempt is made whatever the wait is."""
        if self._client.waiters.closing:
            raise LockUnavailable("the connection to Redis is closed")
        if over or wait.cancel.is_set():
            wait.check(self.name)

    def _attempt(self, hold: Hold, abandoned: Callable[[], bool]) -> Grant | float:
        """The grant, or for how many seconds somebody else has it at most, as far as one can see."""
        lease = self._lease(hold, abandoned)
        hold.uncertain = True
        token, left_or_source = self._ask(hold.owner)
        if token:
            self._renewer.keep(lease)
            return Grant(lease.name, int(token), f"redis:{left_or_source}", lease)
        hold.uncertain = False
        left_ms = int(left_or_source)
        return left_ms / 1000 if left_ms >= 0 else LOOK_AGAIN_S

    def _lease(self, hold: Hold, abandoned: Callable[[], bool] = lambda: False) -> Lease:
        return Lease(
            f"{self.name}/{hold.owner}",
            self._ttl_s,
            asked_at=time.monotonic(),
            renew=lambda _: hold.renew(),
            end=lambda _: hold.end(),
            abandoned=abandoned,
        )

    def _ask(self, owner: str) -> Any:
        return self._client.run(_TAKE, [self.name, TOKENS, OWNER + self.name], self._claim(owner))

    def _claim(self, owner: str) -> list[str | int]:
        return [self._ttl_ms, owner, json.dumps(who(self._instance)), uuid.uuid4().hex]

    def _hold(self, owner: str) -> Hold:
        return self.hold_kind(self._client, self.name, owner, self._ttl_ms)

    def _give_back(self, grant: Grant) -> None:
        self._renewer.hand_back(grant.lease, self._client.timeout_s)

    def contenders(self) -> list[Contender]:
        """Who holds it. Those who wait are not known to the server."""
        with self._client.commands() as redis:
            return contender(redis, self.name)

    def _channel_of(self, owner: str) -> str:
        """Where one is told that it is free: a pattern."""
        return literally(redisson("redisson_lock__channel", self.name))

    def _pause_s(self, left_s: float) -> float:
        """Until one looks again by oneself, when the lease of the holder has so much left."""
        return max(_SHORTEST_PAUSE_S, min(LOOK_AGAIN_S, left_s))

    def _withdraw(self, hold: Hold) -> None:
        """Leave nothing behind. One who only waits has nothing on the server."""
        if hold.uncertain:
            self._renewer.end(self._lease(hold))


class RedisBackend(LockBackend):
    """One pool of connections, a listening one, and one renewal thread, for all locks of a process.

    `timeout_s`: deadline of a call; `instance`: who we are for people, the host's name by default; `told`: hears of
    renewals (see `Renewer`).
    """

    name = "redis"
    guarantees = Guarantees(fencing=True, survives_silence=True, survives_restart=True, remembers=True)
    portrait = Portrait(
        works=(
            "A hash with a TTL under the lock's name, whose one field is its owner: Redisson's RLock, so Java "
            "services that use getLock share it. A script takes it if it is free, and counts up one counter for all "
            "locks: the token. It is renewed at a third of its TTL. Giving it back publishes a message, to which all "
            "who wait have subscribed; all of them try, one gets it."
        ),
        costs="1 call to acquire, 1 to release; for a wait 1 to subscribe and 1 for each attempt",
        fails=(
            "a server that forgets (no `appendfsync always`, a failover to a late replica) gives it twice, and the "
            "token may repeat: the store then refuses one of the two; a dead holder stands in the way for a TTL; "
            "somebody may wait for long, as others are quicker each time"
        ),
        choose="if Redis is there anyway, speed matters more than turns, or Java services hold the same lock",
    )
    _lock_kind: type[RedisLock] = RedisLock

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 5.0,
        renew_ratio: float = 1 / 3,
        instance: str | None = None,
        timeout_s: float = 2.0,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(Renewer(ratio=renew_ratio, told=told))
        self._client = RedisClient(url, timeout_s=timeout_s, brief_s=ttl_s * renew_ratio / 2)
        self._ttl_s = ttl_s
        self._instance = instance or socket.gethostname()

    def lock(self, name: str) -> RedisLock:
        """The lock of that name; each call makes an object of its own."""
        return self._lock_kind(self._client, self.renewer, name, ttl_s=self._ttl_s, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """Who holds the locks whose names begin with `prefix`. Looks at all keys of the server."""
        found: list[Contender] = []
        with self._client.commands() as redis:
            for name in redis.scan_iter(match=literally(prefix) + "*", count=_MANY, _type="hash"):
                found += self._queue(redis, name)
        return sorted(found, key=lambda one: one.key.rpartition("/")[0])

    def _queue(self, redis: Any, name: str) -> list[Contender]:
        return contender(redis, name)

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the server answers."""
        with self._client.commands() as redis:
            redis.ping()

    def newest(self, name: str, timeout_s: float) -> tuple[str, int]:
        """The counter of its tokens. Raises `LockUnavailable`."""
        with self._client.commands() as redis:
            redis.hsetnx(TOKENS, "source", uuid.uuid4().hex)
            source, token = redis.hmget(TOKENS, "source", "token")
        return f"redis:{source}", int(token or 0)

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """Keep texts as the values of the keys that are named so."""
        args: list[str] = []
        for name, mark in marks.items():
            args += ["1" if name in instead_of else "", instead_of.get(name, ""), mark]
        done = self._client.run(_REPLACE, list(marks), args)
        return {name for name, put in zip(marks, done, strict=True) if put}

    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """What is kept under these keys."""
        with self._client.commands() as redis:
            values = redis.mget(names) if names else []
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def close(self) -> None:
        """Close the connections and stop renewing. Those who wait leave first."""
        self._client.close()
        self.renewer.close()


def redisson(what: str, name: str) -> str:
    """What Redisson calls the things that belong to a lock."""
    return f"{what}:{name}" if "{" in name else f"{what}:{{{name}}}"


def literally(text: str) -> str:
    """A pattern that means just this text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def contender(redis: Any, name: str) -> list[Contender]:
    """Who holds it, if anybody does."""
    owner = next(iter(redis.hkeys(name)), None)
    if owner is None:
        return []
    text, token = redis.hmget(OWNER + name, "who", "token")
    left_ms = redis.pttl(name)
    described, waited_s = read_who(text)  # nothing, of a lock that Redisson took
    return [
        Contender(
            key=f"{name}/{owner}",
            token=int(token or 0),
            owner=described,
            waited_s=waited_s,
            ttl_left_s=left_ms / 1000 if left_ms >= 0 else None,
            holds=True,
        )
    ]

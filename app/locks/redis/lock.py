"""The Redis lock: a key with a TTL, in the layout of Redisson's RLock, so that Java services share it."""

import math
import re
import uuid
from typing import Any, Final, Self

from typing_extensions import Unpack, override

from app.errors import LockUnavailable
from app.locks.attempt import Attempt
from app.locks.backend import Guarantees, LockBackend, Options
from app.locks.contender import Contender, describe, parse_owner
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.redis.client import RedisClient, Script
from app.locks.url import LockUrl
from app.locks.waiting import Wait

_TAKE: Final = Script("take.lua")
_RENEW: Final = Script("renew.lua")
_RELEASE: Final = Script("release.lua")
TOKENS: Final = "seckill_lock_tokens"  # one counter for all locks: their tokens can be compared
OWNER: Final = "seckill_lock_owner:"
_SHORTEST_PAUSE_S: Final = 0.005
_LOOK_AGAIN_S: Final = 1.0  # for what no message tells: a lock that was deleted by hand
_DEAF_S: Final = 0.1
_MANY: Final = 1000


class RedisLock(DistributedLock["RedisBackend"]):
    """Re-entrant, fenced by a counter, not fair: when it is given back all waiters try at once.

    Waiters subscribe to Redisson's channel for it. A failover to a replica that did not have it yet, or a server that
    lost its last second, gives it twice: that is what the token is for.

    >>> with connect("redis://127.0.0.1:6379").lock("orders") as grant:
    ...     store.write(..., token=grant.token)
    """

    @override
    def _attempt(self) -> "RedisAttempt":
        return RedisAttempt(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        with self._backend.client.commands() as redis:
            return self._backend.queue(redis, self.name)


class RedisAttempt(Attempt["RedisBackend"]):
    """Take it if it is free, else wait for the message of its release. Its hold is what it has on the server."""

    def __init__(self, backend: "RedisBackend", name: str) -> None:
        super().__init__(backend, name)
        self._client = backend.client
        self._owner = self._client.new_owner()
        self._channel = redisson("redisson_lock__channel", name)
        self._ttl_ms = math.ceil(backend.ttl_s * 1000)
        self._who = describe(backend.instance)
        self._listening = False

    @override
    def take(self, wait: Wait) -> Grant | float:
        lease = self.lease = Lease(f"{self.name}/{self._owner}", self, self.backend.ttl_s)
        claim: list[str | int] = [self._ttl_ms, self._owner, self._who, uuid.uuid4().hex]
        token, left_or_source = self._ask(claim)
        if token:
            self.backend.renewer.keep(lease)
            return Grant(lease.name, int(token), f"redis:{left_or_source}", lease)
        self._refused()
        if not self._listening and wait.left_s:
            try:
                self.cleanup.callback(self._client.listen(self._pattern(), self.wake.set))
            except LockUnavailable:
                return _DEAF_S  # messages only make it quicker
            self._listening = True
            return 0.0  # it may have been given back before we listened
        return self._pause_s(int(left_or_source))

    def _ask(self, claim: list[str | int]) -> Any:
        return self._client.run(_TAKE, [self.name, TOKENS, OWNER + self.name], claim)

    def _refused(self) -> None:
        self.lease = None  # nothing of ours is on the server

    def _pause_s(self, left_ms: int) -> float:
        """Until we look again by ourselves, when the lease of the holder has so much left (below 0: for ever)."""
        return max(_SHORTEST_PAUSE_S, min(_LOOK_AGAIN_S, left_ms / 1000)) if left_ms >= 0 else _LOOK_AGAIN_S

    def _pattern(self) -> str:
        """The channels where we are told that it is free."""
        return literally(self._channel)

    def renew(self, timeout_s: float) -> bool:
        """Another TTL, if it is still ours."""
        return bool(self._client.run(_RENEW, [self.name, OWNER + self.name], [self._ttl_ms, self._owner], brief=True))

    def end(self, timeout_s: float) -> None:
        """Give it back, if it is still ours."""
        self._client.run(_RELEASE, [self.name, OWNER + self.name], [self._owner, self._channel], brief=True)


class RedisBackend(LockBackend):
    """One pool of connections, a listening one, and one renewal thread, for all locks of a process.

    `url`: `redis://`, `rediss://` or `unix://`, as redis-py has it. For the rest see `Options`.
    """

    name = "redis"
    guarantees = Guarantees(fencing=True, survives_silence=True, survives_restart=True)

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        brief_s = self.ttl_s * options.get("renew_ratio", 1 / 3) / 2
        self.client = RedisClient(url, timeout_s=self.timeout_s, brief_s=brief_s)

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        return cls(f"{url.scheme.partition('+')[0]}://{url.rest}", **options)

    @override
    def lock(self, name: str) -> RedisLock:
        return RedisLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        """As `LockBackend` says. Looks at all keys of the server."""
        found: list[Contender] = []
        with self.client.commands() as redis:
            for name in redis.scan_iter(match=literally(prefix) + "*", count=_MANY, _type="hash"):
                found += self.queue(redis, name)
        return sorted(found, key=lambda one: one.key.rpartition("/")[0])

    def queue(self, redis: Any, name: str) -> list[Contender]:
        """The holder, if there is one. The waiters are not known to the server."""
        owner = next(iter(redis.hkeys(name)), None)
        if owner is None:
            return []
        text, token = redis.hmget(OWNER + name, "who", "token")
        left_ms = redis.pttl(name)
        described, waited_s = parse_owner(text)  # nothing, of a lock that Redisson took
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

    @override
    def ping(self, timeout_s: float) -> None:
        self.client.ping(timeout_s)

    @override
    def _disconnect(self) -> None:
        self.client.close()


def redisson(what: str, name: str) -> str:
    """What Redisson calls the things that belong to a lock."""
    return f"{what}:{name}" if "{" in name else f"{what}:{{{name}}}"


def literally(text: str) -> str:
    """A pattern that means just this text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)

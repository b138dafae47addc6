"""The Redis lock: a key with a TTL, in the layout of Redisson's RLock, so that Java services share it."""

import math
import re
import uuid
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

from ..connection import Attempt, Connection, Terms
from ..contender import Contender, describe, parse_owner
from ..errors import LockUnavailable, NoLock
from ..grant import Grant
from ..lease import Lease
from ..waiting import Wait
from .client import RedisClient, Script, Ticket

_TAKE: Final = Script("take.lua")
_RENEW: Final = Script("renew.lua")
_RELEASE: Final = Script("release.lua")
TOKENS: Final = "fencelock_tokens"
OWNER: Final = "fencelock_owner:"
WAITING: Final = "fencelock_waiting:"
_SHORTEST_PAUSE_S: Final = 0.005
_LOOK_AGAIN_S: Final = 1.0  # as no message reports a lock that was deleted by hand
_DEAF_S: Final = 0.1
_MANY: Final = 1000


class RedisHold:
    """A contender's own name on the server: of the lock's owner, or in its queue. It is used for one place only.

    `observers`: the channel on which an election's observers hear of the end, if any.
    """

    def __init__(self, connection: "RedisConnection", name: str, ttl_ms: int, observers: str) -> None:
        self.owner = connection.client.new_owner()
        self._connection = connection
        self._name = name
        self._ttl_ms = ttl_ms
        self._observers = observers

    async def renew(self, timeout_s: float) -> bool:
        """Ask for another TTL, if the lock is still ours."""
        keys = [self._name, self._connection.beside(OWNER, self._name)]
        try:
            return bool(await self._connection.client.run(_RENEW, keys, [self._ttl_ms, self.owner], timeout_s))
        except NoLock:  # it was written over
            return False

    async def end(self, timeout_s: float) -> None:
        """Give back the lock, if it is still ours, or the place in the queue."""
        with suppress(NoLock):
            await self._connection.give_back(self._name, self.owner, timeout_s)
        if self._observers:
            with suppress(LockUnavailable):
                await self._connection.client.do("publish", self._observers, "0", timeout_s=timeout_s)


class RedisAttempt(Attempt["RedisConnection"]):
    """Takes the lock if it is free, else waits for the message of its release, on Redisson's channel.

    Not fair: a newcomer at the right moment is faster than a waiter. After a failover to a replica that did not have
    the lock yet, or if the server lost its last second, the lock is given twice, and only the token protects the data.
    """

    def __init__(self, connection: "RedisConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._client = connection.client
        self._hold: RedisHold
        self._channel = redisson("redisson_lock__channel", name)
        self._ttl_ms = math.ceil(ttl_s * 1000)
        self._who = describe(connection.terms.instance)
        self._ticket: Ticket | None = None
        self.observers = ""  # the channel on which an election's observers hear of the end

    @override
    async def take(self, wait: Wait) -> Grant | float:
        if self.lease is None:
            self._hold = RedisHold(self.connection, self.name, self._ttl_ms, self.observers)
        lease = self.lease = Lease(f"{self.name}/{self._hold.owner}", self._hold, self.ttl_s)
        claim: list[str | int] = [self._ttl_ms, self._hold.owner, self._who, uuid.uuid4().hex]
        if self._ticket is not None:
            self._ticket.only = self._only()
            self._ticket.woken = False  # this look may miss releases from here on, but their messages come
        try:
            token, left_or_source = await self._ask(claim, wait.call_s(self.timeout_s))
        except BaseException:
            if self._ticket is not None:
                self._ticket.woken = True
            raise
        if token:
            self.renewer.keep(lease)
            return Grant(lease.name, int(token), f"redis:{left_or_source}", lease)
        self._refused()
        if self._ticket is None and wait.left_s:
            listener, pattern = self._client.listener, self._pattern()
            try:
                timeout_s = wait.call_s(self.timeout_s)
                ticket = self._ticket = await listener.listen(pattern, self.wake, self._only(), timeout_s=timeout_s)
            except LockUnavailable:
                return _DEAF_S  # messages only make it quicker
            self.cleanup.callback(lambda: listener.leave(pattern, ticket))
            return 0.0  # it may have been given back before we listened
        return self._pause_s(int(left_or_source))

    async def _ask(self, claim: list[str | int], timeout_s: float) -> Any:
        return await self._client.run(_TAKE, self.connection.keys(self.name), claim, timeout_s)

    def _refused(self) -> None:
        self.lease = None  # nothing of ours is on the server

    def _pause_s(self, left_ms: int) -> float:
        """Return the pause before the next look, if the holder's lease has that much left (below 0: no end)."""
        again_s = _LOOK_AGAIN_S * self.connection.waiters.crowd
        return max(_SHORTEST_PAUSE_S, min(again_s, left_ms / 1000)) if left_ms >= 0 else again_s

    def _pattern(self) -> str:
        """Return the pattern of the channels that announce a free lock."""
        return literally(self._channel)

    def _only(self) -> str:
        """Return the channel that is for this attempt alone; empty if all attempts share theirs."""
        return ""


class RedisConnection(Connection):
    """A client of one server."""

    release = _RELEASE

    def __init__(self, terms: Terms, url: str) -> None:
        super().__init__(terms)
        self.client = RedisClient(url, terms.timeout_s)

    @override
    def attempt(self, name: str, ttl_s: float) -> RedisAttempt:
        return RedisAttempt(self, name, ttl_s)

    def beside(self, what: str, name: str) -> str:
        """Return another key of a lock, which in a Cluster is in the same slot."""
        return redisson(what.rstrip(":"), name) if self.client.clustered else what + name

    def keys(self, name: str) -> list[str]:
        """Return the keys of a lock, of the counter of its tokens, and of its owner's description."""
        # One counter for all, so that their tokens can be compared; but in a Cluster each name has a source of its own.
        tokens = redisson(TOKENS, name) if self.client.clustered else TOKENS
        return [name, tokens, self.beside(OWNER, name)]

    @override
    async def force_release(self, name: str) -> Contender | None:
        while had := next((one for one in await self.queue(name) if one.holds), None):
            if await self.give_back(name, had.key.removeprefix(f"{name}/")):
                return had
        return None

    async def give_back(self, name: str, owner: str, timeout_s: float | None = None) -> bool:
        """Give an owner's lock back and tell the waiters; return False if it was not that owner's."""
        keys = [name, self.beside(OWNER, name), *self.line(name)]
        channel = redisson("redisson_lock__channel", name)
        return bool(await self.client.run(self.release, keys, [owner, channel], timeout_s))

    def line(self, name: str) -> list[str]:
        """Return the keys of the lock's queue."""
        return []

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        """As `Connection.contenders`. Scans all keys of the server."""
        found: list[Contender] = []
        for name in await names_under(self.client, prefix, "hash"):
            if not name.startswith((TOKENS, OWNER, WAITING)):
                found += await self.queue(name)
        return sorted(found, key=lambda one: one.key.rpartition("/")[0])

    @override
    async def queue(self, name: str) -> list[Contender]:
        """Return the holder, if there is one. The server doesn't know the waiters."""
        do = self.client.do
        owner = next(iter(await do("hkeys", name)), None)
        if owner is None:
            return []
        text, token, holder = await do("hmget", self.beside(OWNER, name), "who", "token", "holder")
        if holder != owner:  # a former owner's: Redisson doesn't delete it
            text, token = None, None
        left_ms = await do("pttl", name)
        described, waited_s = parse_owner(text)  # empty for a lock that Redisson took
        left_s = left_ms / 1000 if left_ms >= 0 else None
        return [Contender(f"{name}/{owner}", int(token or 0), described, waited_s, left_s, holds=True)]

    @override
    async def ping(self, timeout_s: float) -> None:
        await self.client.ping(timeout_s)

    @override
    async def disconnect(self) -> None:
        await self.client.close()


async def names_under(client: RedisClient, prefix: str, kind: str) -> list[str]:
    """Return the keys of a kind whose names begin with `prefix`. Scans all keys of the server."""
    names: set[str] = set()
    for node in await client.nodes():
        cursor: Any = 0
        while True:
            cursor, page = await client.do("scan", cursor, literally(prefix) + "*", _MANY, _type=kind, **node)
            names.update(page)
            cursor = next(iter(cursor.values())) if isinstance(cursor, dict) else cursor
            if not cursor:
                break
    return sorted(names)


def redisson(what: str, name: str) -> str:
    """Return Redisson's name for something that belongs to a lock."""
    return f"{what}:{name}" if "{" in name else f"{what}:{{{name}}}"


def literally(text: str) -> str:
    """Return a pattern that matches just this text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)

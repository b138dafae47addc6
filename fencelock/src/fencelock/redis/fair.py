"""The fair Redis lock: a queue beside the key, in the layout of Redisson's RFairLock."""

import math
import re
from dataclasses import replace
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from ..backend import LASTING
from ..connection import Connection, Options, Terms
from ..contender import Contender, parse_owner
from ..errors import ConfigurationError
from ..url import LockUrl
from .backend import RedisBackend
from .client import Script
from .lock import WAITING, RedisAttempt, RedisConnection, literally, redisson

_TAKE: Final = Script("fair_line.lua", "fair_take.lua")
_LEAVE: Final = Script("fair_line.lua", "fair_leave.lua")
_OURS: Final = re.compile(r"(\d{1,15}) (.*)", re.ASCII | re.DOTALL)
_OPTION: Final = "redisson_wait_s"
_REDISSON_WAIT_S: Final = 300.0  # Redisson's default


class FairAttempt(RedisAttempt):
    """A try that is also a sign of life, without which a waiter loses its place. Only the first waiter is woken."""

    def __init__(self, connection: "RedisFairConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._redisson_wait_ms = math.ceil(connection.redisson_wait_s * 1000)

    @override
    async def _ask(self, claim: list[str | int], timeout_s: float) -> Any:
        keys = [*self.connection.keys(self.name), *self.connection.line(self.name)]
        return await self._client.run(_TAKE, keys, [*claim, self._redisson_wait_ms], timeout_s)

    @override
    def _refused(self) -> None:
        pass  # our place is on the server

    @override
    def _pause_s(self, left_ms: int) -> float:
        return min(super()._pause_s(left_ms), self.ttl_s / 3)

    @override
    def _pattern(self) -> str:
        # All waiters of this process share a pattern, so that a wait needs no subscription of its own.
        mine = f"{self._channel}:{self._client.id}:"
        return f"{literally(mine)}*"

    @override
    def _only(self) -> str:
        return f"{self._channel}:{self._hold.owner}"


class RedisFairConnection(RedisConnection):
    """As `RedisConnection`, with a queue."""

    release = _LEAVE

    def __init__(self, terms: Terms, url: str, redisson_wait_s: float) -> None:
        super().__init__(terms, url)
        self.redisson_wait_s = redisson_wait_s

    @override
    def line(self, name: str) -> list[str]:
        of_redisson = [redisson(what, name) for what in ("redisson_lock_queue", "redisson_lock_timeout")]
        return [*of_redisson, self.beside(WAITING, name)]

    @override
    def attempt(self, name: str, ttl_s: float) -> FairAttempt:
        return FairAttempt(self, name, ttl_s)

    @override
    async def queue(self, name: str) -> list[Contender]:
        """Return the holder, then the waiters that seem to be alive."""
        order, until, waiting = self.line(name)
        do = self.client.do
        owners = await do("lrange", order, 0, -1)
        seconds, micros = await do("time", **self.client.at(name))
        now_ms = seconds * 1000 + micros // 1000
        found = await super().queue(name)
        for owner in owners:
            # Our waiters write the end of their life, and their description. Others write what they like.
            ours = _OURS.fullmatch(await do("hget", waiting, owner) or "")
            until_ms = int(ours[1]) if ours else await do("zscore", until, owner)
            if until_ms is not None and until_ms > now_ms:
                described, waited_s = parse_owner(ours[2] if ours else None)
                left_s = (until_ms - now_ms) / 1000
                found.append(Contender(f"{name}/{owner}", 0, described, waited_s, left_s, holds=False))
        return found


class RedisFairBackend(RedisBackend):
    """As `RedisBackend`, with a queue.

    `redisson_wait_s`: the `fairLockWaitTimeout` of Redisson's clients that use the same locks, in seconds (300). Behind
    a Redisson client with a longer timeout, our waiters may lose their places; see fair_line.lua.
    """

    name = "redis-fair"
    guarantees = replace(LASTING, fair=True, shows_queue=True, forces_release=True)

    def __init__(self, url: str, *, redisson_wait_s: float = _REDISSON_WAIT_S, **options: Unpack[Options]) -> None:
        super().__init__(url, **options)
        if not 0 < redisson_wait_s < math.inf:
            raise ConfigurationError(f"{_OPTION} is a number of seconds above 0")
        self.redisson_wait_s = redisson_wait_s

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        rest, _, query = url.rest.partition("?")
        ours = f"{_OPTION}="
        theirs = "&".join(one for one in query.split("&") if not one.startswith(ours))  # redis-py's
        try:
            wait_s = float(url.options.get(_OPTION, _REDISSON_WAIT_S))
        except ValueError:
            wait_s = math.nan
        server = f"{url.scheme.replace('+fair', '')}://{rest}" + (f"?{theirs}" if theirs else "")
        return cls(server, redisson_wait_s=wait_s, **options)

    @override
    def connect(self) -> Connection:
        return RedisFairConnection(self.terms, self._url, self.redisson_wait_s)

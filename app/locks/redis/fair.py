"""The fair Redis lock: a queue beside the key, in the layout of Redisson's RFairLock."""

from typing import Any, Final

from ..backend import Guarantees
from ..compat import override
from ..contender import Contender, parse_owner
from .client import Script
from .lock import OWNER, TOKENS, RedisAttempt, RedisBackend, RedisLock, literally, redisson

_TAKE: Final = Script("fair_take.lua")
_LEAVE: Final = Script("fair_leave.lua")
_WAITING: Final = "fencelock_waiting:"


class RedisFairLock(RedisLock):
    """The Redis lock whose contenders get it in the order of their arrival. Only the first of them is woken."""

    @override
    def _attempt(self) -> "_FairAttempt":
        return _FairAttempt(self._backend, self.name, self.ttl_s)


class _FairAttempt(RedisAttempt):
    """Each try is also the sign of life without which a waiter loses its place."""

    @override
    async def _ask(self, claim: list[str | int]) -> Any:
        return await self._client.run(_TAKE, [self.name, TOKENS, OWNER + self.name, *_queue(self.name)], claim)

    @override
    def _refused(self) -> None:
        pass  # our place is on the server

    @override
    def _pause_s(self, left_ms: int) -> float:
        return min(super()._pause_s(left_ms), self.ttl_s / 3)

    @override
    def _pattern(self) -> str:
        # One for all waiters of this process, so that a wait needs no subscription of its own.
        mine = f"{self._channel}:{self._owner.rpartition(':')[0]}:"
        return f"{literally(mine)}*"

    @override
    async def end(self, timeout_s: float) -> None:
        """Give the lock back, if it is still ours, or the place."""
        keys = [self.name, OWNER + self.name, *_queue(self.name)]
        await self._client.run(_LEAVE, keys, [self._owner, self._channel], brief=True)


class RedisFairBackend(RedisBackend):
    """As `RedisBackend`, with a queue."""

    name = "redis-fair"
    guarantees = Guarantees(
        fair=True, fencing=True, survives_silence=True, survives_restart=True, survives_cut=True, shows_queue=True
    )

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> RedisFairLock:
        return RedisFairLock(self, name, ttl_s)

    @override
    async def queue(self, name: str) -> list[Contender]:
        """The holder, then the waiters, as far as they are believed to be alive."""
        order, until, waiting = _queue(name)
        do = self.client.do
        owners = await do("lrange", order, 0, -1)
        seconds, micros = await do("time")
        now_ms = seconds * 1000 + micros // 1000
        found = await super().queue(name)
        for owner in owners:
            until_ms = await do("zscore", until, owner)
            if until_ms is not None and until_ms > now_ms:
                described, waited_s = parse_owner(await do("hget", waiting, owner))
                found.append(
                    Contender(
                        key=f"{name}/{owner}",
                        token=0,
                        owner=described,
                        waited_s=waited_s,
                        ttl_left_s=(until_ms - now_ms) / 1000,
                        holds=False,
                    )
                )
        return found


def _queue(name: str) -> list[str]:
    return [redisson("redisson_lock_queue", name), redisson("redisson_lock_timeout", name), _WAITING + name]

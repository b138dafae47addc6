"""The fair Redis lock: a queue beside the key, in the layout of Redisson's RFairLock."""

from typing import Any, Final

from typing_extensions import override

from app.locks.backend import Guarantees
from app.locks.contender import Contender, parse_owner
from app.locks.redis.client import Script
from app.locks.redis.lock import OWNER, TOKENS, RedisAttempt, RedisBackend, RedisLock, literally, redisson

_TAKE: Final = Script("fair_take.lua")
_LEAVE: Final = Script("fair_leave.lua")
_WAITING: Final = "seckill_lock_waiting:"


class RedisFairLock(RedisLock):
    """The Redis lock whose contenders get it in the order of their arrival. Only the first of them is woken."""

    @override
    def _attempt(self) -> "_FairAttempt":
        return _FairAttempt(self._backend, self.name)


class _FairAttempt(RedisAttempt):
    """Each try is also the sign of life without which a waiter loses its place."""

    @override
    def _ask(self, claim: list[str | int]) -> Any:
        return self._client.run(_TAKE, [self.name, TOKENS, OWNER + self.name, *_queue(self.name)], claim)

    @override
    def _refused(self) -> None:
        pass  # our place is on the server

    @override
    def _pause_s(self, left_ms: int) -> float:
        return min(super()._pause_s(left_ms), self.backend.ttl_s / 3)

    @override
    def _pattern(self) -> str:
        # One for all waiters of this process, so that a wait needs no subscription of its own.
        mine = f"{self._channel}:{self._owner.rpartition(':')[0]}:"
        return f"{literally(mine)}*"

    @override
    def end(self, timeout_s: float) -> None:
        """Give the lock back, if it is still ours, or the place."""
        keys = [self.name, OWNER + self.name, *_queue(self.name)]
        self._client.run(_LEAVE, keys, [self._owner, self._channel], brief=True)


class RedisFairBackend(RedisBackend):
    """As `RedisBackend`, with a queue."""

    name = "redis-fair"
    guarantees = Guarantees(fair=True, fencing=True, survives_silence=True, survives_restart=True, shows_queue=True)

    @override
    def lock(self, name: str) -> RedisFairLock:
        return RedisFairLock(self, name)

    @override
    def queue(self, redis: Any, name: str) -> list[Contender]:
        """The holder, then the waiters, as far as they are believed to be alive."""
        order, until, waiting = _queue(name)
        owners = redis.lrange(order, 0, -1)
        seconds, micros = redis.time()
        now_ms = seconds * 1000 + micros // 1000
        found = super().queue(redis, name)
        for owner in owners:
            until_ms = redis.zscore(until, owner)
            if until_ms is not None and until_ms > now_ms:
                described, waited_s = parse_owner(redis.hget(waiting, owner))
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

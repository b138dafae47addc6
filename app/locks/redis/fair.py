"""The fair Redis lock: a queue beside the key, in the layout of Redisson's RFairLock."""

from typing import Any, Final

from app.locks.backend import Guarantees, Portrait
from app.locks.lock import Contender, read_who
from app.locks.redis.client import Script
from app.locks.redis.lock import OWNER, TOKENS, Hold, RedisBackend, RedisLock, contender, literally, redisson

_TAKE: Final = Script("fair_take.lua")
_LEAVE: Final = Script("fair_leave.lua")
_WAITING: Final = "seckill_lock_waiting:"


class FairHold(Hold):
    """The same, or a place in the queue."""

    def end(self) -> None:
        """Give it back, if it is still ours, or the place."""
        keys = [self.name, OWNER + self.name, *_queue(self.name)]
        self.client.run(_LEAVE, keys, [self.owner, self.channel], brief=True)


class RedisFairLock(RedisLock):
    """The Redis lock whose contenders get it in the order of their arrival. Only the first of them is woken."""

    hold_kind = FairHold

    def _ask(self, owner: str) -> Any:
        keys = [self.name, TOKENS, OWNER + self.name, *_queue(self.name)]
        return self._client.run(_TAKE, keys, self._claim(owner))

    def _pause_s(self, left_s: float) -> float:
        # Each attempt is the sign of life without which one loses one's place.
        return min(super()._pause_s(left_s), self._ttl_s / 3)

    def _channel_of(self, owner: str) -> str:
        # One pattern for all who wait here, so that a wait needs no subscription of its own.
        mine = f"{redisson('redisson_lock__channel', self.name)}:{owner.rpartition(':')[0]}:"
        return f"{literally(mine)}*"

    def _withdraw(self, hold: Hold) -> None:
        self._renewer.hand_back(self._lease(hold), self._client.timeout_s)

    def contenders(self) -> list[Contender]:
        """The holder, then the queue."""
        with self._client.commands() as redis:
            return queue(redis, self.name)


class RedisFairBackend(RedisBackend):
    """As `RedisBackend`, with a queue."""

    name = "redis-fair"
    guarantees = Guarantees(
        fair=True, fencing=True, survives_silence=True, survives_restart=True, shows_queue=True, remembers=True
    )
    portrait = Portrait(
        works=(
            "The Redis lock with a queue beside it, as Redisson's RFairLock has it: a list of those who wait, and "
            "until when each is believed to be alive. Only who is first may take the lock, and only they are told when "
            "it is given back. Those who wait give a sign of life with each attempt, so a dead one loses its place "
            "after a TTL."
        ),
        costs="1 call to acquire, 1 to release; for a wait 1 to subscribe and 1 for each sign of life",
        fails="as the Redis lock; a Redisson client that dies while it waits stands in the way for up to five minutes",
        choose="if Redis is there, and everybody must get their turn, or Java services use getFairLock",
    )
    _lock_kind = RedisFairLock

    def _queue(self, redis: Any, name: str) -> list[Contender]:
        return queue(redis, name)


def _queue(name: str) -> list[str]:
    return [redisson("redisson_lock_queue", name), redisson("redisson_lock_timeout", name), _WAITING + name]


def queue(redis: Any, name: str) -> list[Contender]:
    """The holder, then those who wait, as far as they are believed to be alive."""
    order, until, waiting = _queue(name)
    owners = redis.lrange(order, 0, -1)
    seconds, micros = redis.time()
    now_ms = seconds * 1000 + micros // 1000
    found = contender(redis, name)
    for owner in owners:
        until_ms = redis.zscore(until, owner)
        if until_ms is not None and until_ms > now_ms:
            described, waited_s = read_who(redis.hget(waiting, owner))
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

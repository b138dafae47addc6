"""An election in Redis: the owner of the lock, fair or not, leads, and its value is kept beside the lock."""

from itertools import count
from typing import Final

from typing_extensions import override

from ..election import Ballot, Leader, Lookout
from ..errors import LockUnavailable
from ..grant import Grant
from ..waiting import Wait, Wake
from .client import Script, Ticket
from .lock import OWNER, RedisConnection, literally

_SAY: Final = Script("say.lua")
_RECORD: Final = Script("record.lua")
RECORD: Final = "!record"  # the suffix of the key of a leader's record
_LEADER: Final = Script("leader.lua")
_LOOK_AGAIN_S: Final = 1.0  # as no message reports a leader that died
_DEAF_S: Final = 0.1


class RedisBallot(Ballot):
    """An election in Redis. A candidate leads from its first value on, which it writes right after the grant."""

    connection: RedisConnection

    def __init__(self, connection: RedisConnection, name: str) -> None:
        super().__init__(connection, name)
        self.channel = f"fencelock_election:{{{name}}}"
        self._client = connection.client
        tag = f"{{{name}}}" if connection.client.clustered and "{" not in name else name
        self._record = f"{tag}{RECORD}"
        self._numbers = count(1)  # of our leader's proclamations: a call that was given up may arrive after a later one

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        connection = self.connection
        attempt = connection.attempt(self.name, connection.terms.ttl_s)
        attempt.observers = self.channel
        grant = await attempt.until_granted(wait)
        try:
            if not await self.say(grant, value):
                raise LockUnavailable(f"{self.name}: the lead was lost as soon as it was had")
        except BaseException:
            await attempt.leave()
            raise
        return grant

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        name, tokens, owner = self.connection.keys(self.name)
        keys = [name, owner, tokens]
        return bool(await self._client.run(_SAY, keys, [self._owner(grant), value, self.channel, next(self._numbers)]))

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        keys = [self.name, self._record, self.connection.beside(OWNER, self.name)]
        return bool(await self._client.run(_RECORD, keys, [self._owner(grant), value, next(self._numbers)]))

    def _owner(self, grant: Grant) -> str:
        return grant.key.removeprefix(f"{self.name}/")

    @override
    async def recorded(self) -> str | None:
        found: str | None = await self._client.do("get", self._record)
        return found

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        keys = [self.name, self.connection.beside(OWNER, self.name)]
        found = await self._client.run(_LEADER, keys, [], timeout_s)
        if not found:
            return None
        owner, token, said, revision = found
        return Leader(f"{self.name}/{owner}", said, int(token), int(revision))

    @override
    def lookout(self, wake: Wake) -> Lookout:
        return _RedisLookout(self, wake)


class _RedisLookout:
    def __init__(self, ballot: RedisBallot, wake: Wake) -> None:
        self._waiters = ballot.connection.waiters
        self._listener = ballot.connection.client.listener
        self._pattern = literally(ballot.channel)
        self._wake = wake
        self._ticket: Ticket | None = None

    async def pause_s(self) -> float:
        if self._ticket is None:
            try:
                self._ticket = await self._listener.listen(self._pattern, self._wake, each=True)
            except LockUnavailable:
                return _DEAF_S
            return 0.0
        return _LOOK_AGAIN_S * self._waiters.crowd

    def close(self) -> None:
        if self._ticket is not None:
            self._listener.leave(self._pattern, self._ticket)

"""An election in MySQL: the owner of the lock leads, and a row that stays has its proclamation and its record.

The row has the token of the last leader, who writes it before anything else, and only the one with that token can write
more: so no write of an earlier leader comes after its successor's read.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from typing_extensions import override

from ..connection import Connection
from ..election import Ballot, Leader
from ..errors import LockUnavailable
from ..grant import Grant
from ..waiting import Wait
from .client import MySqlClient

_CLAIM: Final = (
    "INSERT INTO fencelock_elections (name, token, said, revision) VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE "
    "said = IF(token < %s, %s, said), revision = IF(token < %s, %s, revision), token = GREATEST(token, %s)"
)
_SHOW: Final = "SELECT token, said, revision, record FROM fencelock_elections WHERE name = %s"


class MySqlBallot(Ballot):
    """An election in MySQL. `key`: its name in the tables; `count`: draws the next token, and its source."""

    def __init__(
        self,
        connection: Connection,
        client: MySqlClient,
        name: str,
        key: bytes,
        count: Callable[[float], Awaitable[tuple[str, int]]],
    ) -> None:
        super().__init__(connection, name)
        self._client = client
        self._key = key
        self._count = count

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        attempt = self.connection.attempt(self.name, self.connection.terms.ttl_s)
        grant = await attempt.until_granted(wait)
        token = grant.token
        try:
            await self._client.ask(_CLAIM, (self._key, token, value, token, token, value, token, token, token))
            rows = (await self._client.ask(_SHOW, (self._key,))).rows
            if not rows or rows[0][0] != token:
                raise LockUnavailable(
                    f"{self.name}: the lead was lost as soon as it was had; or the table fencelock_tokens is older "
                    f"than its last leader, whose token was {rows[0][0] if rows else 'deleted'}, and ours is {token}"
                )
        except BaseException:
            await attempt.leave()
            raise
        return grant

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        return await self._write("said", "revision", grant, value)

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        return await self._write("record", "recorded_at", grant, value)

    async def _write(self, what: str, number: str, grant: Grant, value: str) -> bool:
        # Numbered by the counter: a call that we gave up, and that comes behind a later one, changes nothing.
        _, now = await self._count(self.connection.timeout_s)
        # Nor does one with a counter that was set back, whose write is then refused.
        where = f"WHERE name = %s AND token = %s AND {number} < %s"
        sql = f"UPDATE fencelock_elections SET {what} = %s, {number} = %s {where}"  # noqa: S608
        return (await self._client.ask(sql, (value, now, self._key, grant.token, now))).matched == 1

    @override
    async def recorded(self) -> str | None:
        rows = (await self._client.ask(_SHOW, (self._key,))).rows
        return rows[0][3] if rows else None

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        holders = await self.connection.queue(self.name)
        rows = (await self._client.ask(_SHOW, (self._key,), timeout_s=timeout_s)).rows if holders else ()
        # Its first word comes after its grant: until then nobody leads.
        said = [Leader(one.key, row[1], one.token, row[2]) for one in holders for row in rows if row[0] == one.token]
        return said[0] if said else None

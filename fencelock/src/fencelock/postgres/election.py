"""An election in PostgreSQL: the owner of the lock leads, and its value stands in its row."""

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from typing_extensions import override

from ..election import Ballot, Leader, Lookout
from ..grant import Grant
from ..waiting import Wait, Wake
from .lock import PostgresConnection
from .names import CHANNEL, key, observers

_LOOK_AGAIN_S: Final = 1.0  # as no message reports a leader that died
_DEAF_S: Final = 0.1

_LEADS: Final = "holder = %(holder)s AND token IS NOT NULL AND expires_at > clock_timestamp()"
# `number` grows with each proclamation: a call that was given up may arrive after a later one.
_SAY: Final = f"""
UPDATE fencelock_contenders SET value = %(value)s, said = %(number)s, revision = nextval('fencelock_tokens')
  WHERE {_LEADS} AND said < %(number)s;
SELECT pg_notify('{CHANNEL}', %(election)s) WHERE %(tells)s;
SELECT 1 FROM fencelock_contenders WHERE {_LEADS}
"""  # noqa: S608
# With the name's row locked nobody else can become the leader; it is made again if it was deleted meanwhile.
_RECORD: Final = f"""
INSERT INTO fencelock_names (name) VALUES (%(name)s) ON CONFLICT (name) DO UPDATE SET name = excluded.name WHERE false;
UPDATE fencelock_names SET record = %(value)s, recorder = %(holder)s, recorded = %(number)s
  WHERE name = %(name)s AND (recorder IS DISTINCT FROM %(holder)s OR recorded < %(number)s)
    AND EXISTS (SELECT FROM fencelock_contenders WHERE {_LEADS});
SELECT 1 FROM fencelock_contenders, fencelock_names AS written WHERE {_LEADS}
  AND written.name = %(name)s AND recorder = %(holder)s AND recorded >= %(number)s
"""  # noqa: S608
_LEADER: Final = """
SELECT holder, token, value, coalesce(revision, token) FROM fencelock_contenders
  WHERE name = %(name)s AND token IS NOT NULL AND value IS NOT NULL AND expires_at > clock_timestamp()
"""
_RECORDED: Final = "SELECT record FROM fencelock_names WHERE name = %(name)s AND record IS NOT NULL"


class PostgresBallot(Ballot):
    """An election in PostgreSQL. A candidate leads, with its value, from its grant on."""

    connection: PostgresConnection

    def __init__(self, connection: PostgresConnection, name: str) -> None:
        super().__init__(connection, name)
        self._args: Mapping[str, Any] = {"name": key(name), "election": observers(name)}
        self._numbers = count(1)

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        attempt = self.connection.attempt(self.name, self.connection.terms.ttl_s)
        attempt.value = value.encode()
        return await attempt.until_granted(wait)

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        return await self._by(grant, _SAY, value)

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        return await self._by(grant, _RECORD, value)

    async def _by(self, grant: Grant, sql: str, value: str) -> bool:
        said = {"holder": grant.key.rpartition("/")[2], "value": value.encode(), "number": next(self._numbers)}
        return bool((await self.connection.client.ask(sql, {**self._args, **said}))[-1])

    @override
    async def recorded(self) -> str | None:
        [rows] = await self.connection.client.ask(_RECORDED, self._args)
        return rows[0][0].decode() if rows else None

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        [rows] = await self.connection.client.ask(_LEADER, self._args, timeout_s)
        for holder, token, value, revision in rows:
            return Leader(f"{self.name}/{holder}", value.decode(), int(token), int(revision))
        return None

    @override
    def lookout(self, wake: Wake) -> Lookout:
        return _PostgresLookout(self.connection, self._args["election"], wake)


class _PostgresLookout:
    def __init__(self, connection: PostgresConnection, election: str, wake: Wake) -> None:
        self._connection = connection
        self._ticket = connection.listener.listen(election, wake)

    async def pause_s(self) -> float:
        again_s = _LOOK_AGAIN_S if self._connection.listener.hears else _DEAF_S
        return again_s * self._connection.waiters.crowd

    def close(self) -> None:
        self._connection.listener.leave(self._ticket)

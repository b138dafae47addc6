"""The PostgreSQL lock: a row for each contender, in the order of arrival, with a lease by the server's clock."""

import math
import uuid
from typing import Final

from typing_extensions import override

from .. import clock
from ..connection import Attempt, Connection, Terms
from ..contender import Contender, describe, parse_owner
from ..errors import LockUnavailable
from ..grant import Grant
from ..lease import Lease
from ..waiting import Wait
from .client import PostgresClient, Rows
from .listener import ListenTicket, NotifyListener
from .names import CHANNEL, key, observers

_SHORTEST_PAUSE_S: Final = 0.005
_LOOK_AGAIN_S: Final = 1.0  # for what no message tells
_DEAF_S: Final = 0.03
_FAR_BEHIND: Final = 10

# Each statement has a new snapshot, and those that follow the first one have the queue for themselves. The first one
# locks the name's row even where it is not changed, and makes it again if it was deleted meanwhile. A contender that
# finds nobody has the lock at once, and its place's number is its token.
_LOOK_AT: Final = """(SELECT id FROM fencelock_source),
       (SELECT count(*) FROM fencelock_contenders WHERE name = mine.name AND place < mine.place),
       (SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM fencelock_contenders
          WHERE name = mine.name AND place < mine.place ORDER BY place DESC LIMIT 1)"""
_TAKE: Final = f"""
INSERT INTO fencelock_names (name) VALUES (%(name)s) ON CONFLICT (name) DO UPDATE SET name = excluded.name WHERE false;
DELETE FROM fencelock_contenders WHERE name = %(name)s AND expires_at <= clock_timestamp();
INSERT INTO fencelock_contenders AS mine (holder, name, place, owner, value, expires_at, token)
  SELECT %(holder)s::uuid, %(name)s::bytea, place, %(owner)s::text, %(value)s::bytea,
         clock_timestamp() + %(ttl_ms)s * interval '1 ms',
         CASE WHEN NOT EXISTS (SELECT FROM fencelock_contenders WHERE name = %(name)s) THEN place END
    FROM (SELECT nextval('fencelock_tokens') AS place) AS drawn
  ON CONFLICT (holder) DO UPDATE SET expires_at = excluded.expires_at, token =
    CASE WHEN mine.token IS NULL AND mine.place = (SELECT min(place) FROM fencelock_contenders WHERE name = %(name)s)
      AND NOT EXISTS (SELECT FROM fencelock_contenders WHERE name = %(name)s AND token IS NOT NULL)
    THEN nextval('fencelock_tokens') ELSE mine.token END
  RETURNING token, {_LOOK_AT};
"""  # noqa: S608
_TAKEN: Final = 2
_ELECTED: Final = f"""
SELECT pg_notify('{CHANNEL}', %(election)s) FROM fencelock_contenders
  WHERE holder = %(holder)s AND token IS NOT NULL AND %(tells)s;
"""  # noqa: S608
_LOOK: Final = f"""
SELECT token, {_LOOK_AT}
  FROM fencelock_contenders AS mine WHERE holder = %(holder)s AND expires_at > clock_timestamp()
"""  # noqa: S608
_RENEW: Final = """
UPDATE fencelock_contenders SET expires_at = clock_timestamp() + %(ttl_ms)s * interval '1 ms'
  WHERE holder = %(holder)s AND expires_at > clock_timestamp() RETURNING 1
"""
# Under the name's lock, too: else a contender that queues meanwhile would get no message. Nobody waits for the disk: a
# crash may bring back a lock that was just given back, until its TTL is over; a grant that followed is on disk, and so
# is all before it.
_GIVE_BACK: Final = f"""
SELECT set_config('synchronous_commit', 'off', true) FROM fencelock_names WHERE name = %(name)s FOR UPDATE;
WITH gone AS (DELETE FROM fencelock_contenders
  WHERE name = %(name)s AND (holder = %(holder)s OR expires_at <= clock_timestamp()) RETURNING holder, token, value)
SELECT CASE WHEN token IS NOT NULL AND value IS NOT NULL AND %(tells)s THEN pg_notify('{CHANNEL}', %(election)s) END
  FROM gone WHERE holder = %(holder)s;
WITH over AS (DELETE FROM fencelock_names WHERE name = %(name)s AND record IS NULL
  AND NOT EXISTS (SELECT FROM fencelock_contenders WHERE name = %(name)s))
SELECT pg_notify('{CHANNEL}', holder::text) FROM
  (SELECT * FROM fencelock_contenders WHERE name = %(name)s ORDER BY place LIMIT 1) AS first
  WHERE token IS NULL AND %(tells)s
"""  # noqa: S608
_GIVEN_BACK: Final = 1
_QUEUES: Final = """
SELECT name, holder, token, owner, extract(epoch FROM expires_at - clock_timestamp())::float8 FROM fencelock_contenders
  WHERE name >= %(first)s AND name < %(end)s AND expires_at > clock_timestamp() ORDER BY name, place
"""


class _PostgresHold:
    """A contender's row. `holder` is never used for a second place."""

    def __init__(self, connection: "PostgresConnection", name: str, ttl_s: float) -> None:
        self.holder = str(uuid.uuid4())
        self._connection = connection
        self._name = name
        self.args = {"holder": self.holder, "name": key(name), "ttl_ms": math.ceil(ttl_s * 1000)}

    async def renew(self, timeout_s: float) -> bool:
        """Ask for another TTL, if the row is there and not over."""
        return bool((await self._connection.client.ask(_RENEW, self.args, timeout_s, renewal=True))[0])

    async def end(self, timeout_s: float) -> None:
        """Delete the row, and tell the next one."""
        await self._connection.give_back(self._name, self.holder, timeout_s)


class PostgresAttempt(Attempt["PostgresConnection"]):
    """Queues, and owns the lock when it is first. A try also renews its place; between two tries it only looks.

    `value`: the proclamation of a candidate in an election.
    """

    def __init__(self, connection: "PostgresConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._hold: _PostgresHold
        self._owner = describe(connection.terms.instance)
        self.value: bytes | None = None
        self._ticket: ListenTicket | None = None
        self._look_until = 0.0  # when it renews its place

    @override
    async def take(self, wait: Wait) -> Grant | float:
        timeout_s, ticket = wait.call_s(self.timeout_s), self._ticket
        told = ticket is not None and ticket.told
        if self.lease is not None and not told and clock.now() < self._look_until:
            [rows] = await self.connection.client.ask(_LOOK, self._hold.args, timeout_s)
            if (pause_s := self._pause_s(rows)) is not None:
                return pause_s
        if self.lease is None:
            self._hold = _PostgresHold(self.connection, self.name, self.ttl_s)
            self._stop_listening()
        lease = self.lease = Lease(f"{self.name}/{self._hold.holder}", self._hold, self.ttl_s)
        if self._ticket is not None:
            self._ticket.told = False
        sql = f"{_TAKE}{'' if self.value is None else _ELECTED}"
        said = {"owner": self._owner, "value": self.value, "election": observers(self.name)}
        rows = (await self.connection.client.ask(sql, self._hold.args | said, timeout_s))[_TAKEN]
        self._look_until = lease.deadline - self.ttl_s * 2 / 3
        pause_s = self._pause_s(rows)
        if pause_s is None:
            if not rows or rows[0][0] is None:
                return _SHORTEST_PAUSE_S  # it took too long, or the lease ahead ended just now
            token, source = rows[0][:2]
            if source is None:
                raise LockUnavailable("the table fencelock_source is empty: nobody can tell whose tokens these are")
            self.renewer.keep(lease)
            return Grant(lease.name, int(token), f"postgres:{source}", lease)
        if self._ticket is None and wait.left_s:
            self._listen()
            return 0.0  # the lock may have been released before we listened
        return pause_s

    def _pause_s(self, rows: Rows) -> float | None:
        """Return the pause before the next look, by the last look's answer; None if it is time to try."""
        if not rows or rows[0][0] is not None or not rows[0][2] or rows[0][3] <= 0:
            return None
        ahead, left_s = int(rows[0][2]), float(rows[0][3])
        again_s = _LOOK_AGAIN_S if self.connection.listener.hears else _DEAF_S * min(ahead, _FAR_BEHIND)
        alive_s = self._look_until - clock.now()
        return max(_SHORTEST_PAUSE_S, min(again_s * self.connection.waiters.crowd, left_s, alive_s))

    def _listen(self) -> None:
        self._ticket = self.connection.listener.listen(self._hold.holder, self.wake)
        self.cleanup.callback(self._stop_listening)

    def _stop_listening(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self.connection.listener.leave(ticket)


class PostgresConnection(Connection):
    """A client of one database."""

    def __init__(self, terms: Terms, url: str) -> None:
        super().__init__(terms)
        self.client = PostgresClient(url, terms.timeout_s)
        self.listener = NotifyListener(self.client)

    @override
    def attempt(self, name: str, ttl_s: float) -> PostgresAttempt:
        return PostgresAttempt(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        # The range of names that begin so: no UTF-8 has a byte of 255.
        return await self._contenders(prefix.encode(), prefix.encode() + b"\xff")

    @override
    async def queue(self, name: str) -> list[Contender]:
        return await self._contenders(key(name), key(name) + b"\0")

    async def _contenders(self, first: bytes, end: bytes) -> list[Contender]:
        found = []
        for name, holder, token, text, left_s in (await self.client.ask(_QUEUES, {"first": first, "end": end}))[0]:
            owner, waited_s = parse_owner(text)
            place, holds = f"{name.decode()}/{holder}", token is not None
            found.append(Contender(place, int(token or 0), owner, waited_s, max(0.0, left_s), holds=holds))
        return found

    @override
    async def force_release(self, name: str) -> Contender | None:
        had = next((one for one in await self.queue(name) if one.holds), None)
        # A holder that has released it meanwhile doesn't hang, and neither does the next one, which has it now.
        return had if had is not None and await self.give_back(name, had.key.rpartition("/")[2]) else None

    async def give_back(self, name: str, holder: str, timeout_s: float | None = None) -> bool:
        """Delete a contender's row, and tell the next one; return False if there was none."""
        args = {"name": key(name), "holder": holder, "election": observers(name)}
        return bool((await self.client.ask(_GIVE_BACK, args, timeout_s))[_GIVEN_BACK])

    @override
    async def ping(self, timeout_s: float) -> None:
        await self.client.ask("SELECT 1", timeout_s=min(timeout_s, self.timeout_s), renewal=True)

    @override
    async def disconnect(self) -> None:
        await self.listener.close()
        await self.client.close()

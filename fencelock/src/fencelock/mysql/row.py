"""The lock of a MySQL row: the client that inserts the row with the lock's name owns it, and extends its expiry."""

import os
import secrets
from functools import partial
from typing import Final

from typing_extensions import override

from .. import clock
from ..backend import LASTING
from ..backoff import Backoff
from ..connection import Attempt, Connection
from ..contender import whoami
from ..grant import Grant
from ..lease import Lease
from ..waiting import Wait
from .backend import NOW, OWNER_COLUMNS, MySqlBackend, MySqlConnection, key, short
from .client import DUPLICATE, Lent, MySqlClient
from .session import SqlRefused

# A waiter's pauses grow from the first to the last; it also looks at the moment at which the row would expire.
_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.05
_SHOW: Final = (
    f"SELECT {OWNER_COLUMNS}, TIMESTAMPDIFF(MICROSECOND, {NOW}, expires_at) / 1000000 FROM fencelock_locks "  # noqa: S608
    f"WHERE expires_at > {NOW} AND token IS NOT NULL AND "
)


class _MySqlRowAttempt(Attempt["MySqlRowConnection"]):
    """A row that exists while the lock is owned, and expires by the server's clock; not fair; fenced by a counter.

    Every statement is a transaction of its own, on one row: a paused process keeps nothing locked, and there are no
    deadlocks.
    """

    def __init__(self, connection: "MySqlRowConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._client = connection.client
        self._key = key(name)
        self._backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S, jitter=True)
        self._owner = (short(connection.terms.instance), os.getpid(), short(whoami()))
        self._lent: Lent | None = None

    @override
    async def take(self, wait: Wait) -> Grant | float:
        await self.leave(in_background=True)  # a row of ours if a try was not answered: each has a `holder` of its own
        async with self._client.lent() as self._lent:  # over one session: the pool pings once
            return await self._take(wait)

    async def _take(self, wait: Wait) -> Grant | float:
        left_s = await self._look(wait)
        if left_s is not None and left_s > 0:
            return min(left_s, self._backoff.next_s())
        grant = await self._try(left_s is not None, wait)
        if grant is None:
            await self.leave()
            return 0.0  # another contender was first: look at its row
        return grant

    async def _look(self, wait: Wait) -> float | None:
        """Return the seconds that the owner's row has left by the server's clock; None if there is no row."""
        sql = f"SELECT TIMESTAMPDIFF(MICROSECOND, {NOW}, expires_at) FROM fencelock_locks WHERE name = %s"  # noqa: S608
        timeout_s = wait.call_s(self.timeout_s)
        rows = (await self._client.ask(sql, (self._key,), timeout_s=timeout_s, sessions=self._lent)).rows
        return int(rows[0][0]) / 1_000_000 if rows else None

    async def _try(self, dead: bool, wait: Wait) -> Grant | None:
        """Insert the row, or take over a dead owner's; None if another contender was first."""
        row = _Row(self._client, self._key, self.ttl_s)
        lease = self.lease = Lease(f"{self.name}/{row.holder}", row, self.ttl_s)
        if not await row.own(self._owner, dead, wait.call_s(self.timeout_s), self._lent):
            self.lease = None
            return None
        source, token = await self.connection.tokens.next(wait.call_s(self.timeout_s), self._lent)
        asked_at = clock.now()
        # If all that took longer than a TTL, the row is not ours any more: then our token may be greater than that of
        # the next owner, and must not be used.
        if not await row.sign(token, wait.call_s(self.timeout_s), self._lent):
            return None
        lease.renewed(asked_at)
        self.renewer.keep(lease)
        return Grant(lease.name, token, source, lease)


class _Row:
    """A try at the row of a lock, with a `holder` of its own."""

    def __init__(self, client: MySqlClient, name: bytes, ttl_s: float) -> None:
        self.holder = secrets.token_hex(16)
        self._client = client
        self._name = name
        self._end = f"expires_at = {NOW} + INTERVAL {round(ttl_s * 1_000_000)} MICROSECOND"

    async def own(self, owner: tuple[str, int, str], dead: bool, timeout_s: float, lent: Lent | None) -> bool:
        """Insert the row, or take over a dead owner's. The server sets its expiry, by its own clock."""
        values = f"holder = %s, token = NULL, host = %s, process = %s, thread = %s, since = {NOW}, {self._end}"
        ask = partial(self._client.ask, timeout_s=timeout_s, sessions=lent)
        if dead:
            sql = f"UPDATE fencelock_locks SET {values} WHERE name = %s AND expires_at < {NOW}"  # noqa: S608
            answer = await ask(sql, (self.holder, *owner, self._name))
            return answer.matched == 1
        sql = f"INSERT INTO fencelock_locks SET name = %s, {values}"
        try:
            await ask(sql, (self._name, self.holder, *owner), tell=(DUPLICATE,))
        except SqlRefused:
            return False
        return True

    async def sign(self, token: int, timeout_s: float, lent: Lent | None) -> bool:
        """Write the token that we counted, and extend the expiry, as `renew` does."""
        return await self._write(f"token = %s, {self._end}", (token,), timeout_s, lent)

    async def renew(self, timeout_s: float) -> bool:
        """Extend the expiry, if the row is ours and has not expired yet."""
        return await self._write(self._end, (), timeout_s)

    async def _write(self, what: str, args: tuple[int, ...], timeout_s: float, lent: Lent | None = None) -> bool:
        sql = f"UPDATE fencelock_locks SET {what} WHERE name = %s AND holder = %s AND expires_at > {NOW}"  # noqa: S608
        values = (*args, self._name, self.holder)
        answer = await self._client.ask(sql, values, timeout_s=timeout_s, sessions=lent)
        return answer.matched == 1

    async def end(self, timeout_s: float) -> None:
        """Delete the row, if it is ours: nobody else has our `holder`."""
        sql = "DELETE FROM fencelock_locks WHERE name = %s AND holder = %s"
        await self._client.ask(sql, (self._name, self.holder), timeout_s=timeout_s)


class MySqlRowConnection(MySqlConnection):
    """Rows of the table fencelock_locks."""

    show = _SHOW

    @override
    def attempt(self, name: str, ttl_s: float) -> _MySqlRowAttempt:
        return _MySqlRowAttempt(self, name, ttl_s)


class MySqlRowBackend(MySqlBackend):
    """Locks that are rows of the table fencelock_locks."""

    name = "mysql-row"
    guarantees = LASTING

    @override
    def connect(self) -> Connection:
        return MySqlRowConnection(self.terms, self._url)

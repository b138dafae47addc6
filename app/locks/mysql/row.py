"""The lock of a MySQL row: an insert of the row with the lock's name owns it, and its owner pushes its end on."""

import os
import secrets
import threading
from typing import Final

from typing_extensions import override

from app.common import clock
from app.common.backoff import Backoff
from app.common.mysql import DUPLICATE, MySqlClient, Refused
from app.locks.attempt import Attempt
from app.locks.backend import Guarantees
from app.locks.contender import Contender
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.mysql.backend import NOW, OWNER_COLUMNS, MySqlBackend, holders, key, short, under
from app.locks.waiting import Wait

# A waiter looks this often, growing from one to the other, and at the moment at which the row would expire.
_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.05
_SHOW: Final = (
    f"SELECT {OWNER_COLUMNS}, TIMESTAMPDIFF(MICROSECOND, {NOW}, expires_at) / 1000000 FROM seckill_locks "  # noqa: S608
    f"WHERE expires_at > {NOW} AND token IS NOT NULL AND "
)


class MySqlRowLock(DistributedLock["MySqlRowBackend"]):
    """A row while the lock is owned, with an end by the server's clock; not fair; fenced by a counter.

    Every statement is a transaction of its own, on one row: there is nothing that a paused process could keep locked,
    and no deadlock.

    >>> with connect("mysql+row://shop:secret@db/shop").lock("/seckill/lock/phone") as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(self, backend: "MySqlRowBackend", name: str) -> None:
        super().__init__(backend, name)
        self._key = key(name)

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        return holders(self._backend.client, f"{_SHOW} name = %s", (self._key,))


class _Attempt(Attempt["MySqlRowBackend"]):
    def __init__(self, backend: "MySqlRowBackend", name: str) -> None:
        super().__init__(backend, name)
        self._client = backend.client
        self._key = key(name)
        self._backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S, jitter=True)

    @override
    def take(self, wait: Wait) -> Grant | float:
        left_s = self._look(wait)
        if left_s is not None and left_s > 0:
            return min(left_s, self._backoff.next_s())
        grant = self._try(left_s is not None, wait)
        if grant is None:
            self.leave()
            return 0.0  # another one was first: look what it has
        return grant

    def _look(self, wait: Wait) -> float | None:
        """Seconds that the owner's row has left by the server's clock; None if there is no row."""
        sql = f"SELECT TIMESTAMPDIFF(MICROSECOND, {NOW}, expires_at) FROM seckill_locks WHERE name = %s"  # noqa: S608
        rows = self._client.run(sql, (self._key,), timeout_s=wait.call_s(self.backend.timeout_s)).rows
        return int(rows[0][0]) / 1_000_000 if rows else None

    def _try(self, dead: bool, wait: Wait) -> Grant | None:
        """Insert the row, or take over the one of a dead owner; None if another one was first."""
        row = _Row(self._client, self._key, self.backend.ttl_s)
        lease = self.lease = Lease(f"{self.name}/{row.holder}", row, self.backend.ttl_s)
        if not row.own(self.backend.instance, dead, wait.call_s(self.backend.timeout_s)):
            self.lease = None
            return None
        source, token = self.backend.tokens.next(wait.call_s(self.backend.timeout_s))
        asked_at = clock.now()
        # Not ours any more, if all that took longer than a TTL: then the token may be greater than that of the one who
        # came after us, and must not be used.
        if not row.sign(token, wait.call_s(self.backend.timeout_s)):
            return None
        lease.renewed(asked_at)
        self.backend.renewer.keep(lease)
        return Grant(lease.name, token, source, lease)


class _Row:
    """One try at the row of a lock."""

    def __init__(self, client: MySqlClient, name: bytes, ttl_s: float) -> None:
        self.holder = secrets.token_hex(16)
        self._client = client
        self._name = name
        self._end = f"expires_at = {NOW} + INTERVAL {round(ttl_s * 1_000_000)} MICROSECOND"

    def own(self, instance: str, dead: bool, timeout_s: float) -> bool:
        """Insert it, or take over that of a dead owner. Its end is the server's business, which has one clock."""
        owner = (short(instance), os.getpid(), short(threading.current_thread().name))
        values = f"holder = %s, token = NULL, host = %s, process = %s, thread = %s, since = {NOW}, {self._end}"
        if dead:
            sql = f"UPDATE seckill_locks SET {values} WHERE name = %s AND expires_at < {NOW}"  # noqa: S608
            return self._client.run(sql, (self.holder, *owner, self._name), timeout_s=timeout_s).matched == 1
        sql = f"INSERT INTO seckill_locks SET name = %s, {values}"
        try:
            self._client.run(sql, (self._name, self.holder, *owner), timeout_s=timeout_s, tell=(DUPLICATE,))
        except Refused:
            return False
        return True

    def sign(self, token: int, timeout_s: float) -> bool:
        """As `renew`, with the token that we counted."""
        return self._write(f"token = %s, {self._end}", (token,), timeout_s)

    def renew(self, timeout_s: float) -> bool:
        """Push its end on, if it is ours and has not ended yet."""
        return self._write(self._end, (), timeout_s)

    def _write(self, what: str, args: tuple[int, ...], timeout_s: float) -> bool:
        sql = f"UPDATE seckill_locks SET {what} WHERE name = %s AND holder = %s AND expires_at > {NOW}"  # noqa: S608
        return self._client.run(sql, (*args, self._name, self.holder), timeout_s=timeout_s).matched == 1

    def end(self, timeout_s: float) -> None:
        """Delete it; nobody else has our `holder`, which is made for this try."""
        sql = "DELETE FROM seckill_locks WHERE name = %s AND holder = %s"
        self._client.run(sql, (self._name, self.holder), timeout_s=timeout_s)


class MySqlRowBackend(MySqlBackend):
    """Locks that are rows of the table seckill_locks."""

    name = "mysql-row"
    guarantees = Guarantees(fencing=True, survives_silence=True, survives_restart=True)

    @override
    def lock(self, name: str) -> MySqlRowLock:
        return MySqlRowLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        return holders(self.client, f"{_SHOW} name >= %s AND name < %s ORDER BY name", under(prefix))

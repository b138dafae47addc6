"""The lock of a MySQL row: whoever can insert the row with the lock's name owns it, and pushes its end on."""

import itertools
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from app.common.mysql import DUPLICATE, MySqlClient, Refused
from app.errors import LockUnavailable
from app.locks.backend import Guarantees, Portrait
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant
from app.locks.mysql.backend import (
    NOW,
    OWNER_COLUMNS,
    MySqlBackend,
    Outage,
    Tokens,
    holders,
    key,
    short,
    under,
)
from app.locks.renewer import Renewer
from app.locks.waiting import AWAY_PAUSE_S, Wait, Wake

# A waiter looks this often, growing from one to the other, and at the moment at which the row would expire.
_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.05
_SHOW: Final = (
    f"SELECT {OWNER_COLUMNS}, TIMESTAMPDIFF(MICROSECOND, {NOW}, expires_at) / 1000000 FROM seckill_locks "  # noqa: S608
    f"WHERE expires_at > {NOW} AND token IS NOT NULL AND "
)


class _Row:
    """One try at the row of a lock. Leases use it, so it must not know the lock: a lock that is garbage is given up."""

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

    def renew(self, timeout_s: float) -> bool:
        """Push its end on, if it is ours and has not ended yet."""
        return self._write(self._end, (), timeout_s)

    def sign(self, token: int, timeout_s: float) -> bool:
        """The same, with the token that we counted."""
        return self._write(f"token = %s, {self._end}", (token,), timeout_s)

    def _write(self, what: str, args: tuple[int, ...], timeout_s: float) -> bool:
        sql = f"UPDATE seckill_locks SET {what} WHERE name = %s AND holder = %s AND expires_at > {NOW}"  # noqa: S608
        return self._client.run(sql, (*args, self._name, self.holder), timeout_s=timeout_s).matched == 1

    def end(self, timeout_s: float) -> None:
        """Delete it; nobody else has our `holder`, which is made for this try."""
        sql = "DELETE FROM seckill_locks WHERE name = %s AND holder = %s"
        self._client.run(sql, (self._name, self.holder), timeout_s=timeout_s)


class MySqlRowLock(DistributedLock):
    """A row while somebody owns the lock, with an end by the server's clock; not fair; fenced by a counter.

    Every statement is a transaction of its own, on one row: there is nothing that a paused process could keep locked,
    and no deadlock.

    >>> lock = MySqlRowBackend("mysql://shop:secret@db/shop").lock("/seckill/lock/phone")
    >>> with lock as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(
        self, client: MySqlClient, tokens: Tokens, renewer: Renewer, name: str, *, ttl_s: float, instance: str
    ) -> None:
        super().__init__(name)
        self._client = client
        self._tokens = tokens
        self._renewer = renewer
        self._key = key(name)
        self._ttl_s = ttl_s
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        wake = Wake()
        with self._client.waiters.waiting(wake.set):
            forget_cancel = wait.cancel.subscribe(wake.set)
            try:
                return self._poll(wait, wake, abandoned)
            finally:
                forget_cancel()

    def _poll(self, wait: Wait, wake: Wake, abandoned: Callable[[], bool]) -> Grant:
        outage = Outage(self._ttl_s)
        left_s: float | None = None  # what the present owner's row has left; None: there is none, as far as we know
        pause_s = _FIRST_PAUSE_S
        for lap in itertools.count():
            self._refuse_closing()
            if lap > 1 or wait.cancel.is_set():  # not before a dead owner's row was tried for
                wait.check(self.name)
            try:
                if (left_s is None or left_s <= 0) and (grant := self._try(left_s is not None, wait, abandoned)):
                    return grant
                left_s = self._look(wait)
                outage.over()
            except LockUnavailable as error:
                self._refuse_closing()
                outage.bear(error)
                left_s = pause_s = AWAY_PAUSE_S
            if left_s is not None and left_s > 0:
                wait.check(self.name)
                wake.wait(min(pause_s * random.uniform(0.5, 1), left_s, wait.left_s))  # noqa: S311 - not a secret
                wait.check(self.name)
                pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)
        raise AssertionError("unreachable")

    def _try(self, dead: bool, wait: Wait, abandoned: Callable[[], bool]) -> Grant | None:
        """Insert the row, or take over the one of a dead owner; None if somebody else was first."""
        row = _Row(self._client, self._key, self._ttl_s)
        lease = Lease(
            f"{self.name}/{row.holder}",
            self._ttl_s,
            asked_at=time.monotonic(),
            renew=row.renew,
            end=row.end,
            abandoned=abandoned,
        )
        try:
            if not row.own(self._instance, dead, wait.call_s(self._client.timeout_s)):
                return None
            source, token = self._tokens.next(wait.call_s(self._client.timeout_s))
            asked_at = time.monotonic()
            # Not ours any more, if all that took longer than a TTL: then the token may be greater than that of somebody
            # who came after us, and must not be used.
            if not row.sign(token, wait.call_s(self._client.timeout_s)):
                return None
            lease.renewed(asked_at)
            if lease.lost:
                self._renewer.end(lease)
                return None
            grant = Grant(lease.name, token, source, lease)
            self._renewer.keep(lease)
        except BaseException:
            self._renewer.end(lease)  # what may have reached the server
            raise
        return grant

    def _look(self, wait: Wait) -> float | None:
        """Seconds that the owner's row has left by the server's clock; None if there is no row."""
        sql = f"SELECT TIMESTAMPDIFF(MICROSECOND, {NOW}, expires_at) FROM seckill_locks WHERE name = %s"  # noqa: S608
        rows = self._client.run(sql, (self._key,), timeout_s=wait.call_s(self._client.timeout_s)).rows
        return int(rows[0][0]) / 1_000_000 if rows else None

    def _refuse_closing(self) -> None:
        if self._client.waiters.closing:
            raise LockUnavailable("the connection to MySQL is closed")

    def _give_back(self, grant: Grant) -> None:
        self._renewer.hand_back(grant.lease, self._client.timeout_s)

    def contenders(self) -> list[Contender]:
        """Who owns the lock, if anybody; who waits for it is nowhere to be seen."""
        return holders(self._client, f"{_SHOW} name = %s", (self._key,))


class MySqlRowBackend(MySqlBackend):
    """Locks that are rows of the table seckill_locks."""

    name = "mysql-row"
    guarantees = Guarantees(fencing=True, survives_silence=True, survives_restart=True, remembers=True)
    portrait = Portrait(
        works=(
            "Each acquire inserts a row with the lock's name, its primary key; a second one is refused. The row says "
            "who owns it (host, process, thread) and until when by the server's clock. The owner pushes that on and "
            "deletes the row in the end; a row whose time is over is taken over. Who waits looks every 5 to 50 ms."
        ),
        costs="4 statements for acquire and release, each of them a commit; a waiter about 25 a second",
        fails=(
            "not fair, and whoever looks first has it; each waiter is a load for the server; a step of the server's "
            "clock by more than a TTL gives the lock away, and the token is then what protects the store"
        ),
        choose="if MySQL is what there is, and few wait: it survives a restart of the server",
    )

    def lock(self, name: str) -> MySqlRowLock:
        """The lock of that name; each call makes an object of its own."""
        return MySqlRowLock(self._client, self._tokens, self.renewer, name, ttl_s=self._ttl_s, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """The owners of all locks whose names begin with `prefix`."""
        return holders(self._client, f"{_SHOW} name >= %s AND name < %s ORDER BY name", under(prefix))

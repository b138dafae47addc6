"""The lock of a MySQL transaction: SELECT ... FOR UPDATE on the row with the lock's name, open as long as the grant."""

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from app.common.mysql import NO_TABLE, MySqlClient, Refused, Session, Sessions
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

_TAKEN: Final = (1205, 3572)  # what MariaDB and MySQL say to NOWAIT
_FOR_EVER_S: Final = 100_000_000  # MariaDB's longest; who waits minds the time
_KILL_S: Final = 0.25
_SHOW: Final = f"SELECT {OWNER_COLUMNS}, NULL FROM seckill_lock_rows WHERE holder IS NOT NULL AND "  # noqa: S608


class _Line:
    """Where a waiter waits: the session whose answer it is blocked on, to be interrupted by any thread."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.waiting = False
        self.wake = Wake()

    def interrupt(self) -> None:
        """Called after what is a reason for it can be seen (closing, cancelled), so that it can't be missed."""
        self.wake.set()
        session = self.session
        if session is not None:
            session.wake()


class _Hold:
    """The session whose open transaction has the row. Shared by the renewal thread and who releases."""

    def __init__(self, session: Session, rows: Sessions) -> None:
        self._session: Session | None = session
        self._rows = rows
        self._mutex = threading.Lock()
        self.forget: Callable[[], None] = lambda: None

    def renew(self, timeout_s: float) -> bool:
        """Ask for a sign of life, which is also what the server waits for."""
        with self._mutex:
            return self._session is not None and self._session.ping(timeout_s)

    def end(self, timeout_s: float) -> None:
        """Roll back. If that is not answered the connection is closed, which does the same."""
        self.forget()
        with self._mutex:
            session, self._session = self._session, None
            if session is None:
                return
            if session.in_step:
                with contextlib.suppress(LockUnavailable):
                    session.run("ROLLBACK", timeout_s=timeout_s)
                    self._rows.give(session)
                    return
            session.close()


class MySqlForUpdateLock(DistributedLock):
    """The lock of a row, held by an open transaction; MySQL's own queue for it; fenced by a counter.

    The owner's name and token are written into the row by that transaction, which never commits: those who look read
    what is not committed, and it vanishes with the grant, however that ends.

    >>> lock = MySqlForUpdateBackend("mysql://shop:secret@db/shop").lock("/seckill/lock/phone")
    >>> with lock as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(
        self,
        client: MySqlClient,
        rows: Sessions,
        lookers: Sessions,
        tokens: Tokens,
        renewer: Renewer,
        name: str,
        *,
        ttl_s: float,
        instance: str,
    ) -> None:
        super().__init__(name)
        self._client = client
        self._rows = rows
        self._lookers = lookers
        self._tokens = tokens
        self._renewer = renewer
        self._key = key(name)
        self._ttl_s = ttl_s
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        line = _Line()
        outage = Outage(self._ttl_s)
        with self._client.waiters.waiting(line.interrupt):
            forget_cancel = wait.cancel.subscribe(line.interrupt)
            try:
                while True:
                    self._refuse_if_called_off(wait)
                    try:
                        session = self._queue(wait, line, outage)
                        if session is not None:
                            return self._grant(session, wait, abandoned)
                    except LockUnavailable as error:
                        self._refuse_if_called_off(wait)
                        if line.waiting:  # then the end of our time is what ended it, if it is over
                            wait.check(self.name)
                        outage.bear(error)
                        line.wake.wait(min(AWAY_PAUSE_S, wait.left_s))
            finally:
                forget_cancel()

    def _queue(self, wait: Wait, line: _Line, outage: Outage) -> Session | None:
        """The session that has the row; None if the row had to be made first, or somebody else has it.

        A wait that was ended, by KILL QUERY or a limit of the server's, is an error like that of a lost connection.
        """
        session = self._rows.take(wait.call_s(self._client.timeout_s))
        line.session, line.waiting = session, False
        try:
            self._refuse_if_called_off(wait)
            found = self._lock_row(session, wait, line, outage)
            outage.over()
            line.session = None
            self._refuse_if_called_off(wait)  # if not, nobody interrupts this session any more
            if found:
                return session
            session.run("ROLLBACK", timeout_s=wait.call_s(self._client.timeout_s))
            self._rows.give(session)
        except BaseException:
            line.session = None
            session.close()
            if self._client.waiters.closing or wait.cancel.is_set() or not wait.left_s:
                # The server would notice only when it is the session's turn. (If it is the server that ended it, the
                # number may be somebody else's by now.)
                self._client.kill(session.id, _KILL_S)
            raise
        if found is None:
            # Refused: somebody else made it just now, and has it.
            with contextlib.suppress(Refused):
                self._client.run("INSERT IGNORE INTO seckill_lock_rows (name) VALUES (%s)", (self._key,), tell=_TAKEN)
        else:
            wait.check(self.name)
        return None

    def _lock_row(self, session: Session, wait: Wait, line: _Line, outage: Outage) -> bool | None:
        """Whether we have the row; None if there is none, which would exclude nobody."""
        sql = "SELECT 1 FROM seckill_lock_rows WHERE name = %s FOR UPDATE"
        try:
            try:
                # Answered at once, or there is no server: while we wait in its queue we can't tell.
                timeout_s = wait.call_s(self._client.timeout_s)
                answer = session.run(f"{sql} NOWAIT", (self._key,), timeout_s=timeout_s, tell=(*_TAKEN, NO_TABLE))
            except Refused as refusal:
                if refusal.code == NO_TABLE or not wait.left_s:
                    raise
                outage.over()
                line.waiting = True
                timeout = None if wait.wait_s is None else wait.left_s
                answer = session.run(sql, (self._key,), timeout_s=timeout, tell=(NO_TABLE,))
        except Refused as refusal:
            return None if refusal.code == NO_TABLE else False
        return True if answer.rows else None

    def _grant(self, session: Session, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        hold = _Hold(session, self._rows)
        lease: Lease | None = None
        try:
            source, token = self._tokens.next(wait.call_s(self._client.timeout_s))
            asked_at = time.monotonic()
            holder = self._sign(session, token, wait.call_s(self._client.timeout_s))
            lease = Lease(
                f"{self.name}/{holder}",
                self._ttl_s,
                asked_at=asked_at,
                renew=hold.renew,
                end=hold.end,
                abandoned=abandoned,
            )
            grant = Grant(lease.name, token, source, lease)
            # The server frees the row as soon as the connection is closed: so the owner must know before.
            hold.forget = self._client.waiters.on_close(partial(lease.lose, "the connection to MySQL was closed"))
            self._refuse_if_called_off(wait)
            self._renewer.keep(lease)
        except BaseException:
            if lease is not None:
                self._renewer.drop(lease)
            hold.forget()
            session.close()
            raise
        return grant

    def _sign(self, session: Session, token: int, timeout_s: float) -> str:
        """Write into the row who has it. The transaction is still open then, so it was when the token was counted."""
        holder = secrets.token_hex(16)
        thread = short(threading.current_thread().name)
        session.run(
            "UPDATE seckill_lock_rows SET holder = %s, token = %s, host = %s, process = %s, thread = %s, "  # noqa: S608
            f"since = {NOW}, session = CONNECTION_ID() WHERE name = %s",
            (holder, token, short(self._instance), os.getpid(), thread, self._key),
            timeout_s=timeout_s,
        )
        return holder

    def _give_back(self, grant: Grant) -> None:
        self._renewer.hand_back(grant.lease, self._client.timeout_s)

    def contenders(self) -> list[Contender]:
        """Who owns the lock, if anybody; MySQL doesn't show its queue."""
        return holders(self._client, f"{_SHOW} name = %s", (self._key,), self._lookers)

    def _refuse_if_called_off(self, wait: Wait) -> None:
        if self._client.waiters.closing:
            raise LockUnavailable("the connection to MySQL is closed")
        if wait.cancel.is_set():
            wait.check(self.name)


class MySqlForUpdateBackend(MySqlBackend):
    """Locks that are rows of the table seckill_lock_rows, locked by open transactions."""

    name = "mysql-for-update"
    # Not fair: MySQL 8 lets those go first who block most others (CATS); where all wait for one row only that has been
    # the order of their arrival, but nobody promises it.
    guarantees = Guarantees(fencing=True, survives_silence=True, remembers=True)
    portrait = Portrait(
        works=(
            "Each name has a row. An owner has it locked by SELECT ... FOR UPDATE in a transaction that is open as "
            "long as the grant, on a connection of its own; the others wait in the row's queue inside the server, "
            "mostly in the order of their arrival, but MySQL doesn't promise that. The end of the connection is the "
            "end of the lock, and a connection that is silent for a TTL is ended by the server."
        ),
        costs="4 statements for acquire and release, of which 1 is a commit; 1 for a wait, however long",
        fails=(
            "a restart of the server, or whatever else breaks the connection, is the loss of the lock: at once on the "
            "server, noticed by the owner at its next renewal; each owner and waiter costs a connection; a proxy that "
            "shares connections among clients breaks it"
        ),
        choose="if MySQL is what there is, and more than a few wait: quicker, and nearly in order",
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rows = self._client.sessions(
            f"SET SESSION innodb_lock_wait_timeout = {_FOR_EVER_S}",
            "SET SESSION autocommit = 0",  # a transaction begins with its first statement
            silent_s=self._ttl_s,  # in whole seconds, rounded up: never shorter than we believe in a lease
        )
        self._lookers = self._client.sessions("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")

    def lock(self, name: str) -> MySqlForUpdateLock:
        """The lock of that name; each call makes an object of its own."""
        return MySqlForUpdateLock(
            self._client,
            self._rows,
            self._lookers,
            self._tokens,
            self.renewer,
            name,
            ttl_s=self._ttl_s,
            instance=self._instance,
        )

    def contenders(self, prefix: str) -> list[Contender]:
        """The owners of all locks whose names begin with `prefix`."""
        return holders(self._client, f"{_SHOW} name >= %s AND name < %s ORDER BY name", under(prefix), self._lookers)

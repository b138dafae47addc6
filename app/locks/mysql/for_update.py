"""The lock of a MySQL transaction: SELECT ... FOR UPDATE on the row with the lock's name, open as long as the grant."""

import contextlib
import os
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from typing_extensions import Unpack, override

from app.common import clock
from app.common.mysql import NO_TABLE, Refused, Session, Sessions
from app.errors import LockUnavailable
from app.locks.attempt import Attempt
from app.locks.backend import Guarantees, Options
from app.locks.contender import Contender
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.mysql.backend import NOW, OWNER_COLUMNS, MySqlBackend, holders, key, short, under
from app.locks.waiting import Wait, Wake

_TAKEN: Final = (1205, 3572)  # what MariaDB and MySQL say to NOWAIT
_FOR_EVER_S: Final = 100_000_000  # MariaDB's longest; the waiter minds the time
_KILL_S: Final = 0.25
_LOCK_ROW: Final = "SELECT 1 FROM seckill_lock_rows WHERE name = %s FOR UPDATE"
_SHOW: Final = f"SELECT {OWNER_COLUMNS}, NULL FROM seckill_lock_rows WHERE holder IS NOT NULL AND "  # noqa: S608


class MySqlForUpdateLock(DistributedLock["MySqlForUpdateBackend"]):
    """The lock of a row, held by an open transaction; MySQL's own queue for it; fenced by a counter.

    The owner's name and token are written into the row by that transaction, which never commits: those who look read
    what is not committed, and it vanishes with the grant, however that ends.

    >>> with connect("mysql+for-update://shop:secret@db/shop").lock("/seckill/lock/phone") as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(self, backend: "MySqlForUpdateBackend", name: str) -> None:
        super().__init__(backend, name)
        self._key = key(name)

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        """The holder; MySQL doesn't show its queue."""
        backend = self._backend
        return holders(backend.client, f"{_SHOW} name = %s", (self._key,), backend.lookers)


class _Line(Wake):
    """Wakes a waiter that is blocked on the answer to a statement: the connection of its session is shut down."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None

    @override
    def set(self) -> None:
        super().set()
        session = self.session
        if session is not None:
            session.wake()


class _Attempt(Attempt["MySqlForUpdateBackend"]):
    """Asks for the row without waiting; if it is taken, waits in the server's queue, on a session of its own."""

    def __init__(self, backend: "MySqlForUpdateBackend", name: str) -> None:
        super().__init__(backend, name)
        self._client = backend.client
        self._key = key(name)
        self._line = _Line()
        self.wake = self._line
        self._session: Session | None = None
        self._queue_next = False  # the row is taken: the next try waits for it

    @override
    def take(self, wait: Wait) -> Grant | float:
        session = self._session = self._session or self.backend.rows.take(wait.call_s(self.backend.timeout_s))
        queued, self._queue_next = self._queue_next, False
        try:
            found = self._in_queue(session, wait) if queued else self._at_once(session, wait)
            if found is None:
                self._make_row(session, wait)
                found = self._at_once(session, wait)
            self.answered = True
            if found:
                return self._grant(session, wait)
        except BaseException as error:
            called_off = queued and self._called_off(wait)
            self._drop(session, kill=called_off)
            if isinstance(error, LockUnavailable) and called_off:
                return 0.0  # the end of our wait is what ended it
            raise
        self._queue_next = True
        return 0.0

    def _make_row(self, session: Session, wait: Wait) -> None:
        session.run("ROLLBACK", timeout_s=wait.call_s(self.backend.timeout_s))
        # Refused: another one made it just now, and has it.
        with contextlib.suppress(Refused):
            self._client.run("INSERT IGNORE INTO seckill_lock_rows (name) VALUES (%s)", (self._key,), tell=_TAKEN)

    def _at_once(self, session: Session, wait: Wait) -> bool | None:
        """Whether we have the row; None if there is none, which would exclude nobody."""
        try:
            # Answered at once, or there is no server: while we wait in its queue we can't tell.
            timeout_s = wait.call_s(self.backend.timeout_s)
            answer = session.run(f"{_LOCK_ROW} NOWAIT", (self._key,), timeout_s=timeout_s, tell=(*_TAKEN, NO_TABLE))
        except Refused as refusal:
            return None if refusal.code == NO_TABLE else False
        return True if answer.rows else None

    def _in_queue(self, session: Session, wait: Wait) -> bool | None:
        """The same, after a wait. One that was ended (KILL QUERY, a limit of the server's) is an error."""
        self._line.session = session
        try:
            if self._called_off(wait):
                return False
            timeout_s = None if wait.wait_s is None else wait.left_s
            answer = session.run(_LOCK_ROW, (self._key,), timeout_s=timeout_s, tell=(NO_TABLE,))
        except Refused:
            return None
        finally:
            self._line.session = None  # nobody interrupts this session any more
        return True if answer.rows else None

    def _called_off(self, wait: Wait) -> bool:
        return self.backend.shutdown.begun or wait.cancel.is_set() or not wait.left_s

    def _grant(self, session: Session, wait: Wait) -> Grant:
        timeout_s = wait.call_s(self.backend.timeout_s)
        source, token = self.backend.tokens.next(timeout_s)
        asked_at = clock.now()
        holder = self._sign(session, token, timeout_s)
        hold = _Transaction(session, self.backend.rows)
        lease = Lease(f"{self.name}/{holder}", hold, self.backend.ttl_s, asked_at=asked_at)
        # The server frees the row as soon as the connection is closed: so the owner must know before.
        hold.forget = self.backend.shutdown.subscribe(partial(lease.lose, "the connection to MySQL was closed"))
        self._session, self.lease = None, lease
        self.backend.renewer.keep(lease)
        return Grant(lease.name, token, source, lease)

    def _sign(self, session: Session, token: int, timeout_s: float) -> str:
        """Write our name into the row. The transaction is still open then, so it was when the token was counted."""
        holder = secrets.token_hex(16)
        thread = short(threading.current_thread().name)
        session.run(
            "UPDATE seckill_lock_rows SET holder = %s, token = %s, host = %s, process = %s, thread = %s, "  # noqa: S608
            f"since = {NOW}, session = CONNECTION_ID() WHERE name = %s",
            (holder, token, short(self.backend.instance), os.getpid(), thread, self._key),
            timeout_s=timeout_s,
        )
        return holder

    def _drop(self, session: Session, *, kill: bool) -> None:
        self._session = None
        session.close()
        if kill:
            # The server would notice only when it is the session's turn.
            self._client.kill(session.id, _KILL_S)

    @override
    def leave(self, *, in_background: bool = False) -> None:
        session, self._session = self._session, None
        if session is not None and session.in_step and not in_background:
            with contextlib.suppress(LockUnavailable):
                session.run("ROLLBACK", timeout_s=self.backend.timeout_s)
                self.backend.rows.give(session)
        elif session is not None:
            session.close()
        super().leave(in_background=in_background)


class _Transaction:
    """The session whose open transaction has the row. Shared by the renewal thread and the one who releases."""

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


class MySqlForUpdateBackend(MySqlBackend):
    """Locks that are rows of the table seckill_lock_rows, locked by open transactions."""

    name = "mysql-for-update"
    # Not fair: MySQL 8 lets those go first who block most others (CATS); where all wait for one row only that has been
    # the order of their arrival, but nobody promises it.
    guarantees = Guarantees(fencing=True, survives_silence=True)

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(url, **options)
        self.rows = self.client.sessions(
            f"SET SESSION innodb_lock_wait_timeout = {_FOR_EVER_S}",
            "SET SESSION autocommit = 0",  # a transaction begins with its first statement
            silent_s=self.ttl_s,  # in whole seconds, rounded up: never shorter than we believe in a lease
        )
        self.lookers = self.client.sessions("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")

    @override
    def lock(self, name: str) -> MySqlForUpdateLock:
        return MySqlForUpdateLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        return holders(self.client, f"{_SHOW} name >= %s AND name < %s ORDER BY name", under(prefix), self.lookers)

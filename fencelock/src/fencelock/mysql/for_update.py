"""The lock of a MySQL transaction: SELECT ... FOR UPDATE on the row with the lock's name, open as long as the grant."""

import asyncio
import contextlib
import math
import os
import secrets
from functools import partial
from typing import Final

from typing_extensions import override

from .. import clock
from ..backend import Guarantees
from ..connection import Attempt, Connection, Terms
from ..contender import whoami
from ..errors import LockUnavailable
from ..grant import Grant
from ..lease import Lease
from ..waiting import Wait
from .backend import NOW, OWNER_COLUMNS, MySqlBackend, MySqlConnection, key, short
from .client import DUPLICATE, NO_TABLE, Sessions
from .session import MySqlSession, SqlRefused, StatementResult

_TAKEN: Final = (1205, 3572)  # the errors of MariaDB and MySQL for NOWAIT
_NO_SESSION: Final = 1094
_KILL_S: Final = 0.25
_LOCK_ROW: Final = "SELECT 1 FROM fencelock_rows WHERE name = %s FOR UPDATE"
_SESSION: Final = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE %s AND ID <> CONNECTION_ID()"
_SHOW: Final = f"SELECT {OWNER_COLUMNS}, NULL FROM fencelock_rows WHERE holder IS NOT NULL AND "  # noqa: S608


class _MySqlForUpdateAttempt(Attempt["MySqlForUpdateConnection"]):
    """A row lock, held by an open transaction, in MySQL's own queue, and fenced by a counter.

    It asks for the row without waiting. If the row is taken, a task waits in the server's queue, on a session of its
    own, and wakes the waiter when the server has answered. A wait ends after half a TTL and begins anew, so that a dead
    waiter can get the lock no later than that, and a waiter notices that its connection is silent.

    That transaction writes the owner's name and token into the row, and never commits: `contenders` reads uncommitted
    data, and it vanishes with the grant, however that ends.
    """

    brief = False

    def __init__(self, connection: "MySqlForUpdateConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._rows = connection.rows
        self._who = whoami()
        self._client = connection.client
        self._key = key(name)
        self._session: MySqlSession | None = None
        self._queue_next = False  # the row is taken: the next try waits for it
        self._queued: asyncio.Task[bool | None] | None = None
        self._mark = secrets.token_hex(16)  # of its statement in the server's queue
        self._queue_s = max(1, math.ceil(ttl_s / 2))  # for so long the server lets it wait there

    @override
    async def take(self, wait: Wait) -> Grant | float:
        try:
            session, queued = self._session or await self._begin(wait), self._queued
            if self._queue_next:
                self._queue_next = False
                queued = self._queued = asyncio.create_task(self._in_queue(session))
                queued.add_done_callback(lambda _: self.wake.set())
            if queued is not None and not queued.done():
                return math.inf
            self._queued = None
            found = await self._at_once(session, wait) if queued is None else queued.result()
            if found is None:
                await self._make_row(session, wait)
                found = await self._at_once(session, wait)
            self.answered = True
            if found:
                return await self._grant(session, wait)
        except BaseException:
            await self._drop()
            raise
        self._queue_next = True
        return 0.0

    async def _begin(self, wait: Wait) -> MySqlSession:
        session = self._session = await self._rows.take(wait.call_s(self.timeout_s))
        if session.notes.get("ttl_s") != self.ttl_s:  # all TTLs share the pool
            silent_s = math.ceil(self.ttl_s)  # rounded up: never shorter than we believe in a lease
            await session.run(
                # A transaction begins with its first statement.
                f"SET SESSION autocommit = 0, innodb_lock_wait_timeout = {self._queue_s}, wait_timeout = {silent_s}, "
                f"net_read_timeout = {silent_s}",
                timeout_s=wait.call_s(self.timeout_s),
            )
            session.notes["ttl_s"] = self.ttl_s
        return session

    async def _make_row(self, session: MySqlSession, wait: Wait) -> None:
        await session.run("ROLLBACK", timeout_s=wait.call_s(self.timeout_s))
        # Refused: another contender made it just now, or has it. (With IGNORE the driver would log a warning.)
        refusals = (*_TAKEN, DUPLICATE)
        with contextlib.suppress(SqlRefused):
            await self._client.ask("INSERT INTO fencelock_rows (name) VALUES (%s)", (self._key,), tell=refusals)

    async def _at_once(self, session: MySqlSession, wait: Wait) -> bool | None:
        """Return whether we have the row; None if there is no row, as nothing is locked then."""
        # This is answered at once, unless the server is away, which we can't notice in its queue.
        return await self._lock_row(session, f"{_LOCK_ROW} NOWAIT", wait.call_s(self.timeout_s))

    async def _in_queue(self, session: MySqlSession) -> bool | None:
        """Return the same after a wait in the queue. If somebody ends the wait (KILL QUERY), that is an error."""
        sql = _LOCK_ROW.replace("1", f"/* {self._mark} */ 1", 1)
        # No answer later than that: the connection is silent.
        return await self._lock_row(session, sql, self._queue_s + self.timeout_s)

    async def _lock_row(self, session: MySqlSession, sql: str, timeout_s: float) -> bool | None:
        try:
            answer = await session.run(sql, (self._key,), timeout_s=timeout_s, tell=(*_TAKEN, NO_TABLE))
        except SqlRefused as refusal:
            return None if refusal.code == NO_TABLE else False
        return True if answer.rows else None

    async def _grant(self, session: MySqlSession, wait: Wait) -> Grant:
        timeout_s = wait.call_s(self.timeout_s)
        source, token = await self.connection.tokens.next(timeout_s)
        asked_at = clock.now()
        holder = await self._sign(session, token, timeout_s)
        hold = _Transaction(session, self._rows)
        lease = Lease(f"{self.name}/{holder}", hold, self.ttl_s, asked_at=asked_at)
        # The server frees the row as soon as the connection is closed: so the owner must know before.
        session.before_end = partial(lease.lose, "the connection to MySQL was closed")
        self._session, self.lease = None, lease
        self.renewer.keep(lease)
        return Grant(lease.name, token, source, lease)

    async def _sign(self, session: MySqlSession, token: int, timeout_s: float) -> str:
        """Write our name into the row: this proves that the transaction was open when the token was counted."""
        holder = secrets.token_hex(16)
        thread = short(self._who)
        await session.run(
            "UPDATE fencelock_rows SET holder = %s, token = %s, host = %s, process = %s, thread = %s, "  # noqa: S608
            f"since = {NOW}, session = CONNECTION_ID() WHERE name = %s",
            (holder, token, short(self.connection.terms.instance), os.getpid(), thread, self._key),
            timeout_s=timeout_s,
        )
        return holder

    async def _drop(self) -> None:
        """End the session, and the wait on it if there is one."""
        session, self._session = self._session, None
        queued, self._queued = self._queued, None
        self._queue_next = False
        called_off = queued is not None and not queued.done()
        if queued is not None:
            queued.cancel()
            await asyncio.wait({queued})
            _ = queued.cancelled() or queued.exception()  # nobody else asks for it any more
        if session is not None:
            await session.end()
            await self._rows.give(session)
            if called_off:
                await self._leave_queue()

    async def _leave_queue(self) -> None:
        """End the session that waits, on the server, which would notice only when it is the session's turn.

        Its number may be another one's by now, as they begin anew with the server: so the server is asked, over one
        connection, for the number of the session that runs our statement, and while it runs no number is used twice.
        """

        with contextlib.suppress(LockUnavailable, SqlRefused):
            async with self._client.lent() as lent:
                found = await self._client.ask(_SESSION, (f"%{self._mark}%",), timeout_s=_KILL_S, sessions=lent)
                for (number,) in found.rows:
                    await self._client.ask(f"KILL {number:d}", timeout_s=_KILL_S, tell=(_NO_SESSION,), sessions=lent)

    @override
    async def leave(self, *, in_background: bool = False) -> None:
        with contextlib.suppress(LockUnavailable):
            if self._session is not None and self._queued is None and self._session.open and not in_background:
                session, self._session, self._queue_next = self._session, None, False
                await _roll_back(session, self._rows, self.timeout_s)
            else:
                await self._drop()
        await super().leave(in_background=in_background)


async def _roll_back(session: MySqlSession, rows: Sessions, timeout_s: float) -> None:
    """Roll back, and keep the session for later. Without an answer the connection is closed, which rolls back, too."""
    try:
        with contextlib.suppress(LockUnavailable):
            await session.run("ROLLBACK", timeout_s=timeout_s)
    finally:
        await rows.give(session)


class _Transaction:
    """The session whose open transaction has the row. The renewal and the release share the transaction."""

    def __init__(self, session: MySqlSession, rows: Sessions) -> None:
        self._session: MySqlSession | None = session
        self._rows = rows
        self._asked: asyncio.Task[StatementResult] | None = None
        self._turn = asyncio.Lock()  # a release must not begin between the two halves of a renewal

    async def renew(self, timeout_s: float) -> bool:
        """Ask the server for nothing, which also resets its timeout for idle sessions."""
        session = self._session
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                await self._answered()  # an answer to an earlier question proves nothing about now
                if session is not None and session.open:
                    # Without a deadline, after which the session would be ended, and the row be free.
                    self._asked = asyncio.create_task(session.run("DO 0", timeout_s=None))
                    self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
                    await self._answered()
        except TimeoutError:
            raise LockUnavailable("MySQL does not answer") from None
        return session is not None and session.open

    async def _answered(self) -> None:
        if self._asked is not None:
            await asyncio.wait({self._asked})
            self._asked = None

    async def end(self, timeout_s: float) -> None:
        """Roll back. Without an answer the connection is closed, which does the same."""
        session, self._session = self._session, None
        if session is None:
            return
        session.before_end = lambda: None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._turn:
                await self._answered()
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.wait({self._asked})
        await _roll_back(session, self._rows, timeout_s)


class MySqlForUpdateConnection(MySqlConnection):
    """Rows of the table fencelock_rows, locked by open transactions."""

    show = _SHOW

    def __init__(self, terms: Terms, url: str) -> None:
        super().__init__(terms, url)
        self.rows = self.client.sessions()
        self.lookers = self.client.sessions("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")

    @override
    def attempt(self, name: str, ttl_s: float) -> _MySqlForUpdateAttempt:
        return _MySqlForUpdateAttempt(self, name, ttl_s)


class MySqlForUpdateBackend(MySqlBackend):
    """Locks that are rows of the table fencelock_rows, locked by open transactions."""

    name = "mysql-for-update"
    # Not fair: in MySQL 8 the transactions that block most others go first (CATS). Where all wait for one row only,
    # that has been the order of their arrival, but nobody promises it.
    guarantees = Guarantees(fencing=True, survives_silence=True, elects=True)

    @override
    def connect(self) -> Connection:
        return MySqlForUpdateConnection(self.terms, self._url)

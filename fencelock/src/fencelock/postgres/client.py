"""The client of PostgreSQL: a few sessions, calls with a deadline and our own errors.

In `fencelock` only this file and `listener` import psycopg.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final

import psycopg
from psycopg import conninfo, errors, waiting
from typing_extensions import override

from .. import clock
from ..errors import ConfigurationError, LockUnavailable

SCHEMA: Final = files(__package__ or "").joinpath("schema.sql").read_text()
# A call is one message, and the message one transaction: a client that is paused keeps no row locked. A database may
# have other defaults, and a session of a pooler those that its last client has left: all programs must find the same
# tables, or each has locks of its own. A standby refuses to write here, and not in the middle.
_BEGIN: Final = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL synchronous_commit = on; "
    "SET LOCAL search_path = %(tables_in)s; "
)
_LIMITS: Final = "SET LOCAL lock_timeout = %(timeout_ms)s; SET LOCAL statement_timeout = %(timeout_ms)s; "
# The same for as long as a session of our own lives, where statements are prepared, too.
_OWN: Final = (
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; "
    "SET synchronous_commit = on; SET search_path = %(tables_in)s; "
    "SET lock_timeout = %(timeout_ms)s; SET statement_timeout = %(timeout_ms)s; "
    "SELECT set_config('idle_session_timeout', '0', false) "
    "WHERE current_setting('idle_session_timeout', true) IS NOT NULL"  # older servers have none
)
_SHORTER: Final = 0.9  # a call whose limit is below this part of the session's sets its own
# A call that arrives after its deadline, as from a server that stood still, does nothing: nobody waits for it, and its
# place in a queue would block others.
_IN_TIME: Final = "SELECT 1 / (clock_timestamp() < to_timestamp(%(until)s))::int;\n"
_WHERE: Final = "SELECT extract(epoch FROM clock_timestamp())::float8, pg_backend_pid(), pg_is_in_recovery()"
_TABLES_IN: Final = re.compile(r"(?:-c\s*|--)search_path=(\S*)")
_VALUE: Final = re.compile(r"%\((\w+)\)s")
_SESSIONS_MAX: Final = 4  # for calls that may wait for a row
_RENEWALS_MAX: Final = 2  # for those that don't
_MIN_CALL_S: Final = 0.001
_AFTERMATH_S: Final = 0.25
_MADE_AT_ONCE: Final = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)
_MAY_NOT: Final = (errors.InsufficientPrivilege, errors.InvalidSchemaName)

Rows = list[tuple[Any, ...]]


class PostgresSession(psycopg.AsyncConnection[Any]):
    """A connection to the server, for one at a time.

    `until`: the deadline of its call, on the loop's clock; `ahead_s`: by how much the server's clock is ahead of ours;
    `prepared`: the statements that the server keeps for it; None if a pooler is in between, where the next call may
    come to another session of the server, and nobody hears what is listened to.
    """

    until = ahead_s = 0.0
    prepared: set[str] | None = None

    @override
    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Do the same as psycopg's, but ask no server to cancel anything, as it may be silent.

        A cancelled caller waits a little for its answer, so that this request doesn't arrive after its next one.
        """
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            left_s = min(_AFTERMATH_S, self.until - asyncio.get_running_loop().time())
            try:
                if left_s <= 0:
                    raise TimeoutError
                await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=left_s)
            except BaseException:
                self.pgconn.finish()
            raise

    def __del__(self, *_: object) -> None:
        """Leave the end to libpq, without a warning: its loop may be over, and in a child it is the parent's."""

    async def run(self, sql: str, args: Mapping[str, Any], timeout_s: float) -> list[Rows]:
        """Send one message, and return the rows of each statement. Raises psycopg's errors and `TimeoutError`."""
        self.until = asyncio.get_running_loop().time() + timeout_s
        async with asyncio.timeout(max(_MIN_CALL_S, timeout_s)), self.cursor() as cursor:
            await cursor.execute(sql, args)
            found = [await _rows(cursor)]
            while cursor.nextset():
                found.append(await _rows(cursor))
        self.until = 0.0
        return found

    @property
    def alive(self) -> bool:
        """Whether the server has not hung up, as far as is known without asking."""
        try:
            for _ in range(2):  # its last messages, and the end
                self.pgconn.consume_input()
        except psycopg.Error:
            return False
        return not self.broken and not self.closed


@cache
def _statements(sql: str) -> list[tuple[str, str, str]]:
    """Return each statement's name, such as `insert_fencelock_names_07ab...`, and what prepares and executes it."""
    found = []
    for text in filter(str.strip, sql.split(";\n")):
        names = list(dict.fromkeys(_VALUE.findall(text)))
        numbered = _VALUE.sub(lambda value, names=names: f"${names.index(value[1]) + 1}", text)  # type: ignore[misc]
        verb, *tables = re.findall(r"^\s*\w+|fencelock_\w+", numbered)
        mark = hashlib.sha256(numbered.encode()).hexdigest()[:16]
        name = "_".join([verb.strip().lower(), *tables[:1], mark])
        values = ", ".join(f"%({one})s" for one in names)
        found.append((name, f"PREPARE {name} AS {numbered}; ", f"EXECUTE {name}({values}); ".replace("()", "")))
    return found


async def _rows(cursor: psycopg.AsyncCursor[Any]) -> Rows:
    return await cursor.fetchall() if cursor.description else []


class PostgresClient:
    """Sessions of one database, for one event loop. `url`: as libpq has it, `postgresql://`.

    The tables are in the schema `public`, or in that of `?options=-csearch_path%3Dlocks`.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._parts = self.check(url)
        self._tables_in = self._parts.pop("tables_in")
        self._closed = False
        self._idle: list[PostgresSession] = []
        # A row that somebody keeps locked by hand blocks its contenders, and no renewal.
        self._turns, self._renewals = asyncio.Semaphore(_SESSIONS_MAX), asyncio.Semaphore(_RENEWALS_MAX)

    @staticmethod
    def check(url: str) -> dict[str, Any]:
        """Return the parts of a URL, and `tables_in`, a schema. Raises `ConfigurationError`, which quotes nothing."""
        try:
            parts: dict[str, Any] = dict(conninfo.conninfo_to_dict(url))
            # A password that is not escaped would be taken for a part of these, which messages name.
            named = f"{parts.get('host', '')}{parts.get('dbname', '')}"
            if "@" in named or not re.fullmatch(r"[\d,]*", str(parts.get("port", ""))):
                raise psycopg.ProgrammingError
        except (psycopg.Error, UnicodeError):
            raise ConfigurationError(
                "not the URL of a PostgreSQL: say postgres://user:password@host:5432/database, percent-escaped, with "
                "options of libpq, such as ?sslmode=verify-full"
            ) from None
        if "," in str(parts.get("host", "")):
            parts.setdefault("target_session_attrs", "read-write")  # the primary among them
        # Set by ourselves, as a pooler passes no options.
        options = parts.pop("options", "")
        names = _TABLES_IN.findall(options) or ["public"]
        if len(names) > 1 or not re.fullmatch(r"[\w$-]+", names[0]):
            raise ConfigurationError(
                "the schema of the locks' tables is one name of letters, digits, '_', '-' and '$': "
                "?options=-csearch_path%3Dlocks"
            )
        parts["tables_in"] = names[0]
        if options := _TABLES_IN.sub("", options).strip():
            parts["options"] = options
        return {"application_name": "fencelock", "gssencmode": "disable"} | parts | {"client_encoding": "utf8"}

    async def ask(
        self, sql: str, args: Mapping[str, Any] | None = None, timeout_s: float | None = None, *, renewal: bool = False
    ) -> Sequence[Rows]:
        """Run statements as one message and one transaction, and return the rows of each. Makes missing tables.

        Raises `LockUnavailable` if it is unknown whether the server has done it.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        turns = self._renewals if renewal else self._turns
        try:
            until = asyncio.get_running_loop().time() + timeout_s
            async with asyncio.timeout(timeout_s), turns:
                try:
                    return await self._ask(sql, args or {}, until)
                except errors.UndefinedTable:
                    with suppress(*_MADE_AT_ONCE):  # by another program
                        await self._make_tables(until)
                except errors.DivisionByZero:  # in time, but the clocks have drifted: nothing was done
                    while self._idle:
                        self.drop(self._idle.pop())
                except errors.ProgramLimitExceeded:  # the queue of messages, which all databases share, is full
                    args = {**(args or {}), "tells": False}
                return await self._ask(sql, args or {}, until)
        except (psycopg.Error, OSError, UnicodeError) as error:  # TimeoutError, and a host that can't be a name
            raise self.failed(error) from error

    async def _ask(self, sql: str, args: Mapping[str, Any], until: float, *, once: bool = False) -> Sequence[Rows]:
        session = await self._take(until)
        left_s = until - asyncio.get_running_loop().time()
        limits = {
            "timeout_ms": max(1, math.ceil(left_s * 1000)),
            "until": session.ahead_s + clock.now() + max(_MIN_CALL_S, left_s),
            "tables_in": self._tables_in,
        }
        statements = _statements(_IN_TIME + sql)
        if session.prepared is None or once:
            message = f"{_BEGIN}{_LIMITS}{_IN_TIME}{sql}"
        else:
            message = "".join(prepare for name, prepare, _ in statements if name not in session.prepared)
            message += _LIMITS if left_s < self.timeout_s * _SHORTER else ""
            message += "".join(execute for _, _, execute in statements)
        try:
            found = await session.run(message, {"tells": True, **args, **limits}, left_s)
        except BaseException as error:
            # Its answer may still come; or the server may be no primary any more.
            self.drop(session)
            while isinstance(error, TimeoutError) and self._idle:  # idle sessions use the same broken path
                self.drop(self._idle.pop())
            raise
        if session.prepared is not None and not once:
            session.prepared.update(name for name, _, _ in statements)
        if self._closed:
            self.drop(session)
        else:
            self._idle.append(session)
        return found[1 - len(statements) :]

    async def _make_tables(self, until: float) -> None:
        try:
            await self._ask(SCHEMA, {}, until, once=True)
        except _MAY_NOT as error:
            raise LockUnavailable(
                f"the tables of the locks are missing, and this user may not make them ({text_of(error)}); have the "
                f"owner of the schema run:\n{SCHEMA}"
            ) from None

    async def _take(self, until: float) -> PostgresSession:
        while self._idle:
            session = self._idle.pop()
            if session.alive:
                return session
            self.drop(session)
        return await self.dial(until - asyncio.get_running_loop().time())

    async def dial(self, timeout_s: float) -> PostgresSession:
        """Open a session. Raises psycopg's errors and `TimeoutError`."""
        if self._closed:
            raise LockUnavailable("the connection to PostgreSQL is closed")
        async with asyncio.timeout(max(_MIN_CALL_S, timeout_s)):
            session = await PostgresSession.connect(
                autocommit=True,
                # Statements go with their values as one message, and only we prepare statements.
                cursor_factory=psycopg.AsyncClientCursor,
                prepare_threshold=None,
                **self._parts,
            )
            asked_at = clock.now()
            try:
                [[(now, process, stands_by)]] = await session.run(_WHERE, {}, timeout_s)
                session.ahead_s = now - asked_at
                if stands_by:
                    raise psycopg.OperationalError("it is a standby, which grants no locks")
                if process == session.info.backend_pid:
                    own = {"tables_in": self._tables_in, "timeout_ms": math.ceil(self.timeout_s * 1000)}
                    await session.run(_OWN, own, timeout_s)
                    session.prepared = set()
            except BaseException:
                self.drop(session)
                raise
        if self._closed:
            self.drop(session)
            raise LockUnavailable("the connection to PostgreSQL is closed")
        return session

    def drop(self, session: PostgresSession) -> None:
        """End a session; the server rolls uncommitted writes back."""
        session.pgconn.finish()

    async def close(self) -> None:
        """End the sessions that nobody uses, and the others when their call is over."""
        self._closed = True
        while self._idle:
            self.drop(self._idle.pop())

    def failed(self, error: BaseException) -> LockUnavailable:
        """Return our error for a driver's error; ours never has the password."""
        at = f"{self._parts.get('host', 'localhost')}:{self._parts.get('port', 5432)}"
        return LockUnavailable(f"PostgreSQL at {at}: {text_of(error)}")


def text_of(error: BaseException) -> str:
    """Return the first line of an error, and never a statement."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, errors.DivisionByZero):
        return "the call came too late"
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = said or next(iter(str(error).splitlines()), "") or "the connection is lost"
    return "it is a standby, which grants no locks" if "during recovery" in text else text

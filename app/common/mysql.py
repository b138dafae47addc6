"""MySQL and MariaDB: sessions that are shared out, each statement with a deadline, errors of ours.

The only file that imports PyMySQL. It knows nothing of what the sessions are for.
"""

import contextlib
import math
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakSet

from app.common import fork
from app.errors import ConfigurationError, SeckillError

Result = TypeVar("Result")

try:
    import pymysql
    from pymysql.constants import CLIENT, COMMAND
except ImportError:  # an extra: said when a client is made
    pymysql = None

DEADLOCK: Final = 1213
DUPLICATE: Final = 1062
NO_TABLE: Final = 1146
_NO_THREAD: Final = 1094
_TABLE_EXISTS: Final = 1050
# The server says this and hangs up: shutting down, killed, idle for too long. 2000 and above are PyMySQL's own.
_FAREWELLS: Final = {1053, 1152, 1159, 1160, 1161, 1927, 3169, 4031}
_TRIES: Final = 5  # of a statement that was chosen to end a deadlock
_IDLE_MAX: Final = 16  # sessions kept for later
_SILENT_S: Final = 60.0
_MIN_CALL_S: Final = 0.001  # 0 would mean: don't block
# A host that is gone without a word is noticed by the kernel after 5 + 3 x 5 s, however long an answer may take.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_URL: Final = "mysql://user:password@host:3306/database, percent-escaped, and ?ssl_ca=/path/to/ca.pem for TLS"


class Refused(Exception):
    """The server's refusal of a statement, with a code that the caller had asked to be told. The session is well."""

    def __init__(self, code: int, text: object) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave. `matched`: rows found or written; `last_id`: what LAST_INSERT_ID was set to."""

    rows: tuple[tuple[Any, ...], ...]
    matched: int
    last_id: int


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    ssl_ca: str | None

    @classmethod
    def parse(cls, url: str) -> "_Address":
        # What is wrong is never quoted: with an unescaped "/" or "@" a password is anywhere, the port included.
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
            options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
            address = cls(
                host=parts.hostname or "",
                port=port,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                database=unquote(parts.path[1:]),
                ssl_ca=options["ssl_ca"][-1] if options else None,
            )
        except (ValueError, KeyError):
            raise ConfigurationError(f"not a MySQL URL; it looks like {_URL}") from None
        whole = address.host and address.user and address.database and parts.scheme in ("mysql", "mariadb")
        if not whole or options.keys() - {"ssl_ca"} or parts.fragment or "/" in parts.path[1:] or "@" in parts.path:
            raise ConfigurationError(f"not a MySQL URL; it looks like {_URL}")
        return address


class Session:
    """A connection, for one thread at a time; `wake` may be called by any."""

    def __init__(self, connection: Any, failed: Callable[[object], SeckillError]) -> None:
        self._connection = connection
        self._failed = failed
        self._ping_is_out = False
        self.id = int(connection.thread_id())
        self.idle_since = time.monotonic()

    @property
    def open(self) -> bool:
        """Whether it can be used, as far as we know."""
        return bool(self._connection.open)

    @property
    def quiet(self) -> bool:
        """Whether the server has said nothing unasked for, which would be that it has hung up."""
        return self.open and not _readable(self._connection._sock, 0)

    def run(self, sql: str, args: Sequence[Any] = (), *, timeout_s: float | None, tell: Sequence[int] = ()) -> Answer:
        """Run a statement; `timeout_s`: None waits as long as it takes. Refusals in `tell` are raised as `Refused`.

        After any other error that leaves the outcome open the session is closed.
        """
        connection = self._connection
        # PyMySQL has deadlines per connection only; it sets the socket's from these before each packet.
        connection._read_timeout = None if timeout_s is None else max(_MIN_CALL_S, timeout_s)
        connection._write_timeout = connection._read_timeout
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, args or None)
                return Answer(tuple(cursor.fetchall()), cursor.rowcount, cursor.lastrowid or 0)
        except (pymysql.Error, OSError) as error:
            code = _code(error)
            if code is None or code >= 2000 or code < 1000 or code in _FAREWELLS:
                self.close()
            elif code in tell:
                raise Refused(code, error.args[-1]) from None
            raise self._failed(error) from error
        except BaseException:
            self.close()  # interrupted in mid-protocol: the next answer would be the last question's
            raise

    def ping(self, timeout_s: float) -> bool:
        """Whether the session lives on the server. Raises when there is no answer in time; then one may ask again.

        (`run` would have to give the connection up: the answer could still come.)
        """
        deadline = time.monotonic() + timeout_s
        try:
            if self._ping_is_out:  # an answer to that says nothing of now
                self._pong(deadline)
            self._connection._write_timeout = max(_MIN_CALL_S, timeout_s)
            self._connection._execute_command(COMMAND.COM_PING, "")
            self._ping_is_out = True
            self._pong(deadline)
        except (pymysql.Error, OSError, ValueError):
            self.close()
        return self.open

    @property
    def in_step(self) -> bool:
        """Whether no answer is outstanding, so that `run` may be used."""
        return self.open and not self._ping_is_out

    def _pong(self, deadline: float) -> None:
        if not _readable(self._connection._sock, max(0.0, deadline - time.monotonic())):
            raise self._failed("it doesn't answer")
        self._connection._read_timeout = 1.0
        self._connection._read_ok_packet()
        self._ping_is_out = False

    def wake(self) -> None:
        """Have the thread that waits for an answer see the end of the connection instead."""
        with contextlib.suppress(OSError, AttributeError, TypeError):
            # Not the method of an SSLSocket, which would take the TLS state from under the reader's feet.
            socket.socket.shutdown(self._connection._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the server rolls back what was not committed."""
        self._connection._force_close()

    def forget(self) -> None:
        """In a forked child, whose parent has the connection: close the copy of it."""
        fork.close_copy(self._connection._sock)
        self._connection._sock = self._connection._rfile = None


class Call:
    """Statements over one session, with one deadline for all of them (of `time.monotonic`)."""

    def __init__(self, session: Session, deadline: float) -> None:
        self._session = session
        self._deadline = deadline
        self._begun = False

    def run(self, sql: str, args: Sequence[Any] = (), *, tell: Sequence[int] = ()) -> Answer:
        """As `Session.run`; without a transaction that was begun each statement is one."""
        left_s = max(_MIN_CALL_S, self._deadline - time.monotonic())
        return self._session.run(sql, args, timeout_s=left_s, tell=(*tell, DEADLOCK, NO_TABLE))

    def begin(self) -> None:
        """Begin a transaction, unless there is one."""
        if not self._begun:
            self.run("START TRANSACTION")
            self._begun = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun and error is None:
            self.run("COMMIT")
        elif self._begun and self._session.open:
            self.run("ROLLBACK")


class Sessions:
    """Sessions with the same settings. `idle_s`: an unused one is not kept for longer."""

    def __init__(self, client: "MySqlClient", settings: Sequence[str], *, idle_s: float) -> None:
        self._client = client
        self._settings = settings
        self._idle_s = idle_s
        self._idle: deque[Session] = deque()  # its own methods are atomic

    def take(self, timeout_s: float) -> Session:
        """One that nobody else uses; to be given back, or closed."""
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return self._client.connect(self._settings, timeout_s)
            if time.monotonic() - session.idle_since < self._idle_s and session.quiet:
                return session
            session.close()

    def give(self, session: Session) -> None:
        """Keep it for the next one, if it is well."""
        if not session.in_step or len(self._idle) >= _IDLE_MAX:
            session.close()
            return
        session.idle_since = time.monotonic()
        self._idle.append(session)
        if self._client.closed:
            self.close()

    def close(self) -> None:
        """Close those that nobody uses."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class MySqlClient:
    """Sessions to one database. All methods may be called from any thread.

    `url`: see `_URL`; without `ssl_ca` there is no TLS. `timeout_s`: deadline of a call. `unavailable`: what is raised
    when the server can't be reached or refuses us. `schema`: statements that create tables, for when one is missing;
    `made_once`: only before the first call, as what is missing later has been lost.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        unavailable: type[SeckillError],
        schema: Sequence[str] = (),
        made_once: bool = False,
    ) -> None:
        if pymysql is None:
            raise ConfigurationError("MySQL needs PyMySQL: pip install 'seckill[mysql]'")
        self.timeout_s = timeout_s
        self._address = _Address.parse(url)
        self._tls = _tls(self._address.ssl_ca)
        self._unavailable = unavailable
        self._schema = schema
        self._made_once = made_once
        self._made = False
        self._live: WeakSet[Session] = WeakSet()  # a forgotten one closes itself
        self._begin()
        fork.in_child(self._begin)
        self.closed = False
        self._pools: list[Sessions] = []
        # 1 s, the shortest that there is: these statements wait for nothing but each other.
        self._sessions = self.sessions("SET SESSION innodb_lock_wait_timeout = 1")

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        live, self._live = self._live, WeakSet()
        for session in live:  # of a parent; no pool will give out what is closed
            session.forget()

    def sessions(self, *settings: str, silent_s: float = _SILENT_S) -> Sessions:
        """A pool of sessions with these settings. `silent_s`: the server ends a session that is idle for longer."""
        common = (
            # Locks of rows that a statement looked at and did not want are let go, and no gaps are locked.
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            # Whatever the server's default: an overlong value is an error, and a backslash escapes.
            # `net_read_timeout`: for the rest of a statement whose beginning has come.
            f"SET SESSION sql_mode = 'STRICT_ALL_TABLES', wait_timeout = {math.ceil(silent_s)}, "
            f"net_read_timeout = {math.ceil(silent_s)}",
        )
        pool = Sessions(self, (*common, *settings), idle_s=silent_s / 2)
        self._pools.append(pool)
        return pool

    def run(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        tell: Sequence[int] = (),
        sessions: Sessions | None = None,
    ) -> Answer:
        """Run one statement, a transaction of its own. As for missing tables see `call`."""
        return self.call(lambda call: call.run(sql, args, tell=tell), timeout_s=timeout_s, tell=tell, sessions=sessions)

    def call(
        self,
        work: Callable[[Call], Result],
        *,
        timeout_s: float | None = None,
        tell: Sequence[int] = (),
        sessions: Sessions | None = None,
    ) -> Result:
        """Run some statements over one session. Missing tables are created first, or named (see `made_once`).

        A transaction that they have begun is committed in the end, or rolled back if they raise. What was chosen to end
        a deadlock wrote nothing, and is run again: `work` must bear that.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        sessions = sessions or self._sessions
        deadline = time.monotonic() + timeout_s
        for attempt in range(_TRIES):
            session = sessions.take(timeout_s)
            try:
                try:
                    if self._made_once and not self._made:
                        self._make_missing_tables(session)
                    with Call(session, deadline) as call:
                        return work(call)
                except Refused as refusal:
                    if refusal.code in tell or attempt == _TRIES - 1:
                        raise
                    if refusal.code == NO_TABLE:
                        if self._made_once:
                            raise
                        self._create_tables(session)
            except Refused as refusal:
                if refusal.code in tell:
                    raise
                raise self._failed(refusal) from refusal
            finally:
                sessions.give(session)
        raise AssertionError("unreachable")

    def _make_missing_tables(self, session: Session) -> None:
        # Looked for, and not just created unless they exist: who only uses them needs no right to create any.
        names = [statement.split()[5] for statement in self._schema]  # CREATE TABLE IF NOT EXISTS name
        sql = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN %s"
        if session.run(sql, (names,), timeout_s=self.timeout_s).rows[0][0] < len(names):
            self._create_tables(session)
        self._made = True

    def _create_tables(self, session: Session) -> None:
        for statement in self._schema:
            with contextlib.suppress(Refused):  # somebody else did it at the same moment
                session.run(statement, timeout_s=self.timeout_s, tell=(_TABLE_EXISTS, DEADLOCK))

    def kill(self, session_id: int, timeout_s: float) -> None:
        """End a session of ours on the server, so far as that can be done."""
        with contextlib.suppress(Refused, self._unavailable):
            self.run(f"KILL {session_id}", timeout_s=timeout_s, tell=(_NO_THREAD,))

    def connect(self, settings: Sequence[str], timeout_s: float) -> Session:
        """A new session. Takes about a millisecond without TLS."""
        if self.closed:
            raise self._unavailable("the connection to MySQL is closed")
        deadline = time.monotonic() + timeout_s
        at = self._address
        tls: dict[str, Any] = {"ssl": self._tls} if self._tls else {"ssl_disabled": True}
        try:
            connection = pymysql.connect(
                host=at.host,
                port=at.port,
                user=at.user,
                password=at.password,
                database=at.database,
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,  # else an update that changes nothing says that it found nothing
                connect_timeout=timeout_s,
                read_timeout=timeout_s,  # of the greeting: a frozen server's kernel accepts all the same
                write_timeout=timeout_s,
                **tls,
            )
        except (pymysql.Error, OSError) as error:
            raise self._failed(error) from error
        except Exception as error:  # PyMySQL stumbles over a server that speaks something else
            raise self._failed(f"it doesn't speak MySQL: {type(error).__name__}") from error
        session = Session(connection, self._failed)
        if self._tls is not None and not connection._secure:  # PyMySQL < 1.2 goes on without
            session.close()
            raise self._failed("it has no TLS")
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        for statement in settings:
            session.run(statement, timeout_s=max(_MIN_CALL_S, deadline - time.monotonic()))
        with self._mutex:
            self._live.add(session)
        if self.closed:
            session.close()
            raise self._unavailable("the connection to MySQL is closed")
        return session

    def close(self) -> None:
        """Close all sessions. Calls under way end with an error."""
        self.closed = True
        for pool in self._pools:
            pool.close()
        with self._mutex:
            live = list(self._live)
        for session in live:
            session.wake()  # the call that uses it closes it

    def _failed(self, why: object) -> SeckillError:
        """Our error for one of PyMySQL's, which never have the password."""
        at = self._address
        text = why.args[-1] if isinstance(why, pymysql.Error) and why.args else why
        return self._unavailable(f"MySQL at {at.host}:{at.port}: {text or 'the connection is lost'}")


def _tls(ca_file: str | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)  # once: it takes tens of milliseconds
    except OSError as error:
        raise ConfigurationError(f"ssl_ca of the MySQL URL can't be read: {error}") from None


def _code(error: BaseException) -> int | None:
    return error.args[0] if error.args and isinstance(error.args[0], int) else None


def _readable(sock: Any, timeout_s: float) -> bool:
    """Whether something has arrived."""
    if not hasattr(select, "poll"):  # Windows; elsewhere `select` can't take a descriptor of 1024 or more
        return bool(select.select([sock], [], [], timeout_s)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(math.ceil(timeout_s * 1000)))

"""The client of MySQL and MariaDB: pools of sessions, transactions with a deadline, and our own errors.

SQLAlchemy pools the connections, with an engine for each set of settings.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from ..errors import ConfigurationError
from .address import Address
from .session import MIN_CALL_S, MySqlSession, SqlRefused, StatementResult, late, text_of

try:
    import asyncmy
    from asyncmy.constants import CLIENT
    from sqlalchemy.dialects.mysql import asyncmy as _  # noqa: F401 - else the first call would stop its loop for that
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
except ImportError:  # an extra; its lack is reported when a client is made
    asyncmy = None  # type: ignore[assignment]

DEADLOCK: Final = 1213
DUPLICATE: Final = 1062
NO_TABLE: Final = 1146
# Groups of servers that all take writes: a member may not have seen what another has just written.
GROUP: Final = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_group_name')"
_TABLE_EXISTS: Final = 1050
_TRIES: Final = 5  # tries of work that the server chose as a deadlock's victim
_SILENT_S: Final = 60.0
_IDLE_MAX: Final = 16  # connections kept for later
_DISPOSE_S: Final = 1.0


class Sessions:
    """Connections with the same settings: an engine of SQLAlchemy's."""

    def __init__(self, client: "MySqlClient", settings: Sequence[str]) -> None:
        self._client = client
        # The server gets nothing but a connection's settings, a ping when it is used again, and our statements.
        self.engine = create_async_engine(
            "mysql+asyncmy://",  # where it is and the password are the creator's: they can't get into an error
            async_creator=partial(client.dial, settings),
            pool_size=_IDLE_MAX,
            max_overflow=-1,
            pool_use_lifo=True,
            pool_pre_ping=True,
            pool_reset_on_return=None,
            skip_autocommit_rollback=True,
            hide_parameters=True,
            isolation_level="AUTOCOMMIT",
        )

    async def take(self, timeout_s: float) -> MySqlSession:
        """Return a session that nobody else uses; give it back, or end it."""
        client = self._client
        client.ensure_open()
        try:
            async with asyncio.timeout(max(MIN_CALL_S, timeout_s)):
                connection = await self.engine.connect()
        except TimeoutError:
            raise client.failed(late(timeout_s)) from None
        except (SQLAlchemyError, OSError) as error:
            raise client.failed(error) from error
        return client.session_of(connection)

    async def give(self, session: MySqlSession) -> None:
        """Keep a session for later if it is in order, else end it."""
        self._client.live.discard(session)
        if session.open:
            with suppress(SQLAlchemyError):
                await session.connection.close()
        else:
            await session.end()


class Lent:
    """A session for several calls in a row: as `Sessions`, but it is only given back at the end of the block."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._session: MySqlSession | None = None

    async def take(self, timeout_s: float) -> MySqlSession:
        """Return the session, or a new one if it has ended."""
        if self._session is None:
            self._session = await self._sessions.take(timeout_s)
        return self._session

    async def give(self, session: MySqlSession) -> None:
        """Keep the session for the next call if it is in order."""
        if not session.open:
            self._session = None
            await self._sessions.give(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._sessions.give(self._session)


class MySqlClient:
    """Sessions to one database, for one event loop.

    `url`: see `Address`; without `ssl_ca` there is no TLS. `timeout_s`: deadline of a call. `unavailable`: the error
    raised when the server can't be reached or refuses us. `schema`: statements that create missing tables.
    """

    def __init__(self, url: str, *, timeout_s: float, unavailable: type[Exception], schema: Sequence[str] = ()) -> None:
        self.timeout_s = timeout_s
        self._address = self.check(url)
        self._unavailable = unavailable
        self._schema = schema
        self.live: set[MySqlSession] = set()
        self.closed = False
        self._pools: list[Sessions] = []
        # 1 s, the shortest that there is: these statements wait for nothing but each other.
        self._sessions = self.sessions("SET SESSION innodb_lock_wait_timeout = 1")

    @staticmethod
    def check(url: str) -> Address:
        """Parse the URL. Raises `ConfigurationError`, also if a package is missing."""
        if asyncmy is None:
            raise ConfigurationError(
                "MySQL needs SQLAlchemy and asyncmy (fencelock's extra [mysql]): "
                "pip install 'sqlalchemy[asyncio]' asyncmy cryptography"
            )
        address = Address.parse(url)
        address.tls()
        return address

    def sessions(self, *settings: str) -> Sessions:
        """Make a pool of sessions with these settings."""
        common = (
            # So rows that a statement looked at and did not match are unlocked, and no gaps are locked.
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            # `sql_mode`, whatever the server's default is: an overlong value is an error, and a backslash escapes.
            # `net_read_timeout`: the wait for the rest of a statement whose beginning has come.
            f"SET SESSION sql_mode = 'STRICT_ALL_TABLES', wait_timeout = {_SILENT_S:.0f}, "
            f"net_read_timeout = {_SILENT_S:.0f}",
        )
        pool = Sessions(self, (*common, *settings))
        self._pools.append(pool)
        return pool

    def lent(self) -> Lent:
        """Return a session for several calls in a row."""
        return Lent(self._sessions)

    # -- statements --------------------------------------------------------------------------------------------------

    async def ask(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        tell: Sequence[int] = (),
        sessions: Sessions | Lent | None = None,
    ) -> StatementResult:
        """Run one statement, a transaction of its own. Missing tables are created first.

        A deadlock's victim wrote nothing, and is run again. Refusals in `tell` are raised as `SqlRefused`.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        sessions = sessions or self._sessions
        deadline = time.monotonic() + timeout_s
        for attempt in range(_TRIES):
            session = await sessions.take(deadline - time.monotonic() if attempt else timeout_s)
            left_s = max(MIN_CALL_S, deadline - time.monotonic())
            try:
                return await session.run(sql, args, timeout_s=left_s, tell=(*tell, DEADLOCK, NO_TABLE))
            except SqlRefused as refusal:
                if refusal.code in tell:
                    raise
                if attempt == _TRIES - 1:
                    raise self.failed(refusal) from refusal
                if refusal.code == NO_TABLE:
                    await self._create_tables(session)
            finally:
                await sessions.give(session)
        raise AssertionError("unreachable")

    async def _create_tables(self, session: MySqlSession) -> None:
        for statement in self._schema:
            with suppress(SqlRefused):  # the table was there, or somebody else made it at the same moment
                await session.run(statement, timeout_s=self.timeout_s, tell=(_TABLE_EXISTS, DEADLOCK))

    # -- connections -------------------------------------------------------------------------------------------------

    async def dial(self, settings: Sequence[str], autocommit: bool = True) -> Any:
        """Open one of the driver's connections, for an engine. Takes about a millisecond without TLS."""
        at = self._address
        try:
            driver = await asyncmy.connect(
                host=at.host,
                port=at.port,
                user=at.user,
                password=at.password.encode(),
                database=at.database,
                charset="utf8mb4",
                autocommit=autocommit,
                client_flag=CLIENT.FOUND_ROWS,  # else an update that changes nothing reports that it matched nothing
                connect_timeout=math.ceil(max(self.timeout_s, _SILENT_S)),  # ours is over everything, and shorter
                ssl=at.tls(),  # read anew: a certificate may have been replaced
            )
        except (asyncmy.errors.Error, OSError):
            raise
        except Exception as error:  # the driver fails so at a server that is no MySQL
            raise self.failed(f"it doesn't speak MySQL: {type(error).__name__}") from error
        try:
            async with driver.cursor() as cursor:
                for statement in settings:
                    await cursor.execute(statement)
            self.ensure_open()
        except BaseException:
            driver.close()
            raise
        return driver

    def session_of(self, connection: "AsyncConnection") -> MySqlSession:
        """Return the session of a pool's connection, which a caller has now."""
        session = MySqlSession(connection, self.failed)
        self.live.add(session)
        return session

    def ensure_open(self) -> None:
        """Raise `unavailable` once the client is closed."""
        if self.closed:
            raise self._unavailable("the connection to MySQL is closed")

    async def close(self) -> None:
        """End all sessions. Calls under way end with an error."""
        self.closed = True
        for session in list(self.live):
            session.before_end()
            session.cut()
        with suppress(TimeoutError, SQLAlchemyError, OSError):
            async with asyncio.timeout(_DISPOSE_S):
                for pool in self._pools:
                    await pool.engine.dispose()

    def failed(self, why: object) -> Exception:
        """Return our error for one of the driver's, which never contain the password."""
        at = self._address
        return self._unavailable(f"MySQL at {at.host}:{at.port}: {text_of(why)}")


def group_of(rows: Sequence[Any]) -> str | None:
    """Return the kind of group that a server belongs to, by its answer to `GROUP`; None for a single server."""
    found: dict[str, str] = dict(rows)
    if found.get("wsrep_on") == "ON":
        return "Galera"
    return "group replication" if found.get("group_replication_group_name") else None

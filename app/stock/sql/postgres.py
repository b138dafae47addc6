"""PostgreSQL, over psycopg."""

import asyncio
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy import ColumnElement, Executable, Table, delete, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from typing_extensions import override

from app.errors import ConfigurationError, StockUnavailable
from app.stock.sql.server import SqlServer, keys_of, others_of, without_secrets

try:
    import psycopg
    from psycopg import conninfo, waiting
except ImportError:  # an extra: reported when a store is opened
    psycopg = None  # type: ignore[assignment]
else:

    class _Connection(psycopg.AsyncConnection[Any]):
        """It ends at the deadline, and asks no server to cancel anything, as it may be silent for five more seconds."""

        @override
        async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            try:
                return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
            except asyncio.CancelledError:
                self.pgconn.finish()
                raise


_SERIALIZATION: Final = "40"  # the class of a deadlock, and of a serialization failure
_URL: Final = "postgres://user:password@host:5432/database, percent-escaped, with the options of libpq"
_LASTING: Final = (
    "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), "
    "pg_is_in_recovery(), current_setting('default_transaction_read_only')"
)


class PostgresServer(SqlServer):
    """`url`: postgres://user:password@host:5432/database, with libpq's options. Raises `ConfigurationError`."""

    name = "PostgreSQL"
    driver = "postgresql+psycopg://"
    always_whole = True  # settings of a session would be those of a pooler's other clients

    def __init__(self, url: str, timeout_s: float) -> None:
        if psycopg is None:
            raise ConfigurationError("a store in PostgreSQL needs psycopg: pip install 'psycopg[binary]'")
        try:
            parts = urlsplit(url)
            _ = parts.port
            known = conninfo.conninfo_to_dict(f"postgresql://{url.partition('://')[2]}")
        except (ValueError, psycopg.Error):
            raise ConfigurationError(f"not a PostgreSQL URL; it looks like {_URL}") from None
        if not known.get("dbname") or not known.get("user") or (parts.hostname is None and "host" not in known):
            raise ConfigurationError(f"not a PostgreSQL URL; it looks like {_URL}")
        self._known: dict[str, Any] = known
        self._at = f"{known.get('host', '')}:{known.get('port', 5432)}"
        wait_ms = max(1, int(timeout_s * 1000))
        # One message. A database may have other defaults, and a session of a pooler those that its last client has
        # left. A client that is paused in a transaction, or cut off, must not block the others.
        self.begin = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; "
            f"SET LOCAL lock_timeout = {wait_ms // 2 + 1}; SET LOCAL statement_timeout = {wait_ms}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {wait_ms + 1000}"
        )
        super().__init__(timeout_s)
        # Many rows in one statement, also where no row is returned.
        self.engine.dialect.use_insertmanyvalues_wo_returning = True

    @override
    async def connect(self) -> Any:
        # Nothing is prepared by name: a pooler may give each statement another session.
        return await _Connection.connect(autocommit=True, prepare_threshold=None, **self._known)

    @override
    def cut(self, driver: Any) -> None:
        driver.pgconn.finish()

    @override
    def upsert(self, table: Table, *, add: str | None = None) -> Executable:
        statement = insert(table)
        new = statement.excluded
        others = {one.name: table.c[add] + new[add] if one.name == add else new[one.name] for one in others_of(table)}
        return statement.on_conflict_do_update(index_elements=keys_of(table), set_=others)

    @override
    def insert_missing(self, table: Table) -> Executable:
        return insert(table).on_conflict_do_nothing(index_elements=keys_of(table))

    @override
    def delete_some(self, table: Table, most: int, *which: ColumnElement[bool]) -> Executable:
        keys = keys_of(table)
        return delete(table).where(tuple_(*keys).in_(select(*keys).where(*which).limit(most)))

    @override
    def is_victim(self, error: DBAPIError) -> bool:
        return (getattr(error.orig, "sqlstate", None) or "").startswith(_SERIALIZATION)

    @override
    def text_of(self, error: BaseException) -> str:
        why = error.orig if isinstance(error, DBAPIError) else error
        own = without_secrets(str(why).partition("\n")[0])
        return f"at {self._at}: {own or type(why).__name__}"

    @override
    async def ensure_lasting(self, connection: AsyncConnection) -> None:
        fsync, pages, commit, standby, read_only = (await connection.execute(text(_LASTING))).one()
        if standby:
            raise StockUnavailable("the store's server is a standby: sales need the primary")
        if read_only == "on":
            raise StockUnavailable("the store's transactions are read-only (default_transaction_read_only)")
        for name, value in (("fsync", fsync), ("full_page_writes", pages), ("synchronous_commit", commit)):
            if value == "off":
                raise StockUnavailable(
                    f"the store's {name} is off: a crash may lose acknowledged orders; it must be on"
                )

"""A server of a SQL storage: the differences between servers, and its connections."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, ClassVar, Final, TypeVar

from sqlalchemy import BigInteger, Column, ColumnElement, Executable, Table, inspect
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from app.errors import StockUnavailable
from app.stock.bulkhead import Bulkhead
from app.stock.sql.schema import ITEMS, METADATA

Result = TypeVar("Result")

_TRIES: Final = 5  # tries of a transaction that the server has ended in favour of another
_IDLE_MAX: Final = 16  # connections kept for later
_CLOSE_S: Final = 1.0
_OLD: Final = (
    "the tables in this database are of an earlier, unreleased state of this project: export its orders with that "
    "state, then use another database, or drop the tables whose names begin with `seckill_`"
)


class now_us(FunctionElement[int]):  # noqa: N801 - a function in SQL
    """The server's clock, in µs since 1970."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_us, "mysql")
@compiles(now_us, "mariadb")
def _now_in_mysql(element: now_us, compiler: SQLCompiler, **more: object) -> str:
    return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


@compiles(now_us, "postgresql")
def _now_in_postgres(element: now_us, compiler: SQLCompiler, **more: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"


class Conflict(Exception):
    """A row is there that must not be, or a check is not met: nothing was written."""


class SqlServer(ABC):
    """Connections to one database. Each statement is a transaction of its own, unless one was begun.

    Its limits must be known to the server: a client that goes away at a deadline leaves a statement behind, which waits
    for a row for ever, keeps a connection of the server, and is carried out later.

    `timeout_s`: deadline of a call, the wait for a connection included.
    """

    name: ClassVar[str]
    begin: str  # a statement, with its settings
    driver: ClassVar[str]
    always_whole: ClassVar[bool] = False  # only a transaction has limits

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.closed = False
        self._used: set[Any] = set()  # the driver's connections that are in use
        self._made = False
        # The server gets nothing but a connection's settings, a ping when it is used again, and our statements.
        self.engine = create_async_engine(
            self.driver,  # only the creator knows the address and the password, so no error can contain them
            async_creator=self.connect,
            isolation_level="AUTOCOMMIT",
            pool_size=_IDLE_MAX,
            max_overflow=-1,
            pool_use_lifo=True,
            pool_pre_ping=True,
            pool_reset_on_return=None,
            skip_autocommit_rollback=True,
            hide_parameters=True,
        )

    @abstractmethod
    async def connect(self) -> Any:
        """Open one of the driver's connections."""

    @abstractmethod
    def upsert(self, table: Table, *, add: str | None = None) -> Executable:
        """The statement that inserts rows, or replaces them; `add`: the column whose value is added to the old one."""

    @abstractmethod
    def insert_missing(self, table: Table) -> Executable:
        """The statement that inserts missing rows."""

    @abstractmethod
    def delete_some(self, table: Table, most: int, *which: ColumnElement[bool]) -> Executable:
        """The statement that deletes a limited number of these rows."""

    @abstractmethod
    def is_victim(self, error: DBAPIError) -> bool:
        """Return whether the server has rolled a transaction back for another's sake: it may be tried again."""

    def is_refused(self, error: DBAPIError) -> bool:
        """Return whether the server refuses a row, or a number in it, with another error than `IntegrityError`."""
        return False

    @abstractmethod
    def text_of(self, error: BaseException) -> str:
        """The text of an error, without the statement, which may contain anything, and without a password."""

    @abstractmethod
    async def ensure_lasting(self, connection: AsyncConnection) -> None:
        """Raise `StockUnavailable` if the server may lose acknowledged writes."""

    async def call(
        self,
        work: Callable[[AsyncConnection], Awaitable[Result]],
        bulkhead: Bulkhead,
        *,
        timeout_s: float | None = None,
        whole: bool = False,
        bare: bool = False,
    ) -> Result:
        """Run some statements on one connection. Raises `StockUnavailable` or `Conflict`.

        `whole`: in a transaction; `bare`: about the server itself, in none, and without our tables.

        At the deadline the connection is closed; whether its statements were written is then unknown.
        """
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        if self.closed:
            raise StockUnavailable(f"the connection to {self.name} is closed")
        try:
            async with bulkhead.call(limit_s):
                return await self._call(work, whole=(whole or self.always_whole) and not bare, bare=bare)
        except TimeoutError as error:
            raise StockUnavailable(f"the store did not answer within {limit_s:.2g} s") from error

    async def _call(self, work: Callable[[AsyncConnection], Awaitable[Result]], *, whole: bool, bare: bool) -> Result:
        for left in reversed(range(_TRIES)):
            connection = None
            try:
                async with self.engine.connect() as connection, self._in_use(connection):
                    if not (self._made or bare):
                        await self._make_tables(connection)
                    if not whole:
                        return await work(connection)
                    async with self._transaction(connection):
                        return await work(connection)
            except DBAPIError as error:
                if left and self.is_victim(error):
                    continue
                if isinstance(error, IntegrityError) or self.is_refused(error):
                    raise Conflict(self.text_of(error)) from error
                nobody = connection is None
                raise StockUnavailable(f"{self.name}: {self.text_of(error)}", untouched=nobody) from error
            except (SQLAlchemyError, OSError) as error:
                nobody = connection is None
                raise StockUnavailable(f"{self.name}: {self.text_of(error)}", untouched=nobody) from error
        raise AssertionError

    @asynccontextmanager
    async def _in_use(self, connection: AsyncConnection) -> AsyncIterator[None]:
        driver = (await connection.get_raw_connection()).driver_connection
        self._used.add(driver)
        try:
            yield
        finally:
            self._used.discard(driver)

    @abstractmethod
    def cut(self, driver: Any) -> None:
        """Close the socket of a connection that is in use."""

    @asynccontextmanager
    async def _transaction(self, connection: AsyncConnection) -> AsyncIterator[None]:
        await connection.exec_driver_sql(self.begin)
        try:
            yield
        except BaseException:
            if not connection.invalidated and not connection.closed:
                try:
                    await connection.exec_driver_sql("ROLLBACK")
                except BaseException as error:  # the next answer would be the last question's
                    await connection.invalidate()
                    if not isinstance(error, Exception):
                        raise
            raise
        await connection.exec_driver_sql("COMMIT")

    async def _make_tables(self, connection: AsyncConnection) -> None:
        """Make the tables at the first call, where they are missing; one that is missing later has been lost."""

        # Look first, instead of CREATE IF NOT EXISTS: an account that only uses tables needs no right to create any.
        def look(sync: Any) -> tuple[list[CreateTable | CreateIndex], set[str]]:
            found = inspect(sync)
            names = set(found.get_table_names())
            columns = {one["name"] for one in found.get_columns(ITEMS.name)} if ITEMS.name in names else set()
            missing = list[CreateTable | CreateIndex]()
            for table in METADATA.sorted_tables:
                if table.name not in names:
                    missing.append(CreateTable(table))
                if table.indexes:
                    there = {one["name"] for one in found.get_indexes(table.name)} if table.name in names else set()
                    missing += (CreateIndex(index) for index in table.indexes if index.name not in there)
            return missing, columns

        missing, columns = await connection.run_sync(look)
        if columns and columns < {column.name for column in ITEMS.columns}:
            raise StockUnavailable(f"{self.name}: {_OLD}", untouched=True)
        for one in missing:
            try:
                async with self._transaction(connection) if self.always_whole else nullcontext():
                    await connection.execute(one)
            except DBAPIError:
                # Somebody else may have made it at the same moment.
                if connection.invalidated:
                    raise
                left, _ = await connection.run_sync(look)
                if any(one.element is other.element for other in left):
                    raise
        self._made = True

    async def close(self) -> None:
        """Close all connections. Calls under way end with an error."""
        self.closed = True
        for driver in list(self._used):
            self.cut(driver)
        with suppress(TimeoutError, SQLAlchemyError, OSError):
            async with asyncio.timeout(_CLOSE_S):
                await self.engine.dispose()


def keys_of(table: Table) -> list[Column[Any]]:
    """The columns of a table's primary key."""
    return list(table.primary_key.columns)


def others_of(table: Table) -> Sequence[Column[Any]]:
    """The columns of a table that are not of its primary key."""
    return [column for column in table.columns if not column.primary_key]


def without_secrets(text: str) -> str:
    """A text without passwords in URLs and connection strings."""
    return re.sub(r"(password=|://[^:/@\s]*:)[^@\s]*", r"\1...", text)

"""MySQL and MariaDB, over asyncmy."""

import math
from typing import Any, Final

from sqlalchemy import ColumnElement, Executable, Table, delete, text
from sqlalchemy.dialects.mysql import insert, limit
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from typing_extensions import override

import fencelock
from app.errors import ConfigurationError, StockUnavailable
from app.stock.sql.server import SqlServer, keys_of, others_of
from fencelock.mysql import GROUP, MySqlClient, group_of

_DEADLOCK: Final = 1213
_REFUSED: Final = (4025, 3819, 1264, 1690)  # refused by a check (MariaDB, MySQL); out of range (column, sum)
_CHANGED: Final = 1020  # MariaDB with innodb_snapshot_isolation
_LOST_IN_A_CRASH: Final = "SELECT @@innodb_flush_log_at_trx_commit, @@read_only"


class MySqlServer(SqlServer):
    """`url`: mysql://user:password@host:3306/database, `?ssl_ca=` for TLS. Raises `ConfigurationError`."""

    name = "MySQL"
    driver = "mysql+asyncmy://"
    begin = "START TRANSACTION"

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            self._client = MySqlClient(url, timeout_s=timeout_s, unavailable=StockUnavailable)
        except fencelock.ConfigurationError as error:
            raise ConfigurationError(str(error)) from None
        super().__init__(timeout_s)

    @override
    async def connect(self) -> Any:
        wait_s, silent_s = max(1, int(self.timeout_s / 2)), math.ceil(self.timeout_s + 1)
        settings = (
            # This unlocks rows that a statement read and did not match, and locks no gaps.
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            # `sql_mode`, whatever the server's default is: an overlong value is an error, and a backslash escapes. In
            # whole seconds: the waits for a row, and for a table, which somebody may be altering; they leave the
            # connection usable. A client that is paused in a transaction, or cut off, must not block the others.
            f"SET SESSION sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = {wait_s}, "
            f"lock_wait_timeout = {wait_s}, wait_timeout = {silent_s}, net_read_timeout = {silent_s}, "
            "time_zone = '+00:00'",
        )
        return await self._client.dial(settings, autocommit=True)

    @override
    def cut(self, driver: Any) -> None:
        driver.close()

    @override
    def upsert(self, table: Table, *, add: str | None = None) -> Executable:
        statement = insert(table)
        new = statement.inserted
        others = {one.name: table.c[add] + new[add] if one.name == add else new[one.name] for one in others_of(table)}
        return statement.on_duplicate_key_update(others)

    @override
    def insert_missing(self, table: Table) -> Executable:
        name = keys_of(table)[0].name
        return insert(table).on_duplicate_key_update({name: table.c[name]})

    @override
    def delete_some(self, table: Table, most: int, *which: ColumnElement[bool]) -> Executable:
        return delete(table).where(*which).ext(limit(most))

    @override
    def is_victim(self, error: DBAPIError) -> bool:
        return _code_of(error) in (_DEADLOCK, _CHANGED)

    @override
    def is_refused(self, error: DBAPIError) -> bool:
        return _code_of(error) in _REFUSED

    @override
    def text_of(self, error: BaseException) -> str:
        return str(self._client.failed(error)).removeprefix("MySQL ")

    @override
    async def ensure_lasting(self, connection: AsyncConnection) -> None:
        if group := group_of((await connection.execute(text(GROUP))).all()):
            raise StockUnavailable(
                f"the store's server is a member of a cluster ({group}): two members may sell the same units, and one "
                "of the two writes is lost; use a server of its own, or a primary with replicas"
            )
        flush, read_only = (await connection.execute(text(_LOST_IN_A_CRASH))).one()
        if int(flush) != 1:
            raise StockUnavailable(
                f"the store's innodb_flush_log_at_trx_commit is {flush}, and must be 1: a crash may lose orders"
            )
        if str(read_only) in ("1", "ON"):
            raise StockUnavailable("the store's server is read-only: it is a replica, or was made one")

    @override
    async def close(self) -> None:
        await super().close()
        await self._client.close()


def _code_of(error: DBAPIError) -> object:
    args: tuple[object, ...] = getattr(error.orig, "args", ())
    return args[0] if args else None

"""The fence in SQL, through SQLAlchemy Core: two columns of the row that it protects.

`fence` is the highest token that the row has seen (0: none yet), `fence_source` whose number that is. A write is one
statement, `UPDATE ... SET ..., fence = :token WHERE id = :id AND fence <= :token`. No row matched: refused. The read
raises the fence by the same statement first, in a transaction of its own: see the package for why.

Right under READ COMMITTED and REPEATABLE READ. An UPDATE reads committed values, not an older snapshot, and locks the
row until its transaction ends. Where a database says instead that the row has changed since the snapshot (PostgreSQL
above READ COMMITTED; MariaDB with `innodb_snapshot_isolation`), its error comes through: nothing was written, and the
transaction may be tried again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, ColumnElement, Dialect, LargeBinary, Table, and_, or_, select, update
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

from .errors import FenceRefused
from .granted import Granted, checked

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row
    from sqlalchemy.ext.asyncio import AsyncConnection


class _Exact(TypeDecorator[str]):
    """Text that is compared byte by byte. Many collations ignore case and trailing blanks, and would mix up sources."""

    impl = LargeBinary
    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(VARBINARY(255) if dialect.name in {"mysql", "mariadb"} else LargeBinary(255))

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode()

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else bytes(value).decode()


def fence_columns(name: str = "fence") -> tuple[Column[int], Column[str]]:
    """Return the two columns of a fence for a `Table`: one with this name, and one with `_source` behind it.

    >>> number = Column("id", Integer, primary_key=True)                       # doctest: +SKIP
    >>> accounts = Table("accounts", metadata, number, Column("balance", Integer), *fence_columns())  # doctest: +SKIP

    In MySQL that is `fence BIGINT NOT NULL DEFAULT 0, fence_source VARBINARY(255)`, to add to a table that is there;
    the second one is a BYTEA in PostgreSQL and a BLOB in SQLite.
    """
    token: Column[int] = Column(name, BigInteger, nullable=False, default=0, server_default="0")
    source: Column[str] = Column(f"{name}_source", _Exact, nullable=True)
    return token, source


class SqlFence:
    """Rows of a table that only the latest holder can write.

    `table`: with `fence_columns(name)` and a primary key.

    >>> fence = SqlFence(accounts)                                             # doctest: +SKIP
    >>> with locks.lock("/accounts/1") as grant, engine.connect() as connection:   # doctest: +SKIP
    ...     balance = fence.read(connection, 1, grant).balance
    ...     with connection.begin():
    ...         fence.write(connection, 1, grant, {"balance": balance + 5})

    A fence for several rows, or for several tables, is a row of a table of its own. Write to it without values first:
    it is checked then, and nobody else can raise it until your transaction ends.

    The methods raise `FenceRefused`; `LookupError`: there is no such row; `ValueError` for a grant without a token; and
    SQLAlchemy's errors. A key is the primary key's value, or a tuple of them.
    """

    def __init__(self, table: Table, name: str = "fence") -> None:
        self._table = table
        self._token = table.c[name]
        self._source = table.c[f"{name}_source"]
        if not isinstance(self._source.type, _Exact):
            raise ValueError(f"the columns of a fence are made by fence_columns(); {self._source} is not")

    def read(self, connection: "Connection", key: Any, grant: Granted, *, instead_of: str | None = None) -> "Row[Any]":
        """Raise the row's fence to the grant's token, and read the row, in a transaction of its own.

        It is committed on return, so `connection` must not be in a transaction (`sqlalchemy.exc.InvalidRequestError`):
        a fence that is rolled back is none. Read all other data after this, not before.

        `instead_of`: the source whose tokens the fence may have had up to now; it is the grant's source's from then on.
        """
        with connection.begin():
            self._update(connection, key, grant, {}, instead_of)
            return connection.execute(select(self._table).where(self._row(key))).one()

    def write(
        self, connection: "Connection", key: Any, grant: Granted, values: Mapping[str, Any] | None = None
    ) -> None:
        """Set columns of the row, by name, to values or SQL expressions, unless its fence has seen a higher token.

        It is a part of your transaction: commit it, and roll it back if this raises.
        """
        self._update(connection, key, grant, values or {}, None)

    async def read_async(
        self, connection: "AsyncConnection", key: Any, grant: Granted, *, instead_of: str | None = None
    ) -> "Row[Any]":
        """Raise the row's fence, and read the row: see `read`."""
        return await connection.run_sync(self.read, key, grant, instead_of=instead_of)

    async def write_async(
        self, connection: "AsyncConnection", key: Any, grant: Granted, values: Mapping[str, Any] | None = None
    ) -> None:
        """Set columns under the fence: see `write`."""
        await connection.run_sync(self.write, key, grant, values)

    def _update(
        self, connection: "Connection", key: Any, grant: Granted, values: Mapping[str, Any], instead_of: str | None
    ) -> None:
        token, source = checked(grant)
        row = self._row(key)
        may_pass = or_(
            self._source.is_(None),
            and_(self._source == source, self._token <= token),
            *([] if instead_of in (None, source) else [self._source == instead_of]),
        )
        raised = {self._token.key: token, self._source.key: source}
        # This statement comes before any read: in SQLite a transaction begins with it. With SQLAlchemy the drivers
        # count the matched rows, not only the changed ones.
        if connection.execute(update(self._table).where(row, may_pass).values({**values, **raised})).rowcount == 1:
            return
        # FOR UPDATE reads committed values, as the UPDATE did. A plain SELECT may see an older snapshot.
        look = select(self._token, self._source).where(row).with_for_update()
        seen = connection.execute(look).one_or_none()
        if seen is None or seen[1] is None:  # or was added just now
            raise LookupError(f"{self._table.name} has no row {key!r}")
        raise FenceRefused(token, source, seen[0], seen[1])

    def _row(self, key: Any) -> ColumnElement[bool]:
        parts = key if isinstance(key, tuple) else (key,)
        return and_(*(column == part for column, part in zip(self._table.primary_key, parts, strict=True)))

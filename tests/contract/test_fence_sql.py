"""The fence in MariaDB and SQLite keeps the contract; further tests cover isolation, transactions, rows and columns."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.exc import InvalidRequestError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from fencelock.fence import FenceRefused, Fencing, SqlFence, fence_columns
from lab.servers import MariaDB
from tests.contract.fence_contract import OURS, FenceContract, FencedThing
from tests.contract.lock_contract import InThread
from tests.harness.servers import ask
from tests.harness.waiting import eventually

METADATA = MetaData()
THINGS = Table(
    "things", METADATA, Column("id", Integer, primary_key=True), Column("value", String(99)), *fence_columns()
)
FENCE = SqlFence(THINGS)
SEVEN, EIGHT = Fencing(7, OURS), Fencing(8, OURS)


class InSql(FencedThing):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def read(self, token: int, source: str = OURS, *, instead_of: str | None = None) -> str | None:
        with self.engine.connect() as connection:
            value: str | None = FENCE.read(connection, 1, Fencing(token, source), instead_of=instead_of).value
            return value

    def write(self, token: int, value: str, source: str = OURS) -> None:
        with self.engine.begin() as connection:
            FENCE.write(connection, 1, Fencing(token, source), {"value": value})


class InAsyncSql(FencedThing):
    """A value in SQL through the asynchronous client, with an event loop for each call."""

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self, token: int, source: str = OURS, *, instead_of: str | None = None) -> str | None:
        async def read() -> str | None:
            engine = create_async_engine(self.url, poolclass=NullPool)
            async with engine.connect() as connection:
                row = await FENCE.read_async(connection, 1, Fencing(token, source), instead_of=instead_of)
                value: str | None = row.value
                return value

        return asyncio.run(read())

    def write(self, token: int, value: str, source: str = OURS) -> None:
        async def write() -> None:
            engine = create_async_engine(self.url, poolclass=NullPool)
            async with engine.begin() as connection:
                await FENCE.write_async(connection, 1, Fencing(token, source), {"value": value})

        asyncio.run(write())


@pytest.fixture
def in_mariadb(mariadb: MariaDB) -> Iterator[Engine]:
    """Create a table with one row and no value."""
    engine = create_engine(mariadb.url.replace("mysql://", "mysql+pymysql://"), connect_args={"ssl_disabled": True})
    yield from prepared(engine)


@pytest.fixture
def in_sqlite(tmp_path: Path) -> Iterator[Engine]:
    yield from prepared(create_engine(f"sqlite:///{tmp_path}/things.db"))


def prepared(engine: Engine) -> Iterator[Engine]:
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(THINGS).values(id=1))
    yield engine
    engine.dispose()


def stored(engine: Engine) -> tuple[str | None, int, str | None]:
    """Return the row's value and fence as stored."""
    with engine.connect() as connection:
        row = connection.execute(select(THINGS.c.value, THINGS.c.fence, THINGS.c.fence_source)).one()
        return row.value, row.fence, row.fence_source


# MariaDB from 11.6 on does this at REPEATABLE READ: it refuses changes to rows that changed since the snapshot.
SNAPSHOT = "REPEATABLE READ, innodb_snapshot_isolation"


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", SNAPSHOT])
class TestMariaDB(FenceContract):
    @pytest.fixture
    def leveled(self, mariadb: MariaDB, in_mariadb: Engine, level: str) -> Engine:
        if not ask(mariadb, "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
            if level == SNAPSHOT:
                pytest.skip("this server has no innodb_snapshot_isolation")
            return in_mariadb.execution_options(isolation_level=level)

        @event.listens_for(in_mariadb, "connect")
        def choose(connection: Any, _: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET innodb_snapshot_isolation = {'ON' if level == SNAPSHOT else 'OFF'}")

        in_mariadb.dispose()  # end the connections that are open already
        return in_mariadb.execution_options(isolation_level=level.partition(",")[0])

    @pytest.fixture
    def thing(self, leveled: Engine) -> FencedThing:
        return InSql(leveled)

    def test_a_look_before_the_write_hides_nothing(self, leveled: Engine, level: str) -> None:
        """A's snapshot is from before B came, and A's write is still checked against the current row."""
        with leveled.connect() as a:
            assert a.execute(select(THINGS.c.fence)).scalar_one() == 0
            InSql(leveled).write(8, "b")
            if level == SNAPSHOT:
                with pytest.raises(OperationalError, match="changed since last read"):
                    FENCE.write(a, 1, SEVEN, {"value": "a"})
            else:
                with pytest.raises(FenceRefused) as refused:
                    FENCE.write(a, 1, SEVEN, {"value": "a"})
                assert refused.value.highest == 8
        assert stored(leveled) == ("b", 8, OURS)

    def test_a_write_that_is_not_committed_is_waited_for(self, mariadb: MariaDB, leveled: Engine) -> None:
        """B's read waits for A's uncommitted write, returns it, and raises the fence."""
        with leveled.begin() as a:
            FENCE.write(a, 1, SEVEN, {"value": "a"})
            b = InThread(lambda: InSql(leveled).read(8))
            eventually(lambda: "LOCK WAIT" in ask(mariadb, "SHOW ENGINE INNODB STATUS")[0][2], "B waits for the row")
        assert b.result() == "a"
        assert stored(leveled) == ("a", 8, OURS)

    def test_a_transaction_behind_a_fence_of_its_own(self, mariadb: MariaDB, leveled: Engine) -> None:
        """A write without values checks the fence and keeps the row locked until the transaction ends."""
        with leveled.begin() as a:
            FENCE.write(a, 1, SEVEN)
            a.execute(insert(THINGS).values(id=2, value="a"))
            b = InThread(lambda: InSql(leveled).read(8))
            eventually(lambda: "LOCK WAIT" in ask(mariadb, "SHOW ENGINE INNODB STATUS")[0][2], "B waits for the row")
        b.result()
        with leveled.connect() as later:
            assert later.execute(select(THINGS.c.value).where(THINGS.c.id == 2)).scalar_one() == "a"
            with pytest.raises(FenceRefused):
                FENCE.write(later, 1, SEVEN)


class TestSQLite(FenceContract):
    @pytest.fixture
    def thing(self, in_sqlite: Engine) -> FencedThing:
        return InSql(in_sqlite)


class TestAsync(FenceContract):
    @pytest.fixture
    def thing(self, in_sqlite: Engine) -> FencedThing:
        return InAsyncSql(str(in_sqlite.url).replace("sqlite://", "sqlite+aiosqlite://"))


@pytest.fixture(params=["in_mariadb", "in_sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def test_a_row_that_is_not_there_is_no_refusal(engine: Engine) -> None:
    """A read or write of a row that doesn't exist raises an error of its own, not a refusal."""
    with engine.connect() as connection:
        with pytest.raises(LookupError, match="things has no row 2"):
            FENCE.read(connection, 2, SEVEN)
        with pytest.raises(LookupError, match="things has no row 2"):
            FENCE.write(connection, 2, SEVEN, {"value": "a"})
    with engine.begin() as connection:
        connection.execute(delete(THINGS))
    with engine.begin() as connection, pytest.raises(LookupError, match="things has no row 1"):
        FENCE.write(connection, 1, SEVEN, {"value": "a"})


def test_a_read_is_committed_on_return(engine: Engine) -> None:
    """A read commits the fence, whatever becomes of the connection; so a transaction that may roll back is refused."""
    with engine.connect() as connection:
        FENCE.read(connection, 1, SEVEN)
        assert not connection.in_transaction()
        connection.rollback()
        connection.execute(text("SELECT 1"))
        with pytest.raises(InvalidRequestError, match="begin"):
            FENCE.read(connection, 1, EIGHT)
    assert stored(engine) == (None, 7, OURS)


def test_a_write_belongs_to_its_transaction(engine: Engine) -> None:
    """A rollback undoes the write and the fence; a refusal rolls back everything in its transaction."""
    with engine.connect() as connection:
        FENCE.write(connection, 1, SEVEN, {"value": "a"})
        connection.rollback()
    assert stored(engine) == (None, 0, None)
    InSql(engine).write(8, "b")
    with pytest.raises(FenceRefused), engine.begin() as connection:
        connection.execute(insert(THINGS).values(id=2, value="with it"))
        FENCE.write(connection, 1, SEVEN, {"value": "a"})
    with engine.connect() as connection:
        assert connection.execute(select(THINGS.c.id)).scalars().all() == [1]


def test_a_write_of_an_expression(engine: Engine) -> None:
    """A value may be an expression for the database to evaluate; a fence among the values is ignored."""
    InSql(engine).write(7, "a")
    with engine.begin() as connection:
        FENCE.write(connection, 1, SEVEN, {"value": THINGS.c.value + "b", "fence": 1, "fence_source": "mine"})
    assert stored(engine) == ("ab", 7, OURS)


def test_other_rows_have_other_fences(engine: Engine) -> None:
    """A key may have several columns; each row has a fence of its own."""
    metadata = MetaData()
    two = [Column(name, Integer, primary_key=True, autoincrement=False) for name in ("shop", "sku")]
    stock = Table("stock", metadata, *two, Column("units", Integer), *fence_columns("guard"))
    metadata.drop_all(engine)
    metadata.create_all(engine)
    fence = SqlFence(stock, "guard")
    with engine.begin() as connection:
        connection.execute(insert(stock), [{"shop": 1, "sku": sku, "units": 5} for sku in (1, 2)])
    with engine.connect() as connection:
        assert fence.read(connection, (1, 1), EIGHT).units == 5
        assert fence.read(connection, (1, 2), SEVEN).units == 5
        with connection.begin():
            fence.write(connection, (1, 2), SEVEN, {"units": 4})
        units = connection.execute(select(stock.c.units).order_by(stock.c.sku)).scalars().all()
        assert units == [5, 4]
        with pytest.raises(ValueError, match="shorter"):
            fence.write(connection, 1, SEVEN, {"units": 3})


def test_columns_that_compare_otherwise_are_refused() -> None:
    """A source column that fence_columns() did not make is refused, as its collation would compare the sources."""
    theirs = Table("theirs", MetaData(), Column("id", Integer, primary_key=True), Column("fence", Integer))
    theirs.append_column(Column("fence_source", String(255)))
    with pytest.raises(ValueError, match=r"made by fence_columns\(\)"):
        SqlFence(theirs)

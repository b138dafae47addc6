"""All stock stores keep the contract: the Redis store on Valkey and Redis, the MySQL store with each of its guards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
import redis

from app.stock import StockStore, registry
from app.stock.sql.schema import ITEMS, METADATA, OF_SALES
from lab.servers import MariaDB, Postgres, Valkey
from tests.contract.store_contract import SMOKE, FencedStoreContract, StoreContract, StoreSystem
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.servers import ask, optional, optional_server

KEPT = (ITEMS, *OF_SALES)


class RedisSystem(StoreSystem):
    def __init__(self, server: Valkey) -> None:
        self.server = server
        self._client: Any = redis.Redis.from_url(server.url)

    def open(self, **options: Any) -> StockStore:
        return registry.connect(self.server.url, "fence", **options)

    def clear(self) -> None:
        self._client.flushall()

    def leftovers(self) -> list[str]:
        return [key.decode() for key in self._client.keys("*")]

    def set_by_hand(self, sku: str, stock: int) -> None:
        self._client.set("stock" if sku == "default" else f"seckill:{{{sku}}}:stock", stock)

    def note_layout(self, sku: str, layout: int) -> None:
        assert self._client.hset(f"seckill:{{{sku}}}:fence", "layout", layout) == 0  # it was noted before

    def remove_by_hand(self, sku: str) -> None:
        self._client.delete("stock" if sku == "default" else f"seckill:{{{sku}}}:stock")

    def copy_of_everything(self) -> dict[str, bytes]:
        return {key.decode(): self._client.dump(key) for key in self._client.keys("*")}

    def copy(self) -> Callable[[], None]:
        kept = self.copy_of_everything()

        def put_back() -> None:
            self.clear()
            for key, value in kept.items():
                self._client.restore(key, 0, value)

        return put_back


class MemorySystem(StoreSystem):
    def __init__(self) -> None:
        self.server = MemoryServer()

    def open(self, **options: Any) -> StockStore:
        return MemoryStockStore(self.server, **options)

    def clear(self) -> None:
        self.server.items.clear()

    def leftovers(self) -> list[str]:
        return list(self.server.items)

    def set_by_hand(self, sku: str, stock: int) -> None:
        self.server.items[sku].stock = stock

    def note_layout(self, sku: str, layout: int) -> None:
        item = self.server.items[sku]
        item.head = item.head._replace(layout=layout)

    def copy(self) -> Callable[[], None]:
        return self.server.copy()


@pytest.fixture(scope="module")
def valkey_here() -> Iterator[RedisSystem]:
    with Valkey() as server:
        yield RedisSystem(server)


@pytest.fixture(scope="module")
def redis_7_0() -> Iterator[RedisSystem]:
    with Valkey(binary=optional_server("redis-server", "redis-server")) as server:
        yield RedisSystem(server)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with optional(Postgres) as server:
        yield server


class TestValkey(FencedStoreContract):
    @pytest.fixture
    def system(self, valkey_here: RedisSystem) -> StoreSystem:
        return valkey_here


@pytest.mark.slow
class TestRedis(FencedStoreContract):
    SMOKE = SMOKE

    @pytest.fixture
    def system(self, redis_7_0: RedisSystem) -> StoreSystem:
        return redis_7_0


class TestMemory(FencedStoreContract):
    """The in-memory store is not for sales: one reads it first, and the models of `tests/unit` build on it."""

    @pytest.fixture
    def system(self) -> StoreSystem:
        return MemorySystem()


class SqlSystem(StoreSystem):
    """A database; `ask` runs statements in it."""

    def __init__(self, url: str, guard: str) -> None:
        self._url = url
        self._guard = guard

    def ask(self, *statements: str, args: Sequence[object] = ()) -> Any:
        raise NotImplementedError

    def open(self, **options: Any) -> StockStore:
        return registry.connect(self._url, self._guard, **options)

    def clear(self) -> None:
        # A store makes them at its first call.
        there = {name for (name,) in self.ask("SELECT table_name FROM information_schema.tables")}
        for table in METADATA.sorted_tables:
            if table.name in there:
                self.ask(f"DELETE FROM {table.name}")

    def leftovers(self) -> list[str]:
        return [table.name for table in KEPT if self.ask(f"SELECT 1 FROM {table.name} LIMIT 1")]

    def set_by_hand(self, sku: str, stock: int) -> None:
        self.ask("UPDATE seckill_items SET stock = %s WHERE sku = %s", args=(stock, sku))

    def note_layout(self, sku: str, layout: int) -> None:
        self.ask("UPDATE seckill_items SET layout = %s WHERE sku = %s", args=(layout, sku))

    def copy(self) -> Callable[[], None]:
        kept = {table.name: self.ask(f"SELECT * FROM {table.name}") for table in KEPT}

        def put_back() -> None:
            for name, rows in kept.items():
                self.ask(f"DELETE FROM {name}")
                for row in rows:
                    self.ask(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", args=row)

        return put_back


class MySqlSystem(SqlSystem):
    def __init__(self, server: MariaDB, guard: str) -> None:
        super().__init__(server.url, guard)
        self.server = server

    def ask(self, *statements: str, args: Sequence[object] = ()) -> Any:
        return ask(self.server, *statements, args=tuple(args))


class PostgresSystem(SqlSystem):
    def ask(self, *statements: str, args: Sequence[object] = ()) -> Any:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = None
            for statement in statements:
                cursor = connection.execute(statement, args or None)
            return cursor.fetchall() if cursor is not None and cursor.description else []


class TestMySqlFence(FencedStoreContract):
    @pytest.fixture
    def system(self, mariadb_server: MariaDB) -> StoreSystem:
        return MySqlSystem(mariadb_server, "fence")


class TestMySqlVersion(StoreContract):
    SMOKE = SMOKE

    @pytest.fixture
    def system(self, mariadb_server: MariaDB) -> StoreSystem:
        return MySqlSystem(mariadb_server, "version")


class TestMySqlTimestamp(StoreContract):
    SMOKE = SMOKE

    @pytest.fixture
    def system(self, mariadb_server: MariaDB) -> StoreSystem:
        return MySqlSystem(mariadb_server, "timestamp")


class TestPostgresFence(FencedStoreContract):
    @pytest.fixture
    def system(self, postgres: Postgres) -> StoreSystem:
        return PostgresSystem(postgres.url, "fence")


class TestPostgresVersion(StoreContract):
    SMOKE = SMOKE

    @pytest.fixture
    def system(self, postgres: Postgres) -> StoreSystem:
        return PostgresSystem(postgres.url, "version")


class TestPostgresTimestamp(StoreContract):
    SMOKE = SMOKE

    @pytest.fixture
    def system(self, postgres: Postgres) -> StoreSystem:
        return PostgresSystem(postgres.url, "timestamp")

"""All stock stores keep the contract: the Redis store on Valkey and Redis, the MySQL store with each of its guards."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from app.stock import StockStore
from app.stock.mysql.guards import MySqlStockStore, TimestampedStockStore, VersionedStockStore
from app.stock.redis.store import RedisStockStore
from lab.servers import MariaDB, Valkey
from tests.contract.store_contract import FencedStoreContract, StoreContract, StoreSystem
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.servers import ask, optional, optional_server


class RedisSystem(StoreSystem):
    def __init__(self, server: Valkey) -> None:
        self.server = server
        self._client: Any = redis.Redis.from_url(server.url)

    def open(self, **options: Any) -> StockStore:
        return RedisStockStore(self.server.url, **options)

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


class MySqlSystem(StoreSystem):
    tables = (
        *("seckill_items", "seckill_orders", "seckill_buyers", "seckill_keys"),
        *("seckill_events", "seckill_records", "seckill_payments", "seckill_holders"),
    )

    def __init__(self, server: MariaDB, kind: type[StockStore]) -> None:
        self.server = server
        self._kind: Any = kind

    def open(self, **options: Any) -> StockStore:
        store: StockStore = self._kind(self.server.url, **options)
        return store

    def clear(self) -> None:
        # These exist already; a store creates the others.
        ask(self.server, "DO 0", *(f"DELETE FROM {name}" for (name,) in ask(self.server, "SHOW TABLES")))

    def leftovers(self) -> list[str]:
        return [name for name in self.tables if ask(self.server, f"SELECT 1 FROM {name} LIMIT 1")]

    def set_by_hand(self, sku: str, stock: int) -> None:
        ask(self.server, "UPDATE seckill_items SET stock = %s WHERE sku = %s", args=(stock, sku))

    def note_layout(self, sku: str, layout: int) -> None:
        ask(self.server, "UPDATE seckill_items SET layout = %s WHERE sku = %s", args=(layout, sku))

    def copy(self) -> Callable[[], None]:
        kept = {name: ask(self.server, f"SELECT * FROM {name}") for name in self.tables}

        def put_back() -> None:
            self.clear()
            for name, rows in kept.items():
                for row in rows:
                    ask(self.server, f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", args=row)

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
def mariadb() -> Iterator[MariaDB]:
    with optional(MariaDB) as server:
        yield server


class TestValkey(FencedStoreContract):
    @pytest.fixture
    def system(self, valkey_here: RedisSystem) -> StoreSystem:
        return valkey_here


@pytest.mark.slow
class TestRedis(FencedStoreContract):
    @pytest.fixture
    def system(self, redis_7_0: RedisSystem) -> StoreSystem:
        return redis_7_0


class TestMemory(FencedStoreContract):
    """The in-memory store is not for sales: one reads it first, and `tests/unit/test_queue.py` builds on it."""

    @pytest.fixture
    def system(self) -> StoreSystem:
        return MemorySystem()


class TestMySqlFence(FencedStoreContract):
    @pytest.fixture
    def system(self, mariadb: MariaDB) -> StoreSystem:
        return MySqlSystem(mariadb, MySqlStockStore)


class TestMySqlVersion(StoreContract):
    @pytest.fixture
    def system(self, mariadb: MariaDB) -> StoreSystem:
        return MySqlSystem(mariadb, VersionedStockStore)


class TestMySqlTimestamp(StoreContract):
    @pytest.fixture
    def system(self, mariadb: MariaDB) -> StoreSystem:
        return MySqlSystem(mariadb, TimestampedStockStore)

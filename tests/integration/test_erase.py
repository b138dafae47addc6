"""A buyer's name is removed from any store, and the numbers stay."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import event

from app.orders import ERASED, Hold
from app.stock.redis.storage import RedisStorage
from app.stock.sql.storage import SqlStorage
from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness.servers import ask
from tests.harness.shop import buy, shop

ORDERS = 20_000
NAMES = {"seckill_buyers": "name", "seckill_journal": "buyer", "seckill_holders": "buyer", "seckill_records": "buyer"}


async def test_a_copy_that_is_gone(etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had expired before it took the journal's place: nothing is written, and another one takes it."""
    refusals, looks = RedisStorage.refusals, itertools.count(1)

    async def late(self: RedisStorage, sku: str) -> AsyncIterator[tuple[str, str, str]]:
        if next(looks) == 2:
            valkey.ask("DEL", *valkey.ask("KEYS", "*-copy-*"))
        async for one in refusals(self, sku):
            yield one

    monkeypatch.setattr(RedisStorage, "refusals", late)
    async with shop(etcd.endpoint, valkey.url) as sale:
        await sale.set_stock("default", 9)
        await buy(sale, 1, buyer="ann")
        assert await sale.erase("default", "ann") == 1
        assert [order.buyer for order in await sale.orders("default")] == [ERASED]
        assert [one.what for one in await sale.log("default")] == ["erase a buyer", "stock"]


@pytest.mark.slow
async def test_many_orders_in_mysql(etcd: EtcdMember, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at while others buy, and what these write is found, too; under the lock few rows are read."""
    async with shop(etcd.endpoint, mariadb.url) as sale:
        await sale.set_stock("default", 2 * ORDERS)
        await buy(sale, 1, buyer="ann", key="k1")
        await sale.submit(Hold(1, "default", "ann", "k2"))
        many = f"FROM seckill_items JOIN seq_1_to_{ORDERS} AS s"
        entry = "sku, sale, last_entry + seq, last_entry + seq, 1, 'sold', 1, CONCAT('b', seq), NULL, "
        entry += "LPAD(HEX(seq), 32, '0')"
        refusal = 'CONCAT(generation, \' 9999999999999  {"outcome":"sold_out","quantity":1,"buyer":"\', '
        refusal += "IF(seq = 9, 'ann', 'eve'), '\"}')"
        moved = f"lucky = lucky + {ORDERS}, stock = stock - {ORDERS}, entries = entries + {ORDERS}, "
        moved += f"last_tag = LEFT(SHA1(LPAD(HEX({ORDERS}), 32, '0')), 8), last_entry = last_entry + {ORDERS}"
        ask(
            mariadb,
            f"INSERT INTO seckill_journal SELECT {entry}, -1, 0, 1, NULL, 'one', token, epoch, batch {many}",
            f"INSERT INTO seckill_buyers SELECT sku, sale, CONCAT('b', seq), 1 {many}",
            f"INSERT INTO seckill_keys SELECT sku, sale, CONCAT('r', seq), {refusal}, 9999999999999 {many}",
            f"UPDATE seckill_items SET {moved}",
        )
        copy, bought, changing = SqlStorage.copy, list[Any](), list[tuple[str, Any]]()

        async def copied(self: SqlStorage, sku: str, erased: Any, *, last: bool) -> None:
            await copy(self, sku, erased, last=last)
            if not bought:
                bought.extend(await buy(sale, 1, buyer="ann", key="k3"))

        def seen(connection: Any, cursor: Any, sql: str, args: Any, context: Any, many: bool) -> None:
            if args and not many and sql.startswith(("UPDATE", "DELETE")):
                changing.append((sql, args))

        monkeypatch.setattr(SqlStorage, "copy", copied)
        store: Any = sale.store
        event.listen(store.storage.server.engine.sync_engine, "before_cursor_execute", seen)
        assert await sale.erase("default", "ann") == 3
        monkeypatch.undo()
        assert [one.outcome for one in bought] == ["sold"]
        plans = {sql: ask(mariadb, f"EXPLAIN {sql}", args=tuple(args)) for sql, args in changing}
        assert len(plans) > 5
        assert not {sql: plan for sql, plan in plans.items() if any(int(rows or 0) > 100 for *_, rows, _ in plan)}
        for name, count in (("ann", 0), ("b7", 1), ("nobody", 0)):
            assert await sale.erase("default", name) == count
        assert (await sale.audit("default")).violations == []
    for table, column in NAMES.items():
        assert not ask(mariadb, f"SELECT 1 FROM {table} WHERE {column} IN ('ann', 'b7') LIMIT 1")
    assert not ask(mariadb, "SELECT 1 FROM seckill_records WHERE record LIKE '%ann%'")

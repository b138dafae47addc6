"""A buyer's name is removed from any store, and the numbers stay."""

import asyncio

import pytest

from app.errors import KeyReused
from app.orders import ERASED, Hold, Purchase
from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness.servers import ask, optional
from tests.harness.shop import buy, shop


async def test_two_names_at_once(etcd: EtcdMember, valkey: Valkey) -> None:
    """Operators who erase different buyers of an item at the same time erase both."""
    async with shop(etcd.endpoint, valkey.url) as sale:
        await sale.set_stock("default", 99)
        names = ["ann", "bob", "cy"]
        for name in names:
            await sale.submit(Purchase(1, "default", name))
            await sale.submit(Hold(1, "default", name))
        assert await asyncio.gather(*(sale.erase("default", name) for name in names)) == [2, 2, 2]
        orders = await sale.orders("default")
        assert {order.buyer for order in orders} == {ERASED}
        assert {order.record.buyer for order in orders if order.record} == {ERASED}
        assert (await sale.audit("default")).violations == []


async def test_a_remembered_refusal(etcd: EtcdMember, valkey: Valkey) -> None:
    """A later request with a buyer's key is refused, whatever it was told: the name that it was about is gone."""
    async with shop(etcd.endpoint, valkey.url) as sale:
        await sale.set_stock("default", 5, terms={"limit_per_buyer": 1})
        first, second = [Purchase(1, "default", "ann", key) for key in ("k1", "k2")]
        assert [str((await sale.submit(one)).outcome) for one in (first, second)] == ["sold", "limit_reached"]
        await sale.erase("default", "ann")
        for one in (first, second):
            with pytest.raises(KeyReused):
                await sale.submit(one)


async def test_in_mysql(etcd: EtcdMember) -> None:
    """Orders, limits and keys have `erased` in the name's place; other buyers' names stay; it is logged."""
    with optional(MariaDB) as server:
        store = f"mysql://{server.user}:{server.password}@127.0.0.1:{server.port}/{server.database}"
        async with shop(etcd.endpoint, store) as sale:
            await sale.set_stock("default", 9)
            await buy(sale, 2, buyer="ann")
            await buy(sale, 1, buyer="bob", key="k1")
            await buy(sale, 1, buyer="ann", key="k2")
            assert await sale.erase("default", "ann", by="olga") == 3
            assert await sale.erase("default", "ann") == 0
            assert await sale.erase("default", "bob") == 1
            assert [order.buyer for order in await sale.orders("default")] == [ERASED] * 4
            assert (await sale.audit("default")).violations == []
            log = await sale.log("default")
            assert [(one.what, one.by, one.after) for one in log[:2]] == [
                ("erase a buyer", "", {"erased": 1}),
                ("erase a buyer", "olga", {"erased": 3}),
            ]
        assert ask(server, "SELECT name, units FROM seckill_buyers") == ((ERASED.encode(), 4),)
        assert ask(server, "SELECT DISTINCT buyer FROM seckill_keys") == ((ERASED.encode(),),)

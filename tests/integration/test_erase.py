"""A buyer's name is removed from any store, and the numbers stay."""

from app.stock import ERASED
from lab.servers import EtcdMember, MariaDB
from tests.harness.servers import ask, optional
from tests.harness.shop import buy, shop


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

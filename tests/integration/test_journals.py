"""An instance follows the journals of all items once, and asks little of its store while nobody buys."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import redis

from app.journals import EntryMissing, Follower, Journals, page
from app.orders import Hold
from app.pace import Pace
from app.stock import Level, StockStore, registry
from app.wiring import open_sale
from lab.servers import EtcdMember, MariaDB, RedisCluster, Valkey
from tests.harness.shop import Counter, settings, shop
from tests.harness.waiting import WITHIN_S, eventually_async

ITEMS = 20


@pytest.fixture(params=["valkey", pytest.param("mariadb", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    server: Valkey | MariaDB = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
async def one(etcd: EtcdMember, store: str) -> AsyncIterator[Counter]:
    """Sell two items, with nobody in any office."""
    async with shop(etcd.endpoint, store, audit_interval_s=0) as counter:
        for sku in ("lamp", "zoo"):
            await counter.set_stock(sku, 100)
        yield counter


@asynccontextmanager
async def following(store: StockStore) -> AsyncIterator[tuple[Journals, Follower]]:
    journals = Journals(store, Pace(lambda: False))
    journals.start()
    try:
        with journals.followed() as follower:
            yield journals, follower
    finally:
        await journals.close()


async def until_moved(follower: Follower, *skus: str) -> None:
    """Wait until all of these have moved."""
    left, until = set(skus), time.monotonic() + WITHIN_S
    while left:
        assert time.monotonic() < until, f"not moved: {left}"
        left -= await follower.moved()


async def last_of(one: Counter, sku: str) -> str:
    level = await one.store.level(sku)
    assert level.last_entry is not None
    return str(level.last_entry)


async def test_what_has_moved(one: Counter) -> None:
    """A store says which journals have an entry behind a given one: at once, or when one comes, or that none came."""
    assert await one.store.moved({}, 0) == set()
    assert await one.store.moved({"lamp": "", "zoo": "", "none": ""}, 0.05) == set()
    await one.submit(Hold(buyer="ann", sku="lamp"))
    first = await last_of(one, "lamp")
    assert await one.store.moved({"lamp": "", "zoo": ""}, WITHIN_S) == {"lamp"}
    assert await one.store.moved({"lamp": first, "zoo": ""}, 0) == set()
    waiting = asyncio.create_task(one.store.moved({"lamp": first, "zoo": ""}, WITHIN_S))
    found = set[str]()
    while not found:
        await one.submit(Hold(buyer="bob", sku="zoo"))
        found = (await waiting) if waiting.done() else found
    assert found == {"zoo"}


async def test_the_journals_of_a_cluster_are_followed() -> None:
    """They can't be waited for together there, and are looked at again and again, with the same answers."""
    with RedisCluster() as cluster:
        for node in cluster.nodes:
            with closing(redis.Redis.from_url(node.url)) as raw:
                raw.ping()
        store = registry.connect(cluster.url, "fence")
        with closing(redis.RedisCluster.from_url(cluster.nodes[0].url.removesuffix("/0"))) as raw:
            keys = [f"seckill:{{item{number}}}:orders" for number in range(5)]
            places = {f"item{number}": "" for number in range(5)}
            assert await store.moved(places, 0.1) == set()
            raw.xadd(keys[0], {"a": "b"}, id="5-0")
            raw.xadd(keys[3], {"a": "b"}, id="6-0")
            assert await store.moved(places, WITHIN_S) == {"item0", "item3"}
            assert await store.moved(places | {"item0": "5-0", "item3": "5-0"}, WITHIN_S) == {"item3"}
            raw.set(keys[1], "odd")
            assert "item1" in await store.moved(places | {"item0": "5-0", "item3": "6-0"}, WITHIN_S)
        await store.close()


async def test_a_new_sale_is_told(one: Counter) -> None:
    """Its journal is empty: what was read last is there no more."""
    async with following(one.store) as (journals, follower):
        await one.submit(Hold(buyer="ann", sku="lamp"))
        before = await last_of(one, "lamp")
        await eventually_async(
            lambda: journals.levels.get("lamp"), until=lambda found: found and found.last_entry == before
        )
        await follower.moved(0)
        await one.set_stock("lamp", 5, new_sale=True)
        await until_moved(follower, "lamp")
        level = journals.levels["lamp"]
        assert isinstance(level, Level)
        assert level.last_entry is None
        with pytest.raises(EntryMissing):
            await page(one.store, "lamp", before)


@pytest.fixture
def asked(valkey: Valkey) -> Iterator[Any]:
    """Count the commands that the store has run since the last call, those in scripts included."""
    with closing(redis.Redis.from_url(valkey.url)) as raw:

        def count() -> int:
            found = raw.info("commandstats")
            raw.config_resetstat()
            own = ("cmdstat_info", "cmdstat_config|resetstat")
            return sum(int(one["calls"]) for name, one in found.items() if name not in own)

        yield count


@pytest.mark.slow
async def test_an_idle_sale_asks_little(etcd: EtcdMember, valkey: Valkey, asked: Any) -> None:
    """Two senders, a cashier, an auditor and the expiry together ask some 50 times a second for a hundred items."""
    nowhere, secret = "http://127.0.0.1:9", f"whsec_{base64.b64encode(b'x' * 24).decode()}"
    own = {
        "webhook_url": f"{nowhere}/a {nowhere}/b#name=erp",
        "webhook_secret": secret,
        "refunds": f"{nowhere}/refunds",
    }
    async with open_sale(settings(etcd.endpoint, valkey.url, **own), with_auditor=True) as sale:
        for number in range(ITEMS):
            await sale.stock.set_stock(f"item{number}", 10, terms={"price": 499, "currency": "EUR"})
        offices = [sale.auditor, sale.cashier, *sale.senders]
        await eventually_async(lambda: all(one is not None and one.in_office for one in offices), "all are in office")

        async def audited() -> bool:
            return sale.auditor is not None and sale.auditor.verdict is not None and sale.auditor.verdict.items == ITEMS

        await eventually_async(audited, "each item was looked at once")
        asked()
        began, rounds, verdict = time.monotonic(), 0, sale.auditor.verdict if sale.auditor else None
        while rounds < 2:
            await asyncio.sleep(0.1)
            assert sale.auditor is not None
            rounds, verdict = rounds + (sale.auditor.verdict != verdict), sale.auditor.verdict
        # Some 30 a second whatever the items, and of each item less than 0.1: so less than 50 for a hundred.
        assert asked() / (time.monotonic() - began) < 35 + 0.1 * ITEMS

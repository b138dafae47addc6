"""Sentinel promotes a replica in mid-sale: each buyer who heard "sold" has an order there, or nothing is sold."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from app.errors import ItemBlocked, NotDecided, OutcomeUnknown, UnknownItem
from app.orders import Answer, Outcome, Purchase
from lab.servers import EtcdMember
from tests.harness.sentinel import SentinelSet
from tests.harness.servers import optional_server
from tests.harness.shop import Counter, shop
from tests.harness.waiting import eventually_async


@pytest.fixture
def pair() -> Iterator[SentinelSet]:
    """Start Debian's Redis: a primary, one replica, three Sentinels."""
    with SentinelSet(optional_server("redis-server", "redis-server")) as started:
        yield started


@pytest.fixture
def trio() -> Iterator[SentinelSet]:
    """Start the same with two replicas."""
    with SentinelSet(optional_server("redis-server", "redis-server"), replicas=2) as started:
        yield started


async def test_sold_means_that_a_replica_has_it(etcd: EtcdMember, pair: SentinelSet) -> None:
    """While the replica is frozen nobody hears "sold"; when it is back the same key gets its answer, with one order."""
    options: dict[str, Any] = {"store_wait_replicas": 1, "purchase_timeout_ms": 4000, "store_timeout_ms": 1000}
    async with shop(etcd.endpoint, pair.url, **options) as one:
        await one.set_stock("phone", 10)
        assert (await one.submit(Purchase(sku="phone"))).outcome is Outcome.SOLD
        pair.replicas[0].pause()
        with pytest.raises((NotDecided, OutcomeUnknown)):
            await one.submit(Purchase(sku="phone", key="k"))
        pair.replicas[0].resume()
        answer = await until_told(one, Purchase(sku="phone", key="k"))
        assert answer.outcome is Outcome.SOLD
        audit = await one.audit("phone")
        assert (audit.lucky, audit.orders, audit.violations) == (2, 2, [])


async def test_a_failover_in_mid_sale_loses_nothing(etcd: EtcdMember, trio: SentinelSet) -> None:
    """The primary is killed while two instances sell: every order that a buyer heard of is in the new one."""
    options: dict[str, Any] = {
        "store_wait_replicas": 1,
        "store_timeout_ms": 1000,
        "lock_ttl_s": 2,
        "purchase_timeout_ms": 6000,
    }
    async with (
        shop(etcd.endpoint, trio.url, instance="one", **options) as one,
        shop(etcd.endpoint, trio.url, instance="two", **options) as two,
    ):
        await one.set_stock("phone", 2000)
        told: list[Answer] = []
        stop = asyncio.Event()

        async def buyer(number: int) -> None:
            count = 0
            while not stop.is_set():
                count += 1
                seller = one if (number + count) % 2 else two
                told.append(await until_told(seller, Purchase(sku="phone", key=f"{number}-{count}")))
                await asyncio.sleep(0.02)

        buying = [asyncio.create_task(buyer(number)) for number in range(8)]

        async def many_more(than: int) -> None:
            async def sold() -> bool:
                for task in buying:
                    if task.done():
                        task.result()
                return len(told) > than + 40

            await eventually_async(sold, "sales go on", 120)

        await many_more(0)
        before = len(told)
        await asyncio.to_thread(trio.primary.kill)
        await many_more(before)
        stop.set()
        await asyncio.gather(*buying)
        orders = {order.id: order for order in await one.orders("phone", limit=1000)}
        assert {answer.order for answer in told} <= orders.keys()
        audit = await one.audit("phone")
        assert (audit.lucky, audit.violations) == (len(told), [])


@pytest.mark.slow
async def test_a_failover_to_the_one_that_has_it_not(etcd: EtcdMember, trio: SentinelSet) -> None:
    """With waits for all replicas, none that lacks a sale can be promoted: each buyer who heard "sold" has an order.

    One replica's link stalls; then the primary and the other replica are gone, and the late one is promoted.
    """
    options: dict[str, Any] = {
        "store_wait_replicas": 2,
        "store_timeout_ms": 500,
        "lock_ttl_s": 2,
        "purchase_timeout_ms": 2000,
    }
    async with shop(etcd.endpoint, trio.url, **options) as one:
        await one.set_stock("phone", 100)
        told = [await one.submit(Purchase(sku="phone", key=f"k{number}")) for number in range(3)]
        trio.paths[1].stall()
        for number in range(3):
            with pytest.raises((NotDecided, OutcomeUnknown)):
                await one.submit(Purchase(sku="phone", key=f"late{number}"))
        for gone in (trio.primary, trio.replicas[0]):
            await asyncio.to_thread(gone.kill)

        async def promoted() -> bool:
            async with shop(etcd.endpoint, trio.replicas[1].url, store_wait_replicas=0) as of_promoted:
                return (await of_promoted.ready(1))["store"] == "ok"

        await eventually_async(promoted, "the late one is the primary", 120)
        async with shop(etcd.endpoint, trio.replicas[1].url) as of_promoted:
            for answer in told:
                assert answer.order is not None
                assert await of_promoted.order(answer.order) is not None


@pytest.mark.slow
async def test_one_of_two_is_not_enough(etcd: EtcdMember, trio: SentinelSet) -> None:
    """A failover may promote the replica that nobody waited for: an instance with that setting is not ready."""
    async with shop(etcd.endpoint, trio.url, store_wait_replicas=1) as one:
        assert (await one.ready(1))["store"] == "not available"
    async with shop(etcd.endpoint, trio.url, store_wait_replicas=2) as two:
        assert (await two.ready(1))["store"] == "ok"


async def test_without_it_a_late_replica_is_noticed(etcd: EtcdMember, pair: SentinelSet) -> None:
    """An instance that waits for no replica loses a sale with the primary; it reports that, and stops selling."""
    options: dict[str, Any] = {"purchase_timeout_ms": 4000, "store_timeout_ms": 1000}
    async with shop(etcd.endpoint, pair.url, **options) as one:
        await one.set_stock("phone", 10)
        assert (await one.submit(Purchase(sku="phone"))).outcome is Outcome.SOLD

        async def copied() -> bool:
            async with shop(etcd.endpoint, pair.replicas[0].url) as of_replica:
                return (await of_replica.level("phone")).lucky == 1

        await eventually_async(copied, despite=UnknownItem)
        pair.paths[0].cut()
        lost = await one.submit(Purchase(sku="phone"))
        assert lost.outcome is Outcome.SOLD
        await asyncio.to_thread(pair.primary.kill)

        async def refused() -> bool:
            with pytest.raises((NotDecided, OutcomeUnknown, ItemBlocked)):
                await one.submit(Purchase(sku="phone"))
            ready = await one.ready(1)
            return (ready["store"], ready["stock"]) == ("ok", "not available")

        await eventually_async(refused, "the new primary is found, and found wanting", 120)
        async with shop(etcd.endpoint, pair.replicas[0].url) as of_promoted:
            assert lost.order is not None
            assert await of_promoted.order(lost.order) is None


async def until_told(one: Counter, purchase: Purchase) -> Answer:
    """Send the same key again, as a client would, until there is an answer."""
    answer: Answer = await eventually_async(lambda: one.submit(purchase), "the buyer is told", 120, despite=Exception)
    return answer

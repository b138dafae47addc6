"""The sale under its lock works on real servers: the rush, keys, limits, queues and deadlines."""

import asyncio
import gc
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio

from app.errors import (
    Closing,
    HoursNotPossible,
    KeyReused,
    NotDecided,
)
from app.orders import Answer, Outcome, Purchase
from app.sale import worker as worker_module
from app.sale.batch import Part, decide_parts
from app.sale.worker import Worker
from app.stock import Fence
from fencelock.etcd.backend import EtcdBackend
from lab.servers import EtcdMember, RedisCluster, Valkey
from tests.harness.shop import buy, shop
from tests.harness.waiting import WITHIN_S, eventually_async


def outcomes(answers: list[Answer | BaseException]) -> Counter[str]:
    return Counter(answer.outcome.value if isinstance(answer, Answer) else repr(answer) for answer in answers)


@pytest.mark.parametrize(("instances", "batch_max"), [(2, 1), (4, 7), (2, 1000)])
async def test_the_rush(etcd: EtcdMember, valkey: Valkey, instances: int, batch_max: int) -> None:
    """500 buyers at several instances buy 300 units, 200 hear "sold out"; every sale has an order."""
    async with AsyncExitStack() as stack:
        shops = [
            await stack.enter_async_context(
                shop(etcd.endpoint, valkey.url, batch_max=batch_max, instance=str(number), purchase_timeout_ms=60_000)
            )
            for number in range(instances)
        ]
        await shops[0].set_stock("default", 300)
        each = 500 // instances
        crowds = await asyncio.gather(*(buy(one, each) for one in shops))
        answers = sum(crowds, [])
        assert outcomes(answers) == {"sold": 300, "sold_out": 200}
        told = {answer.order for answer in answers if isinstance(answer, Answer) and answer.order}
        audit = await shops[0].audit("default")
        assert audit.consistent, audit.violations
        assert (audit.stock, audit.lucky, audit.orders) == (0, 300, 300)
        assert {order.id for order in await shops[0].orders("default", limit=1000)} == told


async def test_a_sale_leaves_little_to_the_garbage_collector(etcd: EtcdMember, valkey: Valkey) -> None:
    """A purchase's objects are freed when it is over: a garbage collection stops all buyers, mostly under the lock."""
    async with shop(etcd.endpoint, valkey.url) as one:
        await one.set_stock("default", 1000)
        await buy(one, 10)  # so that lasting objects are there
        gc.collect()
        gc.disable()
        try:
            answers = await buy(one, 500)
            assert outcomes(answers) == {"sold": 500}
            del answers
            assert gc.collect() < 250
        finally:
            gc.enable()


@pytest.mark.parametrize("batch_max", [1, 1000])
async def test_an_idempotency_key_buys_once(etcd: EtcdMember, valkey: Valkey, batch_max: int) -> None:
    """50 requests with one key, at the same time at two instances, get one unit, one order, and one answer."""
    async with (
        shop(etcd.endpoint, valkey.url, batch_max=batch_max) as one,
        shop(etcd.endpoint, valkey.url, batch_max=batch_max) as two,
    ):
        await one.set_stock("default", 300)
        told = sum(await asyncio.gather(buy(one, 25, key="k"), buy(two, 25, key="k")), [])
        answers = [answer for answer in told if isinstance(answer, Answer)]
        assert len(answers) == len(told)
        assert {(a.outcome, a.order) for a in answers} == {("sold", answers[0].order)}
        assert sum(not a.replayed for a in answers) == 1
        assert (await one.audit("default")).lucky == 1
        later = await two.submit(Purchase(key="k"))
        assert later == Answer(Outcome.SOLD, 1, answers[0].order, replayed=True)
        with pytest.raises(KeyReused):
            await two.submit(Purchase(2, key="k"))


async def test_ended_is_a_last_word(etcd: EtcdMember, valkey: Valkey) -> None:
    """A purchase that waits in time at one instance, and gets "ended" at another, is not sold to afterwards."""
    ended = at(-1)
    async with (
        shop(etcd.endpoint, valkey.url, instance="slow") as slow,
        shop(etcd.endpoint, valkey.url, instance="late", sale_ends_at=ended) as late,
    ):
        await slow.set_stock("default", 5)
        async with held(etcd):
            told = asyncio.create_task(late.submit(Purchase(key="k")))
            await eventually_async(late.contenders, until=lambda queue: len(queue) == 2)
            waiting = asyncio.create_task(slow.submit(Purchase(key="k")))
            await eventually_async(slow.contenders, until=lambda queue: len(queue) == 3)
        assert await told == Answer(Outcome.ENDED, 1)
        assert await waiting == Answer(Outcome.ENDED, 1, replayed=True)
        assert (await slow.level("default")).lucky == 0


async def test_sold_out_is_known_for_a_while(etcd: EtcdMember, valkey: Valkey) -> None:
    """The instance that changes the stock knows of it at once, the others a little later."""
    async with (
        shop(etcd.endpoint, valkey.url, sold_out_ttl_ms=60_000) as knows,
        shop(etcd.endpoint, valkey.url, sold_out_ttl_ms=200) as soon,
    ):
        await knows.set_stock("default", 0)
        for one in (knows, soon):
            assert (await one.submit(Purchase())).outcome is Outcome.SOLD_OUT
        await knows.set_stock("default", 2)
        assert (await knows.submit(Purchase())).outcome is Outcome.SOLD
        await eventually_async(lambda: soon.submit(Purchase()), until=lambda told: told.outcome is Outcome.SOLD)


async def test_saturated_instances_take_turns(etcd: EtcdMember, valkey: Valkey) -> None:
    """While all have waiting buyers, none gets the lock twice in a row, and none begins a batch after its time."""
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"batch_max": 100, "max_hold_ms": 5, "purchase_timeout_ms": 60_000}
        shops = [
            await stack.enter_async_context(shop(etcd.endpoint, valkey.url, instance=str(number), **options))
            for number in range(3)
        ]
        await shops[0].set_stock("default", 100_000)
        await asyncio.gather(*(buy(one, 2000) for one in shops))
        turns: dict[int, str] = {}
        after = None
        while page := await shops[0].orders("default", after=after, limit=1000):
            turns |= {order.token: order.instance for order in page}
            after = page[-1].record.number
        owners = [turns[token] for token in sorted(turns)]
        # All three are in the queue until the first of them has served all its buyers.
        last = min(max(index for index, one in enumerate(owners) if one == name) for name in "012")
        begin = max(owners.index(name) for name in "012")
        busy = owners[begin : last + 1]
        assert len(busy) > 6
        assert all(one != other for one, other in itertools.pairwise(busy))
        assert max(Counter(busy).values()) - min(Counter(busy).values()) <= 2


def at(after_s: float) -> datetime:
    """Return the time so many seconds from now."""
    return datetime.now(UTC) + timedelta(seconds=after_s)


async def test_instances_know_what_the_others_sold(etcd: EtcdMember, valkey: Valkey) -> None:
    """A key that was answered, a limit that was reached or a unit that was sold elsewhere counts here as well."""
    async with (
        shop(etcd.endpoint, valkey.url, limit_per_buyer=2, instance="a") as one,
        shop(etcd.endpoint, valkey.url, limit_per_buyer=2, instance="b") as other,
    ):
        await one.set_stock("default", 6)
        first = await one.submit(Purchase(buyer="ann", key="k"))
        again = await other.submit(Purchase(buyer="ann", key="k"))
        assert (first.outcome, again.outcome, again.replayed) == (Outcome.SOLD, Outcome.SOLD, True)
        assert first.order == again.order
        assert (await one.submit(Purchase(buyer="bob", quantity=2))).outcome is Outcome.SOLD
        assert (await other.submit(Purchase(buyer="eve"))).outcome is Outcome.SOLD
        assert (await other.submit(Purchase(buyer="bob", key="too much"))).outcome is Outcome.LIMIT_REACHED
        assert (await one.submit(Purchase(buyer="bob", key="too much"))).replayed
        for buyer, seller, outcome in (("cid", one, "sold"), ("dan", other, "sold"), ("fay", one, "sold_out")):
            assert (await seller.submit(Purchase(buyer=buyer))).outcome == outcome
        audit = await one.audit("default")
        assert (audit.stock, audit.orders, audit.violations) == (0, 5, [])


async def test_hours_that_could_not_be_read_again_are_not_written(etcd: EtcdMember, valkey: Valkey) -> None:
    """A moment before 1970, or too far ahead, is refused by its name, and the item sells on."""
    async with shop(etcd.endpoint, valkey.url) as one:
        await one.set_stock("default", 1)
        for moment in (-1.0, 1e12, float("nan")):
            for hours in ({"starts_at": moment}, {"ends_at": moment}):
                with pytest.raises(HoursNotPossible, match=f"^{next(iter(hours))} "):
                    await one.set_stock("default", 0, add=True, terms=hours)
        assert (await one.submit(Purchase())).outcome is Outcome.SOLD


@pytest.mark.slow
async def test_a_buyer_who_came_before_the_end_is_served(etcd: EtcdMember, valkey: Valkey) -> None:
    """A buyer who came in time is served after the end, too."""
    end = at(10)  # for a slow machine: the buyer must be there before
    async with shop(etcd.endpoint, valkey.url, sale_ends_at=end, purchase_timeout_ms=60_000) as one:
        await one.set_stock("default", 2)
        async with held(etcd):
            waiting = await waiting_buyers(one, 1)
            await eventually_async(lambda: datetime.now(UTC) > end, "the sale is over")
            assert one.waiting_by_item == {"default": 1}
        assert outcomes(await waiting) == {"sold": 1}
        assert (await one.submit(Purchase())).outcome is Outcome.ENDED


@pytest.mark.parametrize("lock_groups", [(1024, 1), (3, 3)])
async def test_items_are_sold_apart(etcd: EtcdMember, valkey: Valkey, lock_groups: tuple[int, int]) -> None:
    """Items may share locks, and two instances may disagree about that: each item sells to its last unit."""
    async with (
        shop(etcd.endpoint, valkey.url, lock_groups=lock_groups[0]) as one,
        shop(etcd.endpoint, valkey.url, lock_groups=lock_groups[1], instance="other") as other,
    ):
        skus = [f"item-{number}" for number in range(20)]
        for sku in skus:
            await one.set_stock(sku, 5)
        buying = [each.submit(Purchase(sku=sku)) for sku in skus for _ in range(5) for each in (one, other)]
        assert outcomes(list(await asyncio.gather(*buying))) == {"sold": 100, "sold_out": 100}
        for sku in skus:
            audit = await one.audit(sku)
            assert (audit.orders, audit.violations) == (5, [])


async def test_a_restock_by_hand_in_mid_sale_is_kept(etcd: EtcdMember, valkey: Valkey) -> None:
    """A change by `redis-cli` while buyers are served is not overwritten, and the audit reports it."""
    async with shop(etcd.endpoint, valkey.url, batch_max=5) as one:
        await one.set_stock("default", 100)
        buying = asyncio.create_task(buy(one, 200))
        await eventually_async(lambda: one.level("default"), until=lambda level: level.lucky > 10)
        async with redis.asyncio.Redis.from_url(valkey.url) as client:
            await client.incrby("stock", 50)
        assert outcomes(await buying) == {"sold": 150, "sold_out": 50}
        assert (await one.audit("default")).violations == [
            "stock + sold is 150, but 100 units were there at the start",
            "50 units were sold that did not exist",
        ]


@asynccontextmanager
async def held(etcd: EtcdMember) -> AsyncIterator[None]:
    """Hold the default item's lock, as another instance would."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=30)
    try:
        async with backend.aio.lock("/seckill/lock/all"):
            yield
    finally:
        backend.close()


async def waiting_buyers(one: Any, count: int) -> asyncio.Task[list[Answer | BaseException]]:
    """Start so many buyers, and return once all of them are queued."""
    waiting = asyncio.create_task(buy(one, count))
    await eventually_async(lambda: one.waiting_by_item == {"default": count}, "they wait")
    return waiting


async def test_nothing_comes_between_a_decision_and_its_commit(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buyer whose time ran out in between would be told that nothing was sold, and be sold to."""
    seen: list[str] = []

    def decide(*arguments: Any, **options: Any) -> list[Part]:
        seen.append("decided")
        asyncio.get_running_loop().call_soon(seen.append, "others had their turn")
        return decide_parts(*arguments, **options)

    async with shop(etcd.endpoint, valkey.url) as one:
        commit = one.store.commit

        async def note(fence: Fence, batches: Any, together: Any) -> Any:
            seen.append("commit")
            return await commit(fence, batches)

        await one.set_stock("default", 1)
        monkeypatch.setattr(worker_module, "decide_parts", decide)
        monkeypatch.setattr(one.store, "commit", note)
        assert (await one.submit(Purchase())).outcome is Outcome.SOLD
    assert seen == ["decided", "commit", "others had their turn"]


async def test_closing_serves_those_who_wait(etcd: EtcdMember, valkey: Valkey) -> None:
    """A closing shop refuses new buyers, serves the waiting ones, and leaves the lock's queue."""
    async with shop(etcd.endpoint, valkey.url) as one, shop(etcd.endpoint, valkey.url) as other:
        await one.set_stock("default", 100)
        async with held(etcd):
            waiting = await waiting_buyers(one, 5)
            closing = asyncio.create_task(one.close(within_s=WITHIN_S))
            await asyncio.sleep(0)
            with pytest.raises(Closing):
                await one.submit(Purchase())
        assert outcomes(await waiting) == {"sold": 5}
        await closing
        assert await other.contenders() == []


async def test_no_lock_is_taken_for_an_item_whose_node_is_away(
    etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster others can reach that node, perhaps, and would wait; a node without these items does not count."""
    grants, serve = list[str](), Worker._serve_under_one_grant

    async def noted(worker: Worker) -> None:
        grants.append("one")
        await serve(worker)

    with RedisCluster() as cluster:
        pinged = cluster.owner_of(cluster.slot_of("{ping}"))
        names = (f"item-{number}" for number in itertools.count())
        sku = next(name for name in names if cluster.owner_of(cluster.slot_of(f"{{{name}}}")) is not pinged)
        node = cluster.owner_of(cluster.slot_of(f"{{{sku}}}"))
        async with shop(etcd.endpoint, cluster.url, store_timeout_ms=300, purchase_timeout_ms=3000) as one:
            await one.set_stock(sku, 5)
            assert outcomes(await buy(one, 1, sku=sku)) == {"sold": 1}
            monkeypatch.setattr(Worker, "_serve_under_one_grant", noted)
            node.pause()
            (told,) = await buy(one, 1, sku=sku)
            node.resume()
            assert isinstance(told, NotDecided)
            assert grants == ["one"]
            pinged.pause()
            await one.store.ping([sku])
            pinged.resume()
            assert outcomes(await buy(one, 1, sku=sku)) == {"sold": 1}

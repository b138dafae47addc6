"""Answers get lost, and stores and locks go away in mid-sale, but nobody gets a wrong answer."""

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis.asyncio

from app.errors import FenceRefused, NotDecided, StockError, StockUnavailable
from app.orders import Answer, Ask, Outcome, Purchase, Snapshot, Terms
from app.sale.batch import Clocked, decide_parts
from app.sale.in_doubt import InDoubt
from app.sale.queue import Queue
from app.stock import Batch, Fence, StockStore, registry
from app.stock.redis.client import RedisClient, Script
from app.telemetry.observer import Observer
from lab.servers import EtcdMember, Valkey
from lab.torture.proxy import Proxy
from tests.harness.shop import buy, client, shop
from tests.harness.waiting import WITHIN_S, eventually, eventually_async


def counted(answers: list[Any]) -> Counter[str]:
    return Counter(answer.outcome.value if isinstance(answer, Answer) else type(answer).__name__ for answer in answers)


# How a commit is recognized on its way to a store that has seen one before.
COMMIT = Script("put.lua").sha.encode()
BUYER = "buyer-of-the-lost"


@pytest.mark.parametrize("lost", ["answer", "request"])
async def test_a_lost_commit_is_resolved_before_anybody_is_told(etcd: EtcdMember, valkey: Valkey, lost: str) -> None:
    """A commit for several items, or its answer, is lost: later each buyer who hears "sold" has one order.

    The instance that can't reach the store does not keep the lock meanwhile: another one sells.
    """
    units = {"item-0": 4} | {f"item-{number}": 2 for number in range(1, 7)}
    with Proxy(valkey.port) as proxy:
        async with (
            shop(etcd.endpoint, f"redis://127.0.0.1:{proxy.port}/0", purchase_timeout_ms=60_000) as one,
            shop(etcd.endpoint, valkey.url) as other,
        ):
            for sku, stock in units.items():
                await one.set_stock(sku, stock)
                await one.submit(Purchase(sku=sku))
            (proxy.lose_answer_to if lost == "answer" else proxy.lose_request)(COMMIT)
            wanted = [Purchase(sku=sku, buyer=BUYER, key=key) for sku in units for key in (None, "k")]
            buying = asyncio.gather(*(one.submit(purchase) for purchase in wanted))
            assert await asyncio.to_thread(proxy.struck.wait, 15)
            assert (await other.submit(Purchase(sku="item-0"))).outcome is Outcome.SOLD
            assert not buying.done()
            proxy.restore()
            answers = await buying
            assert counted(answers) == {"sold": 8, "sold_out": 6}
            for sku, stock in units.items():
                audit = await other.audit(sku)
                assert (audit.lucky, audit.orders, audit.violations) == (stock, stock, [])
                orders = {order.id for order in await one.orders(sku)}
                sold = [a.order for p, a in zip(wanted, answers, strict=True) if p.sku == sku and a.order]
                assert set(sold) < orders


async def test_a_shard_that_is_away_does_not_stop_the_others(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster each item has its own server: while one is away its batch stays in doubt, and the rest is sold."""
    deliver = RedisClient.run
    went_away = asyncio.Event()

    async def away(self: RedisClient, script: Script, keys: Sequence[str], *call: Any, **options: Any) -> Any:
        if "{away}" not in keys[0]:
            return await deliver(self, script, keys, *call, **options)
        if not went_away.is_set():
            answer = await deliver(self, script, keys, *call, **options)
            if script.sha != COMMIT.decode():
                return answer
            went_away.set()
        raise StockUnavailable("nobody there")

    async with shop(etcd.endpoint, valkey.url, purchase_timeout_ms=60_000) as one:
        one.store.storage._clustered = True
        monkeypatch.setattr(RedisClient, "server_of", lambda client, key: "")  # there is one, which is no Cluster's
        for sku in ("away", "here"):
            await one.set_stock(sku, 100)
            await one.submit(Purchase(sku=sku))
        monkeypatch.setattr(RedisClient, "run", away)
        in_vain = [asyncio.create_task(one.submit(Purchase(sku="away", buyer=BUYER)))]
        async with asyncio.timeout(WITHIN_S):
            await went_away.wait()
        for _ in range(10):
            async with asyncio.timeout(WITHIN_S):
                assert (await one.submit(Purchase(sku="here"))).outcome is Outcome.SOLD
            in_vain.append(asyncio.create_task(one.submit(Purchase(sku="away"))))
        assert not any(buying.done() for buying in in_vain)
        monkeypatch.setattr(RedisClient, "run", deliver)
        assert {answer.outcome for answer in await asyncio.gather(*in_vain)} == {Outcome.SOLD}
        for sku, units in (("away", 12), ("here", 11)):
            audit = await one.audit(sku)
            assert (audit.lucky, audit.orders, audit.violations) == (units, units, [])


async def test_much_that_is_in_doubt_leaves_the_others_their_turn(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit for many items is in doubt and the store is slow: resolving all of it takes several grants."""
    resolve = StockStore.resolve
    under: Counter[int] = Counter()

    async def slowly(
        self: StockStore, fence: Fence, batches: Mapping[str, Batch]
    ) -> dict[str, list[str] | StockError | None]:
        under[fence.token] += len(batches)
        await asyncio.sleep(0.02 * len(batches))
        return await resolve(self, fence, batches)

    skus = [f"item-{number}" for number in range(24)]
    with Proxy(valkey.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with shop(etcd.endpoint, url, purchase_timeout_ms=60_000, max_hold_ms=50) as one:
            for sku in skus:
                await one.set_stock(sku, 2)
                await one.submit(Purchase(sku=sku))
            monkeypatch.setattr(StockStore, "resolve", slowly)
            proxy.lose_answer_to(COMMIT)
            buying = asyncio.gather(*(one.submit(Purchase(sku=sku, buyer=BUYER)) for sku in skus))
            assert await asyncio.to_thread(proxy.struck.wait, 15)
            proxy.restore()
            assert counted(list(await buying)) == {"sold": 24}
    assert sum(under.values()) >= 24
    assert max(under.values()) <= 5  # once its 50 ms are over, a grant begins no more


@pytest.mark.parametrize("which", ["etcd", "store"])
async def test_a_server_that_is_away_and_comes_back(which: str) -> None:
    """While a server is away, buyers wait until their deadline and hear "not decided"; then sales resume."""
    with EtcdMember() as etcd, Valkey(durable=True) as valkey:
        async with shop(etcd.endpoint, valkey.url, purchase_timeout_ms=3000, lock_ttl_s=2) as one:
            await one.set_stock("default", 100)
            assert counted(await buy(one, 10)) == {"sold": 10}
            victim = etcd if which == "etcd" else valkey
            await asyncio.to_thread(victim.kill)
            lost = await buy(one, 10)
            assert set(counted(lost)) <= {"NotDecided", "StockUnavailable"}
            assert set((await one.ready(1)).values()) != {"ok"}
            await asyncio.to_thread(victim.start)
            await eventually_async(lambda: one.ready(1), until=lambda checks: set(checks.values()) == {"ok"})
            # A key that an interrupted call left in etcd may stand in the way for a moment longer.
            answer = await eventually_async(lambda: one.submit(Purchase()), despite=Exception)
            assert answer.outcome is Outcome.SOLD
            assert counted(await buy(one, 10)) == {"sold": 10}
            audit = await one.audit("default")
            assert (audit.lucky, audit.orders, audit.violations) == (21, 21, [])


async def test_a_short_outage_is_only_a_delay() -> None:
    """An etcd or a store that is frozen for less than the buyers' deadline costs them time, not their purchase."""
    with EtcdMember() as etcd, Valkey() as valkey:
        async with shop(etcd.endpoint, valkey.url, purchase_timeout_ms=60_000) as one:
            await one.set_stock("default", 100)
            await one.submit(Purchase())
            for victim in (etcd, valkey):
                victim.pause()
                buying = asyncio.create_task(buy(one, 10))
                await eventually_async(lambda: one.waiting_by_item == {"default": 10})
                victim.resume()
                assert counted(await buying) == {"sold": 10}
            assert (await one.audit("default")).violations == []


async def test_a_store_that_loads_its_file(etcd: EtcdMember) -> None:
    """While a store answers -LOADING buyers wait or get an error in time, readiness reports it, and sales resume."""
    options: list[str] = []

    def loading() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", valkey.port), timeout=WITHIN_S) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"-LOADING")
        except OSError:
            return False

    with Valkey(durable=True, options=options) as valkey, Proxy(valkey.port) as proxy:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(shop(etcd.endpoint, valkey.url))
            behind = f"redis://127.0.0.1:{proxy.port}/0"
            patient = await stack.enter_async_context(shop(etcd.endpoint, behind, purchase_timeout_ms=60_000))
            http = await stack.enter_async_context(client(etcd.endpoint, valkey.url, purchase_timeout_ms=3000))
            for sku in ("default", "phone"):
                await one.set_stock(sku, 100)
                assert counted(await buy(patient, 5, sku=sku)) == {"sold": 5}
            assert (await http.post("/stock/reduce", params={"sku": "phone"})).status_code == 200
            # The answer to a commit is lost, so that its batch is resolved against the loading store.
            proxy.lose_answer_to(COMMIT)
            lost = asyncio.create_task(buy(patient, 3, buyer=BUYER))
            assert await asyncio.to_thread(proxy.struck.wait, 15)
            async with redis.asyncio.Redis.from_url(valkey.url) as plain:
                for part in range(10):
                    await plain.mset({f"other:{part}:{number}": number for number in range(1000)})
                await plain.bgrewriteaof()  # its file is a snapshot now, and is loaded key by key
                await eventually_async(
                    lambda: plain.info("persistence"), until=lambda info: info["aof_rewrite_in_progress"] == 0
                )
            await asyncio.to_thread(valkey.kill)
            # Loading takes 5 ms per key, until that is ended below, and connections are served meanwhile.
            options.extend(["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"])
            await asyncio.to_thread(valkey.start, wait=False)
            proxy.restore()
            await asyncio.to_thread(eventually, loading, "it loads")

            waiting = asyncio.create_task(buy(patient, 5, sku="phone"))
            ready = await eventually_async(lambda: http.get("/readyz"), until=lambda answer: answer.status_code == 503)
            assert (ready.status_code, ready.json()["checks"]["store"]) == (503, "not available")
            began = asyncio.get_running_loop().time()
            told = [http.post("/stock/reduce", params={"sku": "phone"}) for _ in range(5)]
            for answer in await asyncio.gather(*told):
                assert answer.status_code == 503
                assert answer.json()["type"] == "urn:seckill:not-decided"
            assert asyncio.get_running_loop().time() - began < WITHIN_S
            assert await asyncio.to_thread(loading)
            assert not lost.done()
            assert not waiting.done()
            with socket.create_connection(("127.0.0.1", valkey.port), timeout=WITHIN_S) as connection:
                connection.sendall(b"CONFIG SET key-load-delay 0\r\n")
                assert connection.recv(64) == b"+OK\r\n"
            await eventually_async(lambda: http.get("/readyz"), until=lambda answer: answer.status_code == 200)
            assert counted(await waiting) == {"sold": 5}
            assert counted(await lost) == {"sold": 3}
            told = [http.post("/stock/reduce", params={"sku": "phone"}) for _ in range(5)]
            assert {answer.headers.get("x-seckill-outcome") for answer in await asyncio.gather(*told)} == {"sold"}
            for sku, sold in (("default", 8), ("phone", 16)):
                audit = await one.audit(sku)
                assert (audit.stock, audit.lucky, audit.orders, audit.violations) == (100 - sold, sold, sold, [])


async def test_a_settlement_that_the_fence_refuses_is_tried_again(valkey: Valkey) -> None:
    """A batch that the fence refuses to resolve stays in doubt, and a later grant resolves it."""
    store, queue = registry.connect(valkey.url, "fence"), Queue(limit=1, observer=Observer(), on_work=lambda: None)
    in_doubt = InDoubt(store, Observer())
    try:
        await store.set_stock("default", Fence(1, "etcd:1"), 5)
        buying = queue.join(Purchase(key="k"), asyncio.get_running_loop().time() + 60)
        entries, ours = queue.take(1), Fence(2, "etcd:1")
        snapshot = (await store.prepare(ours, "b", {"default": Ask(keys=["k"])}))["default"]
        assert isinstance(snapshot, Snapshot)
        (part,) = decide_parts("b", {entries[0].item: snapshot}, entries, Clocked(Terms()))
        await store.commit(ours, {"default": part.write})
        in_doubt.add([part])  # as if the answer had been lost
        await store.prepare(Fence(9, "etcd:1"), "another", {"default": Ask()})
        [(_, refused)] = await in_doubt.resolve(Fence(3, "etcd:1"), in_doubt.next_parts())
        assert isinstance(refused, FenceRefused)
        assert in_doubt.has_work
        [(_, numbers)] = await in_doubt.resolve(Fence(10, "etcd:1"), in_doubt.next_parts())
        assert numbers == [order.record.number for order in await store.orders("default")]
        assert not in_doubt
        queue.close()
        with pytest.raises(NotDecided):
            await buying
    finally:
        await store.close()

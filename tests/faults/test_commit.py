"""Answers get lost, and stores and locks go away in mid-sale, but nobody gets a wrong answer."""

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis.asyncio

from app.orders import Answer, Outcome, Purchase
from app.stock.redis.client import Script
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

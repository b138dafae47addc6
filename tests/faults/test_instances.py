"""Whole instances are killed, paused and stopped while they sell."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from app.errors import StockUnavailable
from fencelock.etcd.backend import EtcdBackend
from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process, free_port
from tests.harness.shop import Instance, lock_url, shop
from tests.harness.waiting import eventually, eventually_async

pytestmark = pytest.mark.slow

TTL_S = 2


async def rush(urls: list[str], buyers: int, **params: Any) -> list[httpx.Response | BaseException]:
    """Send so many buyers at once, spread over the instances."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=60) as http:
        asked = [
            http.post(f"{urls[number % len(urls)]}/stock/reduce", params={"buyer": f"b{number}"} | params)
            for number in range(buyers)
        ]
        return list(await asyncio.gather(*asked, return_exceptions=True))


def told(answers: list[httpx.Response | BaseException]) -> Counter[str]:
    return Counter(
        answer.headers.get("x-seckill-outcome", str(answer.status_code))
        if isinstance(answer, httpx.Response)
        else "lost"
        for answer in answers
    )


async def order_ids(one: Any) -> set[str]:
    """Return the ids of all orders of the item "default"."""
    after, ids = None, set()
    while page := await one.orders("default", after=after, limit=1000):
        ids |= {str(order.id) for order in page}
        after = page[-1].record.number
    return ids


Answers = list[httpx.Response | BaseException]


@asynccontextmanager
async def one_holds_it(etcd: EtcdMember) -> AsyncIterator[None]:
    """Hold the lock of all items, as another instance would."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=30)
    async with backend.aio.lock("/seckill/lock/all"):
        yield
    backend.close()


async def test_sigterm_drains_and_leaves(etcd: EtcdMember, valkey: Valkey) -> None:
    """On SIGTERM under load accepted buyers are served, the lock is released at once, and the exit status is 0."""

    with Instance(etcd.endpoint, valkey.url, batch_max=1, purchase_timeout_ms=60_000) as instance:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 1000)
            answering = asyncio.create_task(rush([instance.url], 200))
            level = partial(one.level, "default")
            await eventually_async(level, until=lambda level: level.lucky > 5, despite=StockUnavailable)
            instance.signal(signal.SIGTERM)
            counts = told(await answering)
            # The closed port turns away buyers who had not connected yet; accepted ones are served.
            assert set(counts) <= {"sold", "503", "lost"}
            audit = await one.audit("default")
            assert audit.violations == []
            assert counts["sold"] == audit.lucky
            eventually(lambda: not instance.running, "the instance has left")
            assert await one.contenders() == []
        assert instance._child is not None
        assert instance._child.returncode == 0


async def test_sigterm_while_the_lock_is_elsewhere(etcd: EtcdMember, valkey: Valkey) -> None:
    """Buyers who can't be served before the drain is over get 503 with a retry: no 500, no broken connection."""

    with Instance(etcd.endpoint, valkey.url, drain_timeout_s=1, purchase_timeout_ms=60_000) as instance:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("phone", 5)
            async with one_holds_it(etcd):
                answering = asyncio.create_task(rush([instance.url], 20, sku="phone"))
                queued = 'seckill_queue_buyers{sku="phone"} 20.0'
                await eventually_async(lambda: queued in str(instance.get("/metrics")[1]))
                instance.signal(signal.SIGTERM)
                answers = await answering
                assert told(answers) == {"503": 20}
                for answer in answers:
                    assert isinstance(answer, httpx.Response)
                    assert answer.headers["retry-after"]
                    assert answer.json()["type"] == "urn:seckill:not-decided"
                eventually(lambda: not instance.running, "the instance has left")
            assert (await one.level("phone")).lucky == 0


async def test_each_instance_is_replaced_while_selling(etcd: EtcdMember, valkey: Valkey) -> None:
    """Each instance in turn is replaced: no unit or order is lost, and a client that retries sees no error."""
    with Instance(etcd.endpoint, valkey.url) as first, Instance(etcd.endpoint, valkey.url) as second:
        running = [first, second]
        told: list[str] = []
        errors: list[str] = []
        over = asyncio.Event()

        async def buyer(number: int, http: httpx.AsyncClient) -> None:
            count = 0
            while not over.is_set():
                count += 1
                key = f"{number}-{count}"
                seen = []
                for url in (running[(number + count) % 2].url, running[(number + count + 1) % 2].url):
                    try:
                        answer = await http.post(f"{url}/stock/reduce", headers={"Idempotency-Key": key})
                    except httpx.TransportError as error:
                        seen.append(repr(error))
                        continue
                    if answer.status_code == 200:
                        told.append(answer.headers["x-seckill-order"])
                        break
                    seen.append(f"{answer.status_code} {answer.text}")
                else:
                    errors.append(f"{key}: {seen}")

        async def sells_on() -> None:
            before = len(told)
            await eventually_async(lambda: len(told) > before + 50, "sales go on")

        async with (
            shop(etcd.endpoint, valkey.url) as one,
            httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=None)) as http,
        ):
            await one.set_stock("default", 1_000_000)
            buying = [asyncio.create_task(buyer(number, http)) for number in range(16)]
            await sells_on()
            for instance in running:
                instance.signal(signal.SIGTERM)
                await asyncio.to_thread(eventually, lambda gone=instance: not gone.running, "it has left")
                await asyncio.to_thread(instance.start)
                await sells_on()
            over.set()
            await asyncio.gather(*buying)
            assert errors == []
            audit = await one.audit("default")
            assert (audit.lucky, audit.violations) == (len(told), [])
            assert len(set(told)) == len(told)
            assert await order_ids(one) == set(told)


def test_uvicorn_can_run_it_too(etcd: EtcdMember, valkey: Valkey) -> None:
    """`uvicorn app.main:create_app --factory` is the same service; a wrong setting ends it with one line."""
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "app.main:create_app", "--factory", "--port", str(port)]
    env = os.environ | {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": valkey.url}
    url = f"http://127.0.0.1:{port}"

    def healthy() -> bool:
        try:
            return httpx.get(f"{url}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    async def fill() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 1)

    asyncio.run(fill())
    with Process("uvicorn", lambda _: argv, env=env, ready=healthy, ready_within_s=90):
        assert httpx.get(f"{url}/stock/reduce").text == f"{port} reduce stock end!"
    wrong = Process("uvicorn", lambda _: argv, env=env | {"SECKILL_BATCH_MAX": "0"}, ready=healthy)
    wrong.start(wait=False)
    eventually(lambda: not wrong.running, "it ends")
    lines = wrong.last_lines().strip().splitlines()
    wrong.stop()
    assert lines == ["seckill: SECKILL_BATCH_MAX: Input should be greater than or equal to 1"]

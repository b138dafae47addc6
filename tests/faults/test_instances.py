"""Whole instances that are killed, paused and stopped while they sell."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from app.embedded import EtcdMember, Valkey
from app.embedded.process import Process, free_port
from app.locks import EtcdBackend
from app.torture.proxy import Proxy
from tests.harness.shop import Instance, shop
from tests.harness.waiting import WITHIN_S, eventually, eventually_async

TTL_S = 2


async def rush(urls: list[str], buyers: int, **params: Any) -> list[httpx.Response | BaseException]:
    """So many buyers at once, spread over the instances."""
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


@pytest.mark.parametrize(("instances", "batch_max"), [(2, 1000), (4, 1000), (2, 1)])
def test_the_rush_over_http(etcd: EtcdMember, valkey: Valkey, instances: int, batch_max: int) -> None:
    """500 buyers on real instances: 300 sold, 200 sold out, nobody refused, all numbers agree."""

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 300)
            answers = await rush([instance.url for instance in running], 500)
            assert told(answers) == {"sold": 300, "sold_out": 200}
            audit = await one.audit("default")
            assert (audit.stock, audit.lucky, audit.orders, audit.violations) == (0, 300, 300, [])
            orders = {order.id for order in await one.orders("default", limit=1000)}
            assert {a.headers["x-seckill-order"] for a in answers if "x-seckill-order" in a.headers} == orders

    with ExitStack() as stack:
        others = {"batch_max": batch_max, "purchase_timeout_ms": 60_000}
        running = [stack.enter_context(Instance(etcd.endpoint, valkey.url, **others)) for _ in range(instances)]
        asyncio.run(main())


def test_a_killed_holder_costs_one_ttl(etcd: EtcdMember, valkey: Valkey) -> None:
    """kill -9 of an instance that sells: the other goes on after about a TTL; who was told "sold" has an order."""

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 100_000)
            killing = asyncio.create_task(kill_in_mid_sale(one))
            answers = await rush([first.url, second.url], 400)
            await killing
            counts = told(answers)
            assert counts["sold"] >= 200  # everybody who asked the instance that lives
            assert set(counts) <= {"sold", "lost"}
            audit = await one.audit("default")
            assert audit.violations == []
            orders = {order.id for order in await one.orders("default", limit=1000)}
            ids = {a.headers["x-seckill-order"] for a in answers if isinstance(a, httpx.Response)}
            assert ids <= orders

    async def kill_in_mid_sale(one: Any) -> None:
        async def holds() -> bool:
            return any(c.holds and c.owner["instance"] == str(first.port) for c in await one.contenders())

        await eventually_async(holds, "the first instance has the lock")
        await asyncio.to_thread(first.kill)

    others = {"batch_max": 1, "lock_ttl_s": TTL_S, "purchase_timeout_ms": 60_000}
    with (
        Instance(etcd.endpoint, valkey.url, **others) as first,
        Instance(etcd.endpoint, valkey.url, **others) as second,
    ):
        asyncio.run(main())


def test_a_paused_holder_is_overtaken(etcd: EtcdMember, valkey: Valkey) -> None:
    """SIGSTOP of an instance that sells, beyond its TTL, then SIGCONT: nothing oversold, everybody gets an answer."""

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 300)
            pausing = asyncio.create_task(pause_in_mid_sale(one))
            answers = await rush([first.url, second.url], 500)
            await pausing
            assert told(answers) == {"sold": 300, "sold_out": 200}
            audit = await one.audit("default")
            assert (audit.lucky, audit.orders, audit.violations) == (300, 300, [])

    async def pause_in_mid_sale(one: Any) -> None:
        async def holds() -> bool:
            return any(c.holds and c.owner["instance"] == str(first.port) for c in await one.contenders())

        await eventually_async(holds, "the first instance has the lock")
        first.pause()

        async def overtaken() -> bool:
            return not any(c.owner["instance"] == str(first.port) for c in await one.contenders())

        await eventually_async(overtaken, "its lease has ended", TTL_S + WITHIN_S)
        first.resume()

    others = {"batch_max": 1, "lock_ttl_s": TTL_S, "purchase_timeout_ms": 60_000}
    with (
        Instance(etcd.endpoint, valkey.url, **others) as first,
        Instance(etcd.endpoint, valkey.url, **others) as second,
    ):
        asyncio.run(main())


def test_sigterm_drains_and_leaves(etcd: EtcdMember, valkey: Valkey) -> None:
    """SIGTERM under load: whoever got in is served, the lock is given back at once, the exit status is 0."""

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 1000)
            answering = asyncio.create_task(rush([instance.url], 200))

            async def selling() -> bool:
                return (await one.level("default")).lucky > 5

            await eventually_async(selling)
            instance.signal(signal.SIGTERM)
            counts = told(await answering)
            # Who had not connected yet is turned away by the closed port; who got in is served.
            assert set(counts) <= {"sold", "503", "lost"}
            audit = await one.audit("default")
            assert audit.violations == []
            assert counts["sold"] == audit.lucky
            eventually(lambda: not instance.running, "the instance has left")
            assert await one.contenders() == []

    with Instance(etcd.endpoint, valkey.url, batch_max=1, purchase_timeout_ms=60_000) as instance:
        asyncio.run(main())
        assert instance._child is not None
        assert instance._child.returncode in (0, -signal.SIGTERM)


def test_sigterm_while_the_lock_is_elsewhere(etcd: EtcdMember, valkey: Valkey) -> None:
    """Those who can't be served before the drain is over are told so (503, try again): no 500, no broken connection."""

    async def main() -> None:
        backend = EtcdBackend([etcd.endpoint], ttl_s=30)
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("phone", 5)
            async with backend.lock("/seckill/lock/all").on_loop():
                answering = asyncio.create_task(rush([instance.url], 20, sku="phone"))

                async def queued() -> bool:
                    metrics = str(instance.get("/metrics")[1])
                    return 'seckill_queue_buyers{sku="phone"} 20.0' in metrics

                await eventually_async(queued)
                instance.signal(signal.SIGTERM)
                answers = await answering
                assert told(answers) == {"503": 20}
                for answer in answers:
                    assert isinstance(answer, httpx.Response)
                    assert answer.headers["retry-after"]
                    assert answer.json()["type"] == "urn:seckill:not-decided"
                eventually(lambda: not instance.running, "the instance has left")
            assert (await one.level("phone")).lucky == 0
        backend.close()

    with Instance(etcd.endpoint, valkey.url, drain_timeout_s=1, purchase_timeout_ms=60_000) as instance:
        asyncio.run(main())


def test_each_instance_is_replaced_while_selling(etcd: EtcdMember, valkey: Valkey) -> None:
    """SIGTERM to each in turn, and a new one: no unit, no order lost, no error for a client that retries once."""

    async def main() -> None:
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

            async def more() -> bool:
                return len(told) > before + 50

            await eventually_async(more, "sales go on")

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
            after, orders = None, set()
            while page := await one.orders("default", after=after, limit=1000):
                orders |= {order.id for order in page}
                after = page[-1].id
            assert orders == set(told)

    with Instance(etcd.endpoint, valkey.url) as first, Instance(etcd.endpoint, valkey.url) as second:
        running = [first, second]
        asyncio.run(main())


def test_a_path_that_is_reset_again_and_again(etcd: EtcdMember, valkey: Valkey) -> None:
    """Connections to the store are reset while an instance sells: a delay, and no error that nobody foresaw."""

    async def main(instance: Instance, path: Proxy) -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 10_000)
            buying = asyncio.create_task(rush_after_rush(instance))
            resets = 0
            while not buying.done():
                path.reset()
                resets += 1
                await asyncio.sleep(random.uniform(0.0, 0.1))
            answers = await buying
            assert resets > 20
            assert set(told(answers)) <= {"sold", "503"}
            audit = await one.audit("default")
            assert (audit.lucky >= told(answers)["sold"], audit.violations) == (True, [])

    async def rush_after_rush(instance: Instance) -> list[httpx.Response | BaseException]:
        answers = []
        until = asyncio.get_running_loop().time() + 4
        while asyncio.get_running_loop().time() < until:
            answers += await rush([instance.url], 20)
        return answers

    with Proxy(valkey.port) as path, Instance(etcd.endpoint, f"redis://127.0.0.1:{path.port}/0") as instance:
        asyncio.run(main(instance, path))
        log = (instance.directory / "output.log").read_text()
    assert "can't be reached" in log
    assert "in a way that it must not" not in log
    assert "Traceback" not in log


def test_uvicorn_can_run_it_too(etcd: EtcdMember, valkey: Valkey) -> None:
    """`uvicorn app.main:create_app --factory` is the same service; a wrong setting ends it with one line."""
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "app.main:create_app", "--factory", "--port", str(port)]
    env = os.environ | {"SECKILL_ETCD_ENDPOINTS": etcd.endpoint, "SECKILL_REDIS_URL": valkey.url}
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
    with Process("uvicorn", lambda _: argv, env=env, ready=healthy):
        assert httpx.get(f"{url}/stock/reduce").text == f"{port} reduce stock end!"
    wrong = Process("uvicorn", lambda _: argv, env=env | {"SECKILL_BATCH_MAX": "0"}, ready=healthy)
    wrong.start(wait=False)
    eventually(lambda: not wrong.running, "it ends")
    lines = wrong.last_lines().strip().splitlines()
    wrong.stop()
    assert lines == ["seckill: SECKILL_BATCH_MAX: Input should be greater than or equal to 1"]

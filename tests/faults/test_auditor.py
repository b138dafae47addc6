"""The auditor: one instance has the office, says what it finds, and hands over when it dies."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import redis

from app.audit import auditor as auditor_module
from app.embedded import EtcdMember, Valkey
from app.main import open_shop
from app.sale import Auditor, Shop
from app.stock.redis.keys import Keys
from app.telemetry.metrics import Metrics
from app.torture.proxy import Proxy
from tests.harness.shop import Instance, buy, settings
from tests.harness.waiting import WITHIN_S, eventually, eventually_async

TTL_S = 2
EVERY_S = 0.2


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def audit_of(instance: Instance) -> dict[str, Any]:
    """What an instance says of the last audit; empty while it knows of none."""
    status, body = instance.get("/stock")
    return (body["audit"] or {}) if status == 200 else {}


def auditors(instances: list[Instance]) -> list[Instance]:
    return [one for one in instances if metric(str(one.get("/metrics")[1]), "seckill_auditor") == 1]


def the_auditor(instances: list[Instance]) -> Instance:
    """The one among these that has the office, once all of them say that it has looked."""

    def found() -> Instance | None:
        [one] = auditors(instances) or [None]
        named = {audit_of(instance).get("auditor") for instance in instances}
        return one if one and named == {str(one.port)} else None

    return eventually(found, "one is the auditor, and all know what it found", TTL_S + WITHIN_S)


@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
def test_one_instance_is_the_auditor(etcd: EtcdMember, valkey: Valkey, end: str) -> None:
    """All show what it finds; when it dies, another one takes over, and only one."""
    # Whoever is told to end gives the office up; whoever is killed keeps it for a TTL.
    others = {"audit_interval_s": EVERY_S, "lock_ttl_s": TTL_S if end == "kill -9" else 600}
    with ExitStack() as stack:
        running = [stack.enter_context(Instance(etcd.endpoint, valkey.url, **others)) for _ in range(3)]
        answer = httpx.put(
            f"{running[0].url}/stock", json={"stock": 10}, headers={"Authorization": "Bearer open-sesame"}
        )
        assert answer.status_code == 200
        first = the_auditor(running)
        assert httpx.post(f"{running[0].url}/stock/reduce").headers["x-seckill-outcome"] == "sold"
        eventually(lambda: audit_of(running[1]).get("orders") == 1, "the order was looked at")
        seen = audit_of(running[2])
        assert (seen["items"], seen["consistent"]) == (1, True)
        counted = {one: str(one.get("/metrics")[1]) for one in running}
        assert metric(counted[first], 'seckill_audits_total{result="consistent"}') > 0
        assert metric(counted[first], 'seckill_stock_units{sku="default"}') == 9
        assert metric(counted[first], 'seckill_lucky_units{sku="default"}') == 1
        assert [one for one, text in counted.items() if "seckill_stock_units{" in text] == [first]
        if end == "kill -9":
            first.kill()
        else:
            first.terminate()
        left = [one for one in running if one is not first]
        second = the_auditor(left)
        assert second is not first
        assert all(audit_of(one)["at"] > seen["at"] for one in left)


def test_a_paused_auditor_is_overtaken(etcd: EtcdMember, valkey: Valkey) -> None:
    """Beyond its TTL another one has the office; the moment it wakes it knows, and what it has found is not heard."""
    others = {"audit_interval_s": EVERY_S, "lock_ttl_s": TTL_S}
    with (
        Instance(etcd.endpoint, valkey.url, **others) as one,
        Instance(etcd.endpoint, valkey.url, **others) as another,
    ):
        httpx.put(f"{one.url}/stock", json={"stock": 10}, headers={"Authorization": "Bearer open-sesame"})
        first = the_auditor([one, another])
        second = another if first is one else one
        first.pause()
        the_auditor([second])
        first.resume()
        assert the_auditor([one, another]) is second


# -- what it finds ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def audited(etcd: EtcdMember, valkey: Valkey, **others: Any) -> AsyncIterator[tuple[Shop, Auditor, Metrics]]:
    """An open shop with an auditor, and 1000 units."""
    metrics = Metrics()
    async with open_shop(settings(etcd.endpoint, valkey.url, lock_ttl_s=TTL_S, **others), metrics) as shop:
        await shop.set_stock("default", 1000)
        auditor = shop.auditor(metrics, instance="test", every_s=0.05)
        assert auditor is not None
        auditor.start()
        try:
            yield shop, auditor, metrics
        finally:
            await auditor.close()


async def a_round(auditor: Auditor) -> Any:
    """The verdict of a round that began from now on."""
    before = auditor.verdict

    async def next_but_one() -> Any:
        nonlocal before, rounds
        if auditor.verdict != before:
            before, rounds = auditor.verdict, rounds + 1
        return rounds == 2 and auditor.verdict

    rounds = 0
    return await eventually_async(next_but_one, "a whole round")


def test_what_was_tampered_with_is_found(etcd: EtcdMember, valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """A unit that went away by hand is said once, in the log and to all; and when it is back, that too."""

    async def main() -> None:
        raw = redis.Redis.from_url(valkey.url, decode_responses=True)
        async with audited(etcd, valkey) as (shop, auditor, metrics):
            answers = await buy(shop, 5)
            assert (await a_round(auditor)).consistent
            raw.decr("stock")
            verdict = await a_round(auditor)
            assert verdict.violations == {"default": 1}
            await a_round(auditor)
            assert metric(metrics.render().decode(), "seckill_audit_violations") == 1
            raw.incr("stock")
            assert (await a_round(auditor)).consistent
            assert metric(metrics.render().decode(), "seckill_audit_violations") == 0
            # An order that is written twice: its units, and its key.
            orders = Keys("default").orders
            [(_, fields)] = raw.xrange(orders, count=1)
            raw.xadd(orders, fields | {"key": "once"})
            raw.xadd(orders, fields | {"key": "once"})
            raw.hset(Keys("default").fence, "last", raw.xrevrange(orders, count=1)[0][0])
            assert (await a_round(auditor)).violations == {"default": 2}
            said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert len(said) == 3
            assert "stock + lucky is 999, but 1000" in said[0]
            assert any("idempotency key that an earlier order has" in line for line in said)
            assert not any(answer.order_id.rpartition("~")[2] in line for line in said for answer in answers)
        raw.close()

    with caplog.at_level(logging.INFO, "app.audit.auditor"):
        asyncio.run(main())
    assert sum("agree again" in record.getMessage() for record in caplog.records) == 1


def test_new_sales_and_many_orders(etcd: EtcdMember, valkey: Valkey) -> None:
    """What comes after the last look is looked at, over pages; a new sale, or an item that goes, is no violation."""

    async def main() -> None:
        raw = redis.Redis.from_url(valkey.url)
        async with audited(etcd, valkey) as (shop, auditor, _):
            for _ in range(3):
                await buy(shop, 600)
                verdict = await a_round(auditor)
                assert (verdict.consistent, verdict.orders) == (True, 600)
                await buy(shop, 50)
                verdict = await a_round(auditor)
                assert (verdict.consistent, verdict.orders) == (True, 650)
                await shop.set_stock("default", 1000, new_sale=True)
                verdict = await a_round(auditor)
                assert (verdict.consistent, verdict.orders, verdict.items) == (True, 0, 1)
            await shop.set_stock("pen", 5)
            assert (await a_round(auditor)).items == 2
            raw.delete(*Keys("pen").all)
            verdict = await a_round(auditor)
            assert (verdict.items, verdict.consistent) == (1, True)
        raw.close()

    asyncio.run(main())


def test_it_goes_on_while_all_are_selling(etcd: EtcdMember, valkey: Valkey) -> None:
    """It looks at a moment of a sale that goes on, and finds that moment consistent."""

    async def main() -> None:
        async with audited(etcd, valkey, batch_max=20) as (shop, auditor, _):
            selling = [asyncio.create_task(sell(shop)) for _ in range(5)]
            seen = set()
            for _ in range(5):
                verdict = await a_round(auditor)
                assert verdict.consistent
                seen.add(verdict.orders)
            assert len(seen) > 1  # it went on
            for task in selling:
                task.cancel()
            await asyncio.gather(*selling, return_exceptions=True)

    async def sell(shop: Shop) -> None:
        while True:
            await buy(shop, 1)
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_orders_that_are_lost_are_a_violation(etcd: EtcdMember, valkey: Valkey) -> None:
    """A store that is consistent in itself, but of a moment before the last order."""

    async def main() -> None:
        raw = redis.Redis.from_url(valkey.url)
        async with audited(etcd, valkey) as (shop, auditor, _):
            await buy(shop, 2)
            before = {key: raw.dump(key) for key in raw.scan_iter()}
            await buy(shop, 1)
            assert (await a_round(auditor)).consistent
            raw.flushall()
            for key, dump in before.items():
                raw.restore(key, 0, dump)
            assert (await a_round(auditor)).violations == {"default": 1}
        raw.close()

    asyncio.run(main())


def test_what_others_have_sold_is_missed(etcd: EtcdMember, valkey: Valkey) -> None:
    """An auditor that sells nothing itself knows from the others what must be there."""

    async def main() -> None:
        raw = redis.Redis.from_url(valkey.url)
        async with (
            audited(etcd, valkey) as (_, auditor, _),
            open_shop(settings(etcd.endpoint, valkey.url, instance="seller")) as seller,
        ):
            await buy(seller, 2)
            before = {key: raw.dump(key) for key in raw.scan_iter()}
            await buy(seller, 1)
            await seller._marks.keep_now({})
            assert (await a_round(auditor)).consistent
            raw.flushall()
            for key, dump in before.items():
                raw.restore(key, 0, dump)
            assert (await a_round(auditor)).violations == {"default": 1}
        raw.close()

    asyncio.run(main())


def test_a_new_sale_while_it_looks(etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has read of the old one does not go with the new one: that is no violation."""

    async def main() -> None:
        async with audited(etcd, valkey) as (shop, auditor, _):
            await buy(shop, 5)
            await a_round(auditor)
            orders, begun = shop._store.orders, []

            async def begin_before(*args: Any, **options: Any) -> Any:
                if not begun:
                    begun.append(await shop.set_stock("default", 7, new_sale=True))
                    await buy(shop, 1)
                return await orders(*args, **options)

            monkeypatch.setattr(shop._store, "orders", begin_before)
            for _ in range(3):
                assert (await a_round(auditor)).consistent
            assert begun
            assert auditor.verdict is not None
            assert auditor.verdict.orders == 1

    asyncio.run(main())


def test_an_old_order_that_vanishes_is_found(etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once, but when all is looked at afresh."""
    monkeypatch.setattr(auditor_module, "_AFRESH", 3)

    async def main() -> None:
        raw = redis.Redis.from_url(valkey.url)
        async with audited(etcd, valkey) as (shop, auditor, _):
            await buy(shop, 5)
            assert (await a_round(auditor)).consistent
            raw.xdel(Keys("default").orders, raw.xrange(Keys("default").orders, count=1)[0][0])

            async def found() -> bool:
                return auditor.verdict is not None and auditor.verdict.violations == {"default": 1}

            await eventually_async(found, "it is found")
        raw.close()

    asyncio.run(main())


def test_who_can_not_look_gives_the_office_up(etcd: EtcdMember, valkey: Valkey) -> None:
    """An auditor that is cut off from the store does not keep others from looking."""
    with Proxy(valkey.port) as proxy:
        others = {"audit_interval_s": EVERY_S, "lock_ttl_s": 600, "redis_timeout_ms": 300}
        cut_off = f"redis://127.0.0.1:{proxy.port}"
        with Instance(etcd.endpoint, cut_off, **others) as one:
            httpx.put(f"{one.url}/stock", json={"stock": 10}, headers={"Authorization": "Bearer open-sesame"})
            assert the_auditor([one]) is one
            with Instance(etcd.endpoint, valkey.url, **others) as another:
                proxy.cut()
                eventually(lambda: audit_of(another).get("auditor") == str(another.port), "another one looks")


def test_an_away_store_is_no_verdict(etcd: EtcdMember) -> None:
    """The last one stands, with its time; when the store is back, there is a new one."""

    async def main() -> None:
        with Valkey() as own:
            async with audited(etcd, own, redis_timeout_ms=200) as (_, auditor, metrics):
                await a_round(auditor)
                own.pause()
                name = 'seckill_audits_total{result="failed"}'

                async def failed() -> bool:
                    return metric(metrics.render().decode(), name) > 0

                await eventually_async(failed, "a round failed")
                stands = auditor.verdict
                assert stands is not None
                assert stands.consistent
                own.resume()
                assert (await a_round(auditor)).at > stands.at

    asyncio.run(main())


def test_without_elections_there_is_no_auditor(valkey: Valkey) -> None:
    """The locks of Redis have none; the stock says so."""
    with Instance("http://127.0.0.1:1", valkey.url, lock_backend="redis", audit_interval_s=EVERY_S) as instance:
        httpx.put(f"{instance.url}/stock", json={"stock": 10}, headers={"Authorization": "Bearer open-sesame"})
        assert instance.get("/stock")[1]["audit"] is None

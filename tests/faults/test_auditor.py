"""An instance is elected auditor, reports its findings, and is replaced when it dies."""

import asyncio
import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import httpx
import pytest
import redis

from app.audit import Auditor, AuditVerdict
from app.wiring import open_sale
from fencelock import LockUnavailable
from fencelock.election import AsyncLeadership
from lab.servers import EtcdMember, Valkey
from lab.torture.proxy import Proxy
from tests.harness.receiver import SECRET
from tests.harness.shop import TOKEN, Counter, Instance, Reached, ThreadedInstance, buy, settings
from tests.harness.waiting import WITHIN_S, eventually, eventually_async

TTL_S = 2
EVERY_S = 1.0  # findings are shown for three times as long
ADMIN = {"Authorization": f"Bearer {TOKEN}"}

One = TypeVar("One", bound=Reached)


@pytest.fixture
def prefix() -> str:
    """Name the locks of a test's instances, so that no other test's audit record is theirs."""
    return f"/auditor/{uuid.uuid4().hex}"


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def audit_of(instance: Reached) -> dict[str, Any]:
    """Return an instance's view of the last audit; it is empty while there is none."""
    status, body = instance.get("/stock")
    return (body["audit"] or {}) if status == 200 else {}


def auditors(instances: Sequence[One]) -> list[One]:
    return [one for one in instances if metric(str(one.get("/metrics")[1]), "seckill_auditor") == 1]


def the_auditor(instances: Sequence[One]) -> One:
    """Wait until all instances report that the auditor has looked, and return the one that leads."""

    def found() -> One | None:
        leading = auditors(instances)
        if not leading:
            return None
        [one] = leading
        named = {audit_of(instance).get("auditor") for instance in instances}
        return one if named == {str(one.port)} else None

    one = eventually(found, "one is the auditor, and all know what it found", TTL_S + 4 * WITHIN_S)
    assert one is not None
    return one


@pytest.mark.parametrize("end", [pytest.param("kill -9", marks=pytest.mark.slow), "a stop"])
def test_one_instance_is_the_auditor(etcd: EtcdMember, valkey: Valkey, prefix: str, end: str) -> None:
    """All instances show the auditor's findings; when it dies, another one, and only one, takes over."""
    # A process that ends resigns; a killed process leads for another TTL.
    others: dict[str, Any] = {
        "audit_interval_s": EVERY_S,
        "lock_ttl_s": TTL_S if end == "kill -9" else 600,
        "lock_prefix": prefix,
    }
    with ExitStack() as stack:
        kind = Instance if end == "kill -9" else ThreadedInstance
        running: list[Any] = [stack.enter_context(kind(etcd.endpoint, valkey.url, **others)) for _ in range(3)]
        answer = httpx.put(f"{running[0].url}/stock", json={"stock": 10}, headers=ADMIN)
        assert answer.status_code == 200
        first = the_auditor(running)
        assert httpx.post(f"{running[0].url}/stock/reduce").headers["x-seckill-outcome"] == "sold"
        eventually(lambda: audit_of(running[1]).get("orders") == 1, "the order was looked at")
        seen = audit_of(running[2])
        assert (seen["items"], seen["consistent"]) == (1, True)
        eventually(
            lambda: metric(str(first.get("/metrics")[1]), 'seckill_stock_units{sku="default"}') == 9,
            "its metrics, which are rendered once a second, have the order",
        )
        counted = {one: str(one.get("/metrics")[1]) for one in running}
        assert metric(counted[first], 'seckill_audits_total{result="consistent"}') > 0
        assert metric(counted[first], 'seckill_lucky_units{sku="default"}') == 1
        assert [one for one, text in counted.items() if "seckill_stock_units{" in text] == [first]
        with redis.Redis.from_url(valkey.url) as raw:
            raw.decr("stock")  # by hand
        eventually(lambda: audit_of(running[1]).get("consistent") is False, "all know that numbers differ")
        eventually(lambda: metric(str(running[1].get("/metrics")[1]), "seckill_audit_violations") == 1, "it is counted")
        (first.kill if end == "kill -9" else first.stop)()
        left = [one for one in running if one is not first]
        second = the_auditor(left)
        assert second is not first
        assert all(audit_of(one)["at"] > seen["at"] for one in left)


@pytest.mark.slow
def test_a_paused_auditor_is_overtaken(etcd: EtcdMember, valkey: Valkey, prefix: str) -> None:
    """A TTL after a pause another instance leads; on waking, the paused one knows, and its findings are ignored."""
    others: dict[str, Any] = {"audit_interval_s": EVERY_S, "lock_ttl_s": TTL_S, "lock_prefix": prefix}
    with (
        Instance(etcd.endpoint, valkey.url, **others) as one,
        Instance(etcd.endpoint, valkey.url, **others) as another,
    ):
        httpx.put(f"{one.url}/stock", json={"stock": 10}, headers=ADMIN)
        first = the_auditor([one, another])
        second = another if first is one else one
        first.pause()
        the_auditor([second])
        first.resume()
        assert the_auditor([one, another]) is second


# -- what it finds ---------------------------------------------------------------------------------------------------


class Audited:
    """A way to open a candidate with 1000 units. `etcd`: another path to etcd."""

    def __init__(self, etcd: EtcdMember, prefix: str) -> None:
        self._etcd = etcd
        self._prefix = prefix

    @asynccontextmanager
    async def __call__(
        self, valkey: Valkey, *, etcd: str = "", **others: Any
    ) -> AsyncIterator[tuple[Counter, Auditor]]:
        options = {"lock_ttl_s": TTL_S, "audit_interval_s": 0.05, "lock_prefix": self._prefix} | others
        own = settings(etcd or self._etcd.endpoint, valkey.url, **options)
        async with open_sale(own, with_auditor=True) as sale:
            await sale.stock.set_stock("default", 1000)
            assert sale.auditor is not None
            yield Counter(sale), sale.auditor


@pytest.fixture
def audited(etcd: EtcdMember, prefix: str) -> Audited:
    return Audited(etcd, prefix)


async def a_round(auditor: Auditor) -> AuditVerdict:
    """Return the verdict of a round that begins after this call."""
    now = time.time()
    told = await eventually_async(lambda: auditor.verdict, "a whole round", until=lambda said: said and said.at > now)
    assert isinstance(told, AuditVerdict)
    return told


async def test_it_goes_on_while_all_are_selling(audited: Audited, valkey: Valkey) -> None:
    """The auditor reads a consistent moment of a sale that goes on."""

    async def sell(one: Counter) -> None:
        while True:
            await buy(one, 1)
            await asyncio.sleep(0.01)

    async with audited(valkey, batch_max=20) as (one, auditor):
        selling = [asyncio.create_task(sell(one)) for _ in range(5)]
        seen = set()
        for _ in range(5):
            verdict = await a_round(auditor)
            assert verdict.consistent
            seen.add(verdict.orders)
        assert len(seen) > 1  # the sale went on
        for task in selling:
            task.cancel()
        await asyncio.gather(*selling, return_exceptions=True)


@pytest.mark.slow
async def test_many_items_are_looked_at_in_pages(
    audited: Audited, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item without new orders since the last round costs a part of two calls."""
    with redis.Redis.from_url(valkey.url) as client:
        client.mset({f"seckill:{{item-{number}}}:stock": 10 for number in range(2000)})
    async with audited(valkey) as (one, auditor):
        await buy(one, 5)
        assert (await a_round(auditor)).items == 2001
        calls: defaultdict[str, int] = defaultdict(int)
        for name in ("level", "levels", "order", "orders"):
            method = getattr(one.store, name)

            async def counted(*arguments: Any, name: str = name, method: Any = method, **options: Any) -> Any:
                calls[name] += 1
                return await method(*arguments, **options)

            monkeypatch.setattr(one.store, name, counted, raising=False)
        await a_round(auditor)
        calls.clear()
        assert (await a_round(auditor)).items == 2001
        assert calls["levels"] <= 63  # 21 a round, plus parts of at most two more rounds
        assert calls["level"] + calls["order"] + calls["orders"] == 0


async def test_a_new_sale_while_it_looks(audited: Audited, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders of the old sale are not counted with the new sale: that is no violation."""
    async with audited(valkey) as (one, auditor):
        await buy(one, 5)
        await a_round(auditor)
        await buy(one, 1)  # so that there are orders to read
        journal, begun = one.store.journal, list[Any]()

        async def begin_before(*args: Any, **options: Any) -> Any:
            if not begun:
                begun.append(await one.set_stock("default", 7, new_sale=True))
                await buy(one, 1)
            return await journal(*args, **options)

        monkeypatch.setattr(one.store, "journal", begin_before, raising=False)
        for _ in range(3):
            assert (await a_round(auditor)).consistent
        assert begun
        assert auditor.verdict is not None
        assert auditor.verdict.orders == 1


@pytest.mark.parametrize("by_s", [-7200, 7200])
async def test_the_auditors_clock_is_another(
    audited: Audited, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, by_s: int
) -> None:
    """What an auditor whose clock is wrong has found is shown as long as any other's."""
    proclaim = AsyncLeadership.proclaim

    async def by_another_clock(self: AsyncLeadership, value: str) -> None:
        told = AuditVerdict.parse(value)
        assert told
        await proclaim(self, json.dumps(asdict(replace(told, at=told.at + by_s))))

    monkeypatch.setattr(AsyncLeadership, "proclaim", by_another_clock)
    async with audited(valkey) as (_, auditor):
        await eventually_async(lambda: auditor.fresh_verdict, "a round")
        auditor._heard_at -= 4 * auditor.every_s
        assert auditor.verdict and not auditor.fresh_verdict
        await eventually_async(lambda: auditor.fresh_verdict, "another round")


async def test_one_that_loses_the_office_stands_again(
    audited: Audited, etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off from etcd as it writes the record, it leads no more; when etcd is back it is elected, and looks again."""
    record, writing = AsyncLeadership.record, asyncio.Event()

    async def in_vain(self: AsyncLeadership, value: str) -> None:
        if writing.is_set():
            await record(self, value)
            return
        path.stall()
        writing.set()
        while not self.lost:
            await asyncio.sleep(0.01)
        await asyncio.sleep(
            2
        )  # as long as a call may take: that the office is lost is noticed elsewhere before it ends
        raise LockUnavailable("no answer")

    with Proxy(etcd.client_port) as path:
        async with audited(valkey, etcd=f"http://127.0.0.1:{path.port}") as (one, auditor):
            await a_round(auditor)
            monkeypatch.setattr(AsyncLeadership, "record", in_vain)
            await buy(one, 1)
            await asyncio.wait_for(writing.wait(), 4 * WITHIN_S)
            await eventually_async(lambda: auditor.work is None, "it has given the office up")
            path.restore()
            assert (await a_round(auditor)).orders == 1
            assert auditor.in_office


@pytest.mark.parametrize("why", ["no elections", "no interval"])
def test_there_may_be_no_auditor(etcd: EtcdMember, valkey: Valkey, prefix: str, why: str) -> None:
    """A local lock has no elections, and an interval of 0 turns the auditor off; the stock's answer says so."""
    others: dict[str, Any] = {"audit_interval_s": 0}
    if why == "no elections":
        others = {"lock": "local://", "audit_interval_s": EVERY_S}
    with ThreadedInstance(etcd.endpoint, valkey.url, lock_prefix=prefix, **others) as instance:
        assert httpx.put(f"{instance.url}/stock", json={"stock": 10}, headers=ADMIN).status_code == 200
        assert httpx.post(f"{instance.url}/stock/reduce").headers["x-seckill-outcome"] == "sold"
        assert instance.get("/stock")[1]["audit"] is None
        assert metric(str(instance.get("/metrics")[1]), "seckill_auditor") == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_an_auditor_that_is_cancelled_twice_resigns(
    etcd: EtcdMember, valkey: Valkey, prefix: str, turns: int
) -> None:
    """The second cancellation, as at the end of a loop, comes while it gives the office up: it is free at once."""
    own: dict[str, Any] = {"lock_prefix": prefix, "audit_interval_s": EVERY_S, "lock_ttl_s": 600}
    async with open_sale(settings(etcd.endpoint, valkey.url, **own), with_auditor=True) as sale:
        auditor = sale.auditor
        assert auditor is not None

        async def leads() -> bool:
            return auditor.in_office

        await eventually_async(leads, "it is the auditor")
        task = auditor._task
        assert task is not None
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

        async def free() -> bool:
            return await auditor._election.leader() is None

        await eventually_async(free, "nobody is the auditor")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_a_stop_that_is_cancelled_leaves_no_office_taken(
    etcd: EtcdMember, valkey: Valkey, prefix: str, turns: int
) -> None:
    """Whatever was being closed then, the rest is closed as well: nothing goes on, and the offices are free."""
    own: dict[str, Any] = {"lock_prefix": prefix, "audit_interval_s": EVERY_S, "lock_ttl_s": 600}
    own |= {"webhook_url": "http://127.0.0.1:9/", "webhook_secret": SECRET}
    let_go = asyncio.Event()

    async def one() -> None:
        async with open_sale(settings(etcd.endpoint, valkey.url, **own), with_auditor=True) as sale:

            async def leads() -> bool:
                assert sale.auditor is not None
                return sale.auditor.in_office and sale.senders[0].view.sends

            await eventually_async(leads, "it has both offices")
            let_go.set()

    before = asyncio.all_tasks()
    stopping = asyncio.create_task(one())
    await let_go.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    left = [task for task in asyncio.all_tasks() - before if not task.done()]
    assert not left
    async with open_sale(settings(etcd.endpoint, valkey.url, **own)) as sale:
        for name in ("!auditor", "!sender"):
            lock = sale.stock._locks.lock(f"{prefix}/{name}")
            assert await lock.contenders() == []

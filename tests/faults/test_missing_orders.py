"""A store that came back older lacks orders: they are missed, and that item is not sold until the loss is resolved.

The process that has seen an order looks for it itself. For the others, the auditor keeps the
last order of each item in a record that outlives all instances, and its verdict stops the sale everywhere.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol

import pytest
import redis

from app.audit import auditor as auditor_module
from app.errors import ItemBlocked, StockBehind, StockUnavailable
from app.orders import Answer, Outcome, Purchase
from app.stock.redis.keys import Keys
from fencelock import LockUnavailable
from fencelock.election import AsyncLeadership
from fencelock.etcd.backend import EtcdBackend
from lab.servers import EtcdMember, Valkey
from lab.torture.proxy import Proxy
from tests.harness.shop import Counter, Instance, buy, shop
from tests.harness.waiting import eventually, eventually_async

TTL_S = 2
ETERNITY_MS = 60_000  # longer than any test lasts
AGES_S = 3600
AT_ONCE_S = 30  # of the minute that a purchase may take


class Open(Protocol):
    """A way to open an instance in this process; `alone`: without an auditor, like a command-line call."""

    def __call__(self, *, alone: bool = False, **others: Any) -> AbstractAsyncContextManager[Counter]: ...


@pytest.fixture
def prefix() -> str:
    """Name all locks of a test's instances, and so of their auditor and its record."""
    return f"/missing/{uuid.uuid4().hex}"


@pytest.fixture
def open_one(etcd: EtcdMember, valkey: Valkey, prefix: str) -> Open:
    def open_(*, alone: bool = False, **others: Any) -> AbstractAsyncContextManager[Counter]:
        if alone:
            others["audit_interval_s"] = 0
        defaults = {"lock_ttl_s": TTL_S, "audit_interval_s": 0.2, "purchase_timeout_ms": ETERNITY_MS}
        options = defaults | {"lock_prefix": prefix} | others
        return shop(etcd.endpoint, valkey.url, with_auditor=not alone, **options)

    return open_


class Record:
    """The auditor's record, as anybody can read it."""

    def __init__(self, etcd: EtcdMember, valkey: Valkey, prefix: str) -> None:
        self._etcd = etcd
        self._valkey = valkey
        self._prefix = prefix

    def text(self) -> str | None:
        backend = EtcdBackend([self._etcd.endpoint])
        try:
            return backend.election(f"{self._prefix}/!auditor").recorded()
        finally:
            backend.close()

    def marks(self) -> dict[str, str]:
        """Return the mark of the last order of each item."""
        return dict(json.loads(self.text() or "{}"))

    async def has(self, marks: dict[str, str]) -> None:
        """Wait until the record has these marks."""
        look = partial(asyncio.to_thread, self.marks)
        await eventually_async(look, f"recorded: {marks}", until=lambda found: found.items() >= marks.items())

    async def after_sale_of(self, one: Counter, sku: str, count: int = 1) -> None:
        """Sell so many, and wait until the last of them is recorded."""
        await sold(one, sku, count)
        await self.has({sku: last_mark(self._valkey, sku)})


@pytest.fixture
def record(etcd: EtcdMember, valkey: Valkey, prefix: str) -> Record:
    return Record(etcd, valkey, prefix)


def copy_of(valkey: Valkey, *skus: str) -> Callable[[], None]:
    """Copy some items; the function returned restores them, without the orders that came after the copy."""
    keys = [key for sku in skus for key in Keys(sku).all]
    with redis.Redis.from_url(valkey.url) as raw:
        dumps = [raw.dump(key) for key in keys]

    def put_back() -> None:
        with redis.Redis.from_url(valkey.url) as raw, raw.pipeline() as pipe:
            pipe.delete(*keys)
            for key, dump in zip(keys, dumps, strict=True):
                if dump is not None:
                    pipe.restore(key, 0, dump)
            pipe.execute()

    return put_back


def last_mark(valkey: Valkey, sku: str) -> str:
    """Return the mark of the last order in the store."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as raw:
        generation, last, tag = raw.hmget(Keys(sku).fence, "generation", "last", "tag")
    ms, _, seq = last.partition("-")
    return f"{generation:0>16}/{ms:0>16}-{seq:0>16}/{tag}"


async def put_on_sale(one: Counter, *skus: str) -> None:
    for sku in skus:
        await one.set_stock(sku, 100)


async def sold(one: Counter, sku: str, count: int = 1) -> None:
    answers = await buy(one, count, sku=sku)
    assert [answer.outcome for answer in answers if isinstance(answer, Answer)] == [Outcome.SOLD] * count, answers


async def halted(skus: Sequence[str], *instances: Counter) -> None:
    """Wait until all instances have heard that the auditor misses orders of exactly these items."""
    await eventually_async(
        lambda: [one.auditor.verdict for one in instances],
        until=lambda verdicts: all(verdict and verdict.missing == tuple(skus) for verdict in verdicts),
    )


async def leading(one: Counter) -> None:
    await eventually_async(lambda: one.auditor.in_office, "it is the auditor")


async def ready(one: Counter, stock: str) -> None:
    await eventually_async(lambda: one.ready(1), f"stock: {stock}", until=lambda checks: checks["stock"] == stock)


async def refused(*instances: Counter) -> None:
    """Check that phones are refused at once and all else is sold, so that the instances are ready."""
    for one in instances:
        for _ in range(3):
            with pytest.raises(ItemBlocked):
                await asyncio.wait_for(one.submit(Purchase(sku="phone")), AT_ONCE_S)
        assert isinstance(one.errors["phone"], StockBehind)
        await sold(one, "case")
        await ready(one, stock="ok")


async def sold_again(*instances: Counter, sku: str = "phone") -> None:
    """Check that each instance sells again as soon as it looks again."""
    for one in instances:
        buying = partial(one.submit, Purchase(sku=sku))
        answer = await eventually_async(buying, "it is sold", despite=ItemBlocked)
        assert answer.outcome is Outcome.SOLD


# -- who notices -----------------------------------------------------------------------------------------------------


async def test_the_process_that_sold_them_notices_by_itself(open_one: Open, valkey: Valkey) -> None:
    """The seller needs no auditor: its next batch of that item is refused, and its other items are sold."""
    async with open_one(alone=True) as one:
        await put_on_sale(one, "phone", "case")
        await sold(one, "phone")
        put_back = copy_of(valkey, "phone")
        await sold(one, "phone")
        put_back()
        with pytest.raises(ItemBlocked):
            await one.submit(Purchase(sku="phone"))
        await refused(one)
        # The store is consistent in itself. Only the missing order gives it away.
        audit = await one.audit("phone")
        assert (audit.lucky, audit.violations) == (1, [])


@pytest.mark.parametrize("remedy", ["accept-loss", "a complete copy", "a new sale"])
async def test_the_auditor_notices_when_the_seller_is_gone(
    open_one: Open, valkey: Valkey, record: Record, remedy: str
) -> None:
    """The sale of that item stops in every instance, others go on; after the remedy it is sold again."""
    async with open_one(instance="one") as one, open_one(instance="other") as other:
        instances = (one, other)
        await put_on_sale(one, "phone", "case")
        async with open_one(alone=True, instance="seller") as seller:
            await sold(seller, "phone")
            put_back = copy_of(valkey, "phone")
            await sold(seller, "phone", 2)
        await record.has({"phone": last_mark(valkey, "phone")})
        complete = copy_of(valkey, "phone")
        put_back()
        await halted(["phone"], *instances)
        await refused(*instances)
        assert (await one.level("phone")).lucky == 1
        async with open_one(alone=True, instance="operator") as operator:
            if remedy == "accept-loss":
                await operator.accept_loss("phone")
            elif remedy == "a new sale":
                await operator.set_stock("phone", 50, new_sale=True)
            else:
                complete()
        await halted([], *instances)
        await sold_again(*instances)
        for instance in instances:
            await ready(instance, stock="ok")
            await sold(instance, "phone")
        audit = await one.audit("phone")
        kept = {"accept-loss": 1, "a complete copy": 3, "a new sale": 0}[remedy]
        assert (audit.lucky, audit.violations) == (kept + 4, [])


async def test_it_is_missed_after_all_instances_have_ended(open_one: Open, valkey: Valkey, record: Record) -> None:
    """The record is durable: instances that started after the orders were sold miss them all the same."""
    async with open_one() as seller:
        await put_on_sale(seller, "phone", "case")
        await sold(seller, "phone")
        put_back = copy_of(valkey, "phone")
        await sold(seller, "phone")
        await sold(seller, "case")
        await record.has({sku: last_mark(valkey, sku) for sku in ("phone", "case")})
    put_back()
    # A command, too, reads the record before it does anything.
    async with open_one(alone=True) as operator:
        with pytest.raises(StockBehind, match="accept-loss"):
            await operator.set_stock("phone", 200)
        assert ["accept-loss" in fault for fault in await operator.faults("phone")] == [True]
        assert await operator.faults("case") == []
    async with open_one(instance="one") as one, open_one(instance="other") as other:
        await halted(["phone"], one, other)
        await refused(one, other)
        await other.accept_loss("phone")
        await sold_again(one, other)
        assert (await one.audit("phone")).violations == []


async def test_a_newcomer_misses_them_while_nobody_is_the_auditor(
    open_one: Open, etcd: EtcdMember, valkey: Valkey, prefix: str, record: Record
) -> None:
    """After a crash of all, the dead auditor's lease has long to go: instances read the record as they start."""
    others: dict[str, Any] = {"lock_ttl_s": AGES_S, "audit_interval_s": 0.2, "lock_prefix": prefix}
    async with open_one(alone=True) as operator:
        await put_on_sale(operator, "phone", "case")
        with Instance(etcd.endpoint, valkey.url, **others) as seller:
            assert seller.get("/stock/reduce?sku=phone")[0] == 200
            put_back = copy_of(valkey, "phone")
            assert seller.get("/stock/reduce?sku=phone")[0] == 200
            await record.has({"phone": last_mark(valkey, "phone")})
            await eventually_async(operator.contenders, "nobody has the lock", until=lambda queue: not queue)
            await asyncio.to_thread(seller.kill)
            put_back()
            async with open_one() as newcomer:
                await eventually_async(lambda: "phone" in newcomer.store.marks(), "it has read the record")
                with pytest.raises(ItemBlocked):
                    await newcomer.submit(Purchase(sku="phone"))
                await sold(newcomer, "case")
                assert not newcomer.auditor.in_office
                assert (await newcomer.level("phone")).lucky == 1


async def test_a_loss_is_accepted_while_nobody_is_the_auditor(
    open_one: Open, etcd: EtcdMember, valkey: Valkey, prefix: str, record: Record
) -> None:
    """An instance that was told by an auditor who is dead looks itself: it sells on when the loss is accepted."""
    others: dict[str, Any] = {"lock_ttl_s": AGES_S, "audit_interval_s": 0.2, "lock_prefix": prefix}
    with Instance(etcd.endpoint, valkey.url, **others) as auditor:
        await eventually_async(
            lambda: asyncio.to_thread(auditor.get, "/metrics"), until=lambda one: "seckill_auditor 1" in one[1]
        )
        async with open_one() as one, open_one(alone=True) as operator:
            await put_on_sale(operator, "phone", "case")
            await sold(operator, "phone")
            put_back = copy_of(valkey, "phone")
            await record.after_sale_of(operator, "phone")
            put_back()
            await halted(["phone"], one)
            await asyncio.to_thread(auditor.kill)
            await eventually_async(lambda: not one.auditor.fresh_verdict, "it is heard no more")
            with pytest.raises(ItemBlocked):
                await one.submit(Purchase(sku="phone"))
            assert not one.auditor.in_office
            await operator.accept_loss("phone")
            await sold_again(one)


async def test_a_loss_is_accepted_for_every_process(open_one: Open, valkey: Valkey, record: Record) -> None:
    """Once a loss is accepted, instances that knew of the order sell on, as do later ones: nobody looks for it."""
    async with open_one(instance="one") as one:
        await put_on_sale(one, "phone")
        put_back = copy_of(valkey, "phone")
        await record.after_sale_of(one, "phone", 3)
        put_back()
        await halted(["phone"], one)
        async with open_one(alone=True) as operator:
            await operator.accept_loss("phone")
        await sold_again(one)
        await record.after_sale_of(one, "phone")
        async with open_one(instance="newcomer") as newcomer:
            await sold(newcomer, "phone")
    async with open_one(instance="later") as later:
        await halted([], later)
        await sold(later, "phone")
        assert await later.faults("phone") == []


# -- what is recorded ------------------------------------------------------------------------------------------------


async def test_a_record_that_is_none_is_replaced(
    open_one: Open, etcd: EtcdMember, valkey: Valkey, prefix: str, record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that is foreign or of another kind of store is reported; sales go on, and it is written anew."""
    backend = EtcdBackend([etcd.endpoint])
    with backend.election(f"{prefix}/!auditor").campaign("somebody") as leadership:
        leadership.record('{"phone":"!theirs"}')
    backend.close()
    with caplog.at_level(logging.WARNING, "app.audit.record"):
        async with open_one() as one:
            await put_on_sale(one, "phone")
            await record.after_sale_of(one, "phone")
    assert {entry.getMessage().partition(":")[0] for entry in caplog.records if entry.name == "app.audit.record"} == {
        "the auditor's record is not about this store"
    }


@pytest.mark.slow
def test_a_paused_auditor_can_not_write_the_record(
    etcd: EtcdMember, valkey: Valkey, prefix: str, record: Record
) -> None:
    """A paused auditor's write arrives after its successor recorded a later order: the later one stands."""
    others: dict[str, Any] = {"lock_ttl_s": TTL_S, "audit_interval_s": 1, "lock_prefix": prefix}

    def auditor(of: Instance) -> str | None:
        status, body = of.get("/stock?sku=phone")
        return (body["audit"] or {}).get("auditor") if status == 200 else None

    def sell(by: Instance) -> str:
        assert by.get("/stock/reduce?sku=phone")[0] == 200
        return last_mark(valkey, "phone")

    async def fill() -> None:
        async with shop(etcd.endpoint, valkey.url, lock_prefix=prefix) as one:
            await put_on_sale(one, "phone")

    asyncio.run(fill())
    with (
        Proxy(etcd.client_port) as path,
        Instance(f"http://127.0.0.1:{path.port}", valkey.url, **others) as first,
    ):
        eventually(lambda: auditor(first) == str(first.port), "the first one is the auditor")
        with Instance(etcd.endpoint, valkey.url, **others) as second:
            asyncio.run(record.has({"phone": sell(first)}))
            # The auditor is paused as it writes the next order down; its request is still on its way.
            path.stall_at(b"!auditor!record")
            earlier = sell(second)
            assert path.struck.wait(15)
            first.pause()
            eventually(lambda: auditor(second) == str(second.port), "the second one is the auditor")
            later = sell(second)
            asyncio.run(record.has({"phone": later}))
            path.restore()
            first.resume()
            log = first.directory / "output.log"
            eventually(lambda: "is the auditor no more" in log.read_text(), "the first one knows that it is not")
            assert record.marks() == {"phone": later}
            assert later > earlier
            # Both go on, and so does the record.
            asyncio.run(record.has({"phone": sell(first)}))


# -- what is told ----------------------------------------------------------------------------------------------------


async def test_it_is_told_when_etcd_answers_again(
    open_one: Open, valkey: Valkey, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An auditor that can't tell that orders are missing tries again, however seldom it looks at all orders."""
    proclaim, in_vain = AsyncLeadership.proclaim, 0

    async def fail_at_first(self: AsyncLeadership, value: str) -> None:
        nonlocal in_vain
        if '"missing":["phone"]' in value and in_vain < 2:
            in_vain += 1
            raise LockUnavailable("no answer")
        await proclaim(self, value)

    monkeypatch.setattr(AsyncLeadership, "proclaim", fail_at_first)
    async with open_one(alone=True, instance="seller") as seller:
        await put_on_sale(seller, "phone")
        put_back = copy_of(valkey, "phone")
        await sold(seller, "phone")
        async with open_one(audit_interval_s=AGES_S) as one:
            await record.has({"phone": last_mark(valkey, "phone")})
            put_back()
            await halted(["phone"], one)
            assert in_vain == 2


async def test_a_new_auditor_lets_nothing_be_sold_before_it_has_looked(
    open_one: Open, valkey: Valkey, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predecessor's findings count until a new auditor has read all orders, whatever else it finds before."""
    async with open_one(instance="first") as first:
        await leading(first)
        await put_on_sale(first, "phone")
        put_back = copy_of(valkey, "phone")
        await record.after_sale_of(first, "phone")
        async with open_one(instance="second") as second:
            put_back()
            await halted(["phone"], first, second)
            look = auditor_module._Auditing._look_for_missing

            async def not_yet(*_: object) -> None:
                raise StockUnavailable("no answer")

            monkeypatch.setattr(auditor_module._Auditing, "_look_for_missing", not_yet)
            await first.auditor.close()
            # The new auditor has read the numbers and the orders.
            await eventually_async(lambda: second.auditor.verdict, until=lambda verdict: verdict.auditor == "second")
            assert second.auditor.verdict.missing == ("phone",)
            await second.accept_loss("phone")
            monkeypatch.setattr(auditor_module._Auditing, "_look_for_missing", look)
            await halted([], second)
            await sold(second, "phone")


async def test_an_item_that_can_not_be_looked_at_stays_halted(
    open_one: Open, valkey: Valkey, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is away for a moment says nothing about the orders that are missing there."""
    async with open_one(audit_interval_s=AGES_S) as one:
        await put_on_sale(one, "phone", "case")
        put_back = copy_of(valkey, "phone")
        await record.after_sale_of(one, "phone")
        put_back()
        await halted(["phone"], one)
        inspect: Callable[[Sequence[str]], Awaitable[dict[str, Any]]] = one.store.inspect
        looks = 0

        async def away(skus: Sequence[str]) -> dict[str, Any]:
            nonlocal looks
            looks += 1
            return await inspect(skus) | {"phone": StockUnavailable("nobody there")}

        monkeypatch.setattr(one.store, "inspect", away, raising=False)
        await eventually_async(lambda: looks >= 2, "it has looked")
        assert one.auditor.verdict.missing == ("phone",)
        await sold(one, "case")

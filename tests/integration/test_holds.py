"""Units are held, paid, given back and sold again, on real servers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from app.errors import HoldsNotPossible, NotDecided
from app.orders import Answer, Confirm, Hold, OrderId, OrderState, Purchase, Record, Refund
from app.orders import record as records
from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness.shop import shop
from tests.harness.waiting import eventually_async

SHORT_S = 1.0  # the shortest hold that there is


@pytest.fixture(params=["valkey", pytest.param("mariadb", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    """Return the URL of a real server of each kind, which is empty."""
    server: Valkey | MariaDB = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
async def one(etcd: EtcdMember, store: str) -> AsyncIterator[Any]:
    """A sale whose holds last."""
    async with shop(etcd.endpoint, store, purchase_timeout_ms=60_000) as one:
        yield one


@pytest.fixture
async def brief(etcd: EtcdMember, store: str) -> AsyncIterator[Any]:
    """A sale whose holds run out at once, and nobody but buyers gives back."""
    async with shop(etcd.endpoint, store, hold_s=SHORT_S, pay_s=SHORT_S, grace_s=0) as one:
        yield one


async def hold(one: Any, buyer: str, quantity: int = 1, **fields: Any) -> Answer:
    answer: Answer = await one.submit(Hold(quantity, "default", buyer, **fields))
    return answer


def about(answer: Answer) -> OrderId:
    assert answer.order is not None
    return answer.order


def record(answer: Answer) -> Record:
    """Return the order's record as the answer has it."""
    assert answer.record is not None
    return answer.record


async def confirm(one: Any, answer: Answer, ref: str, **fields: Any) -> Answer:
    found: Answer = await one.submit(Confirm(*about(answer), ref, **fields))
    return found


async def units(one: Any) -> tuple[int, int, int]:
    """Units left, held and sold; the audit agrees with them."""
    audit = await one.audit("default")
    assert audit.consistent, audit.violations
    return audit.stock, audit.held, audit.lucky


async def kinds(one: Any, answer: Answer) -> list[str]:
    """Return an order's events, on which its record and the journal agree."""
    order = await one.order(answer.order)
    journal = await one.sale.store.journal("default", limit=1000)
    own = [event for event in journal if event.order == answer.order]
    assert [event.number for event in own] == list(range(1, len(own) + 1))
    assert order.record.events == len(own)
    assert await one.sale.store.history("default", order.record.number) == own
    return [str(event.kind) for event in own]


async def ran_out(one: Any, answer: Answer) -> None:
    """Wait until a hold has run out, by the store's clock, and was given back."""

    async def is_over() -> bool:
        await one.give_back("default")
        order = await one.order(answer.order)
        return order.state is OrderState.EXPIRED

    await eventually_async(is_over, "the hold runs out")


@pytest.mark.parametrize("rounds", [20])
async def test_return_page_and_callback(etcd: EtcdMember, store: str, rounds: int) -> None:
    """Two instances confirm at the same instant: one order, one event, and both are told which."""
    async with shop(etcd.endpoint, store) as one, shop(etcd.endpoint, store, instance="two") as two:
        await one.set_stock("default", rounds)
        for number in range(rounds):
            held = await hold(one, f"buyer {number}")
            told = await asyncio.gather(confirm(one, held, f"p{number}"), confirm(two, held, f"p{number}"))
            assert Counter(str(answer.outcome) for answer in told) == {"confirmed": 1, "already_confirmed": 1}
            assert await kinds(one, held) == ["held", "confirmed"]
        assert await units(one) == (0, 0, rounds)


@pytest.mark.parametrize("written", [records.to_json, json.dumps], ids=["as ever", "with blanks"])
async def test_a_late_payment_respects_the_limit(
    brief: Any, monkeypatch: pytest.MonkeyPatch, written: Callable[[Any], str]
) -> None:
    """A buyer who has bought something else meanwhile doesn't get more than the limit by paying late.

    However a record's JSON is spelt: the store understands it.
    """
    monkeypatch.setattr(records, "to_json", written)
    await brief.set_stock("default", 3, terms={"limit_per_buyer": 1})
    held = await hold(brief, "ann")
    await ran_out(brief, held)
    assert (await brief.submit(Purchase(1, "default", "ann"))).outcome == "sold"
    assert (await confirm(brief, held, "p1")).outcome == "refund_due"
    assert await units(brief) == (2, 0, 1)


async def test_units_come_back_without_buyers(etcd: EtcdMember, store: str) -> None:
    """With nobody there, the auditor's instance gives back what has run out, however much it is."""
    brief = {"hold_s": SHORT_S, "pay_s": SHORT_S, "grace_s": 0, "audit_interval_s": 0.2, "purchase_timeout_ms": 60_000}
    async with shop(etcd.endpoint, store, with_auditor=True, **brief) as one:
        await one.set_stock("default", 700)
        held = await asyncio.gather(*(hold(one, f"buyer {number}") for number in range(700)))
        assert {str(answer.outcome) for answer in held} == {"held"}

        async def are_back() -> bool:
            return (await one.level("default")).stock == 700

        await eventually_async(are_back, "all units come back")
        assert await units(one) == (700, 0, 0)
        events = Counter(str(event.kind) for event in await one.sale.store.journal("default", limit=5000))
        assert events == {"held": 700, "expired": 700}


@pytest.mark.slow
async def test_holds_go_back_soon_after_an_outage(etcd: EtcdMember, valkey: Valkey) -> None:
    """While the lock is away nothing can be given back; then it takes some seconds, whichever the item."""
    skus = [f"away-{number}" for number in range(4)]
    with Valkey() as locks:
        about = {"lock": locks.url, "hold_s": SHORT_S, "pay_s": SHORT_S, "grace_s": 0, "purchase_timeout_ms": 2000}
        async with shop(etcd.endpoint, valkey.url, with_auditor=True, **about) as one:
            for sku in skus:
                await one.set_stock(sku, 5)
            for sku in skus[:3]:
                assert (await one.submit(Hold(1, sku, "ann"))).outcome == "held"
            locks.pause()
            try:
                for sku in skus[:3]:
                    await eventually_async(partial(one.level, sku), sku, until=lambda it: (it.due_in_s or 0) < -8)
            finally:
                locks.resume()
            another = partial(one.submit, Hold(1, skus[3], "ann", "key"))
            await eventually_async(another, "the lock is back", despite=NotDecided)
            for sku in skus:
                await eventually_async(partial(one.level, sku), f"{sku} is given back", until=lambda it: not it.held)


async def test_a_purchase_with_a_request_id(one: Any) -> None:
    """It is sold like any other, beside others; its order and its events keep the id and the trace."""
    await one.set_stock("default", 5, terms={"limit_per_buyer": 2})
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    known = Purchase(2, buyer="ann", key="k", request_id="r 1", traceparent=trace)
    first, plain, held = await asyncio.gather(one.submit(known), one.submit(Purchase(buyer="bob")), hold(one, "cid"))
    assert (first.outcome, plain.outcome, held.outcome) == ("sold", "sold", "held")
    assert await units(one) == (1, 1, 3)
    grants = one.sale.journal.grants
    await eventually_async(
        lambda: sum(grant.units for grant in grants), "all are counted", until=partial(int.__eq__, 3)
    )
    again = await one.submit(known._replace(request_id="r 2"))
    assert (again.order, again.quantity, again.replayed) == (first.order, 2, True)
    assert (await one.submit(known._replace(key=None))).outcome == "limit_reached"
    order, other = await one.order(first.order), await one.order(plain.order)
    assert (order.state, order.key, order.record.request_id) == (OrderState.SOLD, "k", "r 1")
    assert (other.state, other.record.request_id) == (OrderState.SOLD, None)
    assert (await confirm(one, first, "p1")).outcome == "not_found"  # it waits for no payment
    assert (await one.submit(Refund(*about(first), restock=True, by="kim"))).outcome == "refunded"
    assert await kinds(one, first) == ["sold", "refunded"]
    own = [event for event in await one.sale.store.journal("default") if event.order == first.order]
    assert [event.facts["request_id"] for event in own] == ["r 1"] * 2
    assert own[0].facts["traceparent"] == trace
    assert await units(one) == (3, 1, 1)
    assert (await one.submit(known._replace(key=None))).outcome == "sold"


async def test_no_holds_without_a_guard(etcd: EtcdMember, valkey: Valkey) -> None:
    """The articles' store, which checks nothing, sells and doesn't hold."""
    async with shop(etcd.endpoint, valkey.url, guard="none") as one:
        await one.set_stock("default", 5)
        with pytest.raises(HoldsNotPossible):
            await hold(one, "ann")

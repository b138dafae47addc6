"""Failures of shops and ticket systems that others have published, tried on holds and payments with real servers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.orders import (
    Answer,
    Cancel,
    Confirm,
    ConfirmOutcome,
    Extend,
    ExtendOutcome,
    Hold,
    OrderId,
    OrderState,
    Purchase,
    Record,
    Snapshot,
    decide,
)
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, client, shop
from tests.harness.waiting import eventually_async

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
BRIEF: dict[str, Any] = {"hold_s": 1.0, "pay_s": 1.0, "grace_s": 0}
LASTING: dict[str, Any] = {"purchase_timeout_ms": 60_000}


@pytest.fixture
async def two(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[tuple[Any, Any]]:
    """Two instances whose holds last."""
    async with (
        shop(etcd.endpoint, valkey.url, **LASTING) as one,
        shop(etcd.endpoint, valkey.url, instance="two", **LASTING) as other,
    ):
        yield one, other


@pytest.fixture
async def brief(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[Any]:
    """An instance whose holds run out after a second."""
    async with shop(etcd.endpoint, valkey.url, **BRIEF) as one:
        yield one


def about(answer: Answer) -> OrderId:
    assert answer.order is not None
    return answer.order


async def units(one: Any) -> tuple[int, int, int]:
    """Units left, held and sold; the audit agrees with them."""
    audit = await one.audit("default")
    assert audit.consistent, audit.violations
    return audit.stock, audit.held, audit.lucky


async def kinds(one: Any) -> Counter[str]:
    """Count the events so far, by their kind."""
    return Counter(str(event.kind) for event in await one.sale.store.journal("default", limit=5000))


async def ran_out(one: Any, answer: Answer) -> None:
    async def is_over() -> bool:
        await one.give_back("default")
        return bool((await one.order(answer.order)).state is OrderState.EXPIRED)

    await eventually_async(is_over, "the hold runs out")


async def test_losers_leave_no_order(two: tuple[Any, Any]) -> None:
    """Many want the last unit at two instances: there is one order, and nothing of the others."""
    await two[0].set_stock("default", 1)
    told = await asyncio.gather(*(two[n % 2].submit(Hold(1, "default", f"buyer {n}")) for n in range(40)))
    assert Counter(str(answer.outcome) for answer in told) == {"held": 1, "sold_out": 39}
    assert await kinds(two[0]) == {"held": 1}
    assert len(await two[0].orders("default")) == 1


async def test_two_lines_of_one_order(two: tuple[Any, Any]) -> None:
    """Holds with the shop's same number for one item are two holds, and take their units one after the other."""
    await two[0].set_stock("default", 3)
    told = await asyncio.gather(*(one.submit(Hold(2, "default", f"ann {n}", ref="7")) for n, one in enumerate(two)))
    assert Counter(str(answer.outcome) for answer in told) == {"held": 1, "sold_out": 1}
    assert await units(two[0]) == (1, 2, 0)


async def test_an_operator_sets_the_stock_to_nothing(two: tuple[Any, Any]) -> None:
    """A buyer with a hold can pay although an operator has set the stock to 0 meanwhile; nobody else gets a unit."""
    await two[0].set_stock("default", 5)
    held = await two[0].submit(Hold(1, "default", "ann"))
    await two[1].set_stock("default", 0)
    assert (await two[0].submit(Hold(1, "default", "bob"))).outcome == "sold_out"
    assert (await two[1].submit(Confirm(*about(held), "p1"))).outcome == "confirmed"
    assert await units(two[0]) == (0, 0, 1)


async def test_a_look_moves_no_deadline(two: tuple[Any, Any]) -> None:
    """Coming again, with the same key or at the limit, shows the hold, whose end stays where it was."""
    await two[0].set_stock("default", 5, terms={"limit_per_buyer": 1})
    first = await two[0].submit(Hold(1, "default", "ann", "k", proven=True))
    for again in (Hold(1, "default", "ann", "k", proven=True), Hold(1, "default", "ann", proven=True)):
        second = await two[1].submit(again)
        assert (second.order, second.record.pay_by_ms) == (first.order, first.record.pay_by_ms)
    assert await kinds(two[0]) == {"held": 1}


@pytest.mark.parametrize("keyed", [True, False])
async def test_many_tabs_of_one_buyer(two: tuple[Any, Any], keyed: bool) -> None:
    """A buyer who presses fifty times at two instances, to buy or to hold, gets as many units as the limit says."""
    await two[0].set_stock("default", 100, terms={"limit_per_buyer": 2})
    wishes = [(Hold, Purchase)[n % 2](1, "default", "ann", f"k{n}" if keyed else None) for n in range(50)]
    told = await asyncio.gather(*(two[n // 2 % 2].submit(wish) for n, wish in enumerate(wishes)))
    orders = {answer.order for answer in told if answer.outcome in ("held", "sold")}
    assert len(orders) == 2
    left, held, lucky = await units(two[0])
    assert (left, held + lucky) == (98, 2)


async def test_a_double_press_is_shown_its_own_hold(two: tuple[Any, Any]) -> None:
    """Both presses are told of the one hold that the buyer may have, in one batch or in two."""
    await two[0].set_stock("default", 100, terms={"limit_per_buyer": 1})
    for n in range(20):
        first, second = await asyncio.gather(
            *(two[0].submit(Hold(1, "default", f"buyer {n}", proven=True)) for _ in range(2))
        )
        assert {first.outcome, second.outcome} == {"held", "already_held"}
        assert (first.order, second.replayed) == (second.order, False)


async def test_clicks_of_one_take_nothing_from_others(two: tuple[Any, Any]) -> None:
    """A buyer who presses a hundred times, and may have one unit, leaves the others theirs."""
    await two[0].set_stock("default", 30, terms={"limit_per_buyer": 1})
    wishes = [Hold(1, "default", "ann")] * 100 + [Hold(1, "default", f"buyer {n}") for n in range(29)]
    told = await asyncio.gather(*(two[n % 2].submit(wish) for n, wish in enumerate(wishes)))
    assert {str(answer.outcome) for answer in told[100:]} == {"held"}
    assert await units(two[0]) == (0, 30, 0)


async def test_before_the_start_nothing_is_touched(two: tuple[Any, Any]) -> None:
    """A press before the start holds nothing, and writes nothing."""
    await two[0].set_stock("default", 5, terms={"starts_at": 4e9})
    assert (await two[0].submit(Hold(1, "default", "ann", "k"))).outcome == "not_started"
    assert (await kinds(two[0]), await units(two[0])) == ({}, (5, 0, 0))
    await two[0].set_stock("default", 5, terms={"starts_at": None})
    assert (await two[1].submit(Hold(1, "default", "ann", "k"))).outcome == "held"


async def test_a_late_payer_does_not_touch_the_next_hold(brief: Any) -> None:
    """When a hold has run out and another buyer holds the unit, nothing that the first one does changes that."""
    await brief.set_stock("default", 1, terms={"hold_s": 1})
    first = await brief.submit(Hold(1, "default", "ann"))
    await ran_out(brief, first)
    await brief.set_stock("default", 0, add=True, terms={"hold_s": 3600})
    second = await brief.submit(Hold(1, "default", "bob"))
    assert (await brief.submit(Extend(*about(first)))).outcome == "expired"
    assert (await brief.submit(Cancel(*about(first)))).outcome == "expired"
    assert (await brief.submit(Confirm(*about(first), "p1"))).outcome == "refund_due"
    assert (await brief.order(second.order)).state is OrderState.HELD
    assert (await brief.submit(Confirm(*about(second), "p2"))).outcome == "confirmed"
    assert await units(brief) == (0, 0, 1)


async def test_three_pay_for_one_unit(brief: Any) -> None:
    """Three have held the same unit in turn, and all pay too late: one has it, the others' money is owed."""
    await brief.set_stock("default", 1)
    held = []
    for name in ("ann", "bob", "cid"):
        held.append(await brief.submit(Hold(1, "default", name)))
        await ran_out(brief, held[-1])
    told = await asyncio.gather(*(brief.submit(Confirm(*about(one), f"p{n}")) for n, one in enumerate(held)))
    assert Counter(str(answer.outcome) for answer in told) == {"confirmed": 1, "refund_due": 2}
    owed = [list(one.record.refunds) for one in await brief.orders("default") if one.record.state != "confirmed"]
    assert sorted(map(len, owed)) == [1, 1]
    assert await units(brief) == (0, 0, 1)


async def test_the_instance_that_held_is_gone(etcd: EtcdMember, valkey: Valkey) -> None:
    """Abandoned holds come back though the instance that made them is gone, and nobody comes to buy."""
    async with shop(etcd.endpoint, valkey.url, **BRIEF) as one:
        await one.set_stock("default", 3)
        for name in ("ann", "bob", "cid"):
            await one.submit(Hold(1, "default", name))
    async with shop(etcd.endpoint, valkey.url, instance="two", with_auditor=True, audit_interval_s=0.2) as two:

        async def are_back() -> bool:
            return bool((await two.level("default")).stock == 3)

        await eventually_async(are_back, "the units come back")
        assert await kinds(two) == {"held": 3, "expired": 3}


@pytest.mark.parametrize("early_ms", [0, 1])
def test_the_last_millisecond(early_ms: int) -> None:
    """At its very end a hold has run out; a millisecond before it has not."""
    held = Record("1-1", "s", OrderState.HELD, 1, "ann", pay_by_ms=5000, due_ms=5000)
    now = {"now_ms": 5000 - early_ms, "records": {"1-1": held}, "due": [] if early_ms else ["1-1"]}
    snapshot = Snapshot(0, 0, held=1, **now)  # type: ignore[arg-type]
    (extended,), changes = decide(snapshot, [Extend("default", "1-1", "s")])
    assert extended.outcome is (ExtendOutcome.EXTENDED if early_ms else ExtendOutcome.EXPIRED)
    assert [str(change.kind) for change in changes] == (["extended"] if early_ms else ["expired"])
    # A buyer who pays in the very batch that would give the unit back keeps it.
    (paid,), changes = decide(snapshot, [Confirm("default", "1-1", "s", "p1")])
    assert (paid.outcome, len(changes)) == (ConfirmOutcome.CONFIRMED, 1)


async def test_what_is_expected_is_no_error(etcd: EtcdMember, valkey: Valkey) -> None:
    """A provider that is answered anything but 2xx calls back for days: late, doubled and unknown are answers."""
    async with client(etcd.endpoint, valkey.url) as http:
        await http.put("/stock", json={"stock": 1, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
        held = (await http.post("/holds", json={"buyer": "ann"})).json()
        await http.post(f"/holds/{held['id']}/cancel")
        told = []
        for ref, order in (("p1", held["id"]), ("p1", held["id"]), ("p2", "default~1-1~" + 32 * "0"), ("p3", "none")):
            answer = await http.post(f"/holds/{order}/confirm", json={"payment_ref": ref}, headers=OPERATOR)
            told.append((answer.status_code, answer.json()["outcome"]))
        assert told == [(200, "refund_due")] * 2 + [(200, "not_found")] * 2

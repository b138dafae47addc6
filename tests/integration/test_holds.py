"""Units are held, paid, given back and sold again, on real servers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from app.errors import BuyerRequired, HoldsNotPossible, KeyReused, NotDecided
from app.orders import Answer, Cancel, Confirm, EventKind, Extend, Hold, OrderId, OrderState, Purchase, Record, Refund
from app.orders import record as records
from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness.shop import shop
from tests.harness.waiting import eventually_async

SHORT_S = 1.0  # the shortest hold that there is


@pytest.fixture(params=["valkey", "mariadb"])
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


async def test_from_hold_to_payment(one: Any) -> None:
    """A unit is held, then paid; each step moves it from one place to the next."""
    await one.set_stock("default", 2)
    held = await hold(one, "ann", ref="order 7")
    assert (held.outcome, record(held).ref, record(held).state) == ("held", "order 7", "held")
    assert await units(one) == (1, 1, 0)
    paid = await confirm(one, held, "p1")
    assert (paid.outcome, record(paid).payment_ref, paid.order) == ("confirmed", "p1", held.order)
    assert await units(one) == (1, 0, 1)
    assert await kinds(one, held) == ["held", "confirmed"]
    again = await confirm(one, held, "p1")
    assert again.outcome == "already_confirmed"
    assert await units(one) == (1, 0, 1)
    (order,) = await one.orders("default")
    assert (order.state, order.buyer, order.record.payment_ref) == (OrderState.CONFIRMED, "ann", "p1")


async def test_refusals_are_values(one: Any) -> None:
    """A hold gets the same refusals as a purchase; purchases and holds take from the same units."""
    await one.set_stock("default", 1, terms={"limit_per_buyer": 1})
    assert (await one.submit(Purchase(1, "default", "ann"))).outcome == "sold"
    assert (await hold(one, "ann")).outcome == "sold_out"
    await one.set_stock("default", 5)
    assert (await hold(one, "ann")).outcome == "limit_reached"
    assert (await hold(one, "bob")).outcome == "held"
    assert (await one.submit(Purchase(1, "default", "bob"))).outcome == "limit_reached"
    with pytest.raises(BuyerRequired):
        await one.submit(Hold())
    await one.set_stock("default", 0, add=True, terms={"ends_at": 1.0})
    assert (await hold(one, "cid")).outcome == "ended"
    assert await units(one) == (4, 1, 1)


async def test_own_hold_never_blocks(one: Any) -> None:
    """A buyer who comes again is shown their hold, at the limit, and when nothing is left; nobody else is."""
    await one.set_stock("default", 1, terms={"limit_per_buyer": 1})
    first, second = await hold(one, "ann", proven=True), await hold(one, "ann", proven=True)
    stranger = await hold(one, "ann")
    assert (stranger.outcome, stranger.order, stranger.record) == ("sold_out", None, None)
    assert (second.outcome, second.order) == ("already_held", first.order)
    assert (await hold(one, "bob")).outcome == "sold_out"
    assert await units(one) == (0, 1, 0)
    await one.submit(Cancel(*about(first)))
    assert (await hold(one, "bob")).outcome == "held"
    assert (await hold(one, "ann")).outcome == "sold_out"


async def test_a_key_holds_once(one: Any) -> None:
    """The same key gets the same hold, as it stands now; with other words it is refused. Each command has own keys."""
    await one.set_stock("default", 5)
    first = await hold(one, "ann", key="k")
    assert not first.replayed
    await one.submit(Extend(*about(first), key="k"))
    second = await hold(one, "ann", key="k")
    assert (second.order, second.replayed, record(second).extended) == (first.order, True, True)
    with pytest.raises(KeyReused):
        await hold(one, "ann", 2, key="k")
    paid = await confirm(one, first, "p1", key="k")
    repeated = await confirm(one, first, "p1", key="k")
    assert (paid.outcome, paid.replayed, repeated.outcome, repeated.replayed) == ("confirmed", False, "confirmed", True)
    with pytest.raises(KeyReused):
        await confirm(one, first, "p2", key="k")
    assert (await one.submit(Purchase(1, "default", "ann", "k"))).outcome == "sold"
    assert await units(one) == (3, 0, 2)


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


async def test_a_late_payment(brief: Any) -> None:
    """A payment after the end takes a unit if there is one, and is owed if there is none."""
    await brief.set_stock("default", 1)
    held = await hold(brief, "ann")
    await ran_out(brief, held)
    assert await units(brief) == (1, 0, 0)
    late = await confirm(brief, held, "p1")
    assert late.outcome == "confirmed"
    assert await units(brief) == (0, 0, 1)
    assert await kinds(brief, held) == ["held", "expired", "confirmed"]

    await brief.set_stock("default", 1)
    lost = await hold(brief, "bob")
    await ran_out(brief, lost)
    assert (await brief.submit(Purchase(1, "default", "cid"))).outcome == "sold"
    for _ in range(2):
        owed = await confirm(brief, lost, "p2")
        assert (owed.outcome, owed.refund) == ("refund_due", "p2")
    assert await kinds(brief, lost) == ["held", "expired", "refund_due"]
    assert (await brief.submit(Refund(*about(lost), restock=True))).outcome == "refunded"
    assert await units(brief) == (0, 0, 2)


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


async def test_what_runs_out_is_sold_to_the_next(brief: Any) -> None:
    """A buyer who comes after the end of a hold gets its units, without anybody's help."""
    await brief.set_stock("default", 1)
    held = await hold(brief, "ann")

    async def bought() -> bool:
        return (await brief.submit(Purchase(1, "default", "bob"))).outcome == "sold"

    await eventually_async(bought, "the unit comes back")
    assert (await brief.order(held.order)).state is OrderState.EXPIRED
    assert await units(brief) == (0, 0, 1)


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


async def test_an_item_that_cant_be_helped_keeps_no_other_waiting(etcd: EtcdMember, valkey: Valkey) -> None:
    """Many items of a lock that somebody keeps have run out; those of another lock go back all the same."""
    brief = {"hold_s": SHORT_S, "pay_s": SHORT_S, "grace_s": 0, "lock_groups": 2, "purchase_timeout_ms": 2000}
    async with shop(etcd.endpoint, valkey.url, with_auditor=True, **brief) as one:
        stuck, well = f"{one.lock_prefix}1-of-2", f"{one.lock_prefix}2-of-2"
        names = [f"item-{number}" for number in range(400)]
        many = [name for name in names if one.lock_name(name) == stuck][:130]
        last = next(f"z{number}" for number in range(99) if one.lock_name(f"z{number}") == well)
        skus = [*many, last]
        await asyncio.gather(*(one.set_stock(sku, 1) for sku in skus))
        answers = await asyncio.gather(*(one.submit(Hold(1, sku, "ann")) for sku in skus))
        assert {answer.outcome for answer in answers} == {"held"}
        async with one.sale.readiness._locks.lock(stuck):
            back = lambda: one.level(last)  # noqa: E731
            await eventually_async(back, "it is given back", until=lambda level: level.held == 0)
            assert (await one.level(many[0])).held == 1


async def test_grace(etcd: EtcdMember, store: str) -> None:
    """After the deadline that the buyer sees, the unit is still theirs for the grace."""
    async with shop(etcd.endpoint, store, hold_s=SHORT_S, pay_s=SHORT_S, grace_s=3600) as one:
        await one.set_stock("default", 1)
        held = await hold(one, "ann")
        assert record(held).due_ms == record(held).pay_by_ms + 3_600_000

        async def later() -> bool:
            await one.give_back("default")
            level = await one.level("default")
            return level.due_in_s is not None and level.due_in_s < 3600 - 0.1

        await eventually_async(later, "the deadline that the buyer sees passes")
        assert (await hold(one, "bob")).outcome == "sold_out"
        assert (await confirm(one, held, "p1")).outcome == "confirmed"
        assert await units(one) == (0, 0, 1)


async def test_extension(one: Any) -> None:
    """The second window begins when the buyer goes to pay: once, and never shorter than the first."""
    await one.set_stock("default", 1, terms={"hold_s": 100, "pay_s": 50})
    held = await hold(one, "ann")
    first = await one.submit(Extend(*about(held)))
    assert (first.outcome, first.record.extended) == ("extended", True)
    assert first.record.pay_by_ms >= record(held).pay_by_ms
    second = await one.submit(Extend(*about(held)))
    assert (second.outcome, second.record.pay_by_ms) == ("already_extended", first.record.pay_by_ms)
    await confirm(one, held, "p1")
    assert (await one.submit(Extend(*about(held)))).outcome == "confirmed"
    assert await units(one) == (0, 0, 1)


async def test_an_extended_hold_does_not_expire(etcd: EtcdMember, store: str) -> None:
    """An expiry goes by the present deadline, and not by the one before the extension."""
    async with shop(etcd.endpoint, store, hold_s=SHORT_S, pay_s=3600, grace_s=0) as one:
        await one.set_stock("default", 100)

        async def in_time() -> Answer | None:
            held = await hold(one, "ann")
            return held if (await one.submit(Extend(*about(held)))).outcome == "extended" else None

        kept = await eventually_async(in_time, "it is extended before it runs out")
        await ran_out(one, await hold(one, "bob"))
        assert (await one.order(kept.order)).state is OrderState.HELD
        assert await units(one) == (99, 1, 0)


async def test_what_is_owed_is_counted(one: Any) -> None:
    """The audit counts payments that are to be given back, or of a wrong amount, until they were given back whole."""

    async def owed() -> int:
        audit = await one.audit("default")
        assert audit.consistent, audit.violations
        return int(audit.owed)

    await one.set_stock("default", 3, terms={"price": 499, "currency": "EUR"})
    held, other = await hold(one, "ann"), await hold(one, "bob")
    counts = []
    for act in (
        confirm(one, held, "wrong", amount=498),
        confirm(one, held, "p1", amount=499),
        confirm(one, held, "p2", amount=499),
        one.submit(Refund(*about(held), restock=False, payment_ref="p2", amount=1)),
        one.submit(Refund(*about(held), restock=False, payment_ref="wrong")),
        one.submit(Refund(*about(held), restock=False, payment_ref="p2")),
        one.submit(Refund(*about(held), restock=True)),
        one.submit(Cancel(*about(other))),
        confirm(one, other, "late", amount=499),
        one.submit(Refund(*about(other), restock=False)),
    ):
        await act
        counts.append(await owed())
    assert counts == [1, 1, 2, 2, 1, 0, 0, 0, 1, 0]


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


async def test_cancellation(one: Any) -> None:
    """A cancellation gives the units back at once; a payment after it is owed; after a payment it changes nothing."""
    await one.set_stock("default", 3)
    held = await hold(one, "ann", 2)
    assert (await one.submit(Cancel(*about(held)))).outcome == "cancelled"
    assert await units(one) == (3, 0, 0)
    assert (await one.submit(Cancel(*about(held)))).outcome == "already_cancelled"
    assert (await confirm(one, held, "p1")).outcome == "refund_due"
    paid = await hold(one, "bob", 2)
    await confirm(one, paid, "p2")
    assert (await one.submit(Cancel(*about(paid)))).outcome == "confirmed"
    assert await units(one) == (1, 0, 2)


@pytest.mark.parametrize("restock", [True, False])
async def test_refund(one: Any, restock: bool) -> None:
    """A refund gives a unit back to the stock if it is to be sold again; the buyer may buy again in any case."""
    await one.set_stock("default", 3, terms={"limit_per_buyer": 1})
    held = await hold(one, "ann")
    await confirm(one, held, "p1")
    sold = await one.submit(Purchase(1, "default", "bob"))
    for order in (held, sold):
        back = await one.submit(Refund(*about(order), restock=restock, by="kim"))
        assert (back.outcome, back.record.state) == ("refunded", OrderState.REFUNDED)
        assert (await one.submit(Refund(*about(order), restock=restock))).outcome == "already_refunded"
        assert (await one.order(order.order)).state is OrderState.REFUNDED
    assert await units(one) == ((3, 0, 0) if restock else (1, 0, 2))
    assert await kinds(one, held) == ["held", "confirmed", "refunded"]
    assert await kinds(one, sold) == ["sold", "refunded"]
    assert (await hold(one, "ann")).outcome == "held"


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


async def test_a_wrong_amount_is_given_back(one: Any) -> None:
    """It is owed once its order waits for no money any more, given back once, and belongs to no other order."""
    await one.set_stock("default", 9, terms={"price": 499, "currency": "EUR"})
    paid, cancelled, settled, other = [await hold(one, buyer) for buyer in ("ann", "bob", "cy", "dee")]
    for held, ref in ((paid, "p1"), (cancelled, "p2"), (settled, "p3")):
        assert (await confirm(one, held, ref, amount=100)).outcome == "amount_mismatch"
        assert (await confirm(one, other, ref, amount=499)).outcome == "payment_ref_in_use"
    answer = await confirm(one, paid, "right", amount=499)
    assert (answer.outcome, record(answer).own_sums.owed) == ("confirmed", 100)
    assert (await confirm(one, paid, "p1", amount=100)).refund == "p1"
    answer = await one.submit(Cancel(*about(cancelled)))
    assert (answer.outcome, answer.record.own_sums.owed) == ("cancelled", 100)
    for held, ref in ((paid, "p1"), (cancelled, "p2"), (settled, "p3")):
        answer = await one.submit(Refund(*about(held), restock=False, payment_ref=ref))
        assert (answer.outcome, answer.record.own_sums.owed) == ("refunded", 0)
        answer = await confirm(one, held, ref, amount=100)
        assert (answer.refund, record(answer).own_sums.owed) == (None, 0)  # else the shop would give it back once more
    assert (await confirm(one, settled, "late", amount=499)).outcome == "confirmed"
    assert await kinds(one, paid) == ["held", "amount_mismatch", "confirmed", "refund_due", "refunded"]
    assert await kinds(one, settled) == ["held", "amount_mismatch", "refunded", "confirmed"]


async def test_orders_of_nobody(one: Any) -> None:
    """An order's number without its secret is no order; an order that was sold at once waits for no payment."""
    await one.set_stock("default", 2)
    held = await hold(one, "ann")
    sku, number, _ = about(held)
    for command in (
        Confirm(sku, number, 32 * "0", "p1"),
        Extend(sku, number, 32 * "0"),
        Cancel(sku, number, 32 * "0"),
        Refund(sku, number, 32 * "0", restock=True),
        Confirm(sku, "1-1", 32 * "0", "p1"),
    ):
        assert (await one.submit(command)).outcome == "not_found"
    sold = await one.submit(Purchase(1, "default", "bob"))
    assert (await confirm(one, sold, "p1")).outcome == "not_found"
    assert await units(one) == (0, 1, 1)


async def test_all_in_one_batch(one: Any) -> None:
    """Purchases, holds, payments, cancellations of many buyers at once: each unit is in one place."""
    await one.set_stock("default", 300)
    first = await asyncio.gather(*(hold(one, f"buyer {number}") for number in range(300)))
    assert {str(answer.outcome) for answer in first} == {"held"}
    commands: list[Any] = []
    for number, answer in enumerate(first):
        turns: list[list[Any]] = [
            [Confirm(*about(answer), f"p{number}")],
            [Cancel(*about(answer))],
            [Extend(*about(answer)), Confirm(*about(answer), f"p{number}"), Confirm(*about(answer), f"q{number}")],
        ]
        commands += turns[number % 3]
        commands.append(Purchase(1, "default", f"other {number}"))
    answers = await asyncio.gather(*(one.submit(command) for command in commands))
    told = Counter(
        f"{type(command).__name__} {answer.outcome}" for command, answer in zip(commands, answers, strict=True)
    )
    assert told["Confirm confirmed"] == 200
    assert told["Confirm duplicate_payment"] == 100
    assert told["Cancel cancelled"] == 100
    assert told["Purchase sold"] + told["Purchase sold_out"] == 300
    assert await units(one) == (100 - told["Purchase sold"], 0, 200 + told["Purchase sold"])
    level = await one.level("default")
    events = Counter(str(event.kind) for event in await one.sale.store.journal("default", limit=5000))
    assert events[EventKind.CONFIRMED] == 200
    assert level.stock + level.held + level.lucky == 300


async def test_a_new_sale_forgets_holds(one: Any) -> None:
    """A new sale begins with all of its units; a payment for an order of before finds none."""
    await one.set_stock("default", 5)
    held = await hold(one, "ann")
    await one.set_stock("default", 5, new_sale=True)
    assert await units(one) == (5, 0, 0)
    assert (await confirm(one, held, "p1")).outcome == "not_found"
    await one.give_back("default")
    assert await units(one) == (5, 0, 0)


async def test_a_restock_keeps_holds(one: Any) -> None:
    """Units that are held stay held when the stock is set, and count in the sum."""
    await one.set_stock("default", 5)
    held = await hold(one, "ann", 2)
    await one.set_stock("default", 10)
    assert await units(one) == (10, 2, 0)
    await confirm(one, held, "p1")
    assert await units(one) == (10, 0, 2)


async def test_no_holds_without_a_guard(etcd: EtcdMember, valkey: Valkey) -> None:
    """The articles' store, which checks nothing, sells and doesn't hold."""
    async with shop(etcd.endpoint, valkey.url, guard="none") as one:
        await one.set_stock("default", 5)
        with pytest.raises(HoldsNotPossible):
            await hold(one, "ann")

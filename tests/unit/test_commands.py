"""Whatever a batch contains, in any order, each unit is in one place, and each order has a possible life."""

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.orders import (
    Cancel,
    Confirm,
    ConfirmOutcome,
    EventKind,
    Extend,
    Hold,
    HoldOutcome,
    OrderState,
    Outcome,
    Payment,
    PaymentRefund,
    Purchase,
    Record,
    Refund,
    RefundState,
    Settled,
    Snapshot,
    decide,
)
from app.orders.commands import fingerprint
from app.orders.decision import Windows

SECRET = 32 * "a"
NOW_MS = 1_000_000
# The states that may follow each other; amount_mismatch and refund_due change no state.
NEXT = {
    OrderState.SOLD: {OrderState.REFUNDED},
    OrderState.HELD: {OrderState.HELD, OrderState.CONFIRMED, OrderState.EXPIRED, OrderState.CANCELLED},
    OrderState.CONFIRMED: {OrderState.REFUNDED},
    OrderState.EXPIRED: {OrderState.CONFIRMED},
    OrderState.CANCELLED: set(),
    OrderState.REFUNDED: set(),
}
numbers = st.sampled_from(["1", "2", "3", "4"])
refs = st.sampled_from(["p1", "p2", "p3"])
buyers = st.sampled_from(["ann", "bob"])


def order(number: str, state: OrderState, buyer: str, quantity: int, due_ms: int, paid: str | None) -> Record:
    amount = 5 * quantity
    given = (PaymentRefund("r", RefundState.GIVEN, amount),) if state is OrderState.REFUNDED else ()
    counted = Payment(paid, amount, refunds=given) if paid else None
    payments = (counted,) if counted and state in (OrderState.CONFIRMED, OrderState.REFUNDED) else ()
    return Record(number, SECRET, state, quantity, buyer, None, due_ms, due_ms, price=5, payments=payments)


orders = st.builds(
    order, numbers, st.sampled_from(OrderState), buyers, st.integers(1, 3), st.sampled_from([1, 2 * NOW_MS]), refs
)
commands: st.SearchStrategy[Any] = st.one_of(
    st.builds(Purchase, st.integers(1, 3), st.just("default"), buyers),
    st.builds(Hold, st.integers(1, 3), st.just("default"), buyers),
    st.builds(
        Confirm, st.just("default"), numbers, st.just(SECRET), refs, st.one_of(st.none(), st.sampled_from([5, 7]))
    ),
    st.builds(Extend, st.just("default"), numbers, st.just(SECRET)),
    st.builds(Cancel, st.just("default"), numbers, st.just(SECRET)),
    st.builds(Refund, st.just("default"), numbers, st.just(SECRET), st.booleans(), st.one_of(st.none(), refs)),
)


def snapshot(stock: int, there: list[Record]) -> Snapshot:
    records = {one.number: one for one in there}
    bought: Counter[str] = Counter()
    for one in records.values():
        if one.state in (OrderState.SOLD, OrderState.HELD, OrderState.CONFIRMED):
            bought[one.buyer or ""] += one.quantity
    held = [one for one in records.values() if one.state is OrderState.HELD]
    return Snapshot(
        stock,
        sum(one.quantity for one in records.values() if one.state in (OrderState.SOLD, OrderState.CONFIRMED)),
        bought,
        held=sum(one.quantity for one in held),
        now_ms=NOW_MS,
        records=records,
        open={one.buyer or "": one.number for one in held},
        payments={one.payment_ref: one.number for one in records.values() if one.payment_ref},
        due=[one.number for one in held if one.due_ms <= NOW_MS],
    )


@given(st.integers(0, 6), st.lists(orders, max_size=4), st.lists(commands, max_size=12), st.integers(0, 4))
def test_a_batch(stock: int, there: list[Record], wishes: list[Any], limit: int) -> None:
    """The units add up, nothing falls below 0, no limit is passed, and each payment belongs to one order."""
    seen = snapshot(stock, there)
    decisions, changes = decide(seen, wishes, limit_per_buyer=limit, windows=Windows(price=5))
    left, held, lucky, now = seen.stock, seen.held, seen.lucky, dict(seen.records)
    owners = dict(seen.payments)
    for change in changes:
        before, after = change.before, change.after
        assert before == now[before.number]
        assert after.events == before.events + 1
        assert after.state == before.state or after.state in NEXT[before.state]
        assert sum(change.units) == 0
        if change.payment is not None:
            assert change.payment not in owners
            owners[change.payment] = after.number
        assert after.state is OrderState.REFUNDED or after.payment_ref not in {one.ref for one, _ in after.refunds}
        left, held, lucky = left + change.units.stock, held + change.units.held, lucky + change.units.lucky
        now[after.number] = after
    gained: Counter[str] = Counter()
    for wish, decision in zip(wishes, decisions, strict=True):
        if decision.outcome is Outcome.SOLD or decision.begins is not None:
            gained[wish.buyer] += wish.quantity
    left -= gained.total()
    assert left >= 0
    assert held == sum(one.quantity for one in now.values() if one.state is OrderState.HELD)
    assert not any(one.waits for it in now.values() if it.state is not OrderState.HELD for one in it.payments)
    # Refunded units that were not restocked count as sold.
    assert lucky >= sum(one.quantity for one in now.values() if one.state in (OrderState.SOLD, OrderState.CONFIRMED))
    for buyer in ("ann", "bob"):
        units = gained[buyer]
        has = sum(
            one.quantity
            for one in now.values()
            if one.buyer == buyer and one.state in (OrderState.SOLD, OrderState.HELD, OrderState.CONFIRMED)
        )
        assert not limit or has + units <= max(limit, seen.bought.get(buyer, 0))


@given(st.integers(0, 6), st.lists(orders, max_size=4), st.lists(commands, min_size=1, max_size=8))
def test_the_same_again_changes_nothing_more(stock: int, there: list[Record], wishes: list[Any]) -> None:
    """Each change of an order, asked for again, is answered alike and writes nothing, unless money came in between."""
    wishes = [wish for wish in wishes if isinstance(wish, Confirm | Extend | Cancel)]
    first = decide(snapshot(stock, there), wishes)
    now = {one.number: one for one in there} | {change.after.number: change.after for change in first.changes}
    payments = {change.payment: change.after.number for change in first.changes if change.payment}
    left = stock + sum(change.units.stock for change in first.changes)
    again = snapshot(left, list(now.values()))
    second = decide(replace(again, payments={**again.payments, **payments}, due=()), wishes)
    for wish, one, two in zip(wishes, first.decisions, second.decisions, strict=True):
        if isinstance(wish, Confirm) and one.outcome is ConfirmOutcome.CONFIRMED:
            assert two.outcome is ConfirmOutcome.ALREADY_CONFIRMED
        if isinstance(wish, Confirm) and one.outcome in (ConfirmOutcome.REFUND_DUE, ConfirmOutcome.DUPLICATE_PAYMENT):
            assert two.refund == wish.payment_ref
    assert not [change for change in second.changes if change.units != (0, 0, 0)]


def test_a_wrong_secret_is_shown_nothing_the_second_time_either() -> None:
    """A key that was answered "not found" is so again: the order is not shown to somebody who can't open it."""
    held = order("1", OrderState.HELD, "ann", 1, 2 * NOW_MS, None)
    wish = Confirm("default", "1", "b" * 32, "p1", 5, key="k")
    key = " confirm k"
    settled = Settled(ConfirmOutcome.NOT_FOUND, *fingerprint(wish), None)
    [decision] = decide(replace(snapshot(0, [held]), settled={key: settled}), [wish]).decisions
    assert decision.settled is settled and decision.record is None


def test_a_batch_gives_back_before_it_serves() -> None:
    """A hold that has run out is there for the first buyer of its batch, unless its payment is in the batch."""
    held = order("1", OrderState.HELD, "ann", 1, 1, None)
    decisions, changes = decide(snapshot(0, [held]), [Hold(1, "default", "bob")])
    assert (decisions[0].outcome, [change.kind for change in changes]) == (HoldOutcome.HELD, [EventKind.EXPIRED])
    wishes: list[Any] = [Hold(1, "default", "bob"), Confirm("default", "1", SECRET, "p1")]
    decisions, changes = decide(snapshot(0, [held]), wishes)
    assert [one.outcome for one in decisions] == [HoldOutcome.SOLD_OUT, ConfirmOutcome.CONFIRMED]
    assert [change.kind for change in changes] == [EventKind.CONFIRMED]

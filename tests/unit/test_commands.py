"""What a batch does about orders that are there, where the model (`test_orders_model`) has no way to come."""

from dataclasses import replace
from typing import Any

from app.orders import (
    Confirm,
    ConfirmOutcome,
    EventKind,
    Hold,
    HoldOutcome,
    OrderState,
    Record,
    Settled,
    Snapshot,
    decide,
)
from app.orders.commands import fingerprint

SECRET = 32 * "a"
NOW_MS = 1_000_000


def held(due_ms: int) -> Record:
    return Record("1", SECRET, OrderState.HELD, 1, "ann", pay_by_ms=due_ms, due_ms=due_ms, price=5)


def snapshot(stock: int, there: list[Record]) -> Snapshot:
    due = [one.number for one in there if one.due_ms <= NOW_MS]
    about: dict[str, Any] = {"records": {one.number: one for one in there}, "due": due, "now_ms": NOW_MS}
    return Snapshot(stock, 0, held=len(there), **about)


def test_a_wrong_secret_is_shown_nothing_the_second_time_either() -> None:
    """A key that was answered "not found" is so again: the order is not shown to somebody who can't open it."""
    order = held(2 * NOW_MS)
    wish = Confirm("default", "1", "b" * 32, "p1", 5, key="k")
    key = " confirm k"
    settled = Settled(ConfirmOutcome.NOT_FOUND, *fingerprint(wish), None)
    [decision] = decide(replace(snapshot(0, [order]), settled={key: settled}), [wish]).decisions
    assert decision.settled is settled and decision.record is None


def test_a_batch_gives_back_before_it_serves() -> None:
    """A hold that has run out is there for the first buyer of its batch, unless its payment is in the batch."""
    order = held(1)
    decisions, changes = decide(snapshot(0, [order]), [Hold(1, "default", "bob")])
    assert (decisions[0].outcome, [change.kind for change in changes]) == (HoldOutcome.HELD, [EventKind.EXPIRED])
    wishes: list[Any] = [Hold(1, "default", "bob"), Confirm("default", "1", SECRET, "p1")]
    decisions, changes = decide(snapshot(0, [order]), wishes)
    assert [one.outcome for one in decisions] == [HoldOutcome.SOLD_OUT, ConfirmOutcome.CONFIRMED]
    assert [change.kind for change in changes] == [EventKind.CONFIRMED]

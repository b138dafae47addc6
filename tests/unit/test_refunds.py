"""Money that goes back: what an order becomes by it, and what its events tell.

After each command the sums follow from the events, and the auditor finds nothing wrong.
"""

from collections import Counter
from typing import Any

import pytest

from app.audit.ledger import Ledger
from app.operator.report import Report
from app.orders import (
    Event,
    EventKind,
    IncidentOutcome,
    Order,
    OrderId,
    OrderState,
    PaymentRefund,
    Record,
    RefundOutcome,
    RefundState,
    RequestOutcome,
    Snapshot,
    Units,
    decide,
)
from app.orders.account import PROVIDER
from app.orders.commands import (
    Cancel,
    Confirm,
    ConfirmOutcome,
    GivenBack,
    Incident,
    OrderCommand,
    Refund,
    RequestRefund,
)
from app.orders.refunds import meant
from app.orders.view import of_order
from app.payments.reconcile import Movement, MovementKind, Reconciliation
from app.stock import Level

SECRET = "a" * 32
ORDER = OrderId("default", "1-0", SECRET)
PRICE = 500
PAID = 3 * PRICE
BANK = "the account is closed"


class Told:
    """An order of three units, and what it is told: each decision, the events, and the numbers of the item."""

    def __init__(self, stock: int = 5, **fields: Any) -> None:
        own: dict[str, Any] = {"pay_by_ms": 1_000, "due_ms": 2_000, "price": PRICE, "currency": "EUR"} | fields
        self.record = Record("1-0", SECRET, OrderState.HELD, 3, "ann", **own)
        self.stock, self.events = stock, list[Event]()
        self.note(EventKind.HELD, self.record, Units(-3, 3), self.record.facts)

    def __call__(self, kind: type[Any], *about: Any, **more: Any) -> Any:
        return self.do(kind(*ORDER, *about, **more))

    def do(self, command: OrderCommand, at_ms: int = 1_500) -> Any:
        owners = {one.ref: "1-0" for one in self.record.payments}
        snapshot = Snapshot(self.stock, 0, records={"1-0": self.record}, payments=owners, now_ms=at_ms)
        decisions, changes, *_ = decide(snapshot, [command])
        for change in changes:
            self.stock += change.units.stock
            self.record = Record.from_text("1-0", change.after.to_text())
            self.note(change.kind, change.after, change.units, change.facts)
        self.look()
        return decisions[0].outcome or decisions[0].error

    def note(self, kind: EventKind, after: Record, units: Units, facts: Any) -> None:
        own = (after.events, after.quantity, "ann", None, 1.0, "i", 1, "b", 0, units)
        self.events.append(Event(f"{after.events}-1", kind, ORDER, *own, facts))

    def look(self) -> None:
        """Nothing is wrong with the events, their changes add up, and nothing is owed that is less than nothing."""
        ledger, moved = Ledger(), Counter[tuple[str, str]]()
        for event in self.events:
            ledger.add(event)
            for one in event.facts.get("changes", ()):
                moved.update({(one["currency"], name): more for name, more in one.items() if name != "currency"})
        units = Units(*(sum(some) for some in zip(*(event.units for event in self.events), strict=True)))
        assert not ledger.compare(Level("default", 9 + units.stock, units.lucky, 9, held=units.held)).violations
        order = Order("default", self.record, None, "i", 1, "b", 1.0)
        assert not [one for n in ledger.payments.changed(1) for one in ledger.payments.check(n, order)]
        sums = self.record.sums.values()
        assert {name: one for name, one in moved.items() if one} == {
            (sum_.currency, name): one for sum_ in sums for name, one in list(sum_._asdict().items())[1:-1] if one
        }
        assert all(one.owed >= 0 and one.given_back >= 0 for one in sums)
        owed = {one.name for _, one in self.record.refunds} | {one.ref for one in self.record.payments if one.waits}
        assert {name.rpartition("\n")[2] for _, name in ledger.payments.owed} == owed

    @property
    def sums(self) -> tuple[int, int, int]:
        """What was paid, given back, and is owed."""
        return self.record.own_sums[1:4]

    @property
    def owed(self) -> PaymentRefund:
        """The one refund that is owed."""
        [(_, one)] = self.record.refunds
        return one

    def ask(self) -> str:
        """As the cashier: the provider is about to be asked for what is owed; return its name."""
        name = self.owed.name
        assert self(RequestRefund, name, "the cashier") == RequestOutcome.REQUESTED
        return name

    def hear(self, amount: int | None = None, **more: Any) -> Any:
        """A callback about money that went back."""
        return self(GivenBack, "p", PROVIDER, amount, **more)

    def bounce(self, **more: Any) -> Any:
        """A callback: the money came back to the shop."""
        return self(Incident, EventKind.REFUND_FAILED, "p", why=BANK, by=PROVIDER, **more)


def paid() -> Told:
    """An order that is paid."""
    told = Told()
    assert told(Confirm, "p", PAID, "EUR") == ConfirmOutcome.CONFIRMED
    return told


def test_a_payment_that_is_told_otherwise_counts_once() -> None:
    """A wrong amount, then another currency, and then rightly: what was told before is taken off its sums."""
    told = Told()
    for amount, currency in ((499, "EUR"), (PAID, "USD")):
        assert told(Confirm, "p", amount, currency) == ConfirmOutcome.AMOUNT_MISMATCH
    assert told.events[-1].facts["changes"] == [{"currency": "USD", "paid": PAID}, {"currency": "EUR", "paid": -499}]
    assert told(Confirm, "p", PAID, "EUR") == ConfirmOutcome.CONFIRMED
    assert (list(told.record.sums), told.sums) == (["EUR"], (PAID, 0, 0))


BY_HAND: list[OrderCommand] = [
    Refund(*ORDER, False, "p", "ann", 500, message="noted"),
    Refund(*ORDER, False, "p", "ann", 500, message="by bank", elsewhere=True),
    GivenBack(*ORDER, "p", PROVIDER, 500, refund_id="re_9"),
    GivenBack(*ORDER, "p", PROVIDER, 500, notice="without an id"),
    GivenBack(*ORDER, "p", PROVIDER, so_far=500, at=9.0),
]


@pytest.mark.parametrize("state", [RefundState.DUE, RefundState.FAILED])
@pytest.mark.parametrize("command", BY_HAND)
def test_what_was_given_by_hand_is_owed_no_more(command: OrderCommand, state: RefundState) -> None:
    """Noted, given by bank, or told from the dashboard: the part that was owed is settled, and nobody asks for it."""
    told = paid()
    told(Refund, False, "p", amount=500, message="a", later=True)
    name = told.owed.name
    if state is RefundState.FAILED:
        refused = {"name": told.ask(), "why": "no balance", "by": "the cashier"}
        assert told(Incident, EventKind.REFUND_FAILED, "p", **refused) == IncidentOutcome.NOTED
        assert told.events[-1].facts["amount"] == 500
        name = told.owed.name
    told.do(command)
    assert told.sums == (PAID, 500, 0)
    for again in (False, True):
        assert told(RequestRefund, name, again=again) == RequestOutcome.NOTHING_DUE


@pytest.mark.parametrize("by_hand", [{"amount": 800, "refund_id": "re_9"}, {"so_far": PAID, "at": 9.0}, None])
def test_by_hand_after_a_refund_that_came_back(by_hand: dict[str, Any] | None) -> None:
    """The rest, which came back, is given once more in the dashboard, or noted: nothing is owed any more."""
    told = paid()
    told.hear(700, refund_id="re_1", at=1.0)
    told.hear(800, refund_id="re_2", at=2.0)
    assert told.record.state is OrderState.REFUNDED
    told.bounce(amount=800, refund_id="re_2", at=3.0)
    assert told.sums == (PAID, 700, 800)
    if by_hand is None:
        told(Refund, False, "p", "ann", 800, message="by hand")
    else:
        told.hear(**by_hand)
    assert told.sums == (PAID, PAID, 0) and not told.record.needs_attention
    for refund_id, amount in (("re_1", 700), ("of which nobody has heard", 300)):
        told.bounce(amount=amount, refund_id=refund_id, at=10.0)
    assert told.events[-1].facts["amount"] == 300 in [one["amount"] for one in told.events[-1].facts["refunds"]]


def test_a_dispute_is_open_until_it_is_closed() -> None:
    """An order with a disputed payment needs attention; a notice that comes late opens nothing again."""
    told = paid()
    for outcome in (IncidentOutcome.NOTED, IncidentOutcome.ALREADY_NOTED):
        assert told(Incident, EventKind.DISPUTED, "p", 1_000, refund_id="dp") == outcome
    told(Incident, EventKind.DISPUTED, "p", 100, refund_id="dp2")
    assert told.record.needs_attention and told.record.own_sums.disputed == 1_100
    assert told(Incident, EventKind.DISPUTE_WON, "p", refund_id="dp") == IncidentOutcome.NOTED
    assert told.record.needs_attention and told.record.own_sums.disputed == 100
    told(Incident, EventKind.DISPUTE_LOST, "p", message="a notice of a provider that names no dispute")
    assert told.events[-1].facts["amount"] == 100
    for ref in ("p", "another"):
        assert told(Incident, EventKind.DISPUTED, ref, 1_000, refund_id="dp") == IncidentOutcome.ALREADY_NOTED
    assert told.sums == (PAID, 100, 0) and not told.record.needs_attention


def test_a_dispute_that_takes_all_of_it_ends_the_order() -> None:
    """The bank takes a payment too many, a part of the one that counts, and the rest: only then the units are gone."""
    told, about = paid(), list[tuple[str, int | None, bool | None]]()
    told(Confirm, "second", PAID, "EUR")
    for ref, amount in (("second", PAID), ("p", 500), ("p", PAID - 500)):
        assert told.record.state is OrderState.CONFIRMED
        told(Incident, EventKind.DISPUTE_LOST, ref, amount, refund_id=f"dp of {amount}")
        facts = told.events[-1].facts
        about.append((facts["about"], facts["amount"], facts.get("restock")))
    assert about == [("payment", PAID, None), ("payment", 500, None), ("order", PAID - 500, False)]
    assert told.record.state is OrderState.REFUNDED and told.stock == 5


def test_no_more_is_owed_than_there_is() -> None:
    """Of a payment whose amount nobody has said a part is noted: less is not owed than nothing."""
    told = Told()
    told(Cancel)
    assert told(Confirm, "p") == ConfirmOutcome.REFUND_DUE
    assert told(Refund, False, "p", amount=250, message="a") == RefundOutcome.PARTLY_REFUNDED
    assert told.sums == (250, 250, 0) and told.record.own_sums.unknown
    told = paid()
    told(Refund, False, "p", amount=1_000, message="a", later=True)
    for amount in (501, 0):
        assert told(Refund, False, "p", amount=amount, later=True) == RefundOutcome.TOO_MUCH
    assert told(Refund, False, "p", amount=1) == RefundOutcome.PARTLY_REFUNDED
    for named in ({"name": told.owed.name, "later": True}, {"name": "another"}):  # it is owed already, or not at all
        assert told(Refund, False, **named) == RefundOutcome.NOTHING_DUE


def test_order_report_and_reconciliation_say_the_same() -> None:
    """The shop has confirmed without an amount, which is the price, and had a part given back."""
    told = Told()
    told(Confirm, "p")
    told(Refund, False, "p", amount=400, message="a")
    told(Refund, False, "p", amount=100, message="b", later=True)
    order = Order("default", told.record, None, "i", 1, "b", 100.0)
    report, books = Report(), Reconciliation()
    report.add(order)
    books.add_order(order)
    books.add_movement(Movement("p", MovementKind.CHARGE, PAID, "EUR", "ch"))
    books.add_movement(Movement("p", MovementKind.REFUND, 400, "EUR", "re"))
    assert not list(books.differences())
    expected = {"paid": PAID, "given_back": 400, "owed": 100, "kept": 1_100}
    for said in (of_order(order), report.told["total"]["money"]["EUR"], books.totals["EUR"].told):
        assert said.items() >= expected.items()


def test_the_payment_that_an_operator_means() -> None:
    """By its name or its refund's; else that of the order, or the one that is owed or wrong, if it is only one."""
    told = paid()
    assert meant(told.record, None) == told.record.counted == meant(told.record, "p")
    assert meant(told.record, "another") is None
    told(Confirm, "second", PAID, "EUR")
    second = told.record.payment("second")
    assert meant(told.record, None, told.owed.name) == second and meant(told.record, None, "another") is None
    assert meant(told.record, None) == told.record.counted
    cancelled = Told()
    assert meant(cancelled.record, None) is None
    cancelled(Confirm, "w", 300, "EUR")
    assert meant(cancelled.record, None) == cancelled.record.payment("w")
    cancelled(Cancel)
    assert meant(cancelled.record, None) == cancelled.record.payment("w")
    cancelled(Confirm, "late", PAID, "EUR")
    assert meant(cancelled.record, None) is None

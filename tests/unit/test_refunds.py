"""Money that goes back: in whole, in parts, some units; requested, failed, disputed."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.audit.ledger import Ledger
from app.cashier.cashier import names
from app.orders import (
    CancelOutcome,
    Event,
    EventKind,
    IncidentOutcome,
    OrderId,
    OrderState,
    Payment,
    Record,
    RefundOutcome,
    RequestOutcome,
    Snapshot,
    Units,
    decide,
)
from app.orders.commands import Cancel, Confirm, ConfirmOutcome, Incident, OrderCommand, Refund, RequestRefund
from app.stock import Level

SECRET = "a" * 32
ORDER = OrderId("default", "1-0", SECRET)
PRICE = 500


def paid(quantity: int = 3) -> Record:
    """An order that is paid."""
    own: dict[str, Any] = {"payment_ref": "p", "payments": (Payment("p", PRICE * quantity),), "events": 2}
    return Record("1-0", SECRET, OrderState.CONFIRMED, quantity, "ann", price=PRICE, currency="EUR", **own)


def held(quantity: int = 3) -> Record:
    """An order that waits for its payment."""
    times: dict[str, Any] = {"pay_by_ms": 1_000, "due_ms": 2_000}
    return Record("1-0", SECRET, OrderState.HELD, quantity, "ann", price=PRICE, currency="EUR", **times)


def began(record: Record) -> list[Event]:
    """The events that led to such an order."""
    quantity = record.quantity
    kinds: list[tuple[EventKind, Units, dict[str, Any]]] = [
        (EventKind.HELD, Units(-quantity, quantity, 0), {"pay_by": 1.0})
    ]
    if record.state is OrderState.CONFIRMED:
        kinds.append((EventKind.CONFIRMED, Units(0, -quantity, quantity), {"payment_ref": "p"}))
    return [
        Event(f"0-{n}", kind, ORDER, n, quantity, "ann", None, 1.0, "i", 1, "b", 0, units, facts)
        for n, (kind, units, facts) in enumerate(kinds, 1)
    ]


def audited(record: Record, events: list[Event]) -> Ledger:
    """The ledger behind some events of such an order: it finds nothing wrong."""
    ledger = Ledger()
    for event in (*began(record), *events):
        ledger.add(event)
    units = [sum(one) for one in zip(*(event.units for event in (*began(record), *events)), strict=True)]
    assert not ledger.compare(Level("default", 9 + units[0], units[2], 9, held=units[1])).violations
    return ledger


class Told:
    """An order, and what it is told: each decision, the events, and the numbers of the item."""

    def __init__(self, record: Record, stock: int = 5) -> None:
        self.record, self.stock, self.events, self.number = record, stock, list[Event](), 0

    def __call__(self, kind: type[Any], *about: Any, **more: Any) -> Any:
        return self.do(kind(*ORDER, *about, **more))

    def do(self, command: OrderCommand, at_ms: int = 1_500) -> Any:
        snapshot = Snapshot(self.stock, 0, records={"1-0": self.record}, now_ms=at_ms)
        decisions, changes = decide(snapshot, [command])
        for change in changes:
            self.number += 1
            self.stock += change.units.stock
            self.record = Record.from_text("1-0", change.after.to_text())
            own = (change.after.events, change.after.quantity, "ann", None, 1.0, "i", 1, "b", 0, change.units)
            self.events.append(Event(f"{self.number}-1", change.kind, ORDER, *own, change.facts))
        return decisions[0].outcome


def test_parts_add_up_and_end_the_order() -> None:
    """Parts of a payment are noted each, once by name; the one with which all is given back ends the order."""
    told = Told(paid())
    assert told(Refund, False, "p", amount=500, message="a") == RefundOutcome.PARTLY_REFUNDED
    assert told(Refund, False, "p", amount=500, message="a") == RefundOutcome.PARTLY_REFUNDED
    assert told.record.amount_refunded == 500 and len(told.events) == 1
    assert told(Refund, False, "p", amount=1_000, message="b") == RefundOutcome.REFUNDED
    assert told.record.state == OrderState.REFUNDED and told.record.amount_refunded == 1_500


def test_a_provider_that_tells_sums_is_heard_once() -> None:
    """A sum that the provider tells has what was noted here in it, in any order; whole is whole."""
    told = Told(paid())
    told(Refund, False, "p", amount=400, message="ours")
    assert told(Refund, False, "p", so_far=400) == RefundOutcome.PARTLY_REFUNDED
    told(Refund, False, "p", so_far=700)
    told(Refund, False, "p", so_far=600)  # a late one
    assert told.record.amount_refunded == 700
    assert [one.facts["amount"] for one in told.events] == [400, 300]
    assert told(Refund, False, "p", so_far=1_500) == RefundOutcome.REFUNDED


def test_some_units_go_back_with_their_price() -> None:
    """Two units of three are refunded, and sold again; the third one stays with its buyer."""
    told = Told(paid())
    assert told(Refund, True, units=2, message="a") == RefundOutcome.PARTLY_REFUNDED
    assert told(Refund, True, units=2, message="a") == RefundOutcome.PARTLY_REFUNDED
    assert (told.record.quantity, told.record.state, told.stock) == (1, OrderState.CONFIRMED, 7)
    assert told.record.amount_refunded == 2 * PRICE
    assert told(Refund, True, units=2, message="b") == RefundOutcome.TOO_MUCH
    assert told(Refund, True, units=1, message="c") == RefundOutcome.REFUNDED
    assert (told.record.quantity, told.record.state, told.stock) == (1, OrderState.REFUNDED, 8)


def test_some_units_of_a_hold_are_cancelled() -> None:
    """The others stay held until the same deadline, and their price is what is to be paid."""
    told = Told(held())
    assert told(Cancel, units=1, message="a") == CancelOutcome.PARTLY_CANCELLED
    assert told(Cancel, units=1, message="a") == CancelOutcome.PARTLY_CANCELLED
    assert (told.record.quantity, told.record.due_ms, told.stock) == (2, 2_000, 6)
    assert told(Cancel, units=3, message="b") == CancelOutcome.TOO_MUCH
    assert told(Confirm, "p", 2 * PRICE, "EUR") == ConfirmOutcome.CONFIRMED


def test_tax_and_discounts_are_no_wrong_amount() -> None:
    """What is compared with the price is what was paid for the units."""
    told = Told(held())
    assert told(Confirm, "p", 1_785, "EUR", subtotal=1_499) == ConfirmOutcome.AMOUNT_MISMATCH
    assert told(Confirm, "p", 1_785, "EUR", subtotal=1_500) == ConfirmOutcome.CONFIRMED
    assert told.record.amount == 1_785 and not told.record.needs_attention


def test_a_payment_in_time_that_was_told_late_says_so() -> None:
    """It takes a unit if there is one; else it is owed, with the moment at which it was made."""
    expired = held()._replace(state=OrderState.EXPIRED)
    told = Told(expired, stock=0)
    assert told.do(Confirm(*ORDER, "p", 1_500, paid_at=1.2), at_ms=9_000) == ConfirmOutcome.REFUND_DUE
    assert told.events[0].facts["in_time"] is True
    told = Told(expired, stock=0)
    told.do(Confirm(*ORDER, "p", 1_500, paid_at=2.5), at_ms=9_000)
    assert told.events[0].facts["in_time"] is False
    told = Told(expired)
    assert told.do(Confirm(*ORDER, "p", 1_500, paid_at=1.2), at_ms=9_000) == ConfirmOutcome.CONFIRMED


def test_a_refund_is_requested_once_and_may_fail() -> None:
    """The request is an event; a failed one waits for an operator, and the next request is another event."""
    told = Told(paid())
    assert told(RequestRefund, "p") == RequestOutcome.NOTHING_DUE
    assert told(Refund, False, later=True) == RefundOutcome.REFUNDED
    assert told.record.refunds_due == ("p",) and not told.record.refunded
    assert told(RequestRefund, "p") == RequestOutcome.REQUESTED
    assert told(RequestRefund, "p") == RequestOutcome.ALREADY_REQUESTED
    first = told.record.requested
    assert told(Incident, EventKind.REFUND_FAILED, "p", why="no money") == IncidentOutcome.NOTED
    assert told.record.failed == ("p",) and not told.record.requested and told.record.refunds_due == ("p",)
    assert told(RequestRefund, "p", by="ann") == RequestOutcome.REQUESTED
    assert told.record.requested != first
    assert told(Refund, False, "p") == RefundOutcome.REFUNDED
    assert told.record.refunded == ("p",) and not told.record.needs_attention and not told.record.requested


def test_a_refund_that_fails_later_is_owed_again() -> None:
    """The bank sends the money back to the shop: the payment is due once more, and stays so until somebody looks."""
    told = Told(paid())
    told(Refund, False, "p")
    assert told(Incident, EventKind.REFUND_FAILED, "p", message="re_1") == IncidentOutcome.NOTED
    assert told(Incident, EventKind.REFUND_FAILED, "p", message="re_1") == IncidentOutcome.ALREADY_NOTED
    assert told.record.refunds_due == ("p",) and told.record.needs_attention


def test_a_part_that_fails_when_all_was_given_back_is_the_payment() -> None:
    """All of it is due again: the event says so, and who follows the events finds nothing wrong."""
    told = Told(paid())
    told(Refund, False, "p", amount=3 * PRICE, message="P", later=True)
    told(Refund, False, "p", of_part="P")
    assert told.record.state is OrderState.REFUNDED
    assert told(Incident, EventKind.REFUND_FAILED, "p", name="P") == IncidentOutcome.NOTED
    assert (told.record.refunds_due, told.record.parts) == (("p",), ())
    assert "part" not in told.events[-1].facts
    assert told(Refund, False, "p") == RefundOutcome.REFUNDED


def test_parts_that_are_due() -> None:
    """A part waits to be given back under its name; no more is due than was paid, and its end is noted once."""
    told = Told(paid())
    assert told(Refund, False, "p", amount=1_000, message="a", later=True) == RefundOutcome.PARTLY_REFUNDED
    assert told(Refund, False, "p", amount=501, message="b", later=True) == RefundOutcome.TOO_MUCH
    assert told(RequestRefund, "a") == RequestOutcome.REQUESTED
    assert told.record.needs_attention
    told(Refund, False, "p", so_far=1_000)  # the provider's notice is quicker than its answer
    assert told.record.parts_due
    assert told(Refund, False, of_part="a") == RefundOutcome.PARTLY_REFUNDED
    assert told.record.amount_refunded == 1_000 and not told.record.needs_attention


def test_what_cost_nothing_is_not_given_back() -> None:
    """A payment of nothing that came late is noted as given back when it is its turn: no provider is asked."""
    told = Told(held()._replace(state=OrderState.CANCELLED))
    assert told(Confirm, "free", 0, "EUR") == ConfirmOutcome.REFUND_DUE
    assert told(RequestRefund, "free") == RequestOutcome.NOTHING_DUE
    assert told.record.refunded == ("free",) and not told.record.needs_attention


def test_a_dispute_is_open_until_it_is_closed() -> None:
    """An order with a disputed payment needs attention; a notice that comes late opens nothing again."""
    told = Told(paid())
    assert told(Incident, EventKind.DISPUTED, "p", 1_500, message="dp") == IncidentOutcome.NOTED
    assert told(Incident, EventKind.DISPUTED, "p", 1_500, message="dp") == IncidentOutcome.ALREADY_NOTED
    assert told.record.needs_attention and told.record.disputed == ("p",)
    told(Incident, EventKind.DISPUTED, "p", 100, message="dp2")
    assert told(Incident, EventKind.DISPUTE_WON, "p", message="dp") == IncidentOutcome.NOTED
    assert told.record.needs_attention and told.record.disputed == ("p",)  # the other one is still open
    told(Incident, EventKind.DISPUTE_LOST, "p", message="a notice of a provider that names no dispute")
    assert told(Incident, EventKind.DISPUTED, "p", 1_500, message="dp") == IncidentOutcome.ALREADY_NOTED
    assert not told.record.needs_attention


def test_a_sale_of_an_earlier_release_knows_no_parts() -> None:
    """What the release that began it could not read is refused; parts that were given back are told by its events."""
    steps: Any = (("held", 1, 0, "", {}), ("confirmed", 2, 0, "", {"payment_ref": "p", "amount": 1_500}))
    told = Told(paid()._replace(steps=steps))
    for command in (
        Refund(*ORDER, True, units=1, message="a"),
        Refund(*ORDER, True, later=True),
        RequestRefund(*ORDER, "p"),
        Incident(*ORDER, EventKind.DISPUTED, "p"),
    ):
        assert told.do(command) is None
    assert not told.events
    told(Refund, False, "p", so_far=400)
    told(Refund, False, "p", so_far=600)
    told(Refund, False, "p", amount=100, message="m")
    assert [one.facts["given_back"] for one in told.events] == [400, 600, 700]
    assert told(Refund, False, "p", so_far=1_500) == RefundOutcome.REFUNDED


NAMES = st.sampled_from(["a", "b", "c"])
AMOUNTS = st.sampled_from([1, 499, 500, 1_000, 1_500, 2_000])
ABOUT = st.sampled_from([None, "p", "q"])
COMMANDS = st.lists(
    st.one_of(
        st.builds(
            lambda ref, amount, units, name, restock, later: Refund(
                *ORDER, restock, ref, amount=amount, units=units, message=name, later=later
            ),
            ABOUT,
            st.none() | AMOUNTS,
            st.none() | st.integers(1, 4),
            NAMES,
            st.booleans(),
            st.booleans(),
        ),
        st.builds(lambda ref, total: Refund(*ORDER, False, ref, so_far=total), st.sampled_from(["p", "q"]), AMOUNTS),
        st.builds(lambda name: RequestRefund(*ORDER, name), st.sampled_from(["p", "q", "a", "b"])),
        st.builds(lambda ref: Confirm(*ORDER, ref, 1_500, "EUR"), st.sampled_from(["p", "q"])),
        st.builds(
            lambda kind, ref, name: Incident(*ORDER, kind, ref, message=name),
            st.sampled_from([EventKind.DISPUTED, EventKind.DISPUTE_WON, EventKind.REFUND_FAILED]),
            st.sampled_from(["p", "q"]),
            st.none() | NAMES,
        ),
        st.builds(lambda units, name: Cancel(*ORDER, units=units, message=name), st.integers(1, 4), NAMES),
    ),
    max_size=12,
)


@given(commands=COMMANDS, waits=st.booleans())
def test_no_unit_and_no_payment_is_in_two_places(commands: list[OrderCommand], waits: bool) -> None:
    """Whatever is told in whatever order: units and money are where the events say, once."""
    told = Told(held() if waits else paid())
    there = told.stock
    for command in commands:
        before = told.record
        told.do(command)
        record = told.record
        assert len({*record.refunds_due, *record.refunded}) == len(record.refunds_due) + len(record.refunded)
        if record.state is OrderState.CONFIRMED:
            assert record.payment_ref not in record.refunded
        assert record.quantity > 0
        assert record.events - before.events <= 3
        assert all(one.amount is None or one.amount > 0 for one in record.requested)
        assert {one.name for one in record.requested} <= {*record.refunds_due, *record.parts_due}
        for payment in record.payments:
            if payment.amount is not None and payment.ref in record.refunded:
                assert not [one for one in record.parts if one.ref == payment.ref]
    ledger = audited(held() if waits else paid(), told.events)
    assert there + sum(one.units.stock for one in told.events) == told.stock
    record = told.record
    due = {*record.refunds_due, *record.parts_due}
    assert {name for _, name in ledger.payments.owed} >= due


class Bank:
    """A provider: what it has given back of the payment, and the notices that it has still to send."""

    def __init__(self, paid: int) -> None:
        self.paid = paid
        self.made: dict[str, list[Any]] = {}  # by key: amount, whether it lasts
        self.notices: list[tuple[str, int, str, float]] = []
        self.now = 0.0

    @property
    def back(self) -> int:
        return sum(amount for amount, lasts in self.made.values() if lasts)

    def give_back(self, key: str, amount: int | None) -> bool:
        left = self.paid - self.back
        amount = left if amount is None else amount
        if not 0 < amount <= left:
            return False
        self.made[key] = [amount, True]
        self.tell("so far", self.back, key)
        return True

    def lose(self, at: int) -> None:
        """One of the refunds comes back from the payer's bank."""
        lasting = [key for key, (_, lasts) in self.made.items() if lasts]
        if lasting:
            key = lasting[at % len(lasting)]
            self.made[key][1] = False
            self.tell("failed", self.made[key][0], key)

    def tell(self, what: str, amount: int, key: str) -> None:
        self.now += 1
        self.notices.append((what, amount, key, self.now))


def hear(told: Told, bank: Bank, at: int, again: bool) -> None:
    """One of the notices comes, perhaps not for the last time."""
    if not bank.notices:
        return
    notice = bank.notices[at % len(bank.notices)]
    what, amount, key, written_at = notice
    if not again:
        bank.notices.remove(notice)
    if what == "failed":
        told(Incident, EventKind.REFUND_FAILED, "p", amount, "EUR", f"{key} failed", "returned", at=written_at)
        return
    said: dict[str, Any] = {"so_far": amount, "part": True} if amount < bank.paid else {}
    told(Refund, False, "p", message=f"{key} {amount}", notice=True, at=written_at, **said)


def work(told: Told, bank: Bank, loses_answer: bool) -> None:
    """The cashier does what is due, if no answer is lost."""
    for name in names(told.record):
        if name in told.record.failed:
            continue
        told(RequestRefund, name)
        request = next((one for one in told.record.requested if one.name == name), None)
        if request is None:
            continue
        key = f"{request.event}"
        made = key in bank.made or bank.give_back(key, request.amount)
        if loses_answer:
            return
        if made and bank.made[key][1]:
            told(Refund, False, "p", **({} if name == "p" else {"of_part": name}))
        else:
            why: dict[str, Any] = {"request": request.event, "by": "cashier", "why": "no"}
            told(Incident, EventKind.REFUND_FAILED, "p", name=None if name == "p" else name, **why)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("later"), AMOUNTS | st.none(), NAMES),
        st.tuples(st.just("units"), st.integers(1, 3), NAMES),
        st.tuples(st.just("work"), st.booleans(), st.none()),
        st.tuples(st.just("hear"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("lose"), st.integers(0, 9), st.none()),
        st.tuples(st.just("dashboard"), AMOUNTS | st.none(), NAMES),
        st.tuples(st.just("retry"), st.none(), st.none()),
    ),
    max_size=14,
)


@given(acts=ACTS)
def test_the_provider_and_the_books_agree_or_somebody_is_asked(acts: list[Any]) -> None:  # noqa: PLR0912
    """Whatever is given back, here or there, fails later, is told late, twice or in another order."""
    told, bank = Told(paid()), Bank(3 * PRICE)
    for what, one, two in acts:
        match what:
            case "later":
                part = {} if one is None else {"amount": one, "message": f"later {two}", "payment_ref": "p"}
                told(Refund, True, later=True, **part)
            case "units":
                told(Refund, True, units=one, message=f"units {two}", later=True)
            case "work":
                work(told, bank, loses_answer=one)
            case "hear":
                hear(told, bank, one, again=two)
            case "lose":
                bank.lose(one)
            case "dashboard":
                bank.give_back(f"dashboard {two} {len(bank.made)}", one)
            case "retry":
                for name in told.record.failed:
                    told(RequestRefund, name, by="ann")
    for _ in range(len(bank.notices)):
        hear(told, bank, 0, again=False)
    for _ in range(4):
        work(told, bank, loses_answer=False)
        for _ in range(len(bank.notices)):
            hear(told, bank, 0, again=False)
    assert bank.back <= bank.paid
    record = told.record
    assert record.needs_attention or record.amount_refunded == bank.back, (record, bank.made)
    if all(one.kind is not EventKind.REFUND_FAILED for one in told.events):
        assert not record.needs_attention
    if not record.needs_attention and bank.back == bank.paid:
        assert record.state is OrderState.REFUNDED
    ledger = audited(paid(), told.events)
    assert bool(ledger.payments.owed) == bool(record.refunds_due or record.parts_due)

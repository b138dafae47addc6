"""A payment of several orders: each has its share of what the provider reports, and no cent is in two of them."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.cashier.cashier import BY
from app.orders import (
    Confirm,
    EventKind,
    GivenBack,
    Incident,
    Order,
    OrderState,
    Record,
    Refund,
    RequestRefund,
    Snapshot,
    decide,
)
from app.payments import Kind, Report
from app.payments.shares import commands
from lab.model.bank import IDS, NOTICES, TOTALS, ModelBank

KINDS = {"refunded": Kind.REFUNDED, "total": Kind.REFUNDED, "failed": Kind.REFUND_FAILED}


class Joint:
    """A chair and a lamp that were paid together, 5.00 and 10.00 EUR, and the provider."""

    def __init__(self, style: str) -> None:
        self.bank = ModelBank(style)
        self.bank.charge("p", 1_500)
        self.orders: dict[str, Order] = {}
        for sku, price in (("chair", 500), ("lamp", 1_000)):
            own: dict[str, Any] = {"price": price, "currency": "EUR", "pay_by_ms": 1_000, "due_ms": 2_000}
            record = Record("1-0", "a" * 32, OrderState.HELD, 1, "ann", **own)
            self.orders[sku] = Order(sku, record, None, "i", 1, "b", 1.0)
            self.tell(sku, Confirm(*record.id_of(sku), "p", price, "EUR"))

    def tell(self, sku: str, command: Any) -> None:
        order = self.orders[sku]
        decided = decide(Snapshot(9, 0, now_ms=1_500, records={"1-0": order.record}), [command])
        for change in decided.changes:
            self.orders[sku] = replace(self.orders[sku], record=change.after)

    def owe(self, sku: str, amount: int | None) -> None:
        more: dict[str, Any] = (
            {} if amount is None else {"message": f"{sku} {amount}", "amount": amount, "payment_ref": "p"}
        )
        self.tell(sku, Refund(*self.orders[sku].id, False, later=True, **more))

    def ask(self, sku: str, *, told: bool) -> None:
        """The cashier asks for the first refund of an order that is due."""
        for payment, one in list(self.orders[sku].record.refunds)[:1]:
            self.tell(sku, RequestRefund(*self.orders[sku].id, one.name, BY))
            made = self.bank.refund("p", one.amount, one.name)
            if made is None:
                no: dict[str, Any] = {"name": one.name, "why": "no", "by": BY}
                self.tell(sku, Incident(*self.orders[sku].id, EventKind.REFUND_FAILED, "p", **no))
            elif told:
                own = made.id if self.bank.style == IDS else None
                self.tell(
                    sku, GivenBack(*self.orders[sku].id, payment.ref, BY, made.amount, refund_id=own, name=one.name)
                )

    def hear(self, at: int, *, again: bool) -> None:
        if not self.bank.notices:
            return
        one = self.bank.notices[at % len(self.bank.notices)]
        if not again:
            self.bank.notices.remove(one)
        own = one.id if self.bank.style == IDS and one.id else None
        about: dict[str, Any] = {"so_far": one.amount} if one.what == "total" else {"amount": one.amount}
        about |= {"refund_id": own, "refund_name": one.key or None, "at": one.at, "currency": one.currency}
        report = Report(kind=KINDS[one.what], payment_ref="p", message=f"{one.what} {one.id}", **about)
        for command in commands(list(self.orders.values()), report):
            self.tell(command.sku, command)

    @property
    def given_back(self) -> int:
        return sum(one.record.own_sums.given_back for one in self.orders.values())


SKUS = st.sampled_from(["chair", "lamp"])
AMOUNTS = st.sampled_from([100, 300, 500, 1_000, 1_500])
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("owe"), SKUS, AMOUNTS | st.none()),
        st.tuples(st.just("ask"), SKUS),
        st.tuples(st.just("dashboard"), AMOUNTS | st.none()),
        st.tuples(st.just("hear"), st.integers(0, 9), st.booleans()),
    ),
    max_size=10,
)


@settings(derandomize=True, max_examples=100)
@given(acts=ACTS, style=st.sampled_from([IDS, NOTICES, TOTALS]))
def test_the_orders_have_what_the_provider_has(acts: list[Any], style: str) -> None:
    """Whatever is given back of a joint payment, and in whichever order it is told, once or twice."""
    joint = Joint(style)
    for act, *about in acts:
        match act:
            case "owe":
                joint.owe(*about)
            case "ask":
                joint.ask(about[0], told=True)
            case "dashboard":
                joint.bank.refund("p", *about)
            case _:
                joint.hear(about[0], again=about[1])
    for sku in joint.orders:
        joint.ask(sku, told=True)  # an answer that was lost is had once more
        joint.ask(sku, told=True)
    while joint.bank.notices:
        joint.hear(0, again=False)
    # A total that came while a refund was asked may be of that one, which then fails: it is seen, and waits.
    failed = style == TOTALS and any(next(one.record.refunds, None) for one in joint.orders.values())
    assert failed or joint.given_back == joint.bank.back("p")


def test_a_refund_is_of_the_order_that_asked_for_it() -> None:
    """Both are owed 5.00: each refund is that of its name, also where totals are told beside it, and before it."""
    for turn in (0, 1):
        joint = Joint(IDS)
        for sku in joint.orders:
            joint.owe(sku, 500)
        joint.ask("lamp", told=False)
        for _ in range(2):
            joint.hear(turn, again=True)
        while joint.bank.notices:
            joint.hear(turn, again=False)
        assert joint.given_back == 500


def test_a_failure_is_of_the_order_whose_refund_it_was() -> None:
    """By its id it is found in its order alone, and owed there."""
    joint = Joint(IDS)
    for sku in ("lamp", "chair"):
        joint.owe(sku, 500)
        joint.ask(sku, told=False)
    joint.bank.bounce(0)
    while joint.bank.notices:
        joint.hear(0, again=False)
    assert [one.record.own_sums.owed for one in joint.orders.values()] == [0, 500]


def told(joint: Joint, kind: Kind, **about: Any) -> list[int]:
    """What is given back of each order after a report."""
    report = Report(kind=kind, payment_ref="p", currency="EUR", **{"message": "m", **about})
    for command in commands(list(joint.orders.values()), report):
        joint.tell(command.sku, command)
    return [one.record.own_sums.given_back for one in joint.orders.values()]


def test_a_notice_without_an_id_is_heard_once() -> None:
    """Told again after another order of the payment owes just so much, it is still of the first one."""
    joint = Joint(NOTICES)
    assert told(joint, Kind.REFUNDED, amount=100) == [100, 0]
    joint.owe("lamp", 100)
    assert told(joint, Kind.REFUNDED, amount=100) == [100, 0]
    assert told(joint, Kind.REFUNDED, amount=100, message="another") == [100, 100]
    assert told(joint, Kind.REFUNDED, amount=200) == [300, 100]  # whatever a provider calls its messages


def test_what_came_back_is_of_the_orders_that_had_it() -> None:
    """A failure that names no refund is of what was given back, and not of what an order still owes."""
    joint = Joint(NOTICES)
    assert told(joint, Kind.REFUNDED, amount=500) == [500, 0]
    joint.owe("lamp", 500)
    assert told(joint, Kind.REFUND_FAILED, amount=500, message="f") == [0, 0]
    assert [one.record.own_sums.owed for one in joint.orders.values()] == [500, 500]


def test_a_refund_is_first_what_was_told_in_a_sum() -> None:
    """A total was shared; the refund with an id that is all of it has its part in each order."""
    joint = Joint(IDS)
    assert told(joint, Kind.REFUNDED, so_far=700) == [500, 200]
    assert told(joint, Kind.REFUNDED, amount=700, refund_id="re_1") == [500, 200]
    assert told(joint, Kind.REFUNDED, amount=300, refund_id="re_2") == [500, 500]


def test_an_order_that_is_owed_something_comes_first() -> None:
    """Also by another amount than what is given back."""
    joint = Joint(NOTICES)
    joint.owe("lamp", 300)
    assert told(joint, Kind.REFUNDED, amount=500) == [0, 500]


def test_what_the_bank_took_is_in_no_sum_of_refunds() -> None:
    """A sum so far is beside a dispute that was lost."""
    joint = Joint(TOTALS)
    assert told(joint, Kind.DISPUTE_LOST, amount=300, refund_id="du_1") == [0, 300]
    assert told(joint, Kind.REFUNDED, so_far=200) == [200, 300]

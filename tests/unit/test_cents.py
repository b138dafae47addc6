"""The verdict on a provider's books: silent about a right end, and each cent that is elsewhere is told."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.orders import Order, OrderState, Payment, PaymentRefund, Record, RefundState
from app.orders.account import PaymentState
from lab.bank import Bank
from lab.cents.books import _added_up, _books, _verdict
from lab.cents.payers import CURRENCY, PRICE, SKU, Fate
from lab.torture.history import Entry

SECRET, PAID = "s" * 32, 3 * PRICE
GIVEN = PaymentRefund("back", RefundState.GIVEN, PAID, id="re_1")


@dataclass
class End:
    """An order of three units that is paid; a second payment was given back."""

    bank: Bank = field(default_factory=Bank)
    fates: list[Fate] = field(default_factory=lambda: [Fate("pays twice", f"{SKU}~1-0~{SECRET}", ("p", "q"), PAID)])
    changes: dict[str, int] = field(default_factory=lambda: {"paid": 2 * PAID, "given_back": PAID, "owed": 0})
    payments: tuple[Payment, ...] = (
        Payment("p", PAID, CURRENCY),
        Payment("q", PAID, CURRENCY, PaymentState.SECOND, (GIVEN,)),
    )
    state: OrderState = OrderState.CONFIRMED
    orders: int = 1

    def __post_init__(self) -> None:
        self.bank.take("p", PAID)
        self.bank.take("q", PAID)
        self.refunded("q", PAID, "re_1")

    def refunded(self, ref: str, amount: int, name: str = "re_2", status: str = "succeeded") -> None:
        self.bank.payments[ref].refunds.append({"id": name, "amount": amount, "status": status})

    def fate(self, **changes: Any) -> None:
        self.fates = [replace(self.fates[0], **changes)]

    def second(self, **changes: Any) -> None:
        self.payments = (self.payments[0], self.payments[1]._replace(**changes))

    def wrong(self) -> list[str]:
        record = Record("1-0", SECRET, self.state, 3, "ann", price=PRICE, currency=CURRENCY, payments=self.payments)
        orders = [Order(SKU, record, None, "one", 1, "batch", 1.0)] * self.orders
        told = [Entry(SKU, "1-0", "held", "", 1, 3, "ann", None, 1, "b", 0, 0, 0, 0)]
        told.append(replace(told[0], facts={"changes": [{"currency": CURRENCY, **self.changes}]}))
        books = _books(self.bank, orders)
        return [*_verdict(self.bank, self.fates, orders), *map(str, books.differences()), *_added_up(books, told)]


@pytest.mark.parametrize(
    "change",
    [
        lambda end: None,
        lambda end: end.refunded("p", PAID, status="failed"),
        lambda end: end.fate(either=True),
        lambda end: end.fate(way="pays wrongly", net=1),  # and then rightly
    ],
)
def test_a_right_end_is_let_pass(change: Callable[[End], object]) -> None:
    end = End()
    change(end)
    assert end.wrong() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda end: end.fate(net=0), "1500 cents of order lamp~1-0 are kept, and 0 should be"),
        (lambda end: setattr(end, "orders", 0), "is gone"),
        (lambda end: (end.fate(either=True), setattr(end, "state", OrderState.EXPIRED)), "and 0 should be"),
        (lambda end: end.refunded("q", 1), "q was given back 1501 of 1500"),
        (lambda end: end.second(refunds=(GIVEN._replace(state=RefundState.FAILED),)), "still needs an operator"),
        (lambda end: end.bank.take("r", 1), "no order has it"),
        (lambda end: end.changes.update(given_back=0), "the events add up to"),
        (lambda end: end.changes.update(owed=1), "the events add up to"),
        (lambda end: end.changes.update(disputed=1), "the events add up to"),
    ],
)
def test_each_cent_that_is_elsewhere_is_told(change: Callable[[End], object], said: str) -> None:
    end = End()
    change(end)
    assert any(said in one for one in end.wrong()), end.wrong()

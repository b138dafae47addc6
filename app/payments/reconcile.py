"""The provider's list of payments beside the orders: each charge and each refund once, and each difference a line."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from app import money
from app.orders import Order


class MovementKind(StrEnum):
    """What moved money: a charge brought it, the others took it back."""

    CHARGE = "charge"
    REFUND = "refund"
    DISPUTE = "dispute"


class Movement(NamedTuple):
    """A line of the provider's list. `amount`: in the minor unit of `currency`; less than 0 for what was reversed.

    `payment_ref`: the payment's name; `name`: the line's own; `at`: in seconds since 1970, None if it isn't said.
    """

    payment_ref: str
    kind: MovementKind
    amount: int
    currency: str
    name: str = ""
    at: float | None = None


class Cause(StrEnum):
    """The cause of a difference."""

    NO_ORDER = "no_order"  # paid, and no order has the payment
    NO_PAYMENT = "no_payment"  # an order has a payment that the provider doesn't have
    AMOUNT = "amount"  # other amounts were paid there and here
    CURRENCY = "currency"
    TWICE = "twice"  # charged more than once under one name
    GIVEN_BACK_THERE = "given_back_there"  # and not here
    GIVEN_BACK_HERE = "given_back_here"  # and not there


class Difference(NamedTuple):
    """A difference. Amounts are in the minor unit of `currency`; `orders`: their numbers, without secrets."""

    cause: Cause
    payment_ref: str
    orders: tuple[str, ...]
    there: int
    here: int
    currency: str | None

    def __str__(self) -> str:
        there, here = money.written(self.there, self.currency), money.written(self.here, self.currency)
        of = f" of {', '.join(self.orders)}" if self.orders else ""
        return f"payment {self.payment_ref}{of}: {_SAID[self.cause].format(there=there, here=here)}"


_SAID = {
    Cause.NO_ORDER: "{there} were paid, and no order has it",
    Cause.NO_PAYMENT: "{here} were paid by the order, and the provider has no such payment",
    Cause.AMOUNT: "the provider has {there}, and the order {here}",
    Cause.CURRENCY: "the provider has another currency than the order",
    Cause.TWICE: "it was charged more than once: {there} in all, and {here} by the order",
    Cause.GIVEN_BACK_THERE: "the provider has given back {there}, and {here} is noted here",
    Cause.GIVEN_BACK_HERE: "{here} is noted as given back, and the provider has given back {there}",
}


@dataclass(slots=True)
class Totals:
    """Sums in one currency, in its minor unit: at the provider, and here; `owed`: what is still to be given back."""

    charged: int = 0
    refunded: int = 0
    paid: int = 0
    given_back: int = 0
    owed: int = 0


@dataclass(slots=True)
class _There:
    charged: int = 0
    back: int = 0
    charges: set[str] = field(default_factory=set)
    currencies: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Here:
    orders: list[str] = field(default_factory=list)
    paid: int = 0
    back: int = 0
    owed: int = 0
    known: bool = True  # the amount of each was told
    whole: bool = False  # all of it was given back
    since: float = 0.0  # when the oldest of these orders began
    currencies: set[str | None] = field(default_factory=set)


class _Sums(NamedTuple):
    """A payment of an order, in the minor unit of its currency. `paid`: None if nobody has said it."""

    ref: str
    currency: str | None
    paid: int | None
    back: int
    owed: int


def _sums(order: Order) -> Iterator[_Sums]:
    record = order.record
    payments = {one.ref: (one.amount, one.currency) for one in record.payments}
    if record.payment_ref is not None:
        payments.setdefault(record.payment_ref, (None, None))
    for ref, (told, foreign) in payments.items():
        paid = record.to_pay if told is None and ref == record.payment_ref else told
        back = record.back_of(ref, foreign).amount
        parts = sum(one.amount for one in record.parts if (one.ref, one.currency) == (ref, foreign))
        if ref in record.refunded:  # of which a part may have come back, and be due again
            back = (paid or 0) - parts
        owed = (paid or 0) - back if ref in record.refunds_due else parts
        yield _Sums(ref, foreign or record.currency, paid, back, owed)


def add_to(totals: dict[str, Totals], order: Order) -> None:
    """Add the payments of an order to the sums of their currencies; "" is that of none."""
    for one in _sums(order):
        total = totals.setdefault(one.currency or "", Totals())
        total.paid += one.paid or 0
        total.given_back += one.back
        total.owed += one.owed


class Reconciliation:
    """Takes the provider's lines and the orders, in any order; then tells the differences. Some 500 bytes a payment.

    `since`: payments of orders that began before it (seconds since 1970) may be missing in the provider's list.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._since = since
        self._there: dict[str, _There] = {}
        self._here: dict[str, _Here] = {}
        self.totals: dict[str, Totals] = {}

    def add_movement(self, line: Movement) -> None:
        """Add a line of the provider's."""
        found = self._there.setdefault(line.payment_ref, _There())
        found.currencies.add(line.currency)
        total = self.totals.setdefault(line.currency, Totals())
        if line.kind is MovementKind.CHARGE:
            found.charged += line.amount
            found.charges.add(line.name)
            total.charged += line.amount
        else:
            found.back += line.amount
            total.refunded += line.amount

    def add_order(self, order: Order) -> None:
        """Add an order, with all its payments."""
        add_to(self.totals, order)
        for one in _sums(order):
            found = self._here.setdefault(one.ref, _Here(since=order.sold_at))
            found.orders.append(order.id.name)
            found.currencies.add(one.currency)
            found.known &= one.paid is not None
            found.whole |= one.ref in order.record.refunded
            found.since = min(found.since, order.sold_at)
            found.paid += one.paid or 0
            found.back += one.back
            found.owed += one.owed

    def differences(self) -> Iterator[Difference]:
        """Yield each difference once, by the payment's name."""
        for ref in sorted(self._there.keys() | self._here.keys()):
            found = self._compare(self._there.get(ref), self._here.get(ref))
            if found is not None:
                cause, there, here, currency = found
                orders = self._here[ref].orders if ref in self._here else ()
                yield Difference(cause, ref, tuple(orders), there, here, currency)

    def _compare(  # noqa: PLR0911 - a cause each
        self, there: _There | None, here: _Here | None
    ) -> tuple[Cause, int, int, str | None] | None:
        if here is None:
            assert there is not None  # noqa: S101 - one of both is there
            left = there.charged - there.back
            return (Cause.NO_ORDER, left, 0, min(there.currencies)) if left else None
        currency: str | None = min((one for one in here.currencies if one), default=None)
        if there is None:
            missing = here.since >= self._since and (here.paid or not here.known)
            return (Cause.NO_PAYMENT, 0, here.paid, currency) if missing else None
        if not there.charges and here.since < self._since:
            return None  # its charge is older than the list
        if any(one not in there.currencies for one in here.currencies if one):
            return Cause.CURRENCY, there.charged, here.paid, currency
        currency = currency or next(iter(there.currencies))
        if len(there.charges) > 1:  # of two charges under one name one may have been given back there
            twice = there.charged - there.back != here.paid - here.back
            return (Cause.TWICE, there.charged, here.paid, currency) if twice else None
        if here.known and there.charged != here.paid:
            return Cause.AMOUNT, there.charged, here.paid, currency
        back = there.charged if here.whole and not here.known else here.back
        if there.back > back:
            return Cause.GIVEN_BACK_THERE, there.back, back, currency
        if there.back < back:
            return Cause.GIVEN_BACK_HERE, there.back, back, currency
        return None


def reconcile(movements: Iterable[Movement], orders: Iterable[Order], since: float = 0.0) -> list[Difference]:
    """The differences between a provider's list and some orders."""
    found = Reconciliation(since)
    for line in movements:
        found.add_movement(line)
    for order in orders:
        found.add_order(order)
    return list(found.differences())

"""The provider's list of payments beside the orders: each charge and each refund once, and each difference a line."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from app import money
from app.orders import Order, Sums
from app.orders.account import add_up


class MovementKind(StrEnum):
    """The kind of a movement of money: a charge brought money, the others took it back."""

    CHARGE = "charge"
    REFUND = "refund"
    DISPUTE = "dispute"


class Movement(NamedTuple):
    """A line of the provider's list."""

    payment_ref: str
    kind: MovementKind
    amount: int  # in the minor unit of `currency`; below 0: reversed
    currency: str
    name: str = ""  # the line's own
    at: float | None = None  # in seconds since 1970; None: not in the list


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
    """A payment on which the provider's list and the orders differ."""

    cause: Cause
    payment_ref: str
    orders: tuple[str, ...]  # their numbers, without secrets
    there: int  # at the provider, in the minor unit of `currency`
    here: int  # in our orders
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


class Totals(NamedTuple):
    """Sums in one currency, in its minor unit: at the provider, and here."""

    charged: int
    refunded: int
    here: Sums

    @property
    def told(self) -> dict[str, int]:
        """The sums for programs."""
        here = {name: getattr(self.here, name) for name in ("paid", "given_back", "owed", "kept")}
        return {"charged": self.charged, "refunded": self.refunded, **here}


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
    back: int = 0  # by the provider
    known: bool = True  # the amount of each payment was reported
    whole: bool = False  # all of it was given back
    since: float = 0.0  # when the oldest of these orders began
    currencies: set[str | None] = field(default_factory=set)


class Reconciliation:
    """Takes the provider's lines and the orders, in any order; then tells the differences. Some 500 bytes a payment.

    `since`: payments of orders that began before it (seconds since 1970) may be missing in the provider's list.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._since = since
        self._there: dict[str, _There] = {}
        self._here: dict[str, _Here] = {}
        self._moved: dict[str, list[int]] = {}  # by currency, the sums charged and given back
        self.sums: dict[str, Sums] = {}  # of the orders, by currency

    def add_movement(self, line: Movement) -> None:
        """Add a line of the provider's."""
        found = self._there.setdefault(line.payment_ref, _There())
        found.currencies.add(line.currency)
        moved = self._moved.setdefault(line.currency, [0, 0])
        if line.kind is MovementKind.CHARGE:
            found.charged += line.amount
            found.charges.add(line.name)
            moved[0] += line.amount
        else:
            found.back += line.amount
            moved[1] += line.amount

    def add_order(self, order: Order) -> None:
        """Add an order, with all its payments."""
        add_up(self.sums, order.record.sums.values())
        for one in order.record.payments:
            found = self._here.setdefault(one.ref, _Here(since=order.sold_at))
            found.orders.append(order.id.name)
            found.currencies.add(one.currency)
            found.known &= one.amount is not None
            found.whole |= one.given_whole
            found.since = min(found.since, order.sold_at)
            found.paid += one.amount or 0
            found.back += one.given_back - one.given_elsewhere

    @property
    def totals(self) -> dict[str, Totals]:
        """The sums of each currency."""
        found: dict[str, Totals] = {}
        for currency in sorted(self._moved.keys() | self.sums.keys()):
            charged, refunded = self._moved.get(currency, (0, 0))
            found[currency] = Totals(charged, refunded, self.sums.get(currency, Sums(None)))
        return found

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

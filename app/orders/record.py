"""Orders and their life: how an order stands, and the events that led to it. See `app.orders` for a picture."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from app.orders.account import Dispute, DisputeState, Payment, PaymentRefund, PaymentState, RefundState, Sums, Way, sums
from app.orders.facts import NO_FACTS, Facts, known
from app.orders.id import OrderId

to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # `json.dumps` makes one a call
ERASED: Final = "erased"  # stands for an erased name


class OrderState(StrEnum):
    """The state of an order."""

    SOLD = "sold"  # at once, without a hold
    WAITING = "waiting"  # in line for units that others hold
    HELD = "held"  # for a buyer who has not paid yet
    CONFIRMED = "confirmed"  # paid
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"


OPEN: Final = (OrderState.WAITING, OrderState.HELD)
"""The states of a buyer's order that has units, or a place in line, for a time."""


class EventKind(StrEnum):
    """The kind of an event in an order's life."""

    SOLD = "sold"
    WAITING = "waiting"  # has a place in line
    OFFERED = "offered"  # whose place has come: units that came back are held from now on
    HELD = "held"
    EXTENDED = "extended"
    CONFIRMED = "confirmed"
    AMOUNT_MISMATCH = "amount_mismatch"  # a payment of another amount than the price; an operator has to look
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUND_DUE = "refund_due"  # a payment that has to be given back
    REFUND_REQUESTED = "refund_requested"  # the provider is about to be asked to give it back
    REFUND_FAILED = "refund_failed"  # a refund has failed, or came back; an operator has to look
    REFUND_NAMED = "refund_named"  # the provider has named a known refund, and no sum changes
    REFUNDED = "refunded"
    DISPUTED = "disputed"  # the buyer wants the money back from their bank
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"


class Units(NamedTuple):
    """The units that an event adds to left, held and sold ones; below 0: takes away."""

    stock: int = 0
    held: int = 0
    lucky: int = 0


NO_UNITS: Final = Units()


class Notice(NamedTuple):
    """A request or a notice that its order remembers for good, by its name, so that it counts once."""

    name: str
    outcome: str


class Line(NamedTuple):
    """A line of an order beside its own item: units of another one, which come, are paid and go with the order.

    They stand in the journal of their item as an order of its own, which is `part_of` this one and has no money.
    """

    sku: str
    quantity: int
    price: int | None = None  # of a unit, in the order's currency
    number: str = ""  # in the journal of its item; "" until that is written


class Record(NamedTuple):
    """How an order stands. The store keeps it as a text (`to_text`), beside the journal with its events.

    `None`, 0, "" and () say that there is no such thing; moments are by the store's clock, in ms since 1970.
    """

    number: str  # the journal's entry with which it began; "" until that is written
    secret: str
    state: OrderState
    quantity: int
    buyer: str | None = None
    ref: str | None = None  # the shop's own number
    pay_by_ms: int = 0  # the deadline that the buyer sees
    due_ms: int = 0  # when its units go back: the grace after that deadline
    extended: bool = False  # the second window has begun
    price: int | None = None  # the price of a unit, in the minor unit of `currency`
    currency: str | None = None  # ISO 4217
    payments: tuple[Payment, ...] = ()  # all announced payments, with their refunds
    notices: tuple[Notice, ...] = ()
    request_id: str | None = None  # the id of the request that began it
    traceparent: str | None = None  # likewise (W3C)
    events: int = 1  # how many it has had
    proven: bool = False  # the buyer was proven when it began, so that it may be shown to them again
    waited: bool = False  # its units were offered to it in line
    lines: tuple[Line, ...] = ()  # its other items
    part_of: str = ""  # the name of the order of which this is a line
    unknown: Mapping[str, Any] = {}  # fields of a later release, which are kept

    @classmethod
    def sold(cls, number: str, secret: str, quantity: int, buyer: str | None) -> "Record":
        """The record of an order that was sold at once, of which the store keeps none."""
        return cls(number, secret, OrderState.SOLD, quantity, buyer)

    def id_of(self, sku: str) -> OrderId:
        """The order's id, as an order of this item."""
        return OrderId(sku, self.number, self.secret)

    @property
    def facts(self) -> Facts:
        """The facts of the event by which the order began."""
        own = known({"ref": self.ref, "price": self.price, "currency": self.currency})
        if self.pay_by is not None:
            own |= {"pay_by": self.pay_by, "goes_back_at": self.due_ms / 1000}
        return own | self.origin

    @property
    def origin(self) -> Facts:
        """The facts in each event: about the request that began the order, and about its lines."""
        own: Facts = {"request_id": self.request_id, "traceparent": self.traceparent}
        own |= {"part_of": self.part_of or None, "lines": [one._asdict() for one in self.lines] or None}
        return known(own)

    def units_by(self, sku: str) -> dict[str, int]:
        """The units by item; `sku`: the one at which the order stands."""
        return {sku: self.quantity, **{one.sku: one.quantity for one in self.lines}}

    def line(self, sku: str | None) -> Line | None:
        """A line by its item; None: the order's own."""
        own = Line("", self.quantity, self.price)
        return own if sku is None else next((one for one in self.lines if one.sku == sku), None)

    @property
    def units(self) -> Units:
        """The units that it moved as it began."""
        if self.state is OrderState.WAITING:
            return NO_UNITS
        if self.state is OrderState.HELD:
            return Units(stock=-self.quantity, held=self.quantity)
        return Units(stock=-self.quantity, lucky=self.quantity)

    @property
    def pay_by(self) -> float | None:
        """The deadline that the buyer sees, in seconds since 1970."""
        return self.pay_by_ms / 1000 or None

    @property
    def to_pay(self) -> int | None:
        """The amount of the whole order, None if it has no price."""
        if self.price is None:
            return None
        return self.price * self.quantity + sum((one.price or 0) * one.quantity for one in self.lines)

    @property
    def units_in_all(self) -> int:
        """The units of all its lines."""
        return self.quantity + sum(one.quantity for one in self.lines)

    @property
    def counted(self) -> Payment | None:
        """The payment that counts."""
        return next((one for one in self.payments if one.state is PaymentState.COUNTS), None)

    @property
    def payment_ref(self) -> str | None:
        """Its name."""
        counted = self.counted
        return counted and counted.ref

    def payment(self, ref: str | None) -> Payment | None:
        """A payment that was announced."""
        return next((one for one in self.payments if one.ref == ref), None)

    def with_payment(self, payment: Payment) -> tuple[Payment, ...]:
        """The announced payments, with this one added, or in the place of the one with its name."""
        if self.payment(payment.ref) is None:
            return *self.payments, payment
        return tuple(payment if one.ref == payment.ref else one for one in self.payments)

    @property
    def refunds(self) -> Iterator[tuple[Payment, PaymentRefund]]:
        """All refunds that are owed, each with its payment."""
        return ((payment, one) for payment in self.payments for one in payment.open)

    @property
    def sums(self) -> dict[str | None, Sums]:
        """The sums of its payments by currency; its own currency comes first."""
        return sums(self.payments, self.currency)

    @property
    def own_sums(self) -> Sums:
        """Those of the order's currency."""
        return self.sums.get(self.currency) or Sums(self.currency)

    @property
    def needs_attention(self) -> bool:
        """Whether money is owed or disputed, or a wrong amount was paid."""
        return any(
            one.open or one.waits or any(dispute.state is DisputeState.OPEN for dispute in one.disputes)
            for one in self.payments
        )

    def answered(self, name: str | None) -> str | None:
        """The outcome of a request or notice of that name, if it has come before."""
        return next((one.outcome for one in self.notices if one.name == name), None)

    def to_text(self) -> str:
        """The record as the stores keep it: JSON, without its number."""
        said = zip(_NAMES, self[1:-1], _USUAL, strict=True)
        own: dict[str, Any] = {name: value for name, value, usual in said if value != usual} | dict(self.unknown)
        for name in _PACKED & own.keys():
            own[name] = [_packed(one) for one in own[name]]
        return to_json(own)

    @classmethod
    def from_text(cls, number: str, text: str) -> "Record":
        """Parse the text of `to_text`. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        found: dict[str, Any] = json.loads(text)
        found["state"] = OrderState(found["state"])
        if "payments" in found:
            found["payments"] = tuple(_payment(*one) for one in found["payments"])
        if "lines" in found:
            found["lines"] = tuple(Line(*one) for one in found["lines"])
        if "notices" in found:
            found["notices"] = tuple(Notice(*one) for one in found["notices"])
        if unknown := found.keys() - set(_NAMES):
            found["unknown"] = {name: found.pop(name) for name in sorted(unknown)}
        return cls(number, **found)


_NAMES: Final = Record._fields[1:-1]
_PACKED: Final = frozenset(("payments", "notices", "lines"))
_USUAL: Final = tuple(Record._field_defaults.get(name, ...) for name in _NAMES)


def _packed(of: Any) -> list[Any]:
    """A named tuple as a list, without default values at its end."""
    values = [[_packed(one) for one in value] if isinstance(value, tuple) else value for value in of]
    usual = [of._field_defaults.get(name, ...) for name in of._fields]
    while values and (values[-1] == usual[len(values) - 1] or values[-1] == []):
        values.pop()
    return values


def _payment(ref: str, *more: Any) -> Payment:
    own = Payment(ref, *more)
    refunds = (PaymentRefund(*one) for one in own.refunds)
    return own._replace(
        state=PaymentState(own.state),
        refunds=tuple(one._replace(state=RefundState(one.state), way=Way(one.way)) for one in refunds),
        disputes=tuple(
            one._replace(state=DisputeState(one.state)) for one in (Dispute(*some) for some in own.disputes)
        ),
    )


class OrderChange(NamedTuple):
    """A change of an existing order. It is written only if the order is still equal to `before`."""

    before: Record
    after: Record
    kind: EventKind
    own_facts: Facts = NO_FACTS  # the facts that only this event has
    units: Units = NO_UNITS  # the units that it moves
    bought: int = 0  # units to add to its buyer's, for their limit
    payment: str | None = None  # a payment that belongs to it from now on

    @property
    def facts(self) -> Facts:
        """The facts of the event."""
        return self.own_facts | self.after.origin


@dataclass(frozen=True, slots=True)
class Order:
    """An order: its state, and how it began."""

    sku: str
    record: Record
    key: str | None  # the idempotency key
    instance: str
    token: int  # of the grant under which it was written
    batch_id: str
    sold_at: float  # when it began, in seconds since 1970, by the store's clock
    epoch: int = 0  # grows with each `unfence`: only tokens of one epoch can be compared

    @property
    def id(self) -> OrderId:
        """Its id."""
        return self.record.id_of(self.sku)

    @property
    def quantity(self) -> int:
        """Its units."""
        return self.record.quantity

    @property
    def buyer(self) -> str | None:
        """The name of its buyer."""
        return self.record.buyer

    @property
    def state(self) -> OrderState:
        """How it stands."""
        return self.record.state


@dataclass(slots=True, unsafe_hash=True)  # nobody changes an entry; a frozen one would take three times as long to make
class Event:
    """An entry of an item's journal."""

    entry: str  # its position
    kind: EventKind
    order: OrderId  # the order that it is about
    number: int  # counts the events of that order, from 1
    quantity: int  # of the order, after it
    buyer: str | None
    key: str | None
    at: float  # in seconds since 1970, by the store's clock
    instance: str
    token: int  # of the grant under which it was written
    batch_id: str
    epoch: int  # only tokens of one epoch can be compared
    units: Units  # the units that it moves
    facts: Facts = field(default_factory=Facts)  # all else that it says

    @property
    def sku(self) -> str:
        """The item."""
        return self.order.sku

    @property
    def is_of_line(self) -> bool:
        """Whether it is about a line, which follows its order: nobody else is told."""
        return "part_of" in self.facts


def sale_of(order: Order) -> Event:
    """The event by which an order was sold at once."""
    return Event(
        entry=order.record.number,
        kind=EventKind.SOLD,
        order=order.id,
        number=1,
        quantity=order.quantity,
        buyer=order.buyer,
        key=order.key,
        at=order.sold_at,
        instance=order.instance,
        token=order.token,
        batch_id=order.batch_id,
        epoch=order.epoch,
        units=Units(-order.quantity, 0, order.quantity),
    )

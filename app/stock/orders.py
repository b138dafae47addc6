"""Orders and their life: the state of an order, and the events that led to it.

An order is sold at once, or held until it is paid. Each change of it is an event: an entry of the item's journal, which
the write that makes the change appends. Entries never change, so their sums are the numbers of the item, and a reader
of the journal knows all that has happened.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # `json.dumps` makes one a call


class OrderState(StrEnum):
    """The state of an order."""

    SOLD = "sold"  # at once, without a hold
    HELD = "held"  # for a buyer who has not paid yet
    CONFIRMED = "confirmed"  # paid
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"


class EventKind(StrEnum):
    """The kind of an event in an order's life."""

    SOLD = "sold"
    HELD = "held"
    EXTENDED = "extended"
    CONFIRMED = "confirmed"
    AMOUNT_MISMATCH = "amount_mismatch"  # a payment of another amount than the price; an operator has to look
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUND_DUE = "refund_due"  # a payment that has to be given back
    REFUNDED = "refunded"


class Units(NamedTuple):
    """Units that an event adds to those left, held and sold; less than 0 where it takes some."""

    stock: int = 0
    held: int = 0
    lucky: int = 0


NO_UNITS: Final = Units()


class Step(NamedTuple):
    """An event in the life of an order. `at_ms`: since 1970, by the store's clock; `facts`: what only this kind has."""

    kind: EventKind
    at_ms: int
    token: int
    batch_id: str
    facts: Mapping[str, Any] = {}


class Record(NamedTuple):
    """How an order stands, as the store keeps it beside the journal.

    `number`: the journal's entry with which it began; "" until it is written. `pay_by_ms`: until when the buyer is told
    to pay; `due_ms`: when its units go back, a grace later; both since 1970, by the store's clock. `price`: of a unit,
    in the minor unit of `currency`, None if the item has none. `payment_ref`: the payment that counts; `refunds_due`:
    those that have to be given back, and `refunded`: those that were. `request_id` and `traceparent` (W3C): of
    the request by which it began. `steps`: its events so far.
    """

    number: str
    secret: str
    state: OrderState
    quantity: int
    buyer: str | None = None
    ref: str | None = None
    pay_by_ms: int = 0
    due_ms: int = 0
    extended: bool = False
    price: int | None = None
    currency: str | None = None
    payment_ref: str | None = None
    amount: int | None = None
    refunds_due: tuple[str, ...] = ()
    refunded: tuple[str, ...] = ()
    request_id: str | None = None
    traceparent: str | None = None
    steps: tuple[Step, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the event by which the order began."""
        own = {"ref": self.ref, "pay_by": self.pay_by_ms / 1000 or None, "price": self.price, "currency": self.currency}
        return {name: value for name, value in own.items() if value is not None} | self.origin

    @property
    def origin(self) -> dict[str, str]:
        """The facts that each event gives of the request by which the order began."""
        own = {"request_id": self.request_id, "traceparent": self.traceparent}
        return {name: value for name, value in own.items() if value is not None}

    @property
    def units(self) -> Units:
        """The units that it moved as it began."""
        if self.state is OrderState.HELD:
            return Units(stock=-self.quantity, held=self.quantity)
        return Units(stock=-self.quantity, lucky=self.quantity)

    @property
    def wrong_payments(self) -> dict[str, Mapping[str, Any]]:
        """What is known of the payments of a wrong amount that are neither taken nor to be given back."""
        settled = {self.payment_ref, *self.refunds_due, *self.refunded}
        wrong = [step.facts for step in self.steps if step.kind is EventKind.AMOUNT_MISMATCH]
        return {one["payment_ref"]: one for one in wrong if one["payment_ref"] not in settled}

    @property
    def to_pay(self) -> int | None:
        """The amount of the whole order, None if it has no price."""
        return None if self.price is None else self.price * self.quantity

    def to_text(self) -> str:
        """The record as the stores keep it: JSON, without its number."""
        own = {name: value for name, value, usual in zip(_NAMES, self[1:], _USUAL, strict=True) if value != usual}
        return to_json(own)

    @classmethod
    def from_text(cls, number: str, text: str) -> "Record":
        """Parse the text of `to_text`. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        found: dict[str, Any] = json.loads(text)
        steps = tuple(Step(EventKind(kind), *more) for kind, *more in found.pop("steps", ()))
        for name in ("refunds_due", "refunded"):
            if name in found:
                found[name] = tuple(found[name])
        found["state"] = OrderState(found["state"])
        return cls(number, **found, steps=steps)


_NAMES: Final = Record._fields[1:]
_USUAL: Final = tuple(Record._field_defaults.get(name, ...) for name in _NAMES)


class OrderChange(NamedTuple):
    """A change of an order that is there, to be written with a batch: only if it is as it was `before`.

    `bought`: units that its buyer has more for their limit; `payment`: one that belongs to it from now on.
    """

    before: Record
    after: Record
    units: Units = NO_UNITS
    bought: int = 0
    payment: str | None = None

    @property
    def step(self) -> Step:
        """The event."""
        return self.after.steps[-1]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the event."""
        return {**self.step.facts, **self.after.origin}


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of an item's journal.

    `entry`: its position; `order_id`: of the order that it is about; `number`: which event of that order it is, from 1
    on; `at`: in seconds since 1970, by the store's clock; `epoch`: only tokens of one epoch can be compared.
    """

    entry: str
    kind: EventKind
    sku: str
    order_id: str
    number: int
    quantity: int
    buyer: str | None
    key: str | None
    at: float
    instance: str
    token: int
    batch_id: str
    epoch: int
    units: Units
    facts: Mapping[str, Any] = field(default_factory=dict)


def changed(
    record: Record,
    kind: EventKind,
    *,
    at_ms: int,
    token: int,
    batch_id: str,
    units: Units = NO_UNITS,
    bought: int = 0,
    payment: str | None = None,
    facts: Mapping[str, Any] | None = None,
    **fields: Any,
) -> OrderChange:
    """Make the change of an order by an event."""
    step = Step(kind, at_ms, token, batch_id, facts or {})
    after = record._replace(**fields, steps=(*record.steps, step))
    return OrderChange(record, after, units, bought, payment)

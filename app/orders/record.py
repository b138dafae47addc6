"""Orders and their life: how an order stands, and the events that led to it. See `app.orders` for a picture."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from app.orders.id import OrderId

to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # `json.dumps` makes one a call
ERASED: Final = "erased"  # in the place of a buyer's name
WITHOUT_STEPS: Final = 2  # the first layout in which a record has no copy of its order's events


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
    REFUND_REQUESTED = "refund_requested"  # the provider is about to be asked to give it back
    REFUND_FAILED = "refund_failed"  # it wasn't given back after all; an operator has to look
    REFUNDED = "refunded"
    DISPUTED = "disputed"  # the buyer wants the money back from their bank
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"


class Units(NamedTuple):
    """Units that an event adds to those left, held and sold; less than 0 where it takes some."""

    stock: int = 0
    held: int = 0
    lucky: int = 0


NO_UNITS: Final = Units()
NO_FACTS: Final[Mapping[str, Any]] = {}


class Payment(NamedTuple):
    """A payment that was announced for an order.

    `amount`: in the minor unit of `currency`, None if nobody has said it; `currency`: only if it is not the order's.
    """

    ref: str
    amount: int | None = None
    currency: str | None = None

    def after(self, before: "Payment | None") -> "Payment":
        """This payment, as it is known after an earlier notice of it: one without an amount takes none back."""
        return before if before is not None and self.amount is None else self


class Part(NamedTuple):
    """A part of a payment that has to be given back. `name`: of the wish for it; `amount`: as a payment's."""

    name: str
    ref: str
    amount: int
    currency: str | None = None


class Back(NamedTuple):
    """What was given back of a payment in parts, in the minor unit of `currency` (None: the order's).

    `noted`: the sum of those that were noted one by one; `told`: the sum of all, as the provider says it. The same part
    may be in both, so that the larger one counts. `disputed`: what banks have taken, which is in none of them.
    """

    ref: str
    noted: int = 0
    told: int = 0
    currency: str | None = None
    disputed: int = 0

    @property
    def amount(self) -> int:
        """So much was given back."""
        return max(self.noted, self.told) + self.disputed


class Request(NamedTuple):
    """A refund for which the provider is asked. `name`: of the part, or of the whole payment; `event`: which event of
    the order says so; `amount`: in the minor unit of `currency`, None for all that is left.
    """

    name: str
    ref: str
    event: int
    amount: int | None = None
    currency: str | None = None


class Dispute(NamedTuple):
    """A buyer wants a payment back from their bank."""

    name: str
    ref: str


class Failure(NamedTuple):
    """A refund that was made and came back. `at`: when the provider wrote so, by its clock; None: nobody knows."""

    ref: str
    at: float | None = None


# The events of an order, as records of layout 1 have them: kind, time in ms since 1970, token, batch, facts.
Steps: TypeAlias = tuple[tuple[Any, ...], ...]


class Record(NamedTuple):
    """How an order stands. The store keeps it beside the journal, where its events are, as a text of `to_text`.

    `None`, 0, "" and () say that there is no such thing; moments are by the store's clock, in ms since 1970.
    """

    number: str  # the journal's entry with which it began; "" until that is written
    secret: str
    state: OrderState
    quantity: int
    buyer: str | None = None
    ref: str | None = None  # the shop's own number
    pay_by_ms: int = 0  # until when the buyer is told to pay
    due_ms: int = 0  # when its units go back: a grace later
    extended: bool = False  # the second window has begun
    price: int | None = None  # of a unit, in the minor unit of `currency`
    currency: str | None = None  # ISO 4217
    payment_ref: str | None = None  # the payment that counts
    refunds_due: tuple[str, ...] = ()  # payments that have to be given back
    refunded: tuple[str, ...] = ()  # payments that were
    request_id: str | None = None  # of the request by which it began
    traceparent: str | None = None  # likewise (W3C)
    events: int = 1  # how many it has had
    proven: bool = False  # it was certain who asked for it: they may be shown it again
    payments: tuple[Payment, ...] = ()  # all that were announced
    notices: tuple[str, ...] = ()  # of refunds and disputes, so that none counts twice
    back: tuple[Back, ...] = ()  # what was given back of payments in parts
    parts: tuple[Part, ...] = ()  # of payments, which have to be given back
    requested: tuple[Request, ...] = ()  # refunds for which the provider is asked
    failed: tuple[str, ...] = ()  # refunds, by name, that didn't work
    failures: tuple[Failure, ...] = ()  # of payments whose refund came back
    disputes: tuple[Dispute, ...] = ()  # those that are open
    steps: Steps | None = None  # its events; None but in layout 1
    unknown: Mapping[str, Any] = {}  # fields of a later release, which are kept

    @classmethod
    def sold(
        cls, number: str, secret: str, quantity: int, buyer: str | None, *, layout: int = WITHOUT_STEPS, at_ms: int = 0
    ) -> "Record":
        """The record of an order that was sold at once, of which the store keeps none."""
        steps = first_steps(layout, EventKind.SOLD, at_ms)
        return cls(number, secret, OrderState.SOLD, quantity, buyer, steps=steps)

    def id_of(self, sku: str) -> OrderId:
        """The order's id, as an order of this item."""
        return OrderId(sku, self.number, self.secret)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the event by which the order began."""
        own = {"ref": self.ref, "pay_by": self.pay_by, "price": self.price, "currency": self.currency}
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
    def pay_by(self) -> float | None:
        """Until when the buyer is told to pay, in seconds since 1970."""
        return self.pay_by_ms / 1000 or None

    @property
    def to_pay(self) -> int | None:
        """The amount of the whole order, None if it has no price."""
        return None if self.price is None else self.price * self.quantity

    @property
    def amount(self) -> int | None:
        """The amount of the payment that counts."""
        paid = self.payment(self.payment_ref)
        return paid and paid.amount

    def payment(self, ref: str | None) -> Payment | None:
        """A payment that was announced."""
        return next((one for one in self.payments if one.ref == ref), None)

    @property
    def wrong_payments(self) -> tuple[Payment, ...]:
        """The payments of a wrong amount that are neither taken nor to be given back."""
        settled = {self.payment_ref, *self.refunds_due, *self.refunded}
        return tuple(one for one in self.payments if one.ref not in settled)

    @property
    def amount_mismatch(self) -> bool:
        """Whether there is such a payment."""
        return bool(self.wrong_payments)

    @property
    def needs_attention(self) -> bool:
        """Whether money is owed or disputed, or a wrong amount was paid."""
        return bool(self.refunds_due or self.parts or self.failed or self.disputes) or self.amount_mismatch

    @property
    def amount_refunded(self) -> int:
        """What was given back, as far as its amount is known, in the minor unit of the order's currency."""
        whole = sum(one.amount or 0 for one in self.payments if one.ref in self.refunded and one.currency is None)
        # A part of it may have come back, and be due again.
        whole -= sum(one.amount for one in self.parts if one.ref in self.refunded and one.currency is None)
        return whole + sum(one.amount for one in self.back if one.ref not in self.refunded and one.currency is None)

    @property
    def disputed(self) -> tuple[str, ...]:
        """The payments that the buyer wants back from their bank."""
        return tuple(dict.fromkeys(one.ref for one in self.disputes))

    @property
    def parts_due(self) -> tuple[str, ...]:
        """The names of the parts of payments that have to be given back."""
        return tuple(one.name for one in self.parts)

    @property
    def amount_due(self) -> int:
        """What is to be given back, as far as its amount is known, in the minor unit of the order's currency."""
        due = [one for one in self.payments if one.ref in self.refunds_due and one.currency is None]
        whole = sum((one.amount or 0) - self.back_of(one.ref).amount for one in due)
        parts = [one for one in self.parts if one.currency is None and one.ref not in self.refunds_due]
        return whole + sum(one.amount for one in parts)

    def back_of(self, ref: str, currency: str | None = None) -> Back:
        """What was given back in parts of a payment."""
        same = (one for one in self.back if (one.ref, one.currency) == (ref, currency))
        return next(same, Back(ref, currency=currency))

    def with_back(self, after: Back) -> tuple[Back, ...]:
        """What was given back in parts, if it is now so much of that payment."""
        others = tuple(one for one in self.back if (one.ref, one.currency) != (after.ref, after.currency))
        return (*others, after) if after.amount else others

    def with_payment(self, payment: Payment) -> tuple[Payment, ...]:
        """The payments that were announced, with one more, or as that one is announced now."""
        return *(one for one in self.payments if one.ref != payment.ref), payment.after(self.payment(payment.ref))

    def to_text(self) -> str:
        """The record as the stores keep it: JSON, without its number."""
        own = {name: value for name, value, usual in zip(_NAMES, self[1:-1], _USUAL, strict=True) if value != usual}
        own |= self.unknown
        if self.steps is not None:
            own = {name: value for name, value in own.items() if name in _IN_LAYOUT_1}
            own |= {"amount": self.amount} if self.amount is not None else {}
        return to_json(own)

    @classmethod
    def from_text(cls, number: str, text: str) -> "Record":
        """Parse the text of `to_text`. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        found: dict[str, Any] = json.loads(text)
        if "steps" in found:
            found |= _of_steps(found["steps"], found.get("payment_ref"), found.pop("amount", None))
        for name in ("refunds_due", "refunded", "notices", "failed"):
            if name in found:
                found[name] = tuple(found[name])
        for name, kind in _TUPLES.items():
            if name in found:
                found[name] = tuple(kind(*one) for one in found[name])
        found["state"] = OrderState(found["state"])
        if unknown := found.keys() - set(_NAMES):
            found["unknown"] = {name: found.pop(name) for name in sorted(unknown)}
        return cls(number, **found)


_NAMES: Final = Record._fields[1:-1]
_TUPLES: Final = {
    "payments": Payment,
    "back": Back,
    "parts": Part,
    "requested": Request,
    "failures": Failure,
    "disputes": Dispute,
}
_USUAL: Final = tuple(Record._field_defaults.get(name, ...) for name in _NAMES)


class OrderChange(NamedTuple):
    """A change of an order that is there, to be written with a batch: only if it is as it was `before`.

    `units`: those that it moves; `bought`: units that its buyer has more for their limit; `payment`: one that belongs
    to it from now on; `own_facts`: those that only this event has.
    """

    before: Record
    after: Record
    kind: EventKind
    own_facts: Mapping[str, Any] = {}
    units: Units = NO_UNITS
    bought: int = 0
    payment: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the event."""
        return {**self.own_facts, **self.after.origin}


def changed(
    record: Record,
    kind: EventKind,
    facts: Mapping[str, Any] | None = None,
    *,
    units: Units = NO_UNITS,
    bought: int = 0,
    payment: str | None = None,
    at_ms: int = 0,
    **fields: Any,
) -> OrderChange:
    """Make the change of an order by an event."""
    steps = None if record.steps is None else (*record.steps, (kind, at_ms, 0, "", facts or {}))
    after = record._replace(**fields, events=record.events + 1, steps=steps)
    return OrderChange(record, after, kind, facts or {}, units, bought, payment)


@dataclass(frozen=True, slots=True)
class Order:
    """An order: how it stands, and what is kept of how it began.

    `sold_at` is when that was, in seconds since 1970, by the store's clock; `epoch` grows with each `unfence`: only
    tokens of one epoch can be compared.
    """

    sku: str
    record: Record
    key: str | None
    instance: str
    token: int
    batch_id: str
    sold_at: float
    epoch: int = 0

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


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of an item's journal.

    `entry`: its position; `order`: the one that it is about; `number`: which event of that order it is, from 1 on;
    `at`: in seconds since 1970, by the store's clock; `epoch`: only tokens of one epoch can be compared.
    """

    entry: str
    kind: EventKind
    order: OrderId
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

    @property
    def sku(self) -> str:
        """The item."""
        return self.order.sku


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


# -- layout 1: a record has its order's events once more, and the release before this one reads what it needs there ----

_IN_LAYOUT_1: Final = frozenset(
    (
        *("secret", "state", "quantity", "buyer", "ref", "pay_by_ms", "due_ms", "extended", "price", "currency"),
        *("payment_ref", "refunds_due", "refunded", "request_id", "traceparent", "steps"),
    )
)


def first_steps(layout: int, kind: EventKind, at_ms: int, facts: Mapping[str, Any] | None = None) -> Steps | None:
    """The steps of a new record."""
    return None if layout >= WITHOUT_STEPS else ((kind, at_ms, 0, "", facts or {}),)


def _of_steps(steps: list[list[Any]], payment_ref: str | None, amount: int | None) -> dict[str, Any]:
    """The fields of a record that layout 1 doesn't have."""
    payments: dict[str, Payment] = {}
    back: dict[str, Back] = {}
    for kind, *_, facts in steps:
        if kind in (EventKind.AMOUNT_MISMATCH, EventKind.REFUND_DUE, EventKind.CONFIRMED):
            told = Payment(facts["payment_ref"], facts.get("amount"), facts.get("currency"))
            payments[told.ref] = told.after(payments.get(told.ref))
        elif "given_back" in facts:
            for ref in facts["payment_refs"]:
                back[ref] = Back(ref, facts["given_back"], facts["given_back"], facts.get("currency"))
    if payment_ref is not None:
        payments[payment_ref] = Payment(payment_ref, amount).after(payments.get(payment_ref))
    return {
        "steps": tuple(tuple(step) for step in steps),
        "events": len(steps),
        "proven": bool(steps[0][-1].get("proven")),
        "payments": tuple(payments.values()),
        "notices": tuple(step[-1]["message"] for step in steps if "message" in step[-1]),
        "back": tuple(back.values()),
    }

"""How people and programs are shown an order.

A field of an order that is to be seen is a field here, and a field or a property of that name in `Record`: from this
the answers to buyers and operators, the files and the tables are made.
"""

from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from app.orders.commands import own_key
from app.orders.id import OrderId
from app.orders.record import Event, EventKind, Order, OrderState, Record


class StandingView(BaseModel):
    """An order as it stands."""

    id: str | None = Field(None, description="the order's for life; it can't be guessed")
    sku: str
    state: OrderState | None = None
    quantity: int
    buyer: str | None = None
    ref: str | None = Field(None, description="the shop's own number")
    pay_by: float | None = Field(None, description="the deadline, in seconds since 1970, by the store's clock")
    extended: bool = Field(False, description="whether the second window has begun")
    price: int | None = Field(None, description="of a unit, in the minor unit of the currency")
    currency: str | None = None
    to_pay: int | None = Field(None, description="price times quantity")
    payment_ref: str | None = Field(None, description="the payment that counts")
    amount: int | None = Field(None, description="what was paid with it, in the minor unit of the currency")
    amount_mismatch: bool = Field(False, description="a payment of another amount has come, and waits for an operator")
    refunds_due: list[str] = Field(default_factory=list, description="payments that are to be given back")
    refunded: list[str] = Field(default_factory=list, description="payments that were given back")
    parts_due: list[str] = Field(
        default_factory=list, description="parts of payments that are to be given back, by name"
    )
    amount_due: int = Field(
        0, description="what is to be given back in all, as far as it is known, in the minor unit of the currency"
    )
    amount_refunded: int = Field(0, description="what was given back in all, in the minor unit of the currency")
    disputed: list[str] = Field(default_factory=list, description="payments that the buyer wants back from their bank")
    failed: list[str] = Field(default_factory=list, description="refunds that didn't work, and wait for an operator")
    request_id: str | None = Field(None, description="of the request by which it began")


# Of an answer that is about no order: the fields that are never null.
NOTHING: Final = {
    name: value
    for name, field in StandingView.model_fields.items()
    if not field.is_required() and (value := field.get_default(call_default_factory=True)) is not None
}
FIELDS: Final = tuple(name for name in StandingView.model_fields if name not in ("id", "sku"))


class OrderView(StandingView):
    """An order, for anybody who knows its id."""

    sold_at: float = Field(description="when it began, in seconds since 1970")


class OperatorOrderView(OrderView):
    """An order as the operator sees it, with how it was written."""

    key: str | None = Field(description="the idempotency key")
    instance: str
    token: int = Field(description="fencing token of the grant under which it was written")
    batch: str = Field(description="the write that it came with")
    attention: bool = Field(description="a payment is to be given back, or was wrong")
    since: float | None = Field(
        None, description="since when it stands as it does, in seconds since 1970; null: it was not asked for"
    )


class OrderEventData(BaseModel):
    """How an order stands after an event, and what happened."""

    state: OrderState | None = Field(description="of the order after the event: obey it, and not the type")
    about: Literal["order", "units", "payment", "part"] = Field(
        description="the order itself, some of its units, a payment of it, or a part of one"
    )
    order: str = Field(description="the order's id, which opens it for anybody")
    sku: str = Field(description="the item")
    number: int = Field(description="which event of the order it is, from 1 on")
    quantity: int = Field(description="its units after the event")
    buyer: str | None
    ref: str | None = Field(description="the shop's own number")
    units: int | None = Field(None, description="how many of them went back, if not all")
    pay_by: float | None = Field(None, description="the deadline, in seconds since 1970")
    price: int | None = Field(None, description="of a unit, in the minor unit of the currency")
    currency: str | None = Field(None, description="ISO 4217; of a payment, only if it is not the order's")
    payment_ref: str | None = Field(None, description="the payment that has come")
    amount: int | None = Field(None, description="of that payment, or of the part that was given back")
    subtotal: int | None = Field(None, description="of the amount, what is for the units, if something else is in it")
    paid_at: float | None = Field(None, description="when it was paid by the provider's clock, in seconds since 1970")
    in_time: bool | None = Field(None, description="whether it was paid in time, and told too late")
    given_back: int | None = Field(None, description="what was given back of that payment so far")
    expected: int | None = Field(None, description="the amount that it should have had")
    late: bool = Field(False, description="it came after the hold's end, and a unit was left")
    why: str | None = Field(
        None, description="why it is to be given back: the outcome that the payment had; or the provider's reason"
    )
    keep: str | None = Field(None, description="the payment that counts, beside the one that is to be given back")
    payment_refs: list[str] = Field(default_factory=list, description="the payments that were given back")
    refunds_due: list[str] = Field(default_factory=list, description="the payments that are to be given back now")
    part: str | None = Field(None, description="the name of the part that is to be given back")
    parts: list[str] = Field(default_factory=list, description="parts that were to be given back, and are with this")
    restock: bool = Field(False, description="whether the units are on sale again")
    message: str | None = Field(None, description="the name of the part that was given back")
    by: str | None = Field(None, description="the operator")
    request_id: str | None = Field(None, description="of the request by which the order began")
    traceparent: str | None = Field(None, description="likewise")


class OrderEventView(BaseModel):
    """An event of an order, as the shop's webhook gets it. `type`: order. and the kind of the event."""

    type: str = Field(examples=["order.confirmed"])
    timestamp: str = Field(description="when it happened, by the store's clock (RFC 3339)")
    data: OrderEventData


def standing(order: OrderId, record: Record) -> dict[str, Any]:
    """An order as a `StandingView` has it."""
    return {"id": str(order), "sku": order.sku} | {name: getattr(record, name) for name in FIELDS}


def of_order(order: Order) -> dict[str, Any]:
    """An order as an `OrderView` has it."""
    return standing(order.id, order.record) | {"sold_at": order.sold_at}


def for_operator(order: Order) -> dict[str, Any]:
    """An order as an `OperatorOrderView` has it."""
    own = {"key": own_key(order.key), "instance": order.instance, "token": order.token, "batch": order.batch_id}
    return of_order(order) | own | {"attention": order.record.needs_attention}


def step(order: Order, event: Event) -> dict[str, Any]:
    """An event in the life of an order, without what is the same in all of them."""
    facts = {name: value for name, value in event.facts.items() if name not in order.record.origin}
    return {"kind": event.kind, "at": event.at, "token": event.token, "batch": event.batch_id, "facts": facts}


def row(order: Order) -> dict[str, Any]:
    """An order's row in a file. Without the secret in its id, as the id opens the order, and files are passed on."""
    own: dict[str, Any] = {
        name: list(one) if isinstance(one := getattr(order.record, name), tuple) else one for name in FIELDS
    }
    own["pay_by"] = own["pay_by"] and _moment(own["pay_by"])
    written = {"key": own_key(order.key), "token": order.token, "batch": order.batch_id, "instance": order.instance}
    return {"order": order.id.name, "item": order.sku, "began": _moment(order.sold_at)} | own | written


COLUMNS: Final = ("order", "item", "began", *FIELDS, "key", "token", "batch", "instance")

# The state of an order after an event; after those that are not here it is among their facts.
_AFTER: Final = {
    EventKind.SOLD: OrderState.SOLD,
    EventKind.HELD: OrderState.HELD,
    EventKind.EXTENDED: OrderState.HELD,
    EventKind.CONFIRMED: OrderState.CONFIRMED,
    EventKind.AMOUNT_MISMATCH: OrderState.HELD,
    EventKind.EXPIRED: OrderState.EXPIRED,
    EventKind.CANCELLED: OrderState.CANCELLED,
}
_OF_A_PAYMENT: Final = (EventKind.AMOUNT_MISMATCH, EventKind.REFUND_DUE)  # those of earlier releases don't say it


def of_event(event: Event, ref: str | None) -> dict[str, Any]:
    """The body of an event.

    `state`: of the order after it; `about`: the order, some of its units, a payment of it, or a part of one.
    """
    facts = event.facts
    # The refunds of earlier releases don't say it: that of an order says what became of its units.
    of_payment = event.kind in _OF_A_PAYMENT or (event.kind is EventKind.REFUNDED and "restock" not in facts)
    of = facts.get("about") or ("payment" if of_payment else "order")
    became = OrderState.REFUNDED if event.kind is EventKind.REFUNDED and of == "order" else _AFTER.get(event.kind)
    about = {
        "state": facts.get("state") or became,
        "about": of,
        "order": str(event.order),
        "sku": event.sku,
        "number": event.number,
        "quantity": event.quantity,
        "buyer": event.buyer,
        "ref": ref,
    }
    at = _moment(event.at).replace("+00:00", "Z")
    return {"type": f"order.{event.kind}", "timestamp": at, "data": {**facts, **about}}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

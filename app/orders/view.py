"""How people and programs are shown an order.

Each visible field of an order is a field here, and a field or a property of that name in `Record`. The answers to
buyers and operators, the files and the tables are made from it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from app import money
from app.orders.account import DisputeState, PaymentState, RefundState, Sums, Way
from app.orders.commands import own_key
from app.orders.id import OrderId
from app.orders.record import Event, Line, Order, OrderState, Record


class MoneyView(BaseModel):
    """Sums in the minor unit of their currency."""

    paid: int
    given_back: int = Field(description="or taken by a bank")
    owed: int = Field(description="what is to be given back")
    kept: int = Field(description="paid, less what was given back")
    disputed: int = Field(description="what a bank may still take back")


class CurrencyView(MoneyView):
    """The sums of an order in one currency."""

    currency: str | None
    unknown: bool = Field(description="nobody has said some of the amounts, which are not in these")


class PaymentRefundView(BaseModel):
    """Money of a payment that went back, or is to."""

    name: str = Field(description="which no other refund has")
    state: RefundState
    amount: int | None = Field(description="in the minor unit of the currency; null: all that is left")
    id: str | None = Field(None, description="the provider's own name of it")
    way: Way = Field(Way.PROVIDER, description="told by the provider, noted by an operator, or given elsewhere")
    by: str = ""
    why: str = ""
    at: float | None = Field(None, description="by the provider's clock, in seconds since 1970")
    units: int = Field(0, description="the units of which it is the price")
    currency: str | None = Field(None, description="if it is not the payment's")


class DisputeView(BaseModel):
    """A buyer wants a payment back from their bank."""

    name: str
    amount: int | None
    state: DisputeState


class PaymentView(BaseModel):
    """A payment of an order, with its refunds. Amounts are in the minor unit of its currency."""

    ref: str
    amount: int | None = Field(description="null: nobody has said it")
    currency: str | None
    state: PaymentState
    given_back: int
    owed: int
    waits: bool = Field(description="it is of a wrong amount, and waits for an operator")
    refunds: list[PaymentRefundView]
    disputes: list[DisputeView]


class LineView(BaseModel):
    """A line of an order."""

    sku: str
    quantity: int
    price: int | None = Field(None, description="of a unit, in the minor unit of the order's currency")


class StandingView(BaseModel):
    """An order as it stands. Amounts are in the minor unit of its currency, and as far as they are known."""

    id: str | None = Field(None, description="the order's for life; it can't be guessed")
    sku: str = Field(description="its first item, which has its journal")
    state: OrderState | None = None
    quantity: int = Field(description="units of that item")
    items: list[LineView] = Field(default_factory=list, description="all its lines")
    buyer: str | None = None
    ref: str | None = Field(None, description="the shop's own number")
    pay_by: float | None = Field(None, description="the deadline, in seconds since 1970, by the store's clock")
    extended: bool = Field(False, description="whether the second window has begun")
    price: int | None = Field(None, description="of a unit")
    currency: str | None = None
    to_pay: int | None = Field(None, description="the sum of its lines")
    payment_ref: str | None = Field(None, description="the payment that counts")
    paid: int = Field(0, description="in all, also what was one too many, late or wrong")
    given_back: int = Field(0, description="of that, or taken by a bank")
    owed: int = Field(0, description="what is to be given back")
    kept: int = Field(0, description="paid, less what was given back")
    disputed: int = Field(0, description="what a bank may still take back")
    unknown: bool = Field(False, description="nobody has said some of the amounts, which are not in these sums")
    other_currencies: list[CurrencyView] = Field(default_factory=list, description="the sums of payments in others")
    payments: list[PaymentView] = Field(default_factory=list, description="all that were announced")
    request_id: str | None = Field(None, description="of the request by which it began")


# Of an answer that is about no order: the fields that are never null.
NOTHING: Final = {
    name: value
    for name, field in StandingView.model_fields.items()
    if not field.is_required() and (value := field.get_default(call_default_factory=True)) is not None
}
_SUMS: Final = ("paid", "given_back", "owed", "kept", "disputed", "unknown")
_OF_MONEY: Final = (*_SUMS, "other_currencies", "payments")
NOTHING_PAID: Final = {name: NOTHING[name] for name in _OF_MONEY}
_OWN: Final = tuple(name for name in StandingView.model_fields if name not in ("id", "sku", "items", *_OF_MONEY))


class OrderView(StandingView):
    """An order, for anybody who knows its id."""

    sold_at: float = Field(description="when it began, in seconds since 1970")


class OperatorOrderView(OrderView):
    """An order as the operator sees it, with its token, batch and instance."""

    key: str | None = Field(description="the idempotency key")
    instance: str
    token: int = Field(description="fencing token of the grant under which it was written")
    batch: str = Field(description="the write that it came with")
    attention: bool = Field(description="a payment is to be given back, or was wrong")
    since: float | None = Field(
        None, description="since when it stands as it does, in seconds since 1970; null: it was not asked for"
    )


class SumsChangeView(BaseModel):
    """The changes of an event to the sums of a currency; unchanged sums are left out."""

    currency: str | None
    paid: int = 0
    given_back: int = 0
    owed: int = 0
    disputed: int = 0


class OrderEventData(BaseModel):
    """The state of an order after an event, and the facts of the event."""

    state: OrderState | None = Field(description="of the order after the event: obey it, and not the type")
    about: Literal["order", "units", "payment"] = Field(
        description="the order itself, some of its units, or only a payment of it"
    )
    order: str = Field(description="the order's id, which opens it for anybody")
    sku: str = Field(description="the first item")
    items: list[LineView] = Field(description="its lines after the event; prices are in the first one")
    line: str | None = Field(None, description="of which item units went back, if not of the first one")
    number: int = Field(description="which event of the order it is, from 1 on")
    quantity: int = Field(description="the units of the first item after the event")
    buyer: str | None
    ref: str | None = Field(description="the shop's own number")
    units: int | None = Field(None, description="how many of them went back, if not all")
    pay_by: float | None = Field(None, description="the deadline, in seconds since 1970")
    goes_back_at: float | None = Field(None, description="when its units go back if nobody pays: a grace later")
    price: int | None = Field(None, description="of a unit, in the minor unit of the currency")
    payment_ref: str | None = Field(None, description="the payment that it is about")
    currency: str | None = Field(None, description="ISO 4217: of the payment, else of the price")
    amount: int | None = Field(
        None, description="what was paid, went back, came back, is due or disputed with this event, in the minor unit"
    )
    changes: list[SumsChangeView] = Field(
        default_factory=list, description="by how much this event has changed the order's sums: they add up"
    )
    sums: list[CurrencyView] = Field(default_factory=list, description="the order's sums after the event, by currency")
    refunds: list[PaymentRefundView] = Field(
        default_factory=list, description="the refunds of the payment that are new, or others now"
    )
    disputes: list[DisputeView] = Field(default_factory=list, description="all of the payment, if one is another now")
    subtotal: int | None = Field(None, description="of the amount, what is for the units, if something else is in it")
    paid_at: float | None = Field(None, description="when it was paid by the provider's clock, in seconds since 1970")
    in_time: bool | None = Field(None, description="whether it was paid in time, and told too late")
    expected: int | None = Field(None, description="the amount that it should have had")
    late: bool = Field(False, description="it came after the hold's end, and a unit was left")
    why: str | None = Field(
        None, description="why it is to be given back: the outcome that the payment had; or the provider's reason"
    )
    keep: str | None = Field(None, description="the payment that counts, beside the one that is to be given back")
    restock: bool = Field(False, description="whether the units are on sale again")
    message: str | None = Field(None, description="a name of the wish or notice, by which it is obeyed once")
    outcome: str | None = Field(None, description="its answer")
    by: str | None = Field(None, description="the operator")
    request_id: str | None = Field(None, description="of the request by which the order began")
    traceparent: str | None = Field(None, description="likewise")


class OrderEventView(BaseModel):
    """An event of an order, as the shop's webhook gets it. `type`: order. and the kind of the event."""

    type: str = Field(examples=["order.confirmed"])
    timestamp: str = Field(description="when it happened, by the store's clock (RFC 3339)")
    data: OrderEventData


def standing(order: OrderId, record: Record, *, whole: bool = False) -> dict[str, Any]:
    """The fields of an order's `StandingView`; `whole`: for operators, with operators' names and reasons."""
    own = {name: getattr(record, name) for name in _OWN}
    return {"id": str(order), "sku": order.sku, "items": items(order.sku, record)} | own | _money(record, whole=whole)


def items(sku: str, record: Record) -> list[dict[str, Any]]:
    """The lines of an order, its own item first."""
    own = Line(sku, record.quantity, record.price)
    return [{"sku": one.sku, "quantity": one.quantity, "price": one.price} for one in (own, *record.lines)]


def _money(record: Record, *, whole: bool) -> dict[str, Any]:
    if not record.payments:  # as most who ask
        return NOTHING_PAID
    sums = record.sums
    own = sums.get(record.currency, Sums(record.currency)).said()
    others = [one.said() for currency, one in sums.items() if currency != record.currency]
    payments = [
        one._asdict()
        | {name: getattr(one, name) for name in ("given_back", "owed", "waits")}
        | {"refunds": [(refund if whole else refund._replace(by="", why=""))._asdict() for refund in one.refunds]}
        | {"disputes": [dispute._asdict() for dispute in one.disputes]}
        for one in record.payments
    ]
    return {name: own[name] for name in _SUMS} | {"other_currencies": others, "payments": payments}


def of_order(order: Order, *, whole: bool = False) -> dict[str, Any]:
    """The fields of an `OrderView` of an order."""
    return standing(order.id, order.record, whole=whole) | {"sold_at": order.sold_at}


def for_operator(order: Order) -> dict[str, Any]:
    """The fields of an `OperatorOrderView` of an order."""
    own = {"key": own_key(order.key), "instance": order.instance, "token": order.token, "batch": order.batch_id}
    return of_order(order, whole=True) | own | {"attention": order.record.needs_attention}


def step(order: Order, event: Event) -> dict[str, Any]:
    """An event in the life of an order, without the facts that all its events share."""
    facts = {name: value for name, value in event.facts.items() if name not in order.record.origin}
    return {"kind": event.kind, "at": event.at, "token": event.token, "batch": event.batch_id, "facts": facts}


def row(order: Order) -> dict[str, Any]:
    """An order for a program. Without the secret in its id, as the id opens the order, and files are passed on."""
    own = {name: getattr(order.record, name) for name in _OWN} | _money(order.record, whole=True)
    own["pay_by"] = own["pay_by"] and _moment(own["pay_by"])
    own |= {"items": items(order.sku, order.record)}
    return {"order": order.id.name, "item": order.sku, "began": _moment(order.sold_at)} | own | _written(order)


def cells(order: Order) -> Iterator[dict[str, Any]]:
    """An order for a spreadsheet: amounts have their decimals.

    Another currency has a row of its own, of sums alone, and another line one without any.
    """
    record = order.record
    own = {name: getattr(record, name) for name in _OWN} | {"pay_by": record.pay_by and _moment(record.pay_by)}
    prices = {name: own[name] for name in ("price", "to_pay") if own[name] is not None}
    own |= {name: money.decimal(one, record.currency) for name, one in prices.items()}
    about = {"order": order.id.name, "item": order.sku, "began": _moment(order.sold_at)}
    payments = {"payments": [one.ref for one in record.payments]}
    for number, sums in enumerate((record.own_sums, *(one for one in record.sums.values() if one != record.own_sums))):
        first = own | payments | _written(order) if number == 0 else {"currency": sums.currency}
        said = {name: money.decimal(getattr(sums, name), sums.currency) for name in _SUMS[:-1]}
        found = about | first | said | {"unknown": "yes" if sums.unknown else ""}
        yield {name: found.get(name) for name in COLUMNS}
    for line in record.lines:
        price = {"price": money.decimal(line.price, record.currency)} if line.price is not None else {}
        found = about | {name: own[name] for name in ("state", "buyer", "ref")} | {"item": line.sku} | price
        yield {name: (found | {"quantity": line.quantity}).get(name) for name in COLUMNS}


def _written(order: Order) -> dict[str, Any]:
    return {"key": own_key(order.key), "token": order.token, "batch": order.batch_id, "instance": order.instance}


_IN_ROWS: Final = tuple(
    name for name in StandingView.model_fields if name not in ("id", "sku", "items", "other_currencies")
)
AMOUNTS: Final = ("price", "to_pay", *_SUMS[:-1])  # the columns of a spreadsheet that are numbers with decimals
COLUMNS: Final = ("order", "item", "began", *_IN_ROWS, "key", "token", "batch", "instance")


def of_event(event: Event, ref: str | None) -> dict[str, Any]:
    """The body of an event. `state`: the order's after it; `about`: the order, some of its units, or a payment."""
    facts = event.facts.copy()
    own = {"sku": event.sku, "quantity": event.quantity, "price": facts.get("price")}
    lines = [{name: one.get(name) for name in own} for one in facts.pop("lines", None) or ()]
    about = {
        "items": [own, *lines],
        "state": facts.get("state") or event.kind,  # the first event of an order has the name of its state
        "about": facts.get("about") or "order",
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

"""The orders, for operators: find them, look at the life of one, cancel, refund, export."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final, Literal, cast

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException

from app.orders import (
    CURRENCY_PATTERN,
    SKU_PATTERN,
    CancelOutcome,
    Event,
    EventKind,
    Order,
    OrderState,
    Place,
    Refund,
    RefundOutcome,
    RequestOutcome,
    Sums,
)
from app.orders.view import OperatorOrderView, for_operator, step
from app.sale import FoundOrders, Wanted, WantedState
from app.sale.export import Format, head, lines
from app.sale.find import LOOK_MAX, refuse_gaps
from app.web.auth import OPERATOR, Operator
from app.web.holds import InLineView
from app.web.pages import READING, page
from app.web.problems import invalid_field, responses, whole
from app.web.purchase import name_of_part, read_key
from app.web.state import state_of

router = APIRouter(tags=["operator"], dependencies=[OPERATOR], responses=responses(401, 403, 503))
pages = APIRouter(include_in_schema=False)

_TYPES: Final[dict[Format, str]] = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl; charset=utf-8"}
_KEPT_OUT: Final = {"Cache-Control": "no-store"}
Text = Annotated[str | None, Query(min_length=1, max_length=200)]
Key = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=100,
        pattern=r"^[\x21-\x7e]+$",
        description="bare or in quotes; the same part, asked for again, is not another one",
    ),
]


class OrdersView(BaseModel):
    """A page of orders, oldest first without `newest`; it may be short, or empty, although there are more."""

    orders: list[OperatorOrderView]
    next: str | None = Field(description="give this as `after` to look on; null: that was all")
    looked: int = Field(description="how many orders were looked at")
    until: float | None = Field(description="when the last of these began, in seconds since 1970")
    unread: list[str] = Field([], description="items whose data are odd: their orders are missing here")

    @classmethod
    def of(cls, found: FoundOrders, since: Sequence[float] | None = None) -> "OrdersView":
        """The view of the result; `since`: when each order got its state."""
        orders = [OperatorOrderView(**for_operator(order)) for order in found.orders]
        for order, at in zip(orders, since or (), strict=False):
            order.since = at
        return cls(orders=orders, next=found.next, looked=found.looked, until=found.until, unread=list(found.unread))


class StepView(BaseModel):
    """An event in the life of an order."""

    kind: EventKind
    at: float = Field(description="in seconds since 1970, by the store's clock")
    token: str = Field(
        description="fencing token of the grant under which it was written; 0 if the guard compares none"
    )
    batch: str
    facts: dict[str, Any]


class LifeView(BaseModel):
    """An order, and all its events, oldest first."""

    order: OperatorOrderView
    steps: list[StepView]
    place: InLineView | None = Field(None, description="in line, while it waits")

    @classmethod
    def of(cls, order: Order, events: Sequence[Event], place: Place | None) -> "LifeView":
        """The life of an order."""
        steps = [StepView(**step(order, event) | {"token": str(event.token)}) for event in events]
        its = place and InLineView(**place._asdict())
        return cls(order=OperatorOrderView(**for_operator(order)), steps=steps, place=its)


State = Annotated[WantedState | None, Query(description="`attention`: a payment is to be given back, or was wrong")]
Number = Annotated[
    str | None, Query(max_length=200, description="the order's number: its id, or that up to the secret")
]
About = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        description="what is known of the order: its number or id, the short number that the shop's page gives a buyer "
        "(8332-0BCD), or a part of the buyer's or a payment's name, or of the shop's number; a whole name comes first",
    ),
]
Named = Annotated[str, Path(max_length=200, description="the order's id, or its number: the id without the secret")]


AnySku = Annotated[str | None, Query(pattern=f"^{SKU_PATTERN}$", description="the item; all of them without")]


def _words(text: str | None) -> str | None:
    return (text or "").strip() or None


@router.get("/orders", responses=responses(400, 404, 422))
async def orders(
    request: Request,
    sku: AnySku = None,
    state: State = None,
    buyer: Text = None,
    ref: Text = None,
    number: Number = None,
    q: About = None,
    after: Annotated[str | None, Query(max_length=200, description="an order's id, or what `next` was")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    newest: Annotated[
        bool, Query(description=f"newest first, if there are {LOOK_MAX:,} at most; else item by item, oldest first")
    ] = False,
    since: Annotated[
        bool, Query(description="tell since when each order stands as it does: a read of the store each")
    ] = False,
) -> OrdersView:
    """The orders of an item, or of all, item by item. A request looks at some thousand at most: look on from `next`."""
    admin = state_of(request).orders
    try:
        wanted = Wanted(state, buyer, ref, number, _words(q))
        found = await admin.find(sku, wanted, after=after, limit=limit, newest_first=newest)
    except ValueError as error:
        raise invalid_field("after", str(error)) from None
    return OrdersView.of(found, [await admin.since(order) for order in found.orders] if since else None)


@router.get(
    "/orders/export",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}, "application/jsonl": {}}}, **responses(400, 404, 422)},
)
async def export_orders(
    request: Request,
    as_: Annotated[Format, Query(alias="format")] = "csv",
    sku: AnySku = None,
    state: State = None,
    buyer: Text = None,
    ref: Text = None,
    q: About = None,
) -> Response:
    """The orders of an item, or of all, as a file, sent while they are read.

    In CSV, which is for spreadsheets, texts that a spreadsheet would change (formulas, long numbers, dates) get an
    apostrophe.
    """
    found = state_of(request).orders.pages(sku, Wanted(state, buyer, ref, text=_words(q)))
    first = await anext(found)  # so that an immediate error has a status of its own
    refuse_gaps(first)

    async def parts() -> AsyncIterator[str]:
        yield head(as_) + lines(first.orders, as_)
        async for some in found:
            refuse_gaps(some)
            if some.orders:
                yield lines(some.orders, as_)

    name = f'attachment; filename="orders{f"-{sku}" if sku else ""}.{as_}"'
    headers = {"Content-Disposition": name, **_KEPT_OUT}
    return StreamingResponse(parts(), media_type=_TYPES[as_], headers=headers)


@router.get("/orders/{order_id}/history", responses=responses(404, 422))
async def order_history(request: Request, order_id: Named) -> LifeView:
    """The life of an order."""
    state = state_of(request)
    found = await state.orders.numbered(order_id)
    if found is None:
        raise HTTPException(404, "no such order")
    return LifeView.of(found, await state.orders.history(found), await state.shop.place(found))


Units = Annotated[Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None, BeforeValidator(whole)]
Amount = Annotated[Annotated[int, Field(ge=1, le=10**15, strict=True)] | None, BeforeValidator(whole)]
Currency = Annotated[str | None, Field(strict=True, pattern=CURRENCY_PATTERN)]


Line = Annotated[str | None, Field(strict=True, pattern=f"^{SKU_PATTERN}$")]


class RefundRequest(BaseModel):
    """Money that was given back, or, with `later`, is still to be."""

    model_config = ConfigDict(extra="forbid")

    restock: bool = Field(strict=True, description="the units are sold again; else they are gone")
    payment_ref: str | None = Field(
        None,
        strict=True,
        min_length=1,
        max_length=200,
        description="which payment; left out: the order's own, or all that are owed",
    )
    amount: Amount = Field(
        None, description="a part of the payment, in the minor unit of its currency; needs an Idempotency-Key"
    )
    units: Units = Field(
        None, description="only so many units of the order, with their price; needs an Idempotency-Key"
    )
    sku: Line = Field(None, description="of which item of a basket; without units all of that line")
    name: str | None = Field(
        None,
        strict=True,
        min_length=1,
        max_length=200,
        description="that this refund was given back, of those that are owed; left out: whichever the amount settles",
    )
    currency: Currency = Field(None, description="of the amount; left out: the payment's")
    elsewhere: bool = Field(
        False,
        strict=True,
        description="without `later`: not at the provider, but in another way, such as by bank: it will never tell",
    )
    later: bool = Field(
        False, strict=True, description="the money is still to be given back: it is owed, and the order needs attention"
    )


class RefundView(BaseModel):
    """The outcome of a refund, and how the order stands."""

    outcome: RefundOutcome
    order: str | None = Field(None, description="the order's id")
    state: OrderState | None = None
    paid: int = Field(0, description="in all, in the minor unit of the order's currency, as all sums here")
    given_back: int = 0
    owed: int = Field(0, description="what is still to be given back")
    kept: int = 0
    gives_back: Literal["cashier", "operator"] | None = Field(
        None,
        description="who gives back what is owed: the cashier, by itself (`SECKILL_REFUNDS`), or an operator, at the "
        "provider; null: nothing is owed",
    )


@router.post("/orders/{order_id}/refund", responses=responses(408, 413, 422))
async def refund(
    request: Request, given: RefundRequest, by: Operator, order_id: Named, idempotency_key: Key = None
) -> RefundView:
    """Note that money was given back: that of an order, which ends it, or a payment that was one too many.

    With `later` the money is owed, and a cashier, if there is one (`SECKILL_REFUNDS`), has the provider give it back.

    A part, or some units, don't end the order; parts add up, and end it when all of the payment was given back.
    """
    needed = given.name is None and (given.amount, given.units, given.sku) != (None, None, None)
    key = _name_of_part("refund", idempotency_key, needed=needed)
    admin = state_of(request).orders
    order = await admin.numbered(order_id)
    if order is None:
        return RefundView(outcome=RefundOutcome.NOT_FOUND)
    wish = Refund(
        *(*order.id, given.restock, given.payment_ref, by, given.amount, given.units, key),
        later=given.later,
        name=given.name,
        elsewhere=given.elsewhere,
        line=given.sku,
    )
    try:
        answer = await admin.refund(order, wish, given.currency)
    except ValueError as error:
        raise invalid_field("currency", str(error), where="body") from None
    sums = answer.record.own_sums if answer.record else Sums(None)
    return RefundView(
        outcome=cast(RefundOutcome, answer.outcome),
        order=answer.order and str(answer.order),
        state=answer.record.state if answer.record else None,
        gives_back=None if not sums.owed else "operator" if state_of(request).cashier is None else "cashier",
        **{name: getattr(sums, name) for name in ("paid", "given_back", "owed", "kept")},
    )


class RetryView(BaseModel):
    """The result of each refund to try again, by its name."""

    outcomes: dict[str, RequestOutcome]


def _name_of_part(what: str, key: str | None, *, needed: bool) -> str | None:
    """The name of a part, by its idempotency key: the same one again is not another part."""
    if not needed:
        return None
    if key is None:
        raise invalid_field("Idempotency-Key", "a part needs one: twice is another time", where="header")
    return name_of_part(what, read_key(key.encode()))


class RetryRequest(BaseModel):
    """Refunds to try again."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(
        None, strict=True, min_length=1, max_length=200, description="which has failed, by its name; left out: all"
    )


@router.post("/orders/{order_id}/refund/retry", responses=responses(404, 408, 413, 422))
async def retry_refund(request: Request, wish: RetryRequest, by: Operator, order_id: Named) -> RetryView:
    """Have the cashier try failed refunds again, once the cause is gone."""
    admin = state_of(request).orders
    order = await admin.numbered(order_id)
    if order is None:
        raise HTTPException(404, "no such order")
    return RetryView(outcomes=await admin.retry(order, wish.name, by=by))


class CancelRequest(BaseModel):
    """Units that are no longer wanted."""

    model_config = ConfigDict(extra="forbid")

    units: Units = Field(None, description="only so many of them; needs an Idempotency-Key. Left out: all")
    sku: Line = Field(None, description="of which item of a basket; without units all of that line")


class CancelView(BaseModel):
    """The outcome of a cancellation, and how the order stands."""

    outcome: CancelOutcome
    order: str | None = Field(None, description="the order's id")
    state: OrderState | None = None


@router.post("/orders/{order_id}/cancel", responses=responses(408, 422))
async def cancel_order(
    request: Request, by: Operator, order_id: Named, wish: CancelRequest | None = None, idempotency_key: Key = None
) -> CancelView:
    """Give back the units that an order holds, or some. A paid order stays as it is: that would be a refund."""
    units, line = (wish.units, wish.sku) if wish else (None, None)
    name = _name_of_part("cancel", idempotency_key, needed=(units, line) != (None, None))
    admin = state_of(request).orders
    order = await admin.numbered(order_id)
    if order is None:
        return CancelView(outcome=CancelOutcome.NOT_FOUND)
    answer = await admin.cancel(order, by=by, units=units, message=name, line=line)
    state = answer.record.state if answer.record else order.state
    return CancelView(outcome=cast(CancelOutcome, answer.outcome), order=str(order.id), state=state)


@pages.api_route("/control/orders", methods=READING)
async def orders_page(request: Request) -> Response:
    """The page beside the control room; a visitor who is not logged in is sent to the login."""
    if state_of(request).auth.session(request) is None:
        return RedirectResponse(f"/control/login?{request.url.query}", 303)
    return await page(request, "ledger.html")

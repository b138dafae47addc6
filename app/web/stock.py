"""The buyers' endpoints: buy, look at the stock, look up an order."""

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from app.sale import Answer, AuditVerdict, Outcome, Purchase
from app.stock import DEFAULT_SKU, SKU_PATTERN, Level, Order
from app.web.problems import invalid_field, responses
from app.web.state import State, state_of

router = APIRouter(tags=["sale"])

_HEADERS: Final[dict[str, Any]] = {
    "X-Seckill-Outcome": {
        "description": "what became of the purchase",
        "required": True,
        "schema": {"enum": [str(one) for one in Outcome]},
    },
    "X-Seckill-Order": {"description": "the order's id, if sold", "schema": {"type": "string"}},
}
Sku = Annotated[str, Query(pattern=f"^{SKU_PATTERN}$", description="the item")]


class PurchaseView(BaseModel):
    """What became of a purchase."""

    outcome: Outcome
    quantity: int
    order: str | None = Field(None, description="the order's id, if sold; it can't be guessed, so keep it")
    replayed: bool = Field(False, description="the same answer as the same idempotency key got before")
    instance: str = Field(description="the instance that served it")


class AuditView(BaseModel):
    """What the auditor, one of the instances, found when it last looked at all items while they were being sold."""

    auditor: str = Field(description="the instance that looked")
    at: float = Field(description="when, in seconds since 1970")
    items: int
    orders: int
    consistent: bool = Field(description="whether numbers and orders agreed, for every item")

    @classmethod
    def of(cls, verdict: AuditVerdict) -> "AuditView":
        """The public part of a verdict."""
        return cls(
            auditor=verdict.auditor,
            at=verdict.at,
            items=verdict.items,
            orders=verdict.orders,
            consistent=verdict.consistent,
        )


class LevelView(BaseModel):
    """Units left and sold, at one moment."""

    sku: str
    stock: int
    lucky: int
    initial: int | None = Field(description="what stock + lucky must equal; null if the stock was set by other means")

    @classmethod
    def of(cls, level: Level) -> "LevelView":
        """What the store says."""
        return cls(sku=level.sku, stock=level.stock, lucky=level.lucky, initial=level.initial)


class StockView(LevelView):
    """Units left and sold, and whether all is well."""

    audit: AuditView | None = Field(description="null while nobody has looked")
    starts_at: float | None = Field(description="when the sale starts, in seconds since 1970; null: it has")
    ends_at: float | None = Field(description="when it ends; null: never")
    now: float = Field(description="the instance's clock, which decides whether it has started")


class OrderView(BaseModel):
    """An order as its buyer sees it."""

    id: str
    sku: str
    quantity: int
    buyer: str | None
    sold_at: float = Field(description="seconds since 1970")

    @classmethod
    def of(cls, order: Order) -> "OrderView":
        """The buyer's part of an order."""
        return cls(id=order.id, sku=order.sku, quantity=order.quantity, buyer=order.buyer, sold_at=order.sold_at)


async def reduce(
    request: Request,
    sku: Sku = DEFAULT_SKU,
    quantity: Annotated[int, Query(ge=1, description="units; a purchase gets all of them or none")] = 1,
    buyer: Annotated[
        str | None, Query(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$", description="who is buying")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=100,
            pattern=r"^[\x21-\x7e]+$",
            description="of your choice; the same key gets the same answer, and one unit",
        ),
    ] = None,
) -> Response:
    """Buy. Answers 200 once the purchase was processed, whether it was sold or sold out.

    The articles' text (`8080 reduce stock end!`), or JSON to a client that asks for `application/json`.
    """
    state = state_of(request)
    if quantity > state.quantity_max:  # a setting, so FastAPI can't know it
        raise invalid_field("quantity", f"Input should be less than or equal to {state.quantity_max}")
    answer = await state.shop.buy(Purchase(quantity, sku, buyer, idempotency_key))
    as_json = any("application/json" in value for value in request.headers.getlist("accept"))
    headers, body = respond(state, request.scope, answer, as_json=as_json)
    response = Response(body)
    response.raw_headers = headers
    return response


# A route for each method, as OpenAPI wants an operation id for each.
for _method in ("GET", "POST"):
    router.add_api_route(
        "/stock/reduce",
        reduce,
        methods=[_method],
        operation_id=f"reduce_stock_{_method.lower()}",
        response_class=PlainTextResponse,
        responses={
            200: {
                "description": "processed; the outcome is in the body (JSON) and in a header",
                "headers": _HEADERS,
                "content": {
                    "text/plain": {"schema": {"type": "string"}, "example": "8080 reduce stock end!"},
                    "application/json": {"schema": {"$ref": "#/components/schemas/PurchaseView"}},
                },
            },
            **responses(400, 404, 422, 503),
            **(responses(413) if _method == "POST" else {}),
        },
    )


def respond(state: State, scope: Scope, answer: Answer, *, as_json: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an answer."""
    if as_json:
        view = PurchaseView(
            outcome=answer.outcome,
            quantity=answer.quantity,
            order=answer.order_id,
            replayed=answer.replayed,
            instance=state.instance,
        )
        body, content_type = view.model_dump_json(exclude_none=True).encode(), b"application/json"
    else:
        server = scope.get("server")
        port = server[1] if server and server[1] else state.instance  # behind a unix socket there is no port
        body, content_type = f"{port} reduce stock end!".encode(), b"text/plain; charset=utf-8"
    headers = [
        (b"content-length", str(len(body)).encode()),
        (b"content-type", content_type),
        (b"x-seckill-outcome", answer.outcome.encode()),
    ]
    if answer.order_id is not None:
        headers.append((b"x-seckill-order", answer.order_id.encode()))
    return headers, body


async def _stock(state: State, sku: str) -> StockView:
    level = LevelView.of(await state.shop.level(sku))
    verdict = state.auditor.verdict if state.auditor else None
    starts_at, ends_at = state.shop.hours
    return StockView(
        **level.model_dump(),
        audit=AuditView.of(verdict) if verdict else None,
        starts_at=starts_at,
        ends_at=ends_at,
        now=time.time(),
    )


@router.get("/stock", responses=responses(400, 404, 422, 503))
async def stock(request: Request, sku: Sku = DEFAULT_SKU) -> StockView:
    """Units left and sold."""
    return await _stock(state_of(request), sku)


@router.get(
    "/stock/live",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **responses(400, 404, 422, 503)},
)
async def stock_live(request: Request, sku: Sku = DEFAULT_SKU) -> Response:
    """The same now and at each change, at most twice a second, as server-sent events with heartbeats in between.

    503 if too many listen: `GET /stock` tells the same.
    """
    state = state_of(request)
    state.buyers.ensure_room()
    since = state.buyers.number
    first = await _stock(state, sku)
    last = first

    async def look() -> str | None:
        nonlocal last
        before, last = last, await _stock(state, sku)
        return None if last == before.model_copy(update={"now": last.now}) else last.model_dump_json()

    return state.buyers.open(sku, first.model_dump_json(), look, since=since)


@router.get("/orders/{order_id}", responses=responses(404, 422, 503))
async def order(request: Request, order_id: Annotated[str, Path(max_length=200)]) -> OrderView:
    """An order, for whoever knows its id."""
    found = await state_of(request).shop.order(order_id)
    if found is None:
        raise HTTPException(404, "no such order")
    return OrderView.of(found)

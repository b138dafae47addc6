"""What buyers look at: the stock, and their orders."""

import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException

from app.audit import Auditor, AuditVerdict
from app.sale import Shop
from app.stock import DEFAULT_SKU, SKU_PATTERN, Level, Order
from app.web.looks import Looks
from app.web.problems import responses
from app.web.state import state_of

router = APIRouter(tags=["sale"])

Sku = Annotated[str, Query(pattern=f"^{SKU_PATTERN}$", description="the item")]


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

    audit: AuditView | None = Field(description="null while nobody has looked lately")
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


def etag(level: Level) -> str:
    """What a restock can say that it expects (`If-Match`)."""
    return f'"{level.stock}-{level.lucky}"'


class StockText(NamedTuple):
    """What buyers are told of an item: the same for all who ask within a moment, so it is made once."""

    level: Level
    audit: AuditVerdict | None
    text: str


def looks_at(shop: Shop, auditor: Auditor | None) -> Looks[StockText]:
    """What is behind `/stock`."""

    async def look(skus: Sequence[str]) -> dict[str, StockText | Exception]:
        starts_at, ends_at = shop.hours
        verdict = auditor.fresh_verdict if auditor else None
        audit = AuditView.of(verdict) if verdict else None
        levels = await shop.levels(skus)
        now = time.time()

        def text(level: Level) -> StockText:
            fields = LevelView.of(level).model_dump()
            view = StockView(**fields, audit=audit, starts_at=starts_at, ends_at=ends_at, now=now)
            return StockText(level, verdict, view.model_dump_json())

        return {sku: level if isinstance(level, Exception) else text(level) for sku, level in levels.items()}

    return Looks(look)


@router.get("/stock", response_model=StockView, responses=responses(400, 404, 422, 503))
async def stock(request: Request, sku: Sku = DEFAULT_SKU) -> Response:
    """Units left and sold."""
    found = await state_of(request).looks.at(sku)
    return Response(found.text, media_type="application/json", headers={"ETag": etag(found.level)})


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
    first = await state.looks.at(sku)
    last = first

    async def look() -> str | None:
        nonlocal last
        before, last = last, await state.looks.at(sku)
        return None if (last.level, last.audit) == (before.level, before.audit) else last.text

    return state.buyers.open(sku, first.text, look, since=since)


@router.get("/orders/{order_id}", responses=responses(404, 422, 503))
async def order(request: Request, order_id: Annotated[str, Path(max_length=200)]) -> OrderView:
    """An order, for anybody who knows its id."""
    found = await state_of(request).shop.order(order_id)
    if found is None:
        raise HTTPException(404, "no such order")
    return OrderView.of(found)

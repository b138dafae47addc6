"""The endpoints of the stock and of orders, for buyers."""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from app.audit import Auditor, AuditVerdict
from app.errors import ItemNotPossible, StockCorrupt, UnknownItem
from app.orders import DEFAULT_SKU, SKU_PATTERN, OrderId, Terms
from app.orders.view import OrderView, of_order
from app.sale import Shop
from app.stock import Level
from app.web import problems
from app.web.coalesce import Coalesced
from app.web.problems import invalid_field, responses
from app.web.raw_endpoint import RawEndpoint
from app.web.state import State, StockText, state_of

router = APIRouter(tags=["sale"])

PATH: Final = "/stock"

Sku = Annotated[str, Query(pattern=f"^{SKU_PATTERN}$", description="the item")]


_LIST_EVERY_S: Final = 2.0


def _stream_of(model: str) -> dict[int | str, dict[str, Any]]:
    """The description of a stream by the data of each event. (OpenAPI 3.1 can't describe the stream.)"""
    schema = {
        "type": "string",
        "description": "each event's data",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"#/components/schemas/{model}"},
    }
    return {200: {"content": {"text/event-stream": {"schema": schema}}}}


_ONE_SKU: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "sku",
            "in": "query",
            "required": False,
            "description": "the item",
            "schema": {"type": "string", "pattern": f"^{SKU_PATTERN}$", "default": DEFAULT_SKU},
        }
    ]
}


class AuditView(BaseModel):
    """The findings of the auditor, one of the instances, in its last audit of all items."""

    auditor: str = Field(description="the instance that looked")
    at: float = Field(description="when, in seconds since 1970")
    items: int
    orders: int
    consistent: bool = Field(description="whether numbers and orders agreed, for every item")

    @classmethod
    def of(cls, verdict: AuditVerdict) -> "AuditView":
        """The public part of a verdict."""
        return cls(**{name: getattr(verdict, name) for name in AuditView.model_fields})


class LevelView(BaseModel):
    """Units left and sold, at one moment."""

    sku: str
    stock: int
    held: int = Field(0, description="units that are held for buyers who have not paid yet")
    lucky: int
    waiting: int = Field(0, description="orders in line for units that are held")
    initial: int | None = Field(
        description="what stock + held + lucky must equal; null if the stock was set by other means"
    )

    @classmethod
    def of(cls, level: Level) -> "LevelView":
        """Make the view of a level."""
        return cls(**{name: getattr(level, name) for name in LevelView.model_fields})


class ItemView(LevelView):
    """Units left and sold, and the terms of the item: its own, and else the settings'."""

    limit_per_buyer: int = Field(description="how many units one buyer may have; 0: no limit")
    limit_group: str | None = Field(description="how many of several items: the number, and the other items")
    starts_at: float | None = Field(description="when the sale starts, in seconds since 1970; null: it has")
    ends_at: float | None = Field(description="when it ends; null: never")
    price: int | None = Field(None, description="of a unit, in the minor unit of the currency")
    currency: str | None = None
    paused: str = Field(
        description="nothing is sold for now, and this is what buyers are told of it; empty: it is sold"
    )
    paused_texts: dict[str, str] = Field({}, description="what readers of other languages are told, by language")

    @classmethod
    def on(cls, terms: Terms, level: Level) -> "ItemView":
        """An item on these terms."""
        return cls(
            **LevelView.of(level).model_dump(),
            limit_per_buyer=terms.limit_per_buyer or 0,
            limit_group=terms.limit_group,
            starts_at=terms.starts_at or None,
            ends_at=terms.ends_at or None,
            price=terms.price,
            currency=terms.currency,
            paused=terms.paused or "",
            paused_texts=dict(terms.paused_texts or {}),
        )


class StockView(ItemView):
    """An item with its terms, its sale, and the last audit."""

    sale: str | None = Field(description="another one after a new sale, which forgets all orders; null: nobody knows")
    audit: AuditView | None = Field(description="null while nobody has looked lately")
    goes_back_at: float | None = Field(
        description="when the first held units go back if nobody pays for them; null: none are held"
    )
    now: float = Field(description="the instance's clock, which decides whether it has started")


class ListView(BaseModel):
    """The items of the catalogue that are in the store."""

    items: list[StockView]
    now: float = Field(description="the instance's clock")


def etag(level: Level) -> str:
    """The entity tag of a level, which a restock can expect (`If-Match`)."""
    return f'"{level.stock}-{level.lucky}"'


def looks_at(shop: Shop, auditor: Auditor | None) -> Coalesced[StockText]:
    """The coalesced look-ups behind `/stock`."""

    async def look(skus: Sequence[str]) -> dict[str, StockText | Exception]:
        verdict = auditor.fresh_verdict if auditor else None
        audit = AuditView.of(verdict) if verdict else None
        levels = await shop.levels(skus)
        now = time.time()

        def text(level: Level) -> StockText:
            item = ItemView.on(shop.terms_of(level), level)
            back = None if level.due_in_s is None or level.now is None else round(level.now + level.due_in_s, 3)
            own = {"sale": level.sale or None, "audit": audit, "goes_back_at": back, "now": now}
            view = StockView(**item.model_dump(), **own)
            return StockText(level, verdict, view.model_dump_json())

        return {sku: level if isinstance(level, Exception) else text(level) for sku, level in levels.items()}

    return Coalesced(look)


async def look(scope: Scope, receive: Receive, send: Send) -> None:
    """Units left and sold: an ASGI application. Pages without a live feed poll it."""
    state: State = scope["state"]["seckill"]
    try:
        found = await state.looks.at(_sku_of(scope["query_string"]))
        answer = Response(found.text, media_type="application/json", headers={"ETag": etag(found.level)})
    except Exception as error:
        answer = problems.of(error, scope["method"], PATH)
    await answer(scope, receive, send)


def _sku_of(query: bytes) -> str:
    sku = DEFAULT_SKU
    for number, (name, value) in enumerate(parse_qsl(query.decode("latin-1"), keep_blank_values=True)):
        if name != "sku" or number:
            raise invalid_field(name or "query", "unknown parameter, or a second one; there is sku")
        sku = value
    if not re.fullmatch(SKU_PATTERN, sku):
        raise invalid_field("sku", "letters, digits, '.', '_' and '-', 64 at most")
    return sku


@router.get(PATH, response_model=StockView, responses=responses(400, 404, 422, 503), openapi_extra=_ONE_SKU)
async def stock(_: Request) -> Response:
    """Units left and sold, and the item's terms."""
    return RawEndpoint(look)


@router.get(
    "/stock/live",
    response_class=EventSourceResponse,
    responses={**_stream_of("StockView"), **responses(400, 404, 422, 503)},
)
async def stock_live(request: Request, sku: Sku = DEFAULT_SKU) -> Response:
    """The stock now and at each change, at most twice a second, as server-sent events with heartbeats in between.

    503 if too many listen: `GET /stock` answers the same.
    """
    state = state_of(request)
    state.buyers.ensure_room()
    since = state.buyers.number
    first = await state.looks.at(sku)
    last = first

    async def look() -> str | None:
        nonlocal last
        before, last = last, await state.looks.at(sku)
        return None if last.news == before.news else last.text

    return state.buyers.open(sku, first.text, look, since=since)


@router.get("/stock/list", response_model=ListView, responses=responses(503))
async def stock_list(request: Request) -> Response:
    """The items of the catalogue that are in the store, each as in `GET /stock`."""
    return Response(_text_of(await _items(state_of(request))), media_type="application/json")


@router.get(
    "/stock/list/live",
    response_class=EventSourceResponse,
    responses={**_stream_of("ListView"), **responses(503)},
)
async def stock_list_live(request: Request) -> Response:
    """The list now and at each change, at most once in two seconds, as server-sent events with heartbeats in between.

    503 if too many listen: `GET /stock/list` answers the same.
    """
    state = state_of(request)
    state.buyers.ensure_room()
    since = state.buyers.number
    last = first = await _items(state)
    told_at = time.monotonic()

    async def look() -> str | None:
        nonlocal last, told_at
        if time.monotonic() < told_at + _LIST_EVERY_S:
            return None
        before, last = last, await _items(state)
        if [one.news for one in last] == [one.news for one in before]:
            return None
        told_at = time.monotonic()
        return _text_of(last)

    return state.buyers.open("", _text_of(first), look, since=since)  # no item has that name


async def _items(state: State) -> list[StockText]:
    found = await asyncio.gather(*(_item(state, sku) for sku in state.catalogue.told))
    return [one for one in found if one is not None]


async def _item(state: State, sku: str) -> StockText | None:
    try:
        return await state.looks.at(sku)
    except (UnknownItem, ItemNotPossible, StockCorrupt):
        return None


def _text_of(items: Sequence[StockText]) -> str:
    return f'{{"items":[{",".join(one.text for one in items)}],"now":{time.time()}}}'


@router.get("/orders/{order_id}", responses=responses(404, 422, 503))
async def order(request: Request, order_id: Annotated[str, Path(max_length=200)]) -> OrderView:
    """An order, for anybody who knows its id."""
    wanted = OrderId.parse(order_id)
    found = await state_of(request).shop.order(wanted) if wanted else None
    if found is None:
        raise HTTPException(404, "no such order")
    return OrderView(**of_order(found))

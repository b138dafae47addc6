"""The events of orders, pulled by the shop's back end: the webhook's, with the same ids and bodies."""

import logging
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from pydantic_core import to_json

from app.errors import EXPECTED, CursorAhead
from app.outbox.pull import ITEMS_MAX, Pulled
from app.web.auth import SHOP
from app.web.orders import AnySku
from app.web.problems import invalid_field, responses
from app.web.state import State, state_of

_log = logging.getLogger(__name__)

router = APIRouter(tags=["events"], dependencies=[SHOP], responses=responses(401, 403, 503))

_STREAM: Final = "text/event-stream"
_STREAM_PAGE: Final = 100


class MessageView(BaseModel):
    """An event, as in a webhook."""

    id: str = Field(description="the same each time; the webhook's `webhook-id`")
    type: str
    timestamp: str
    data: dict[str, Any]


class EventsView(BaseModel):
    """Some events; an order's are in order."""

    events: list[MessageView]
    next: str = Field(description="the cursor behind them: give it as `after`, now or later")
    more: bool = Field(description="whether others are there already")
    unread: list[str] = Field(
        description="items whose events are missing here: their data are odd; or a stream of all items follows a "
        "hundred already, and these were added later"
    )


@router.get(
    "/events",
    response_model=EventsView,
    responses={200: {"content": {_STREAM: {}}}, **responses(400, 404, 409, 422)},
)
async def events(
    request: Request,
    sku: AnySku = None,
    after: Annotated[str, Query(description="a cursor; empty: from the first event on")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="of a stream: 100 at most in a message")] = 1000,
) -> Response:
    """The events of an item, or of all (100 items at most), behind a cursor.

    An item that a cursor doesn't name begins at its first event, as a new sale does. With `Accept: text/event-stream`
    it is a stream of such answers, as events come; the id of each is the cursor behind it, and `Last-Event-ID` goes
    before `after`. It needs the shop's bearer token (`SECKILL_SHOP_TOKEN`), or an operator's.
    """
    state, followed, resumed = state_of(request), list[str](), request.headers.get("last-event-id", "")
    cursor, field = resumed or after, "last-event-id" if resumed else "after"
    if _STREAM not in request.headers.get("accept", ""):
        pulled = await _pulled(state, sku, cursor, limit, field)
        return Response(body_of(pulled), media_type="application/json", headers={"Cache-Control": "no-store"})
    state.followers.ensure_room()
    first: Pulled | None = await _pulled(state, sku, cursor, min(limit, _STREAM_PAGE), field)

    async def look() -> tuple[str, str] | None:
        nonlocal first, cursor
        try:
            pulled = first or await _followed(state, sku, cursor, min(limit, _STREAM_PAGE), followed)
        except CursorAhead:
            raise
        except EXPECTED as error:
            _log.debug("a stream of events waits: %s", error)
            return None
        first, cursor = None, pulled.next
        return (body_of(pulled).decode(), pulled.next) if pulled.messages else None

    return state.followers.follow(look)


async def _followed(state: State, sku: str | None, cursor: str, limit: int, followed: list[str]) -> Pulled:
    """What a stream tells next. It goes on with the items that it has, when there are too many for one cursor."""
    skus = [sku] if sku is not None else await state.items.at()
    followed[:] = [*(one for one in followed if one in skus), *(one for one in skus if one not in followed)]
    left_out, followed[ITEMS_MAX:] = followed[ITEMS_MAX:], []
    pulled = await state.pull.read(sorted(followed), cursor, limit=limit, again=True)
    return pulled._replace(unread=sorted({*pulled.unread, *left_out}))


async def _pulled(state: State, sku: str | None, cursor: str, limit: int, field: str) -> Pulled:
    skus = [sku] if sku is not None else await state.items.at()
    if len(skus) > ITEMS_MAX:
        raise invalid_field("sku", f"name an item: there are more than {ITEMS_MAX}, too many for one cursor")
    try:
        return await state.pull.read(skus, cursor, limit=limit)
    except ValueError as error:
        raise invalid_field(field, str(error), where="header" if field == "last-event-id" else "query") from None


def body_of(pulled: Pulled) -> bytes:
    """The text of an `EventsView`, put together from the bodies that exist already."""
    events = b",".join(one.named for one in pulled.messages)
    about = to_json({"next": pulled.next, "more": pulled.more, "unread": pulled.unread})
    return b'{"events":[' + events + b"]," + about[1:]

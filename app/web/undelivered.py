"""The events that did not leave, for the control room: what is parked or dead, and having it sent again."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from app.operator import deliveries
from app.outbox.state import Wish
from app.web.auth import OPERATOR, Operator
from app.web.orders import AnySku
from app.web.problems import responses
from app.web.state import state_of

router = APIRouter(
    tags=["control room"], prefix="/control", dependencies=[OPERATOR], responses=responses(401, 403, 503)
)

_SHOWN_MAX = 1000


class UndeliveredRow(BaseModel):
    """An order that is parked, or an event that is dead."""

    state: Literal["parked", "dead"]
    order: str = Field(description="its number: the id without the secret")
    entry: str = Field(description="of the event that was refused")
    events: int = Field(description="how many wait")
    tries: int | None
    since: float = Field(description="refused first, or given up, in seconds since 1970")
    next: float | None = Field(description="when it is tried again")
    why: str


class UndeliveredView(BaseModel):
    """What is parked or dead, the first thousand of it."""

    rows: list[UndeliveredRow]
    total: int
    receiver: bool = Field(description="whether this instance knows a webhook")


class Replay(BaseModel):
    """The events to send again: without a moment those that are parked or dead."""

    model_config = ConfigDict(extra="forbid")

    since: float | None = Field(None, ge=0, le=1e11, description="all of this moment or later, in seconds since 1970")


class ReplayView(BaseModel):
    """The items whose events the sender is asked to send again."""

    items: list[str]


@router.get("/undelivered", responses=responses(400, 404, 422))
async def undelivered(request: Request, sku: AnySku = None) -> UndeliveredView:
    """The orders whose events are parked, and the dead letters, of an item or of all."""
    state = state_of(request)
    found = await deliveries.undelivered(state.store, await state.orders.named(sku))
    rows = [UndeliveredRow(**one._asdict()) for one in found[:_SHOWN_MAX]]
    return UndeliveredView(rows=rows, total=len(found), receiver=state.sender is not None)


@router.post("/replay", responses=responses(400, 404, 408, 413, 422))
async def replay(request: Request, given: Replay, by: Operator, sku: AnySku = None) -> ReplayView:
    """Have the sender send events of an item, or of all, again, within some seconds, or when there is one."""
    state = state_of(request)
    wish = Wish(dead=given.since is None, at=given.since)
    asked = await deliveries.replay(state.store, await state.orders.named(sku), wish)
    await deliveries.note_replay(state.store, asked, wish, by=by)
    return ReplayView(items=asked)

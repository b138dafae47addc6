"""Undelivered events, for the control room: list the parked and dead ones, and send them again."""

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from app.errors import ConfigurationError
from app.operator import deliveries
from app.outbox.state import Wish
from app.web.auth import OPERATOR, Operator
from app.web.orders import AnySku
from app.web.problems import invalid_field, responses
from app.web.state import State, state_of

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
    receiver: str = Field(description="its name, `default` if it has none")


class UndeliveredView(BaseModel):
    """The parked and dead events, a thousand at most."""

    rows: list[UndeliveredRow]
    total: int
    receiver: bool = Field(description="whether this instance knows a webhook")
    receivers: list[str] = Field(description="the names of all receivers that are set, or were in these sales")


class Replay(BaseModel):
    """The events to send again: those since a moment, or else the parked and dead ones."""

    model_config = ConfigDict(extra="forbid")

    since: float | None = Field(None, ge=0, le=1e11, description="all of this moment or later, in seconds since 1970")
    order: str | None = Field(None, description="one order's number, of what is parked or dead; without, all orders")
    receiver: str | None = Field(None, description="one receiver; without, all of them")


class ReplayView(BaseModel):
    """The items whose events the sender is asked to send again."""

    items: list[str]


@router.get("/undelivered", responses=responses(400, 404, 422))
async def undelivered(request: Request, sku: AnySku = None) -> UndeliveredView:
    """The orders whose events are parked, and the dead letters, of an item or of all."""
    state = state_of(request)
    skus = await state.orders.named(sku)
    receivers = await _receivers(state, skus)
    found = await deliveries.undelivered(state.store, skus, receivers)
    rows = [UndeliveredRow(**one._asdict()) for one in found[:_SHOWN_MAX]]
    return UndeliveredView(rows=rows, total=len(found), receiver=bool(state.senders), receivers=receivers)


@router.post("/replay", responses=responses(400, 404, 408, 413, 422))
async def replay(request: Request, given: Replay, by: Operator, sku: AnySku = None) -> ReplayView:
    """Have the sender send events of an item, or of all items, again, within some seconds."""
    state = state_of(request)
    try:
        order = None if given.order is None else deliveries.order_of(given.order, sku)
    except ValueError as error:
        raise invalid_field("order", str(error), where="body") from None
    if order is not None and given.since is not None:
        raise invalid_field("order", "not together with `since`", where="body")
    wish = Wish(None, given.since is None, given.since, [order.number] if order else None)
    skus = await state.orders.named(order.sku if order else sku)
    try:
        to = await _receivers(state, skus, given.receiver)
    except ConfigurationError as error:
        raise invalid_field("receiver", str(error), where="body") from None
    return ReplayView(items=await deliveries.replay(state.store, skus, wish, to, by=by))


async def _receivers(state: State, skus: Sequence[str], only: str | None = None) -> list[str]:
    return await deliveries.receivers(
        state.store, skus, only, configured=[sender.receiver.name for sender in state.senders]
    )

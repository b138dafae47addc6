"""The routes of a rehearsal: buyers are sent, and the holder is paused."""

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from app.orders import DEFAULT_SKU
from app.web.auth import OPERATOR
from app.web.dashboard import control_of
from app.web.problems import responses
from app.web.state import state_of
from app.web.stock import Sku

router = APIRouter(tags=["rehearsal"], prefix="/control", dependencies=[OPERATOR], responses=responses(401, 403, 503))

_PAUSE_BEYOND_TTL_S: Final = 3.0  # time for the next in line to take over, and for us to see it


class Rush(BaseModel):
    """Buyers to send: real purchases of one unit each, spread evenly over all instances."""

    model_config = ConfigDict(extra="forbid")

    buyers: int = Field(strict=True, ge=1, le=20_000)
    over_s: float = Field(0.0, ge=0, le=300, description="seconds within which they come; 0: all at once")


class RushView(BaseModel):
    """The instances that send the buyers."""

    instances: list[str]


class PauseRequest(BaseModel):
    """The time for which the holder is to be paused."""

    model_config = ConfigDict(extra="forbid")

    for_s: float | None = Field(None, ge=1, le=120, description="seconds; without it, three longer than a lease lasts")


class PauseView(BaseModel):
    """The instance that pauses."""

    instance: str
    for_s: float


@router.post("/rush", responses=responses(408, 413, 422, 503))
async def rush(request: Request, wish: Rush, sku: Sku = DEFAULT_SKU) -> RushView:
    """Send buyers, spread evenly over all instances."""
    room = control_of(request).room
    names = await room.obeying()
    share, more = divmod(wish.buyers, len(names))
    each = {name: float(share + (place < more)) for place, name in enumerate(names) if share or place < more}
    await room.command("rush", sku, each, over_s=wish.over_s)
    return RushView(instances=list(each))


@router.post("/pause", responses=responses(400, 408, 413, 422, 503))
async def pause(request: Request, wish: PauseRequest, sku: Sku = DEFAULT_SKU) -> PauseView:
    """Have the holder of the item's lock stand still before its next write, its leases not renewed meanwhile.

    If nobody holds it, this instance does so when it is its turn, if that is within a minute.
    """
    room, state = control_of(request).room, state_of(request)
    for_s = wish.for_s or room.lease_ttl_s + _PAUSE_BEYOND_TTL_S
    names, queue = await room.obeying(), await state.readiness.queue(sku)
    holder = next((str(one.owner.get("instance")) for one in queue if one.holds), state.instance)
    name = holder if holder in names else state.instance
    await room.command("pause", sku, {name: for_s})
    return PauseView(instance=name, for_s=for_s)

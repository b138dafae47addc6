"""What the routes work with; made by the lifespan, found through the request."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.sale import Auditor, Shop


@dataclass(frozen=True, slots=True)
class State:
    """The parts that the routes use, and the settings that concern HTTP."""

    shop: Shop
    scrape: Callable[[], bytes]
    instance: str
    quantity_max: int
    admin_token: str | None
    auditor: Auditor | None = None


def state_of(request: Request) -> State:
    """The state of the app that serves this request."""
    state: State = request.state.seckill
    return state

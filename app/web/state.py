"""What the routes work with; made by the lifespan, found through the request."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.sale import Auditor, ControlRoom, Shop
from app.web.auth import Door
from app.web.sse import Feeds


@dataclass(frozen=True, slots=True)
class State:
    """The parts that the routes use, and the settings that concern HTTP.

    `buyers` and `operators` look at what is live.
    """

    shop: Shop
    scrape: Callable[[], bytes]
    instance: str
    quantity_max: int
    door: Door
    control: ControlRoom
    buyers: Feeds
    operators: Feeds
    auditor: Auditor | None = None

    def close_feeds(self) -> None:
        """Let all go who look on: the server waits for its last answer."""
        self.buyers.close()
        self.operators.close()


def state_of(request: Request) -> State:
    """The state of the app that serves this request."""
    state: State = request.state.seckill
    return state

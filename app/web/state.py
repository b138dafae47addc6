"""What the routes work with; made by the lifespan, found through the request."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from app.audit import Auditor
from app.dashboard import ControlRoom
from app.sale import Admin, Shop
from app.web.auth import AdminAuth
from app.web.sse import Feeds


@dataclass(frozen=True, slots=True)
class State:
    """The parts that the routes use, and the settings that concern HTTP.

    `buyers` and `operators` look at what is live.
    """

    shop: Shop
    admin: Admin
    scrape: Callable[[], bytes]
    instance: str
    quantity_max: int
    auth: AdminAuth
    control: ControlRoom
    buyers: Feeds
    operators: Feeds
    auditor: Auditor | None = None

    def close_feeds(self) -> None:
        """Let all listeners go: the server waits for its last answer."""
        self.buyers.close()
        self.operators.close()


def state_of(request: Request) -> State:
    """The state of the app that serves this request."""
    state: State = request.state.seckill
    return state

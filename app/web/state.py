"""What the routes work with; made by the lifespan, found through the request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from app.audit import Auditor
from app.sale import Admin, Shop
from app.web.auth import AdminAuth
from app.web.catalogue import Catalogue
from app.web.looks import Cached, Looks
from app.web.rates import Rates
from app.web.sse import Feeds
from fencelock import Contender

if TYPE_CHECKING:
    from app.web.buyers import SignedBuyers
    from app.web.stock import StockText

Ready = tuple[dict[str, str], list[str]]  # the checks, and the instances that it waits for


@dataclass(frozen=True, slots=True)
class State:
    """The parts that the routes use, and the settings that concern HTTP.

    `buying`: the methods that buy; `signed`: who reads buyers from tokens, if they are signed; `rates`: who refuses
    those that try too often, if anybody is; `catalogue`: what the shop says of what it sells.

    `buyers` and `operators` listen to what is live; from `looks` on things are made once for all who ask.
    """

    shop: Shop
    admin: Admin
    instance: str
    quantity_max: int
    operator_port: int | None
    buying: Sequence[str]
    buyer_max: int
    signed: "SignedBuyers | None"
    rates: Rates | None
    catalogue: Catalogue
    auth: AdminAuth
    buyers: Feeds
    operators: Feeds
    looks: "Looks[StockText]"
    scrape: Cached[bytes]
    ready: Cached[Ready]
    locks: Cached[list[Contender]]
    warnings: list[str]
    auditor: Auditor | None = None

    def close_feeds(self) -> None:
        """Let all listeners go: the server waits for its last answer."""
        self.buyers.close()
        self.operators.close()


def state_of(request: Request) -> State:
    """The state of the app that serves this request."""
    state: State = request.state.seckill
    return state

"""What the routes work with; made by the lifespan, found through the request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastapi import Request

from app.audit import Auditor, AuditVerdict
from app.sale import Admin, Shop
from app.stock import Level
from app.web.auth import AdminAuth
from app.web.catalogue import Catalogue
from app.web.coalesce import Coalesced, TtlCache
from app.web.identity import SignedBuyers
from app.web.rates import Rates
from app.web.sse import Feeds
from fencelock import Contender

Ready = tuple[dict[str, str], list[str]]  # the checks, and the instances that it waits for


class StockText(NamedTuple):
    """What buyers are told of an item: the same for all who ask within a moment, so it is made once."""

    level: Level
    audit: AuditVerdict | None
    text: str


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
    signed: SignedBuyers | None
    rates: Rates | None
    catalogue: Catalogue
    auth: AdminAuth
    buyers: Feeds
    operators: Feeds
    looks: Coalesced[StockText]
    scrape: TtlCache[bytes]
    ready: TtlCache[Ready]
    locks: TtlCache[list[Contender]]
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

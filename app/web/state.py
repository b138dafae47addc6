"""The state of the routes, made by the lifespan and found through the request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import Request

from app.audit import Auditor, AuditVerdict
from app.cashier import Cashier
from app.operator import OrderAdmin, Readiness, StockAdmin
from app.outbox.pull import Pull
from app.outbox.sender import Sender
from app.payments import Reader
from app.payments.tally import Tally
from app.sale import Shop
from app.stock import Level, StockStore
from app.web.auth import AdminAuth
from app.web.catalogue import Catalogue
from app.web.coalesce import Coalesced, TtlCache
from app.web.identity import SignedBuyers
from app.web.sse import Feeds
from fencelock import Contender

Ready = tuple[dict[str, str], list[str]]  # the checks, and the instances that it waits for


class StockText(NamedTuple):
    """The answer of `/stock` for an item: the same for all who ask within a moment, so it is made once."""

    level: Level
    audit: AuditVerdict | None
    text: str

    @property
    def news(self) -> tuple[object, ...]:
        """The text that listeners get whenever it changes."""
        return self.level, self.level.sale, self.level.waiting, self.audit


@dataclass(frozen=True, slots=True)
class State:
    """The parts that the routes use, and the settings that concern HTTP."""

    shop: Shop
    stock: StockAdmin
    orders: OrderAdmin
    readiness: Readiness
    instance: str
    quantity_max: int
    operator_port: int | None
    buying: Sequence[str]  # the methods that buy
    buyer_max: int
    signed: SignedBuyers | None  # reads buyers from signed tokens; None: there is no key
    catalogue: Catalogue  # the descriptions of the items
    auth: AdminAuth
    buyers: Feeds  # the live feeds of the shop's pages
    operators: Feeds  # of the control room
    followers: Feeds  # of events
    store: StockStore
    pull: Pull  # reads events for the shop's back end
    items: TtlCache[list[str]]  # their names
    looks: Coalesced[StockText]  # like the next ones, it is made once for all who ask at the same time
    scrape: TtlCache[bytes]
    ready: TtlCache[Ready]
    unpriced: TtlCache[list[str]]
    locks: TtlCache[list[Contender]]
    reports: TtlCache[dict[str, Any]]
    warnings: list[str]
    callbacks: Mapping[str, Reader]  # the readers of payment providers, by their names
    tally: Tally  # of their callbacks
    unclaimed: Callable[[], None]  # counts a payment of a hold that is not here
    auditor: Auditor | None = None
    senders: Sequence[Sender] = ()
    cashier: Cashier | None = None
    pay_url: str = ""  # where buyers pay; "": nowhere
    request_ids: bool = False  # purchases have ids, too, and all requests a line in the log
    only_shop_holds: bool = False  # a hold needs the shop's token

    def close_feeds(self) -> None:
        """End all live feeds, as the server waits for its last answer."""
        self.buyers.close()
        self.operators.close()
        self.followers.close()


def state_of(request: Request) -> State:
    """The state of the app that serves this request."""
    state: State = request.state.seckill
    return state

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
        """What those who listen are told of, if it changes."""
        return self.level, self.level.sale, self.audit


@dataclass(frozen=True, slots=True)
class State:
    """The parts that the routes use, and the settings that concern HTTP.

    `buying`: the methods that buy; `signed`: reads buyers from signed tokens, if there is a key;
    `only_shop_holds`: a hold needs the shop's token; `callbacks`: the readers of payment providers, by
    their names, and the `tally` of their callbacks; `unclaimed`: counts a payment of a hold that is not here;
    `catalogue`: the descriptions of the items; `pay_url`: where buyers pay, or ""; `request_ids`: whether purchases
    have ids, too, and all requests a line in the log.

    `pull`: reads events for the shop's back end. `buyers`, `operators` and `followers` (of events) are the live feeds;
    `items`: their names; from `looks` on, the fields make things once for all who ask.
    """

    shop: Shop
    stock: StockAdmin
    orders: OrderAdmin
    readiness: Readiness
    instance: str
    quantity_max: int
    operator_port: int | None
    buying: Sequence[str]
    buyer_max: int
    signed: SignedBuyers | None
    catalogue: Catalogue
    auth: AdminAuth
    buyers: Feeds
    operators: Feeds
    followers: Feeds
    store: StockStore
    pull: Pull
    items: TtlCache[list[str]]
    looks: Coalesced[StockText]
    scrape: TtlCache[bytes]
    ready: TtlCache[Ready]
    unpriced: TtlCache[list[str]]
    locks: TtlCache[list[Contender]]
    reports: TtlCache[dict[str, Any]]
    warnings: list[str]
    callbacks: Mapping[str, Reader]
    tally: Tally
    unclaimed: Callable[[], None]
    auditor: Auditor | None = None
    senders: Sequence[Sender] = ()
    cashier: Cashier | None = None
    pay_url: str = ""
    request_ids: bool = False
    only_shop_holds: bool = False

    def close_feeds(self) -> None:
        """Let all listeners go: the server waits for its last answer."""
        self.buyers.close()
        self.operators.close()
        self.followers.close()


def state_of(request: Request) -> State:
    """The state of the app that serves this request."""
    state: State = request.state.seckill
    return state

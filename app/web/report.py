"""The report on the sale, for operators."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from app import moments
from app.operator import OrderAdmin
from app.orders.view import MoneyView
from app.web.auth import OPERATOR
from app.web.coalesce import TtlCache
from app.web.orders import AnySku
from app.web.problems import invalid_field, responses
from app.web.state import state_of

router = APIRouter(tags=["operator"], dependencies=[OPERATOR], responses=responses(401, 403, 503))

_KEPT_S = 5.0


class ByState(BaseModel):
    """A number for each state of an order."""

    sold: int
    waiting: int
    held: int
    confirmed: int
    expired: int
    cancelled: int
    refunded: int


class SumsView(BaseModel):
    """The sums of some orders."""

    orders: ByState
    units: ByState
    to_ship: int = Field(description="units that were paid, or sold at once")
    from_line: int = Field(description="of these, the units of buyers who had waited in line")
    paid_orders: int = Field(description="held, and then paid: confirmed or refunded")
    unpaid_orders: int = Field(description="held, and never paid: expired or cancelled")
    attention: int = Field(description="orders with a payment to give back, or a wrong one")
    conversion: float | None = Field(description="the share of the paid ones in both; null: there are none")
    money: dict[str, MoneyView] = Field(description='by currency; "" is that of payments without one')


class ItemSumsView(SumsView):
    """The sums of an item."""

    sku: str


class DaySumsView(SumsView):
    """The sums of the orders that began on a day."""

    day: str = Field(examples=["2026-11-11"])


class ReportView(BaseModel):
    """The result of the sale, as of now."""

    at: float = Field(description="when it was begun, in seconds since 1970")
    total: SumsView
    items: list[ItemSumsView] = Field(description="those that have orders, by name")
    days: list[DaySumsView] = Field(description="oldest first, in `zone`, or by the offset of `since`, or in UTC")


def reports(orders: OrderAdmin) -> TtlCache[dict[str, Any]]:
    """The reports behind `GET /report`: each is made once for all who ask meanwhile."""

    async def make(name: str) -> dict[str, Any]:
        sku, since, zone = name.split(" ")
        begin = datetime.fromisoformat(since) if since else None
        return (await orders.report(sku or None, begin, moments.zone(zone) if zone else None)).told

    return TtlCache(make, for_s=_KEPT_S)


@router.get("/report", responses=responses(400, 404, 422))
async def report(
    request: Request,
    sku: AnySku = None,
    since: Annotated[
        str | None,
        Query(
            max_length=40,
            description=f"only orders that began then or later: {moments.A_MOMENT}; its days count",
            json_schema_extra={"format": "date-time"},
        ),
    ] = None,
    zone: Annotated[str | None, Query(max_length=40, description=f"of the days: {moments.A_ZONE}")] = None,
) -> ReportView:
    """Parcels, money, and who held and did not pay: of an item, or of all, and by day.

    It looks through all orders, which takes a while if there are very many; some seconds old at most.
    """
    for field, text, read in (("since", since, moments.read), ("zone", zone, moments.zone)):
        try:
            _ = text is None or read(text)
        except ValueError:
            what = moments.A_MOMENT if field == "since" else moments.A_ZONE
            raise invalid_field(field, f"not {what}") from None
    since = since and moments.read(since).isoformat()  # which has no blank
    return ReportView(**await state_of(request).reports.at(f"{sku or ''} {since or ''} {zone or ''}"))

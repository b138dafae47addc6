"""The provider's payments beside the orders, for operators: the page, and the comparison that it shows."""

import asyncio
import io
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from app import moments
from app.errors import ProviderUnavailable, SeckillError
from app.operator.payments import reconcile
from app.payments.reconcile import Cause, Difference, Movement
from app.payments.statement import StatementError, each
from app.sale.export import Format
from app.web.auth import OPERATOR
from app.web.pages import READING, page
from app.web.problems import invalid_field, responses
from app.web.state import State, state_of

router = APIRouter(tags=["operator"], dependencies=[OPERATOR], responses=responses(401, 403, 503))
pages = APIRouter(include_in_schema=False)

PATH: Final = "/orders/reconcile"
BODY_MAX_BYTES: Final = 16_777_216  # some 100,000 payments
BODY_TIMEOUT_S: Final = 120.0
_SHOWN_MAX: Final = 10_000
_AT_ONCE: Final = 200  # lines that are read before buyers have their turn again
_LIST: Final = {
    "requestBody": {
        "description": "the provider's list: nothing with `stripe=true`",
        "content": {media: {"schema": {"type": "string"}} for media in ("text/csv", "application/jsonl")},
    }
}


class DifferenceView(BaseModel):
    """A payment that differs. Amounts are in the minor unit of `currency`."""

    cause: Cause
    payment_ref: str
    orders: list[str] = Field(description="that have the payment: their numbers, without the secrets")
    there: int = Field(description="the amount at the provider")
    here: int = Field(description="the amount of the orders")
    currency: str | None
    said: str = Field(description="the difference as a sentence")

    @classmethod
    def of(cls, one: Difference) -> "DifferenceView":
        """The view of a difference."""
        return cls(**one._asdict() | {"orders": list(one.orders), "said": str(one)})


class TotalsView(BaseModel):
    """Sums in a currency, in its minor unit."""

    charged: int = Field(description="at the provider")
    refunded: int = Field(description="at the provider, with disputes that were lost")
    paid: int = Field(description="by the orders")
    given_back: int = Field(description="by the orders")
    owed: int = Field(description="what is still to be given back")
    kept: int = Field(description="by the orders: paid, less what was given back")


class ReconcileView(BaseModel):
    """The differences between the provider's list and the orders, and the sums of both."""

    lines: int = Field(description="of the provider's list")
    count: int = Field(description="how many payments differ")
    causes: dict[Cause, int] = Field(description="how many, by their cause")
    differences: list[DifferenceView] = Field(description="the first ten thousand, by the payments' names")
    totals: dict[str, TotalsView] = Field(description='by currency; "" is that of payments without one')


Since = Annotated[str | None, Query(max_length=40, description=f"when the list begins: {moments.A_MOMENT}")]


@router.post(PATH, responses=responses(408, 413, 422), openapi_extra=_LIST)
async def compare(
    request: Request,
    as_: Annotated[Format, Query(alias="format", description="of the list in the body")] = "csv",
    since: Since = None,
    stripe: Annotated[bool, Query(description="ask Stripe, with the key of SECKILL_REFUNDS")] = False,
) -> ReconcileView:
    """Compare each charge and each refund of the provider's list with the orders. Nothing is changed.

    The list has columns of ours (payment_ref, kind, amount, currency), or is Stripe's itemized report.
    """
    try:
        begin = moments.read(since).timestamp() if since else 0.0
    except ValueError:
        raise invalid_field("since", f"not {moments.A_MOMENT}") from None
    state = state_of(request)
    lines = 0

    async def counted(found: AsyncIterable[Movement]) -> AsyncGenerator[Movement, None]:
        nonlocal lines
        async for one in found:
            lines += 1
            if lines % _AT_ONCE == 0:
                await asyncio.sleep(0)
            yield one

    listed = _of_stripe(state, begin) if stripe else _of_body(await request.body(), as_)
    async with aclosing(listed), aclosing(counted(listed)) as movements:
        found = await reconcile(state.orders, movements, begin)
    causes, shown = Counter[Cause](), list[DifferenceView]()
    for count, one in enumerate(found.differences(), 1):
        causes[one.cause] += 1
        if count <= _SHOWN_MAX:
            shown.append(DifferenceView.of(one))
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)  # buyers have their turns
    return ReconcileView(
        lines=lines,
        count=causes.total(),
        causes=causes,
        differences=shown,
        totals={currency: TotalsView(**total.told) for currency, total in found.totals.items()},
    )


async def _of_body(body: bytes, as_: Format) -> AsyncGenerator[Movement, None]:
    text = io.TextIOWrapper(io.BytesIO(body), encoding="utf-8-sig", newline="")
    try:
        for number, line in enumerate(each(text, json_lines=as_ == "jsonl")):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if line is not None:
                yield line
    except UnicodeDecodeError:
        raise invalid_field("body", "not in UTF-8", where="body") from None
    except StatementError as error:
        raise invalid_field("body", str(error), where="body") from None


async def _of_stripe(state: State, since: float) -> AsyncGenerator[Movement, None]:
    provider: Any = state.cashier and state.cashier.provider
    if not hasattr(provider, "movements"):
        raise invalid_field("stripe", "SECKILL_REFUNDS is not stripe://KEY here")
    try:
        async with aclosing(provider.movements(since)) as lines:
            async for line in lines:
                yield line
    except SeckillError as error:
        raise ProviderUnavailable(str(error)) from None


@pages.api_route("/control/reconcile", methods=READING)
async def reconcile_page(request: Request) -> Response:
    """The page beside the orders; a visitor who is not logged in is sent to the login."""
    if state_of(request).auth.session(request) is None:
        return RedirectResponse(f"/control/login?{request.url.query}", 303)
    return await page(request, "reconcile.html")

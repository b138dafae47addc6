"""The endpoints for machines: liveness, readiness, metrics."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field

from app.errors import StockError
from app.operator import Readiness, StockAdmin
from app.telemetry.metrics import Metrics
from app.web import problems
from app.web.coalesce import TtlCache
from app.web.problems import RETRY_AFTER, responses
from app.web.state import Ready, State, state_of

router = APIRouter(tags=["health"])

ALIVE: Final = "/healthz"
_NAMED_MAX: Final = 20
_UNPRICED_FOR_S: Final = 5.0
_PATIENCE_S: Final = 1.0  # orchestrators give up after a second or two


class ReadyView(BaseModel):
    """Whether this instance can sell, and each thing that it needs for that."""

    ready: bool
    instance: str
    mode: str = Field(description='how sales happen: under the "lock", or "optimistic" while the lock system is away')
    waits_for: list[str] = Field(
        description="instances that have kept this one waiting for a lock for more than a second; nothing can be sold "
        "until they give it back, or lose it after a TTL"
    )
    warnings: list[str] = Field(
        description="what this lock and this store together can't promise, a store's clock that is wrong, items that "
        "can't be sold for now, and items without a price where payments are set up"
    )
    checks: dict[str, str] = Field(examples=[{"etcd": "ok", "store": "ok", "renewal": "ok", "stock": "ok"}])


def ready(readiness: Readiness) -> TtlCache[Ready]:
    """The cache behind `/readyz`: each check writes to the lock system and to the store."""

    async def look(_: str) -> Ready:
        checks, waits_for = await asyncio.gather(readiness.ready(_PATIENCE_S), readiness.waits_for(_PATIENCE_S))
        return checks, waits_for

    return TtlCache(look)


def unpriced(stock: StockAdmin) -> TtlCache[list[str]]:
    """The cache behind the warning of items that are given away: it reads all items."""

    async def look(_: str) -> list[str]:
        return await stock.unpriced()

    return TtlCache(look, for_s=_UNPRICED_FOR_S)


def scrape(metrics: Metrics) -> TtlCache[bytes]:
    """The cache behind `/metrics`: rendering takes milliseconds of the loop."""

    async def render(_: str) -> bytes:
        return metrics.render()

    return TtlCache(render)


@router.get(ALIVE, response_class=PlainTextResponse, responses={200: {"content": {"text/plain": {"example": "ok"}}}})
async def healthz(_: Request) -> Response:
    """Answer "ok": the process and its event loop run."""
    return PlainTextResponse("ok")


async def standing(state: State) -> ReadyView:
    """Whether this instance can sell, with its checks and warnings. Checked once a second at most."""
    (checks, waits_for), given_away = await asyncio.gather(state.ready.at(), _given_away(state))
    if state.shop.leaving:
        checks = checks | {"shop": "closing"}
    ready = all(check in ("ok", "away") for check in checks.values())
    return ReadyView(
        ready=ready,
        instance=state.instance,
        mode=state.readiness.mode,
        waits_for=waits_for,
        warnings=[
            *state.warnings,
            *state.readiness.clocks.warnings,
            *_blocked(state.shop.errors),
            *(warning for sender in state.senders for warning in sender.warnings),
            *state.tally.warnings,
            *(state.cashier.warnings if state.cashier is not None else ()),
            *_owed(state.auditor.owed if state.auditor is not None else 0),
            *given_away,
        ],
        checks=checks,
    )


@router.get(
    "/readyz",
    response_model=ReadyView,
    responses={503: {"model": ReadyView, "description": "not ready", "headers": RETRY_AFTER}},
)
async def readyz(request: Request) -> Response:
    """Lock system, store, renewal of leases and stock, each "ok" or "not available". The log says why.

    An item that can't be sold is a warning as long as another one can be. Checked once a second at most.
    """
    view = await standing(state_of(request))
    return JSONResponse(
        view.model_dump(), 200 if view.ready else 503, headers={} if view.ready else {"Retry-After": "1"}
    )


def _owed(payments: int) -> list[str]:
    said = f"{payments} payment{'s' * (payments != 1)} to give back, or of a wrong amount"
    return [f"{said}: `seckill orders list --state attention`"] if payments else []


async def _given_away(state: State) -> list[str]:
    """Items without a price, where payments are set up: a purchase gets them for nothing."""
    if not state.pay_url and not state.callbacks:
        return []
    try:
        async with asyncio.timeout(_PATIENCE_S):
            items = sorted(await state.unpriced.at())
    except (StockError, TimeoutError):
        return []  # a check reports that; or there are many items, and a later request gets the answer
    return [f"{sku} has no price: it is sold for nothing" for sku in items[:_NAMED_MAX]] + _more(len(items))


def _more(count: int) -> list[str]:
    return [f"and {count - _NAMED_MAX} more items"] if count > _NAMED_MAX else []


def _blocked(errors: dict[str, Exception]) -> list[str]:
    named = [f"{sku} can't be sold: {problems.title(error)}" for sku, error in sorted(errors.items())[:_NAMED_MAX]]
    return named + _more(len(errors))


@router.get("/metrics", response_class=PlainTextResponse, responses=responses(503))
async def metrics(request: Request) -> Response:
    """The metrics of this instance, in Prometheus' text format. Rendered once a second at most."""
    return PlainTextResponse(await state_of(request).scrape.at(), media_type="text/plain; version=0.0.4; charset=utf-8")

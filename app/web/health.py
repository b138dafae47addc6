"""The endpoints that machines ask: is the process alive, is it ready, what does it count."""

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field

from app.web.problems import RETRY_AFTER
from app.web.state import state_of

router = APIRouter(tags=["health"])

_PATIENCE_S: Final = 1.0  # orchestrators give up after a second or two


class ReadyView(BaseModel):
    """Whether this instance can sell, and each thing that it needs for that."""

    ready: bool
    instance: str
    mode: str = Field(description='how sales happen: under the "lock", or "optimistic" while the lock system is away')
    checks: dict[str, str] = Field(examples=[{"etcd": "ok", "store": "ok", "renewal": "ok", "stock": "ok"}])


@router.get(
    "/healthz", response_class=PlainTextResponse, responses={200: {"content": {"text/plain": {"example": "ok"}}}}
)
async def healthz() -> str:
    """The process runs and its event loop turns."""
    return "ok"


@router.get(
    "/readyz",
    response_model=ReadyView,
    responses={503: {"model": ReadyView, "description": "not ready", "headers": RETRY_AFTER}},
)
async def readyz(request: Request) -> Response:
    """etcd, store, renewal thread and the items being sold, each "ok" or "not available". The log says why."""
    state = state_of(request)
    checks = await state.admin.ready(_PATIENCE_S)
    ready = all(check in ("ok", "away") for check in checks.values())
    view = ReadyView(ready=ready, instance=state.instance, mode=state.admin.mode, checks=checks)
    return JSONResponse(view.model_dump(), 200 if ready else 503, headers={} if ready else {"Retry-After": "1"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """What this instance counts, in Prometheus' text format."""
    return PlainTextResponse(state_of(request).scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")

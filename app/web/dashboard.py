"""The control room: a page for the operator, the data that it shows, and the actions of its buttons."""

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse

from app.audit import AuditVerdict
from app.dashboard.picture import InstanceState, ItemHistory, PastGrant, Picture, Sample
from app.dashboard.room import ControlRoom
from app.errors import StockError, UnknownItem
from app.orders import DEFAULT_SKU
from app.stock import Level
from app.web import health
from app.web.admin import ContenderView
from app.web.auth import OPERATOR
from app.web.catalogue import NOTHING
from app.web.coalesce import TtlCache
from app.web.pages import READING, page
from app.web.problems import responses
from app.web.state import State, state_of
from app.web.stock import AuditView, ItemView, Sku
from fencelock import Contender, Scope

pages = APIRouter(include_in_schema=False)
router = APIRouter(
    tags=["control room"], prefix="/control", dependencies=[OPERATOR], responses=responses(401, 403, 503)
)

LOGIN: Final = "/control/login"
_NOT_KEPT: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}  # the token may be in the address
_ITEMS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Control:
    """The state of the control room's routes, beside `State`; buyers need none of it."""

    room: ControlRoom
    pictures: TtlCache[Picture]


def control_of(request: Request) -> Control:
    """The control room of the app that serves this request."""
    control: Control = request.state.control
    return control


# -- the page --------------------------------------------------------------------------------------------------------


@pages.api_route("/control", methods=READING)
async def control(
    request: Request, token: Annotated[str | None, Query(description="the admin token, once")] = None
) -> Response:
    """The page. A link with the token in it opens it, and leaves no token in the address bar."""
    auth = state_of(request).auth
    if token is not None:
        return _enter(request, token)
    if auth.session(request) is None:
        return RedirectResponse(_address(request, LOGIN), 303)
    if "sku" not in request.query_params:
        with contextlib.suppress(StockError):  # the page of an item reports it, too
            skus = await _skus(request)
            if len(skus) == 1 and skus != [DEFAULT_SKU]:
                return RedirectResponse(_address(request, "/control", sku=skus[0]), 303)
            return await page(request, "overview.html" if len(skus) > 1 else "control.html")
    return await page(request, "control.html" if request.query_params.get("sku") else "overview.html")


async def _skus(request: Request) -> list[str]:
    """The items of the store and of the catalogue."""
    stock = state_of(request).stock
    return sorted({*await stock.items(), *(stock.catalogue or ())})[:_ITEMS_MAX]


@pages.api_route("/control/deliveries", methods=READING)
async def deliveries(request: Request) -> Response:
    """The page of the events that did not leave; a visitor who is not logged in is sent to the login."""
    if state_of(request).auth.session(request) is None:
        return RedirectResponse(_address(request, LOGIN), 303)
    return await page(request, "deliveries.html")


@pages.api_route("/control/login", methods=READING)
async def login(request: Request) -> Response:
    """The form for the token, or a note that there is none."""
    return await page(request, "locked.html" if state_of(request).auth.disabled else "login.html")


@pages.post("/control/login")
async def show_token(request: Request) -> Response:
    """The token, from the page's form."""
    fields = parse_qs((await request.body()).decode(errors="replace"))
    return _enter(request, fields.get("token", [""])[0].strip())


@pages.post("/control/leave", dependencies=[OPERATOR])
async def leave(request: Request) -> Response:
    """Log the operator out."""
    response = Response(status_code=204)
    state_of(request).auth.log_out(response)
    return response


def _address(request: Request, path: str, **more: str) -> str:
    """An address with the rest of the request's query: the item and the language."""
    query = request.url.remove_query_params(["token", "wrong"]).include_query_params(**more).query
    return f"{path}?{query}" if query else path


def _enter(request: Request, token: str) -> Response:
    auth = state_of(request).auth
    name = auth.verify(token)
    if name is None:
        return RedirectResponse(_address(request, LOGIN, wrong=""), 303, headers=_NOT_KEPT)
    response = RedirectResponse(_address(request, "/control"), 303, headers=_NOT_KEPT)
    auth.log_in(name, request, response)
    return response


@pages.get("/control/session", dependencies=[OPERATOR])
async def session(request: Request) -> dict[str, str | bool | None]:
    """The token that the page's own requests need besides the cookie, and whether a cashier makes refunds."""
    state = state_of(request)
    found = state.auth.session(request)
    return {"csrf": state.auth.csrf(found) if found else None, "cashier": state.cashier is not None}


# -- what it shows ---------------------------------------------------------------------------------------------------


class LockView(BaseModel):
    """The lock of the item, and its visible state."""

    name: str
    system: str
    keeps_apart: Scope
    shows_waiters: bool = Field(description="else the queue has its holder only")
    ttl_s: float = Field(description="of its leases")


class PlaceView(BaseModel):
    """A place in the lock's queue."""

    key: str
    token: str
    holds: bool
    instance: str | None
    pid: int | None
    thread: str | None
    waited_s: float | None
    held_s: float | None = Field(description="of the holder, if an instance says so")
    ttl_left_s: float | None

    @classmethod
    def of(cls, contender: Contender, held_s: float | None) -> "PlaceView":
        """The answer of `/locks`, with the token as text."""
        view = ContenderView.of(contender).model_dump()
        return cls(**view | {"token": str(contender.token)}, held_s=held_s)


class InstanceView(BaseModel):
    """An instance's report of itself, and how long ago it came."""

    instance: str
    units: int = Field(description="sold since it was started")
    served: int = Field(description="buyers who had an answer since then")
    waiting: int = Field(description="buyers")
    mode: str
    pausing: bool = Field(description="its next write will be held back")
    paused_s: float = Field(description="so long a write of its will still be held back")
    token: str | None = Field(description="of the grant that it believes to have of this item's lock")
    since: float | None = Field(description="when it got that, in seconds since 1970")
    lacks: list[str] = Field(description="what keeps it from selling, as /readyz names it")
    port: int = Field(description="where it listens; 0: not known")
    silent_s: float
    silent: bool = Field(description="for so long that it is not counted on")

    @classmethod
    def of(cls, state: InstanceState, lock: str) -> "InstanceView":
        """An instance, for JSON."""
        report = state.report
        held = next((one for one in report.held if one.lock == lock), None)
        own = {name: getattr(report, name) for name in cls.model_fields if hasattr(report, name)}
        grant = {"token": str(held.token) if held else None, "since": held.at if held else None}
        return cls(**own, **grant, silent_s=state.silent_s, silent=state.silent)


class GrantView(BaseModel):
    """A grant that is over."""

    instance: str
    token: str
    at: float = Field(description="when it was got, in seconds since 1970")
    waited_ms: float
    held_ms: float
    purchases: int
    units: int
    handed_over_ms: float | None = Field(description="since the one before had ended, or since it was asked for")

    @classmethod
    def of(cls, past: PastGrant) -> "GrantView":
        """A grant, for JSON."""
        return cls(
            instance=past.instance,
            token=str(past.grant.token),
            at=past.grant.at,
            waited_ms=past.grant.waited_s * 1000,
            held_ms=(past.grant.held_s or 0.0) * 1000,
            purchases=past.grant.purchases,
            units=past.grant.units,
            handed_over_ms=None if past.handed_over_s is None else past.handed_over_s * 1000,
        )


class EventView(BaseModel):
    """Something unusual, and the facts. `of`, if it is there, is whom or what it is about.

    `paused`, `ran_out`, `overtaken`, `woke`, `wrote`, `fenced` and `lost` are of grants; `silent`, `back`, `came` and
    `left` of instances, `away` and `reached` of the store or the lock system; beside `resolved`, `rush`, `mode` and
    `auditor`.
    """

    id: str
    instance: str
    at: float
    kind: str
    facts: dict[str, str | int | float]
    times: int = Field(description="how often within a second")


class VerdictView(AuditView):
    """The auditor's findings, for the operator."""

    violations: int = Field(description="over all items; what they are is in the auditor's log")

    @classmethod
    def of(cls, verdict: AuditVerdict) -> "VerdictView":
        """A verdict, for JSON."""
        return cls(**AuditView.of(verdict).model_dump(), violations=sum(verdict.violations.values()))


class PictureView(BaseModel):
    """The sale of an item, as one instance sees it. Tokens are text: some are too large for a browser's numbers."""

    at: float
    instance: str
    sku: str
    level: ItemView | None
    missing: bool = Field(description="whether there is no such item")
    store_error: str | None
    rehearsal: bool = Field(description="whether a laboratory has extended the control room: nothing is really sold")
    guarded: bool = Field(description="whether the store refuses the write of a holder that was overtaken")
    lock: LockView
    queue: list[PlaceView]
    lock_error: str | None
    instances: list[InstanceView]
    grants: list[GrantView]
    events: list[EventView]
    audit: VerdictView | None

    @classmethod
    def of(cls, picture: Picture, level: ItemView | None, verdict: AuditVerdict | None) -> "PictureView":
        """A picture, for JSON; `level`: its own, on its terms."""
        since = {
            (state.report.instance, held.token): held.at for state in picture.instances for held in state.report.held
        }
        queue = []
        for contender in picture.queue:
            instance = str(contender.owner.get("instance"))
            held_since = since.get((instance, contender.token)) if contender.holds else None
            queue.append(PlaceView.of(contender, None if held_since is None else max(0.0, picture.at - held_since)))
        names = ("at", "instance", "sku", "missing", "store_error", "rehearsal", "guarded", "lock_error")
        return cls(
            **{name: getattr(picture, name) for name in names},
            level=level,
            lock=LockView(
                name=picture.lock,
                system=picture.lock_system,
                keeps_apart=picture.lock_guarantees.scope,
                shows_waiters=picture.lock_guarantees.shows_queue,
                ttl_s=picture.lease_ttl_s,
            ),
            queue=queue,
            instances=[InstanceView.of(state, picture.lock) for state in picture.instances],
            grants=[GrantView.of(past) for past in picture.grants],
            events=[
                EventView(
                    id=f"{one.instance}/{one.event.number}",
                    instance=one.instance,
                    at=one.event.at,
                    kind=one.event.kind,
                    facts={name: str(fact) if name == "token" else fact for name, fact in one.event.facts.items()},
                    times=one.event.times,
                )
                for one in picture.events
            ],
            audit=VerdictView.of(verdict) if verdict else None,
        )


def _view(state: State, picture: Picture) -> PictureView:
    level = ItemView.on(state.shop.terms_of(picture.level), picture.level) if picture.level else None
    return PictureView.of(picture, level, state.auditor.fresh_verdict if state.auditor else None)


@router.get("/picture", responses=responses(422))
async def picture(request: Request, sku: Sku = DEFAULT_SKU) -> PictureView:
    """The sale of an item, over all instances, as the page shows it; made once a second at most."""
    state = state_of(request)
    return _view(state, await control_of(request).pictures.at(sku))


class HistoryView(BaseModel):
    """The last two minutes, as far as this instance knows of them."""

    samples: list[Sample]
    grants: list[GrantView]

    @classmethod
    def of(cls, history: ItemHistory) -> "HistoryView":
        """A history, for JSON."""
        return cls(samples=history.samples, grants=[GrantView.of(past) for past in history.grants])


@router.get("/history", responses=responses(422))
async def history(request: Request, sku: Sku = DEFAULT_SKU) -> HistoryView:
    """The last two minutes, for a new viewer."""
    return HistoryView.of(control_of(request).room.history(sku))


@router.get("/items", responses=responses(503))
async def items(request: Request) -> list[str]:
    """The items that have a stock or are in the catalogue, a thousand at most."""
    return await _skus(request)


class OverviewItem(BaseModel):
    """An item, and the reason why it can't be sold, if any."""

    sku: str
    name: dict[str, str] | None = Field(description="by language, if it is in the catalogue")
    picture: str | None = Field(description="its address")
    level: ItemView | None = Field(description="null: it has no stock, or that can't be read")
    wrong: list[str]


class OverviewView(BaseModel):
    """All items, as one instance sees them."""

    at: float
    instance: str
    ready: bool = Field(description="whether this instance can sell")
    lacks: list[str] = Field(description="what keeps it from selling, as /readyz names it")
    warnings: list[str] = Field(description="those of /readyz")
    audit: VerdictView | None
    items: list[OverviewItem]


@router.get("/overview", responses=responses(503))
async def overview(request: Request) -> OverviewView:
    """All items, a thousand at most: stock, sold, terms, problems."""
    state = state_of(request)
    skus = await _skus(request)
    levels, errors, ready = await state.stock.levels(skus), state.shop.errors, await health.standing(state)
    verdict = state.auditor.fresh_verdict if state.auditor else None

    def item(sku: str) -> OverviewItem:
        level, wrong = levels[sku], []
        if isinstance(level, StockError) and not isinstance(level, UnknownItem):
            wrong.append(str(level))
        elif sku in errors:
            wrong.append(str(errors[sku]))
        if verdict and verdict.violations.get(sku):
            wrong.append(f"{verdict.violations[sku]} violations, see `seckill check`")
        view = ItemView.on(state.shop.terms_of(level), level) if isinstance(level, Level) else None
        told = json.loads(state.catalogue.told.get(sku, NOTHING))
        return OverviewItem(sku=sku, name=told.get("name"), picture=told.get("picture"), level=view, wrong=wrong)

    return OverviewView(
        at=time.time(),
        instance=state.instance,
        ready=ready.ready,
        lacks=[name for name, check in ready.checks.items() if check not in ("ok", "away")],
        warnings=ready.warnings,
        audit=VerdictView.of(verdict) if verdict else None,
        items=[item(sku) for sku in skus],
    )


@router.get(
    "/live",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **responses(422, 503)},
)
async def live(request: Request, sku: Sku = DEFAULT_SKU) -> Response:
    """The picture of a sale, once a second, as server-sent events."""
    state = state_of(request)
    state.operators.ensure_room()
    since = state.operators.number
    pictures = control_of(request).pictures
    first = await pictures.at(sku)
    last = first

    async def look() -> str | None:
        nonlocal last
        before, last = last, await pictures.at(sku)
        return None if last is before else _view(state, last).model_dump_json()

    return state.operators.open(sku, _view(state, first).model_dump_json(), look, since=since)

"""Holds, for a shop's back end and its page: hold, confirm, extend, cancel.

They go past the framework and the admission of readers into the same queue, as purchases do. An expected outcome has
status 200, as payment providers repeat everything else; only "try again" is 5xx. For OpenAPI they are routes of
FastAPI's as well.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote_plus

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from app.orders import (
    CURRENCY_PATTERN,
    DEFAULT_SKU,
    SKU_PATTERN,
    Answer,
    Cancel,
    CancelOutcome,
    Confirm,
    ConfirmOutcome,
    Extend,
    ExtendOutcome,
    Hold,
    HoldOutcome,
    OrderCommand,
    OrderId,
    OrderState,
    Place,
    Record,
)
from app.orders.view import NOTHING, StandingView, standing
from app.web import hints, problems, purchase
from app.web.auth import BY_ANYBODY, BY_SHOP, bearer
from app.web.call import Asked, Call, Form, Route, asgi
from app.web.identity import BUYER_MAX, BUYER_PATTERN, is_buyer
from app.web.problems import invalid_field, responses
from app.web.raw_endpoint import RawEndpoint
from app.web.state import State, state_of

PATH: Final = "/holds"
KEY_OPENS: Final = (
    "bare or in quotes; the same key gets the same answer, with the order's id, whoever sends it: make one that nobody "
    "guesses, such as a random UUID"
)
BODY_MAX_BYTES: Final = 8192
TEXT: Final = f"^{BUYER_PATTERN}$"
_ROUTE: Final = re.compile(rf"{PATH}(?:/([^/]{{1,200}})/(confirm|extend|cancel))?")

_LINES_MAX: Final = 20  # of a basket
Model = TypeVar("Model", bound=BaseModel)


Units = Annotated[int, BeforeValidator(problems.whole)]


class ItemRequest(BaseModel):
    """A line of a basket."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sku: str = Field(pattern=f"^{SKU_PATTERN}$", description="the item")
    quantity: Units = Field(1, ge=1, le=1_000_000, description="units")


class HoldRequest(BaseModel):
    """Units to hold: of one item, or of several, all or none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sku: str = Field(DEFAULT_SKU, pattern=f"^{SKU_PATTERN}$", description="the item")
    quantity: Units = Field(1, ge=1, le=1_000_000, description="units; a hold gets all of them or none")
    items: list[ItemRequest] | None = Field(
        None,
        min_length=1,
        max_length=_LINES_MAX,
        description="a basket, in the place of `sku` and `quantity`: all units or none, in one order with one price",
    )
    buyer: str = Field(
        min_length=1,
        max_length=2048,
        description="who they are for; a token that the shop has signed, if buyers are signed and no shop asks",
    )
    ref: str | None = Field(None, min_length=1, max_length=100, pattern=TEXT, description="the shop's own number")
    wait: bool = Field(False, description="get in line, where none is left and others hold units that may come back")


class ConfirmRequest(BaseModel):
    """A payment that has come."""

    model_config = ConfigDict(extra="forbid", strict=True)

    payment_ref: str = Field(
        min_length=1, max_length=200, pattern=TEXT, description="the provider's own name of the payment"
    )
    amount: Annotated[int | None, BeforeValidator(problems.whole)] = Field(
        None, ge=0, le=10**15, description="what was paid, in the minor unit of the currency; compared with the price"
    )
    currency: str | None = Field(None, pattern=CURRENCY_PATTERN, description="ISO 4217, such as EUR")
    subtotal: Annotated[int | None, BeforeValidator(problems.whole)] = Field(
        None,
        ge=0,
        le=10**15,
        description="of the amount, what is for the units at their price, without tax, shipping and discounts",
    )
    paid_at: float | None = Field(
        None, ge=0, le=10**11, description="when it was made by the provider's clock, in seconds since 1970"
    )


class CancelRequest(BaseModel):
    """Units that are no longer wanted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    units: Annotated[int | None, BeforeValidator(problems.whole)] = Field(
        None, ge=1, le=1_000_000, description="only so many of them; needs an Idempotency-Key. Left out: all"
    )
    sku: str | None = Field(
        None, pattern=f"^{SKU_PATTERN}$", description="of which item of a basket; without units all of that line"
    )


class Nothing(BaseModel):
    """A body that says nothing."""

    model_config = ConfigDict(extra="forbid")


class InLineView(BaseModel):
    """The place of an order in line, and what is known of the units before it; nobody knows who will pay."""

    number: int = Field(description="1: the next one")
    held: int = Field(description="units that others hold, and may give back")
    first_ends_at: float | None = Field(
        None, description="when the first of these holds ends, in seconds since 1970, by the store's clock"
    )


class HoldView(StandingView):
    """The state of an order, and the outcome of the request."""

    outcome: HoldOutcome | ConfirmOutcome | ExtendOutcome | CancelOutcome | None = Field(
        None, description="what became of the request; a look has none"
    )
    refund: str | None = Field(None, description="the payment that was announced just now, and is to be given back")
    line: str | None = Field(None, description="of a refused basket: the first item that can't be had")
    replayed: bool = Field(False, description="the same idempotency key got this answer before")
    place: InLineView | None = Field(None, description="of an order that waits; a replay has none: look")
    instance: str = Field(description="the instance that answered")
    now: float = Field(description="the store's clock, by which the deadlines are, in seconds since 1970")


def view(
    state: State,
    sku: str,
    order: OrderId | None,
    record: Record | None,
    answer: Answer | None,
    place: Place | None = None,
) -> dict[str, Any]:
    """The fields of a `HoldView` of an order and an answer; without the model, which would cost time for each buyer."""
    told: dict[str, Any] = {"outcome": answer and answer.outcome}
    if order is not None and record is not None:
        told |= standing(order, record)
    elif answer is not None:
        told |= {"id": order and str(order), "sku": sku, "quantity": answer.quantity} | NOTHING
    if answer is not None:
        told |= {"refund": answer.refund, "line": answer.line, "replayed": answer.replayed}
        place = answer.place
    if place is not None:
        told["place"] = {name: one for name, one in place._asdict().items() if one is not None}
    told |= {"instance": state.instance, "now": state.readiness.clocks.of(sku).now}
    return {name: value for name, value in told.items() if value is not None}


def is_route(method: str, path: str) -> bool:
    """Return whether a request is for one of the routes here that change something."""
    return method == "POST" and _ROUTE.fullmatch(path) is not None


def read(call: Call) -> Asked:
    """Read a request. Raises `RequestValidationError`, which names the field, or who may not do that."""
    state, headers = call.state, headers_of(call.headers)
    refuse_query(call.query)
    purchase.refuse_foreign(headers)
    match = _ROUTE.fullmatch(call.path)
    assert match is not None  # noqa: S101 - see `is_route`
    given, verb = match.groups()
    key = purchase.read_key(headers[b"idempotency-key"]) if b"idempotency-key" in headers else None
    by_shop = state.auth.is_shop(bearer(call.headers))
    if not by_shop and (verb == "confirm" or (verb is None and state.only_shop_holds)):
        state.auth.refuse_stranger()
    if verb is None:
        wish = parse(HoldRequest, call.body)
        (sku, quantity), *others = _lines(wish, state.quantity_max)
        buyer = _buyer(state, wish.buyer, by_shop=by_shop)
        hold = Hold(
            *(quantity, sku, buyer, key),
            ref=wish.ref,
            request_id=call.request_id,
            traceparent=call.traceparent,
            proven=by_shop or state.signed is not None,
            wait=wish.wait,
            lines=tuple(others),
        )
        return Asked(hold, _form(state, sku))
    said = parse(_BODIES[verb], call.body if verb == "confirm" else call.body or b"{}")
    order = OrderId.parse(given)
    if order is None:  # the id is no order's
        return Asked(_LOST[verb], _form(state, DEFAULT_SKU))
    command: OrderCommand
    match said:
        case ConfirmRequest():
            _refuse_other_names(state, said.payment_ref)
            command = Confirm(*order, said.payment_ref, said.amount, said.currency, key, said.subtotal, said.paid_at)
        case CancelRequest():
            part = said.units is not None or said.sku is not None
            if part and key is None:
                named = "units" if said.units is not None else "sku"
                raise invalid_field(named, "a part needs an Idempotency-Key: twice is another time", where="body")
            # The order keeps the key for good; refusals by key alone are dropped in time.
            name = purchase.name_of_part("cancel", key) if part and key is not None else None
            command = Cancel(*order, key=key, units=said.units, message=name, line=said.sku)
        case _:
            command = Extend(*order, key)
    return Asked(command, _form(state, order.sku))


def _lines(wish: HoldRequest, most: int) -> list[tuple[str, int]]:
    """The lines of a basket, by the names of their items, so that the same one in another order is the same.

    Lines of the same item are summed first. Raises `RequestValidationError`, which names the line.
    """
    if wish.items is None:
        if wish.quantity > most:
            raise invalid_field("quantity", f"a whole number from 1 to {most}", where="body")
        return [(wish.sku, wish.quantity)]
    own = {"quantity": 1, "sku": DEFAULT_SKU}  # which clients send that are made from the document
    if given := [name for name, default in own.items() if getattr(wish, name) != default]:
        raise invalid_field(given[0], "say it in `items`, where there are some", where="body")
    units = Counter[str]()
    for at, line in enumerate(wish.items):
        units[line.sku] += line.quantity
        if units[line.sku] > most:
            raise invalid_field(f"items.{at}.quantity", f"{most} units of an item at most", where="body")
    if wish.wait and len(units) > 1:
        raise invalid_field(
            "wait", "a basket of several items can't wait in line: its items have lines of their own", where="body"
        )
    return sorted(units.items())


def _refuse_other_names(state: State, payment_ref: str) -> None:
    """Refuse a name by which the provider's callback will not call the payment: it would be a second payment."""
    for reader in state.callbacks.values():
        for begin, what in reader.other_names.items():
            if payment_ref.startswith(begin):
                raise invalid_field("payment_ref", f"that is the name {what}", where="body")


def _form(state: State, sku: str) -> Form:
    def form(answer: Answer) -> tuple[list[tuple[bytes, bytes]], bytes]:
        body = to_json(view(state, sku, answer.order, answer.record, answer))
        return [(b"content-type", b"application/json")], body

    return form


def _without_id(path: str) -> str:
    match = _ROUTE.fullmatch(path)
    return f"{PATH}/{{hold_id}}/{match[2]}" if match and match[2] else PATH


ROUTE: Final = Route(PATH, read, has_id=True, path_of=_without_id)
_BODIES: Final[dict[str, type[BaseModel]]] = {"confirm": ConfirmRequest, "extend": Nothing, "cancel": CancelRequest}
_LOST: Final = {
    "confirm": Answer(ConfirmOutcome.NOT_FOUND, 0),
    "extend": Answer(ExtendOutcome.NOT_FOUND, 0),
    "cancel": Answer(CancelOutcome.NOT_FOUND, 0),
}


def _buyer(state: State, given: str, *, by_shop: bool) -> str:
    """The buyer of a hold: the shop's back end is believed; others need a signed token, where buyers are signed."""
    if state.signed is not None and not by_shop:
        given = state.signed.read(given)
    if not is_buyer(given, BUYER_MAX):
        raise invalid_field("buyer", f"1 to {BUYER_MAX} printable characters, and not `erased`", where="body")
    return given


def refuse_query(query: bytes) -> None:
    """Refuse parameters, by the name of the first one."""
    if query:
        name = unquote_plus(query.decode("latin-1").partition("&")[0].partition("=")[0])
        raise invalid_field(name or "query", "unknown parameter; there is none: say it in the body")


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers; of one that comes twice, all values."""
    found: dict[bytes, bytes] = {}
    for name, value in raw:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def parse(model: type[Model], body: bytes) -> Model:
    """Parse a body. Raises `RequestValidationError`, which names the field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise hints.add(invalid(error), model.model_fields) from None


def invalid(error: ValidationError) -> RequestValidationError:
    """Make the error of a body, which names the field."""
    parts = error.errors(include_url=False, include_context=False, include_input=False)
    return RequestValidationError([{**part, "loc": ("body", *(part["loc"] or ("body",)))} for part in parts])


# -- as routes of FastAPI's --------------------------------------------------------------------------------------------


def _described(body: dict[str, Any] | None, *, required: bool = True) -> dict[str, Any]:
    def header(name: str, description: str) -> dict[str, Any]:
        schema = {"type": "string", "minLength": 1, "maxLength": 100, "pattern": r"^[\x21-\x7e]+$"}
        return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}

    found: dict[str, Any] = {
        "parameters": [
            header("Idempotency-Key", KEY_OPENS),
            header("X-Request-Id", "kept with the order, and given back; one is made if there is none"),
        ]
    }
    if body is not None:
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    return found


_ANSWERS: Final = responses(400, 403, 404, 408, 409, 413, 422, 429, 503)
Id = Annotated[str, Path(max_length=200, description="the hold's id")]


async def hold(_: Request) -> Response:
    """Hold units for a buyer until `pay_by`. Sold out, a limit, the hours: outcomes, with 200.

    With `wait`, a buyer who comes too late while others hold units gets `waiting` and a place in line. Units that come
    back go to the first in line, as a hold with a window of its own; nobody who doesn't wait gets any before them.

    A buyer who can't have the units gets `already_held` and the hold that they have, or `already_waiting` and their
    place, if the shop asks, or has signed the buyer. It needs the shop's bearer token where `SECKILL_HOLDS_FROM` says
    so.
    """
    return RawEndpoint(partial(asgi, ROUTE))


async def confirm(_: Request, hold_id: Id) -> Response:
    """Note that a payment has come. It needs the shop's bearer token (`SECKILL_SHOP_TOKEN`), except in a rehearsal.

    The same payment may be announced any number of times. After the end of the hold the payment takes a unit if one is
    left; else it is owed to the buyer (`refund_due`).
    """
    return RawEndpoint(partial(asgi, ROUTE))


async def extend(_: Request, hold_id: Id) -> Response:
    """Begin a second, longer window, once, as the buyer goes to pay."""
    return RawEndpoint(partial(asgi, ROUTE))


async def cancel(_: Request, hold_id: Id) -> Response:
    """Give the units back at once, or some of them. A confirmed order stays as it is: that would be a refund."""
    return RawEndpoint(partial(asgi, ROUTE))


async def look(request: Request, hold_id: Id) -> dict[str, Any]:
    """The present state of a hold, for anybody who knows its id."""
    state = state_of(request)
    wanted = OrderId.parse(hold_id)
    found = await state.shop.order(wanted) if wanted else None
    if found is None or found.state is OrderState.SOLD or found.record.part_of:
        raise HTTPException(404, "no such hold")
    return view(state, found.sku, found.id, found.record, None, await state.shop.place(found))


def router(*, quantity_max: int, buyer_max: int, shop_holds: bool, anybody_confirms: bool) -> APIRouter:
    """The routes, with their description.

    `shop_holds`: only the shop may hold; `anybody_confirms`: no token is needed, in a rehearsal.
    """
    wish = HoldRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    wish["properties"]["quantity"]["maximum"] = quantity_max
    wish["properties"]["buyer"] |= {"maxLength": buyer_max, "pattern": f"^{BUYER_PATTERN}$"}
    of_order = PATH + "/{hold_id}"
    found = APIRouter(tags=["holds"])

    def add(path: str, endpoint: Any, body: dict[str, Any] | None, *, by: Any = None, required: bool = True) -> None:
        answers = {**_ANSWERS, **(responses(401) if by else {})}
        about: dict[str, Any] = {"response_model": HoldView, "responses": answers}
        about["openapi_extra"] = _described(body, required=required) | ({"security": by} if by else {})
        found.add_api_route(path, endpoint, methods=["POST"], **about)

    add(PATH, hold, wish, by=BY_SHOP if shop_holds else BY_ANYBODY)
    paid = ConfirmRequest.model_json_schema()
    add(f"{of_order}/confirm", confirm, paid, by=BY_ANYBODY if anybody_confirms else BY_SHOP)
    add(f"{of_order}/extend", extend, None)
    add(f"{of_order}/cancel", cancel, CancelRequest.model_json_schema(), required=False)
    found.add_api_route(of_order, look, methods=["GET"], response_model=HoldView, responses=responses(404, 422, 503))
    return found

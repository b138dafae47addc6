"""Callbacks of payment providers: they report on a payment, and our commands do the rest.

A callback may come twice, late, or before an earlier one. The answer to an expected callback is the command's outcome
with 200, as providers repeat everything else; only "no such order yet" and "try again" are not 2xx.

A payment that fails, or is cancelled, frees nothing: the buyer may have begun another one. A hold ends by its deadline,
or by its buyer. A refund is found by its payment, as few providers repeat the hold there. A signed callback about money
is never dropped without a line in the log.
"""

import logging
import time
from collections.abc import Set
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from app.errors import AmountRequired, NoCallbacks, NoSuchOrder, NotSigned
from app.orders import Answer, Confirm, ConfirmOutcome, NoticeOutcome, OrderId, RefundOutcome
from app.payments import Kind, Reader, Report
from app.payments.generic import Callback
from app.payments.registry import PROVIDERS
from app.payments.shares import commands
from app.payments.tally import AGAIN, INVALID, NO_ADDRESS, NOT_SIGNED, SWITCHED_OFF, TAKEN
from app.web import holds, problems
from app.web.call import Asked, Call, Route, asgi
from app.web.identity import is_text
from app.web.problems import invalid_field, responses
from app.web.raw_endpoint import RawEndpoint
from app.web.state import State

_log = logging.getLogger(__name__)

PATH: Final = "/payments/"
BODY_MAX_BYTES: Final = 1_048_576  # some providers send a whole order
_OWN: Final = ("/holds/", "/orders/")  # behind these is an id, whatever it is
_REF_MAX: Final = 200
_OVERTAKES_S: Final = 3600.0  # for so long a provider is asked to repeat a notice of an unknown payment
_IGNORED: Final = Answer(NoticeOutcome.IGNORED, 0)
_OF_SIGNATURES: Final = (b"webhook-id", b"webhook-timestamp", b"webhook-signature", b"stripe-signature")


class CallbackView(BaseModel):
    """The outcome of the command; `ignored`: nothing follows from such a callback."""

    outcome: str


def is_route(method: str, path: str) -> bool:
    """Return whether a request is a callback, or looks like one: behind a prefix that a proxy should have cut off."""
    return method == "POST" and PATH in path and not path.startswith(_OWN)


def read(call: Call) -> Asked:
    """Read a callback. Raises `NoCallbacks`, `NotSigned`, or `RequestValidationError`, which names the field."""
    name, tally = call.path.removeprefix(PATH), call.state.tally
    reader = call.state.callbacks.get(name)
    if reader is None:
        if name not in PROVIDERS:
            tally.add("", NO_ADDRESS)
            text = "what looks like a callback came to %r, where no provider reports"
            problems.warn(_log, PATH, HTTPException, text, OrderId.cut(call.path)[:_REF_MAX])
            raise HTTPException(404, "Not Found")
        tally.add(name, SWITCHED_OFF)
        raise NoCallbacks(f"switched off: {PROVIDERS[name].setting} is not set")
    try:
        return _read(call, reader, name)
    except (NotSigned, RequestValidationError) as error:
        tally.add(name, NOT_SIGNED if isinstance(error, NotSigned) else INVALID)
        raise


def _read(call: Call, reader: Reader, name: str) -> Asked:
    holds.refuse_query(call.query)
    headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in holds.headers_of(call.headers).items()
    }
    try:
        _refuse_doubled(call)
        report = reader.read(call.body, headers)
    except NotSigned as error:
        text = "a callback to %s that the payment provider has not signed: %s"  # anybody may send some
        problems.warn(_log, call.path, NotSigned, text, call.path, error)
        raise
    except ValidationError as error:
        raise holds.invalid(error) from None
    except ValueError as error:
        raise invalid_field("body", str(error), where="body") from None
    if report is None or report.kind in (Kind.FAILED, Kind.CANCELED):
        _log.info("a callback to %s about no payment that was made or given back is ignored", call.path)
        call.state.tally.add(name, TAKEN)
        return Asked(_IGNORED, partial(_form, reader))
    for field in ("payment_ref", "refund_name", "refund_id"):
        named = getattr(report, field)
        if named is not None and not is_text(named, _REF_MAX):
            raise invalid_field(field, f"1 to {_REF_MAX} printable characters", where="body")
    return Asked(partial(_counted, call.state, name, report), partial(_form, reader))


def _refuse_doubled(call: Call) -> None:
    names = [name for name, _ in call.headers]
    for name in _OF_SIGNATURES:
        if names.count(name) > 1:
            raise NotSigned(f"one {name.decode()} header is taken, not several")


def _form(reader: Reader, answer: Answer) -> tuple[list[tuple[bytes, bytes]], bytes]:
    if reader.taken is not None:
        return [(b"content-type", b"text/plain; charset=utf-8")], reader.taken.encode()
    return [(b"content-type", b"application/json")], CallbackView(outcome=answer.outcome).model_dump_json().encode()


async def _counted(state: State, provider: str, report: Report) -> Answer:
    outcome = AGAIN
    try:
        answer = await _answer(state, report)
        outcome = TAKEN
    except AmountRequired:
        outcome = INVALID
        raise
    finally:
        state.tally.add(provider, outcome)
    return answer


async def _answer(state: State, report: Report) -> Answer:
    """Have a report obeyed. Raises `NoSuchOrder`, as callbacks overtake each other: the provider is to try again."""
    hold = OrderId.parse(report.hold or "")
    ref, told = report.payment_ref, (report.payment_ref, report.amount, report.currency)
    name = report.hold and OrderId.cut(report.hold)
    if report.kind is not Kind.SUCCEEDED:
        found = await _of_payment(state, report, hold)
    elif hold is not None:
        paid = Confirm(*hold, *told, subtotal=report.subtotal, paid_at=report.paid_at, reported=True)
        found = await state.shop.submit(paid)
    else:
        _log.warning("payment %s is of %r, which is no hold of this service: ignored", ref, name)
        return _IGNORED
    if found.outcome not in (ConfirmOutcome.NOT_FOUND, RefundOutcome.NOT_FOUND):
        return found
    if report.stranger:
        _log.info("payment %s is of no order here, and likely another product's: ignored", ref)
        return _IGNORED
    at = report.at or report.paid_at
    is_young = at is not None and time.time() - at < _OVERTAKES_S
    if (is_young or at is None) if hold is not None else (is_young and report.hold is None):
        _log.warning("no order for payment %s (%s %s, hold %s)", *told, name)
        raise NoSuchOrder("no such order or payment, or not yet; nothing was done")
    if hold is None:
        _log.warning("payment %s is %s, and no order of this service has it: ignored", ref, report.kind)
    else:
        _log.error("payment %s (%s %s) is of hold %s, which is not here: whose money is it?", *told, name)
        state.unclaimed()
    return _IGNORED


async def _of_payment(state: State, report: Report, hold: OrderId | None) -> Answer:
    """Note it with each order that has the payment; it may be that of an order for each of several items."""
    orders = sorted(await state.shop.paid_with(report.payment_ref), key=lambda one: one.id)
    if report.amount is not None and hold is not None:
        orders = [order for order in orders if order.id == hold] or orders
    answers = [await state.shop.submit(command) for command in commands(orders, report)]
    return answers[0] if answers else Answer(RefundOutcome.ALREADY_REFUNDED if orders else RefundOutcome.NOT_FOUND, 0)


# No report of money is refused for the sake of an odd request id, which a proxy on the way may have made.
ROUTE: Final = Route(f"{PATH}PROVIDER", read, strict=False)


# -- as routes of FastAPI's --------------------------------------------------------------------------------------------


async def webhook(_: Request) -> Response:
    """Take a report on a payment, signed by Standard Webhooks (`SECKILL_PAYMENTS_SECRET`).

    succeeded: the hold is confirmed; failed and canceled: nothing, as the buyer may try again until the deadline;
    refunded: noted with the order that has the payment, and the units stay out of the sale. A refund of a part is
    noted, too, and the order stays as it is.
    """
    return RawEndpoint(partial(asgi, ROUTE))


async def stripe(_: Request) -> Response:
    """Take Stripe's report, with its own signature (`SECKILL_STRIPE_SECRET`); `metadata.hold` names the hold."""
    return RawEndpoint(partial(asgi, ROUTE))


async def alipay(_: Request) -> Response:
    """Take Alipay's report, with its own signature (`SECKILL_ALIPAY_KEY`); `passback_params` names the hold.

    The answer to an accepted notice is the text `success`, as Alipay wants it.
    """
    return RawEndpoint(partial(asgi, ROUTE))


async def own(_: Request) -> Response:
    """Take the report of a provider of the shop's own (`SECKILL_PROVIDERS`)."""
    return RawEndpoint(partial(asgi, ROUTE))


def router(names: Set[str]) -> APIRouter:
    """The routes of these providers, with their description."""
    found = APIRouter(tags=["payments"])
    answers = responses(400, 403, 408, 409, 413, 422, 503)
    schema = Callback.model_json_schema(ref_template="#/components/schemas/{model}")
    schema["properties"]["data"] = schema.pop("$defs")["Payment"]

    def add(name: str, endpoint: Any, *headers: str, media: str = "application/json", **schema: Any) -> None:
        extra: dict[str, Any] = {
            "requestBody": {"required": True, "content": {media: {"schema": schema or {"type": "object"}}}},
            "parameters": [
                {"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in headers
            ],
        }
        about: dict[str, Any] = {"name": f"{name}_callback", "responses": answers, "openapi_extra": extra}
        about |= {"response_class": PlainTextResponse} if endpoint is alipay else {"response_model": CallbackView}
        found.add_api_route(f"{PATH}{name}", endpoint, methods=["POST"], **about)

    add("webhook", webhook, *(f"webhook-{name}" for name in ("id", "timestamp", "signature")), **schema)
    add("stripe", stripe, "Stripe-Signature")
    add("alipay", alipay, media="application/x-www-form-urlencoded")
    for name in names - PROVIDERS.keys():
        add(name, own)
    return found

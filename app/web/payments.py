"""Callbacks of payment providers: they report on a payment, and our commands do the rest.

A callback may come twice, late, or before the one that it follows. The answer to an expected callback is the command's
outcome with 200, as providers repeat whatever is not 2xx; only "no such order (yet)" and "try again" are not 2xx.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, get_args

import standardwebhooks
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from app.errors import ConfigurationError
from app.outbox.webhook import signer
from app.sale import Answer, Cancel, Confirm, ConfirmOutcome, OrderCommand, Refund, RefundOutcome
from app.stock import CURRENCY_PATTERN
from app.web import holds, problems
from app.web.problems import responses
from app.web.raw_endpoint import RawEndpoint
from app.web.state import State

_log = logging.getLogger(__name__)

PATH: Final = "/payments/webhook"
STRIPE: Final = "/payments/stripe"
_PROVIDER: Final = "payment provider"  # the name in the record of a refund
_RETRY_AFTER_S: Final = 5


class NotSignedError(Exception):
    """A callback that the provider has not signed, or too long ago."""


class Payment(BaseModel):
    """A payment of a hold."""

    hold: str = Field(min_length=1, max_length=200, description="the id of the hold")
    payment_ref: str = Field(min_length=1, max_length=200, description="the provider's own name of the payment")
    amount: Annotated[int | None, Field(ge=0, le=10**15, strict=True)] = None
    currency: Annotated[str | None, Field(pattern=CURRENCY_PATTERN)] = None


class _Head(BaseModel):
    """The part that every callback has."""

    type: str


class Callback(BaseModel):
    """A provider's report on a payment."""

    type: Literal["payment.succeeded", "payment.failed", "payment.canceled", "payment.refunded"]
    timestamp: str | None = None
    data: Payment


class CallbackView(BaseModel):
    """The outcome of the command; `ignored`: nothing follows from such a callback."""

    outcome: str


_TYPES: Final = get_args(Callback.model_fields["type"].annotation)
Read = Callable[[bytes, Mapping[str, str]], Callback | None]


def standard(secret: str) -> Read:
    """The reader of callbacks that are signed as Standard Webhooks has it. Raises `ConfigurationError`."""
    verifier = signer(secret, "SECKILL_PAYMENTS_SECRET")

    def read(body: bytes, headers: Mapping[str, str]) -> Callback | None:
        try:
            verifier.verify(body, dict(headers), json_parse=False)
        except (standardwebhooks.WebhookVerificationError, ValueError) as error:  # ValueError: a header that is none
            raise NotSignedError(str(error)) from None
        return holds.parse(Callback, body) if holds.parse(_Head, body).type in _TYPES else None

    return read


_OF_STRIPE: Final = {
    "checkout.session.completed": "payment.succeeded",
    "checkout.session.async_payment_succeeded": "payment.succeeded",
    "payment_intent.succeeded": "payment.succeeded",
    "payment_intent.payment_failed": "payment.failed",
    "payment_intent.canceled": "payment.canceled",
    "charge.refunded": "payment.refunded",
}


def stripe(secret: str) -> Read:
    """The reader of Stripe's callbacks. Raises `ConfigurationError` where its library is not installed."""
    try:
        from stripe import SignatureVerificationError, WebhookSignature
    except ImportError:
        raise ConfigurationError(
            "SECKILL_STRIPE_SECRET needs Stripe's library; in the checkout: pip install '.[stripe]'"
        ) from None

    def read(body: bytes, headers: Mapping[str, str]) -> Callback | None:
        try:
            WebhookSignature.verify_header(body.decode(), headers.get("stripe-signature"), secret, 300)
        except (SignatureVerificationError, ValueError, TypeError) as error:  # of one that isn't ASCII
            raise NotSignedError(str(error)) from None
        return _of_stripe(json.loads(body))

    return read


def _of_stripe(event: Any) -> Callback | None:
    """Translate an event of Stripe's; None if it says nothing of a hold. Its signature vouches for its form."""
    kind = _OF_STRIPE.get(event.get("type"))
    about = event.get("data", {}).get("object", {})
    hold = (about.get("metadata") or {}).get("hold") or about.get("client_reference_id")
    # A payment has the same name, whichever of its objects an event is about.
    ref = about.get("payment_intent") or about.get("id")
    unpaid = about.get("payment_status") == "unpaid"  # a session of a way to pay that takes days
    partly = kind == "payment.refunded" and about.get("refunded") is not True
    if kind is None or not hold or not ref or unpaid or partly:
        return None
    ref = ref if isinstance(ref, str) else ref.get("id")
    amount = about.get("amount_total", about.get("amount_received", about.get("amount")))
    data = {"hold": hold, "payment_ref": ref, "amount": amount, "currency": str(about.get("currency") or "").upper()}
    return holds.parse(
        Callback, json.dumps({"type": kind, "data": {k: v for k, v in data.items() if v not in (None, "")}}).encode()
    )


def is_route(method: str, path: str) -> bool:
    """Return whether a request is a provider's callback."""
    return method == "POST" and path in (PATH, STRIPE)


async def called_back(scope: Scope, receive: Receive, send: Send) -> None:
    """Do what a callback says: an ASGI application."""
    state: State = scope["state"]["seckill"]
    try:
        holds.refuse_query(scope["query_string"])
        response = await _answer(
            state, scope["path"], holds.headers_of(scope["headers"]), (await receive()).get("body", b"")
        )
    except NotSignedError as error:
        _log.warning("a callback that is not signed by the payment provider: %s", error)
        response = problems.problem(400, "not-signed", "Not signed by the payment provider", str(error))
    except Exception as error:
        response = problems.of(error, scope["method"], scope["path"])
    await response(scope, receive, send)


async def _answer(state: State, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Response:
    read = state.callbacks.get(path)
    if read is None:
        name = "SECKILL_PAYMENTS_SECRET" if path == PATH else "SECKILL_STRIPE_SECRET"
        return problems.problem(403, "no-callbacks", "No callbacks", f"switched off: {name} is not set")
    callback = read(body, {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()})
    if callback is None:
        return _told("ignored")
    paid, parts = callback.data, state.shop.parts_of(callback.data.hold)
    if parts is None:
        return _unknown()
    command: OrderCommand | None = None
    match callback.type:
        case "payment.succeeded":
            command = Confirm(*parts, paid.payment_ref, paid.amount, paid.currency)
        case "payment.canceled":
            command = Cancel(*parts)
        case "payment.refunded":
            command = Refund(*parts, restock=False, payment_ref=paid.payment_ref, by=_PROVIDER)
    if command is None:  # the buyer may try another card
        return _told("ignored" if await state.shop.order(paid.hold) is not None else None)
    answer: Answer = await state.shop.buy(command)
    # A refund of a payment that has not come yet would be forgotten by the time the payment comes.
    early = answer.outcome is RefundOutcome.NOTHING_DUE
    return _told(None if early or answer.outcome == ConfirmOutcome.NOT_FOUND else str(answer.outcome))


def _told(outcome: str | None) -> Response:
    if outcome is None:
        return _unknown()
    return Response(CallbackView(outcome=outcome).model_dump_json(), media_type="application/json")


def _unknown() -> Response:
    """The order, or the payment, is not there yet, as callbacks overtake each other: the provider is to try again."""
    headers = {"Retry-After": str(_RETRY_AFTER_S)}
    detail = "no such order or payment, or not yet; nothing was done"
    return problems.problem(409, "no-such-order", "No such order", detail, headers=headers)


def router() -> APIRouter:
    """The routes, with their description."""
    found = APIRouter(tags=["payments"])

    async def payment_webhook(_: Request) -> Response:
        """Take a report on a payment, signed as Standard Webhooks has it (`SECKILL_PAYMENTS_SECRET`).

        succeeded: the hold is confirmed; failed: nothing, as the buyer may try again; canceled: the hold is given back;
        refunded: noted, and the units stay out of the sale.
        """
        return RawEndpoint(called_back)

    async def stripe_webhook(_: Request) -> Response:
        """Take Stripe's report, with its own signature (`SECKILL_STRIPE_SECRET`); `metadata.hold` names the hold."""
        return RawEndpoint(called_back)

    answers: dict[str, Any] = {
        "response_model": CallbackView,
        "responses": responses(400, 403, 408, 409, 413, 422, 503),
    }

    def body(schema: dict[str, Any]) -> dict[str, Any]:
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    def header(name: str) -> dict[str, Any]:
        return {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}

    schema = Callback.model_json_schema(ref_template="#/components/schemas/{model}")
    schema["properties"]["data"] = schema.pop("$defs")["Payment"]
    own = [header(f"webhook-{name}") for name in ("id", "timestamp", "signature")]
    found.add_api_route(
        PATH, payment_webhook, methods=["POST"], **answers, openapi_extra={**body(schema), "parameters": own}
    )
    of_stripe = {**body({"type": "object"}), "parameters": [header("Stripe-Signature")]}
    found.add_api_route(STRIPE, stripe_webhook, methods=["POST"], **answers, openapi_extra=of_stripe)
    return found


def callbacks(payments_secret: str | None, stripe_secret: str | None) -> dict[str, Read]:
    """Return the readers of callbacks that have a secret, by their paths. Raises `ConfigurationError`."""
    found: dict[str, Read] = {}
    if payments_secret is not None:
        found[PATH] = standard(payments_secret)
    if stripe_secret is not None:
        found[STRIPE] = stripe(stripe_secret)
    return found

"""Callbacks of payment providers: they report on a payment, and our commands do the rest.

A callback may come twice, late, or before the one that it follows. The answer to an expected callback is the command's
outcome with 200, as providers repeat whatever is not 2xx; only "no such order (yet)" and "try again" are not 2xx.

A payment that fails, or is cancelled, frees nothing: the buyer may have begun another one. A hold ends by its deadline,
or by its buyer. A refund is found by its payment, as few providers repeat the hold there. What is signed and speaks of
money is never dropped without a line in the log.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar, get_args

import standardwebhooks
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, model_validator
from pydantic_core import to_json

from app.errors import ConfigurationError, NoCallbacks, NoSuchOrder, NotSigned
from app.orders import CURRENCY_PATTERN, Answer, Confirm, ConfirmOutcome, Notice, OrderId, Refund, RefundOutcome
from app.web import holds
from app.web.call import Asked, Call, Route, asgi
from app.web.problems import responses
from app.web.raw_endpoint import RawEndpoint
from app.web.state import State

_log = logging.getLogger(__name__)

PATH: Final = "/payments/webhook"
STRIPE: Final = "/payments/stripe"
_PROVIDER: Final = "payment provider"  # the name in the record of a refund
_OVERTAKES_S: Final = 3600.0  # a refund that comes before its payment is asked for again for so long
_MESSAGE_DIGITS: Final = 16
_IGNORED: Final = Answer(Notice.IGNORED, 0)
_OF_SIGNATURES: Final = (b"webhook-id", b"webhook-timestamp", b"webhook-signature", b"stripe-signature")


class Payment(BaseModel):
    """A payment of a hold; of a refund the hold need not be said."""

    hold: str | None = Field(None, min_length=1, max_length=200, description="the id of the hold")
    payment_ref: str = Field(
        min_length=1, max_length=200, pattern=holds.TEXT, description="the provider's own name of the payment"
    )
    amount: Annotated[int | None, Field(ge=0, le=10**15, strict=True)] = Field(
        None, description="what was paid, or given back: less than what was paid is a part, which ends no order"
    )
    currency: Annotated[str | None, Field(pattern=CURRENCY_PATTERN)] = None


class _Head(BaseModel):
    """The part that every callback has."""

    type: str


class Callback(BaseModel):
    """A provider's report on a payment."""

    type: Literal["payment.succeeded", "payment.failed", "payment.canceled", "payment.refunded"]
    timestamp: str | None = None
    data: Payment

    @model_validator(mode="after")
    def _says_of_what(self) -> Self:
        if self.data.hold is None and self.type == "payment.succeeded":
            raise ValueError("data.hold is needed")
        return self


class CallbackView(BaseModel):
    """The outcome of the command; `ignored`: nothing follows from such a callback."""

    outcome: str


_TYPES: Final = get_args(Callback.model_fields["type"].annotation)


class Report(NamedTuple):
    """A callback.

    `message`: its name, which is the same each time that it comes; `at`: when the provider wrote it, in seconds since
    1970, if it says so; `part`: it says that it is about a part of a payment.
    """

    callback: Callback
    message: str
    at: float | None = None
    part: bool = False


Read = Callable[[bytes, Mapping[str, str]], Report | None]
Secret = TypeVar("Secret")


def _verify(secrets: Sequence[Secret], verify: Callable[[Secret], object], refused: type[Exception]) -> None:
    """Verify a signature that one of the secrets has made. Raises `NotSigned`; `refused`: the library's own error."""
    why = []
    for secret in secrets:
        try:
            verify(secret)
        except refused as error:
            why.append(str(error))
        except (ValueError, TypeError):  # of a header that isn't ASCII, or has another form
            why.append("a header or the body can't be read")
        else:
            return
    raise NotSigned("; ".join(dict.fromkeys(why)))


def standard(secrets: Sequence[str]) -> Read:
    """The reader of callbacks that are signed as Standard Webhooks has it, with any of these secrets."""
    signers = [standardwebhooks.Webhook(secret) for secret in secrets]

    def read(body: bytes, headers: Mapping[str, str]) -> Report | None:
        given = dict(headers)
        _verify(
            signers, lambda one: one.verify(body, given, json_parse=False), standardwebhooks.WebhookVerificationError
        )
        kind = holds.parse(_Head, body).type
        if kind not in _TYPES:
            _log.info("a callback of the type %r is ignored", kind)
            return None
        return Report(holds.parse(Callback, body), headers["webhook-id"])

    return read


_OF_STRIPE: Final = {
    "checkout.session.completed": "payment.succeeded",
    "checkout.session.async_payment_succeeded": "payment.succeeded",
    "payment_intent.succeeded": "payment.succeeded",
    "charge.refunded": "payment.refunded",
}


class _StripeObject(BaseModel):
    """The parts of a session, a payment intent or a charge that we read."""

    id: str | None = None
    metadata: dict[str, Any] | None = None
    client_reference_id: str | None = None
    payment_intent: str | dict[str, Any] | None = None
    payment_status: str | None = None
    amount: int | None = None
    amount_total: int | None = None
    amount_received: int | None = None
    amount_refunded: int = 0
    refunded: bool | None = None
    currency: str | None = None


class _StripeBefore(BaseModel):
    amount_refunded: int | None = None


class _StripeData(BaseModel):
    object: _StripeObject
    previous_attributes: _StripeBefore | None = None


class _StripeEvent(BaseModel):
    id: str = ""
    created: float | None = None
    data: _StripeData


def stripe(secrets: Sequence[str]) -> Read:
    """The reader of Stripe's callbacks. Raises `ConfigurationError` where its library is not installed."""
    try:
        from stripe import SignatureVerificationError, WebhookSignature
    except ImportError:
        raise ConfigurationError(
            "SECKILL_STRIPE_SECRET needs Stripe's library; in the checkout: pip install '.[stripe]'"
        ) from None

    def read(body: bytes, headers: Mapping[str, str]) -> Report | None:
        given = headers.get("stripe-signature")
        _verify(secrets, lambda one: WebhookSignature.verify_header(body, given, one, 300), SignatureVerificationError)
        kind = holds.parse(_Head, body).type
        report = _of_stripe(_OF_STRIPE[kind], holds.parse(_StripeEvent, body)) if kind in _OF_STRIPE else None
        if report is None:
            _log.info("Stripe's event of the type %r is ignored", kind)
        return report

    return read


def _of_stripe(kind: str, event: _StripeEvent) -> Report | None:
    """Translate an event of Stripe's; None if it says nothing of a payment of ours."""
    about, before = event.data.object, event.data.previous_attributes
    hold = (about.metadata or {}).get("hold") or about.client_reference_id
    # A payment has the same name, whichever of its objects an event is about.
    ref = about.payment_intent or about.id
    ref = ref.get("id") if isinstance(ref, dict) else ref
    part = None
    if kind == "payment.refunded":
        # The charge says how much was given back so far.
        earlier = (before and before.amount_refunded) or 0
        part = None if about.refunded else max(0, about.amount_refunded - earlier)
        data: dict[str, Any] = {"hold": hold, "payment_ref": ref, "amount": part}
    elif not hold or about.payment_status == "unpaid":  # a session of a way to pay that takes days
        return None
    else:
        sums = (about.amount_total, about.amount_received, about.amount)
        amount = next((one for one in sums if one is not None), None)
        if amount is None:  # a session that only keeps a card for later
            return None
        data = {"hold": hold, "payment_ref": ref, "amount": amount}
    data["currency"] = (about.currency or "").upper() or None
    callback = holds.parse(Callback, to_json({"type": kind, "data": data}))
    return Report(callback, event.id, event.created, part=part is not None)


def read(call: Call) -> Asked:
    """Read a callback. Raises `NoCallbacks`, `NotSigned`, or `RequestValidationError`, which names the field."""
    holds.refuse_query(call.query)
    reader = call.state.callbacks.get(call.path)
    if reader is None:
        name = "SECKILL_PAYMENTS_SECRET" if call.path == PATH else "SECKILL_STRIPE_SECRET"
        raise NoCallbacks(f"switched off: {name} is not set")
    headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in holds.headers_of(call.headers).items()
    }
    try:
        _refuse_doubled(call)
        report: Report | None = reader(call.body, headers)
    except NotSigned as error:
        _log.warning("a callback that is not signed by the payment provider: %s", error)
        raise
    if report is None:
        return Asked(_IGNORED, _form)
    about = report.callback.data
    match report.callback.type:
        case "payment.succeeded":
            return Asked(_succeeded(call.state, about), partial(_form, about=about))
        case "payment.refunded":
            return Asked(partial(_refunded, call.state, report), partial(_form, about=about))
        case _:
            return Asked(_IGNORED, _form)


def _refuse_doubled(call: Call) -> None:
    names = [name for name, _ in call.headers]
    for name in _OF_SIGNATURES:
        if names.count(name) > 1:
            raise NotSigned(f"one {name.decode()} header is taken, not several")


def _form(answer: Answer, *, about: Payment | None = None) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Raises `NoSuchOrder`, as callbacks overtake each other: the provider is to try again."""
    if about is not None and answer.outcome in (ConfirmOutcome.NOT_FOUND, RefundOutcome.NOT_FOUND):
        hold = about.hold and OrderId.cut(about.hold)
        _log.warning("no order for payment %s (%s %s, hold %s)", about.payment_ref, about.amount, about.currency, hold)
        raise NoSuchOrder("no such order or payment, or not yet; nothing was done")
    return [(b"content-type", b"application/json")], CallbackView(outcome=answer.outcome).model_dump_json().encode()


def _succeeded(state: State, paid: Payment) -> Confirm | Answer:
    order = OrderId.parse(paid.hold or "")
    if order is None:
        _log.warning(
            "payment %s is of %r, which is no hold of this service: ignored",
            paid.payment_ref,
            OrderId.cut(paid.hold or ""),
        )
        return _IGNORED
    return Confirm(*order, paid.payment_ref, paid.amount, paid.currency)


async def _refunded(state: State, report: Report) -> Answer:
    """Note a refund with each order that has the payment; it may be that of an order for each of several items."""
    given = report.callback.data
    ref, named = given.payment_ref, OrderId.parse(given.hold or "")
    orders = await state.shop.paid_with(ref)
    if given.amount is not None and named is not None:
        orders = [order for order in orders if order.id == named] or orders
    about: dict[str, Any] = {"payment_ref": ref, "by": _PROVIDER, "amount": given.amount, "currency": given.currency}
    if given.amount is not None:
        said = f"{report.message}\n{ref}\n{given.amount}"
        about["message"] = hashlib.sha256(said.encode()).hexdigest()[:_MESSAGE_DIGITS]
        # What several orders were paid with, and which of them this is about, only the shop can tell.
        about["part"] = report.part or len(orders) > 1
    answers = [await state.shop.submit(Refund(*order.id, restock=False, **about)) for order in orders]
    if answers:
        return answers[0]
    # A refund of a payment that has not come yet would be forgotten by the time the payment comes.
    if named is not None or (report.at is not None and time.time() - report.at < _OVERTAKES_S):
        return Answer(RefundOutcome.NOT_FOUND, 0)
    _log.warning("payment %s was given back, and no order of this service has it: ignored", ref)
    return _IGNORED


# No report of money is refused for the sake of an odd request id, which a proxy on the way may have made.
ROUTES: Final = {path: Route(path, read, strict=False) for path in (PATH, STRIPE)}


def router() -> APIRouter:
    """The routes, with their description."""
    found = APIRouter(tags=["payments"])

    async def payment_webhook(_: Request) -> Response:
        """Take a report on a payment, signed as Standard Webhooks has it (`SECKILL_PAYMENTS_SECRET`).

        succeeded: the hold is confirmed; failed and canceled: nothing, as the buyer may try again until the deadline;
        refunded: noted with the order that has the payment, and the units stay out of the sale. A part of what was
        paid is noted, too, and the order stays as it is.
        """
        return RawEndpoint(partial(asgi, ROUTES[PATH]))

    async def stripe_webhook(_: Request) -> Response:
        """Take Stripe's report, with its own signature (`SECKILL_STRIPE_SECRET`); `metadata.hold` names the hold."""
        return RawEndpoint(partial(asgi, ROUTES[STRIPE]))

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


def callbacks(payments_secrets: Sequence[str], stripe_secrets: Sequence[str]) -> dict[str, Read]:
    """Return the readers of callbacks that have a secret, by their paths. Raises `ConfigurationError`."""
    found: dict[str, Read] = {}
    if payments_secrets:
        found[PATH] = standard(payments_secrets)
    if stripe_secrets:
        found[STRIPE] = stripe(stripe_secrets)
    return found

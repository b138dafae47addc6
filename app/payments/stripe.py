"""Stripe's events, verified by its own library. https://docs.stripe.com/api/events/types"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from pydantic import BaseModel
from typing_extensions import override

from app.errors import ConfigurationError, NotSigned
from app.payments.reading import NoticeHead, ensure_signed, inner, missing
from app.payments.report import Kind, Reader, Report
from app.payments.stripe_objects import report_of
from app.payments.units import STRIPE

_EVENTS: Final = {
    Kind.SUCCEEDED: "checkout.session.completed checkout.session.async_payment_succeeded "
    "payment_intent.succeeded charge.succeeded charge.captured",
    Kind.FAILED: "checkout.session.async_payment_failed payment_intent.payment_failed",
    Kind.CANCELED: "checkout.session.expired payment_intent.canceled",
    Kind.REFUNDED: "charge.refunded refund.created refund.updated refund.failed charge.refund.updated",
    Kind.DISPUTED: "charge.dispute.created charge.dispute.updated charge.dispute.closed "
    "charge.dispute.funds_withdrawn charge.dispute.funds_reinstated",
}
_KINDS: Final = {event: kind for kind, events in _EVENTS.items() for event in events.split()}
_TOLERANCE_S: Final = 300


class _Event(BaseModel):
    id: str
    created: float | None = None
    livemode: bool | None = None
    account: str | None = None
    data: dict[str, Any]


class Stripe(Reader):
    """Stripe: sessions, payment intents, charges, refunds and disputes.

    `test_mode`: events of the test mode count, too; `account`: the connected account whose events count; `shared`:
    other products use this account, too, and a payment without a hold is likely theirs.
    """

    units: ClassVar = STRIPE
    other_names: ClassVar = {"cs_": "of a Checkout session, and the payment is called by its payment intent, pi_..."}

    def __init__(
        self, secrets: Sequence[str], *, test_mode: bool = False, account: str = "", shared: bool = False
    ) -> None:
        try:
            import stripe
        except ImportError:
            raise ConfigurationError(missing("SECKILL_STRIPE_SECRET", "Stripe's library", "stripe")) from None
        self._stripe, self._secrets = stripe, secrets
        self._test_mode, self._account, self._shared = test_mode, account, shared

    @override
    def read(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        signed = headers.get("stripe-signature", "")

        def verify(secret: str) -> None:
            self._stripe.WebhookSignature.verify_header(body.decode(), signed, secret, _TOLERANCE_S)
            if int(signed.partition("t=")[2].partition(",")[0]) > time.time() + _TOLERANCE_S:
                raise self._stripe.SignatureVerificationError("Timestamp is in the future", signed)

        ensure_signed(self._secrets, verify, self._stripe.SignatureVerificationError)
        kind = _KINDS.get(NoticeHead.model_validate_json(body).type)
        if kind is None:
            return None
        event = _Event.model_validate_json(body)
        if event.livemode is False and not self._test_mode:
            raise NotSigned("it is of Stripe's test mode, in which nobody pays; SECKILL_STRIPE_TEST_MODE=true takes it")
        if event.account is not None and event.account != self._account:
            raise NotSigned(f"it is of the account {event.account}, and SECKILL_STRIPE_ACCOUNT is not that one")
        report = report_of(kind, inner(event.data, "object"), event.id, event.created)
        if report is None or not self._shared or report.hold or report.refund_name:
            return report
        return report.model_copy(update={"stranger": True})

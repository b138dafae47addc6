"""Stripe's events, verified by its own library. https://docs.stripe.com/api/events/types

A payment is called by its payment intent, `pi_...`, whichever object an event is about: by its charge if it has no
intent, and by its session if nothing was to be paid. How much was given back says `charge.refunded` alone: the refund's
own events share no name with it, so only their failures are read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from pydantic import BaseModel
from typing_extensions import override

from app.errors import ConfigurationError
from app.payments.reading import Head, ensure_signed, inner, missing, name_of, number
from app.payments.report import Kind, Reader, Report
from app.payments.units import Units

_EVENTS: Final = {
    Kind.SUCCEEDED: "checkout.session.completed checkout.session.async_payment_succeeded payment_intent.succeeded "
    "charge.succeeded charge.captured",
    Kind.FAILED: "checkout.session.async_payment_failed payment_intent.payment_failed",
    Kind.CANCELED: "checkout.session.expired payment_intent.canceled",
    Kind.REFUNDED: "charge.refunded",
    Kind.REFUND_FAILED: "refund.created refund.updated refund.failed charge.refund.updated",
    Kind.DISPUTED: "charge.dispute.created charge.dispute.updated charge.dispute.closed "
    "charge.dispute.funds_withdrawn charge.dispute.funds_reinstated",
}
_KINDS: Final = {event: kind for kind, events in _EVENTS.items() for event in events.split()}
# An inquiry that is closed has taken nothing; what prevents a dispute has given the money back.
_ENDS: Final = {"won": "won", "warning_closed": "won", "lost": "lost", "prevented": "lost"}
_DECIMALS: Final = {0: "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF", 3: "BHD JOD KWD OMR TND"}
UNITS: Final = Units("Stripe", _DECIMALS, steps={3: 10}, unknown="CLF IQD LYD UYI UYW")


class _Event(BaseModel):
    id: str
    created: float | None = None
    data: dict[str, Any]


class Stripe(Reader):
    """Stripe: sessions, payment intents, charges, refunds and disputes."""

    units: ClassVar = UNITS
    other_names: ClassVar = {"cs_": "of a Checkout session, and the payment is called by its payment intent, pi_..."}

    def __init__(self, secrets: Sequence[str]) -> None:
        try:
            import stripe
        except ImportError:
            raise ConfigurationError(missing("SECKILL_STRIPE_SECRET", "Stripe's library", "stripe")) from None
        self._stripe, self._secrets = stripe, secrets

    @override
    def read(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        def verify(secret: str) -> None:
            self._stripe.WebhookSignature.verify_header(body.decode(), headers.get("stripe-signature"), secret, 300)

        ensure_signed(self._secrets, verify, self._stripe.SignatureVerificationError)
        kind = _KINDS.get(Head.model_validate_json(body).type)
        return _report(kind, _Event.model_validate_json(body)) if kind else None


def _report(kind: Kind, event: _Event) -> Report | None:
    of = inner(event.data, "object")
    of |= inner(of, "currency_conversion")  # of sessions before 2025-03-31, which else speak of the buyer's currency
    currency = str(of.get("source_currency") or of.get("currency") or "").upper() or None
    amount, status = number(of, "amount_total", "amount_received", "amount_captured", "amount"), str(of.get("status"))
    ref = name_of(of.get("payment_intent")) or name_of(of.get("charge")) or of.get("id")
    hold = inner(of, "metadata").get("hold") or of.get("client_reference_id")
    more: dict[str, Any] = {"message": event.id, "at": event.created, "hold": hold}
    if kind is Kind.SUCCEEDED:
        of_intent = of.get("object") == "charge" and (ref != of.get("id") or not of.get("captured"))
        if not hold or amount is None or of.get("payment_status") == "unpaid" or of_intent:
            return None
        more |= {"subtotal": UNITS.iso(_subtotal(of, amount), currency), "paid_at": event.created}
    elif kind is Kind.REFUNDED:
        so_far = UNITS.iso(None if of.get("refunded") else number(of, "amount_refunded"), currency)
        amount, more["part"], more["so_far"] = None, not of.get("refunded"), so_far
    elif kind is Kind.REFUND_FAILED:
        if status not in ("failed", "canceled") or ref == of.get("id"):
            return None
        more |= {"message": of.get("id"), "why": str(of.get("failure_reason") or status)}
    elif kind is Kind.DISPUTED:
        kind = Kind(f"dispute_{_ENDS[status]}") if status in _ENDS else kind
        more |= {"message": of.get("id"), "why": str(of.get("reason") or "")}
    return Report(kind=kind, payment_ref=ref, amount=UNITS.iso(amount, currency), currency=currency, **more)


def _subtotal(of: Mapping[str, Any], amount: int) -> int | None:
    if "amount_subtotal" in of:
        return number(of, "amount_subtotal")
    details = inner(of, "amount_details")  # of an intent: what is not for the goods
    rest = [number(inner(details, name), "amount", "total_tax_amount") or 0 for name in ("tax", "shipping", "tip")]
    goods = amount - sum(rest) + (number(details, "discount_amount") or 0)
    return goods if goods != amount else None

"""Stripe's objects, in its events and its lists, and the report that each makes of a payment.

A payment's name is that of its payment intent, `pi_...`, in each object; that of its charge if it has no intent, and
that of its session if the sum was 0. Each refund has its own amount, and the charge has the sum so far.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from app.payments.reading import inner, name_of, number
from app.payments.report import Kind, Report
from app.payments.units import STRIPE

_log = logging.getLogger(__name__)

# A pending refund that fails later is reported once more; one that waits for the payer's action may never be made.
REFUNDS: Final = {
    **dict.fromkeys(("succeeded", "pending"), Kind.REFUNDED),
    **dict.fromkeys(("failed", "canceled"), Kind.REFUND_FAILED),
}
UNCAPTURED: Final = "expired_uncaptured_charge"  # the reason of a refund of an amount that was never captured
_RESERVED: Final = "requires_capture"
# A closed inquiry has taken nothing; a prevented dispute has given the money back.
_ENDS: Final = {"won": "won", "warning_closed": "won", "lost": "lost", "prevented": "lost"}


def report_of(kind: Kind, of: dict[str, Any], message: str, at: float | None) -> Report | None:
    """Report an object of an event at a moment (seconds since 1970); None if nothing follows. Raises `ValueError`."""
    if of.get("mode") not in (None, "payment"):
        _log.info("the session %r of mode %r pays for no hold: ignored", of.get("id"), of["mode"])
        return None
    of |= inner(of, "currency_conversion")  # of sessions before 2025-03-31, which else speak of the buyer's currency
    currency = str(of.get("source_currency") or of.get("currency") or "").upper() or None
    amount, status = number(of, "amount_total", "amount_received", "amount_captured", "amount"), str(of.get("status"))
    ref = name_of(of.get("payment_intent")) or name_of(of.get("charge")) or of.get("id")
    hold = inner(of, "metadata").get("hold") or of.get("client_reference_id")
    more: dict[str, Any] = {"message": message, "at": at, "hold": hold}
    if kind is Kind.SUCCEEDED:
        of_intent = of.get("object") == "charge" and (ref != of.get("id") or not of.get("captured"))
        waits = of.get("payment_status") == "unpaid" or inner(of, "payment_intent").get("status") == _RESERVED
        if not hold or amount is None or of_intent or waits:
            return None
        more |= {"subtotal": STRIPE.iso(_subtotal(of, amount), currency), "paid_at": at}
    elif kind is Kind.REFUNDED and of.get("object") == "refund":
        if status not in REFUNDS or ref == of.get("id") or of.get("reason") == UNCAPTURED:
            return None
        kind = REFUNDS[status]
        failed = kind is Kind.REFUND_FAILED
        more |= {"refund_id": of.get("id"), "refund_name": inner(of, "metadata").get("seckill")}
        # Its creation may be reported again, long after a later dispute's.
        more |= {"why": str(of.get("failure_reason") or status)} if failed else {"at": of.get("created") or at}
    elif kind is Kind.REFUNDED:
        so_far, all_of_it = number(of, "amount_refunded"), number(of, "amount")
        if so_far is None or all_of_it is None or amount is None:
            raise ValueError("amount_refunded: how much was given back is not said")
        so_far -= max(0, all_of_it - amount)  # Stripe's sum includes the part that was never captured
        if so_far <= 0:
            return None
        amount, more["so_far"], more["whole"] = None, STRIPE.iso(so_far, currency), bool(of.get("refunded"))
    elif kind is Kind.DISPUTED:
        kind = Kind(f"dispute_{_ENDS[status]}") if status in _ENDS else kind
        more |= {"refund_id": of.get("id"), "why": str(of.get("reason") or "")}
    return Report(kind=kind, payment_ref=ref, amount=STRIPE.iso(amount, currency), currency=currency, **more)


def _subtotal(of: Mapping[str, Any], amount: int) -> int | None:
    if "amount_subtotal" in of:
        return number(of, "amount_subtotal")
    details = inner(of, "amount_details")  # of an intent: the part that is not for the goods
    rest = [number(inner(details, name), "amount", "total_tax_amount") or 0 for name in ("tax", "shipping", "tip")]
    goods = amount - sum(rest) + (number(details, "discount_amount") or 0)
    return goods if goods != amount else None

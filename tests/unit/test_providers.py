"""Payment providers: what each of them signs is read as it is documented, and nothing else is believed."""

import base64
import hashlib
import hmac
import importlib
import importlib.util
import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import ValidationError

from app import money
from app.errors import ConfigurationError, NotSigned
from app.payments import Kind, Report
from app.payments.generic import StandardWebhooks
from app.payments.registry import PROVIDERS, classes, readers
from lab.callback import signed

ROOT = Path(__file__).parents[2]
HOLD = f"lamp~1795679839808-0~{32 * '0'}"
SECRET = "whsec_" + base64.b64encode(b"a provider's secret of 32 bytes.").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret of 32 bytes......").decode()
CREATED = 1_795_679_900


def told(report: Report | None) -> dict[str, Any]:
    """What a report says beyond the defaults."""
    return {} if report is None else report.model_dump(exclude_defaults=True)


# -- Standard Webhooks -------------------------------------------------------------------------------------------------


def standard(kind: str, secret: str = SECRET, secrets: tuple[str, ...] = (SECRET,), **data: Any) -> Report | None:
    body = json.dumps({"type": kind, "timestamp": "2026-11-26T07:58:20Z", "data": {"payment_ref": "p1"} | data})
    return StandardWebhooks(secrets).read(body.encode(), signed(secret, "msg_1", body))


def test_standard_webhooks() -> None:
    """Each kind of report has its type; what is no type of ours says nothing."""
    sums: dict[str, Any] = {"amount": 599, "subtotal": 499, "currency": "EUR", "paid_at": CREATED - 60.0}
    begins: dict[str, Any] = {"payment_ref": "p1", "message": "msg_1", "at": float(CREATED)}
    assert told(standard("payment.succeeded", hold=HOLD, **sums)) == {
        "kind": "succeeded",
        "hold": HOLD,
        **begins,
        **sums,
    }
    for kind in Kind:
        assert told(standard(f"payment.{kind}", hold=HOLD))["kind"] == kind
    assert told(standard("payment.disputed", why="fraudulent")) == {"kind": "disputed", "why": "fraudulent", **begins}
    back: dict[str, Any] = {"amount": 200, "currency": "EUR", "refund_id": "r7", "refund_name": "n4m3"}
    assert told(standard("payment.refunded", **back)) == {"kind": "refunded", **back, **begins}
    assert told(standard("payment.refunded")) == {"kind": "refunded", **begins}
    for unnamed in ({"refund_id": ""}, {"refund_name": ""}):
        odd: dict[str, Any] = unnamed
        with pytest.raises(ValidationError, match=next(iter(odd))):
            standard("payment.refunded", **odd)
    with pytest.raises(ValidationError, match="data.hold is needed"):
        standard("payment.succeeded")
    assert standard("payment.pending") is None
    assert standard("v1.x", data=None) is None


def test_any_of_several_secrets_will_do() -> None:
    """While one secret follows another both are believed, and no third one."""
    for secret in (SECRET, OTHER):
        assert standard("payment.failed", secret, (SECRET, OTHER)) is not None
    with pytest.raises(NotSigned):
        standard("payment.failed", OTHER, (SECRET,))
    with pytest.raises(NotSigned, match="^a header or the body can't be read$"):
        StandardWebhooks([SECRET]).read(b"{}", signed(SECRET, "m", "{}") | {"webhook-signature": "v1,\xe9"})


# -- Stripe ------------------------------------------------------------------------------------------------------------

needs_stripe = pytest.mark.skipif(importlib.util.find_spec("stripe") is None, reason="pip install '.[stripe]'")

# As the reference of Stripe's API shows them, with the fields that matter here, and some beside them.
SESSION = {
    "id": "cs_test_a1",
    "object": "checkout.session",
    "amount_subtotal": 499,
    "amount_total": 499,
    "client_reference_id": HOLD,
    "currency": "eur",
    "livemode": True,
    "metadata": {},
    "mode": "payment",
    "payment_intent": "pi_1",
    "payment_status": "paid",
    "presentment_details": None,
    "status": "complete",
    "total_details": {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0},
}
INTENT = {
    "id": "pi_1",
    "object": "payment_intent",
    "amount": 499,
    "amount_details": {"tip": {}},
    "amount_received": 499,
    "currency": "eur",
    "latest_charge": "ch_1",
    "metadata": {"hold": HOLD},
    "status": "succeeded",
}
CHARGE = {
    "id": "ch_1",
    "object": "charge",
    "amount": 499,
    "amount_captured": 499,
    "amount_refunded": 0,
    "captured": True,
    "currency": "eur",
    "metadata": {},
    "payment_intent": "pi_1",
    "refunded": False,
    "status": "succeeded",
}
REFUND = {
    "id": "re_1",
    "object": "refund",
    "amount": 200,
    "charge": "ch_1",
    "created": CREATED - 9,
    "currency": "eur",
    "metadata": {},
    "payment_intent": "pi_1",
    "reason": None,
    "status": "succeeded",
}
DISPUTE = {
    "id": "du_1",
    "object": "dispute",
    "amount": 499,
    "charge": "ch_1",
    "currency": "eur",
    "metadata": {},
    "payment_intent": "pi_1",
    "reason": "fraudulent",
    "status": "needs_response",
}
BEGINS = {"payment_ref": "pi_1", "message": "evt_1", "at": float(CREATED)}
PAID = BEGINS | {"kind": "succeeded", "hold": HOLD, "amount": 499, "currency": "EUR", "paid_at": float(CREATED)}


def stripe(
    kind: str,
    about: dict[str, Any],
    before: dict[str, Any] | None = None,
    *,
    options: dict[str, Any] | None = None,
    ahead_s: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """What the reader makes of an event of Stripe's, which its own library signs."""
    import stripe as library

    data = {"object": about} | ({"previous_attributes": before} if before else {})
    event = {"id": "evt_1", "object": "event", "api_version": "2026-03-25.dahlia", "created": CREATED, "data": data}
    body = json.dumps(event | {"type": kind} | more)
    at = int(time.time()) + ahead_s
    signed = library.WebhookSignature.generate_signature_header(body, "whsec_of_stripe", at)
    reader = readers({"stripe": ["whsec_older", "whsec_of_stripe"]}, stripe=options or {})["stripe"]
    return told(reader.read(body.encode(), {"stripe-signature": signed}))


@needs_stripe
@pytest.mark.parametrize(
    ("kind", "about", "said"),
    [
        ("checkout.session.completed", SESSION, PAID | {"subtotal": 499}),
        ("checkout.session.async_payment_succeeded", SESSION, PAID | {"subtotal": 499}),
        ("checkout.session.completed", SESSION | {"payment_intent": INTENT}, PAID | {"subtotal": 499}),
        ("checkout.session.completed", SESSION | {"payment_status": "unpaid"}, {}),  # it takes days
        (
            "checkout.session.completed",  # all of it is a promotion code's
            SESSION | {"payment_intent": None, "payment_status": "no_payment_required", "amount_total": 0},
            PAID | {"payment_ref": "cs_test_a1", "amount": 0, "subtotal": 499},
        ),
        ("checkout.session.completed", SESSION | {"payment_intent": INTENT | {"status": "requires_capture"}}, {}),
        ("checkout.session.completed", SESSION | {"client_reference_id": None}, {}),
        ("payment_intent.succeeded", INTENT, PAID),
        ("payment_intent.succeeded", INTENT | {"metadata": {}}, {}),
        ("payment_intent.succeeded", INTENT | {"amount_received": 300}, PAID | {"amount": 300}),  # partly captured
        ("payment_intent.succeeded", INTENT | {"amount_received": 600}, PAID | {"amount": 600}),  # and more than asked
        ("payment_intent.amount_capturable_updated", INTENT | {"amount_received": 0}, {}),
        (
            "payment_intent.succeeded",
            INTENT
            | {
                "amount_received": 1044,
                "amount_details": {
                    "shipping": {"amount": 500},
                    "tax": {"total_tax_amount": 95},
                    "discount_amount": 50,
                    "tip": {},
                },
            },
            PAID | {"amount": 1044, "subtotal": 499},
        ),
        ("charge.succeeded", CHARGE | {"metadata": {"hold": HOLD}}, {}),  # its intent tells it
        (
            "charge.succeeded",
            CHARGE | {"metadata": {"hold": HOLD}, "payment_intent": None},
            PAID | {"payment_ref": "ch_1"},
        ),
        ("charge.succeeded", CHARGE | {"metadata": {"hold": HOLD}, "payment_intent": None, "captured": False}, {}),
        (
            "charge.captured",
            CHARGE | {"metadata": {"hold": HOLD}, "payment_intent": None, "amount": 600},
            PAID | {"payment_ref": "ch_1"},
        ),
        ("customer.created", {"id": "cus_1", "object": "customer"}, {}),
    ],
)
def test_stripes_payments(kind: str, about: dict[str, Any], said: dict[str, Any]) -> None:
    """Whichever object an event is about, the payment has one name, one sum, and what of it is for the goods."""
    assert stripe(kind, about) == said


@needs_stripe
@pytest.mark.parametrize("mode", ["subscription", "setup"])
@pytest.mark.parametrize("event", ["completed", "async_payment_succeeded", "expired"])
def test_sessions_that_are_no_payment(mode: str, event: str, caplog: pytest.LogCaptureFixture) -> None:
    """A subscription that names a hold pays for none: it is ignored, with its name in the log."""
    caplog.set_level("INFO")
    assert stripe(f"checkout.session.{event}", SESSION | {"mode": mode, "payment_intent": None}) == {}
    [line] = caplog.messages
    assert line == f"the session 'cs_test_a1' of mode '{mode}' pays for no hold: ignored"


@needs_stripe
@pytest.mark.parametrize(
    ("more", "options", "why"),
    [
        ({"livemode": True}, {}, None),
        ({"livemode": None, "account": None}, {}, None),
        ({"livemode": False}, {}, "^it is of Stripe's test mode, in which nobody pays; SECKILL_STRIPE_TEST_MODE=true"),
        ({"livemode": False}, {"test_mode": True}, None),
        ({"livemode": True}, {"test_mode": True}, None),
        ({"account": "acct_2"}, {}, "^it is of the account acct_2, and SECKILL_STRIPE_ACCOUNT is not that one$"),
        ({"account": "acct_2"}, {"account": "acct_1"}, "SECKILL_STRIPE_ACCOUNT"),
        ({"account": "acct_1"}, {"account": "acct_1"}, None),
        ({}, {"account": "acct_1"}, None),
        ({"ahead_s": 310}, {}, "Timestamp is in the future"),
        ({"ahead_s": 290}, {}, None),
        ({"ahead_s": -310}, {}, "Timestamp outside the tolerance zone"),
    ],
)
def test_events_of_stripe_that_count_for_nothing(
    more: dict[str, Any], options: dict[str, Any], why: str | None
) -> None:
    """Play money, another account's money, and a clock that is not Stripe's pay for nothing."""
    for kind, about in (("payment_intent.succeeded", INTENT), ("charge.refunded", CHARGE | {"amount_refunded": 1})):
        with nullcontext() if why is None else pytest.raises(NotSigned, match=why):
            assert stripe(kind, about, options=options, **more)
    assert stripe("customer.created", {}, livemode=False) == {}


@needs_stripe
def test_others_sell_by_the_same_account() -> None:
    """Where that is so, an event that names neither a hold nor a refund of ours is likely about theirs."""
    hold, ours = {"metadata": {"hold": HOLD}}, {"metadata": {"seckill": "n4m3"}}
    given = CHARGE | {"amount_refunded": 1}
    for kind, about, strange in (
        ("charge.refunded", given, True),
        ("charge.refunded", given | hold, False),
        ("refund.created", REFUND, True),
        ("refund.created", REFUND | ours, False),
        ("refund.failed", REFUND | {"status": "failed"}, True),
        ("charge.dispute.created", DISPUTE, True),
        ("charge.dispute.created", DISPUTE | hold, False),
        ("payment_intent.succeeded", INTENT, False),
    ):
        assert stripe(kind, about, options={"shared": True}).get("stranger", False) is strange, kind
        assert "stranger" not in stripe(kind, about)


@needs_stripe
@pytest.mark.parametrize(
    ("kind", "about", "says"),
    [
        ("checkout.session.async_payment_failed", SESSION, "failed"),
        ("payment_intent.payment_failed", INTENT, "failed"),
        ("checkout.session.expired", SESSION | {"payment_intent": None, "payment_status": "unpaid"}, "canceled"),
        ("payment_intent.canceled", INTENT, "canceled"),
    ],
)
def test_stripes_payments_that_fail(kind: str, about: dict[str, Any], says: str) -> None:
    """They are told, and end nothing."""
    assert stripe(kind, about)["kind"] == says


@needs_stripe
@pytest.mark.parametrize(
    ("sums", "amount", "currency", "subtotal"),
    [
        ({"amount_total": 999, "total_details": {"amount_shipping": 500}}, 999, "EUR", 499),
        ({"amount_total": 594, "total_details": {"amount_tax": 95}}, 594, "EUR", 499),
        ({"amount_total": 449, "total_details": {"amount_discount": 50}}, 449, "EUR", 499),
        # Adaptive Pricing: the buyer paid in dollars, and the session is in the price's currency.
        ({"presentment_details": {"presentment_amount": 541, "presentment_currency": "usd"}}, 499, "EUR", 499),
        (
            {
                "amount_total": 541,
                "amount_subtotal": 541,
                "currency": "usd",
                "currency_conversion": {
                    "amount_subtotal": 499,
                    "amount_total": 499,
                    "fx_rate": "1.0842",
                    "source_currency": "eur",
                },
            },
            *(499, "EUR", 499),
        ),
    ],
)
def test_stripes_sums(sums: dict[str, Any], amount: int, currency: str, subtotal: int) -> None:
    """Tax, shipping, promotion codes and the buyer's own currency are not what the goods cost."""
    found = stripe("checkout.session.completed", SESSION | sums)
    assert (found["amount"], found["currency"], found["subtotal"]) == (amount, currency, subtotal)


@needs_stripe
@pytest.mark.parametrize("event", ["refund.created", "refund.updated", "charge.refund.updated", "refund.failed"])
def test_stripes_refunds(event: str) -> None:
    """Each is told by its own name, and by ours if the cashier has asked for it; its status says what became of it."""
    begins = {"payment_ref": "pi_1", "message": "evt_1", "refund_id": "re_1", "amount": 200, "currency": "EUR"}
    ours = REFUND | {"metadata": {"seckill": "n4m3", "order": "lamp~1-0"}}
    for status in ("succeeded", "pending"):
        made = begins | {"kind": "refunded", "at": CREATED - 9.0}
        assert stripe(event, REFUND | {"status": status}) == made
        assert stripe(event, ours | {"status": status}) == made | {"refund_name": "n4m3"}
        assert stripe(event, REFUND | {"status": status, "created": None})["at"] == CREATED
    failed = REFUND | {"status": "failed", "failure_reason": "lost_or_stolen_card"}
    told_failed = begins | {"kind": "refund_failed", "at": float(CREATED), "why": "lost_or_stolen_card"}
    assert stripe(event, failed) == told_failed
    assert stripe(event, ours | failed | {"metadata": ours["metadata"]}) == told_failed | {"refund_name": "n4m3"}
    assert stripe(event, REFUND | {"status": "canceled"})["why"] == "canceled"
    for nothing in (
        {"status": "requires_action"},
        {"status": None},
        {"charge": None, "payment_intent": None},
        {"reason": "expired_uncaptured_charge"},
    ):
        assert stripe(event, REFUND | nothing) == {}
    assert stripe(event, REFUND | {"payment_intent": None})["payment_ref"] == "ch_1"


@needs_stripe
def test_stripes_sum_of_refunds() -> None:
    """The charge says how much was given back so far: of what was captured, not of what was only reserved."""
    begins = BEGINS | {"kind": "refunded", "currency": "EUR"}
    part = stripe("charge.refunded", CHARGE | {"amount_refunded": 300}, {"amount_refunded": 100})
    assert part == begins | {"so_far": 300}
    whole = stripe("charge.refunded", CHARGE | {"amount_refunded": 499, "refunded": True})
    assert whole == begins | {"so_far": 499, "whole": True}
    partly = CHARGE | {"amount": 999}
    for back, said in ((500, {}), (700, {"so_far": 200}), (999, {"so_far": 499, "whole": True})):
        found = stripe("charge.refunded", partly | {"amount_refunded": back, "refunded": back == 999})
        assert found == (begins | said if said else {})
    released = CHARGE | {"amount_captured": 0, "captured": False, "amount_refunded": 499, "refunded": True}
    assert stripe("charge.refunded", released) == {}
    over = CHARGE | {"amount": 400, "amount_refunded": 100}
    assert stripe("charge.refunded", over) == begins | {"so_far": 100}
    with pytest.raises(ValueError, match="^amount_refunded: "):
        stripe("charge.refunded", CHARGE | {"amount_refunded": None})


@needs_stripe
@pytest.mark.parametrize(
    ("event", "status", "kind"),
    [
        ("created", "needs_response", "disputed"),
        ("created", "warning_needs_response", "disputed"),
        ("funds_withdrawn", "needs_response", "disputed"),
        ("updated", "under_review", "disputed"),
        ("closed", "won", "dispute_won"),
        ("funds_reinstated", "won", "dispute_won"),
        ("closed", "warning_closed", "dispute_won"),
        ("closed", "lost", "dispute_lost"),
        ("created", "prevented", "dispute_lost"),
    ],
)
def test_stripes_disputes(event: str, status: str, kind: str) -> None:
    """How a dispute stands says its status, and its own name makes its events one."""
    found = stripe(f"charge.dispute.{event}", DISPUTE | {"status": status})
    said = {"kind": kind, "refund_id": "du_1", "amount": 499, "currency": "EUR", "why": "fraudulent"}
    assert found == BEGINS | said


@needs_stripe
@pytest.mark.parametrize(
    ("currency", "theirs", "iso"),
    [
        ("eur", 49_900, 49_900),
        ("huf", 49_900, 49_900),
        ("twd", 49_900, 49_900),
        ("jpy", 499, 499),
        ("ugx", 500_000, 5_000),
        ("isk", 500, 5),
        ("mga", 499, 49_900),
        ("kwd", 1_500, 1_500),
    ],
)
def test_stripes_minor_units(currency: str, theirs: int, iso: int) -> None:
    """Amounts are in the minor unit of ISO 4217, also where Stripe's is another one."""
    sums = {"amount_total": theirs, "amount_subtotal": theirs, "currency": currency}
    found = stripe("checkout.session.completed", SESSION | sums)
    assert (found["amount"], found["subtotal"], found["currency"]) == (iso, iso, currency.upper())
    charge = CHARGE | {"amount": 2 * theirs, "amount_captured": 2 * theirs, "currency": currency}
    assert stripe("charge.refunded", charge | {"amount_refunded": theirs})["so_far"] == iso
    for kind, about in (("refund.created", REFUND), ("charge.dispute.created", DISPUTE)):
        assert stripe(kind, about | {"amount": theirs, "currency": currency})["amount"] == iso
    units = classes({"stripe": ["whsec_"]})["stripe"].units
    assert units is not None
    assert units.theirs(iso, currency.upper()) == theirs


@needs_stripe
def test_an_amount_that_can_not_be() -> None:
    """Half a shilling is no amount of any price, and in some currencies nothing is charged."""
    with pytest.raises(ValueError, match=r"^amount: Stripe doesn't charge in CLF$"):
        stripe("payment_intent.succeeded", INTENT | {"currency": "clf"})
    with pytest.raises(ValueError, match=r"^amount: 50 is no whole number of UGX's minor unit$"):
        stripe("payment_intent.succeeded", INTENT | {"amount_received": 50, "currency": "ugx"})


@pytest.mark.parametrize(
    ("price", "why"),
    [
        ("499EUR", None),
        ("10.45HUF", None),
        ("499JPY", None),
        ("5000UGX", None),
        ("1.500KWD", None),
        ("1.505KWD", "Stripe charges multiples of 0.010 KWD"),
        ("499.50MGA", "Stripe charges multiples of 1.00 MGA"),
        ("499MGA", None),
        ("499IQD", "Stripe doesn't charge in IQD"),
    ],
)
def test_prices_that_stripe_never_charges(price: str, why: str | None) -> None:
    """They are known without a call, and without Stripe's library."""
    units = classes({"stripe": ["whsec_"]})["stripe"].units
    assert units is not None
    assert units.why_not(*money.read(price)) == why


@needs_stripe
def test_odd_events_of_stripe() -> None:
    """What is signed and makes no sense names its field, if it is of a type that is read."""
    assert stripe("v1.billing.meter.error_report_triggered", {}) == {}
    for about in ({}, {"id": 7}, INTENT | {"id": "x" * 201}):
        with pytest.raises(ValidationError, match="payment_ref"):
            stripe("payment_intent.canceled", about)
    assert "amount" not in stripe("payment_intent.canceled", INTENT | {"amount": "much", "amount_received": None})


# -- Alipay ------------------------------------------------------------------------------------------------------------

APP = "2021000000000001"
# As the page on asynchronous notices shows it.
NOTICE = {
    "app_id": APP,
    "auth_app_id": APP,
    "body": "台灯 & more",
    "buyer_id": "2088102122524333",
    "charset": "utf-8",
    "fund_bill_list": '[{"amount":"4.99","fundChannel":"ALIPAYACCOUNT"}]',
    "gmt_create": "2026-11-26 15:57:00",
    "gmt_payment": "2026-11-26 15:57:20",
    "notify_id": "ac05099524730693a8b330c5ecf72da9786",
    "notify_time": "2026-11-26 15:58:20",
    "notify_type": "trade_status_sync",
    "out_trade_no": "order_7",
    "passback_params": HOLD.replace("~", "%7E"),  # as the shop had to write it
    "point_amount": "",
    "refund_fee": "0.00",
    "seller_id": "2088101106499364",
    "total_amount": "4.99",
    "trade_no": "2026112622001100001",
    "trade_status": "TRADE_SUCCESS",
    "version": "1.0",
}


@pytest.fixture(scope="module")
def alipay() -> Callable[..., Report | None]:
    """Have the reader of Alipay read a notice that Alipay has signed."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(3)]
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    known = [
        f"{APP}:{base64.b64encode(key.public_key().public_bytes(serialization.Encoding.DER, form)).decode()}"
        for key in keys[:2]
    ]
    reader = readers({"alipay": known})["alipay"]

    def read(key: int = 0, charset: str = "utf-8", tampered: str = "", **fields: str | None) -> Report | None:
        said = {name: value for name, value in (NOTICE | fields).items() if value is not None}
        text = "&".join(f"{name}={value}" for name, value in sorted(said.items()))
        signature = keys[key].sign(text.encode(charset), padding.PKCS1v15(), hashes.SHA256())
        signed = said | {"sign_type": "RSA2", "sign": base64.b64encode(signature).decode()}
        return reader.read(urlencode(signed, encoding=charset).encode() + tampered.encode(), {})

    return read


def test_alipays_payments(alipay: Callable[..., Report | None]) -> None:
    """A trade is paid; it takes no refund any more, and is closed, later; before that it says nothing."""
    begins = {"payment_ref": NOTICE["trade_no"], "hold": HOLD, "currency": "CNY", "amount": 499}
    paid = begins | {"message": NOTICE["notify_id"], "paid_at": CREATED - 60.0, "at": CREATED - 60.0}
    for status in ("TRADE_SUCCESS", "TRADE_FINISHED"):
        assert told(alipay(trade_status=status)) == paid | {"kind": "succeeded"}
    assert told(alipay(charset="gbk")) == paid | {"kind": "succeeded"}
    closed = told(alipay(trade_status="TRADE_CLOSED", gmt_payment=None, refund_fee=None))
    assert (closed["kind"], closed["at"]) == ("canceled", CREATED)
    assert alipay(trade_status="WAIT_BUYER_PAY", gmt_payment=None) is None
    assert alipay(trade_status=None) is None


def test_alipays_refunds(alipay: Callable[..., Report | None]) -> None:
    """A refund is told with the sum so far, which later notices of the trade repeat."""
    back = {"gmt_refund": "2026-11-26 15:59:20.123", "out_biz_no": "r1", "notify_id": "another"}
    begins = {"kind": "refunded", "payment_ref": NOTICE["trade_no"], "hold": HOLD, "currency": "CNY"}
    part = told(alipay(**back, refund_fee="2.00"))
    assert part == begins | {"message": "another", "so_far": 200, "at": CREATED + 60.123}
    again = told(alipay(refund_fee="2.00", trade_status="TRADE_FINISHED"))
    assert again == begins | {"message": NOTICE["notify_id"], "so_far": 200, "at": float(CREATED)}
    whole = told(alipay(**back, refund_fee="4.99", trade_status="TRADE_CLOSED"))
    assert whole == begins | {"message": "another", "so_far": 499, "whole": True, "at": CREATED + 60.123}


def test_what_alipay_has_not_signed(alipay: Callable[..., Report | None]) -> None:
    """Each of the app's keys will do; another key, another app's, and a changed field are not believed."""
    assert alipay(key=1) is not None
    odd: tuple[dict[str, Any], ...] = (
        {"key": 2},
        {"app_id": "2021000000000002"},
        {"app_id": None},
        {"tampered": "&total_amount=0.01"},
        {"tampered": "&sign=none"},
    )
    for fields in odd:
        with pytest.raises(NotSigned):
            alipay(**fields)
    with pytest.raises(ValueError, match="such as 499EUR"):
        alipay(total_amount="much")


@pytest.mark.parametrize("key", ["", f"{APP}:", "MIIBIjAN", f"{APP}:MIIBIjAN", "app:MIIBIjAN"])
def test_a_key_of_alipay_that_is_none(key: str) -> None:
    """The setting is named, and the key is not shown."""
    pytest.importorskip("cryptography")
    with pytest.raises(ConfigurationError, match=r"^SECKILL_ALIPAY_KEY: an app's id, a colon, ") as refused:
        readers({"alipay": [key]})
    assert "MIIBIjAN" not in str(refused.value)


# -- providers of one's own --------------------------------------------------------------------------------------------


def test_a_provider_is_a_short_module() -> None:
    """Each of ours has less than a hundred lines."""
    for provider in PROVIDERS.values():
        module = importlib.import_module(provider.reader.partition(":")[0])
        assert len(Path(str(module.__file__)).read_text().splitlines()) < 100, provider


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The provider that docs/payments.md writes, where Python finds it."""
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "payments.md").read_text(), re.DOTALL)
    (tmp_path / "acme_payments.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_payments", raising=False)
    return "acme=acme_payments:Acme"


def test_the_provider_of_the_docs(acme: str) -> None:
    """It is read by its own signature, and is in every way one of the others."""
    reader = readers({"acme": ["older", "secret"]}, acme)["acme"]
    body = json.dumps(
        {"event": "paid", "id": "e1", "order": HOLD, "payment": "a1", "cents": 499, "time": CREATED}
    ).encode()
    signed = {"acme-signature": hmac.new(b"secret", body, hashlib.sha256).hexdigest()}
    report = reader.read(body, signed)
    assert told(report) == {
        **{"kind": "succeeded", "payment_ref": "a1", "message": "e1", "hold": HOLD, "amount": 499, "currency": "EUR"},
        **{"paid_at": CREATED, "at": CREATED},
    }
    for headers in ({}, {"acme-signature": "0" * 64}, {"acme-signature": "é"}):
        with pytest.raises(NotSigned):
            reader.read(body, headers)


@pytest.mark.parametrize(
    ("own", "secrets", "why"),
    [
        ("acme", {}, r"^SECKILL_PROVIDERS: 'acme' is not a new name, "),
        ("stripe=a:B", {}, r"^SECKILL_PROVIDERS: 'stripe=a:B' is not a new name, "),
        ("acme=acme_payments:Other", {"acme": ["s"]}, r"^SECKILL_PROVIDERS: acme_payments:Other: "),
        ("acme=acme_nowhere:Acme", {"acme": ["s"]}, r"^SECKILL_PROVIDERS: acme_nowhere:Acme: No module"),
        ("acme=json:JSONDecoder", {"acme": ["s"]}, r"^SECKILL_PROVIDERS: json:JSONDecoder is not a Reader"),
        ("", {"acme": ["s"]}, r"^SECKILL_PROVIDER_SECRETS: there is no provider 'acme' in SECKILL_PROVIDERS$"),
    ],
)
def test_providers_that_are_none(acme: str, own: str, secrets: dict[str, list[str]], why: str) -> None:
    """A wrong setting is named when the instance starts."""
    with pytest.raises(ConfigurationError, match=why):
        readers(secrets, own)


def test_a_report_names_what_is_wrong_with_it() -> None:
    """A reader can't pass on what the sale would not take."""
    right = {"kind": Kind.REFUNDED, "payment_ref": "p1", "message": "m1"}
    wrong = ({"amount": -1}, {"amount": "499"}, {"currency": "eur"}, {"payment_ref": ""}, {"hodl": HOLD})
    for odd in wrong:
        with pytest.raises(ValidationError, match=next(iter(odd))):
            Report(**right | odd)

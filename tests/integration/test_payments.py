"""Callbacks of payment providers: twice, late and out of order they have one result, and none is a 5xx."""

import base64
import importlib.util
import json
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from lab.callback import signed
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, client
from tests.harness.waiting import eventually_async

SECRET = "whsec_" + base64.b64encode(b"a provider's secret of 32 bytes.").decode()
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
STRIPE = "whsec_of_stripe"
HAS_STRIPE = importlib.util.find_spec("stripe") is not None


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance that knows the provider's secret, and 2 units at 499 cents."""
    stripe = {"stripe_secret": STRIPE} if HAS_STRIPE else {}
    async with client(etcd.endpoint, valkey.url, payments_secret=SECRET, **stripe) as http:
        terms = {"price": 499, "currency": "EUR"}
        stock = {"stock": 2, "new_sale": True, "forget_orders": "all"}
        assert (await http.put("/stock", json=stock | terms, headers=OPERATOR)).status_code == 200
        yield http


async def hold(http: httpx.AsyncClient, buyer: str = "ann") -> str:
    found: str = (await http.post("/holds", json={"buyer": buyer})).json()["id"]
    return found


async def call_back(
    http: httpx.AsyncClient,
    kind: str,
    hold: str | None,
    ref: str = "p1",
    *,
    secret: str = SECRET,
    ago_s: float = 0,
    written_ago_s: float = 0,
    **more: Any,
) -> httpx.Response:
    """Call back as a provider does."""
    about = ({} if hold is None else {"hold": hold}) | {"payment_ref": ref} | more
    at = datetime.now(UTC) - timedelta(seconds=ago_s)
    written = at - timedelta(seconds=written_ago_s)
    body = json.dumps({"type": f"payment.{kind}", "timestamp": written.isoformat(), "data": about})
    name = f"{kind} {ref} {hold and hold.partition('~')[0]} {more}"
    return await http.post("/payments/webhook", content=body, headers=signed(secret, name, body, at))


async def outcome(http: httpx.AsyncClient, kind: str, hold: str | None, ref: str = "p1", **more: Any) -> str:
    """Call back, and return the outcome."""
    answer = await call_back(http, kind, hold, ref, **more)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["outcome"]
    return found


async def stands(http: httpx.AsyncClient, hold: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/holds/{hold}")).json()
    return found


async def stock(http: httpx.AsyncClient) -> tuple[int, int, int]:
    found = (await http.get("/stock")).json()
    return found["stock"], found["held"], found["lucky"]


async def test_a_refund_without_a_hold(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """It is found by its payment, in whatever item; one of nobody is ignored, with a line in the log."""
    await http.put("/stock?sku=watch", json={"stock": 5, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
    other = (await http.post("/holds", json={"buyer": "bob", "sku": "watch"})).json()["id"]
    held = await hold(http)
    assert await outcome(http, "succeeded", other, "p-other") == "confirmed"
    assert await outcome(http, "succeeded", held, amount=499) == "confirmed"
    assert await outcome(http, "refunded", None, "p1") == "refunded"
    assert await outcome(http, "refunded", None, "p1") == "already_refunded"
    assert (await stands(http, held))["state"] == "refunded"
    assert await outcome(http, "refunded", held, "p-other") == "refunded"  # the hold is another one than the payment's
    assert (await stands(http, other))["state"] == "refunded"
    caplog.clear()
    assert await outcome(http, "refunded", None, "p-of-nobody", written_ago_s=3700) == "ignored"
    assert "p-of-nobody is refunded, and no order of this service has it" in caplog.text


async def test_owed_money_is_a_warning(etcd: EtcdMember, valkey: Valkey) -> None:
    """Where there is an auditor, each instance's /readyz says how many payments are to be given back, and stays 200."""
    async with client(etcd.endpoint, valkey.url, payments_secret=SECRET, audit_interval_s=0.2) as http:
        await http.put("/stock", json={"stock": 1, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
        held = await hold(http)
        await http.post(f"/holds/{held}/cancel")
        assert await outcome(http, "succeeded", held) == "refund_due"

        async def warns() -> bool:
            answer = await http.get("/readyz")
            assert answer.status_code == 200
            return any(one.startswith("1 payment to give back") for one in answer.json()["warnings"])

        await eventually_async(warns, "it warns")
        assert "seckill_payments_owed 1.0" in (await http.get("/metrics")).text
        assert await outcome(http, "refunded", None) == "refunded"
        await eventually_async(warns, "it warns no more", until=lambda warned: not warned)


async def test_an_odd_request_id_refuses_no_payment(etcd: EtcdMember, valkey: Valkey) -> None:
    """A proxy on the way may have made it, or added a second one: the report gets a new id, and counts."""
    async with client(etcd.endpoint, valkey.url, payments_secret=SECRET, request_ids=True) as http:
        await http.put("/stock", json={"stock": 1, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
        held = await hold(http)
        for odd, said in (("a b", "confirmed"), ("x" * 101, "already_confirmed"), ("", "already_confirmed")):
            http.headers["X-Request-Id"] = odd
            answer = await call_back(http, "succeeded", held)
            assert (answer.status_code, answer.json()) == (200, {"outcome": said})
            assert len(answer.headers["X-Request-Id"]) == 16
        http.headers["X-Request-Id"] = "r-1"
        assert (await call_back(http, "succeeded", held)).headers["X-Request-Id"] == "r-1"


async def test_signatures(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong or an old signature, or none, is 400, changes nothing, and leaves no secret in the log."""
    held = await hold(http)
    other = "whsec_" + base64.b64encode(b"another secret of 32 bytes......").decode()
    for wrong in ({"secret": other}, {"ago_s": 600}, {"ago_s": -600}):
        assert (await call_back(http, "succeeded", held, **wrong)).status_code == 400
    for headers in ({}, {"webhook-id": "a", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1"}):
        assert (await http.post("/payments/webhook", content=b"{}", headers=headers)).status_code == 400
    assert (await stands(http, held))["state"] == "held"
    assert held.rpartition("~")[2] not in caplog.text
    assert SECRET not in caplog.text


# -- Stripe ------------------------------------------------------------------------------------------------------------


async def of_stripe(http: httpx.AsyncClient, kind: str, about: dict[str, Any] | None, **more: Any) -> httpx.Response:
    """Call back as Stripe does, signed by its own library."""
    if not HAS_STRIPE:
        if os.environ.get("CI"):
            pytest.fail("stripe is not installed")
        pytest.skip("stripe is not installed: pip install '.[stripe]'")
    import stripe

    data = {"object": about} | ({"previous_attributes": more["before"]} if "before" in more else {})
    event = {"id": f"evt_{kind}", "object": "event", "type": kind, "data": about and data}
    body = json.dumps(event | ({"created": more["created"]} if "created" in more else {}))
    signature = stripe.WebhookSignature.generate_signature_header(body, more.get("secret", STRIPE), more.get("at"))
    return await http.post("/payments/stripe", content=body, headers={"Stripe-Signature": signature})


async def test_stripe(http: httpx.AsyncClient) -> None:
    """Session and payment intent tell of one payment; the charge's refund is of it, too."""
    held = await hold(http)
    session = {
        "id": "cs_1",
        "client_reference_id": held,
        "payment_intent": "pi_1",
        "amount_total": 499,
        "currency": "eur",
    }
    for status, told in (("unpaid", "ignored"), ("paid", "confirmed")):
        answer = await of_stripe(http, "checkout.session.completed", session | {"payment_status": status})
        assert (answer.status_code, answer.json()) == (200, {"outcome": told})
    intent = {"id": "pi_1", "metadata": {"hold": held}, "amount": 499, "amount_received": 499, "currency": "eur"}
    charge = {"id": "ch_1", "metadata": {"hold": held}, "payment_intent": "pi_1", "amount": 499, "currency": "eur"}
    for kind, about, told in (
        ("payment_intent.succeeded", intent, "already_confirmed"),
        ("payment_intent.payment_failed", intent, "ignored"),
        ("payment_intent.canceled", intent, "ignored"),
        ("customer.created", {"id": "cus_1"}, "ignored"),
        ("v1.billing.meter.error_report_triggered", None, "ignored"),
        ("charge.refunded", charge | {"refunded": False, "amount_refunded": 1}, "partly_refunded"),
        ("charge.refunded", charge | {"refunded": False, "amount_refunded": 1}, "already_refunded"),
        ("charge.refunded", charge | {"refunded": True, "amount_refunded": 499}, "refunded"),
        ("charge.refunded", charge | {"refunded": True, "amount_refunded": 499}, "already_refunded"),
    ):
        answer = await of_stripe(http, kind, about)
        assert (answer.status_code, answer.json()) == (200, {"outcome": told}), kind
    assert (await stands(http, held))["state"] == "refunded"
    life = (await http.get(f"/orders/{held}/history", headers=OPERATOR)).json()["steps"]
    assert [step["facts"].get("amount") for step in life if step["kind"] == "refunded"] == [1, 498]

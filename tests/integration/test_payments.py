"""Callbacks of payment providers: twice, late and out of order they have one result, and none is a 5xx."""

import asyncio
import base64
import importlib.util
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.operator import StockAdmin
from lab.callback import signed
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, Instance, client
from tests.harness.waiting import WITHIN_S, eventually_async

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


@pytest.mark.parametrize("kind", ["failed", "canceled"])
async def test_an_attempt_that_ends_frees_nothing(http: httpx.AsyncClient, kind: str) -> None:
    """The buyer may try another card until the deadline, or have done so already: that payment counts."""
    held = await hold(http)
    assert await outcome(http, kind, held) == "ignored"
    assert await stock(http) == (1, 1, 0)
    assert await outcome(http, "succeeded", held, "p2", amount=499) == "confirmed"
    assert await outcome(http, kind, held) == "ignored"
    found = await stands(http, held)
    assert (found["state"], found["payment_ref"], found["owed"]) == ("confirmed", "p2", 0)
    assert await stock(http) == (1, 0, 1)


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
    early = await call_back(http, "refunded", None, "p-of-nobody")
    assert early.status_code == 409  # its payment may come
    assert await outcome(http, "refunded", None, "p-of-nobody", written_ago_s=3700) == "ignored"
    assert "p-of-nobody is refunded, and no order of this service has it" in caplog.text
    answer = await call_back(http, "succeeded", None, "p9")
    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, "Value error, data.hold is needed")


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


async def test_what_is_given_away_is_a_warning(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where payments are set up /readyz names each item with units left and no price, and waits for no slow look."""

    async def warnings(http: httpx.AsyncClient) -> Any:
        answer = await http.get("/readyz")
        assert answer.status_code == 200
        return answer.json()["warnings"]

    priced = {"price": 499, "currency": "EUR"}
    ways: list[dict[str, str]] = [{"payments_secret": SECRET}, {"pay_url": "https://pay.example/"}]
    async with AsyncExitStack() as stack:
        plain, *paid = [
            await stack.enter_async_context(client(etcd.endpoint, valkey.url, **others)) for others in ({}, *ways)
        ]
        every: dict[str, dict[str, Any]] = {"free": {}, "gone": {"stock": 0}, "paid": priced}
        for sku, terms in every.items():
            stock = {"stock": 1, "new_sale": True, "forget_orders": "all"} | terms
            (await plain.put("/stock", params={"sku": sku}, json=stock, headers=OPERATOR)).raise_for_status()
        assert await warnings(plain) == []
        for http in paid:
            assert await warnings(http) == ["free has no price: it is sold for nothing"]
        (await plain.put("/stock?sku=free", json=priced, headers=OPERATOR)).raise_for_status()
        for http in paid:
            await eventually_async(lambda http=http: warnings(http), "no more", until=lambda said: said == [])
    monkeypatch.setattr(StockAdmin, "unpriced", lambda _: asyncio.Event().wait())
    async with client(etcd.endpoint, valkey.url, **ways[0]) as http:
        assert await asyncio.wait_for(warnings(http), WITHIN_S) == []


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


async def test_orders_that_are_not_there(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """They may come, as a callback may be faster: 409 with Retry-After, if anything follows; else it is ignored."""
    held = await hold(http)
    number = held.rpartition("~")[0]
    for unknown in (f"{number}~{32 * '0'}", f"default~1-1~{32 * '0'}"):
        for kind in ("succeeded", "refunded"):
            answer = await call_back(http, kind, unknown)
            assert (answer.status_code, answer.headers["Retry-After"]) == (409, "5")
            assert answer.headers["Content-Type"] == "application/problem+json"
        for kind in ("failed", "canceled"):
            assert await outcome(http, kind, unknown) == "ignored"
    assert "no order for payment p1 (None None, hold default~1-1)" in caplog.text
    assert 32 * "0" not in caplog.text
    assert await outcome(http, "succeeded", "user_42") == "ignored"  # which no hold of ours is called
    assert "payment p1 is of 'user_42', which is no hold of this service" in caplog.text
    assert (await stands(http, held))["state"] == "held"


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


async def test_callbacks_that_say_nothing(http: httpx.AsyncClient) -> None:
    """Other types are ignored; what is signed and not understood is 422, with the field."""
    held = await hold(http)
    assert await outcome(http, "pending", held) == "ignored"
    answer = await call_back(http, "succeeded", held, amount="much")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "amount")
    assert await outcome(http, "succeeded", held, amount=1) == "amount_mismatch"


async def test_half_requests_keep_nobody_out(etcd: EtcdMember, valkey: Valkey) -> None:
    """However many strangers send half a body and wait, one that is sent in one go is read; the slowest gives way."""
    with Instance(etcd.endpoint, valkey.url, payments_secret=SECRET, request_timeout_ms=120_000) as instance:
        for path, more_than_are_read in (("/payments/webhook", 520), ("/control/login", 120)):
            half = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode()
            slow = [await asyncio.open_connection("127.0.0.1", instance.port) for _ in range(more_than_are_read)]
            for _, writer in slow:
                writer.write(half)
                await writer.drain()
            async with httpx.AsyncClient(base_url=instance.url, trust_env=False, timeout=60) as http:
                for _ in range(3):
                    if path == "/payments/webhook":
                        assert await outcome(http, "failed", "any") == "ignored"
                    else:
                        assert (await http.post(path, data={"token": "wrong"})).status_code in (303, 401, 403)
            first = await asyncio.wait_for(slow[0][0].readline(), WITHIN_S)
            assert first == b"HTTP/1.1 408 Request Timeout\r\n"
            for _, writer in slow:
                writer.close()


async def test_switched_off(etcd: EtcdMember, valkey: Valkey) -> None:
    """Without a secret there is none who could call back, and the answer says by which setting."""
    async with client(etcd.endpoint, valkey.url) as http:
        for path, name in (("webhook", "SECKILL_PAYMENTS_SECRET"), ("stripe", "SECKILL_STRIPE_SECRET")):
            answer = await http.post(f"/payments/{path}", content=b"{}")
            assert answer.status_code == 403
            assert name in answer.json()["detail"]


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


async def test_a_charge_of_several_orders(http: httpx.AsyncClient) -> None:
    """The sum so far is the share of one after the other; the whole is all that was paid, in any item."""
    terms = {"price": 499, "currency": "EUR", "stock": 5, "new_sale": True, "forget_orders": "all"}
    await http.put("/stock?sku=watch", json=terms, headers=OPERATOR)
    one, two = await hold(http), (await http.post("/holds", json={"buyer": "bob", "sku": "watch"})).json()["id"]
    for each in (one, two):
        assert await outcome(http, "succeeded", each, "pi_1", amount=499) == "confirmed"
    charge = {"id": "ch_1", "metadata": {"hold": one}, "payment_intent": "pi_1", "amount": 998, "currency": "eur"}
    part = charge | {"amount_refunded": 499, "refunded": False}
    assert (await of_stripe(http, "charge.refunded", part)).json() == {"outcome": "refunded"}
    assert sorted([(await stands(http, each))["state"] for each in (one, two)]) == ["confirmed", "refunded"]
    whole = charge | {"amount_refunded": 998, "refunded": True}
    await of_stripe(http, "charge.refunded", whole)
    assert [(await stands(http, each))["state"] for each in (one, two)] == ["refunded", "refunded"]


async def test_a_refund_that_overtakes_its_payment(http: httpx.AsyncClient) -> None:
    """For an hour a refund of a payment that is not here may be of one that comes; then it is none of ours."""
    held = await hold(http)
    charge = {"id": "ch_1", "payment_intent": "pi_1", "amount": 499, "amount_refunded": 499, "refunded": True}
    early = await of_stripe(http, "charge.refunded", charge, created=time.time() - 60)
    assert (early.status_code, early.json()["type"]) == (409, "urn:seckill:no-such-order")
    old = await of_stripe(http, "charge.refunded", charge, created=time.time() - 3700)
    assert old.json() == {"outcome": "ignored"}
    session = {"id": "cs_1", "client_reference_id": held, "payment_intent": "pi_1", "amount_total": 499}
    assert (await of_stripe(http, "checkout.session.completed", session)).json() == {"outcome": "confirmed"}
    late = await of_stripe(http, "charge.refunded", charge, created=time.time() - 60)
    assert late.json() == {"outcome": "refunded"}


async def test_a_session_that_takes_no_money(http: httpx.AsyncClient) -> None:
    """One that keeps a card for later pays nothing; one of an amount of nothing is a wrong amount."""
    held = await hold(http)
    session = {"id": "cs_1", "client_reference_id": held, "payment_status": "no_payment_required"}
    for amount, told in ((None, "ignored"), (0, "amount_mismatch")):
        answer = await of_stripe(http, "checkout.session.completed", session | {"amount_total": amount})
        assert answer.json() == {"outcome": told}
    assert (await stands(http, held))["state"] == "held"


async def test_stripes_signatures(http: httpx.AsyncClient) -> None:
    """Another secret, an old signature or none is 400; an order that is not there 409."""
    held = await hold(http)
    intent = {"id": "pi_1", "metadata": {"hold": held}, "amount_received": 499, "currency": "eur"}
    for wrong in ({"secret": "whsec_other"}, {"at": int(time.time()) - 3600}):
        assert (await of_stripe(http, "payment_intent.succeeded", intent, **wrong)).status_code == 400
    for signature in ("", "t=1,v1=\xe9"):
        headers = [(b"Stripe-Signature", signature.encode("latin-1"))]
        assert (await http.post("/payments/stripe", content=b"{}", headers=headers)).status_code == 400
    missing = f"{held.rpartition('~')[0]}~{32 * '0'}"
    lost = await of_stripe(http, "payment_intent.succeeded", intent | {"metadata": {"hold": missing}})
    assert (lost.status_code, lost.headers["Retry-After"]) == (409, "5")
    assert (await stands(http, held))["state"] == "held"

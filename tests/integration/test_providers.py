"""The door of payment providers: what becomes of their reports, and what a stranger can do there."""

import asyncio
import base64
import importlib.util
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from app.web import problems
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import client, shop
from tests.harness.waiting import WITHIN_S, eventually_async
from tests.integration.test_payments import OPERATOR, SECRET, STRIPE, call_back, hold, of_stripe, outcome, stands, stock

needs_stripe = pytest.mark.skipif(importlib.util.find_spec("stripe") is None, reason="pip install '.[stripe]'")
OTHER_SECRET = "whsec_" + base64.b64encode(b"that of the provider's test mode").decode()
SHOP = {"Authorization": "Bearer of-the-shop"}
NEW_SALE = {"stock": 5, "new_sale": True, "forget_orders": "all", "price": 499, "currency": "EUR"}
SESSION = {
    "id": "cs_1",
    "object": "checkout.session",
    "amount_subtotal": 499,
    "amount_total": 499,
    "currency": "eur",
    "metadata": {},
    "payment_intent": "pi_1",
    "payment_status": "paid",
}
DISPUTE = {"id": "du_1", "object": "dispute", "payment_intent": "pi_1", "amount": 499, "currency": "eur"}


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance that knows the secrets of two providers and of the shop, and 5 units at 499 cents."""
    secrets = {"payments_secret": SECRET, "stripe_secret": STRIPE, "shop_token": "of-the-shop", "holds_from": "anybody"}
    if importlib.util.find_spec("stripe") is None:
        del secrets["stripe_secret"]
    async with client(etcd.endpoint, valkey.url, **secrets) as http:
        assert (await http.put("/stock", json=NEW_SALE, headers=OPERATOR)).status_code == 200
        yield http


async def told(http: httpx.AsyncClient, kind: str, about: dict[str, Any], **more: Any) -> str:
    """Call back as Stripe does, and return the outcome."""
    answer = await of_stripe(http, kind, about, **more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["outcome"])


async def unclaimed(http: httpx.AsyncClient) -> bool:
    return "seckill_payments_unclaimed_total 1.0" in (await http.get("/metrics")).text


# -- callbacks that are refused ----------------------------------------------------------------------------------------


async def refused(http: httpx.AsyncClient) -> list[str]:
    """The warnings of /readyz about callbacks."""
    return [one for one in (await http.get("/readyz")).json()["warnings"] if "callbacks" in one]


@pytest.mark.parametrize(
    ("path", "secret", "provider", "counted", "words"),
    [
        ("", OTHER_SECRET, "webhook", "not_signed", "not signed with a secret that is set here"),
        ("", SECRET, "webhook", "invalid", "not valid, the log says why"),  # it has no amount
        ("/tickets/payments/stripe", "", "", "no_address", "no provider reports to that address"),
        ("/payments/stripe/", "", "", "no_address", "no provider reports to that address"),
        ("/payments/alipay", "", "alipay", "switched_off", "the setting for them is missing"),
    ],
)
async def test_callbacks_that_are_all_refused_are_seen(
    http: httpx.AsyncClient, path: str, secret: str, provider: str, counted: str, words: str
) -> None:
    """At once: in /readyz from the third on, until one is taken, and counted by provider and outcome."""
    held = await hold(http)
    for number in range(4):
        assert len(await refused(http)) == (number >= 3)
        if path:
            answer = await http.post(path, content=b"{}")
        else:
            answer = await call_back(http, "succeeded", held, f"p{number}", secret=secret)
        assert answer.status_code in (400, 403, 404, 422)
    warning = f"4 callbacks of {provider or 'a payment provider'} were refused, and none was taken since: {words}"
    assert await refused(http) == [warning]

    async def is_counted() -> bool:
        of = f'outcome="{counted}",provider="{provider}"'
        return f"seckill_callbacks_total{{{of}}} 4.0" in (await http.get("/metrics")).text

    await eventually_async(is_counted, "they are counted")
    assert await outcome(http, "succeeded", held, amount=499, currency="EUR") == "confirmed"
    assert await refused(http) == ([warning] if provider == "alipay" else [])


# -- payments of holds that are not here -------------------------------------------------------------------------------


async def test_a_payment_that_nobody_waits_for(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """For an hour of the event's own time its hold may come; then it is a line for the operator, and a count."""
    held = await hold(http)
    assert (await http.put("/stock", json=NEW_SALE, headers=OPERATOR)).status_code == 200  # the sale after that
    for kind in ("succeeded", "refunded"):
        early = await call_back(http, kind, held, amount=499, currency="EUR", written_ago_s=3500)
        assert (early.status_code, early.headers["Retry-After"]) == (409, "5")
    assert not await unclaimed(http)
    assert await outcome(http, "succeeded", held, amount=499, currency="EUR", written_ago_s=3700) == "ignored"
    [line] = [one for one in caplog.records if one.levelno >= logging.ERROR]
    name = held.rpartition("~")[0]
    assert line.getMessage() == f"payment p1 (499 EUR) is of hold {name}, which is not here: whose money is it?"
    assert held not in caplog.text
    await eventually_async(lambda: unclaimed(http), "it is counted")


async def test_a_payment_that_can_not_be_ours(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """It is taken, as the provider would repeat it for days, and is no error."""
    for kind in ("succeeded", "disputed"):
        assert await outcome(http, kind, "user_42", amount=499) == "ignored"
    assert await outcome(http, "disputed", None, amount=499, written_ago_s=3700) == "ignored"
    assert (await call_back(http, "disputed", None, amount=499)).status_code == 409  # its payment may come
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@needs_stripe
async def test_what_is_signed_and_odd(http: httpx.AsyncClient) -> None:
    """It is no error of ours."""
    assert (await of_stripe(http, "v1.billing.meter.no_meter_found", None)).json() == {"outcome": "ignored"}
    odd: tuple[tuple[dict[str, Any] | None, str], ...] = (
        (None, "data"),
        ({}, "body"),
        ({"amount": 1, "amount_refunded": 1}, "payment_ref"),
        ({"amount": 1, "amount_refunded": 1, "id": "a\n", "payment_intent": None}, "payment_ref"),
    )
    for about, field in odd:
        answer = await of_stripe(http, "charge.refunded", about)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


# -- Stripe ------------------------------------------------------------------------------------------------------------


@needs_stripe
async def test_tax_and_shipping_pay_for_no_other_goods(http: httpx.AsyncClient) -> None:
    """The subtotal is compared with the price, the total is what was paid, and all of it can be given back."""
    one, two = await hold(http), await hold(http, "bob")
    with_shipping = SESSION | {"client_reference_id": one, "amount_total": 999}
    assert await told(http, "checkout.session.completed", with_shipping) == "confirmed"
    assert (await stands(http, one))["paid"] == 999
    cheap = SESSION | {"client_reference_id": two, "payment_intent": "pi_2", "amount_subtotal": 99, "amount_total": 499}
    assert await told(http, "checkout.session.completed", cheap) == "amount_mismatch"
    charge = {"id": "ch_1", "payment_intent": "pi_1", "amount": 999, "amount_refunded": 500, "refunded": False}
    assert await told(http, "charge.refunded", charge | {"currency": "eur"}) == "partly_refunded"
    assert await told(http, "charge.refunded", charge | {"amount_refunded": 999, "refunded": True}) == "refunded"


@needs_stripe
async def test_a_session_is_no_name_of_a_payment(http: httpx.AsyncClient) -> None:
    """A return page that confirms with what is in its URL is told so; the callback's payment is the only one."""
    held = await hold(http)
    paid = {"payment_ref": "cs_1", "amount": 499, "currency": "EUR"}
    answer = await http.post(f"/holds/{held}/confirm", json=paid, headers=SHOP)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "payment_ref")
    assert "pi_..." in answer.json()["detail"]
    assert await told(http, "checkout.session.completed", SESSION | {"client_reference_id": held}) == "confirmed"
    again = await http.post(f"/holds/{held}/confirm", json=paid | {"payment_ref": "pi_1"}, headers=SHOP)
    assert again.json()["outcome"] == "already_confirmed"
    found = await stands(http, held)
    assert (found["state"], found["payment_ref"], found["owed"]) == ("confirmed", "pi_1", 0)


@needs_stripe
async def test_a_dispute(http: httpx.AsyncClient) -> None:
    """It is open until it is won, or lost: then the money was given back."""
    one, two = await hold(http), await hold(http, "bob")
    for held, intent in ((one, "pi_1"), (two, "pi_2")):
        session = SESSION | {"client_reference_id": held, "payment_intent": intent}
        assert await told(http, "checkout.session.completed", session) == "confirmed"
        of = DISPUTE | {"id": f"du_{intent}", "payment_intent": intent, "status": "needs_response", "reason": "general"}
        assert await told(http, "charge.dispute.created", of) == "noted"
        assert await told(http, "charge.dispute.funds_withdrawn", of) == "already_noted"
        assert (await stands(http, held))["disputed"] == 499
    for _ in range(2):
        await told(http, "charge.dispute.closed", DISPUTE | {"id": "du_pi_1", "status": "won"})
        lost = DISPUTE | {"id": "du_pi_2", "payment_intent": "pi_2", "status": "lost"}
        await told(http, "charge.dispute.closed", lost)
    won, gone = await stands(http, one), await stands(http, two)
    assert (won["state"], won["disputed"], won["given_back"]) == ("confirmed", 0, 0)
    assert (gone["state"], gone["disputed"], gone["given_back"]) == ("refunded", 0, 499)
    assert await stock(http) == (3, 0, 2)  # units that were sold stay out of the sale


@needs_stripe
async def test_a_large_event(http: httpx.AsyncClient) -> None:
    """An event with a whole order in it is taken up to 1 MiB; elsewhere nothing is as large."""
    held = await hold(http)
    session = SESSION | {"client_reference_id": held, "metadata": {str(n): "x" * 500 for n in range(1800)}}
    assert await told(http, "checkout.session.completed", session) == "confirmed"
    session["metadata"] = {str(n): "x" * 500 for n in range(2100)}
    assert (await of_stripe(http, "checkout.session.completed", session)).status_code == 413
    wish = {"buyer": "ann", "ref": "x" * 70_000}
    assert (await http.post("/holds", json=wish)).status_code == 413


@needs_stripe
async def test_a_price_that_stripe_never_charges(http: httpx.AsyncClient, etcd: EtcdMember, valkey: Valkey) -> None:
    """It is refused when it is set, where Stripe is switched on."""
    answer = await http.put("/stock?sku=date", json=NEW_SALE | {"price": 1505, "currency": "KWD"}, headers=OPERATOR)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "price")
    assert answer.json()["detail"] == "Stripe charges multiples of 0.010 KWD"
    async with shop(etcd.endpoint, valkey.url) as without:
        change = {"price": 1505, "currency": "KWD"}
        assert (await without.set_stock("date", 1, new_sale=True, forget=None, terms=change)).terms.price == 1505


# -- Alipay ------------------------------------------------------------------------------------------------------------


async def test_alipay(etcd: EtcdMember, valkey: Valkey) -> None:
    """Its notices confirm and give back, and are answered as Alipay wants it; what it has not signed is 400."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = base64.b64encode(key.public_key().public_bytes(serialization.Encoding.DER, form)).decode()

    def notice(**fields: str) -> str:
        said = {"app_id": "2021", "notify_id": "n1", "trade_no": "t1", "total_amount": "4.99"} | fields
        text = "&".join(f"{name}={value}" for name, value in sorted(said.items()))
        signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return urlencode(said | {"sign_type": "RSA2", "sign": base64.b64encode(signature).decode()})

    async with client(etcd.endpoint, valkey.url, alipay_key=f"2021:{public}") as http:
        await http.put("/stock", json=NEW_SALE | {"currency": "CNY"}, headers=OPERATOR)
        held = (await http.post("/holds", json={"buyer": "ann"})).json()["id"]
        paid = notice(trade_status="TRADE_SUCCESS", passback_params=held, gmt_payment="2026-11-11 20:00:00")
        for outcome in ("confirmed", "already_confirmed"):
            answer = await http.post("/payments/alipay", content=paid)
            assert (answer.status_code, answer.text, answer.headers["X-Seckill-Outcome"]) == (200, "success", outcome)
        back = notice(trade_status="TRADE_SUCCESS", refund_fee="2.00", gmt_refund="2026-11-11 20:01:00")
        assert (await http.post("/payments/alipay", content=back)).headers["X-Seckill-Outcome"] == "partly_refunded"
        assert (await stands(http, held))["given_back"] == 200
        waits = notice(trade_status="WAIT_BUYER_PAY", passback_params=held)
        assert (await http.post("/payments/alipay", content=waits)).text == "success"
        forged = paid.replace("total_amount=4.99", "total_amount=0.01")
        assert (await http.post("/payments/alipay", content=forged)).status_code == 400


# -- one's own, and strangers ------------------------------------------------------------------------------------------


async def test_a_provider_of_the_shops_own(
    etcd: EtcdMember, valkey: Valkey, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a path of its own beside the others, in the description, too."""
    (tmp_path / "shops_own.py").write_text(
        "from app.errors import NotSigned\n"
        "from app.payments import Kind, Reader, Report\n\n\n"
        "class Own(Reader):\n"
        "    def __init__(self, secrets):\n"
        "        self.secrets = secrets\n\n"
        "    def read(self, body, headers):\n"
        "        if headers.get('own-secret') not in self.secrets:\n"
        "            raise NotSigned('another secret')\n"
        "        return Report(kind=Kind.SUCCEEDED, payment_ref='o1', message='m1', hold=body.decode(), amount=499)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"providers": "own=shops_own:Own", "provider_secrets": "own:new own:old"}
    async with client(etcd.endpoint, valkey.url, **settings) as http:
        await http.put("/stock", json=NEW_SALE, headers=OPERATOR)
        held = await hold(http)
        assert (await http.post("/payments/own", content=held)).status_code == 400
        answer = await http.post("/payments/own", content=held, headers={"Own-Secret": "old"})
        assert answer.json() == {"outcome": "confirmed"}
        assert (await http.post("/payments/other", content=held)).status_code == 404
        assert (await http.post("/payments/stripe", content=held)).status_code == 403
        assert "/payments/own" in (await http.get("/openapi.json")).json()["paths"]


async def test_a_stranger_fills_no_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what nobody has signed there is a line a second at most; the next one has the number of the others."""
    monkeypatch.setattr(problems, "_said", {})
    monkeypatch.setattr(problems, "_SILENCE_S", 3600.0)
    for _ in range(50):
        assert (await http.post("/payments/webhook", content=b"{}")).status_code == 400
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
    monkeypatch.setattr(problems, "_SILENCE_S", 0.0)
    await http.post("/payments/webhook", content=b"{}")
    assert caplog.messages[-1].endswith(" (and 49 more since the last time)")


async def test_large_bodies_of_strangers(etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are on their way keep so many bytes at most: the slowest gives way, and a whole one is read."""
    monkeypatch.setattr("app.web.body_limit._STRANGERS_MAX_BYTES", 2_000_000)
    goes_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 900_000
        await goes_on.wait()

    async with client(etcd.endpoint, valkey.url, payments_secret=SECRET, request_timeout_ms=120_000) as http:
        slow = [asyncio.create_task(http.post("/payments/webhook", content=body())) for _ in range(4)]
        try:
            done, _ = await asyncio.wait(slow, timeout=WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            assert {one.result().status_code for one in done} == {408}
            assert (await http.post("/payments/webhook", content=b"x" * 900_000)).status_code == 400
        finally:
            goes_on.set()
            assert {one.status_code for one in await asyncio.gather(*slow)} <= {400, 408}

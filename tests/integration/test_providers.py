"""The door of payment providers: what becomes of their reports, and what a stranger can do there."""

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
from tests.harness.waiting import eventually_async
from tests.integration.test_payments import OPERATOR, SECRET, STRIPE, call_back, hold, of_stripe, outcome, stands

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


# -- Stripe ------------------------------------------------------------------------------------------------------------


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

"""Odd headers of signatures and tokens, as bytes over a socket: a refusal with a sentence, and never a 500."""

import base64
import hashlib
import hmac
import json
import re
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import standardwebhooks

from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, ThreadedInstance
from tests.harness.waiting import WITHIN_S
from tests.integration.test_payments import HAS_STRIPE

SECRET = "whsec_" + base64.b64encode(b"a provider's secret of 32 bytes.").decode()
STRIPE, SHOP = "whsec_of_stripe", "the-shops-token"
BODY = b'{"type":"payment.failed","data":{"hold":"x","payment_ref":"p"}}'
ARABIC = "١٧٩٥٧٩٨٨٤٣".encode()

Headers = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def port(etcd: EtcdMember, valkey_server: Valkey) -> Iterator[int]:
    others: dict[str, Any] = {"payments_secret": SECRET, "shop_token": SHOP, "buyer_key": 32 * "k"}
    others |= {"stripe_secret": STRIPE} if HAS_STRIPE else {}
    with ThreadedInstance(etcd.endpoint, valkey_server.url, audit_interval_s=0, **others) as instance:
        yield instance.port


def asked(port: int, method: str, path: str, headers: Headers, body: bytes = b"") -> tuple[int, Any]:
    """Return the status of the answer, and its body or, if that is a problem, its detail."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n".encode()
    head += b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers)
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        connection.sendall(head + b"\r\n" + body)
        with connection.makefile("rb") as answer:
            status, _, told = answer.read().partition(b"\r\n\r\n")
    found = json.loads(told) if told.startswith(b"{") else {}
    return int(status[9:12]), found.get("detail", found)


# -- callbacks of payment providers ------------------------------------------------------------------------------------


def signed(*, at: bytes | None = None) -> dict[str, bytes]:
    """Return the headers of a callback; `at`: another timestamp than the one that is signed."""
    now = datetime.now(UTC)
    return {
        "webhook-id": b"m",
        "webhook-timestamp": str(int(now.timestamp())).encode() if at is None else at,
        "webhook-signature": standardwebhooks.Webhook(SECRET).sign("m", now, BODY.decode()).encode(),
    }


def signed_by_stripe(*, at: bytes | None = None) -> dict[str, bytes]:
    """Return the header of a callback of Stripe's, which signs the timestamp as it is written."""
    at = str(int(time.time())).encode() if at is None else at
    signature = hmac.new(STRIPE.encode(), at + b"." + BODY, hashlib.sha256).hexdigest().encode()
    return {"stripe-signature": b"t=" + at + b",v1=" + signature}


def callback(port: int, headers: Headers, body: bytes = BODY) -> tuple[int, Any]:
    of_stripe = any(name == "stripe-signature" for name, _ in headers)
    if of_stripe and not HAS_STRIPE:
        pytest.skip("stripe is not installed: pip install '.[stripe]'")
    return asked(port, "POST", "/payments/stripe" if of_stripe else "/payments/webhook", headers, body)


@pytest.mark.parametrize("good", [signed, signed_by_stripe])
def test_a_callback_as_it_should_be(port: int, good: Any) -> None:
    """It is taken: what is refused below is refused for what is odd about it."""
    assert callback(port, list(good().items())) == (200, {"outcome": "ignored"})


@pytest.mark.parametrize("good", [signed, signed_by_stripe])
@pytest.mark.parametrize(
    "at", [b"NaN", b"nan", b"inf", b"-inf", b"1e9", b"1e400", b"-1", ARABIC, b"\xb2", b"0x10", b"", b"9" * 5000]
)
def test_a_timestamp_that_is_none(port: int, good: Any, at: bytes) -> None:
    """It is refused before its signature is looked at, or for its age: no number that is none is young."""
    status, why = callback(port, list(good(at=at).items()))
    assert status == 400
    assert re.match(
        "Invalid Signature Headers|Missing required|Message timestamp too old|Unable to|Timestamp outside", why
    )


@pytest.mark.parametrize("at", [b"9" * 400, b"4000000000"])
def test_a_timestamp_in_the_future(port: int, at: bytes) -> None:
    """It is refused, as it would be young for ever. (Stripe's library asks only whether it is old.)"""
    status, why = callback(port, list(signed(at=at).items()))
    assert (status, why) in [(400, "Invalid Signature Headers"), (400, "Message timestamp too new")]


@pytest.mark.parametrize(
    "signature", [b"v1,\xe9", "v1,é".encode(), b"\xe9", b"v1", b"v1,a,b", b"v1,=", b"v1,AAAA", b"v2,AAAA", b",", b""]
)
def test_a_signature_that_is_none(port: int, signature: bytes) -> None:
    """It is refused, and the answer speaks of headers and not of Python's errors."""
    status, why = callback(port, list((signed() | {"webhook-signature": signature}).items()))
    assert (status, why) in [
        (400, "a header or the body can't be read"),
        (400, "No matching signature found"),
        (400, "Missing required headers"),
    ]


@pytest.mark.parametrize("name", signed())
def test_a_header_that_is_not_ascii(port: int, name: str) -> None:
    """It is not the one that was signed, in whichever encoding."""
    good = signed()
    for odd in (b"\xe9", "é".encode()):
        assert callback(port, list((good | {name: good[name] + odd}).items()))[0] == 400


@pytest.mark.parametrize("signature", [b"\xe9", b"t=1,v1=\xe9", "t=1,v1=é".encode(), b"t", b"t=", b"v1=", b"=", b"t=9"])
def test_a_signature_of_stripes_that_is_none(port: int, signature: bytes) -> None:
    """It is refused likewise."""
    status, why = callback(port, [("stripe-signature", signature)])
    assert (status, type(why)) == (400, str)
    assert "ASCII" not in why


@pytest.mark.parametrize("good", [signed, signed_by_stripe])
def test_a_body_that_is_no_text(port: int, good: Any) -> None:
    """It can't have been signed."""
    assert callback(port, list(good().items()), b"\xff\xfe") == (400, "a header or the body can't be read")


# -- tokens ------------------------------------------------------------------------------------------------------------

DOORS = {
    "the shop's": ("POST", "/holds/of-nobody/confirm", SHOP, b'{"payment_ref":"p"}'),
    "the shop's, in a task": ("POST", "/%68olds/of-nobody/confirm", SHOP, b'{"payment_ref":"p"}'),
    "an operator's": ("GET", "/locks", TOKEN, b""),
    "an operator's, with a body": ("PUT", "/stock?sku=headers", TOKEN, b'{"stock":1}'),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_bearer_token(port: int, door: str) -> None:
    """It is taken as it should be; what isn't ASCII is another token, and two headers are refused in a sentence."""
    method, path, token, body = DOORS[door]
    good = b"Bearer " + token.encode()

    def told(*values: bytes) -> tuple[int, Any]:
        return asked(port, method, path, [("Authorization", value) for value in values], body)

    assert told(good)[0] in (200, 422)  # a body without its type is none to the framework
    for odd in (good + b"\xe9", "Bearer é".encode(), b"Bearer \xff", b"\xe9", b"Bearer", b"", b"Basic \xe9"):
        status, why = told(odd)
        assert (status, "bearer token is needed" in why) == (401, True), odd
    for two in ((good, good), (good, b"Bearer x"), (b"Bearer x", good), (b"Basic eDp5", good)):
        status, why = told(*two)
        assert (status, "one Authorization header is taken, not several" in why) == (401, True), two


@pytest.mark.parametrize("value", [b"Bearer \xe9", "Bearer é".encode(), b"Bearer a.b.\xe9", b"Bearer a.\xff.c"])
def test_a_buyers_token(port: int, value: bytes) -> None:
    """One that isn't ASCII is none that the shop has signed, and of two none is taken."""
    assert asked(port, "POST", "/stock/reduce", [("Authorization", value)])[0] == 403
    status, why = asked(port, "POST", "/stock/reduce", [("Authorization", value)] * 2)
    assert (status, "one Authorization header is taken, not several" in why) == (401, True)


# -- the control room --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["%C3%A9", "%FF", "%ED%A0%80", "", "a&token=b", "%00"])
def test_a_token_of_the_control_room(port: int, token: str) -> None:
    """A link or a form with a wrong token leads back to the form."""
    form = [("Content-Type", b"application/x-www-form-urlencoded")]
    assert asked(port, "GET", f"/control?token={token}", [])[0] == 303
    assert asked(port, "POST", "/control/login", form, f"token={token}".encode())[0] == 303
    assert asked(port, "POST", "/control/login", form, "token=é".encode("latin-1"))[0] == 303


@pytest.mark.parametrize("word", [[b"\xe9"], ["é".encode()], [b"a", b"a"], []])
def test_the_second_word_of_a_cookie(port: int, word: list[bytes]) -> None:
    """A word that isn't ASCII, or comes twice, is not the one of the session; a cookie that isn't is none."""
    entered = httpx.get(f"http://127.0.0.1:{port}/control", params={"token": TOKEN})
    [(name, value)] = entered.cookies.items()
    said = [("X-Seckill-Csrf", one) for one in word]
    assert asked(port, "POST", "/control/leave", [("Cookie", f"{name}={value}".encode()), *said])[0] == 403
    for odd in (b"\xe9", b"a.b.\xe9", b"a." + b"_" * 30 + b".c"):
        assert asked(port, "POST", "/control/leave", [("Cookie", f"{name}=".encode() + odd), *said])[0] == 401

"""Buyers have rights and terms: signed buyers, GETs that do not buy, common response headers."""

import base64
import hmac
import socket
import time
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from app.errors import ConfigurationError
from app.main import create_app
from lab.servers import EtcdMember, Valkey
from tests.harness.clients import BUYERS
from tests.harness.shop import ThreadedInstance, settings
from tests.harness.waiting import WITHIN_S
from tests.integration.conftest import OPERATOR, OpenClient
from tests.integration.test_web import is_problem

SECRET = "a-secret-that-is-long-enough-for-every-digest:-it-has-sixty-four-bytes"


async def outcome(http: httpx.AsyncClient, **params: str) -> str:
    """Return the outcome of a purchase."""
    answer = await http.post("/stock/reduce", params=params)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-seckill-outcome"]


def asked(port: int, head: bytes) -> bytes:
    """Return the head of the answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        connection.sendall(head)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65_536)
    return answer


# -- clients -----------------------------------------------------------------------------------------------------------


def test_every_real_client_gets_the_same_answer(etcd: EtcdMember, valkey: Valkey) -> None:
    """Each client's request head, sent word for word over a socket, buys a unit, on a connection that is kept alive."""
    with ThreadedInstance(etcd.endpoint, valkey.url) as instance:
        change = {"stock": len(BUYERS)}
        httpx.put(f"{instance.url}/stock?sku=phone", json=change, headers=OPERATOR).raise_for_status()
        told = {}
        for name, head in BUYERS.items():
            own = head.replace("8080", str(instance.port)).replace("k-1", f"key-of-{name.replace(' ', '-')}")
            answer = asked(instance.port, own.rstrip("\n").replace("\n", "\r\n").encode() + b"\r\n\r\n")
            status, _, rest = answer.partition(b"\r\n")
            said = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in rest.split(b"\r\n")}
            told[name] = (status, said[b"x-seckill-outcome"], said[b"cache-control"])
        assert set(told.values()) == {(b"HTTP/1.1 200 OK", b"sold", b"no-store")}
        assert httpx.get(f"{instance.url}/stock?sku=phone").json()["lucky"] == len(BUYERS)


async def test_a_get_buys_only_if_it_may(open_client: OpenClient) -> None:
    """With SECKILL_ALLOW_GET=false a GET gets 405 and is not in the OpenAPI document; a POST buys."""
    http = await open_client(allow_get=False)
    answer = await http.get("/stock/reduce")
    is_problem(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert await outcome(http) == "sold"
    assert list((await http.get("/openapi.json")).json()["paths"]["/stock/reduce"]) == ["post"]


async def test_what_every_answer_tells_a_browser(open_client: OpenClient) -> None:
    """Answers and errors forbid caching, type sniffing and framing, each with one header."""
    http = await open_client()
    gets = ["/stock/reduce", "/stock", "/stock?sku=none", "/orders/x", "/orders", "/locks", "/openapi.json"]
    gets += ["/healthz", "/readyz", "/metrics", "/nowhere", "/control/picture"]
    for method, path in (*(("GET", path) for path in gets), ("POST", "/stock/reduce?quantity=0"), ("DELETE", "/stock")):
        headers = (await http.request(method, path, headers=OPERATOR)).headers
        assert headers.get_list("cache-control") == ["no-store"], path
        assert headers.get_list("x-content-type-options") == ["nosniff"], path
        [policy] = headers.get_list("content-security-policy")
        assert "frame-ancestors 'none'" in policy, path


async def test_nobody_is_sent_to_a_host_of_their_choice(open_client: OpenClient) -> None:
    """A path with an extra slash gets 404, not a redirect to the Host that the client sent."""
    http = await open_client()
    for path in ("/stock/reduce/", "/stock/", "/orders/", "/control/"):
        is_problem(await http.get(path, headers={"Host": "evil.example"}), 404)


# -- the terms of an item ----------------------------------------------------------------------------------------------


async def test_an_item_has_terms_of_its_own(open_client: OpenClient) -> None:
    """Limit and hours are set while the item sells, are shown with the stock, and hold from the next purchase on."""
    http = await open_client(limit_per_buyer=3)
    (await http.put("/stock?sku=rare", json={"stock": 5, "limit_per_buyer": 1}, headers=OPERATOR)).raise_for_status()
    assert (await http.get("/stock?sku=rare")).json()["limit_per_buyer"] == 1
    assert (await http.get("/stock")).json()["limit_per_buyer"] == 3
    assert [await outcome(http, sku="rare", buyer="ann") for _ in range(2)] == ["sold", "limit_reached"]
    assert await outcome(http, buyer="ann", quantity="3") == "sold"
    answer = await http.put("/stock?sku=rare", json={"limit_per_buyer": 0, "ends_at": 1}, headers=OPERATOR)
    ended = answer.json()
    assert [said.partition(":")[0][:19] for said in ended.pop("warnings")] == ["its sale has ended "]
    assert ended == {
        "sku": "rare",
        "stock": 4,
        "held": 0,
        "waiting": 0,
        "lucky": 1,
        "initial": 5,
        "limit_per_buyer": 0,
        "limit_group": None,
        "starts_at": None,
        "ends_at": 1,
        "price": None,
        "currency": None,
        "paused": "",
        "paused_texts": {},
    }
    assert await outcome(http, sku="rare") == "ended"
    later = {"ends_at": 0, "starts_at": time.time() + 3600}
    (await http.put("/stock?sku=rare", json=later, headers=OPERATOR)).raise_for_status()
    assert await outcome(http, sku="rare") == "not_started"
    (await http.put("/stock?sku=rare", json={"starts_at": None}, headers=OPERATOR)).raise_for_status()
    assert await outcome(http, sku="rare") == "sold"


async def test_terms_that_make_no_sense(open_client: OpenClient) -> None:
    """Contradictory terms are refused, with the name of the field, and nothing is changed."""
    http = await open_client()
    (await http.put("/stock", json={"starts_at": time.time() + 3600}, headers=OPERATOR)).raise_for_status()
    before = (await http.get("/stock")).json()
    changes: list[dict[str, Any]] = [
        {},
        {"add": True},
        {"new_sale": True, "limit_per_buyer": 1},
        {"stock": 1, "limit_per_buyer": -1},
        {"limit_per_buyer": "2"},
        {"starts_at": 5, "ends_at": 4},
        {"ends_at": time.time() + 60},  # starts after its end
        {"starts_at": "2026-11-11"},
        {"starts_at": 1e300},
        {"limit": 2},
    ]
    for change in changes:
        assert is_problem(await http.put("/stock", json=change, headers=OPERATOR), 422)["errors"][0]["field"]
        after = (await http.get("/stock")).json()
        assert {**after, "now": 0, "audit": None} == {**before, "now": 0, "audit": None}, change


# -- signed buyers -----------------------------------------------------------------------------------------------------


def token(key: Any = SECRET, algorithm: str = "HS256", /, **claims: Any) -> str:
    """Return a buyer's signed token; without other claims it is for Ann, for a minute."""
    claims = {"sub": "ann", "exp": time.time() + 60} | claims
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, key, algorithm)


async def test_a_signed_buyer(open_client: OpenClient) -> None:
    """The token names the buyer, whatever else the request says; the limit holds for all of the buyer's tokens."""
    http = await open_client(buyer_key=SECRET, limit_per_buyer=2)
    assert await outcome(http, buyer=token()) == "sold"
    assert await outcome(http, buyer=token(aud="seckill", nonce=1)) == "sold"
    assert await outcome(http, buyer=token(aud=["other", "seckill"])) == "limit_reached"
    assert await outcome(http, buyer=token(sub="王芳")) == "sold"
    orders = (await http.get("/orders", headers=OPERATOR)).json()["orders"]
    assert [order["buyer"] for order in orders] == ["ann", "ann", "王芳"]


NOT_SIGNED = {
    "text": "ann",
    "key": token(SECRET.upper()),
    "no exp": token(exp=None),
    "expired": token(exp=1),
    "no sub": token(sub=None),
    "empty": token(sub=""),
    "line": token(sub="a\nb"),
    "half a character": token(sub="half of an emoji: \ud83d"),
    "audience": token(aud="another-service"),
    "like ours": token(aud="seckill-staging"),
    "early": token(nbf=time.time() + 3600),
    "digest": token(SECRET, "HS512"),
    "none": jwt.encode({"sub": "ann", "exp": time.time() + 60}, "", "none"),
    "cut": token()[:-2],
}


async def test_a_buyer_whom_the_shop_has_not_signed(open_client: OpenClient) -> None:
    """Buyers without a valid signature are refused before they queue; nothing is sold; no answer has the secret."""
    http = await open_client(buyer_key=SECRET)
    for name, buyer in NOT_SIGNED.items():
        answer = await http.post("/stock/reduce", params={"buyer": buyer})
        assert answer.status_code == 403, name
        assert is_problem(answer, 403, field="buyer")["type"] == "urn:seckill:buyer-not-signed"
        assert SECRET not in answer.text
    is_problem(await http.post("/stock/reduce"), 400, field="buyer")
    assert (await http.get("/stock")).json()["lucky"] == 0


async def test_clocks_differ_a_little_and_each_refusal_has_its_sentence(open_client: OpenClient) -> None:
    """Ten seconds are nothing, `iat` is not looked at; what is wrong is said, so that nobody looks for a wrong key."""
    http = await open_client(buyer_key=SECRET)
    now = time.time()
    for well in (token(exp=now - 5), token(iat=now + 60), token(nbf=now + 5), token(jti=7)):
        assert await outcome(http, buyer=well) == "sold"
    said = {
        token(nbf=now + 60): "not valid yet",
        token(exp=now - 60): "has expired",
        token(SECRET.upper()): "another key",
        token(exp=None): "has no `exp`",
        token(sub=None): "has no `sub`",
        token(SECRET, "HS512"): "must be signed with HS256",
        "ann": "not a token",
    }
    for wrong, why in said.items():
        answer = await http.post("/stock/reduce", params={"buyer": wrong})
        assert why in is_problem(answer, 403, field="buyer")["detail"]


async def test_a_token_in_a_header(open_client: OpenClient) -> None:
    """`Authorization: Bearer` names the buyer as the query does; two different tokens are refused."""
    http = await open_client(buyer_key=SECRET)
    ann, bob = token(sub="ann"), token(sub="bob")
    for params in ({}, {"buyer": bob}):
        answer = await http.post("/stock/reduce", params=params, headers={"Authorization": f"Bearer {bob}"})
        assert answer.headers["x-seckill-outcome"] == "sold"
    both = await http.post("/stock/reduce", params={"buyer": ann}, headers={"Authorization": f"Bearer {bob}"})
    is_problem(both, 422, field="buyer")
    orders = (await http.get("/orders?sku=default", headers=OPERATOR)).json()["orders"]
    assert [order["buyer"] for order in orders] == ["bob", "bob"]


async def test_a_key_belongs_to_its_signed_buyer(open_client: OpenClient) -> None:
    """Another buyer with the same key is told that it is used, and neither of the order nor of its outcome."""
    http = await open_client(buyer_key=SECRET)
    key = {"Idempotency-Key": "guessed", "Accept": "application/json"}
    sold = await http.post("/stock/reduce", params={"buyer": token(sub="ann")}, headers=key)
    other = await http.post("/stock/reduce", params={"buyer": token(sub="bob")}, headers=key)
    assert is_problem(other, 422, field="Idempotency-Key")["type"] == "urn:seckill:key-reused"
    assert sold.json()["order"] not in other.text
    assert not {"x-seckill-order", "x-seckill-outcome"} & set(other.headers)
    again = await http.post("/stock/reduce", params={"buyer": token(sub="ann", nonce=2)}, headers=key)
    assert (again.json()["order"], again.json()["replayed"]) == (sold.json()["order"], True)


@pytest.mark.parametrize(
    ("private", "algorithm"),
    [
        (rsa.generate_private_key(65537, 2048), "RS256"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ],
    ids=["rsa", "ec", "ed25519"],
)
async def test_a_public_key_reads_and_cannot_sign(open_client: OpenClient, private: Any, algorithm: str) -> None:
    """A public key verifies the shop's tokens, and can't be used as the secret of a forged one."""
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    http = await open_client(buyer_key=pem.replace("\n", "\\n"))
    assert await outcome(http, buyer=token(private, algorithm)) == "sold"
    forged = token().rpartition(".")[0]
    is_problem(await http.post("/stock/reduce", params={"buyer": forged + ".AAAA"}), 403, field="buyer")


async def test_one_of_several_keys(open_client: OpenClient) -> None:
    """A token that any of them has signed is read as if there were that one only; a public key is no secret."""
    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    curves = [ec.generate_private_key(curve).public_key() for curve in (ec.SECP384R1(), ec.SECP256R1())]
    others = [one.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode() for one in curves]
    http = await open_client(buyer_key=f"{SECRET.upper()}\n{''.join(others)}{pem}{SECRET}", limit_per_buyer=1)
    assert await outcome(http, buyer=token(private, "EdDSA")) == "sold"
    assert await outcome(http, buyer=token()) == "limit_reached"
    for wrong, why in {
        token(exp=1): "has expired",
        token(private, "EdDSA", exp=1): "has expired",
        token(sub=None): "has no `sub`",
        token(SECRET[::-1]): "signed with another key",
        token(ec.generate_private_key(ec.SECP256R1()), "ES256"): "signed with another key",
        token(SECRET, "HS512"): "must be signed with HS256 or ES256 or ES384 or ES512 or EdDSA",
        "ann": "not a token",
    }.items():
        answer = await http.post("/stock/reduce", params={"buyer": wrong})
        assert why in is_problem(answer, 403, field="buyer")["detail"]
    head = token().rpartition(".")[0]
    for text in (pem, pem.strip(), "".join(pem.splitlines()[1:-1])):
        signature = base64.urlsafe_b64encode(hmac.digest(text.encode(), head.encode(), "sha256")).decode().rstrip("=")
        is_problem(await http.post("/stock/reduce", params={"buyer": f"{head}.{signature}"}), 403, field="buyer")


@pytest.mark.parametrize("key", ["too short", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"])
def test_a_key_that_is_none(key: str) -> None:
    """With an invalid key the instance does not start, and names the setting; the key is not in the message."""
    with pytest.raises(ConfigurationError, match="SECKILL_BUYER_KEY") as error:
        create_app(settings("http://127.0.0.1:1", "redis://127.0.0.1:1", buyer_key=key))
    assert key not in str(error.value)

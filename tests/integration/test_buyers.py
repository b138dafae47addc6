"""Buyers have rights and terms: signed buyers, GETs that do not buy, common response headers."""

import socket
import time
from typing import Any

import httpx
import jwt

from lab.servers import EtcdMember, Valkey
from tests.harness.clients import BUYERS
from tests.harness.shop import ThreadedInstance
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


def token(**claims: Any) -> str:
    """Return a buyer's signed token: for Ann, if no other is named, and for a minute."""
    return jwt.encode({"sub": "ann", "exp": time.time() + 60} | claims, SECRET, "HS256")


async def test_a_signed_buyer(open_client: OpenClient) -> None:
    """The token names the buyer, whatever else the request says; the limit holds for all of the buyer's tokens."""
    http = await open_client(buyer_key=SECRET, limit_per_buyer=2)
    assert await outcome(http, buyer=token()) == "sold"
    assert await outcome(http, buyer=token(aud="seckill", nonce=1)) == "sold"
    assert await outcome(http, buyer=token(aud=["other", "seckill"])) == "limit_reached"
    assert await outcome(http, buyer=token(sub="王芳")) == "sold"
    orders = (await http.get("/orders", headers=OPERATOR)).json()["orders"]
    assert [order["buyer"] for order in orders] == ["ann", "ann", "王芳"]


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

"""A command is served alike through whichever door it comes: the connection, ASGI, or a payment provider's callback."""

import base64
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from lab.callback import signed
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, ThreadedInstance
from tests.harness.waiting import eventually_async

SECRET = "whsec_" + base64.b64encode(b"a provider's secret of 32 bytes.").decode()
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
SHOP = {"Authorization": "Bearer the-shops-token"}
SETTINGS: dict[str, Any] = {
    "payments_secret": SECRET,
    "shop_token": "the-shops-token",
    "holds_from": "anybody",
    "audit_interval_s": 0,
}

Paid = Callable[[httpx.AsyncClient, str, dict[str, Any]], Awaitable[httpx.Response]]


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """A real instance; of "free" and "paid" there are units, and of "gone" none."""
    async with running(etcd, valkey) as found:
        yield found


@asynccontextmanager
async def running(etcd: EtcdMember, store: Valkey, **others: Any) -> AsyncIterator[httpx.AsyncClient]:
    with ThreadedInstance(etcd.endpoint, store.url, **SETTINGS, **others) as instance:
        # A connection each: one that lay idle for too long would be closed as it is used again.
        each = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=instance.url, trust_env=False, timeout=60, limits=each) as found:
            every: dict[str, dict[str, Any]]
            every = {"free": {}, "gone": {"stock": 0}, "paid": {"price": 499, "currency": "EUR"}}
            for sku, terms in every.items():
                stock = {"stock": 1000, "new_sale": True, "forget_orders": "all"} | terms
                (await found.put("/stock", params={"sku": sku}, json=stock, headers=OPERATOR)).raise_for_status()
            yield found


def escaped(path: str) -> str:
    """The same path, which the connection leaves to the ASGI application."""
    return path.replace("/stock/r", "/stock/%72").replace("/holds", "/%68olds")


BUY, HOLD = "/stock/reduce", "/holds"
LOST = f"/holds/paid~1-1~{32 * '0'}"
FOREIGN = {"Sec-Fetch-Site": "cross-site"}
# What is asked: path, headers, body; and the answer: its status, and its outcome or its type.
CASES: dict[str, tuple[str, dict[str, str], Any, int, str]] = {
    "a free item": (f"{BUY}?sku=free", {}, None, 200, "sold"),
    "nothing left": (f"{BUY}?sku=gone", {}, None, 200, "sold_out"),
    "what has a price": (f"{BUY}?sku=paid&quantity=7", {}, None, 200, "hold_required"),
    "no such item": (f"{BUY}?sku=none", {}, None, 404, "unknown-item"),
    "too large a quantity": (f"{BUY}?quantity=1000000001", {}, None, 422, "invalid-request"),
    "a body": (BUY, {}, {"sku": "free"}, 422, "invalid-request"),
    "from another site": (BUY, FOREIGN, None, 403, "foreign-origin"),
    "a hold": (HOLD, {}, {"sku": "paid", "buyer": "ann"}, 200, "held"),
    "a hold of nothing": (HOLD, {}, {"sku": "gone", "buyer": "ann"}, 200, "sold_out"),
    "a hold of no such item": (HOLD, {}, {"sku": "none", "buyer": "ann"}, 404, "unknown-item"),
    "a hold with a parameter": (f"{HOLD}?sku=paid", {}, {"buyer": "ann"}, 422, "invalid-request"),
    "a hold from another site": (HOLD, FOREIGN, {"buyer": "ann"}, 403, "foreign-origin"),
    "a request id that is none": (HOLD, {"X-Request-Id": "a b"}, {"buyer": "ann"}, 422, "invalid-request"),
    "a payment from anybody": (f"{LOST}/confirm", {}, {"payment_ref": "p"}, 401, "http-401"),
    "a payment of no order": (f"{LOST}/confirm", SHOP, {"payment_ref": "p"}, 200, "not_found"),
    "a payment of what is no order": ("/holds/user_42/confirm", SHOP, {"payment_ref": "p"}, 200, "not_found"),
    "more time for no order": (f"{LOST}/extend", {}, None, 200, "not_found"),
    "the end of no order": (f"{LOST}/cancel", {}, None, 200, "not_found"),
    "an end that says more": (f"{LOST}/cancel", {}, {"refund": True}, 422, "invalid-request"),
}


def told(answer: httpx.Response) -> tuple[int, str, Any, list[str]]:
    """Status, outcome or type, the fields that are wrong, and the names of the headers."""
    body = answer.json()
    said = body["outcome"] if "outcome" in body else body["type"].removeprefix("urn:seckill:")
    fields = [(error["field"], error["message"]) for error in body.get("errors", ())]
    return answer.status_code, said, fields, sorted(set(answer.headers) - {"connection", "date"})


async def test_each_request_at_both_doors(http: httpx.AsyncClient) -> None:
    """The table: asked at the connection, and with an escaped path, which goes through ASGI, each gets its answer."""
    for name, (path, headers, body, status, said) in CASES.items():
        asked: dict[str, Any] = {"headers": {"Accept": "application/json"} | headers}
        if body is not None:
            asked |= {"json": body}
        answers = [told(await http.post(one, **asked)) for one in (path, escaped(path))]
        assert answers[0] == answers[1], name
        assert answers[0][:2] == (status, said), name


async def announced(http: httpx.AsyncClient, hold: str, paid: dict[str, Any]) -> httpx.Response:
    return await http.post(f"/holds/{hold}/confirm", json=paid, headers=SHOP)


async def announced_by_asgi(http: httpx.AsyncClient, hold: str, paid: dict[str, Any]) -> httpx.Response:
    return await http.post(escaped(f"/holds/{hold}/confirm"), json=paid, headers=SHOP)


async def called_back(http: httpx.AsyncClient, hold: str, paid: dict[str, Any]) -> httpx.Response:
    body = json.dumps({"type": "payment.succeeded", "data": {"hold": hold, **paid}})
    return await http.post("/payments/webhook", content=body, headers=signed(SECRET, "m", body))


DOORS = [announced, announced_by_asgi, called_back]


@pytest.mark.parametrize("paid", DOORS)
async def test_each_payment_at_three_doors(http: httpx.AsyncClient, paid: Paid) -> None:
    """A payment has the same outcome, whoever reports it, and the order is the same afterwards."""

    async def hold() -> str:
        answer = await http.post("/holds", json={"sku": "paid", "buyer": "ann"})
        return str(answer.json()["id"])

    async def outcome(of: str, ref: str, **more: Any) -> str:
        answer = await paid(http, of, {"payment_ref": f"{paid.__name__} {ref}", **more})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["outcome"])

    first, second = await hold(), await hold()
    assert await outcome(first, "a", amount=498, currency="EUR") == "amount_mismatch"
    assert await outcome(first, "b", amount=499, currency="USD") == "amount_mismatch"
    assert await outcome(first, "c", amount=499, currency="EUR") == "confirmed"
    assert await outcome(first, "c", amount=499, currency="EUR") == "already_confirmed"
    assert await outcome(first, "d", amount=499) == "duplicate_payment"
    assert await outcome(second, "c", amount=499) == "payment_ref_in_use"
    assert (await http.post(f"/holds/{second}/cancel")).json()["outcome"] == "cancelled"
    assert await outcome(second, "e", amount=499) == "refund_due"
    found = (await http.get(f"/holds/{first}")).json()
    assert found["payment_ref"] == f"{paid.__name__} c"
    owed = [(one["ref"].removeprefix(paid.__name__), one["owed"]) for one in found["payments"]]
    assert owed == [(" a", 498), (" b", 499), (" c", 0), (" d", 499)]
    assert (found["paid"], found["owed"], [one["owed"] for one in found["other_currencies"]]) == (1496, 997, [499])
    for field, value in (("amount", -1), ("payment_ref", "p\n2"), ("payment_ref", "p\0"), ("payment_ref", "\u202ep")):
        wrong = await paid(http, first, {"payment_ref": "p", field: value})
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize("paid", DOORS)
async def test_a_payment_without_an_amount(http: httpx.AsyncClient, paid: Paid) -> None:
    """The shop's own word means the price; a provider has to say what was paid, and confirms nothing without."""
    held = (await http.post("/holds", json={"sku": "paid", "buyer": "ann"})).json()["id"]
    answer = await paid(http, held, {"payment_ref": f"{paid.__name__} a"})
    found = (await http.get(f"/holds/{held}")).json()
    if paid is called_back:
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "amount")
        assert (found["state"], found["payments"]) == ("held", [])
    else:
        assert (answer.json()["outcome"], found["paid"], found["unknown"]) == ("confirmed", 499, False)


async def waiting(http: httpx.AsyncClient) -> float:
    """The number of requests that wait for their turn."""
    found = re.findall(r"^seckill_queue_buyers{.*} (.*)$", (await http.get("/metrics")).text, re.MULTILINE)
    return sum(map(float, found))


@pytest.mark.parametrize("door", ["/holds", "/%68olds"])
async def test_a_payment_whose_shop_has_hung_up(etcd: EtcdMember, door: str) -> None:
    """It is noted all the same, while a hold of a buyer who has hung up is not begun: nobody would know of it."""
    with Valkey() as store:
        async with running(etcd, store, purchase_timeout_ms=60_000) as http:
            held = str((await http.post("/holds", json={"sku": "paid", "buyer": "ann"})).json()["id"])
            store.pause()
            try:
                confirm, hold = (
                    (f"{door}/{held}/confirm", '{"payment_ref": "p1"}'),
                    (door, '{"sku": "free", "buyer": "b"}'),
                )
                for count, (path, body) in enumerate((confirm, hold), 1):
                    with socket.create_connection((http.base_url.host, http.base_url.port)) as buyer:
                        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: {SHOP['Authorization']}\r\n"
                        buyer.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                        await eventually_async(
                            partial(waiting, http), "it waits", until=lambda found, n=count: found == n
                        )
                        buyer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            finally:
                store.resume()

            async def state() -> Any:
                return (await http.get(f"/holds/{held}")).json()["state"] == "confirmed"

            await eventually_async(state, "it is confirmed")
            assert (await http.get("/stock?sku=free")).json()["held"] == 0


async def test_what_was_not_decided_is_said_of_the_request(etcd: EtcdMember) -> None:
    """While the store stands still, a payment is not told that nothing was sold; each door says the same."""
    with Valkey() as store:
        quick = {"purchase_timeout_ms": 400, "store_timeout_ms": 200}
        async with running(etcd, store, **quick) as http:

            async def begun() -> Any:
                wish = {"sku": "paid", "buyer": "ann"}
                return (await http.post("/holds", json=wish, headers={"Idempotency-Key": "k"})).json().get("id")

            held = str(await eventually_async(begun, "it is held, although a busy machine may need more than 0.4 s"))
            paid = {"payment_ref": "p1", "amount": 499}
            store.pause()
            try:
                for path, body, words in (
                    ("/stock/reduce?sku=free", None, "nothing was sold"),
                    ("/holds", {"sku": "free", "buyer": "ann"}, "nothing was held"),
                    (f"/holds/{held}/extend", None, "the hold was not extended"),
                    (f"/holds/{held}/cancel", None, "nothing was cancelled"),
                ):
                    for one in (path, escaped(path)):
                        answer = await (http.post(one) if body is None else http.post(one, json=body))
                        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
                        assert answer.json()["detail"] == f"it took too long; {words}"
                for door in DOORS:
                    answer = await door(http, held, paid)
                    assert answer.json()["detail"] == "it took too long; the payment was not noted"
            finally:
                store.resume()

            async def is_told() -> Any:
                answer = await announced(http, held, paid)
                return answer.status_code == 200 and answer.json()["outcome"]

            assert await eventually_async(is_told, "it is confirmed") in ("confirmed", "already_confirmed")


async def test_an_answer_about_a_hold_begins_with_what_became_of_it(http: httpx.AsyncClient) -> None:
    """The README shows it so, and a person who types it reads the beginning."""
    held = await http.post(HOLD, json={"sku": "paid", "buyer": "ann"})
    assert held.text.startswith('{"outcome":"held","id":"paid~')
    confirm = await http.post(f"{HOLD}/{held.json()['id']}/confirm", json={"payment_ref": "p"}, headers=SHOP)
    assert confirm.text.startswith('{"outcome":"confirmed","id":"paid~')

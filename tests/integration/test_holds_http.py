"""Holds over HTTP: outcomes with 200, problem documents for all else, and rights."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, client

SHOP = "shops-secret-token"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
BACK_END = {"Authorization": f"Bearer {SHOP}"}


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance with a shop's token, and 5 units."""
    async with client(etcd.endpoint, valkey.url, shop_token=SHOP, holds_from="anybody") as http:
        await http.put("/stock", json={"stock": 5, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
        yield http


async def hold(http: httpx.AsyncClient, **wish: Any) -> dict[str, Any]:
    answer = await http.post("/holds", json={"buyer": "ann"} | wish)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_rights(http: httpx.AsyncClient) -> None:
    """The shop's back end and operators confirm, nobody else; operators alone refund."""
    held = await hold(http)
    path = f"/holds/{held['id']}/confirm"
    for headers in ({}, {"Authorization": "Bearer wrong-token"}):
        answer = await http.post(path, json={"payment_ref": "p1"}, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.json()["detail"].startswith("POST /holds/{hold_id}/confirm: ")  # without the secret in the id
    assert (await http.post(path, json={"payment_ref": "p1"}, headers=OPERATOR)).json()["outcome"] == "confirmed"
    for headers in ({}, BACK_END):
        answer = await http.post(f"/orders/{held['id']}/refund", json={"restock": True}, headers=headers)
        assert answer.status_code == 401
    # An id that looks like the path of a callback is an id.
    answer = await http.post("/orders/payments/refund", json={"restock": True}, headers=OPERATOR)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "not_found")


async def test_without_a_token_nobody_confirms(etcd: EtcdMember, valkey: Valkey) -> None:
    """No token: switched off, and the answer says by which setting; in a rehearsal anybody may."""
    for extension, status in (("", 403), ("lab.rehearsal", 200)):
        async with client(etcd.endpoint, valkey.url, admin_token=None, extension=extension) as http:
            answer = await http.post("/holds/x/confirm", json={"payment_ref": "p1"})
            assert answer.status_code == status
            told = answer.json()
            assert "SECKILL_SHOP_TOKEN" in told["detail"] if status == 403 else told["outcome"] == "not_found"


async def test_a_wish_that_is_none(http: httpx.AsyncClient) -> None:
    """The field is named, and nothing is held."""
    wishes: list[tuple[Any, str]] = [
        ({"quantity": 0, "buyer": "ann"}, "quantity"),
        ({"quantity": "1", "buyer": "ann"}, "quantity"),
        ({"quantity": 101, "buyer": "ann"}, "quantity"),
        ({"buyer": ""}, "buyer"),
        ({"buyer": "a\nb"}, "buyer"),
        ({}, "buyer"),
        ({"buyer": "ann", "sku": "a b"}, "sku"),
        ({"buyer": "ann", "ref": 101 * "x"}, "ref"),
        ({"buyer": "ann", "qantity": 2}, "qantity"),
        ([], "body"),
    ]
    for wish, field in wishes:
        answer = await http.post("/holds", json=wish)
        assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json"), wish
        assert [error["field"] for error in answer.json()["errors"]] == [field]
        assert (await http.get("/stock")).json()["held"] == 0


async def test_keys(http: httpx.AsyncClient) -> None:
    """The draft's quoted key and the bare one are the same; other words with it are refused."""
    wish = {"buyer": "ann"}
    first = (await http.post("/holds", json=wish, headers={"Idempotency-Key": "k"})).json()
    again = (await http.post("/holds", json=wish, headers={"Idempotency-Key": '"k"'})).json()
    assert (again["id"], again["replayed"]) == (first["id"], True)
    for more in ({"quantity": 2}, {"ref": "order 7"}):
        other = await http.post("/holds", json=wish | more, headers={"Idempotency-Key": "k"})
        assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    told = await asyncio.gather(
        *(http.post("/holds", json=wish | {"ref": ref}, headers={"Idempotency-Key": "both"}) for ref in ("a", "b"))
    )
    assert sorted(one.status_code for one in told) == [200, 422]  # in one batch, perhaps


async def test_what_has_a_price_is_not_given(http: httpx.AsyncClient) -> None:
    """At the door of purchases it has an outcome of its own, in JSON and as text; the key may buy when it has none."""
    await http.put("/stock", json={"price": 49900, "currency": "EUR"}, headers=OPERATOR)
    for method in ("GET", "POST"):
        for headers in ({}, {"Idempotency-Key": f"k-{method}"}, {"Authorization": f"Bearer {SHOP}"}):
            for accept in ("application/json", "text/plain"):
                wish: dict[str, str | int] = {"buyer": "eve", "quantity": 5}
                told = await http.request(method, "/stock/reduce", params=wish, headers=headers | {"Accept": accept})
                assert (told.status_code, told.headers["X-Seckill-Outcome"]) == (200, "hold_required")
                assert "X-Seckill-Order" not in told.headers
                body = told.json()["outcome"] if "json" in accept else told.text
                assert body == ("hold_required" if "json" in accept else "8080 hold required: it has a price")
    stock = (await http.get("/stock")).json()
    assert (stock["stock"], stock["held"], stock["lucky"]) == (5, 0, 0)
    assert (await hold(http, quantity=5))["outcome"] == "held"
    told = await http.post("/stock/reduce", headers={"Accept": "application/json"})
    assert told.json()["outcome"] == "hold_required"  # and not sold out, which a restock would change
    (await http.put("/stock", json={"price": None, "stock": 5}, headers=OPERATOR)).raise_for_status()
    told = await http.post(
        "/stock/reduce", params={"buyer": "eve", "quantity": 5}, headers={"Idempotency-Key": "k-GET"}
    )
    assert told.headers["X-Seckill-Outcome"] == "sold"


async def test_strangers_are_shown_no_hold(http: httpx.AsyncClient) -> None:
    """A name is no proof: at the limit and when nothing is left, only the shop and the key that began it see a hold."""
    await http.put("/stock", json={"stock": 1, "limit_per_buyer": 1}, headers=OPERATOR)
    wish = {"buyer": "victim", "ref": "order 7"}
    began = await http.post("/holds", json=wish, headers=BACK_END | {"Idempotency-Key": "k"})
    theirs = began.json()
    for stock in (0, 1):
        await http.put("/stock", json={"stock": stock}, headers=OPERATOR)
        for headers in ({}, {"Idempotency-Key": f"other-{stock}"}):
            told = await http.post("/holds", json={"buyer": "victim"}, headers=headers)
            assert told.json()["outcome"] == ("limit_reached" if stock else "sold_out")
            assert not any(secret in told.text for secret in (theirs["id"], "order 7", "pay_by"))
        for headers in (BACK_END, OPERATOR, {"Idempotency-Key": "k"}):
            assert (await http.post("/holds", json=wish, headers=headers)).json()["id"] == theirs["id"]
    assert (await http.get(f"/holds/{theirs['id']}")).json()["state"] == "held"


async def test_the_shop_is_shown_no_strangers_hold(http: httpx.AsyncClient) -> None:
    """Where anybody may hold in any name, one who did could cancel what the shop would send its buyer to pay."""
    await http.put("/stock", json={"stock": 1}, headers=OPERATOR)
    theirs = (await http.post("/holds", json={"buyer": "victim"})).json()["id"]
    told = await http.post("/holds", json={"buyer": "victim", "ref": "order 7"}, headers=BACK_END)
    assert told.json()["outcome"] == "sold_out"
    assert theirs not in told.text
    await http.put("/stock", json={"stock": 1}, headers=OPERATOR)
    senders: list[dict[str, str]] = [{}, BACK_END, BACK_END]  # in one batch, perhaps
    answers = await asyncio.gather(*(http.post("/holds", json={"buyer": "other"}, headers=one) for one in senders))
    mine = {one.json().get("id") for one in answers[1:]} - {None}
    assert answers[0].json().get("id") not in mine


@pytest.mark.parametrize(
    ("change", "field"),
    [({"price": 499}, "currency"), ({"currency": "EUR"}, "price"), ({"price": None, "currency": "EUR"}, "price")],
)
async def test_a_price_has_its_currency(http: httpx.AsyncClient, change: dict[str, Any], field: str) -> None:
    """100 yen would pay 100 cents; to take a price away takes its currency away, too."""
    wrong = await http.put("/stock", json=change, headers=OPERATOR)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, field)
    assert (await http.put("/stock", json={"price": 499, "currency": "EUR"}, headers=OPERATOR)).json()["price"] == 499
    gone = (await http.put("/stock", json={"price": None}, headers=OPERATOR)).json()
    assert (gone["price"], gone["currency"]) == (None, None)

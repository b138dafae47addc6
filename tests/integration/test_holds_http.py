"""Holds over HTTP: outcomes with 200, problem documents for all else, and rights."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.settings import Settings
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


async def test_the_flow(http: httpx.AsyncClient) -> None:
    """Hold, extend, confirm, look, refund."""
    held = await hold(http, quantity=2, ref="order 7")
    assert (held["outcome"], held["state"], held["ref"], held["quantity"]) == ("held", "held", "order 7", 2)
    assert held["pay_by"] > held["now"]
    path = f"/holds/{held['id']}"
    assert (await http.post(f"{path}/extend")).json()["outcome"] == "extended"
    paid = await http.post(f"{path}/confirm", json={"payment_ref": "p1"}, headers=BACK_END)
    assert (paid.status_code, paid.json()["outcome"], paid.json()["payment_ref"]) == (200, "confirmed", "p1")
    assert (await http.get(path)).json()["state"] == "confirmed"
    assert (await http.get(f"/orders/{held['id']}")).json()["state"] == "confirmed"
    stock = (await http.get("/stock")).json()
    assert (stock["stock"], stock["held"], stock["lucky"]) == (3, 0, 2)
    back = await http.post(f"/orders/{held['id']}/refund", json={"restock": True}, headers=OPERATOR)
    assert (back.json()["outcome"], back.json()["state"]) == ("refunded", "refunded")
    assert (await http.get("/stock")).json()["stock"] == 5


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


async def test_without_a_token_nobody_confirms(etcd: EtcdMember, valkey: Valkey) -> None:
    """No token: switched off, and the answer says by which setting; in a rehearsal anybody may."""
    for extension, status in (("", 403), ("lab.rehearsal", 200)):
        async with client(etcd.endpoint, valkey.url, admin_token=None, extension=extension) as http:
            answer = await http.post("/holds/x/confirm", json={"payment_ref": "p1"})
            assert answer.status_code == status
            told = answer.json()
            assert "SECKILL_SHOP_TOKEN" in told["detail"] if status == 403 else told["outcome"] == "not_found"


@pytest.mark.parametrize(
    ("wish", "field"),
    [
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
    ],
)
async def test_a_wish_that_is_none(http: httpx.AsyncClient, wish: Any, field: str) -> None:
    """The field is named, and nothing is held."""
    answer = await http.post("/holds", json=wish)
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert (await http.get("/stock")).json()["held"] == 0


async def test_requests_that_are_none(http: httpx.AsyncClient) -> None:
    """No JSON, parameters, a page of another site, a body that is too large, an unknown item: each is named."""
    assert (await http.post("/holds", content=b"{")).status_code == 422
    assert (await http.post("/holds?buyer=ann", json={"buyer": "ann"})).status_code == 422
    foreign = await http.post("/holds", json={"buyer": "ann"}, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert (await http.post("/holds", json={"buyer": 9000 * "x"})).status_code == 413
    assert (await http.post("/holds", json={"buyer": "ann", "sku": "nothing"})).status_code == 404
    assert (await http.get("/holds/nothing")).status_code == 404
    held = await hold(http)
    for wrong in ({}, {"payment_ref": ""}, {"payment_ref": "p", "amount": -1}, {"payment_ref": "p", "currency": "eur"}):
        answer = await http.post(f"/holds/{held['id']}/confirm", json=wrong, headers=BACK_END)
        assert answer.status_code == 422
    assert (await http.post(f"/holds/{held['id']}/cancel", json={"now": True})).status_code == 422
    assert (await http.get("/stock")).json()["held"] == 1


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


async def test_request_ids(http: httpx.AsyncClient) -> None:
    """A request's id is taken or made, given back, and kept with the order."""
    answer = await http.post("/holds", json={"buyer": "ann"}, headers={"X-Request-Id": "r-1"})
    assert (answer.headers["X-Request-Id"], answer.json()["request_id"]) == ("r-1", "r-1")
    made = (await http.post("/holds", json={"buyer": "bob"})).headers["X-Request-Id"]
    assert len(made) == 16
    wrong = await http.post("/holds", json={"buyer": "ann"}, headers={"X-Request-Id": "a b"})
    assert wrong.status_code == 422


async def test_terms_of_an_item(http: httpx.AsyncClient) -> None:
    """Windows and price are terms of the item; the hold carries its price."""
    terms = {"hold_s": 30, "pay_s": 40, "price": 250, "currency": "EUR"}
    set_ = await http.put("/stock", json=terms, headers=OPERATOR)
    assert (set_.status_code, set_.json()["price"]) == (200, 250)
    held = await hold(http, quantity=2)
    assert (held["to_pay"], held["currency"]) == (500, "EUR")
    assert held["pay_by"] - held["now"] < 31
    wrong = await http.post(f"/holds/{held['id']}/confirm", json={"payment_ref": "p1", "amount": 1}, headers=BACK_END)
    assert (wrong.status_code, wrong.json()["outcome"], wrong.json()["state"]) == (200, "amount_mismatch", "held")


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


async def test_a_second_cart_is_not_the_first(http: httpx.AsyncClient) -> None:
    """At the limit a buyer's second cart is shown the first one's hold, by an outcome of its own, each time it asks."""
    await http.put("/stock", json={"stock": 9, "limit_per_buyer": 2}, headers=OPERATOR)
    carts = {cart: {"buyer": "zed", "quantity": quantity, "ref": cart} for cart, quantity in (("k1", 2), ("k2", 1))}
    told = [
        (await http.post("/holds", json=carts[cart], headers=BACK_END | {"Idempotency-Key": cart})).json()
        for cart in ("k1", "k2", "k2", "k1")
    ]
    assert [one["outcome"] for one in told] == ["held", "already_held", "already_held", "held"]
    assert {(one["id"], one["ref"], one["quantity"]) for one in told} == {(told[0]["id"], "k1", 2)}
    both = [http.post("/holds", json={"buyer": "eve", "quantity": 2}, headers=BACK_END) for _ in range(2)]
    assert {one.json()["outcome"] for one in await asyncio.gather(*both)} == {"held", "already_held"}


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
    ("settings", "status"),
    [
        ({}, 401),
        ({"holds_from": "anybody"}, 200),
        ({"pay_url": "https://pay.example"}, 200),  # the page holds by itself
        ({"buyer_key": 32 * "k"}, 403),  # it must be a buyer that the shop has signed
        ({"shop_token": None}, 200),
        ({"shop_token": None, "holds_from": "shop"}, 401),
        ({"extension": "lab.rehearsal"}, 200),
    ],
)
async def test_who_may_hold(etcd: EtcdMember, valkey: Valkey, settings: dict[str, Any], status: int) -> None:
    """The shop alone, where it has a token, and buyers come to nobody else; a setting says otherwise."""
    async with client(etcd.endpoint, valkey.url, **{"shop_token": SHOP} | settings) as http:
        await http.put("/stock", json={"stock": 9, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
        answer = await http.post("/holds", json={"buyer": "nobody", "quantity": 9})
        assert answer.status_code == status, answer.text
        assert (await http.get("/stock")).json()["held"] == (9 if status == 200 else 0)
        if status == 401:
            assert "shop's bearer token" in answer.json()["detail"]
            assert (await http.post("/holds", json={"buyer": "ann"}, headers=OPERATOR)).status_code == 200
        if status != 200 and settings.get("shop_token", SHOP):
            assert (await http.post("/holds", json={"buyer": "ann"}, headers=BACK_END)).json()["outcome"] == "held"


def test_the_page_or_the_shop_holds() -> None:
    """With the page that holds, the shop can't be the only one who does: the settings are refused together."""
    with pytest.raises(ValueError, match="SECKILL_HOLDS_FROM=shop: with SECKILL_PAY_URL the page holds"):
        Settings(_env_file=None, holds_from="shop", pay_url="https://pay.example")


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

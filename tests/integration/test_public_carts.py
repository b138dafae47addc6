"""What carts in public have got wrong, played over HTTP on real servers; each case names the issue that tells of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.audit.auditor import audit
from app.stock.registry import connect
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import client
from tests.harness.waiting import eventually_async
from tests.integration.test_baskets import CART, OPERATOR, act, hold, look, put, units

WHOLE = [(2, 0, 0), (3, 0, 0)]  # stock, held and sold of phone and case, as long as nobody has anything


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance with 2 phones of 500 EUR and 3 cases of 20; afterwards each unit is where the journals say."""
    async with client(etcd.endpoint, valkey.url, holds_from="anybody", grace_s=0) as http:
        for sku, stock, price in (("phone", 2, 50_000), ("case", 3, 2_000)):
            await put(http, sku, stock=stock, new_sale=True, forget_orders="all", price=price, currency="EUR")
        yield http
    store = connect(valkey.url, "fence")
    for sku in await store.items():
        assert (await audit(await store.level(sku), store)).violations == []
    await store.close()


async def both(http: httpx.AsyncClient) -> list[tuple[int, int, int]]:
    return [await units(http, sku) for sku in ("phone", "case")]


async def refused(http: httpx.AsyncClient, items: Any) -> tuple[int, str]:
    """The status, and which field is wrong."""
    answer = await http.post("/holds", json={"buyer": "ann", "items": items})
    return answer.status_code, answer.json()["errors"][0]["field"]


async def paid(http: httpx.AsyncClient) -> dict[str, Any]:
    order = await hold(http, "ann", CART)
    assert (await act(http, order, "confirm", payment_ref="p", amount=54_000, currency="EUR"))["state"] == "confirmed"
    return order


async def refund(http: httpx.AsyncClient, order: dict[str, Any], key: str, **part: Any) -> tuple[str, int]:
    """The outcome, and how much was given back in all."""
    url = f"/orders/{order['id']}/refund"
    said = (await http.post(url, json=part, headers=OPERATOR | {"Idempotency-Key": key})).json()
    return said["outcome"], said["given_back"]


async def test_two_lines_of_one_item(http: httpx.AsyncClient) -> None:
    """medusajs/medusa#16502: each line was checked against all of the stock; here their sum is."""
    two = {"sku": "case", "quantity": 2}
    said = await hold(http, "ann", [two, {"sku": "phone"}, two])
    assert (said["outcome"], said["line"], await both(http)) == ("sold_out", "case", WHOLE)


async def test_a_negative_line(http: httpx.AsyncClient) -> None:
    """medusajs/medusa#13504: a line of -1 was a discount; here it is an error that names the line."""
    assert await refused(http, [CART[0], {"sku": "case", "quantity": -1}]) == (422, "items.1.quantity")
    assert await both(http) == WHOLE


async def test_a_line_of_no_units(http: httpx.AsyncClient) -> None:
    """saleor/saleor#2912: a line of 0 became part of an order; here it is an error that names the line."""
    assert await refused(http, [{"sku": "phone", "quantity": 0}, CART[1]]) == (422, "items.0.quantity")
    assert await both(http) == WHOLE


async def test_a_huge_quantity(http: httpx.AsyncClient) -> None:
    """Sylius/Sylius#11312: 9,999 units in a cart were a 500; here they are too many, also as two lines, or sold out."""
    huge = {"sku": "case", "quantity": 9_999}
    assert await refused(http, [CART[0], huge]) == (422, "items.1.quantity")
    assert await refused(http, [{"sku": "case", "quantity": 60}] * 2) == (422, "items.1.quantity")
    said = await hold(http, "ann", [CART[0], {"sku": "case", "quantity": 99}])
    assert (said["outcome"], said["line"], await both(http)) == ("sold_out", "case", WHOLE)


async def test_one_cart_is_submitted_twice(http: httpx.AsyncClient) -> None:
    """magento/magento2#13952: two tabs made two orders of one quote; here the cart's key is one order."""
    first, second = await asyncio.gather(*(hold(http, "ann", CART, "quote-1") for _ in range(2)))
    assert (first["id"], {first["replayed"], second["replayed"]}) == (second["id"], {False, True})
    assert await both(http) == [(1, 1, 0), (1, 2, 0)]


async def test_carts_at_the_same_instant(http: httpx.AsyncClient) -> None:
    """magento/magento2#6363: both checkouts of the last units succeeded; here one basket has them, whole."""
    said = await asyncio.gather(*(hold(http, f"b{one}", CART) for one in range(6)))
    assert sorted(one["outcome"] for one in said) == ["held", *["sold_out"] * 5]
    assert {one.get("line") for one in said} == {None, "case"}
    assert await both(http) == [(1, 1, 0), (1, 2, 0)]


async def test_the_price_has_risen_since_the_cart(http: httpx.AsyncClient) -> None:
    """spree/spree#11801: an old cart still bought at the old price; here the hold has today's, and keeps it."""
    await put(http, "phone", stock=0, add=True, price=60_000, currency="EUR")
    order = await hold(http, "ann", CART)
    await put(http, "case", stock=0, add=True, price=9_000, currency="EUR")
    assert (order["to_pay"], (await look(http, order))["to_pay"]) == (64_000, 64_000)
    old = await act(http, order, "confirm", payment_ref="p", amount=54_000, currency="EUR")
    assert (old["outcome"], await both(http)) == ("amount_mismatch", [(1, 1, 0), (1, 2, 0)])


async def test_lines_in_two_currencies(http: httpx.AsyncClient) -> None:
    """spree/spree#4331: euros and dollars were added up as one number; here such a basket is an error."""
    await put(http, "case", stock=0, add=True, price=2_000, currency="USD")
    assert await refused(http, CART) == (422, "items")
    assert await both(http) == WHOLE


async def test_an_item_has_gone_since_the_cart(http: httpx.AsyncClient) -> None:
    """reactioncommerce/reaction#5237: a deleted item broke the cart; here it is named, and the others stay free."""
    assert (await http.delete("/stock?sku=case", headers=OPERATOR)).status_code == 204
    answer = await http.post("/holds", json={"buyer": "ann", "items": CART})
    assert (answer.status_code, "'case'" in answer.json()["detail"]) == (422, True)
    assert await units(http, "phone") == WHOLE[0]


async def test_a_cart_of_which_only_a_part_is_there(http: httpx.AsyncClient) -> None:
    """medusajs/medusa#13625: what a failed checkout had reserved stayed so; here a refused basket holds nothing."""
    await put(http, "case", stock=1)
    said = await hold(http, "ann", CART)
    assert (said["outcome"], said["line"], await both(http)) == ("sold_out", "case", [(2, 0, 0), (1, 0, 0)])


async def test_the_payment_fails(http: httpx.AsyncClient) -> None:
    """woocommerce/woocommerce#55396: a failed order kept its stock; here all lines come back at one deadline."""
    await put(http, "case", stock=0, add=True, hold_s=1)
    order = await hold(http, "ann", CART)
    assert await both(http) == [(1, 1, 0), (1, 2, 0)]
    await eventually_async(lambda: look(http, order), until=lambda one: one["state"] == "expired")
    assert await both(http) == WHOLE


async def test_money_for_what_is_gone(http: httpx.AsyncClient) -> None:
    """medusajs/medusa#4946: a card was charged for units that were gone; here it is owed, and no line is sold."""
    order = await hold(http, "ann", CART)
    await act(http, order, "cancel")
    await hold(http, "bob", [CART[1]])
    late = await act(http, order, "confirm", payment_ref="p", amount=54_000, currency="EUR")
    assert (late["outcome"], late["owed"], await both(http)) == ("refund_due", 54_000, [(2, 0, 0), (1, 2, 0)])


async def test_a_limit_by_small_lines(http: httpx.AsyncClient) -> None:
    """saleor/saleor#4004: adding one at a time passed the limit; here lines and earlier orders count together."""
    await put(http, "case", stock=0, add=True, limit_per_buyer=2)
    one = {"sku": "case", "quantity": 1}
    assert (await hold(http, "ann", [CART[0], one, one, one]))["line"] == "case"
    assert (await hold(http, "ann", [CART[0], one, one]))["outcome"] == "held"
    said = await hold(http, "ann", [CART[0], one])
    assert (said["outcome"], said["line"], await both(http)) == ("limit_reached", "case", [(1, 1, 0), (1, 2, 0)])


async def test_a_part_is_refunded_and_then_the_order(http: httpx.AsyncClient) -> None:
    """PrestaShop/PrestaShop#16869: the order's end restocked a refunded part again; here each unit is back once."""
    order = await paid(http)
    assert await refund(http, order, "a", restock=True, sku="case", units=1) == ("partly_refunded", 2_000)
    assert await refund(http, order, "b", restock=True) == ("refunded", 54_000)
    assert (await act(http, order, "cancel"))["state"] == "refunded"
    assert await both(http) == WHOLE


async def test_a_line_is_refunded_without_its_units(http: httpx.AsyncClient) -> None:
    """woocommerce/woocommerce#29502: a later change restocked it all the same; here the refund's answer is for good."""
    order = await paid(http)
    assert await refund(http, order, "a", restock=False, sku="case", units=1) == ("partly_refunded", 2_000)
    assert (await act(http, order, "cancel"))["state"] == "confirmed"
    assert await refund(http, order, "b", restock=True, sku="phone") == ("partly_refunded", 52_000)
    assert await both(http) == [(2, 0, 0), (1, 0, 2)]


async def test_a_line_is_refunded_twice(http: httpx.AsyncClient) -> None:
    """woocommerce/woocommerce#27504: a line that was gone gave its units back again; here nothing is left of it."""
    order = await paid(http)
    assert await refund(http, order, "a", restock=True, sku="case") == ("partly_refunded", 4_000)
    assert await refund(http, order, "a", restock=True, sku="case") == ("partly_refunded", 4_000)
    again, given_back = await refund(http, order, "b", restock=True, sku="case")
    assert (again in {"nothing_due", "too_much"}, given_back, await both(http)) == (True, 4_000, [(1, 0, 1), WHOLE[1]])

"""Several items in one order, all or nothing, over HTTP on real servers."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.audit.auditor import audit
from app.stock.registry import connect
from lab.servers import EtcdMember, Postgres, Valkey
from tests.harness.shop import TOKEN, client

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
CART = [{"sku": "phone", "quantity": 1}, {"sku": "case", "quantity": 2}]


@pytest.fixture(params=["redis", "postgres"])
async def http(
    request: pytest.FixtureRequest, etcd: EtcdMember, valkey: Valkey, postgres: Postgres
) -> AsyncIterator[httpx.AsyncClient]:
    """An instance with 2 phones of 500 EUR and 3 cases of 20."""
    url = valkey.url if request.param == "redis" else postgres.url
    store = connect(url, "fence", timeout_s=30)
    await store.levels(["phone"])  # makes the tables, for which a busy machine needs more time than an instance has
    async with client(etcd.endpoint, url, holds_from="anybody", grace_s=0, shop_token="the-shops") as http:
        for sku, stock, price in (("phone", 2, 50_000), ("case", 3, 2_000)):
            await put(http, sku, stock=stock, new_sale=True, forget_orders="all", price=price, currency="EUR")
        yield http
    for sku in ("phone", "case"):
        assert (await audit(await store.level(sku), store)).violations == []
    await store.close()


async def put(http: httpx.AsyncClient, sku: str, **change: Any) -> None:
    answer = await http.put(f"/stock?sku={sku}", json=change, headers=OPERATOR)
    assert answer.status_code == 200, answer.text


async def hold(http: httpx.AsyncClient, buyer: str, items: Any, key: str | None = None, **wish: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    answer = await http.post("/holds", json={"buyer": buyer, "items": items} | wish, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def units(http: httpx.AsyncClient, sku: str) -> tuple[int, int, int]:
    level = (await http.get(f"/stock?sku={sku}")).json()
    return level["stock"], level.get("held", 0), level["lucky"]


async def act(http: httpx.AsyncClient, order: dict[str, Any], verb: str, key: str | None = None, **body: Any) -> Any:
    headers = OPERATOR | ({"Idempotency-Key": key} if key else {})
    answer = await http.post(f"/holds/{order['id']}/{verb}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def look(http: httpx.AsyncClient, order: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/holds/{order['id']}")).json()
    return found


async def test_a_basket_is_one_order(http: httpx.AsyncClient) -> None:
    """One id, one price, one payment; the units of each line are in its item; a repeat is the same order."""
    order = await hold(http, "ann", CART, "k")
    assert (order["outcome"], order["sku"], order["to_pay"]) == ("held", "case", 54_000)
    assert order["items"] == [
        {"sku": "case", "quantity": 2, "price": 2_000},
        {"sku": "phone", "quantity": 1, "price": 50_000},
    ]
    assert [await units(http, sku) for sku in ("phone", "case")] == [(1, 1, 0), (1, 2, 0)]
    again = await hold(http, "ann", CART[::-1], "k")
    assert (again["id"], again["replayed"]) == (order["id"], True)
    other = {"buyer": "ann", "items": [CART[1], {"sku": "phone", "quantity": 2}]}
    assert (await http.post("/holds", json=other, headers={"Idempotency-Key": "k"})).status_code == 422
    assert (await act(http, order, "confirm", payment_ref="p", amount=50_000, currency="EUR"))[
        "outcome"
    ] == "amount_mismatch"
    paid = await act(http, order, "confirm", payment_ref="q", amount=54_000, currency="EUR")
    assert (paid["outcome"], paid["owed"]) == ("confirmed", 50_000)  # the wrong one
    assert [await units(http, sku) for sku in ("phone", "case")] == [(1, 0, 1), (1, 0, 2)]


async def test_all_or_nothing(http: httpx.AsyncClient) -> None:
    """A refusal names the line, and holds nothing of the others."""
    await put(http, "case", stock=1)
    refused = await hold(http, "ann", CART, "k")
    assert (refused["outcome"], refused["line"], refused.get("id")) == ("sold_out", "case", None)
    assert [await units(http, sku) for sku in ("phone", "case")] == [(2, 0, 0), (1, 0, 0)]
    await put(http, "case", stock=5)
    again = await hold(http, "ann", CART, "k")
    assert (again["outcome"], again["line"]) in {("sold_out", "case")}


async def test_a_cart_with_one_item_in_two_lines(http: httpx.AsyncClient) -> None:
    """The lines are summed before they are checked."""
    twice = [{"sku": "phone", "quantity": 2}, {"sku": "phone", "quantity": 1}]
    assert (await hold(http, "ann", twice))["outcome"] == "sold_out"
    order = await hold(http, "ann", [{"sku": "phone", "quantity": 1}, {"sku": "phone", "quantity": 1}])
    assert (order["quantity"], order["items"], await units(http, "phone")) == (
        2,
        [{"sku": "phone", "quantity": 2, "price": 50_000}],
        (0, 2, 0),
    )


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([], "items"),
        ([{"sku": "phone", "quantity": 0}], "items.0.quantity"),
        ([{"sku": "phone"}, {"sku": "a b"}], "items.1.sku"),
        ([{"sku": f"i{n}"} for n in range(21)], "items"),
        ([{"sku": "phone"}, {"sku": "case", "much": 1}], "items.1.much"),
    ],
)
async def test_an_error_names_the_line(http: httpx.AsyncClient, items: Any, field: str) -> None:
    answer = await http.post("/holds", json={"buyer": "ann", "items": items})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize("sku", ["none", "a-first"])  # the one at which the order would stand, too
async def test_an_unknown_item_in_a_basket(http: httpx.AsyncClient, sku: str) -> None:
    answer = await http.post("/holds", json={"buyer": "ann", "items": [*CART, {"sku": sku}]})
    assert (answer.status_code, answer.json()["detail"][:27]) == (422, f"items: no item {sku!r}"[:27])
    assert [await units(http, sku) for sku in ("phone", "case")] == [(2, 0, 0), (3, 0, 0)]


async def test_a_part_of_a_basket(http: httpx.AsyncClient) -> None:
    """Units of a line, or a whole line, are cancelled and refunded with their price."""
    order = await hold(http, "ann", CART)
    some = await act(http, order, "cancel", "one", sku="phone", units=1)
    assert (some["outcome"], some["to_pay"]) == ("partly_cancelled", 4_000)
    assert (await act(http, order, "cancel"))["outcome"] == "cancelled"
    order = await hold(http, "ann", CART)
    await act(http, order, "confirm", payment_ref="p", amount=54_000, currency="EUR")
    refund = {"restock": True, "sku": "case", "units": 1}
    url, keyed = f"/orders/{order['id']}/refund", OPERATOR | {"Idempotency-Key": "r"}
    part = (await http.post(url, json=refund, headers=keyed)).json()
    assert (part["outcome"], part["given_back"]) == ("partly_refunded", 2_000)
    keyed["Idempotency-Key"] = "s"
    part = (await http.post(url, json={"restock": True, "sku": "phone"}, headers=keyed)).json()
    assert (part["outcome"], part["given_back"]) == ("partly_refunded", 52_000)
    assert [await units(http, sku) for sku in ("phone", "case")] == [(2, 0, 0), (2, 0, 1)]
    rest = (await http.post(url, json={"restock": False}, headers=OPERATOR)).json()
    assert (rest["outcome"], rest["state"], rest["given_back"]) == ("refunded", "refunded", 54_000)
    assert [await units(http, sku) for sku in ("phone", "case")] == [(2, 0, 0), (2, 0, 1)]


async def test_a_limit_over_items_is_a_number_and_names(http: httpx.AsyncClient) -> None:
    for odd in ("at most 3 case", "3 case, charger", "3 case\n", "0 case", "3"):
        answer = await http.put(
            "/stock?sku=phone", json={"stock": 0, "add": True, "limit_group": odd}, headers=OPERATOR
        )
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "limit_group")


async def test_items_with_locks_of_their_own(etcd: EtcdMember, valkey: Valkey) -> None:
    """They can be neither in one basket nor under one limit; the answer says what to do."""
    async with client(etcd.endpoint, valkey.url, holds_from="anybody", lock_groups=2) as http:
        for sku in ("phone", "case"):
            await put(http, sku, stock=2, new_sale=True, forget_orders="all")
        answer = await http.post("/holds", json={"buyer": "ann", "items": CART})
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["field"], "LOCK_GROUPS" in error["message"]) == (422, "items", True)
        change = {"stock": 0, "add": True, "limit_group": "3 case"}
        answer = await http.put("/stock?sku=phone", json=change, headers=OPERATOR)
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["field"], "LOCK_GROUPS" in error["message"]) == (422, "limit_group", True)


async def test_programs_see_one_order(http: httpx.AsyncClient) -> None:
    """Lists, events and the report know a basket once; each line is in the report of its item, and in the file."""
    order = await hold(http, "ann", CART, ref="R1")
    await act(http, order, "confirm", payment_ref="p", amount=54_000, currency="EUR")
    found = (await http.get("/orders", headers=OPERATOR)).json()["orders"]
    assert [(one["id"], len(one["items"])) for one in found] == [(order["id"], 2)]
    events = (await http.get("/events", headers={"Authorization": "Bearer the-shops"})).json()["events"]
    told = [(one["type"], [line["quantity"] for line in one["data"]["items"]]) for one in events]
    assert told == [("order.held", [2, 1]), ("order.confirmed", [2, 1])]
    report = (await http.get("/report", headers=OPERATOR)).json()
    assert [(one["sku"], one["units"]["confirmed"], one["orders"]["confirmed"]) for one in report["items"]] == [
        ("case", 2, 1),
        ("phone", 1, 0),
    ]
    rows = (await http.get("/orders/export?format=csv", headers=OPERATOR)).text.splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == ["case", "phone"]
    for sku, there in (("case", [("case", 2)]), ("phone", [("phone", 1)])):
        (found,) = (await http.get(f"/orders?sku={sku}", headers=OPERATOR)).json()["orders"]
        assert found["id"] == order["id"]
        report = (await http.get(f"/report?sku={sku}", headers=OPERATOR)).json()
        assert [(one["sku"], one["units"]["confirmed"]) for one in report["items"]] == there
    log = (await http.get("/orders", params={"number": found["id"]}, headers=OPERATOR)).json()["orders"]
    assert [one["id"] for one in log] == [order["id"]]

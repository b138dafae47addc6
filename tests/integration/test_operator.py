"""An operator changes a live sale: confirmed new sales, pauses, names, the log, mistyped items."""

import logging
import time
from typing import Any

import httpx
import pytest
import redis.asyncio

from app.errors import UnknownItem
from app.main import create_app
from app.stock.redis.keys import Keys
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, buy, settings, shop
from tests.harness.waiting import eventually_async
from tests.integration.conftest import OPERATOR, OpenClient
from tests.integration.test_web import AS_JSON, is_problem

ANN, BOB = "ann-has-a-token", "bob-has-another"
NAMED = {"admin_tokens": f"ann:{ANN},bob:{BOB}"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def put(http: httpx.AsyncClient, sku: str = "default", by: str = TOKEN, **change: Any) -> httpx.Response:
    return await http.put("/stock", params={"sku": sku}, json=change, headers=bearer(by))


async def outcome(http: httpx.AsyncClient, **query: str) -> str:
    return str((await http.post("/stock/reduce", params=query, headers=AS_JSON)).json()["outcome"])


@pytest.mark.parametrize("guard", ["fence", "none"])
async def test_a_new_sale_has_to_know_what_it_forgets(open_client: OpenClient, guard: str) -> None:
    """A new sale is refused with the number of orders, until the request has that number, or "all"; it is logged."""
    http = await open_client(guard=guard)
    assert (await put(http, stock=5, new_sale=True)).status_code == 200  # there are no orders
    for _ in range(2):
        assert await outcome(http) == "sold"
    hows: list[dict[str, Any]] = [{}, {"forget_orders": 0}, {"forget_orders": 1}]
    for how in hows:
        problem = is_problem(await put(http, stock=5, new_sale=True, **how), 412)
        assert (problem["type"], problem["orders"]) == ("urn:seckill:has-orders", 2)
        assert "2 orders of 'default' would be forgotten" in problem["detail"]
    assert len((await http.get("/orders", headers=OPERATOR)).json()["orders"]) == 2
    assert (await put(http, stock=5, new_sale=True, forget_orders=2)).json()["lucky"] == 0
    assert await outcome(http) == "sold"
    assert (await put(http, stock=5, new_sale=True, forget_orders="all")).json()["lucky"] == 0
    log = (await http.get("/log", headers=OPERATOR)).json()
    assert [one["what"] for one in log] == ["new sale", "new sale", "new sale", "stock"]
    assert (log[0]["before"], log[0]["after"]) == ({"stock": 4, "sold": 1}, {"stock": 5, "sold": 0})


async def test_a_sale_is_paused_and_goes_on(open_client: OpenClient) -> None:
    """Buyers get "paused", and their keys stay usable; the text is shown with the stock; the hours take precedence."""
    http = await open_client(sold_out_ttl_ms=0)
    assert (await put(http, paused="Back at nine. 九点见")).json()["paused"] == "Back at nine. 九点见"
    assert (await http.get("/stock")).json()["paused"] == "Back at nine. 九点见"
    key = {"Idempotency-Key": "press-1"}
    told = await http.post("/stock/reduce", headers=key)
    assert (told.status_code, told.headers["x-seckill-outcome"]) == (200, "paused")
    assert await outcome(http) == "paused"
    assert 'seckill_purchases_total{outcome="paused"} 2.0' in (await http.get("/metrics")).text
    level = (await put(http, paused="")).json()
    assert (level["paused"], level["stock"]) == ("", 5)
    assert (await http.post("/stock/reduce", headers=key)).headers["x-seckill-outcome"] == "sold"
    await put(http, paused="again", starts_at=time.time() + 3600)
    assert await outcome(http) == "not_started"
    await put(http, starts_at=0, ends_at=1.0)
    assert await outcome(http) == "ended"
    (warning,) = (await put(http, paused=None)).json()["warnings"]
    assert "its sale has ended (19" in warning
    assert (await put(http, ends_at=0)).json()["warnings"] == []


async def test_a_pause_is_told_in_languages(open_client: OpenClient) -> None:
    """Readers of a language may have a text of their own; a pause without one, and the end of it, leave none behind."""
    http = await open_client()
    told: dict[str, Any] = {"paused": "Back at nine", "paused_texts": {"zh": "九点见", "de": "Bis neun"}}
    assert {name: (await put(http, **told)).json()[name] for name in told} == told
    assert {name: (await http.get("/stock")).json()[name] for name in told} == told
    assert (await put(http, paused="Tea")).json()["paused_texts"] == {}
    await put(http, **told)
    level = (await put(http, paused=None)).json()
    assert (level["paused"], level["paused_texts"]) == ("", {})
    await put(http, **told)
    await put(http, paused_texts={"zh": "茶歇"})  # another text, and the pause goes on
    assert (await http.get("/stock")).json()["paused"] == "Back at nine"
    for wrong in ({"zh": "two\nlines"}, {"zh\n": "茶歇"}, "茶歇"):
        (error,) = is_problem(await put(http, paused_texts=wrong), 422)["errors"]
        assert (error["field"], "such as zh; 20 languages" in error["message"]) == ("paused_texts", True)
    assert "paused_zh: there is no such field" in is_problem(await put(http, paused_zh="茶歇"), 422)["detail"]
    changes = (await http.get("/log", headers=OPERATOR)).json()
    assert [change["what"] for change in changes[:6]] == ["terms", "pause", "resume", "pause", "pause", "pause"]


async def test_the_overview_has_names_and_warnings(open_client: OpenClient) -> None:
    """What the catalogue says of an item, and what /readyz says of the instance."""
    http = await open_client()
    found = (await http.get("/control/overview", headers=OPERATOR)).json()
    (item,) = found["items"]
    assert item["name"] == {"en": "Brass reading lamp", "zh": "黄铜阅读灯"}
    assert (await http.get(item["picture"])).status_code == 200
    ready = (await http.get("/readyz")).json()
    assert (found["ready"], found["lacks"], found["warnings"]) == (True, [], ready["warnings"])


async def test_the_overview_says_why_an_item_can_not_be_sold(open_client: OpenClient, valkey: Valkey) -> None:
    """The item that is fenced by another lock system has a reason, and the one beside it has none."""
    http = await open_client()
    await put(http, stock=5)
    assert (await http.put("/stock?sku=phone", json={"stock": 5}, headers=OPERATOR)).status_code == 200
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        await client.hset(Keys("phone").fence, "source", "etcd:another")
    assert (await http.post("/stock/reduce?sku=phone")).status_code == 503
    items = (await http.get("/control/overview", headers=OPERATOR)).json()["items"]
    (why,) = {one["sku"]: one["wrong"] for one in items}.pop("phone")
    assert "fenced by etcd:another" in why
    assert [one["wrong"] for one in items if one["sku"] != "phone"] == [[]]


async def test_who_changed_what_is_logged(open_client: OpenClient, caplog: pytest.LogCaptureFixture) -> None:
    """Each token has a name. A change is a line in the log and a record in the store; a refused change is neither."""
    caplog.set_level(logging.INFO, "app.operator.stock")
    http = await open_client(**NAMED)
    await put(http, by=ANN, paused="tea")
    await put(http, by=BOB, stock=-1)
    await put(http, "pen", by=BOB, stock=3)
    is_problem(await put(http, "pen", by="nobody's token", stock=4), 401)
    assert (await http.delete("/stock?sku=pen", headers=bearer(BOB))).status_code == 204
    log = (await http.get("/log", headers=bearer(ANN))).json()
    assert [(one["by"], one["what"], one["sku"]) for one in log] == [
        ("bob", "remove", "pen"),
        ("bob", "stock", "pen"),
        ("ann", "pause", "default"),
        ("operator", "stock", "default"),
    ]
    assert log[2]["before"] == {"stock": 5, "sold": 0}
    assert log[2]["after"] == {"stock": 5, "sold": 0, "paused": "tea"}
    assert abs(log[0]["at"] - time.time()) < 60
    assert [one["sku"] for one in (await http.get("/log?sku=pen&limit=1", headers=OPERATOR)).json()] == ["pen"]
    assert "operator ann: pause of default: paused none -> tea" in caplog.text
    is_problem(await http.get("/log"), 401)


async def test_a_cookie_is_its_operators(open_client: OpenClient) -> None:
    """A change from a room that ann has opened is ann's; and after bob has logged in there, it is bob's."""
    http = await open_client(**NAMED)
    for name, token in (("ann", ANN), ("bob", BOB)):
        await http.post("/control/login", data={"token": token})
        csrf = (await http.get("/control/session")).json()["csrf"]
        answer = await http.put("/stock", json={"stock": 7}, headers={"X-Seckill-Csrf": csrf})
        assert answer.status_code == 200
        assert (await http.get("/log")).json()[0]["by"] == name


async def test_only_an_item_without_orders_is_removed(open_client: OpenClient) -> None:
    """The request must name the item; with orders the item stays, and the problem has their number."""
    http = await open_client()
    await put(http, "pen", stock=3)
    is_problem(await http.delete("/stock", headers=OPERATOR), 422, field="sku")
    assert await outcome(http, sku="pen") == "sold"
    assert is_problem(await http.delete("/stock?sku=pen", headers=OPERATOR), 412)["orders"] == 1
    await put(http, "pen", stock=3, new_sale=True, forget_orders=1)
    is_problem(await http.delete("/stock?sku=pen"), 401)
    assert (await http.delete("/stock?sku=pen", headers=OPERATOR)).status_code == 204
    is_problem(await http.get("/stock?sku=pen"), 404)
    is_problem(await http.delete("/stock?sku=pen", headers=OPERATOR), 404)
    assert await outcome(http) == "sold"


async def test_no_endpoint_ignores_a_parameter(open_client: OpenClient) -> None:
    """Every documented endpoint refuses an unknown or repeated parameter, and names it."""
    http = await open_client(extension="lab.rehearsal")
    asked = 0
    for path, methods in (await http.get("/openapi.json")).json()["paths"].items():
        if path.startswith("/payments/"):  # switched off, which comes first
            continue
        for method, described in methods.items():
            body = {"stock": 1} if "requestBody" in described else None
            where = path.replace("{order_id}", "x")
            problem = is_problem(await http.request(method, f"{where}?byuer=ann", headers=OPERATOR, json=body), 422)
            assert "byuer" in [error["field"] for error in problem["errors"]]
            if "sku" in [one["name"] for one in described.get("parameters", [])]:
                is_problem(await http.request(method, f"{where}?sku=a&sku=b", headers=OPERATOR, json=body), 422)
            asked += 1
    assert asked > 15
    is_problem(await http.get("/orders?byuer=ann", headers=OPERATOR), 422, field="byuer")
    assert (await http.get("/?utm_source=mail&sku=default")).status_code == 200  # anybody may link to a page


async def test_a_misspelt_field_has_a_hint(open_client: OpenClient) -> None:
    """A field that there is not is refused, with the one that was probably meant, else with all that there are."""
    http = await open_client()
    problem = is_problem(await http.post("/holds", json={"buyer": "ann", "qty": 2}), 422, field="qty")
    assert problem["detail"] == "qty: there is no such field; did you mean quantity?"
    paid = {"payment_ref": "p", "amuont": 2}
    problem = is_problem(await http.post("/holds/a~1-0~b/confirm", json=paid, headers=OPERATOR), 422)
    assert "did you mean amount?" in problem["detail"]
    problem = is_problem(await put(http, stock=5, newsale=True), 422, field="newsale")
    assert "did you mean new_sale?" in problem["detail"]
    problem = is_problem(await http.post("/orders/x/cancel", json={"colour": 1}, headers=OPERATOR), 422)
    assert problem["detail"] == "colour: there is no such field; there is units, sku"


async def test_a_real_sale_has_nothing_that_makes_orders(open_client: OpenClient, etcd: EtcdMember) -> None:
    """Rushes and pauses of the holder exist only in a rehearsal, which sends none to a real instance beside it."""
    http = await open_client()
    for what in ("rush", "pause"):
        is_problem(await http.post(f"/control/{what}", json={"buyers": 1}, headers=OPERATOR), 404)
    assert not any("rush" in path or "pause" in path for path in (await http.get("/openapi.json")).json()["paths"])
    assert (await http.get("/control/picture", headers=OPERATOR)).json()["rehearsal"] is False
    rehearsing = await open_client(extension="lab.rehearsal", instance="rehearsal")

    async def seen() -> bool:
        picture = (await rehearsing.get("/control/picture", headers=OPERATOR)).json()
        return picture["rehearsal"] and len(picture["instances"]) == 2

    await eventually_async(seen, "it sees both")
    answer = await rehearsing.post("/control/rush", json={"buyers": 4}, headers=OPERATOR)
    assert answer.json()["instances"] == ["rehearsal"]
    await eventually_async(lambda: _sold(http, 4), "all have come to it")


async def _sold(http: httpx.AsyncClient, units: int) -> bool:
    return bool((await http.get("/stock")).json()["lucky"] == units)


def test_a_rehearsal_is_off_unless_it_is_said(etcd: EtcdMember, valkey: Valkey) -> None:
    """With default settings the application has no such route."""
    paths = [getattr(route, "path", "") for route in create_app(settings(etcd.endpoint, valkey.url)).routes]
    assert "/control/rush" not in paths


async def test_a_misspelt_item_is_neither_unfenced_nor_given_up(etcd: EtcdMember, valkey: Valkey) -> None:
    """Nothing is written for an item that nobody knows; one whose data are gone, and are missed, is known."""
    async with shop(etcd.endpoint, valkey.url) as one:
        for command in (one.unfence, one.accept_loss):
            with pytest.raises(UnknownItem):
                await command("telly")
        async with redis.asyncio.Redis.from_url(valkey.url, decode_responses=True) as raw:
            assert not await raw.keys("*telly*")
            await one.set_stock("tv", 2)
            await buy(one, 1, sku="tv")
            await raw.flushall()
        await one.accept_loss("tv")
        assert [change.what for change in await one.log("tv")] == ["accept loss"]


async def test_a_restock_that_was_not_answered_is_sent_again(open_client: OpenClient) -> None:
    """It counts once, whatever was sold meanwhile."""
    http = await open_client()
    initial = (await http.get("/stock")).json()["initial"]
    told = []
    for _ in range(2):
        told.append(await put(http, stock=10, add=True, if_initial=initial))
        assert await outcome(http) == "sold"
    assert [answer.status_code for answer in told] == [200, 412]
    assert is_problem(told[1], 412)
    now = (await http.get("/stock")).json()
    assert (now["stock"], now["lucky"], now["initial"]) == (13, 2, 15)

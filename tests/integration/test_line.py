"""Buyers wait in line for units that others hold, over HTTP on real servers."""

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, client
from tests.harness.waiting import eventually_async

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance with 2 units, of which ann holds both."""
    async with client(etcd.endpoint, valkey.url, holds_from="anybody", grace_s=0) as http:
        await http.put("/stock", json={"stock": 2, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR)
        http.headers["X-Hold"] = (await hold(http, "ann", quantity=2))["id"]
        yield http


async def hold(http: httpx.AsyncClient, buyer: str, **wish: Any) -> dict[str, Any]:
    answer = await http.post("/holds", json={"buyer": buyer} | wish)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def look(http: httpx.AsyncClient, order: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/holds/{order['id']}")).json()
    return found


async def test_whoever_waits_is_next(http: httpx.AsyncClient) -> None:
    """A place tells what is known; a unit that comes back is offered with a window; nobody overtakes."""
    bob = await hold(http, "bob", wait=True)
    cid = await hold(http, "cid", wait=True, quantity=2)
    assert [(one["outcome"], one["state"], one["place"]["number"]) for one in (bob, cid)] == [
        ("waiting", "waiting", 1),
        ("waiting", "waiting", 2),
    ]
    assert bob["place"]["held"] == 2
    assert 500 < bob["place"]["first_ends_at"] - bob["now"] <= 600
    assert (await hold(http, "bob", wait=True))["outcome"] == "already_waiting"
    assert (await look(http, cid))["place"] == bob["place"] | {"number": 2}
    await http.post(f"/holds/{http.headers['X-Hold']}/cancel")
    bob, cid = await look(http, bob), await look(http, cid)
    assert (bob["state"], bob.get("place"), cid["place"]["number"]) == ("held", None, 1)
    assert bob["pay_by"] > bob["now"]
    assert (await http.get("/stock")).json()["stock"] == 1
    assert (await hold(http, "dee"))["outcome"] == "sold_out"  # the unit is too few for cid, who is next
    assert (await http.post(f"/holds/{cid['id']}/cancel")).json()["outcome"] == "cancelled"
    assert (await hold(http, "dee"))["outcome"] == "held"


async def test_a_restock_is_offered_first(http: httpx.AsyncClient) -> None:
    bob = await hold(http, "bob", wait=True)
    level = (await http.put("/stock", json={"stock": 1, "add": True}, headers=OPERATOR)).json()
    assert (level["stock"], (await look(http, bob))["state"]) == (0, "held")


async def test_a_line_ends_with_its_sale(http: httpx.AsyncClient) -> None:
    """Nobody has to press for that, and nobody waits for units that are all sold."""
    bob = await hold(http, "bob", wait=True)
    terms = {"stock": 0, "add": True, "ends_at": time.time() + 1}
    assert (await http.put("/stock", json=terms, headers=OPERATOR)).status_code == 200
    await eventually_async(lambda: look(http, bob), until=lambda order: order["state"] == "cancelled")
    assert (await hold(http, "cid", wait=True))["outcome"] == "ended"


async def test_whether_somebody_waits_is_true_or_false(http: httpx.AsyncClient) -> None:
    for wait in (1, "yes", None):
        answer = await http.post("/holds", json={"buyer": "bob", "wait": wait})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "wait")


async def test_an_hour_opens_without_a_press(http: httpx.AsyncClient) -> None:
    """Units that came back before the sale's hours are offered as these begin."""
    bob = await hold(http, "bob", wait=True)
    terms = {"stock": 0, "add": True, "starts_at": time.time() + 2}
    assert (await http.put("/stock", json=terms, headers=OPERATOR)).status_code == 200
    await http.post(f"/holds/{http.headers['X-Hold']}/cancel")
    assert (await look(http, bob))["state"] == "waiting"
    await eventually_async(lambda: look(http, bob), until=lambda order: order["state"] == "held")

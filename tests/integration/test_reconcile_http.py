"""The provider's list beside the orders, over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.web import reconcile
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, client

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
HEAD = "payment_ref,kind,amount,currency\n"


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance with an order of 4.99 EUR that was paid with pi_1."""
    async with client(etcd.endpoint, valkey.url) as http:
        http.headers.update(OPERATOR)
        await http.put("/stock", json={"stock": 9, "price": 499, "currency": "EUR"})
        order = (await http.post("/holds", json={"buyer": "ann"})).json()["id"]
        paid = {"payment_ref": "pi_1", "amount": 499, "currency": "EUR"}
        assert (await http.post(f"/holds/{order}/confirm", json=paid)).json()["outcome"] == "confirmed"
        yield http


async def compare(http: httpx.AsyncClient, body: str | bytes, **query: Any) -> dict[str, Any]:
    answer = await http.post(reconcile.PATH, content=body, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_what_agrees_and_what_differs(http: httpx.AsyncClient) -> None:
    """Each difference has its cause, its amounts and its orders; sums are by currency."""
    found = await compare(http, HEAD + "pi_1,charge,4.99,EUR\n")
    sums = {"charged": 499, "refunded": 0, "paid": 499, "given_back": 0, "owed": 0, "kept": 499}
    assert found == {"lines": 1, "count": 0, "causes": {}, "differences": [], "totals": {"EUR": sums}}
    found = await compare(http, HEAD + "pi_1,charge,3.99,EUR\npi_2,charge,1.00,EUR\n")
    assert (found["count"], found["causes"]) == (2, {"amount": 1, "no_order": 1})
    other, none = found["differences"]
    assert (other["there"], other["here"], len(other["orders"])) == (399, 499, 1)
    assert other["orders"][0].count("~") == 1  # without the secret
    assert none["said"] == "payment pi_2: 1.00 EUR were paid, and no order has it"
    assert (await compare(http, HEAD, since="2020-01-01T00:00:00Z"))["causes"] == {"no_payment": 1}
    assert (await compare(http, HEAD, since="2100-01-01T00:00:00+08:00"))["causes"] == {}  # the order is older


async def test_the_list_may_be_json_lines(http: httpx.AsyncClient) -> None:
    """As the command reads them: amounts in the minor unit."""
    line = '{"payment_ref": "pi_1", "kind": "charge", "amount": 499, "currency": "EUR"}'
    assert (await compare(http, line, format="jsonl"))["count"] == 0


@pytest.mark.parametrize(
    ("body", "query", "field"),
    [
        ("a,b\n", {}, "body"),
        (HEAD + "pi_1,charge,4.999,EUR\n", {}, "body"),
        (b"\xff\xfe" + HEAD.encode(), {}, "body"),
        ("{", {"format": "jsonl"}, "body"),
        (HEAD, {"since": "yesterday"}, "since"),
        ("", {"stripe": "true"}, "stripe"),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, body: str | bytes, query: dict[str, str], field: str
) -> None:
    """The field, and in a list the line."""
    answer = await http.post(reconcile.PATH, content=body, params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


async def test_large_lists_are_read(http: httpx.AsyncClient) -> None:
    """A list is larger than what any other request may send; there is an end to it all the same."""
    lines = "".join(f"pi_{number},charge,4.99,EUR\n" for number in range(1, 5001))
    assert len(lines) > 65_536
    found = await compare(http, HEAD + lines)
    assert (found["lines"], found["count"]) == (5000, 4999)
    too_much = b"x" * (reconcile.BODY_MAX_BYTES + 1)
    assert (await http.post(reconcile.PATH, content=too_much)).status_code == 413
    assert (await http.put("/stock", content=too_much[:100_000])).status_code == 413


@pytest.mark.parametrize(("as_", "line"), [("csv", "fee,-0.30,eur\n"), ("jsonl", "\n")])
async def test_buyers_have_turns_between_lines_without_a_payment(as_: Any, line: str) -> None:
    """A list of nothing but fees, or of empty lines, holds nobody up."""
    turns, read = 0, False

    async def take_turns() -> None:
        nonlocal turns
        while not read:
            turns += 1
            await asyncio.sleep(0)

    buyers = asyncio.create_task(take_turns())
    body = ("reporting_category,gross,currency\n" * (as_ == "csv") + line * 10_000).encode()
    assert [one async for one in reconcile._of_body(body, as_)] == []
    read = True
    await buyers
    assert turns >= 50


async def test_only_operators_compare(http: httpx.AsyncClient) -> None:
    """Neither a stranger nor the shop sees a payment; a large body of theirs is not read."""
    del http.headers["Authorization"]
    assert (await http.post(reconcile.PATH, content=HEAD)).status_code == 401
    assert (await http.post(reconcile.PATH, content=b"x" * 1_000_000)).status_code == 401
    page = await http.get("/control/reconcile")
    assert (page.status_code, page.headers["location"][:14]) == (303, "/control/login")

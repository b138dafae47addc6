"""Parts of orders and of payments, over HTTP and by the command: some units, an amount, and the provider's list."""

import json
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness.shop import client
from tests.harness.waiting import eventually_async
from tests.integration.test_orders import OPERATOR, env, find, pay, seckill

__all__ = ["env"]


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    answer = await http.post(path, json=body, headers={"Idempotency-Key": key} if key else {})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(params=["valkey", pytest.param("mariadb", marks=pytest.mark.slow)])
async def http(request: pytest.FixtureRequest, etcd: EtcdMember) -> Any:
    """An instance with 9 units at 499 cents, on both stores."""
    store: Valkey | MariaDB = request.getfixturevalue(request.param)
    async with client(etcd.endpoint, store.url) as http:
        http.headers.update(OPERATOR)
        terms = {"price": 499, "currency": "EUR"}
        sale = {"stock": 9, "new_sale": True, "forget_orders": "all", **terms}
        await eventually_async(lambda: http.put("/stock", json=sale), until=lambda answer: answer.is_success)
        yield http


async def hold(http: httpx.AsyncClient, buyer: str, quantity: int) -> str:
    """Hold units, however long a busy machine takes for it."""
    wish, key = {"buyer": buyer, "quantity": quantity}, {"Idempotency-Key": buyer}
    ask = lambda: http.post("/holds", json=wish, headers=key)  # noqa: E731 - it is asked again
    answer = await eventually_async(ask, until=lambda answer: answer.is_success)
    return str(answer.json()["id"])


async def test_some_units_and_parts(http: httpx.AsyncClient) -> None:
    """Twice with one key is once, without a key it is refused by name; units and money are where they belong."""
    order = await hold(http, "ann", quantity=4)
    assert (await http.post(f"/holds/{order}/cancel", json={"units": 1})).json()["errors"][0]["field"] == "units"
    for _ in range(2):
        told = await ask(http, f"/holds/{order}/cancel", {"units": 1}, "less")
        assert (told["outcome"], told["quantity"], told["to_pay"]) == ("partly_cancelled", 3, 3 * 499)
    assert await pay(http, order, "p1", 3 * 499) == "confirmed"
    part = {"restock": True, "units": 1}
    refused = await http.post(f"/orders/{order}/refund", json=part)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    for _ in range(2):
        assert (await ask(http, f"/orders/{order}/refund", part, "one"))["outcome"] == "partly_refunded"
    for key, outcome in (("a", "partly_refunded"), ("a", "partly_refunded"), ("b", "refunded"), ("b", "refunded")):
        wish = {"restock": False, "payment_ref": "p1", "amount": 499}
        assert (await ask(http, f"/orders/{order}/refund", wish, key))["outcome"] == outcome
    (seen,) = await find(http)
    assert (seen["state"], seen["quantity"], seen["given_back"]) == ("refunded", 2, 3 * 499)
    stock = (await http.get("/stock", headers={"Accept": "application/json"})).json()
    assert (stock["stock"], stock["lucky"]) == (7, 2)  # the two that were refunded at last are gone


async def test_a_part_is_cancelled_once_for_good(http: httpx.AsyncClient) -> None:
    """The order itself remembers the key: by another door, which looks at nothing else, it is the same cancellation."""
    order, less = await hold(http, "ann", quantity=5), {"units": 1}
    for one in ("holds", "orders"):
        assert (await ask(http, f"/{one}/{order}/cancel", less, "a"))["outcome"] == "partly_cancelled"
    for one in ("orders", "holds"):
        told = await ask(http, f"/{one}/{order}/cancel", less, "b")
        assert told["outcome"] == "partly_cancelled"
    assert (told["quantity"], told["replayed"]) == (3, True)
    told = await ask(http, f"/holds/{order}/cancel", less, "c")
    assert (told["quantity"], told["replayed"]) == (2, False)


async def test_an_answer_says_who_gives_back(etcd: EtcdMember, valkey: Valkey) -> None:
    """With a cashier it does so by itself; what is noted as given back is nobody's to give."""
    cashier = {"refunds": "http://127.0.0.1:1/refunds", "webhook_secret": "whsec_" + 32 * "x"}
    async with client(etcd.endpoint, valkey.url, **cashier) as http:
        http.headers.update(OPERATOR)
        await http.put("/stock", json={"stock": 9, "price": 499, "currency": "EUR"})
        order = await hold(http, "ann", quantity=2)
        await pay(http, order, "p1", 2 * 499)
        part = {"restock": False, "amount": 100}
        assert (await ask(http, f"/orders/{order}/refund", part, "noted"))["gives_back"] is None
        told = await ask(http, f"/orders/{order}/refund", part | {"later": True}, "later")
        assert (told["owed"], told["given_back"], told["gives_back"]) == (100, 100, "cashier")


async def test_the_commands(etcd: EtcdMember, valkey: Valkey, env: dict[str, str], tmp_path: Any) -> None:
    """Some units are cancelled and refunded by the command; the provider's list agrees, and then it does not."""
    async with client(etcd.endpoint, valkey.url) as http:
        http.headers.update(OPERATOR)
        await http.put("/stock", json={"stock": 9, "price": 499, "currency": "EUR"})
        order = await hold(http, "ann", quantity=3)
        told = await seckill("orders", "cancel", order, "--units", "1", "--yes", env=env)
        assert "partly_cancelled" in told.stdout, told.stderr
        await pay(http, order, "p1", 2 * 499)
        for wish, asked in (
            ((), "Was 9.98 EUR of payment p1 given back for default~"),
            (("--units", "1"), "Was 4.99 EUR of payment p1 given back for 1 of default~"),
            (("--amount", "1.00EUR", "--later"), "Is 1.00EUR of payment p1 to be given back for default~"),
        ):
            assert asked in (await seckill("orders", "refund", order, "--restock", *wish, env=env)).stderr
        more = ("--units", "1", "--restock", "--yes", "--json")
        told = await seckill("orders", "refund", order, *more, env=env)
        assert json.loads(told.stdout)["given_back"] == 499, told.stderr
        told = await seckill("orders", "refund", order, "--amount", "1.00USD", "--yes", env=env)
        assert "the payment is in EUR" in told.stderr
        assert (await seckill("orders", "retry", order, env=env)).returncode == 1
        told = await seckill("orders", "export", env=env)
        assert "paid 9.98 EUR, given back 4.99 EUR, owed 0.00 EUR" in told.stderr
        listed = tmp_path / "payments.csv"
        listed.write_text("payment_ref,kind,amount,currency\np1,charge,9.98,EUR\np1,refund,4.99,EUR\n")
        told = await seckill("payments", "reconcile", str(listed), env=env)
        assert (told.returncode, "Each payment is where it should be" in told.stdout) == (0, True), told.stdout
        listed.write_text("payment_ref,kind,amount,currency\np1,charge,9.98,EUR\np2,charge,1.00,EUR\n")
        told = await seckill("payments", "reconcile", str(listed), "--json", env=env)
        causes = {one["payment_ref"]: one["cause"] for one in json.loads(told.stdout)["differences"]}
        assert (told.returncode, causes) == (1, {"p1": "given_back_here", "p2": "no_order"})
        listed.write_text("a,b\n1,2\n")
        told = await seckill("payments", "reconcile", str(listed), env=env)
        assert (told.returncode, "no column 'payment_ref'" in told.stderr) == (2, True)

"""Operators find orders, see their life, cancel, refund, export, and remove a buyer's name."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from subprocess import CompletedProcess
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
import redis

from app.stock import LAYOUT
from lab.servers import EtcdMember, Valkey
from tests.harness import command
from tests.harness.shop import TOKEN, client, lock_url

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """An instance with 9 units at 499 cents."""
    async with client(etcd.endpoint, valkey.url) as http:
        http.headers.update(OPERATOR)
        terms = {"price": 499, "currency": "EUR"}
        await http.put("/stock", json={"stock": 9, "new_sale": True, "forget_orders": "all", **terms})
        yield http


@pytest.fixture
def env(etcd: EtcdMember, valkey: Valkey) -> dict[str, str]:
    return {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": valkey.url}


async def hold(http: httpx.AsyncClient, buyer: str, **wish: Any) -> str:
    answer = await http.post("/holds", json={"buyer": buyer, **wish})
    return str(answer.json()["id"])


async def buy(http: httpx.AsyncClient, wish: dict[str, Any], **more: Any) -> httpx.Response:
    """Buy at once, while the item has no price for a moment."""
    await http.put("/stock", json={"price": None})
    answer = await http.post("/stock/reduce", params=wish, **more)
    await http.put("/stock", json={"price": 499, "currency": "EUR"})
    return answer


async def pay(http: httpx.AsyncClient, order: str, ref: str, amount: int = 499) -> str:
    paid = {"payment_ref": ref, "amount": amount, "currency": "EUR"}
    return str((await http.post(f"/holds/{order}/confirm", json=paid)).json()["outcome"])


async def find(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get("/orders", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["orders"]
    return found


async def seckill(*arguments: str, env: dict[str, str]) -> CompletedProcess[str]:
    """Run the command beside this test's instance."""
    return await asyncio.to_thread(command.seckill, *arguments, env={"COLUMNS": "160", **env})


def number_of(order: str) -> str:
    return order.rpartition("~")[0]


async def test_an_order_is_found(http: httpx.AsyncClient) -> None:
    """By state, buyer, the shop's number, or its own with and without the secret; a wrong secret finds none."""
    press = {"Idempotency-Key": "press-1"}
    wish = {"buyer": "ann", "ref": "A-7", "quantity": 2}
    ann = (await http.post("/holds", json=wish, headers=press)).json()["id"]
    bob = await hold(http, "bob", ref="B-1")
    assert await pay(http, bob, "p1") == "confirmed"
    await buy(http, {"buyer": "cy"})
    cy = (await find(http))[2]["id"]
    assert [one["id"] for one in await find(http)] == [ann, bob, cy]
    assert [one["key"] for one in await find(http)] == ["press-1", None, None]  # as the client has said it
    assert '"key": "press-1"' in (await http.get("/orders/export?format=jsonl")).text
    for query, wanted in (
        ({"state": "sold"}, [cy]),
        ({"buyer": "ann"}, [ann]),
        ({"ref": "B-1"}, [bob]),
        ({"number": number_of(cy)}, [cy]),
        ({"number": number_of(bob), "buyer": "ann"}, []),
        ({"number": "nonsense"}, []),
    ):
        assert [one["id"] for one in await find(http, **query)] == wanted, query
    (seen,) = await find(http, ref="A-7")
    assert (seen["to_pay"], seen["currency"], seen["price"], seen["state"]) == (998, "EUR", 499, "held")
    assert seen["pay_by"] > seen["sold_at"]
    assert 0 <= (await http.get("/stock")).json()["goes_back_at"] - seen["pay_by"] < 600  # a grace later
    assert seen["token"] > 0
    assert seen["request_id"]
    assert (await http.get("/orders", params={"state": "odd"})).status_code == 422
    assert (await http.get("/orders/export", headers={"Authorization": "none"})).status_code == 401


async def test_newest_first(http: httpx.AsyncClient) -> None:
    """Over all items, page by page, also with orders that come meanwhile; of very many it is item by item."""
    await http.put("/stock?sku=abc", json={"stock": 9})
    for n in range(5):
        await buy(http, {"buyer": f"b{n}", "sku": ("default", "abc")[n % 2]})
    page = (await http.get("/orders", params={"newest": True, "limit": 2})).json()
    await buy(http, {"buyer": "late"})
    rest = await find(http, newest=True, after=page["next"])
    assert [one["buyer"] for one in page["orders"] + rest] == ["b4", "b3", "b2", "b1", "b0"]
    gone = await http.get("/orders", params={"newest": True, "after": "newest default~1-0"})
    assert (gone.status_code, gone.json()["errors"][0]["field"]) == (422, "after")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.sale.find.LOOK_MAX", 4)
        assert [one["sku"] for one in await find(http, newest=True)] == ["abc"] * 2 + ["default"] * 4


async def test_the_export(http: httpx.AsyncClient) -> None:
    """CSV that no spreadsheet computes, and JSON Lines; filtered as the list is, and without secrets."""
    names = ("=1+1", "+ann", "-bob", "@cy", 'déjà, "vu"')
    for name in names:
        await hold(http, name, ref="R")
    text = await http.get("/orders/export", params={"format": "csv"})
    assert text.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert 'filename="orders.csv"' in text.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(text.content.decode("utf-8-sig"))))
    assert [one["buyer"] for one in rows] == ["'=1+1", "'+ann", "'-bob", "'@cy", names[4]]
    lines = (await http.get("/orders/export", params={"format": "jsonl"})).text.splitlines()
    assert [json.loads(line)["buyer"] for line in lines] == list(names)
    orders = await find(http)
    assert [one["order"] for one in rows] == [number_of(one["id"]) for one in orders]
    assert not any(one["id"].rpartition("~")[2] in text.text for one in orders)
    assert len((await http.get("/orders/export", params={"buyer": "+ann"})).text.splitlines()) == 2


async def test_the_commands(http: httpx.AsyncClient, env: dict[str, str], tmp_path: Any) -> None:
    """`seckill orders` finds, shows, cancels and refunds, and asks before it changes anything."""

    async def run(*arguments: str) -> CompletedProcess[str]:
        return await seckill("orders", *arguments, env=env)

    ann, bob = await hold(http, "ann", ref="A-7"), await hold(http, "bob")
    await pay(http, ann, "p1")
    assert "A-7" in (await run("list", "--state", "confirmed")).stdout
    for query in (("--ref", "A-7"), ("--buyer", "ann"), ("--number", ann), ("--number", number_of(ann))):
        done = await run("find", *query, "--json")
        assert [one["order"] for one in json.loads(done.stdout)] == [number_of(ann)], done.stderr
    assert (await run("find", "--buyer", "nobody")).returncode == 1
    assert "confirmed" in (await run("show", number_of(ann))).stdout
    assert "there is no order" in (await run("show", "1-1")).stderr
    env["SECKILL_REFUNDS"] = "stripe://sk_live_1"
    done = await run("refund", number_of(ann), "--restock")
    assert "with --later the cashier gives it back" in done.stderr
    assert (done.returncode, "Was 4.99 EUR of payment p1 given back for" in done.stderr) == (1, True), done.stderr
    assert (await run("refund", number_of(ann), "--yes")).returncode == 2
    done = await run("refund", number_of(ann), "--restock", "--yes", "--by", "olga")
    assert (done.returncode, "refunded" in done.stdout) == (0, True), done.stderr
    shown = json.loads((await run("show", ann, "--json")).stdout)
    assert [step["kind"] for step in shown["steps"]] == ["held", "confirmed", "refunded"]
    assert shown["steps"][-1]["facts"]["by"] == "olga"
    assert (await run("cancel", number_of(bob), "--yes")).returncode == 0
    assert (await run("refund", number_of(bob), "--restock", "--yes")).returncode == 1
    one, other, cy = [await hold(http, buyer, ref=ref) for buyer, ref in (("a", "R-9"), ("b", "R-9"), ("c", "R-10"))]
    done = await run("cancel", "--ref", "R-9", "--yes")
    assert (done.returncode, "2 orders have --ref 'R-9'" in done.stderr) == (2, True)
    assert all(f"{number_of(order)} (held" in done.stderr for order in (one, other))
    assert "there is no order with --ref 'R-8'" in (await run("cancel", "--ref", "R-8", "--yes")).stderr
    assert "--ref" in (await run("cancel", number_of(cy), "--ref", "R-10", "--yes")).stderr
    done = await run("cancel", "--ref", "R-10", "--yes")
    assert (done.returncode, number_of(cy) in done.stdout) == (0, True), done.stderr
    assert json.loads((await run("show", "--ref", "R-10", "--json")).stdout)["state"] == "cancelled"
    log = (await seckill("log", "--json", "--limit", "3", env=env)).stdout
    assert [(one["what"], one["after"]["order"]) for one in json.loads(log)] == [
        ("cancel", number_of(cy)),
        ("cancel", number_of(bob)),
        ("refund", number_of(ann)),
    ]
    shown = " ".join((await seckill("log", env=env)).stdout.replace("│", " ").split())
    assert "olga refund" in shown
    assert "given back none -> 4.99 EUR" in shown
    file = tmp_path / "all.jsonl"
    assert (await run("export", "--format", "jsonl", "--out", str(file))).returncode == 0
    assert len(file.read_text().splitlines()) == 5
    assert (await run("export", "--state", "refunded")).stdout.count("\n") == 2


def everything(port: int) -> str:
    """All keys and values of a store."""
    found: list[Any] = []
    with redis.Redis(port=port, decode_responses=True) as store:
        for key in store.scan_iter(count=1000):
            read: Any = {
                "string": store.get,
                "hash": store.hgetall,
                "stream": store.xrange,
                "zset": lambda key: store.zrange(key, 0, -1),
            }[store.type(key)]
            found.append((key, read(key)))
    return json.dumps(found, ensure_ascii=False)


async def test_a_name_is_erased_while_a_sale_goes_on(
    http: httpx.AsyncClient, env: dict[str, str], valkey: Valkey
) -> None:
    """The name is nowhere any more, orders and numbers are as they were, and nobody's purchase is lost."""
    name = 'Änne "the/buyer" \\ 1'
    held = await hold(http, name, ref="R-1", quantity=2)
    await buy(http, {"buyer": name}, headers={"Idempotency-Key": "k-1"})
    await buy(http, {"buyer": name, "quantity": 100}, headers={"Idempotency-Key": "k-2"})
    paid = (await http.post("/holds", json={"buyer": name}, headers={"Idempotency-Key": "k-3"})).json()["id"]
    await pay(http, paid, "p1")
    await http.put("/stock", json={"stock": 900})
    before = await find(http)
    sold, stop = 0, asyncio.Event()

    async def go_on() -> None:
        nonlocal sold
        while not stop.is_set():
            answer = await http.post("/stock/reduce", params={"buyer": f"b{sold}"})
            sold += answer.headers["X-Seckill-Outcome"] == "sold"

    assert "nne" in everything(valkey.port)
    selling = asyncio.create_task(go_on())
    done = await seckill("buyers", "erase", name, "--yes", "--by", "olga", "--json", env=env)
    stop.set()
    await selling
    assert json.loads(done.stdout) == {"default": 4}, done.stderr
    left = everything(valkey.port)
    assert "nne" not in left
    assert "the/buyer" not in left
    assert ":orders-copy" not in left
    after = await find(http, limit=1000)
    assert [one["id"] for one in after[:3]] == [one["id"] for one in before]
    assert [(one["buyer"], one["state"]) for one in after[:3]] == [
        ("erased", "held"),
        ("erased", "sold"),
        ("erased", "confirmed"),
    ]
    assert len(after) == 3 + sold
    check = await seckill("check", env=env)
    assert (check.returncode, "consistent" in check.stdout) == (0, True), check.stdout
    log = (await http.get("/log")).json()[0]
    assert (log["by"], log["what"], log["after"]) == ("olga", "erase a buyer", {"erased": 4})
    assert await pay(http, held, "p2", 998) == "confirmed"
    assert json.loads((await seckill("buyers", "erase", name, "--yes", "--json", env=env)).stdout) == {}


MANY = 100_000


WRITE_MANY = """
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local entry, secret, buyer = "1700000000000-" .. number, string.format("%032x", number), "b" .. number
  local fields = {"quantity", "1", "buyer", buyer, "key", "", "secret", secret, "instance", "i", "token", "1",
    "batch", "x", "epoch", "0"}
  if number % 4 == 0 then
    for _, one in ipairs({"kind", "held", "units", "-1 1 0", "facts", ""}) do fields[#fields + 1] = one end
    redis.call("HSET", "seckill:{default}:records", entry, '{"secret":"' .. secret .. '","state":"held","quantity":1,'
      .. '"buyer":"' .. buyer .. '","ref":"R' .. number .. '","pay_by_ms":4102444800000,"due_ms":4102444800000}')
  end
  redis.call("XADD", "seckill:{default}:orders", entry, unpack(fields))
  redis.call("HSET", "seckill:{default}:buyers", buyer, "1")
end
"""


@pytest.fixture
def many(valkey: Valkey) -> None:
    """The default item with 100,000 orders, written as the scripts write them; a quarter of them held."""
    with redis.Redis(port=valkey.port) as store:
        store.flushall()
        for first in range(1, MANY, 10_000):
            store.eval(WRITE_MANY, 0, first, first + 9_999)
        store.mset({"stock": 0, "lucky": MANY * 3 // 4})
        initial = {"initial": MANY, "held": MANY // 4, "generation": 1, "layout": LAYOUT}
        store.hset("seckill:{default}:fence", mapping={**initial, "last": f"1700000000000-{MANY}"})


@pytest.mark.exhaustive
@pytest.mark.usefixtures("many")
async def test_one_among_very_many(etcd: EtcdMember, valkey: Valkey, env: dict[str, str], tmp_path: Any) -> None:
    """An order of 100,000 is found by number, buyer and ref; all are exported, in pages; one buyer is erased."""
    last = MANY - 4
    number = f"default~1700000000000-{last}"
    async with client(etcd.endpoint, valkey.url) as http:
        http.headers.update(OPERATOR)
        assert [one["buyer"] for one in await find(http, number=number)] == [f"b{last}"]
        for query in ({"buyer": f"b{last}"}, {"ref": f"R{last}"}):
            found, after, requests = list[dict[str, Any]](), None, 0
            while True:
                page = (await http.get("/orders", params=query | ({"after": after} if after else {}))).json()
                assert page["looked"] <= 5000
                found, after, requests = found + page["orders"], page["next"], requests + 1
                if after is None:
                    break
            assert [number_of(one["id"]) for one in found] == [number]
            assert requests <= MANY // 5000 + 1
    file = tmp_path / "all.csv"
    done = await seckill("orders", "export", "--out", str(file), env=env)
    assert (done.returncode, "100,000 orders" in done.stderr) == (0, True), done.stderr
    with file.open(newline="") as text:
        assert sum(1 for _ in csv.DictReader(text)) == MANY
    assert file.stat().st_mode & 0o777 == 0o600
    done = await seckill("buyers", "erase", f"b{last}", "--yes", "--json", env=env)
    assert json.loads(done.stdout) == {"default": 1}, done.stderr
    with redis.Redis(port=valkey.port, decode_responses=True) as store:
        assert store.xlen("seckill:{default}:orders") == MANY
        assert not store.hexists("seckill:{default}:buyers", f"b{last}")


async def test_all_items_where_none_is_named(http: httpx.AsyncClient, env: dict[str, str], tmp_path: Any) -> None:
    """Owed money is found in whichever item; pages go on over items, also over those that have no orders."""
    mark = str(tmp_path.name)
    skus = [f"{mark}-{number}" for number in range(5)]
    for sku in skus:
        await http.put("/stock", params={"sku": sku}, json={"stock": 9, "price": 499, "currency": "EUR"})
    held = {sku: [await hold(http, f"{sku}-{n}", sku=sku) for n in range(3)] for sku in skus[1::2]}
    await http.post(f"/holds/{held[skus[3]][1]}/cancel")
    assert await pay(http, held[skus[3]][1], "p-owed") == "refund_due"
    (owed,) = [one["id"] for one in await find(http, state="attention") if one["sku"].startswith(mark)]
    assert owed == held[skus[3]][1]
    for limit in (1, 2, 3, 1000):
        found, after = list[str](), None
        while True:
            query = {"limit": limit} | ({"after": after} if after else {})
            page = (await http.get("/orders", params=query)).json()
            assert len(page["orders"]) <= limit
            found += [one["id"] for one in page["orders"] if one["sku"].startswith(mark)]
            if (after := page["next"]) is None:
                break
        assert found == held[skus[1]] + held[skus[3]], limit
    listed = json.loads((await seckill("orders", "list", "--state", "attention", "--json", env=env)).stdout)
    assert number_of(owed) in [one["order"] for one in listed]
    for text in (await http.get("/orders/export")).text, (await seckill("orders", "export", env=env)).stdout:
        assert text.count("\n" + mark) == 6
    row = (await seckill("orders", "list", "--sku", skus[3], env={"COLUMNS": "200"} | env)).stdout
    assert "4.99 EUR" in row


async def test_a_payment_in_another_currency(http: httpx.AsyncClient, env: dict[str, str]) -> None:
    """Its amount is shown as it was paid, also once it is owed; a file has a row of its own for it."""
    held = await hold(http, "ann")
    paid = {"payment_ref": "p1", "amount": 5000, "currency": "JPY"}
    assert (await http.post(f"/holds/{held}/confirm", json=paid)).json()["outcome"] == "amount_mismatch"
    await http.post(f"/holds/{held}/cancel")
    await http.post(f"/holds/{held}/confirm", json=paid | {"payment_ref": "p2"})
    shown = (await seckill("orders", "show", number_of(held), env=env | {"COLUMNS": "80"})).stdout
    for said in ("payment p1: 5000 JPY, wrong", "payment p2: 5000 JPY, late", ": 5000 JPY, due, because of refund_due"):
        assert said in shown
    assert shown.count("JPY: paid 10000, given back 0, owed 10000, kept 10000") == 1
    assert shown.count("expected 4.99 EUR") == 1
    await http.post(f"/orders/{held}/refund", json={"restock": False, "payment_ref": "p2"})
    log = " ".join((await seckill("log", "--limit", "1", env=env | {"COLUMNS": "200"})).stdout.split())
    assert "given back in JPY none -> 5000 JPY, owed in JPY 10000 JPY -> 5000 JPY" in log
    file = (await http.get("/orders/export")).content.decode("utf-8-sig")
    own, other = csv.DictReader(io.StringIO(file))
    assert (own["price"], own["to_pay"], own["currency"], own["paid"]) == ("4.99", "4.99", "EUR", "0.00")
    assert (other["order"], other["currency"], other["owed"], other["state"]) == (own["order"], "JPY", "5000", "")
    (line,) = (await http.get("/orders/export", params={"format": "jsonl"})).text.splitlines()
    assert (json.loads(line)["price"], json.loads(line)["other_currencies"][0]["owed"]) == (499, 5_000)


async def test_an_item_that_cant_be_read_hides_no_other(
    http: httpx.AsyncClient, env: dict[str, str], valkey: Valkey, tmp_path: Any
) -> None:
    """It is named; a file, which must not look as if it had all, is not written."""
    held = await hold(http, "ann")
    await http.post(f"/holds/{held}/cancel")
    assert await pay(http, held, "p-owed") == "refund_due"
    valkey.ask("SET", "seckill:{0bad}:stock", "5")
    valkey.ask("SET", "seckill:{0bad}:orders", "not ours")
    try:
        page = (await http.get("/orders", params={"state": "attention"})).json()
        assert ([one["id"] for one in page["orders"] if one["id"] == held], page["unread"]) == ([held], ["0bad"])
        listed = await seckill("orders", "list", env=env)
        assert number_of(held) in listed.stdout
        assert "the orders of 0bad can't be read" in listed.stdout + listed.stderr
        assert (await http.get("/orders", params={"sku": "0bad"})).status_code == 503
        export = await http.get("/orders/export")
        assert (export.status_code, "0bad" in export.json()["detail"]) == (503, True)
        file = tmp_path / "all.csv"
        assert (await seckill("orders", "export", "--out", str(file), env=env)).returncode == 2
        assert not file.exists()
    finally:
        valkey.ask("DEL", "seckill:{0bad}:stock", "seckill:{0bad}:orders")


@pytest.mark.parametrize("name", ["phnoe", "no item"])
async def test_an_item_that_is_misspelt(http: httpx.AsyncClient, env: dict[str, str], name: str) -> None:
    """It is an error, and not an item without orders."""
    status = 404 if name == "phnoe" else 422
    for path in ("/orders", "/orders/export"):
        assert (await http.get(path, params={"sku": name})).status_code == status
    for words in ("list", "export", "find --buyer ann", "replay --since 0", "replay --dead"):
        done = await seckill("orders", *words.split(), "--sku", name, env=env)
        assert (done.returncode, name in done.stderr) == (2, True), (words, done)
    assert (await http.get("/orders", params={"after": f"phnoe~1-1~{32 * '0'}"})).status_code == 422


async def test_the_report(http: httpx.AsyncClient, env: dict[str, str]) -> None:
    """Parcels, conversion and money, by item and day: the same in HTTP and for the command, and the export's totals."""
    ann, bob, cy = [await hold(http, buyer, quantity=2) for buyer in ("ann", "bob", "cy")]
    await http.put("/stock?sku=pen", json={"stock": 5})
    await http.post("/stock/reduce?sku=pen&quantity=3")
    for order, ref in ((ann, "p1"), (bob, "p2"), (ann, "p3")):
        await pay(http, order, ref, 998)
    await http.post(f"/orders/{number_of(bob)}/refund", json={"restock": True})
    await http.post(f"/orders/{number_of(cy)}/cancel")
    await hold(http, "dan")
    found = (await http.get("/report")).json()
    total, (default, pen) = found["total"], found["items"]
    assert (default["sku"], pen["sku"]) == ("default", "pen")
    assert (default["to_ship"], pen["to_ship"], total["to_ship"]) == (2, 3, 5)
    assert default["orders"] == {
        "sold": 0,
        "waiting": 0,
        "held": 1,
        "confirmed": 1,
        "expired": 0,
        "cancelled": 1,
        "refunded": 1,
    }
    assert (total["paid_orders"], total["unpaid_orders"], total["conversion"], total["attention"]) == (2, 1, 0.6667, 1)
    assert total["money"] == {"EUR": {"paid": 2994, "given_back": 998, "owed": 998, "kept": 1996, "disputed": 0}}
    assert pen["money"] == {}
    (day,) = found["days"]
    assert day["day"] == datetime.fromtimestamp(found["at"], UTC).date().isoformat()
    assert {name: day[name] for name in total} == total
    done = await seckill("report", "--format", "json", env=env)
    assert json.loads(done.stdout) | {"at": found["at"]} == found
    exported = (await seckill("orders", "export", env=env)).stderr
    assert "paid 29.94 EUR, given back 9.98 EUR, owed 9.98 EUR, kept 19.96 EUR" in exported
    rows = list(csv.DictReader(io.StringIO((await seckill("report", "--format", "csv", env=env)).stdout)))
    assert [(row["item"], row["day"], row["to_ship"], row["paid"]) for row in rows] == [
        ("default", day["day"], "2", "29.94"),
        ("pen", day["day"], "3", "0"),
    ]
    shown = " ".join((await seckill("report", env=env)).stdout.split())
    assert "default 2 2 1 67 EUR 29.94 9.98 9.98 19.96" in shown
    assert "all 5 2 1 67 EUR 29.94 9.98 9.98 19.96" in shown
    assert "Orders that need attention: 1." in shown
    assert [one["sku"] for one in (await http.get("/report?sku=pen")).json()["items"]] == ["pen"]
    assert (await http.get("/report?sku=pne")).status_code == 404
    assert (await http.get("/report?since=2026-11-11")).status_code == 422
    assert "--since" in (await seckill("report", "--since", "2026-11-11", env=env)).stderr
    for zone in ("Europe", "Mars/Base", "../etc/passwd", ""):
        wrong = await http.get("/report", params={"zone": zone})
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "zone"), zone
    assert "--zone" in (await seckill("report", "--zone", "CEST", env=env)).stderr
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):  # it is never the same day there
        there = datetime.fromtimestamp(found["at"], ZoneInfo(zone)).date().isoformat()
        (of_http,) = (await http.get("/report", params={"zone": zone})).json()["days"]
        done = await seckill("report", "--format", "json", "--zone", zone, env=env)
        assert {of_http["day"], *(one["day"] for one in json.loads(done.stdout)["days"])} == {there}
    later = (await http.get("/report", params={"since": "2999-01-01T00:00:00+08:00"})).json()
    assert (later["items"], later["days"], later["total"]["conversion"]) == ([], [], None)
    assert (await http.get("/report", headers={"Authorization": ""})).status_code == 401


async def test_a_narrow_terminal(http: httpx.AsyncClient, env: dict[str, str]) -> None:
    """At 80 columns an order's number is whole, so that it can be copied; what has no room is left out, and named."""
    ann = await hold(http, "a-buyer-with-a-long-name", ref="A-long-number-of-the-shop", quantity=2)
    await pay(http, ann, "a-payment-with-a-long-name", 998)
    number, narrow = number_of(ann), {"COLUMNS": "80"} | env
    for wish in (("list",), ("find", "--buyer", "a-buyer-with-a-long-name"), ("show", number)):
        shown = (await seckill("orders", *wish, env=narrow)).stdout
        assert f" {number} " in shown
        assert " confirmed " in shown
        assert "Not shown here: ref, to pay" in shown
        assert max(map(len, shown.splitlines())) <= 80
    wide = (await seckill("orders", "list", env={"COLUMNS": "200"} | env)).stdout
    assert "A-long-number-of-the-shop" in wide
    assert "Not shown here" not in wide
    await http.post(f"/orders/{number}/refund", json={"restock": True})
    (line,) = [line for line in (await seckill("log", env=narrow)).stdout.splitlines() if " refund " in line]
    assert "+00:00 " in line  # the time is whole


async def test_one_text_finds_an_order(http: httpx.AsyncClient, env: dict[str, str]) -> None:
    """The service finds out what it is: a number, id, payment, buyer or the shop's number; of one item, or of all."""
    await http.put("/stock?sku=pen", json={"stock": 9, "price": 100, "currency": "EUR"})
    ann, bob = await hold(http, "ann", ref="R-1"), await hold(http, "Bob 555-0199", ref="R-2", sku="pen")
    assert await pay(http, ann, "pi_A1") == "confirmed"
    for text in (ann, ann.split("~")[1], "PI_a", " R-1 "):
        assert [one["id"] for one in await find(http, q=text)] == [ann], text
    assert [one["id"] for one in await find(http, q="R-", sku="pen", state="held")] == [bob]
    assert len(await find(http, q=" ")) == 2
    secret = bob.rpartition("~")[2]  # of which the shop's page gives the buyer the head
    done = await seckill("orders", "find", f" {secret[:4]}-{secret[4:8]}-{secret[8:12]} ", env=env)
    assert number_of(bob) in done.stdout
    assert number_of(ann) not in done.stdout
    assert (await seckill("orders", "find", "nothing-like-that", env=env)).returncode == 1
    file = (await http.get("/orders/export", params={"q": "0199"})).text
    assert "pi_A1" not in file
    assert "R-2" in file


async def test_since_when_an_order_stands(http: httpx.AsyncClient) -> None:
    """The time of its payment, or of its refund; only if it is asked for."""
    orders = [await hold(http, buyer) for buyer in ("ann", "bob", "cy")]
    await pay(http, orders[1], "pi_1")
    await pay(http, orders[2], "pi_2")
    await http.post(f"/orders/{orders[2]}/refund", json={"restock": False})
    found = await find(http, since=True)
    lives = [(await http.get(f"/orders/{order}/history")).json()["steps"] for order in orders]
    assert [one["since"] for one in found] == [steps[-1]["at"] for steps in lives]
    assert [steps[-1]["kind"] for steps in lives] == ["held", "confirmed", "refunded"]
    assert {one["since"] for one in await find(http)} == {None}
    (paid,) = await find(http, since=True, state="confirmed")
    assert await pay(http, paid["id"], "p-too-many") == "duplicate_payment"
    await http.post(f"/orders/{paid['id']}/refund", json={"restock": False, "payment_ref": "p-too-many"})
    (still,) = await find(http, since=True, state="confirmed")
    assert (still["given_back"] > 0, still["since"]) == (True, paid["since"])
    await http.post(f"/orders/{paid['id']}/refund", json={"restock": False})
    (ended,) = await find(http, since=True, state="refunded", number=paid["id"])
    assert ended["since"] > paid["since"]

"""HTTP: the articles' contract, problem documents that name the field, the operator's token, health and metrics."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families

from app.embedded import EtcdMember, Valkey
from app.embedded.process import free_port
from app.locks import EtcdBackend
from app.main import create_app
from app.sale import Shop
from tests.harness.shop import TOKEN, client, settings
from tests.harness.waiting import WITHIN_S, eventually_async

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
AS_JSON = {"Accept": "application/json"}

Scenario = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture
def play(etcd: EtcdMember, valkey: Valkey) -> Callable[..., None]:
    """Runs a scenario against the service with 5 units in stock."""

    def run(scenario: Scenario, **others: Any) -> None:
        async def main() -> None:
            async with client(etcd.endpoint, valkey.url, **others) as http:
                answer = await http.put("/stock", json={"stock": 5}, headers=OPERATOR)
                assert answer.status_code == 200
                await scenario(http)

        asyncio.run(main())

    return run


def is_problem(answer: httpx.Response, status: int, *, field: str | None = None) -> dict[str, Any]:
    """Checks that it is a problem document of that status which names that field."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["type"].startswith("urn:seckill:")
    assert body["title"]
    assert body["detail"]
    if field is not None:
        assert [error["field"] for error in body["errors"]] == [field]
        assert body["errors"][0]["message"]
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1
    assert "Traceback" not in answer.text
    return body


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_articles_answer(play: Callable[..., None], method: str) -> None:
    """GET and POST answer the text with the port, sold or sold out; what became of it is in a header."""

    async def scenario(http: httpx.AsyncClient) -> None:
        for number in range(7):
            answer = await http.request(method, "/stock/reduce")
            assert answer.status_code == 200
            assert answer.text == "8080 reduce stock end!"
            assert answer.headers["x-seckill-outcome"] == ("sold" if number < 5 else "sold_out")
            assert ("x-seckill-order" in answer.headers) == (number < 5)

    play(scenario)


def test_json_for_who_asks_for_it(play: Callable[..., None]) -> None:
    """With Accept: application/json the body tells the outcome, and the order can be looked up."""

    async def scenario(http: httpx.AsyncClient) -> None:
        answer = await http.post("/stock/reduce", params={"quantity": 2, "buyer": "Ann Lee"}, headers=AS_JSON)
        body = answer.json()
        assert body == {
            "outcome": "sold",
            "quantity": 2,
            "order": answer.headers["x-seckill-order"],
            "replayed": False,
            "instance": "test",
        }
        order = (await http.get(f"/orders/{body['order']}")).json()
        assert order.pop("sold_at") > 0
        assert order == {"id": body["order"], "sku": "default", "quantity": 2, "buyer": "Ann Lee"}
        too_many = (await http.post("/stock/reduce", params={"quantity": 4}, headers=AS_JSON)).json()
        assert too_many == {"outcome": "sold_out", "quantity": 4, "replayed": False, "instance": "test"}
        level = (await http.get("/stock")).json()
        del level["audit"]  # whether somebody has looked yet
        assert abs(level.pop("now") - time.time()) < WITHIN_S
        hours = {"starts_at": None, "ends_at": None}
        assert level == {"sku": "default", "stock": 3, "lucky": 2, "initial": 5} | hours

    play(scenario)


def test_the_same_key_gets_the_same_answer(play: Callable[..., None]) -> None:
    """A repeated Idempotency-Key is answered as before and buys nothing; with other parameters it is an error."""

    async def scenario(http: httpx.AsyncClient) -> None:
        headers = AS_JSON | {"Idempotency-Key": "press-1"}
        first = (await http.post("/stock/reduce", headers=headers)).json()
        again = (await http.post("/stock/reduce", headers=headers)).json()
        assert again == first | {"replayed": True}
        is_problem(await http.post("/stock/reduce?quantity=2", headers=headers), 422, field="Idempotency-Key")
        assert (await http.get("/stock")).json()["lucky"] == 1

    play(scenario)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("quantity=0", "quantity"),
        ("quantity=-1", "quantity"),
        ("quantity=101", "quantity"),
        ("quantity=99999999999999999999999999", "quantity"),
        ("quantity=" + "9" * 5000, "quantity"),
        ("quantity=two", "quantity"),
        ("quantity=1.5", "quantity"),
        ("quantity=", "quantity"),
        ("sku=", "sku"),
        ("sku=a%20b", "sku"),
        ("sku=../x", "sku"),
        ("sku=" + "x" * 65, "sku"),
        ("sku=%00", "sku"),
        ("sku=ok%0a", "sku"),
        ("buyer=", "buyer"),
        ("buyer=" + "x" * 101, "buyer"),
        ("buyer=%00", "buyer"),
        ("buyer=a%0a", "buyer"),
        ("buyer=%0aa", "buyer"),
    ],
)
def test_bad_input_names_the_field(play: Callable[..., None], query: str, field: str) -> None:
    """What is not valid gets 422 with the name of the field, and sells nothing."""

    async def scenario(http: httpx.AsyncClient) -> None:
        for method in ("GET", "POST"):
            is_problem(await http.request(method, f"/stock/reduce?{query}"), 422, field=field)
        assert (await http.get("/stock")).json()["lucky"] == 0

    play(scenario)


@pytest.mark.parametrize("key", ["", "x" * 101, "a b", "a\tb"])
def test_an_odd_key_is_refused(play: Callable[..., None], key: str) -> None:
    """An idempotency key is 1 to 100 visible characters."""

    async def scenario(http: httpx.AsyncClient) -> None:
        is_problem(await http.post("/stock/reduce", headers={"Idempotency-Key": key}), 422, field="idempotency-key")

    play(scenario)


@pytest.mark.parametrize("path", ["/stock/reduce?sku=nope", "/stock?sku=nope"])
def test_an_unknown_item_is_404(play: Callable[..., None], path: str) -> None:
    """An item that doesn't exist is 404, and `sku` is named."""

    async def scenario(http: httpx.AsyncClient) -> None:
        assert "'nope'" in is_problem(await http.get(path), 404, field="sku")["detail"]

    play(scenario)


def test_wrong_paths_and_methods_are_problems_too(play: Callable[..., None]) -> None:
    """404 and 405 have the same form; 405 says what is allowed."""

    async def scenario(http: httpx.AsyncClient) -> None:
        is_problem(await http.get("/nowhere"), 404)
        is_problem(await http.get("/orders/default~1-0~" + "0" * 32), 404)
        answer = await http.delete("/stock/reduce")
        is_problem(answer, 405)
        assert answer.headers["allow"] == "GET, POST"
        assert (await http.delete("/stock")).headers["allow"] == "GET, PUT"
        assert (await http.delete("/orders/x")).headers["allow"] == "GET"

    play(scenario)


def test_the_limit_per_buyer_needs_a_buyer(play: Callable[..., None]) -> None:
    """With a limit in force a purchase without a buyer is 400 and names it; beyond the limit is an outcome."""

    async def scenario(http: httpx.AsyncClient) -> None:
        is_problem(await http.post("/stock/reduce"), 400, field="buyer")
        told = [(await http.post("/stock/reduce?buyer=ann")).headers["x-seckill-outcome"] for _ in range(2)]
        assert told == ["sold", "limit_reached"]

    play(scenario, limit_per_buyer=1)


@pytest.mark.parametrize(("value", "status"), [(None, 404), ("many", 503), ("-3", 503)])
def test_a_stock_that_is_missing_or_no_number(
    play: Callable[..., None], valkey: Valkey, value: str | None, status: int
) -> None:
    """A stock that isn't there, or isn't a number, is a problem that says which key, and nothing is written."""

    async def scenario(http: httpx.AsyncClient) -> None:
        async with redis.asyncio.Redis.from_url(valkey.url, decode_responses=True) as store:
            await (store.delete("stock") if value is None else store.set("stock", value))
            for path in ("/stock/reduce", "/stock"):
                assert "'stock'" in is_problem(await http.get(path), status)["detail"]
            assert await store.get("stock") == value
            assert await store.get("lucky") == "0"

    play(scenario)


# -- the operator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("GET", "/orders"), ("GET", "/locks"), ("PUT", "/stock")])
def test_the_operators_endpoints_need_the_token(etcd: EtcdMember, valkey: Valkey, method: str, path: str) -> None:
    """Without a configured token they are off (403); without the right one they are closed (401)."""

    async def main() -> None:
        async with client(etcd.endpoint, valkey.url) as http:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": "Bearer é".encode("latin-1")},
            ):
                answer = await http.request(method, path, headers=headers, json={"stock": 1})
                is_problem(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
        async with client(etcd.endpoint, valkey.url, admin_token=None) as http:
            is_problem(await http.request(method, path, headers=OPERATOR, json={"stock": 1}), 403)
            is_problem(await http.request(method, path, headers={"Authorization": "Bearer "}, json={"stock": 1}), 403)

    asyncio.run(main())


def test_the_operator_sees_orders_in_pages(play: Callable[..., None]) -> None:
    """Orders with key, instance and token, page by page."""

    async def scenario(http: httpx.AsyncClient) -> None:
        for number in range(3):
            await http.post(f"/stock/reduce?buyer=b{number}", headers={"Idempotency-Key": f"k{number}"})
        page = (await http.get("/orders?limit=2", headers=OPERATOR)).json()
        assert [(order["buyer"], order["key"], order["instance"]) for order in page["orders"]] == [
            ("b0", "k0", "test"),
            ("b1", "k1", "test"),
        ]
        rest = (await http.get("/orders", params={"limit": 2, "after": page["next"]}, headers=OPERATOR)).json()
        assert [order["buyer"] for order in rest["orders"]] == ["b2"]
        assert rest["next"] is None
        assert rest["orders"][0]["token"] > page["orders"][0]["token"]
        for after in ("zzz", page["next"].replace("default", "phone")):
            is_problem(await http.get("/orders", params={"after": after}, headers=OPERATOR), 422, field="after")

    play(scenario)


def test_the_operator_sees_the_queue(play: Callable[..., None], etcd: EtcdMember) -> None:
    """The holder first, then the waiters."""

    async def scenario(http: httpx.AsyncClient) -> None:
        assert (await http.get("/locks", headers=OPERATOR)).json() == []
        backend = EtcdBackend([etcd.endpoint], ttl_s=5, instance="another")
        async with backend.lock("/seckill/lock/all").on_loop():
            buying = asyncio.create_task(http.post("/stock/reduce"))

            async def queued() -> bool:
                return len((await http.get("/locks", headers=OPERATOR)).json()) == 2

            await eventually_async(queued)
            queue = (await http.get("/locks", headers=OPERATOR)).json()
            assert [(one["instance"], one["holds"]) for one in queue] == [("another", True), ("test", False)]
            assert queue[0]["token"] < queue[1]["token"]
        assert (await buying).headers["x-seckill-outcome"] == "sold"
        backend.close()

    play(scenario)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stock": -1}, "stock"),
        ({"stock": 10**13}, "stock"),
        ({"stock": "x"}, "stock"),
        ({"stock": 1.5}, "stock"),
        ({}, "stock"),
        ({"stock": True}, "stock"),
        ({"stock": 1, "sku": "phone"}, "sku"),
        ({"stock": 1, "newsale": True}, "newsale"),
        ({"stock": 1, "new_sale": "perhaps"}, "new_sale"),
    ],
)
def test_a_bad_stock_names_the_field(play: Callable[..., None], body: dict[str, Any], field: str) -> None:
    """Setting the stock to what it can't be changes nothing."""

    async def scenario(http: httpx.AsyncClient) -> None:
        is_problem(await http.put("/stock", json=body, headers=OPERATOR), 422, field=field)
        for body_text in (b"{", b"", b"[" * 60_000, b'{"stock":' + b"9" * 5000 + b"}", b"\xff"):
            answer = await http.put(
                "/stock", content=body_text, headers=OPERATOR | {"Content-Type": "application/json"}
            )
            is_problem(answer, 422)
            assert answer.json()["errors"]
        is_problem(await http.put("/stock?sku=a%20b", json={"stock": 1}, headers=OPERATOR), 422, field="sku")
        assert (await http.get("/stock")).json()["stock"] == 5

    play(scenario)


def test_setting_the_stock(play: Callable[..., None]) -> None:
    """A restock keeps what was sold; a new sale begins at nothing sold; a new item appears."""

    async def scenario(http: httpx.AsyncClient) -> None:
        await http.post("/stock/reduce")
        restocked = (await http.put("/stock", json={"stock": 9}, headers=OPERATOR)).json()
        assert restocked == {"sku": "default", "stock": 9, "lucky": 1, "initial": 10}
        anew = (await http.put("/stock", json={"stock": 3, "new_sale": True}, headers=OPERATOR)).json()
        assert anew == {"sku": "default", "stock": 3, "lucky": 0, "initial": 3}
        await http.put("/stock", params={"sku": "phone"}, json={"stock": 1}, headers=OPERATOR)
        assert (await http.get("/stock/reduce?sku=phone")).headers["x-seckill-outcome"] == "sold"

    play(scenario)


# -- health ----------------------------------------------------------------------------------------------------------


def test_health_and_metrics(play: Callable[..., None]) -> None:
    """Alive, ready with each check by name, and the counters that were promised."""

    async def scenario(http: httpx.AsyncClient) -> None:
        for _ in range(7):
            await http.post("/stock/reduce")
        await http.post("/stock/reduce?sku=nope")
        assert (await http.get("/healthz")).text == "ok"
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json() == {
            "ready": True,
            "instance": "test",
            "way": "lock",
            "checks": {"etcd": "ok", "store": "ok", "renewal": "ok", "stock": "ok"},
        }
        families = {family.name: family for family in text_string_to_metric_families((await http.get("/metrics")).text)}
        purchases = {
            s.labels["outcome"]: s.value for s in families["seckill_purchases"].samples if s.name.endswith("_total")
        }
        assert {name: count for name, count in purchases.items() if count} == {
            "sold": 5,
            "sold_out": 2,
            "UnknownItem": 1,
        }
        assert [s.value for s in families["seckill_batch_purchases"].samples if s.name.endswith("_sum")] == [5]
        assert families["seckill_queue_buyers"].samples[0].labels == {"sku": "default"}
        about = families["seckill_info"].samples[0].labels
        assert about.pop("version")
        assert about == {"name": "test", "lock": "etcd", "store": "redis", "guard": "fence"}
        assert families["seckill_renewing"].samples[0].value == 1
        assert {"process_cpu_seconds", "process_open_fds", "python_gc_collections"} <= set(families)
        for name in ("lock_wait_seconds", "lock_hold_seconds", "lease_renewals", "grants_lost", "fenced_writes"):
            assert f"seckill_{name}" in families

    play(scenario)


def test_without_its_servers_it_starts_and_says_what_is_missing() -> None:
    """Alive, not ready, each missing part named, a purchase refused with 503; and no address of ours in it."""
    nowhere = free_port()

    async def main() -> None:
        others = {"etcd_timeout_ms": 300, "redis_timeout_ms": 300, "purchase_timeout_ms": 500}
        async with client(f"http://127.0.0.1:{nowhere}", f"redis://:hunter2@127.0.0.1:{nowhere}/0", **others) as http:
            assert (await http.get("/healthz")).status_code == 200
            ready = await http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["checks"] == {
                "etcd": "not available",
                "store": "not available",
                "renewal": "ok",
                "stock": "not available",
            }
            assert ready.headers["retry-after"]
            for answer in (await http.get("/stock/reduce"), await http.get("/stock")):
                is_problem(answer, 503)
                assert str(nowhere) not in answer.text
            assert str(nowhere) not in ready.text

    asyncio.run(main())


def test_an_error_of_ours_shows_no_stack(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours is a 500 problem without details."""

    async def broken(*_: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(Shop, "level", broken)

    async def scenario(http: httpx.AsyncClient) -> None:
        answer = await http.get("/stock")
        is_problem(answer, 500)
        assert "42" not in answer.text
        assert "RuntimeError" not in answer.text

    play(scenario)


# -- the description -------------------------------------------------------------------------------------------------


def test_openapi_describes_what_happens(etcd: EtcdMember, valkey: Valkey) -> None:
    """Every reference resolves; buying is described with its statuses, headers and both forms of the answer."""
    app = create_app(settings(etcd.endpoint, valkey.url))
    document = json.loads(json.dumps(app.openapi()))
    schemas = document["components"]["schemas"]

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if "$ref" in node else []
            return own + sum((references(value) for value in node.values()), [])
        return sum((references(value) for value in node), []) if isinstance(node, list) else []

    for reference in references(document):
        assert reference.rpartition("/")[2] in schemas, reference
    for method in ("get", "post"):
        described = document["paths"]["/stock/reduce"][method]["responses"]
        assert set(described) == {"200", "400", "404", "422", "503"} | ({"413"} if method == "post" else set())
        assert set(described["200"]["content"]) == {"text/plain", "application/json"}
        assert set(described["200"]["headers"]) == {"X-Seckill-Outcome", "X-Seckill-Order"}
        assert "Retry-After" in described["503"]["headers"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if int(status) >= 400 and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], (path, method, status)

"""The HTTP service keeps the articles' contract, names wrong fields, guards the operator's part, and has metrics."""

import asyncio
import json
import logging
import time
from functools import partial
from typing import Any

import httpx
import pytest
import redis
import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families

from app import main
from app.main import create_app
from app.operator import Readiness
from app.sale import Shop
from app.stock.redis.keys import Keys
from app.web.problem_types import URN, types
from fencelock.etcd.backend import EtcdBackend
from lab.servers import EtcdMember, Valkey
from lab.servers.process import free_port
from tests.harness.shop import client, settings
from tests.harness.waiting import WITHIN_S, eventually_async
from tests.integration.conftest import OPERATOR, OpenClient

AS_JSON = {"Accept": "application/json"}
NO_TERMS: dict[str, Any] = {
    **dict.fromkeys(("starts_at", "ends_at", "price", "currency", "limit_group")),
    **{"limit_per_buyer": 0, "paused": "", "paused_texts": {}},
}


def is_problem(answer: httpx.Response, status: int, *, field: str | None = None) -> dict[str, Any]:
    """Check that an answer is a problem document with that status and field; return the document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert types()[body["type"].removeprefix(URN)].status == status
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
async def test_the_articles_answer(open_client: OpenClient, method: str) -> None:
    """GET and POST return the text with the port, sold or sold out; a header has the outcome."""
    http = await open_client()
    for number in range(7):
        answer = await http.request(method, "/stock/reduce")
        assert answer.status_code == 200
        assert answer.text == "8080 reduce stock end!"
        assert answer.headers["x-seckill-outcome"] == ("sold" if number < 5 else "sold_out")
        assert ("x-seckill-order" in answer.headers) == (number < 5)


async def test_json_for_a_client_that_asks_for_it(open_client: OpenClient) -> None:
    """With Accept: application/json the body has the outcome, and the order can be looked up."""
    http = await open_client()
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
    own = {"id": body["order"], "sku": "default", "quantity": 2, "buyer": "Ann Lee", "state": "sold"}
    own["items"] = [{"sku": "default", "quantity": 2, "price": None}]
    assert {name: value for name, value in order.items() if value} == own
    too_many = (await http.post("/stock/reduce", params={"quantity": 4}, headers=AS_JSON)).json()
    assert too_many == {"outcome": "sold_out", "quantity": 4, "replayed": False, "instance": "test"}
    level = (await http.get("/stock")).json()
    del level["audit"]  # it depends on whether the auditor has looked yet
    assert abs(level.pop("now") - time.time()) < WITHIN_S
    assert level.pop("sale")
    own = {"sku": "default", "stock": 3, "held": 0, "lucky": 2, "initial": 5, "goes_back_at": None, "waiting": 0}
    assert level == own | NO_TERMS


@pytest.mark.parametrize("path", ["/stock/reduce?sku=nope", "/stock?sku=nope"])
async def test_an_unknown_item_is_404(open_client: OpenClient, path: str) -> None:
    """An item that doesn't exist gets 404 with the field `sku`."""
    http = await open_client()
    assert "'nope'" in is_problem(await http.get(path), 404, field="sku")["detail"]


async def test_wrong_paths_and_methods_are_problems_too(open_client: OpenClient) -> None:
    """404 and 405 are problem documents, too; 405 lists the allowed methods."""
    http = await open_client()
    is_problem(await http.get("/nowhere"), 404)
    page = await http.get("/nowhere", headers={"Accept": "text/html,*/*;q=0.8"})  # a person's, who has mistyped it
    assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page" in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    is_problem(await http.get("/orders/default~1-0~" + "0" * 32, headers={"Accept": "text/html"}), 404)
    is_problem(await http.post("/nowhere", headers={"Accept": "text/html"}), 404)
    is_problem(await http.get("/orders/default~1-0~" + "0" * 32), 404)
    answer = await http.delete("/stock/reduce")
    is_problem(answer, 405)
    assert answer.headers["allow"] == "GET, POST"
    assert (await http.post("/stock")).headers["allow"] == "DELETE, GET, PUT"
    assert (await http.delete("/orders/x")).headers["allow"] == "GET"


async def test_the_limit_per_buyer_needs_a_buyer(open_client: OpenClient) -> None:
    """With a limit a purchase without a buyer gets 400 with that field; one beyond the limit gets an outcome."""
    http = await open_client(limit_per_buyer=1)
    is_problem(await http.post("/stock/reduce"), 400, field="buyer")
    told = [(await http.post("/stock/reduce?buyer=ann")).headers["x-seckill-outcome"] for _ in range(2)]
    assert told == ["sold", "limit_reached"]


@pytest.mark.parametrize(("value", "status"), [(None, 404), ("many", 503), ("-3", 503)])
async def test_a_stock_that_is_missing_or_no_number(
    open_client: OpenClient, valkey: Valkey, value: str | None, status: int
) -> None:
    """The problem names the key whose value is missing or not a number, and nothing is written."""
    http = await open_client()
    async with redis.asyncio.Redis.from_url(valkey.url, decode_responses=True) as store:
        await (store.delete("stock") if value is None else store.set("stock", value))
        for path in ("/stock/reduce", "/stock"):
            assert "'stock'" in is_problem(await http.get(path), status)["detail"]
        assert await store.get("stock") == value
        assert await store.get("lucky") == "0"


# -- the operator ----------------------------------------------------------------------------------------------------


async def test_the_operator_sees_the_queue(open_client: OpenClient, etcd: EtcdMember) -> None:
    """The holder comes first, then the waiters in their order."""
    http = await open_client()
    assert (await http.get("/locks", headers=OPERATOR)).json() == []
    backend = EtcdBackend([etcd.endpoint], ttl_s=5, instance="another")
    async with backend.aio.lock("/seckill/lock/all"):
        buying = asyncio.create_task(http.post("/stock/reduce"))
        look = partial(http.get, "/locks", headers=OPERATOR)
        queue = (await eventually_async(look, until=lambda answer: len(answer.json()) == 2)).json()
        assert [(one["instance"], one["holds"]) for one in queue] == [("another", True), ("test", False)]
        assert queue[0]["token"] < queue[1]["token"]
    assert (await buying).headers["x-seckill-outcome"] == "sold"
    backend.close()


async def test_a_bad_stock_names_the_field(open_client: OpenClient) -> None:
    """An impossible stock is refused with the name of the field, and changes nothing."""
    http = await open_client()
    bodies: list[tuple[dict[str, Any], str]] = [
        *(({"stock": stock}, "stock") for stock in (-1, 10**13, "x", 1.5, True)),
        ({}, "stock"),
        ({"stock": 1, "sku": "phone"}, "sku"),
        ({"stock": 1, "newsale": True}, "newsale"),
        ({"stock": 1, "new_sale": "perhaps"}, "new_sale"),
        ({"stock": 1, "forget_orders": 3}, "new_sale"),
        ({"paused": "x" * 201}, "paused"),
        ({"paused": "two\nlines"}, "paused"),
    ]
    for body, field in bodies:
        is_problem(await http.put("/stock", json=body, headers=OPERATOR), 422, field=field)
    for text in (b"{", b"", b"[" * 60_000, b'{"stock":' + b"9" * 5000 + b"}", b"\xff"):
        answer = await http.put("/stock", content=text, headers=OPERATOR | {"Content-Type": "application/json"})
        is_problem(answer, 422)
        assert answer.json()["errors"]
    is_problem(await http.put("/stock?sku=a%20b", json={"stock": 1}, headers=OPERATOR), 422, field="sku")
    assert (await http.get("/stock")).json()["stock"] == 5


# -- health ----------------------------------------------------------------------------------------------------------


async def test_health_and_metrics(open_client: OpenClient) -> None:
    """An instance is alive and ready, names each check, and has the documented counters."""
    http = await open_client()
    for _ in range(7):
        await http.post("/stock/reduce")
    await http.post("/stock/reduce?sku=nope")
    assert (await http.get("/healthz")).text == "ok"
    ready = await http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "ready": True,
        "instance": "test",
        "mode": "lock",
        "waits_for": [],
        "warnings": [],
        "checks": {"etcd": "ok", "store": "ok", "renewal": "ok", "stock": "ok"},
    }
    families = {family.name: family for family in text_string_to_metric_families((await http.get("/metrics")).text)}
    purchases = {
        s.labels["outcome"]: s.value for s in families["seckill_purchases"].samples if s.name.endswith("_total")
    }
    assert {name: count for name, count in purchases.items() if count} == {"sold": 5, "sold_out": 2, "UnknownItem": 1}
    assert [s.value for s in families["seckill_batch_purchases"].samples if s.name.endswith("_sum")] == [5]
    assert families["seckill_queue_buyers"].samples[0].labels == {"sku": "default"}
    about = families["seckill_info"].samples[0].labels
    assert about.pop("version")
    assert about == {"name": "test", "lock": "etcd", "store": "redis", "guard": "fence"}
    assert families["seckill_renewing"].samples[0].value == 1
    assert {"process_cpu_seconds", "process_open_fds", "python_gc_collections"} <= set(families)
    for name in ("lock_wait_seconds", "lock_hold_seconds", "lease_renewals", "grants_lost", "fenced_writes"):
        assert f"seckill_{name}" in families


async def test_what_can_not_be_promised_is_said(valkey: Valkey) -> None:
    """A lock without a record, and on the store's own server, is reported at the start and by /readyz."""
    said = []
    for lock in ("local://", f"redis://localhost:{valkey.port}/1"):
        async with client("", valkey.url, lock=lock) as http:
            ready = (await http.get("/readyz")).json()
        assert ready["ready"]
        said += ready["warnings"]
    kept, apart = said
    assert "keeps no record" in kept
    assert "on one server" in apart


async def test_without_its_servers_it_starts_and_says_what_is_missing() -> None:
    """Without servers an instance is alive but not ready, and answers a purchase with 503; no address is shown."""
    nowhere = free_port()
    others = {"lock_timeout_ms": 300, "store_timeout_ms": 300, "purchase_timeout_ms": 500}
    async with client(f"http://127.0.0.1:{nowhere}", f"redis://:hunter2@127.0.0.1:{nowhere}/0", **others) as http:
        assert (await http.get("/healthz")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"] == {
            "etcd": "not available",
            "store": "not available",
            "renewal": "ok",
            "stock": "ok",
        }
        assert ready.headers["retry-after"]
        for answer in (await http.get("/stock/reduce"), await http.get("/stock")):
            is_problem(answer, 503)
            assert str(nowhere) not in answer.text
        assert str(nowhere) not in ready.text


async def test_an_error_of_ours_shows_no_stack(open_client: OpenClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours gets a 500 problem without details."""

    async def broken(*_: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(Shop, "levels", broken)
    http = await open_client()
    answer = await http.get("/stock")
    is_problem(answer, 500)
    assert "42" not in answer.text
    assert "RuntimeError" not in answer.text


# -- the description -------------------------------------------------------------------------------------------------


def test_openapi_describes_what_happens(etcd: EtcdMember, valkey: Valkey) -> None:
    """Each reference resolves; a purchase's statuses, headers and both forms of its answer are documented."""
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
        assert set(described) == {"200", "400", "403", "404", "422", "429", "503"}
        assert set(described["200"]["content"]) == {"text/plain", "application/json"}
        assert set(described["200"]["headers"]) == {"X-Seckill-Outcome", "X-Seckill-Order", "X-Request-Id"}
        assert "Retry-After" in described["503"]["headers"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if int(status) >= 400 and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], (path, method, status)


async def test_an_item_that_can_not_be_sold_keeps_nobody_from_the_others(
    open_client: OpenClient, valkey: Valkey
) -> None:
    """Buyers of a blocked item are refused at once; /readyz, which is 200, has a warning, and the metrics a gauge."""
    http = await open_client(purchase_timeout_ms=60_000)
    await http.put("/stock?sku=phone", json={"stock": 5}, headers=OPERATOR)
    assert (await http.post("/stock/reduce?sku=phone")).headers["x-seckill-outcome"] == "sold"
    with redis.Redis.from_url(valkey.url) as raw:
        keys = Keys("phone").all
        raw.delete(*keys)
        raw.set(Keys("phone").stock, 5)
    began = time.monotonic()
    for _ in range(10):
        refused = await http.post("/stock/reduce?sku=phone")
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:seckill:item-blocked")
        assert refused.headers["retry-after"] == "5"
    assert time.monotonic() - began < 60  # of the minute for each
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["stock"]) == (200, "ok")
    assert ready.json()["warnings"] == ["phone can't be sold: Stock is being looked into"]
    assert (await http.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
    scraped = 'seckill_item_blocked{reason="StockBehind",sku="phone"} 1.0'
    assert scraped in (await http.get("/metrics")).text
    await http.put("/stock?sku=phone", json={"stock": 5, "new_sale": True}, headers=OPERATOR)
    await eventually_async(
        lambda: http.post("/stock/reduce?sku=phone"), until=lambda answer: answer.headers.get("x-seckill-outcome")
    )
    await eventually_async(lambda: http.get("/readyz"), until=lambda answer: answer.json()["warnings"] == [])


async def test_the_check_of_lock_and_store_outlives_an_unexpected_error(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its trace, and the next check finds what can be reached."""
    failed, ready = asyncio.Event(), Readiness.ready

    async def fails_once(readiness: Readiness, *args: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("nobody has thought of this")
        return await ready(readiness, *args)

    caplog.set_level(logging.INFO, "app.main")
    monkeypatch.setattr(Readiness, "ready", fails_once)
    monkeypatch.setattr(main, "_WATCH_S", 0.05)
    async with client(etcd.endpoint, valkey.url):
        await eventually_async(lambda: "checked: etcd ok, store ok" in caplog.text)
    assert "unexpected error in a check of lock and store" in caplog.text
    assert "RuntimeError: nobody has thought of this" in caplog.text

"""A shop pulls the events that the webhook delivers: page by page, or as a stream, from a cursor of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from app.orders import Hold
from app.outbox.pull import ITEMS_MAX, Pull, PullPlace, _parsed, _text
from app.wiring import open_sale
from lab.servers import EtcdMember, MariaDB, Valkey
from tests.contract.test_stores import MySqlSystem, RedisSystem
from tests.harness.receiver import receiver
from tests.harness.shop import TOKEN, ThreadedInstance, settings
from tests.harness.waiting import eventually_async

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
SHOP = {"Authorization": "Bearer the-shops-token"}
SETTINGS: dict[str, Any] = {"shop_token": "the-shops-token", "holds_from": "anybody", "audit_interval_s": 0}


@pytest.fixture(params=["valkey", pytest.param("mariadb", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    server: Valkey | MariaDB = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture(params=["valkey", pytest.param("mariadb", marks=pytest.mark.slow)])
def system(request: pytest.FixtureRequest) -> RedisSystem | MySqlSystem:
    server: Valkey | MariaDB = request.getfixturevalue(request.param)
    return RedisSystem(server) if isinstance(server, Valkey) else MySqlSystem(server, "fence")


@asynccontextmanager
async def running(
    etcd: EtcdMember, store: str, *, items: Sequence[str] = ("lamp", "zoo"), **others: Any
) -> AsyncIterator[httpx.AsyncClient]:
    with ThreadedInstance(etcd.endpoint, store, **SETTINGS, **others) as instance:
        # A connection each: one that lay idle for too long would be closed as it is used again.
        each = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=instance.url, trust_env=False, timeout=60, limits=each) as http:
            for sku in items:
                await put(http, sku)
            yield http


async def put(http: httpx.AsyncClient, sku: str, **wish: Any) -> None:
    body = {"stock": 1000, **wish}
    (await http.put("/stock", params={"sku": sku}, json=body, headers=OPERATOR)).raise_for_status()


async def hold(http: httpx.AsyncClient, buyer: str, sku: str = "lamp") -> str:
    answer = await http.post("/holds", json={"buyer": buyer, "sku": sku, "ref": f"ref of {buyer}"})
    assert answer.json()["outcome"] == "held"
    return str(answer.json()["id"])


async def pull(http: httpx.AsyncClient, after: str = "", **how: Any) -> dict[str, Any]:
    answer = await http.get("/events", params={"after": after, **how}, headers=SHOP)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def buyers(page: dict[str, Any]) -> list[str]:
    return [event["data"]["buyer"] for event in page["events"]]


async def test_a_shop_catches_up_by_itself(etcd: EtcdMember, store: str) -> None:
    """From nothing, page by page, each event once and in order per item; then from where it had come; a page again."""
    async with running(etcd, store) as http:
        ids = [await hold(http, f"b{number}", ("lamp", "zoo")[number % 2]) for number in range(10)]
        for one in ids:
            await http.post(f"/holds/{one}/cancel")
        pages, cursor = list[dict[str, Any]](), ""
        while not pages or pages[-1]["more"]:
            pages.append(await pull(http, cursor, limit=3))
            assert len(pages[-1]["events"]) <= 3
            cursor = pages[-1]["next"]
        events = [event for page in pages for event in page["events"]]
        assert len({event["id"] for event in events}) == len(events) == 20
        for one in ids:
            own = [event for event in events if event["data"]["order"] == one]
            assert [event["type"] for event in own] == ["order.held", "order.cancelled"]
            assert {event["data"]["ref"] for event in own} == {f"ref of {own[0]['data']['buyer']}"}
        assert await pull(http, cursor) == {"events": [], "next": cursor, "more": False, "unread": []}
        await hold(http, "later", "zoo")
        assert buyers(await pull(http, cursor)) == ["later"]
        assert await pull(http, pages[0]["next"], limit=3) == pages[1]
        zoo = await pull(http, sku="zoo")
        assert buyers(zoo) == [f"b{number}" for number in (1, 3, 5, 7, 9, 1, 3, 5, 7, 9)] + ["later"]
        assert not zoo["more"]


async def test_pulled_is_as_pushed(etcd: EtcdMember, valkey: Valkey) -> None:
    """The bodies and the ids are those of the webhook."""
    async with receiver() as shop_end, running(etcd, valkey.url, **shop_end.settings) as http:
        one = await hold(http, "ann")
        await http.post(f"/holds/{one}/confirm", json={"payment_ref": "p", "amount": 5}, headers=SHOP)
        await eventually_async(lambda: len(shop_end.got) == 2, "both events")
        pushed = [{"id": name} | event for name, event in zip(shop_end.ids, shop_end.got, strict=True)]
        assert (await pull(http))["events"] == pushed


async def test_a_cursor_outlives_sales(etcd: EtcdMember, store: str) -> None:
    """A new sale of an item begins at its first event; the others go on; an item that is gone is no error."""
    async with running(etcd, store) as http:
        await put(http, "gone")
        await hold(http, "ann", "lamp")
        await hold(http, "bob", "zoo")
        cursor = (await pull(http))["next"]
        await put(http, "lamp", new_sale=True, forget_orders=1)
        (await http.delete("/stock", params={"sku": "gone"}, headers=OPERATOR)).raise_for_status()
        await hold(http, "cyd", "lamp")
        await hold(http, "dan", "zoo")
        page = await pull(http, cursor)
        assert sorted(buyers(page)) == ["cyd", "dan"]
        assert buyers(await pull(http, page["next"])) == []
        of_lamps = await pull(http, page["next"], sku="lamp")  # its cursor names no other item
        assert buyers(await pull(http, of_lamps["next"])) == ["bob", "dan"]
        # Of a sale before which the store's clock was ahead: its entries were greater than those of today.
        ahead = _text({"lamp": PullPlace("1", "9999999999999"), "zoo": _parsed(page["next"])["zoo"]})
        assert buyers(await pull(http, ahead)) == ["cyd"]


async def test_a_cursor_that_is_none(etcd: EtcdMember, store: str) -> None:
    """What is odd about a request is named, and an item that is not there, too."""
    async with running(etcd, store) as http:
        await hold(http, "ann")
        cursor = (await pull(http))["next"]
        for odd in ("x", "é", cursor[:-4], cursor + "AAAA", "eJyrVkrLz1eyUlBKSixSqgUAJxkFHw"):
            answer = await http.get("/events", params={"after": odd}, headers=SHOP)
            assert answer.status_code == 422, odd
            assert [one["field"] for one in answer.json()["errors"]] == ["after"]
        answer = await http.get("/events", headers=SHOP | {"Last-Event-ID": "x", "Accept": "text/event-stream"})
        assert [one["field"] for one in answer.json()["errors"]] == ["last-event-id"]
        for limit in (0, 1001):
            assert (await http.get("/events", params={"limit": limit}, headers=SHOP)).status_code == 422
        assert (await http.get("/events", params={"sku": "none"}, headers=SHOP)).status_code == 404


async def test_too_many_items_for_a_cursor(etcd: EtcdMember, valkey: Valkey) -> None:
    """Then each item is asked for by name."""
    async with running(etcd, valkey.url) as http:
        for number in range(ITEMS_MAX):
            valkey.ask("SET", f"seckill:{{item-{number}}}:stock", "1")
        await hold(http, "ann")

        async def fields() -> list[str]:
            answer = await http.get("/events", headers=SHOP)
            return [one["field"] for one in answer.json().get("errors", ())]

        await eventually_async(fields, "refused", until=lambda found: found == ["sku"])
        assert buyers(await pull(http, sku="lamp")) == ["ann"]


async def test_a_cursor_that_is_ahead(etcd: EtcdMember, store: str) -> None:
    """The store is older than it was, and has not what the shop was told: it is not left to wait in silence."""
    async with running(etcd, store) as http:
        await hold(http, "ann")
        cursor = (await pull(http))["next"]
        sale, entry = _parsed(cursor)["lamp"]
        ms, dash, _ = entry.partition("-")
        ahead = _text({"lamp": PullPlace(sale, f"{int(ms) + 1_000_000_000}{dash}{'0' * len(dash)}")})
        streams = {"Accept": "text/event-stream"}
        for params in ({"after": ahead}, {"after": ahead, "sku": "lamp"}):
            for headers in (SHOP, SHOP | streams):
                answer = await http.get("/events", params=params, headers=headers)
                assert answer.status_code == 409
                assert answer.json()["type"] == "urn:seckill:cursor-ahead"
                assert "lamp" in answer.json()["detail"]
        assert (await pull(http, ahead, sku="zoo"))["events"] == []
        assert (await pull(http, cursor))["events"] == []


async def ahead(http: httpx.AsyncClient, after: str, sku: str) -> str:
    """Pull with a cursor that is refused for this item; return that with which to go on."""
    answer = await http.get("/events", params={"after": after}, headers=SHOP)
    assert (answer.status_code, answer.json().get("type")) == (409, "urn:seckill:cursor-ahead"), answer.text
    assert f"events of {sku} that" in answer.json()["detail"]
    return str(answer.json()["next"])


async def accept_loss(etcd: EtcdMember, store: str, sku: str) -> None:
    async with open_sale(settings(etcd.endpoint, store, audit_interval_s=0)) as sale:
        await sale.stock.accept_loss(sku)


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_store_that_came_back_older(
    etcd: EtcdMember, system: RedisSystem | MySqlSystem, accepted: bool
) -> None:
    """A cursor from after the backup is refused whatever was sold since, and whether or not the loss was accepted.

    The cursor that is given with the refusal, and one from before the backup, go on; other items go on as they were.
    """
    async with running(etcd, system.server.url) as http:
        await hold(http, "ann", "lamp")
        await hold(http, "zed", "zoo")
        earlier = (await pull(http))["next"]
        put_back = system.copy()
        await hold(http, "lost", "lamp")
        later = (await pull(http))["next"]
        put_back()
        await ahead(http, later, "lamp")
    if accepted:
        await accept_loss(etcd, system.server.url, "lamp")
    async with running(etcd, system.server.url, items=()) as http:
        await ahead(http, later, "lamp")
        await hold(http, "bob", "lamp")
        await hold(http, "dan", "zoo")
        fresh = await pull(http, await ahead(http, later, "lamp"))
        assert sorted(buyers(fresh)) == ["ann", "bob", "dan"]
        assert sorted(buyers(await pull(http, earlier))) == ["bob", "dan"]
        assert buyers(await pull(http, later, sku="zoo")) == ["dan"]
        await hold(http, "eve", "lamp")
        assert buyers(await pull(http, fresh["next"])) == ["eve"]
        await ahead(http, later, "lamp")
        await put(http, "lamp", new_sale=True, forget_orders="all")
        await hold(http, "fay", "lamp")
        assert sorted(buyers(await pull(http, later))) == ["dan", "fay"]


async def test_a_store_from_before_the_sale(etcd: EtcdMember, system: RedisSystem | MySqlSystem) -> None:
    """A store that has come back without a sale of which events were told is ahead of nobody, but behind the cursor."""
    async with running(etcd, system.server.url) as http:
        await hold(http, "ann", "lamp")
        put_back = system.copy()
        await put(http, "lamp", new_sale=True, forget_orders="all")
        await hold(http, "lost", "lamp")
        later = (await pull(http))["next"]
        put_back()
        await accept_loss(etcd, system.server.url, "lamp")
        assert buyers(await pull(http, await ahead(http, later, "lamp"))) == ["ann"]
        await put(http, "lamp", new_sale=True, forget_orders="all")
        await hold(http, "bob", "lamp")
        assert buyers(await pull(http, later)) == ["bob"]


async def test_a_loss_where_there_was_none(etcd: EtcdMember, store: str) -> None:
    """The operator's word that nothing more is expected has nobody told anything twice."""
    async with running(etcd, store) as http:
        await hold(http, "ann")
        cursor = (await pull(http))["next"]
        await accept_loss(etcd, store, "lamp")
        assert await pull(http, cursor) == {"events": [], "next": cursor, "more": False, "unread": []}
        await hold(http, "bob")
        assert buyers(await pull(http, cursor)) == ["bob"]


async def test_a_stream_of_more_and_more_items(etcd: EtcdMember, valkey: Valkey) -> None:
    """It goes on with the items that it has, and names those that are too many for it."""
    async with running(etcd, valkey.url) as http, stream(http) as messages:
        await hold(http, "ann")
        _, page = await anext(messages)
        assert buyers(page) == ["ann"]
        for number in range(ITEMS_MAX):
            valkey.ask("SET", f"seckill:{{item-{number}}}:stock", "1")
        names: list[str] = []
        while not names:
            await hold(http, "bob")
            _, page = await anext(messages)
            assert set(buyers(page)) == {"bob"}
            names = page["unread"]
        assert len(names) == 2
        assert all(name.startswith("item-") for name in names)


async def test_streams_share_their_looks(etcd: EtcdMember, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams look at the journals together, and only when something has come; a single pull has a look of its own."""
    async with open_sale(settings(etcd.endpoint, store, audit_interval_s=0), with_auditor=True) as sale:
        await sale.stock.set_stock("lamp", 5)
        looks, levels = 0, sale.store.levels

        async def counted(skus: Any) -> Any:
            nonlocal looks
            looks += 1
            return await levels(skus)

        monkeypatch.setattr(sale.store, "levels", counted)
        pull = Pull(sale.journals)
        await pull.read(["lamp"], "", limit=10, again=True)
        await eventually_async(lambda: sale.journals.is_current and sale.journals.levels, "they are followed")
        looks = 0
        pages = await asyncio.gather(*(pull.read(["lamp"], "", limit=10, again=True) for _ in range(20)))
        assert looks == 0
        await sale.shop.submit(Hold(buyer="ann", sku="lamp"))
        after = pages[0].next

        async def read() -> Any:
            return await pull.read(["lamp"], after, limit=10, again=True)

        await eventually_async(read, "the event", until=lambda found: len(found.messages) == 1)
        looks = 0
        assert len((await pull.read(["lamp"], after, limit=10)).messages) == 1
        assert looks == 2  # before the journal is read, and after it


async def test_a_stream(etcd: EtcdMember, store: str) -> None:
    """What is there, and then what comes; the id of a message is the cursor behind it, with which one goes on."""
    async with running(etcd, store) as http:
        await hold(http, "ann")
        async with stream(http) as messages:
            began, page = await anext(messages)
            assert buyers(page) == ["ann"]
            await hold(http, "bob", "zoo")
            last, page = await anext(messages)
            assert buyers(page) == ["bob"]
            assert last == page["next"]
        await hold(http, "cyd")
        async with stream(
            http, last, after=began
        ) as messages:  # as a client does that asks for its first address again
            _, page = await anext(messages)
            assert buyers(page) == ["cyd"]


@asynccontextmanager
async def stream(
    http: httpx.AsyncClient, last: str = "", after: str = ""
) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    headers = SHOP | {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    async with http.stream("GET", "/events", params={"after": after}, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        async def messages() -> AsyncIterator[tuple[str, dict[str, Any]]]:
            name = ""
            async for line in answer.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

        yield messages()


async def test_streams_end(etcd: EtcdMember, valkey: Valkey) -> None:
    """There is room for so many; the next one is told so; an instance that stops lets all go at once."""
    async with running(etcd, valkey.url) as http, contextlib.AsyncExitStack() as stack:
        await hold(http, "ann")
        each = httpx.AsyncClient(base_url=http.base_url, trust_env=False, timeout=60, limits=httpx.Limits())
        await stack.enter_async_context(each)
        open_ones = [await stack.enter_async_context(stream(each)) for _ in range(20)]
        await asyncio.gather(*(anext(one) for one in open_ones))
        answer = await http.get("/events", headers=SHOP | {"Accept": "text/event-stream"})
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:seckill:too-many-listeners"


# -- the control room --------------------------------------------------------------------------------------------------


async def test_an_operator_sees_what_did_not_leave(etcd: EtcdMember, valkey: Valkey) -> None:
    """Orders that are parked and dead letters, without their secrets; a press has them sent again; operators only."""
    refusing = True

    async def decide(event: dict[str, Any]) -> Response | None:
        odd = refusing and event["data"]["buyer"] == "odd" and event["type"] == "order.held"
        return Response(status_code=422) if odd else None

    async with receiver() as shop_end:
        shop_end.decide = decide
        given = shop_end.settings | {"webhook_give_up_s": 1, "webhook_retry_s": 0.5}
        async with running(etcd, valkey.url, **given) as http:
            odd = await hold(http, "odd")

            async def rows(sku: str = "lamp") -> list[dict[str, Any]]:
                answer = await http.get("/control/undelivered", params={"sku": sku}, headers=OPERATOR)
                assert answer.json()["receiver"]
                found: list[dict[str, Any]] = answer.json()["rows"]
                return found

            (parked,) = await eventually_async(rows, "parked", until=lambda found: found)
            assert parked["order"] == odd.rpartition("~")[0]
            assert parked["since"] <= parked["next"]
            (dead,) = await eventually_async(
                rows, "dead", until=lambda found: [one["state"] for one in found] == ["dead"]
            )
            assert (dead["order"], dead["next"]) == (parked["order"], None)
            assert dead["why"].startswith("answered 422")
            assert await rows("zoo") == []
            assert odd.rpartition("~")[2] not in json.dumps([parked, dead])
            refusing = False
            asked = await http.post("/control/replay", json={}, headers=OPERATOR)
            assert asked.json() == {"items": ["lamp"]}
            await eventually_async(lambda: shop_end.of(odd), "it arrives")
            await eventually_async(rows, "nothing is left", until=lambda found: found == [])
            moment = (await pull(http, sku="lamp"))["events"][0]["timestamp"]
            since = datetime.fromisoformat(moment).timestamp()
            asked = await http.post("/control/replay", params={"sku": "lamp"}, json={"since": since}, headers=OPERATOR)
            assert asked.json() == {"items": ["lamp"]}
            await eventually_async(lambda: len(shop_end.got) >= 2, "again")
            for wish in ({"since": -1}, {"since": "now"}, {"sinc": 1}):
                answer = await http.post("/control/replay", json=wish, headers=OPERATOR)
                assert answer.status_code == 422
            assert (await http.post("/control/replay", json={}, headers=SHOP)).status_code == 401
            assert (await http.get("/control/undelivered", headers=SHOP)).status_code == 401
            await http.post("/control/login", content=f"token={TOKEN}")
            assert (await http.get("/control/undelivered")).status_code == 200
            assert (await http.post("/control/replay", json={})).status_code == 403  # by the cookie alone

"""The control room's server logs operators in, shows all instances, and carries out commands."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.servers import etcdctl, gateway
from tests.harness.shop import TOKEN, Instance, client, shop
from tests.harness.waiting import eventually_async
from tests.integration.test_web import is_problem

BEARER = {"Authorization": f"Bearer {TOKEN}"}
CSRF = "X-Seckill-Csrf"
TTL_S = 2

OpenClients = Callable[..., Awaitable[list[httpx.AsyncClient]]]


@pytest.fixture
async def open_clients(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[OpenClients]:
    """Open instances `a`, `b`, ... of one sale with 100 units in stock; return a client of each."""
    async with AsyncExitStack() as stack:

        async def open_them(instances: int = 1, **others: Any) -> list[httpx.AsyncClient]:
            opened = [
                await stack.enter_async_context(
                    client(
                        etcd.endpoint,
                        valkey.url,
                        instance=name,
                        **{"lock_ttl_s": TTL_S, "extension": "lab.rehearsal", **others},
                    )
                )
                for name in "abc"[:instances]
            ]
            if others.get("admin_token", TOKEN):
                await restock(opened[0], 100)
                for http in opened:
                    await eventually_async(lambda http=http: sees(http, instances), "all see all")
            return opened

        yield open_them


async def restock(http: httpx.AsyncClient, stock: int, sku: str = "default") -> None:
    change = {"stock": stock, "new_sale": True, "forget_orders": "all"}
    (await http.put("/stock", params={"sku": sku}, json=change, headers=BEARER)).raise_for_status()


async def look(http: httpx.AsyncClient, sku: str = "default") -> dict[str, Any]:
    """Return the next picture: an earlier one is cached for up to a second."""
    asked_at = time.time()

    async def picture() -> dict[str, Any]:
        answer = await http.get("/control/picture", params={"sku": sku}, headers=BEARER)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    found: dict[str, Any] = await eventually_async(picture, "a new picture", until=lambda one: one["at"] >= asked_at)
    return found


async def sees(http: httpx.AsyncClient, instances: int) -> bool:
    return len((await look(http))["instances"]) == instances


async def events(http: httpx.AsyncClient, kind: str) -> list[dict[str, Any]]:
    return [one for one in (await look(http))["events"] if one["kind"] == kind]


async def lucky(http: httpx.AsyncClient) -> int:
    return int((await http.get("/stock")).json()["lucky"])


def of(picture: dict[str, Any], instance: str) -> dict[str, Any]:
    """Find an instance's part of a picture."""
    return next((one for one in picture["instances"] if one["instance"] == instance), {})


async def state(http: httpx.AsyncClient, instance: str) -> dict[str, Any]:
    return of(await look(http), instance)


async def command(http: httpx.AsyncClient, what: str, **wish: Any) -> dict[str, Any]:
    answer = await http.post(f"/control/{what}", json=wish, headers=BEARER)
    said: dict[str, Any] = answer.raise_for_status().json()
    return said


# -- who may do what --------------------------------------------------------------------------------------------------


async def enter(http: httpx.AsyncClient) -> str:
    """Log in with the token; return the session's CSRF token."""
    assert (await http.post("/control/login", data={"token": TOKEN})).headers["location"] == "/control"
    return str((await http.get("/control/session")).json()["csrf"])


async def test_a_forged_cookie(open_clients: OpenClients, etcd: EtcdMember, valkey: Valkey) -> None:
    """A cookie that was changed, or made with another token, is refused."""
    [http] = await open_clients()
    await enter(http)
    ((name, good),) = http.cookies.items()

    async def status(value: str) -> int:
        return (await http.get("/control/picture", headers={"Cookie": f"{name}={value}"})).status_code

    http.cookies.clear()
    assert await status(good) == 200
    text, moment, signature = good.rsplit(".", 2)
    for bad in ("", "x", f"{text}.{moment}", f"{text}x.{moment}.{signature}", f"{text}.{moment}.{signature[:-2]}"):
        assert await status(bad) == 401
    async with client(etcd.endpoint, valkey.url, admin_token="close-sesame") as other:
        await other.post("/control/login", data={"token": "close-sesame"})
        ((other_name, others),) = other.cookies.items()
    assert other_name != name  # so that two sales on one host don't log each other's operators out
    assert await status(others) == 401


def test_the_token_is_in_no_log(etcd: EtcdMember, valkey: Valkey) -> None:
    """A token in a link or a form, right or wrong, is not logged, even at level debug."""
    with (
        Instance(etcd.endpoint, valkey.url, log_level="debug", extension="lab.rehearsal") as instance,
        httpx.Client(base_url=instance.url) as http,
    ):
        for token in (TOKEN, "open-barley"):
            http.get("/control", params={"token": token})
            http.post("/control/login", data={"token": token})
            http.post("/control", params={"token": token})
            http.get("/control/nowhere", params={"token": token})
        http.get("/control/picture").raise_for_status()
        log = instance.last_lines(10_000)
        assert "open, lock: etcd" in log
        assert TOKEN not in log
        assert "open-barley" not in log
        assert next(iter(http.cookies.values())) not in log


# -- what is shown ----------------------------------------------------------------------------------------------------


async def test_all_instances_on_each_page(open_clients: OpenClients) -> None:
    """Each instance shows what all of them have sold, their grants, newest first, and what the lock is."""
    a, b = await open_clients(2)

    async def told_all(http: httpx.AsyncClient) -> bool:
        return sum(one["units"] for one in (await look(http))["instances"]) == 3

    for http in (a, b, a):
        assert (await http.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
    for http, name in ((a, "a"), (b, "b")):
        await eventually_async(lambda http=http: told_all(http), "both have told")
        picture = await look(http)
        assert picture["instance"] == name
        terms: dict[str, Any] = {"limit_per_buyer": 0, "starts_at": None, "ends_at": None, "paused": ""}
        terms |= {"paused_texts": {}, "price": None, "currency": None, "held": 0, "waiting": 0, "limit_group": None}
        assert picture["level"] == {"sku": "default", "stock": 97, "lucky": 3, "initial": 100} | terms
        assert picture["store_error"] is picture["lock_error"] is None
        assert not picture["missing"]
        assert picture["guarded"]
        assert picture["lock"] == {
            "name": "/seckill/lock/all",
            "system": "etcd",
            "keeps_apart": "all processes",
            "shows_waiters": True,
            "ttl_s": TTL_S,
        }
        assert {one["instance"]: one["units"] for one in picture["instances"]} == {"a": 2, "b": 1}
        assert [one["instance"] for one in picture["grants"]] == ["a", "b", "a"]
        tokens = [int(one["token"]) for one in picture["grants"]]
        assert tokens == sorted(tokens, reverse=True)
        assert all(one["units"] == one["purchases"] == 1 for one in picture["grants"])
        assert picture["grants"][0]["handed_over_ms"] >= 0
        assert picture["grants"][-1]["handed_over_ms"] is None  # no grant was before
        assert {one["token"] for one in picture["instances"]} == {None}


@asynccontextmanager
async def board(
    etcd: EtcdMember, valkey: Valkey
) -> AsyncIterator[Callable[[dict[str, str]], Awaitable[dict[str, str]]]]:
    """Yield a function that puts notices on the instances' board, and returns the current ones."""
    async with shop(etcd.endpoint, valkey.url) as opened:

        async def put(notices: dict[str, str]) -> dict[str, str]:
            return await opened.notices(notices)

        yield put


def report(instance: str, **others: Any) -> str:
    """Return a report of an instance that does not exist any more."""
    facts = {"instance": instance, "number": 1, "units": 5, "waiting": 0, "mode": "lock", "held": [], "grants": []}
    return json.dumps(facts | {"events": [], "pausing": False, "paused_s": 0.0} | others)


async def test_an_instance_that_falls_silent(
    open_clients: OpenClients, etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others show for how long an instance has been silent, send it no commands, and at last remove its report."""
    monkeypatch.setattr("app.dashboard.room.SILENT_S", 0.5)
    monkeypatch.setattr("app.dashboard.room._STALE_S", 2.5)
    [http] = await open_clients()
    async with board(etcd, valkey) as put:
        await put({"report/gone": report("gone")})
        await eventually_async(lambda: state(http, "gone"), "it is heard of")
        await eventually_async(lambda: state(http, "gone"), "it is silent", until=lambda seen: seen["silent_s"] > 0.6)
        assert (await state(http, "a"))["silent_s"] == 0
        assert (await command(http, "rush", buyers=5))["instances"] == ["a"]

        async def taken_down() -> bool:
            return "report/gone" not in await put({}) and not await state(http, "gone")

        await eventually_async(taken_down, "its report is taken down")
        assert "report/a" in await put({})


async def test_a_stopped_instance_takes_its_report_along(etcd: EtcdMember, valkey: Valkey) -> None:
    """A stopped instance disappears at once, and is not shown as silent."""
    async with board(etcd, valkey) as put:
        async with client(etcd.endpoint, valkey.url, instance="a", extension="lab.rehearsal") as http:
            await eventually_async(lambda: state(http, "a"))
            await eventually_async(lambda: put({}), "it reports", until=lambda seen: "report/a" in seen)
        assert await put({}) == {}


async def test_notices_of_another_version(open_clients: OpenClients, etcd: EtcdMember, valkey: Valkey) -> None:
    """A notice of an unknown form is skipped; the others are read and obeyed."""
    odd = ["", "{", "[]", "null", '{"instance": 5}', "x" * 100_000, json.dumps({"instance": "new", "number": "many"})]
    [http] = await open_clients()
    async with board(etcd, valkey) as put:
        await put(
            {f"{kind}/odd-{number}": text for kind in ("report", "command", "else") for number, text in enumerate(odd)}
        )
        await put({"report/newer": report("newer", more="than we know")})
        await eventually_async(lambda: state(http, "newer"), "what can be understood")
        assert {one["instance"] for one in (await look(http))["instances"]} == {"a", "newer"}
        await command(http, "rush", buyers=1)
        await eventually_async(lambda: lucky(http), "commands are obeyed")


# -- what is done -----------------------------------------------------------------------------------------------------


async def test_a_command_from_before_the_start_or_that_comes_late_is_not_obeyed(
    open_clients: OpenClients, etcd: EtcdMember, valkey: Valkey
) -> None:
    """A command that is old, was delayed for seconds, or came back with a store's backup is not obeyed."""

    def rush(buyers: int, age_s: float = 0) -> str:
        each = {"what": "rush", "sku": "default", "each": {"late": buyers}, "at": time.time() - age_s, "over_s": 0}
        return json.dumps(each)

    [http] = await open_clients()
    async with board(etcd, valkey) as put:
        await put({"command/before": rush(7)})
        async with client(etcd.endpoint, valkey.url, instance="late", extension="lab.rehearsal") as late:
            await eventually_async(lambda: state(http, "late"), "it is there")
            await put({"command/late": rush(7, age_s=5), "command/odd": rush(1).replace("1}", "Infinity}")})
            await put({"command/fresh": rush(3)})
            await eventually_async(lambda: events(late, "rush"), "it has obeyed")
            assert [one["facts"]["buyers"] for one in await events(late, "rush")] == [3]
            assert await lucky(http) == 3


async def test_what_a_stranger_calls_itself(open_clients: OpenClients, etcd: EtcdMember) -> None:
    """Any text that a stranger writes into the lock's queue is shown, and causes no error."""
    [http] = await open_clients()
    stranger = "/seckill/lock/all/stranger"
    for owner in ('{"instance":"\\ud800"}', "[" * 100_000, '{"instance":"' + "x" * 100_000 + '"}', "null"):
        key, value = (base64.b64encode(text.encode()).decode() for text in (stranger, owner))
        gateway(etcd, "kv/put", key=key, value=value)
        try:
            assert [one["key"] for one in (await look(http))["queue"]] == [stranger]
            assert (await http.get("/locks", headers=BEARER)).status_code == 200
            assert (await http.post("/control/pause", json={}, headers=BEARER)).status_code == 200
        finally:
            etcdctl(etcd.endpoint, "del", stranger)


async def test_what_was_before(open_clients: OpenClients) -> None:
    """A new viewer gets the last two minutes: the levels, the buyers that each instance has served, the grants."""
    a, _ = await open_clients(2)

    async def levels() -> list[tuple[int, int]]:
        history = (await a.get("/control/history", headers=BEARER)).json()
        return [(one["stock"], one["lucky"]) for one in history["samples"]]

    await eventually_async(levels, "before anybody has looked at a picture")
    assert (await a.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
    sold = (await look(a))["level"]
    assert sold["lucky"] == 1
    seen = await eventually_async(levels, "the sale", until=lambda seen: (sold["stock"], 1) in seen)
    assert seen.index((sold["stock"] + 1, 0)) < seen.index((sold["stock"], 1))
    history = (await a.get("/control/history", headers=BEARER)).json()
    assert history["samples"][-1]["served"] == {"a": 1, "b": 0}
    assert [(one["instance"], one["units"]) for one in history["grants"] if one["purchases"]] == [("a", 1)]
    other = (await a.get("/control/history", headers=BEARER, params={"sku": "other"})).json()
    assert other["samples"] == []


@pytest.mark.slow
async def test_all_instances_tell_what_was_before(open_clients: OpenClients, etcd: EtcdMember, valkey: Valkey) -> None:
    """A first look after a long time shows the grants of all instances, and not only the last dozen of each."""
    a, b = await open_clients(2)
    async with board(etcd, valkey) as put:

        async def of_b(what: str) -> Any:
            return json.loads((await put({}))["report/b"])[what]

        async def untold() -> bool:
            return not await of_b("grants")

        assert (await b.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
        await eventually_async(lambda: of_b("grants"), "it tells of that")
        await eventually_async(untold, "nobody looks any more")
        for _ in range(19):
            assert (await b.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
        await asyncio.sleep(3)  # all instances report grants that are younger than that

        async def told() -> list[str]:
            await look(a)
            history = (await a.get("/control/history", headers=BEARER)).json()
            return [one["instance"] for one in history["grants"] if one["purchases"]]

        await eventually_async(told, "all are told of", until=lambda grants: grants == ["b"] * 20)


async def test_odd_wishes(open_clients: OpenClients) -> None:
    """A wrong parameter is refused with the field's name, and nothing is done."""
    [http] = await open_clients()
    wishes: list[tuple[str, dict[str, Any], str]] = [
        *(("rush", {"buyers": odd}, "buyers") for odd in (0, 20_001, 1.5, "1")),
        ("rush", {}, "buyers"),
        *(("rush", {"buyers": 1, "over_s": odd}, "over_s") for odd in (-1, 301)),
        ("rush", {"buyers": 1, "sku": "phone"}, "sku"),
        *(("pause", {"for_s": odd}, "for_s") for odd in (0, 121)),
        ("pause", {"seconds": 5}, "seconds"),
    ]
    for what, wish, field in wishes:
        is_problem(await http.post(f"/control/{what}", json=wish, headers=BEARER), 422, field=field)
    assert not (await state(http, "a"))["pausing"]
    assert await lucky(http) == 0


async def test_a_command_that_nobody_hears(etcd: EtcdMember) -> None:
    """While the store is away a command is refused, and the instance that was asked does not obey it alone."""
    with Valkey() as valkey:
        async with client(
            etcd.endpoint, valkey.url, instance="a", store_timeout_ms=300, extension="lab.rehearsal"
        ) as http:
            await restock(http, 10)
            valkey.pause()
            try:
                for what, wish in (("rush", {"buyers": 3}), ("pause", {})):
                    is_problem(await http.post(f"/control/{what}", json=wish, headers=BEARER), 503)
                picture = await look(http)
                assert (picture["level"], picture["missing"]) == (None, False)
                assert picture["store_error"]
            finally:
                valkey.resume()
            assert not (await state(http, "a"))["pausing"]
            assert await events(http, "rush") == []

"""The control room's server side: who may do what, what is shown of all instances, what commands bring about."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from app.embedded import EtcdMember, Valkey
from tests.harness.servers import etcdctl, gateway
from tests.harness.shop import TOKEN, Instance, client, shop
from tests.harness.waiting import eventually_async
from tests.integration.test_web import is_problem

BEARER = {"Authorization": f"Bearer {TOKEN}"}
CSRF = "X-Seckill-Csrf"
TTL_S = 2

Scenario = Callable[..., Awaitable[None]]


@pytest.fixture
def play(etcd: EtcdMember, valkey: Valkey) -> Callable[..., None]:
    """Runs a scenario against instances `a`, `b`, ... of one sale, as many as it takes, with 100 units in stock."""

    def run(scenario: Scenario, instances: int = 1, **others: Any) -> None:
        async def main() -> None:
            async with AsyncExitStack() as stack:
                opened = [
                    await stack.enter_async_context(
                        client(etcd.endpoint, valkey.url, instance=name, lock_ttl_s=TTL_S, **others)
                    )
                    for name in "abc"[:instances]
                ]
                if others.get("admin_token", TOKEN):
                    await restock(opened[0], 100)
                    for http in opened:
                        await eventually_async(lambda http=http: sees(http, instances), "all see all")  # type: ignore[misc]
                await scenario(*opened)

        asyncio.run(main())

    return run


async def restock(http: httpx.AsyncClient, stock: int, sku: str = "default") -> None:
    change = {"stock": stock, "new_sale": True}
    (await http.put("/stock", params={"sku": sku}, json=change, headers=BEARER)).raise_for_status()


async def look(http: httpx.AsyncClient, sku: str = "default") -> dict[str, Any]:
    picture: dict[str, Any] = (
        (await http.get("/control/picture", params={"sku": sku}, headers=BEARER)).raise_for_status().json()
    )
    return picture


async def sees(http: httpx.AsyncClient, instances: int) -> bool:
    return len((await look(http))["instances"]) == instances


async def events(http: httpx.AsyncClient, kind: str) -> list[dict[str, Any]]:
    return [one for one in (await look(http))["events"] if one["kind"] == kind]


async def lucky(http: httpx.AsyncClient) -> int:
    return int((await http.get("/stock")).json()["lucky"])


async def state(http: httpx.AsyncClient, instance: str) -> dict[str, Any]:
    found = {one["instance"]: one for one in (await look(http))["instances"]}
    return found.get(instance, {})


async def command(http: httpx.AsyncClient, what: str, **wish: Any) -> dict[str, Any]:
    answer = await http.post(f"/control/{what}", json=wish, headers=BEARER)
    said: dict[str, Any] = answer.raise_for_status().json()
    return said


# -- who may do what --------------------------------------------------------------------------------------------------


async def enter(http: httpx.AsyncClient) -> str:
    """Show the token at the door; the second word of the session."""
    assert (await http.post("/control/login", data={"token": TOKEN})).headers["location"] == "/control"
    return str((await http.get("/control/session")).json()["csrf"])


CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "/stock", {"stock": 1}),
    ("POST", "/control/rush", {"buyers": 1}),
    ("POST", "/control/pause", {}),
    ("POST", "/control/leave", {}),
]
LOOKS = ["/control/picture", "/control/live", "/control/session", "/orders", "/locks"]


def test_without_anything(play: Callable[..., None]) -> None:
    """Nobody gets in without the token; the page asks for it."""

    async def scenario(http: httpx.AsyncClient) -> None:
        for path in LOOKS:
            is_problem(await http.get(path), 401)
            is_problem(await http.get(path, headers={"Authorization": "Bearer wrong"}), 401)
        for method, path, body in CHANGES:
            is_problem(await http.request(method, path, json=body), 401)
        page = await http.get("/control")
        assert (page.status_code, page.headers["location"]) == (303, "/control/login")
        assert 'type="password"' in (await http.get("/control/login")).text

    play(scenario)


def test_the_token_as_ever(play: Callable[..., None]) -> None:
    """The bearer token opens everything, and needs no second word: no browser sends it by itself."""

    async def scenario(http: httpx.AsyncClient) -> None:
        for path in ("/control/picture", "/orders", "/locks"):
            assert (await http.get(path, headers=BEARER)).status_code == 200
        assert (await http.put("/stock", json={"stock": 7}, headers=BEARER)).json()["stock"] == 7
        assert (await http.get("/control/session", headers=BEARER)).json() == {"csrf": None}

    play(scenario)


def test_the_cookie_alone_only_looks(play: Callable[..., None]) -> None:
    """What changes something needs the session's second word, and this session's."""

    async def scenario(http: httpx.AsyncClient) -> None:
        word = await enter(http)
        for path in ("/control/picture", "/control/session", "/orders", "/locks"):
            assert (await http.get(path)).status_code == 200
        wrong = [{}, {CSRF: ""}, {CSRF: "0" * 64}, {CSRF: word[:-1]}, {CSRF: "ü".encode()}]
        for method, path, body in CHANGES:
            for headers in wrong:
                is_problem(await http.request(method, path, json=body, headers=headers), 403)
        cookies = dict(http.cookies)
        http.cookies.clear()
        other = await enter(http)
        assert other != word
        is_problem(await http.put("/stock", json={"stock": 1}, headers={CSRF: word}), 403)
        assert (await http.get("/stock")).json()["stock"] == 100
        assert (await http.put("/stock", json={"stock": 8}, headers={CSRF: other})).json()["stock"] == 8
        http.cookies.clear()
        http.cookies.update(cookies)
        assert (await http.put("/stock", json={"stock": 9}, headers={CSRF: word})).json()["stock"] == 9
        # A wrong token is wrong, whatever cookie comes with it.
        is_problem(await http.get("/locks", headers={"Authorization": "Bearer wrong"}), 401)

    play(scenario)


def test_a_form_of_another_origin_changes_nothing(play: Callable[..., None]) -> None:
    """A browser may send the cookie along with what another page has it send; it can't send the second word."""

    async def scenario(http: httpx.AsyncClient) -> None:
        await enter(http)
        forms = ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"]
        for method, path, body in CHANGES:
            for content_type in forms:
                headers = {"Origin": "http://127.0.0.1:9", "Content-Type": content_type}
                answer = await http.request(method, path, content=json.dumps(body), headers=headers)
                assert answer.status_code == 403, (path, content_type)
        level = (await http.get("/stock")).json()
        assert (level["stock"], level["lucky"]) == (100, 0)
        assert (await http.get("/control/session")).status_code == 200

    play(scenario)


def test_the_cookie(play: Callable[..., None]) -> None:
    """Scripts can't read it, it has nothing of the token, and every instance with the same token knows it."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        answer = await a.post("/control/login", data={"token": f" {TOKEN}\n"})  # as one pastes it
        cookie = answer.headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=lax" in cookie.lower()
        assert "secure" not in cookie.lower()
        assert TOKEN not in cookie
        b.cookies.update(a.cookies)
        assert (await b.get("/control/picture")).status_code == 200
        assert (await b.get("/control/session")).json() == (await a.get("/control/session")).json()
        word = (await a.get("/control/session")).json()["csrf"]
        left = await a.post("/control/leave", headers={CSRF: word})
        assert left.status_code == 204
        assert not a.cookies
        secure = await a.post("https://127.0.0.1:8080/control/login", data={"token": TOKEN})
        assert "; secure" in secure.headers["set-cookie"].lower()

    play(scenario, 2)


def test_a_forged_or_old_cookie(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, etcd: EtcdMember, valkey: Valkey
) -> None:
    """One that was changed, made with another token, or twelve hours old, is none."""

    async def scenario(http: httpx.AsyncClient) -> None:
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
        assert other_name != name  # so that two sales on one host don't throw each other's operators out
        assert await status(others) == 401
        now = time.time()
        for hours, expected in ((11.9, 200), (12.1, 401)):
            monkeypatch.setattr("itsdangerous.timed.time", SimpleNamespace(time=lambda ago=hours: now + ago * 3600))
            assert await status(good) == expected
            assert (await http.get("/control", headers={"Cookie": f"{name}={good}"})).status_code == (
                200 if expected == 200 else 303
            )

    play(scenario)


def test_the_link(play: Callable[..., None]) -> None:
    """It opens, keeps the rest of its query, and its token goes no further; a wrong one leads to the door."""

    async def scenario(http: httpx.AsyncClient) -> None:
        answer = await http.get("/control", params={"token": TOKEN, "sku": "phone & co", "lang": "zh"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/control?sku=phone+%26+co&lang=zh")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert (await http.get("/control")).status_code == 200
        wrong = await http.get("/control", params={"token": "wrong", "sku": "phone"})
        assert (wrong.status_code, wrong.headers["location"]) == (303, "/control/login?sku=phone&wrong=")

    play(scenario)


@pytest.mark.parametrize("body", [b"", b"token=", b"token=wrong", b"token", b"\xff\xfe", b"token=" + b"x" * 5000])
def test_at_the_door(play: Callable[..., None], body: bytes) -> None:
    """Whatever else is shown is not the token."""

    async def scenario(http: httpx.AsyncClient) -> None:
        answer = await http.post("/control/login", content=body)
        assert (answer.status_code, answer.headers["location"]) == (303, "/control/login?wrong=")
        assert not http.cookies

    play(scenario)


def test_locked(play: Callable[..., None]) -> None:
    """Without an admin token nothing opens, whatever is shown."""

    async def scenario(http: httpx.AsyncClient) -> None:
        assert "SECKILL_ADMIN_TOKEN" in (await http.get("/control/login")).text
        for token in ("", "None", TOKEN):
            await http.post("/control/login", data={"token": token})
            await http.get("/control", params={"token": token})
            assert not http.cookies
            is_problem(await http.get("/control/picture", headers={"Authorization": f"Bearer {token}"}), 403)

    play(scenario, admin_token=None)


def test_the_token_is_in_no_log(etcd: EtcdMember, valkey: Valkey) -> None:
    """Neither of the link nor of the form, right or wrong, whatever is logged."""
    with (
        Instance(etcd.endpoint, valkey.url, log_level="debug") as instance,
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


def test_all_instances_on_each_page(play: Callable[..., None]) -> None:
    """Whichever is asked shows what all have sold and got, newest first, and what the lock is."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        for http in (a, b, a):
            assert (await http.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
        for http, name in ((a, "a"), (b, "b")):
            await eventually_async(lambda http=http: told_all(http), "both have told")  # type: ignore[misc]
            picture = await look(http)
            assert picture["instance"] == name
            assert picture["level"] == {"sku": "default", "stock": 97, "lucky": 3, "initial": 100}
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
            assert picture["grants"][-1]["handed_over_ms"] is None  # nobody was before
            assert {one["token"] for one in picture["instances"]} == {None}

    async def told_all(http: httpx.AsyncClient) -> bool:
        return sum(one["units"] for one in (await look(http))["instances"]) == 3

    play(scenario, 2)


def test_an_item_that_is_not_there(play: Callable[..., None]) -> None:
    """Is shown as missing, not as an error; one that can't be is refused."""

    async def scenario(http: httpx.AsyncClient) -> None:
        picture = await look(http, "phone")
        assert (picture["level"], picture["missing"]) == (None, True)
        assert "phone" in picture["store_error"]
        is_problem(await http.get("/control/picture", params={"sku": "a b"}, headers=BEARER), 422, field="sku")
        is_problem(await http.get("/control/live", params={"sku": "a b"}, headers=BEARER), 422, field="sku")

    play(scenario)


def test_the_auditors_verdict(play: Callable[..., None]) -> None:
    """What it found is shown by all, with how many violations there are."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        async def looked(http: httpx.AsyncClient) -> bool:
            return bool(((await look(http))["audit"] or {}).get("items"))

        for http in (a, b):
            await eventually_async(lambda http=http: looked(http), "somebody has looked")  # type: ignore[misc]
            audit = (await look(http))["audit"]
            assert (audit["consistent"], audit["violations"]) == (True, 0)
            assert audit["auditor"] in "ab"

    play(scenario, 2, audit_interval_s=0.2)


@asynccontextmanager
async def board(
    etcd: EtcdMember, valkey: Valkey
) -> AsyncIterator[Callable[[dict[str, str]], Awaitable[dict[str, str]]]]:
    """What instances tell each other, to be read and written."""
    async with shop(etcd.endpoint, valkey.url) as opened:

        async def put(notices: dict[str, str]) -> dict[str, str]:
            return await opened.notices(notices)

        yield put


def report(instance: str, **others: Any) -> str:
    """Of an instance that is not there any more."""
    facts = {"instance": instance, "number": 1, "units": 5, "waiting": 0, "way": "lock", "held": [], "grants": []}
    return json.dumps(facts | {"events": [], "pausing": False, "paused_s": 0.0} | others)


def test_who_says_nothing_more(
    play: Callable[..., None], etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is shown with how long that is, counted on no more after a while, and taken down in the end."""
    monkeypatch.setattr("app.dashboard.room._SILENT_S", 0.5)
    monkeypatch.setattr("app.dashboard.room._STALE_S", 2.5)

    async def scenario(http: httpx.AsyncClient) -> None:
        async with board(etcd, valkey) as put:
            await put({"report/gone": report("gone")})
            await eventually_async(lambda: state(http, "gone"), "it is heard of")

            async def silent() -> bool:
                return bool((await state(http, "gone"))["silent_s"] > 0.6)

            await eventually_async(silent, "it is silent")
            assert (await state(http, "a"))["silent_s"] == 0
            assert (await command(http, "rush", buyers=5))["instances"] == ["a"]

            async def taken_down() -> bool:
                return "report/gone" not in await put({}) and not await state(http, "gone")

            await eventually_async(taken_down, "its report is taken down")
            assert "report/a" in await put({})

    play(scenario)


def test_who_leaves_takes_its_report_along(etcd: EtcdMember, valkey: Valkey) -> None:
    """An instance that is stopped is not shown as silent, but gone."""

    async def main() -> None:
        async with board(etcd, valkey) as put:
            async with client(etcd.endpoint, valkey.url, instance="a") as http:
                await eventually_async(lambda: state(http, "a"))

                async def is_up() -> bool:
                    return "report/a" in await put({})

                await eventually_async(is_up, "it reports")
            assert await put({}) == {}

    asyncio.run(main())


def test_notices_of_another_version(play: Callable[..., None], etcd: EtcdMember, valkey: Valkey) -> None:
    """What isn't understood is passed over, and what comes after it is understood."""
    odd = ["", "{", "[]", "null", '{"instance": 5}', "x" * 100_000, json.dumps({"instance": "new", "number": "many"})]

    async def scenario(http: httpx.AsyncClient) -> None:
        async with board(etcd, valkey) as put:
            await put(
                {
                    f"{kind}/odd-{number}": text
                    for kind in ("report", "command", "else")
                    for number, text in enumerate(odd)
                }
            )
            await put({"report/newer": report("newer", more="than we know")})
            await eventually_async(lambda: state(http, "newer"), "what can be understood")
            assert {one["instance"] for one in (await look(http))["instances"]} == {"a", "newer"}
            await command(http, "rush", buyers=1)
            await eventually_async(lambda: lucky(http), "commands are obeyed")

    play(scenario)


# -- what is done -----------------------------------------------------------------------------------------------------


def test_a_rush_is_sold_by_all_and_once(play: Callable[..., None]) -> None:
    """Each buyer comes once, to one of the instances, however long the command is up; what they were told is told."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        assert (await command(a, "rush", buyers=31, over_s=0.5))["instances"] == ["a", "b"]

        async def told(http: httpx.AsyncClient) -> bool:
            return len(await events(http, "rush")) == 2

        for http in (a, b):
            await eventually_async(lambda http=http: told(http), "both have told")  # type: ignore[misc]
            facts = {one["instance"]: one["facts"] for one in await events(http, "rush")}
            assert facts == {"a": {"buyers": 16, "sold": 16}, "b": {"buyers": 15, "sold": 15}}
        assert await lucky(a) == 31
        # A second one while the first is still up.
        await command(b, "rush", buyers=2)

        async def all_told() -> bool:
            return len(await events(a, "rush")) == 4

        await eventually_async(all_told, "the second one")
        assert await lucky(a) == 33
        assert (await command(a, "rush", buyers=1))["instances"] == ["a"]  # one buyer comes to one

    play(scenario, 2)


def test_what_was_said_before_one_came(play: Callable[..., None], etcd: EtcdMember, valkey: Valkey) -> None:
    """A command that is up when an instance starts was not meant for it; one that comes later is."""

    def rush(buyers: int) -> str:
        return json.dumps({"what": "rush", "sku": "default", "each": {"late": buyers}, "at": time.time(), "over_s": 0})

    async def scenario(http: httpx.AsyncClient) -> None:
        async with board(etcd, valkey) as put:
            await put({"command/before": rush(7)})
            async with client(etcd.endpoint, valkey.url, instance="late") as late:
                await eventually_async(lambda: state(http, "late"), "it is there")
                await put({"command/after": rush(3)})
                await eventually_async(lambda: events(late, "rush"), "it has obeyed")
                assert [one["facts"]["buyers"] for one in await events(late, "rush")] == [3]
                assert await lucky(http) == 3

    play(scenario)


def test_what_comes_late_is_not_obeyed(play: Callable[..., None], etcd: EtcdMember, valkey: Valkey) -> None:
    """A command that was held up on its way, or that is back in a store that is older than it was, is none any more."""

    def rush(buyers: float, at: float) -> str:
        return json.dumps({"what": "rush", "sku": "default", "each": {"a": buyers}, "at": at, "over_s": 0})

    async def scenario(http: httpx.AsyncClient) -> None:
        async with board(etcd, valkey) as put:
            odd = rush(1, time.time()).replace("1}", "Infinity}")
            await put({"command/late": rush(7, time.time() - 5), "command/odd": odd})
            await put({"command/fresh": rush(3, time.time())})
            await eventually_async(lambda: events(http, "rush"), "it has obeyed")
            assert [one["facts"]["buyers"] for one in await events(http, "rush")] == [3]
            assert await lucky(http) == 3

    play(scenario)


def test_an_instance_whose_clock_is_ahead(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cookie is good here at once."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        ahead = SimpleNamespace(time=lambda: time.time() + 120)
        with monkeypatch.context() as there:
            there.setattr("itsdangerous.timed.time", ahead)
            await enter(a)
        b.cookies = a.cookies
        assert (await b.get("/control/picture")).status_code == 200

    play(scenario, 2)


@pytest.mark.parametrize(
    "owner", ['{"instance":"\\ud800"}', "[" * 100_000, '{"instance":"' + "x" * 100_000 + '"}', "null"]
)
def test_what_a_stranger_calls_itself(play: Callable[..., None], etcd: EtcdMember, owner: str) -> None:
    """Whatever is written into the lock's queue, it is shown, and nothing fails."""

    async def scenario(http: httpx.AsyncClient) -> None:
        stranger = "/seckill/lock/all/stranger"
        gateway(
            etcd,
            "kv/put",
            key=base64.b64encode(stranger.encode()).decode(),
            value=base64.b64encode(owner.encode()).decode(),
        )
        try:
            assert [one["key"] for one in (await look(http))["queue"]] == [stranger]
            assert (await http.get("/locks", headers=BEARER)).status_code == 200
            assert (await http.post("/control/pause", json={}, headers=BEARER)).status_code == 200
        finally:
            etcdctl(etcd.endpoint, "del", stranger)

    play(scenario)


def test_a_paused_holder_is_overtaken(play: Callable[..., None]) -> None:
    """It believes in its grant, the other one sells on, its write is refused; then its buyers are served. Once each."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        assert await command(a, "pause", for_s=TTL_S + 3) == {"instance": "a", "for_s": TTL_S + 3}
        assert (await state(a, "a"))["pausing"]  # until somebody buys
        stuck = asyncio.create_task(a.post("/stock/reduce"))

        async def stands_still() -> bool:
            return bool((await state(b, "a"))["paused_s"] > 0)

        await eventually_async(stands_still, "the other one sees that it stands still")
        picture = await look(b)
        (holder,) = picture["queue"]
        assert (holder["instance"], holder["holds"]) == ("a", True)
        assert holder["token"] == (await state(b, "a"))["token"]
        assert holder["held_s"] > 0
        assert (await b.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
        assert not stuck.done()
        picture = await look(b)
        assert {one["instance"]: one["token"] for one in picture["instances"]}["a"] == holder["token"]
        assert all(one["token"] != holder["token"] for one in picture["queue"])
        assert (await stuck).headers["x-seckill-outcome"] == "sold"

        async def noticed() -> bool:
            return bool(await events(b, "lost"))

        await eventually_async(noticed, "the loss is told")
        for kind in ("paused", "fenced", "lost"):
            (event,) = await events(b, kind)
            assert (event["instance"], event["facts"]["token"], event["times"]) == ("a", holder["token"], 1)
        overtaken = next(one for one in (await look(b))["grants"] if one["token"] == holder["token"])
        assert overtaken["held_ms"] > 1000 * TTL_S
        assert overtaken["units"] == 0
        assert await lucky(a) == 2
        assert len((await a.get("/orders", headers=BEARER)).json()["orders"]) == 2

    play(scenario, 2)


def test_the_holder_is_paused_whoever_is_asked(play: Callable[..., None]) -> None:
    """The command goes to the one who holds the lock at that moment; if nobody does, to the one who was asked."""

    async def scenario(a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        assert (await command(b, "pause", for_s=3))["instance"] == "b"
        stuck = asyncio.create_task(b.post("/stock/reduce"))

        async def holds() -> bool:
            return bool((await state(a, "b"))["paused_s"] > 0)

        await eventually_async(holds, "it stands still")
        answer = await command(a, "pause")
        assert answer == {"instance": "b", "for_s": TTL_S + 3}
        assert (await stuck).headers["x-seckill-outcome"] == "sold"
        assert not (await state(a, "a"))["pausing"]

    play(scenario, 2)


def test_a_pause_of_nothing(play: Callable[..., None]) -> None:
    """An item that isn't there can't be paused; nothing of the wish is left."""

    async def scenario(http: httpx.AsyncClient) -> None:
        answer = await http.post("/control/pause", params={"sku": "phone"}, json={}, headers=BEARER)
        assert answer.status_code == 200

        async def given_up() -> bool:
            return not (await state(http, "a"))["pausing"]

        await eventually_async(given_up, "the pause is given up")
        assert (await http.post("/stock/reduce")).headers["x-seckill-outcome"] == "sold"
        assert await events(http, "paused") == []

    play(scenario)


@pytest.mark.parametrize(
    ("what", "wish", "field"),
    [
        ("rush", {"buyers": 0}, "buyers"),
        ("rush", {"buyers": 20_001}, "buyers"),
        ("rush", {"buyers": 1.5}, "buyers"),
        ("rush", {"buyers": "1"}, "buyers"),
        ("rush", {}, "buyers"),
        ("rush", {"buyers": 1, "over_s": -1}, "over_s"),
        ("rush", {"buyers": 1, "over_s": 301}, "over_s"),
        ("rush", {"buyers": 1, "sku": "phone"}, "sku"),
        ("pause", {"for_s": 0}, "for_s"),
        ("pause", {"for_s": 121}, "for_s"),
        ("pause", {"seconds": 5}, "seconds"),
    ],
)
def test_odd_wishes(play: Callable[..., None], what: str, wish: dict[str, Any], field: str) -> None:
    """Are refused, with the field's name, and nothing is done."""

    async def scenario(http: httpx.AsyncClient) -> None:
        is_problem(await http.post(f"/control/{what}", json=wish, headers=BEARER), 422, field=field)
        assert not (await state(http, "a"))["pausing"]
        assert await lucky(http) == 0

    play(scenario)


def test_a_command_that_nobody_hears(etcd: EtcdMember) -> None:
    """While the store is away a command is refused, and not obeyed by this one alone."""
    with Valkey() as valkey:

        async def main() -> None:
            async with client(etcd.endpoint, valkey.url, instance="a", redis_timeout_ms=300) as http:
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

        asyncio.run(main())

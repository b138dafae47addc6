"""Several receivers of events: each has a sender, a cursor and a gate of its own, and none waits for another."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.responses import Response

from app.cli.events import undelivered
from app.errors import ConfigurationError, StockCorrupt, StockUnavailable
from app.operator import deliveries
from app.orders import Cancel, Confirm, Hold
from app.outbox.state import DeliveryState, Wish
from app.stock import Fence
from app.stock.outbox import Slip
from app.wiring import open_sale
from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness import command
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.receiver import SECRET, Receiver, receiver
from tests.harness.shop import TOKEN, Counter, Instance, ThreadedInstance, lock_url, settings
from tests.harness.waiting import eventually_async


@pytest.fixture(params=["valkey", pytest.param("mariadb", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    server: Valkey | MariaDB = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
async def shop_end() -> AsyncIterator[Receiver]:
    async with receiver() as one:
        yield one


@pytest.fixture
async def erp() -> AsyncIterator[Receiver]:
    async with receiver() as one:
        yield one


@asynccontextmanager
async def selling(etcd: EtcdMember, store: str, *urls: str, **others: Any) -> AsyncIterator[Counter]:
    """Open a sale of 1,000 units that delivers its events to these URLs."""
    to = {"webhook_url": " ".join(urls), "webhook_secret": SECRET} if urls else {}
    given = {"audit_interval_s": 0, "webhook_retry_s": 0.1, "store_timeout_ms": 20_000, **to, **others}
    async with open_sale(settings(etcd.endpoint, store, **given), with_auditor=True) as sale:
        if "default" not in await sale.store.items():
            await sale.stock.set_stock("default", 1000)
        yield Counter(sale)


async def held(shop: Any, buyer: str) -> Any:
    return await shop.submit(Hold(buyer=buyer))


async def noted(shop: Any, name: str) -> DeliveryState:
    return DeliveryState.from_text((await shop.store.outbox(["default"], name))["default"].text)


def buyers(end: Receiver) -> list[str]:
    return [event["data"]["buyer"] for event in end.got]


async def refuse(_: dict[str, Any]) -> Response:
    return Response(status_code=500)


async def test_none_waits_for_another(etcd: EtcdMember, store: str, shop_end: Receiver, erp: Receiver) -> None:
    """One is away, one refuses, one never answers: a fourth has all at once; each gets all when it is well again."""
    async with AsyncExitStack() as stack:
        away, slow = [await stack.enter_async_context(receiver()) for _ in range(2)]
        await away.close()
        erp.decide, go_on = refuse, asyncio.Event()
        stack.callback(go_on.set)

        async def wait(_: dict[str, Any]) -> None:
            await go_on.wait()

        slow.decide = wait
        urls = shop_end.url, f"{erp.url}#name=erp", f"{slow.url}#name=slow", f"{away.url}#name=away"
        async with selling(etcd, store, *urls, webhook_timeout_ms=60_000) as shop:
            holds = await asyncio.gather(*(held(shop, f"b{number}") for number in range(30)))
            orders = [one.order for one in holds]
            await asyncio.gather(*(shop.submit(Cancel(one.sku, one.number, one.secret)) for one in orders))
            expected = {str(one.order): [1, 2] for one in holds}
            await eventually_async(shop_end.by_order, "all events", until=lambda got: got == expected)
            own = {one.receiver.name: one for one in shop.senders}
            for name in ("erp", "away"):
                await eventually_async(lambda name=name: own[name].view.away_s > 0, f"{name} is away")
            await eventually_async(
                lambda: noted(shop, "default"), "all is noted", until=lambda state: state.count == 60
            )
            assert (own["default"].view.parked, own["default"].view.waiting, own["default"].view.away_s) == (0, 0, 0)
            assert (erp.got, slow.got, slow.now) == ([], [], 20)
            assert await undelivered(shop.sale.store, "default") == dict.fromkeys(own, 60) | {"default": 0}
            go_on.set()
            await eventually_async(slow.by_order, "the slow one's", until=lambda got: got == expected)
            erp.decide = shop_end.decide
            await eventually_async(erp.by_order, "the one's that refused", until=lambda got: got == expected)
            await away.listen()
            await eventually_async(away.by_order, "the one's that was away", until=lambda got: got == expected)
            assert len(shop_end.got) == 60


async def test_types(etcd: EtcdMember, store: str, shop_end: Receiver, erp: Receiver) -> None:
    """A receiver gets the types that it wants; all others move its cursor, parked ones as well when it changes."""
    only = f"{erp.url}#name=erp&types=order.confirmed,order.cancelled"
    async with selling(etcd, store, shop_end.url, only) as shop:
        ann, _, cyd = [(await held(shop, name)).order for name in ("ann", "bob", "cyd")]
        await shop.submit(Confirm(ann.sku, ann.number, ann.secret, "p1"))
        await shop.submit(Cancel(cyd.sku, cyd.number, cyd.secret))
        await eventually_async(lambda: len(shop_end.got) == 5, "all of them")
        await eventually_async(lambda: noted(shop, "erp"), "all are behind it", until=lambda state: state.count == 5)
        assert sorted((one["type"], one["data"]["number"]) for one in erp.got) == [
            ("order.cancelled", 2),
            ("order.confirmed", 2),
        ]
        assert len(erp.tried) == 2
        nothing = {"default": 0, "erp": 0}  # as soon as it is noted
        await eventually_async(lambda: undelivered(shop.sale.store, "default"), until=lambda left: left == nothing)
        erp.decide = refuse
        dan = (await held(shop, "dan")).order
        await shop.submit(Cancel(dan.sku, dan.number, dan.secret))
        await eventually_async(lambda: noted(shop, "erp"), "it is parked", until=lambda state: state.parked)
    async with selling(etcd, store, shop_end.url, f"{erp.url}#name=erp&types=order.confirmed") as shop:
        await eventually_async(lambda: noted(shop, "erp"), "it isn't wanted", until=lambda state: not state.parked)
        assert (await noted(shop, "default")).count == (await noted(shop, "erp")).count == 7


async def test_receivers_come_and_go(etcd: EtcdMember, store: str, shop_end: Receiver, erp: Receiver) -> None:
    """Each goes on where it was, at whatever URL and in whatever order; a new one gets the sale from its start."""
    async with selling(etcd, store, shop_end.url) as shop:
        await held(shop, "ann")
        await eventually_async(lambda: noted(shop, "default"), "noted", until=lambda state: state.count == 1)
    async with selling(etcd, store, shop_end.url, f"{erp.url}#name=erp") as shop:
        await held(shop, "bob")
        await eventually_async(lambda: noted(shop, "erp"), "noted", until=lambda state: state.count == 2)
        await eventually_async(lambda: noted(shop, "default"), "noted", until=lambda state: state.count == 2)
    async with selling(etcd, store, f"{erp.url}#name=erp") as shop:
        await held(shop, "cyd")
        await eventually_async(lambda: noted(shop, "erp"), "noted", until=lambda state: state.count == 3)
    async with receiver() as moved, selling(etcd, store, shop_end.url, f"{moved.url}#name=erp") as shop:
        await held(shop, "dan")
        await eventually_async(lambda: noted(shop, "erp"), "noted", until=lambda state: state.count == 4)
        await eventually_async(lambda: noted(shop, "default"), "noted", until=lambda state: state.count == 4)
        assert (buyers(shop_end), buyers(erp), buyers(moved)) == (
            ["ann", "bob", "cyd", "dan"],
            ["ann", "bob", "cyd"],
            ["dan"],
        )
        assert await shop.store.receivers(["default"]) == ["default", "erp"]
        # A new sale begins anew for all of them, and what they did not get is said.
        await shop.set_stock("default", 5, new_sale=True)
        await held(shop, "eve")
        await eventually_async(lambda: buyers(moved)[-1] == buyers(shop_end)[-1] == "eve", "the new sale's")
        assert (len(moved.got), len(shop_end.got)) == (2, 5)
    async with selling(etcd, store) as shop:
        await shop.set_stock("default", 5, new_sale=True)
        assert await shop.store.receivers(["default"]) == ["default"]


async def test_the_first_receiver_is_as_it_was(etcd: EtcdMember, valkey: Valkey, erp: Receiver) -> None:
    """Without a name its notes and its lock are those that releases before know; to unfence an item unfences all."""
    async with selling(etcd, valkey.url, erp.url, f"{erp.url}#name=erp") as shop:
        await held(shop, "ann")
        for name in ("default", "erp"):
            await eventually_async(lambda name=name: noted(shop, name), "noted", until=lambda state: state.count == 1)
        assert set(valkey.ask("HKEYS", "seckill:{default}:outbox")) == {"default", "erp"}
        assert len({id(one.journals.pace) for one in shop.senders}) == 1  # a share of the instance's time, not one each
        prefix = shop.sale.senders[0].lock.removesuffix("!sender")
        assert [one.lock.removeprefix(prefix) for one in shop.senders] == ["!sender", "!sender!erp"]
    async with selling(etcd, valkey.url) as shop:
        await shop.unfence("default", by="operator")
        slips = [Slip.from_text(text) for text in valkey.ask("HVALS", "seckill:{default}:outbox")]
        assert [(bool(slip.text), slip.source) for slip in slips] == [(True, None)] * 2


async def test_a_receiver_with_dead_letters(etcd: EtcdMember, store: str, shop_end: Receiver, erp: Receiver) -> None:
    """They are that receiver's: a replay that names it sends nothing to the others; what is unknown is refused."""

    async def decide(event: dict[str, Any]) -> Response | None:
        return Response(status_code=422) if event["data"]["buyer"] == "odd" else None

    erp.decide = decide
    async with selling(etcd, store, shop_end.url, f"{erp.url}#name=erp", webhook_give_up_s=1) as shop:
        await held(shop, "odd")
        await held(shop, "ann")
        sender = shop.senders[1]
        await eventually_async(lambda: sender.view.dead == 1, "a dead letter")
        assert sender.warnings == ["1 events to erp are tried no more: `seckill orders events` lists them"]
        assert shop.senders[0].warnings == []
        await eventually_async(lambda: noted(shop, "erp"), "it is noted", until=lambda state: state.dead)
        known = await deliveries.receivers(shop.store, ["default"])
        assert known == ["default", "erp"]
        (row,) = await deliveries.undelivered(shop.store, ["default"], known)
        assert (row.state, row.receiver) == ("dead", "erp")
        with pytest.raises(ConfigurationError, match="no receiver 'till'; there is default, erp"):
            await deliveries.receivers(shop.store, ["default"], "till")
        erp.decide = shop_end.decide
        assert await deliveries.replay(shop.store, ["default"], Wish(dead=True), ["default"], by="ann") == []
        assert await deliveries.replay(shop.store, ["default"], Wish(dead=True), ["erp"], by="ann") == ["default"]
        await eventually_async(lambda: buyers(erp) == ["ann", "odd"], "the dead letter")
        assert await deliveries.replay(shop.store, ["default"], Wish(at=0), ["erp"], by="ann") == ["default"]
        await eventually_async(lambda: len(erp.got) >= 4, "all again")
        assert len(shop_end.got) == 2
        await deliveries.replay(shop.store, ["default"], Wish(at=0), known, by="ann")
        await eventually_async(lambda: len(erp.got) >= 6 and len(shop_end.got) >= 4, "all again, to both")


async def test_a_replay_stands_in_the_log_before_it_is_asked() -> None:
    """No wish is without its line, whatever fails behind it; an item with an unreadable note stops no other."""
    server = MemoryServer()
    store, skus = MemoryStockStore(server), ["bag", "lamp", "pen"]
    for sku in skus:
        await store.set_stock(sku, Fence(1, "etcd"), 5)
    server.items["lamp"].notes["default"] = "odd"
    with pytest.raises(StockCorrupt, match="outbox of 'lamp' are odd; the others are asked"):
        await deliveries.replay(store, skus, Wish(at=0), ["default"], by="ann")
    assert [(await store.log(sku, limit=1))[0].what for sku in skus] == ["replay"] * 3
    assert [bool(Slip.from_text(server.items[sku].notes["default"]).wish) for sku in ("bag", "pen")] == [True] * 2
    store.ask_sender = AsyncMock(side_effect=StockUnavailable("away"))  # type: ignore[method-assign]
    with pytest.raises(StockUnavailable):
        await deliveries.replay(store, ["bag"], Wish(at=1), ["default"], by="bob")
    assert (await store.log("bag", limit=1))[0].by == "bob"


async def test_the_commands_know_receivers(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, erp: Receiver) -> None:
    """`orders events` names the receiver, `--receiver` chooses one; a new sale says which ones did not get all."""
    env = {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": valkey.url, "COLUMNS": "200"}

    async def seckill(*arguments: str, fails: int = 0) -> str:
        done = await asyncio.to_thread(command.seckill, *arguments, env=env)
        assert done.returncode == fails, done.stderr
        return done.stdout + done.stderr

    erp.decide = refuse
    only = f"{erp.url}#name=erp&types=order.held"
    async with selling(etcd, valkey.url, shop_end.url, only, webhook_retry_s=600) as shop:
        ann = (await held(shop, "ann")).order
        await shop.submit(Cancel(ann.sku, ann.number, ann.secret))
        for name in ("default", "erp"):
            await eventually_async(lambda name=name: noted(shop, name), "noted", until=lambda state: state.count == 2)
        (row,) = json.loads(await seckill("orders", "events", "--json"))
        assert (row["state"], row["receiver"], row["order"]) == ("parked", "erp", ann.name)
        assert "no event is parked" in await seckill("orders", "events", "--receiver", "default")
        said = await seckill("orders", "events", "--receiver", "till", fails=2)
        assert "no receiver 'till'; there is default, erp" in said
        events = json.loads(await seckill("orders", "events", ann.name, "--json"))
        assert [(one["delivery"], one["delivery to erp"]) for one in events] == [
            ("delivered", "parked"),
            ("delivered", "not wanted"),
        ]
        assert "nothing is parked or dead" in await seckill("orders", "replay", "--dead", "--receiver", "default")
        erp.decide = shop_end.decide
        assert "`sku` names 'zoo'" in await seckill("orders", "replay", "--sku", "zoo", "--order", ann.name, fails=2)
        assert "nothing is parked" in await seckill("orders", "replay", "--order", f"{ann.sku}~1-0")
        assert "the sender is asked: default" in await seckill("orders", "replay", "--order", str(ann))
        await eventually_async(lambda: buyers(erp) == ["ann"], "it arrives")
        erp.decide = refuse
        await held(shop, "bob")
        await eventually_async(lambda: noted(shop, "erp"), "it is parked", until=lambda state: state.count == 3)
        said = await seckill("stock", "set", "5", "--new-sale", "--yes")
        assert "forgotten: 1 event of 'default' that the receiver erp did not get" in said


async def test_the_control_room_knows_receivers(
    etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, erp: Receiver
) -> None:
    """What is parked has a receiver, a replay may name one, and the metrics of a receiver with a name have it."""
    erp.decide = refuse
    given: dict[str, Any] = {"webhook_url": f"{shop_end.url} {erp.url}#name=erp", "webhook_secret": SECRET}
    given |= {"webhook_retry_s": 600}
    operator = {"Authorization": f"Bearer {TOKEN}"}
    with ThreadedInstance(etcd.endpoint, valkey.url, audit_interval_s=0, **given) as instance:
        async with httpx.AsyncClient(base_url=instance.url, trust_env=False, timeout=60, headers=operator) as http:
            for sku in ("default", "zoo"):
                await http.put("/stock", params={"sku": sku}, json={"stock": 9})
            await http.post("/holds", json={"buyer": "ann"})

            async def look() -> dict[str, Any]:
                found: dict[str, Any] = (await http.get("/control/undelivered")).json()
                return found

            found = await eventually_async(look, "parked", until=lambda found: found["rows"])
            assert [(one["state"], one["receiver"]) for one in found["rows"]] == [("parked", "erp")]
            assert (found["receiver"], found["receivers"]) == (True, ["default", "erp"])
            lines = (await http.get("/metrics")).text.splitlines()
            assert {"seckill_outbox_sender 1.0", 'seckill_outbox_sender{receiver="erp"} 1.0'} <= set(lines)
            assert 'seckill_events_total{receiver="",result="delivered"} 1.0' in lines
            assert 'seckill_events_total{receiver="erp",result="refused"} 1.0' in lines
            order = found["rows"][0]["order"]
            for name, value, said in (
                ("receiver", "till", "no receiver 'till'"),
                ("order", "till", "such as `item~number`"),
                ("order", order, "this order is of the item 'default', and `sku` names 'zoo'"),
            ):
                answer = await http.post("/control/replay?sku=zoo", json={name: value})
                (error,) = answer.json()["errors"]
                assert (answer.status_code, error["field"], said in error["message"]) == (422, name, True)
            assert (await http.post("/control/replay", json={"receiver": "default"})).json() == {"items": []}
            erp.decide = shop_end.decide
            assert (await http.post("/control/replay", json={"receiver": "erp"})).json() == {"items": ["default"]}
            await eventually_async(lambda: buyers(erp) == ["ann"], "it arrives")


@pytest.mark.slow
async def test_senders_that_are_killed_lose_nothing(
    etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, erp: Receiver
) -> None:
    """An instance sends to both, and is killed as one of them has an event in its hands: another goes on for both."""
    given: dict[str, Any] = {"webhook_url": f"{shop_end.url} {erp.url}#name=erp", "webhook_secret": SECRET}
    given |= {"webhook_retry_s": 0.1, "lock_ttl_s": 2, "audit_interval_s": 0, "purchase_timeout_ms": 60_000}
    async with AsyncExitStack() as stack:

        async def start() -> Instance:
            instance = Instance(etcd.endpoint, valkey.url, **given)
            stack.callback(instance.stop)
            return await asyncio.to_thread(instance.start)

        async def sends(instance: Instance) -> bool:
            text = (await asyncio.to_thread(instance.get, "/metrics"))[1]
            return "seckill_outbox_sender 1.0" in text and 'seckill_outbox_sender{receiver="erp"} 1.0' in text

        async with open_sale(settings(etcd.endpoint, valkey.url)) as sale:
            await sale.stock.set_stock("default", 1000)
        first = await start()
        await eventually_async(lambda: sends(first), "the first one sends to both")
        second, arrived = await start(), 0

        async def decide(_: dict[str, Any]) -> None:
            nonlocal arrived
            arrived += 1
            if arrived == 40:
                first.kill()

        erp.decide = decide
        async with httpx.AsyncClient(base_url=second.url, trust_env=False, timeout=90) as http:
            answers = await asyncio.gather(*(http.post("/holds", json={"buyer": f"b{n}"}) for n in range(60)))
            ids = [answer.json()["id"] for answer in answers]
            await asyncio.gather(*(http.post(f"/holds/{one}/cancel") for one in ids))
        await eventually_async(lambda: sends(second), "the second one sends to both", within_s=60)
        expected = {one: [1, 2] for one in ids}
        for end in (shop_end, erp):
            await eventually_async(end.by_order, "all events", until=lambda got: got == expected, within_s=60)

"""Events leave: at least once, in order per order, whatever the receiver does."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import Response

from app.cli.events import undelivered
from app.errors import FenceRefused, ForeignFence, StockChanged
from app.orders import Cancel, Confirm, Extend, Hold, OrderId, Purchase, Refund
from app.outbox.feed import Feed
from app.outbox.message import Message
from app.outbox.state import DeliveryState, Parked, Place, Wish
from app.stock import Fence, Outbox, StockStore
from app.stock.outbox import Slip
from app.wiring import open_sale
from lab.servers import EtcdMember, MariaDB, Valkey, ZooKeeper
from tests.harness import command
from tests.harness.receiver import Receiver, receiver
from tests.harness.servers import optional
from tests.harness.shop import Counter, lock_url, settings
from tests.harness.waiting import WITHIN_S, eventually_async


@pytest.fixture
async def shop_end() -> AsyncIterator[Receiver]:
    async with receiver() as one:
        yield one


@asynccontextmanager
async def selling(etcd: EtcdMember, valkey: Valkey, to: Receiver, **others: Any) -> AsyncIterator[Counter]:
    """Open a sale of 1,000 units that delivers its events."""
    given = {"audit_interval_s": 0, **to.settings, **others}
    async with open_sale(settings(etcd.endpoint, valkey.url, **given), with_auditor=True) as sale:
        counter = Counter(sale)
        await sale.stock.set_stock("default", 1000)
        yield counter


async def held(shop: Any, buyer: str, **wish: Any) -> Any:
    """Hold a unit and return the answer."""
    return await shop.submit(Hold(buyer=buyer, **wish))


def parts(answer: Any) -> OrderId:
    found: OrderId = answer.order
    return found


@pytest.fixture(
    params=["etcd", "redis", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mysql", "zookeeper"))]
)
def stands_on(request: pytest.FixtureRequest, etcd: EtcdMember, valkey: Valkey) -> Iterator[dict[str, Any]]:
    """Return the settings of a sale on each lock system, and on both kinds of stores."""
    if request.param == "etcd":
        yield {}
    elif request.param == "redis":
        yield {"lock": valkey.url}
    elif request.param == "mysql":
        mariadb: MariaDB = request.getfixturevalue("mariadb")
        yield {"lock": mariadb.url.replace("mysql://", "mysql+row://"), "store": mariadb.url}
    else:
        with optional(ZooKeeper) as zookeeper:
            yield {"lock": f"zookeeper://{zookeeper.hosts}"}


async def test_each_event_arrives(
    etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, stands_on: dict[str, Any]
) -> None:
    """All kinds, signed, numbered, with the shop's own number; in order per order; then a later sender goes on."""
    async with selling(etcd, valkey, shop_end, **stands_on) as shop:
        one = await held(shop, "ann", quantity=2, ref="order 7")
        await shop.submit(Confirm(*parts(one), "p1", 10))
        two = await held(shop, "bob")
        await shop.submit(Cancel(*parts(two)))
        trace = f"00-{'a' * 32}-{'b' * 16}-01"
        three = await shop.submit(Purchase(buyer="cyd", request_id="r", traceparent=trace))
        await eventually_async(lambda: len(shop_end.got) >= 5, "five events")
        assert shop_end.of(one.order) == [(1, "order.held"), (2, "order.confirmed")]
        assert shop_end.of(two.order) == [(1, "order.held"), (2, "order.cancelled")]
        assert shop_end.of(three.order) == [(1, "order.sold")]
        assert [
            (head.get("traceparent"), event["data"].get("request_id")) for head, event in shop_end.heads_of("cyd")
        ] == [(trace, "r")]
        paid = next(event for event in shop_end.got if event["type"] == "order.confirmed")
        about = {"sku": "default", "quantity": 2, "buyer": "ann", "ref": "order 7", "payment_ref": "p1", "amount": 10}
        assert about.items() <= paid["data"].items()
        assert paid["timestamp"].endswith("Z")
        assert all(name.startswith("default~") for name in shop_end.ids)
        view = await eventually_async(lambda: shop.sender.view, "noted", until=lambda view: view.waiting == 0)
        assert (view.parked, view.dead, view.sends) == (0, 0, True)
    async with selling(etcd, valkey, shop_end, **stands_on) as shop:
        await held(shop, "dan")
        await eventually_async(lambda: len(shop_end.got) >= 6, "the next event")
        assert [event["data"]["buyer"] for event in shop_end.got[5:]] == ["dan"]


async def test_an_event_says_how_the_order_stands(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """Who obeys the state of the events has the right orders; `about` tells a refund of the order from one of money."""
    async with selling(etcd, valkey, shop_end) as shop:
        await shop.set_stock("default", 1, terms={"price": 500, "currency": "EUR", "limit_per_buyer": 1})
        one = await held(shop, "ann")
        await shop.submit(Extend(*parts(one)))
        await shop.submit(Confirm(*parts(one), "wrong", 1))
        await shop.submit(Confirm(*parts(one), "p1", 500))
        await shop.submit(Confirm(*parts(one), "p2", 500))
        await shop.submit(Refund(*parts(one), restock=False, payment_ref="p2"))
        await shop.submit(Refund(*parts(one), restock=False, payment_ref="p1", amount=100))
        await shop.submit(Refund(*parts(one), restock=True))
        await shop.submit(Confirm(*parts(one), "p3", 500))
        two = await held(shop, "bob")
        await shop.submit(Cancel(*parts(two)))
        await shop.submit(Confirm(*parts(two), "p4", 500))
        await shop.submit(Refund(*parts(two), restock=False))
        await eventually_async(lambda: len(shop_end.got) == 14, "all events")
        told: dict[str, list[tuple[str, str, str]]] = {str(one.order): [], str(two.order): []}
        for event in shop_end.got:
            data = event["data"]
            told[data["order"]].append((event["type"].removeprefix("order."), data["state"], data["about"]))
        assert told[str(one.order)] == [
            ("held", "held", "order"),
            ("extended", "held", "order"),
            ("amount_mismatch", "held", "payment"),
            ("confirmed", "confirmed", "order"),
            ("refund_due", "confirmed", "payment"),  # of the wrong one
            ("refund_due", "confirmed", "payment"),
            ("refunded", "confirmed", "payment"),
            ("refunded", "confirmed", "payment"),  # a part of it
            ("refunded", "refunded", "order"),
            ("refund_due", "refunded", "payment"),
        ]
        assert told[str(two.order)] == [
            ("held", "held", "order"),
            ("cancelled", "cancelled", "order"),
            ("refund_due", "cancelled", "payment"),
            ("refunded", "cancelled", "payment"),
        ]
        for order_id, events in told.items():
            order = await shop.order(OrderId.parse(order_id))
            assert order.state == events[-1][1]


async def test_the_first_webhook_gets_all(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """A webhook that is set later is told everything from the first entry on, some 20 at a time, in order."""
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        holds = await asyncio.gather(*(held(shop, f"b{number}") for number in range(300)))
        await asyncio.gather(*(shop.submit(Cancel(*parts(one))) for one in holds))

    async def slowly(_: dict[str, Any]) -> None:
        await eventually_async(lambda: shop_end.most > 10, "many are on their way at once")
        await asyncio.sleep(0.01)

    shop_end.decide = slowly
    async with selling(etcd, valkey, shop_end, webhook_timeout_ms=60_000):
        # At least once: on a busy machine the office may change hands.
        expected = {str(parts(one)): [1, 2] for one in holds}
        await eventually_async(shop_end.by_order, "all events", until=lambda got: got == expected, within_s=120)
        assert 10 < shop_end.most <= 20


async def test_an_order_that_is_delivered_while_another_is_read(
    etcd: EtcdMember,
    valkey: Valkey,
    shop_end: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not taken up again: its later events come once, in order, and the sender has no error."""
    refusing, on_its_way, taken, reading, go_on = True, *(asyncio.Event() for _ in range(4))

    async def decide(event: dict[str, Any]) -> Response | None:
        if event["data"]["buyer"] == "bob" and not refusing and event["data"]["number"] == 1:
            on_its_way.set()
            await taken.wait()
        elif event["data"]["buyer"] == "ann" or (event["data"]["buyer"] == "bob" and refusing):
            return Response(status_code=500)
        return None

    shop_end.decide = decide
    async with selling(etcd, valkey, shop_end) as shop:
        _, bob, _ = [await held(shop, name) for name in ("ann", "bob", "cyd")]
        await eventually_async(lambda: shop.sender.view.parked == 2, "two are parked")
        refusing = False
        await asyncio.wait_for(on_its_way.wait(), WITHIN_S)
        journal = shop.store.journal

        async def slow(sku: str, **how: Any) -> Any:
            if how["limit"] == 1:
                reading.set()
                await go_on.wait()
            return await journal(sku, **how)

        monkeypatch.setattr(shop.store, "journal", slow)
        await asyncio.wait_for(reading.wait(), WITHIN_S)  # of the one that stays refused
        since = time.time()
        await eventually_async(lambda: time.time() > since + 0.5, "the back-off is long over")
        taken.set()
        await eventually_async(lambda: shop.sender.view.parked == 1, "the other one is delivered")
        go_on.set()
        await shop.submit(Cancel(*parts(bob)))
        await eventually_async(lambda: len(shop_end.of(bob.order)) == 2, "its next event")
        await held(shop, "dan")
        await eventually_async(lambda: shop_end.got[-1]["data"]["buyer"] == "dan", "what comes behind it")
        assert [one["data"]["number"] for one in shop_end.got if one["data"]["buyer"] == "bob"] == [1, 2]
    assert "unexpected error" not in caplog.text


@pytest.mark.parametrize("what", ["header", "record"])
async def test_an_attempt_that_goes_wrong(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, what: str) -> None:
    """An event that can't be sent, an unreadable record: the order is parked, and no other."""
    odd, many = [], 25 if what == "record" else 1  # more than are on their way at once
    if what == "record":
        async with selling(etcd, valkey, shop_end) as shop:
            odd = [await held(shop, f"odd{number}") for number in range(many)]
            await eventually_async(lambda: noted(shop), "first events", until=lambda state: state.count == many)
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        for one in odd:  # whose records have the shop's own number
            await shop.submit(Cancel(*parts(one)))
            valkey.ask("HSET", "seckill:{default}:records", parts(one)[1], "a stranger's")
        if what != "record":
            await held(shop, "odd", traceparent="a\nb" if what == "header" else "")
        await held(shop, "ann")
    async with selling(etcd, valkey, shop_end, webhook_retry_s=600) as shop:
        await eventually_async(lambda: shop.sender.view.parked == many, "what is odd is parked")
        await eventually_async(lambda: "ann" in [event["data"]["buyer"] for event in shop_end.got], "the other one")
        state = await eventually_async(
            lambda: noted(shop), "all is noted", until=lambda state: len(state.parked) == many
        )
        assert {(one.tries, bool(one.why)) for one in state.parked.values()} == {(1, True)}


async def test_wishes_are_granted_together(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """A second wish that comes before the first is seen takes nothing of it back."""
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        wishes = [Wish("9-0"), Wish(at=7.5), Wish("10-0", dead=True), Wish(at=8), Wish("8-1")]
        await asyncio.gather(*(wish.ask(shop.store, "default") for wish in wishes))
        assert Wish.from_text((await shop.store.outbox(["default"]))["default"].wish) == Wish("8-1", True, 7.5)
        await shop.store.ask_sender("default", "odd", instead_of=Wish("8-1", True, 7.5).to_text())
        await Wish("7-0").ask(shop.store, "default")
        assert Wish.from_text((await shop.store.outbox(["default"]))["default"].wish) == Wish("7-0")
        for orders, together in ((["2-0"], ["2-0"]), (["1-0"], ["1-0", "2-0"]), (None, None), (["1-0"], None)):
            await Wish(dead=True, orders=orders).ask(shop.store, "default")  # no more than both ask for
            wish = (await shop.store.outbox(["default"]))["default"].wish
            assert Wish.from_text(wish) == Wish("7-0", True, None, together)


async def test_a_take_over_doubles_nothing(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """What a parked order waits with is read again by a later sender, whose cursor is before it, and noted once."""
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        await held(shop, "ann")
        odd = await held(shop, "odd")
        await shop.submit(Cancel(*parts(odd)))
        events = await shop.store.journal("default")
    places = [Place(before.entry, event.entry) for before, event in itertools.pairwise(events)]
    now = time.time()
    state = DeliveryState(parked={odd.order.number: Parked(odd.order.number, [*places], now, 1, now, now, "refused")})
    feed = Feed.of("default", Outbox("1", state.to_text()))
    assert [feed.take(event) is not None for event in events] == [True, False, False]
    assert feed.state.parked[odd.order.number].places == places
    feed.state.give_up(feed.state.parked[odd.order.number], now)
    again = Feed.of("default", Outbox("1", feed.state.to_text()))
    again.state.cursor = again.read_to = ""
    assert [again.take(event) is not None for event in events] == [True, False, False]
    assert again.state.parked[odd.order.number].places == places[1:]


@pytest.mark.parametrize("since", ["1795679316150-0-1", "1_000", "1795679316150-0 ", "9999999999999-0"])
async def test_a_wish_that_cant_be_granted(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, since: str) -> None:
    """A text that is no entry, or an entry that is yet to come: all events arrive, once, and the wish is forgotten."""
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        await shop.set_stock("zoo", 5)
        await held(shop, "ann")
        await shop.store.ask_sender("default", Wish(since=since).to_text())
    async with selling(etcd, valkey, shop_end) as shop:
        await held(shop, "bob", sku="zoo")
        await eventually_async(lambda: len(shop_end.got) >= 2, "both events")
        await held(shop, "cyd")
        await eventually_async(lambda: len(shop_end.got) >= 3, "a later one")
        assert sorted(event["data"]["buyer"] for event in shop_end.got) == ["ann", "bob", "cyd"]
        assert (await shop.store.outbox(["default"]))["default"].wish == ""


@pytest.mark.parametrize("when", ["in office", "at the next one"])
async def test_a_store_that_came_back_older_than_what_was_sent(
    etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, when: str
) -> None:
    """A journal that lacks what was sent is named in a warning, whatever is sold since, until an operator says more."""
    key = "seckill:{default}:orders"
    async with AsyncExitStack() as offices:
        shop = await offices.enter_async_context(selling(etcd, valkey, shop_end))
        await held(shop, "ann")
        [(ann, _)] = valkey.ask("XRANGE", key, "-", "+")
        await held(shop, "bob")
        await eventually_async(lambda: len(shop_end.got) == 2, "both events")
        (bob, fields) = valkey.ask("XREVRANGE", key, "+", "-", "COUNT", "1")[0]
        if when == "at the next one":
            await eventually_async(lambda: noted(shop), "both are noted", until=lambda state: state.count == 2)
            await offices.aclose()
        valkey.ask("XDEL", key, bob)
        valkey.ask("XADD", key, f"{int(bob.partition('-')[0]) + 1}-0", *fields)
        if when == "at the next one":
            given = {"audit_interval_s": 0, **shop_end.settings}
            own = settings(etcd.endpoint, valkey.url, **given)
            shop = Counter(await offices.enter_async_context(open_sale(own, with_auditor=True)))
        (warning,) = await eventually_async(lambda: shop.sender.warnings, "a warning", until=lambda found: found)
        assert warning.endswith(": default")
        assert len(shop_end.got) == 2
        await Wish(since=ann).ask(shop.store, "default")
        await eventually_async(lambda: len(shop_end.got) == 3, "the one that is there now")
        await eventually_async(lambda: shop.sender.warnings == [], "nothing is missing any more")


@pytest.mark.parametrize("what", ["entry", "orders", "outbox"])
async def test_an_item_that_cant_be_read(
    etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """An entry of a later release, or a key that is not ours: this item waits, which is said once; the others go on."""
    refusing = True

    async def decide(event: dict[str, Any]) -> Response | None:
        return Response(status_code=500) if refusing else None

    shop_end.decide = decide
    caplog.set_level("INFO", "app.outbox")
    async with selling(etcd, valkey, shop_end, webhook_retry_s=0.5) as shop:
        await shop.set_stock("zoo", 5)
        for sku in ("default", "zoo"):
            await held(shop, "parked", sku=sku)
        await eventually_async(lambda: shop.sender.view.parked == 2, "both are parked")
        key = f"seckill:{{default}}:{what}".replace("entry", "orders")
        if what == "entry":
            fields = valkey.ask("XREVRANGE", key, "+", "-", "COUNT", "1")[0][1]
            broken = valkey.ask("XADD", key, "*", *("shipped" if text == "held" else text for text in fields))
        else:
            await eventually_async(lambda: noted(shop), "it is noted", until=lambda state: state.parked)
            valkey.ask("RENAME", key, f"{key}:aside")
            valkey.ask("SET", key, "a stranger's")
        refusing = False
        (warning,) = await eventually_async(lambda: shop.sender.warnings, "a warning", until=lambda found: found)
        assert "can't be read" in warning
        assert warning.endswith(": default")
        await held(shop, "ann", sku="zoo")

        def zoo() -> list[str]:
            return [event["data"]["buyer"] for event in shop_end.got if event["data"]["sku"] == "zoo"]

        await eventually_async(lambda: sorted(zoo()) == ["ann", "parked"], "the others' events")
        assert len(shop.sender.warnings) == 1
        if what == "entry":
            valkey.ask("XDEL", key, broken)
        else:
            valkey.ask("RENAME", f"{key}:aside", key)
        await eventually_async(lambda: shop.sender.warnings == [], "all goes on")
        await held(shop, "bob")
        await eventually_async(lambda: len(shop_end.got) >= 4, "its events")
        said = [one.getMessage() for one in caplog.records if one.getMessage().startswith("events of default ")]
        assert len(said) == len(set(said))
        assert any("can't be" in one for one in said)
        assert said[-1].endswith(" again")


async def test_an_item_that_another_lock_system_fenced(
    etcd: EtcdMember,
    valkey: Valkey,
    shop_end: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its events wait, which is said once; those of others are sent, once. Unfenced, it goes on."""
    refused, save = [], StockStore.save_outbox

    async def save_outbox(self: StockStore, sku: str, *about: Any) -> None:
        try:
            await save(self, sku, *about)
        except ForeignFence:
            refused.append(sku)
            raise

    monkeypatch.setattr(StockStore, "save_outbox", save_outbox)
    caplog.set_level("INFO", "app.outbox")
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        for sku in ("default", "zoo"):
            await shop.set_stock(sku, 5)
            await held(shop, "ann", sku=sku)
    slip = Slip(source="redis:another", token=7).to_text()
    valkey.ask("HSET", "seckill:{default}:outbox", "default", slip)
    async with selling(etcd, valkey, shop_end) as shop:
        (warning,) = await eventually_async(lambda: shop.sender.warnings, "a warning", until=lambda found: found)
        assert warning.endswith(": default")
        await held(shop, "bob", sku="zoo")
        await eventually_async(lambda: len(shop_end.got) >= 2, "the others' events")
        await held(shop, "cyd", sku="zoo")
        await eventually_async(lambda: len(shop_end.got) >= 3, "the others' events")
        assert [(one["data"]["sku"], one["data"]["buyer"]) for one in shop_end.got] == [
            ("zoo", buyer) for buyer in ("ann", "bob", "cyd")
        ]
        await eventually_async(lambda: len(refused) >= 4, "it is tried now and then")
        assert shop.sender.warnings == [warning]
        assert len([one for one in caplog.records if one.getMessage().startswith("events of default ")]) == 1
        await shop.unfence("default", by="operator")
        await eventually_async(lambda: len(shop_end.got) >= 4, "its own event")
        assert shop.sender.warnings == []


async def noted(shop: Any) -> DeliveryState:
    outbox = (await shop.store.outbox(["default"]))["default"]
    return DeliveryState.from_text(outbox.text)


async def test_two_instances(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """Only one of two instances sends; when it closes, the other one does."""
    async with selling(etcd, valkey, shop_end) as one:
        await eventually_async(lambda: one.sender.view.sends, "it sends")
        async with selling(etcd, valkey, shop_end, instance="other") as two:
            for number in range(30):
                await held(two, f"b{number}")
            await eventually_async(lambda: len(shop_end.got) >= 30, "all events")
            assert len(shop_end.got) == 30
            assert not two.sender.view.sends
            await one.sender.close()
            await held(two, "last")
            await eventually_async(lambda: shop_end.got[-1]["data"]["buyer"] == "last", "the other one sends")
            assert two.sender.view.sends


async def test_an_earlier_sender_is_refused(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """A save under an older token, another lock system's, or of another sale changes nothing."""
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        sale = (await shop.store.outbox(["default"]))["default"].sale
        await shop.store.save_outbox("default", Fence(7, "locks"), Outbox(sale, "seven"))
        for fence, error in ((Fence(6, "locks"), FenceRefused), (Fence(8, "others"), ForeignFence)):
            with pytest.raises(error):
                await shop.store.save_outbox("default", fence, Outbox(sale, "six"))
        with pytest.raises(StockChanged):
            await shop.store.save_outbox("default", Fence(8, "locks"), Outbox("1", "eight"))
        assert (await shop.store.outbox(["default"]))["default"].text == "seven"
        await shop.unfence("default")
        await shop.store.save_outbox("default", Fence(1, "others"), Outbox(sale, "one"))
        assert (await shop.store.outbox(["default"]))["default"].text == "one"


# -- batches ----------------------------------------------------------------------------------------------------------


async def test_events_come_in_batches(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """Some events in one signed request, each as if it were alone, with its id; one alone is a batch, too."""
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        holds = await asyncio.gather(*(held(shop, f"b{number}", ref=f"r{number}") for number in range(300)))
        await asyncio.gather(*(shop.submit(Cancel(*parts(one))) for one in holds))
    async with selling(etcd, valkey, shop_end, webhook_batch=100) as shop:
        expected = {str(parts(one)): [1, 2] for one in holds}
        await eventually_async(shop_end.by_order, "all events", until=lambda got: got == expected)
        assert max(shop_end.batches) == 100
        assert len(set(shop_end.ids)) == 600
        await held(shop, "last", ref="r")
        await eventually_async(lambda: len(shop_end.got) > 600 and shop_end.got[-1]["data"]["buyer"] == "last", "one")
        assert shop_end.batches[-1] == 1
        event = (await shop.store.journal("default", limit=1000))[-1]
        assert shop_end.got[-1] == json.loads(Message.of(event, "r").named)
        assert shop_end.got[-1]["id"] == f"default~{event.entry}"


@pytest.mark.parametrize("how", ["busy", "unreadable"])
async def test_one_event_of_a_batch(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, how: str) -> None:
    """An event that the receiver refuses, or breaks at, parks its own order, and none of its neighbours."""
    refusing = True

    async def decide(event: dict[str, Any]) -> Response | None:
        if not refusing or how == "unreadable" or event["data"]["buyer"] != "odd":
            return None
        return Response(status_code=503)

    shop_end.decide = decide
    async with selling(etcd, valkey, shop_end, webhook_url=None, webhook_secret=None) as shop:
        holds = await asyncio.gather(*(held(shop, f"b{number}" if number != 17 else "odd") for number in range(40)))
        await asyncio.gather(*(shop.submit(Cancel(*parts(one))) for one in holds))
        odd = holds[17]
        if how == "unreadable":  # a record with the shop's own number, which only a later sender has to look up
            state = await shop.store.outbox(["default"])
            held_all = (await shop.store.journal("default", limit=40))[-1].entry
            await shop.store.save_outbox(
                "default", Fence(1, "etcd"), replace(state["default"], text=DeliveryState(held_all, 40).to_text())
            )
            await shop.unfence("default")
            record = valkey.ask("HGET", "seckill:{default}:records", parts(odd)[1])
            valkey.ask("HSET", "seckill:{default}:records", parts(odd)[1], "a stranger's")
    first = 2 if how == "unreadable" else 1
    others = {str(parts(one)): [1, 2][first - 1 :] for one in holds if one is not odd}
    # Nothing that is parked is tried again by itself; but a receiver that seems to be away is.
    retry_s = 0.1 if how == "busy" else 600
    given = {"webhook_batch": 100, "webhook_timeout_ms": 500, "webhook_retry_s": retry_s}
    async with selling(etcd, valkey, shop_end, **given) as shop:
        await eventually_async(shop_end.by_order, "the others", until=lambda got: got == others)
        await eventually_async(
            lambda: shop.sender.view, "it is parked", until=lambda view: (view.parked, view.waiting) == (1, 0)
        )
        refusing = False
        if how == "unreadable":
            valkey.ask("HSET", "seckill:{default}:records", parts(odd)[1], record)
        await Wish(dead=True).ask(shop.store, "default")
        await eventually_async(
            lambda: shop_end.of(odd.order),
            "its events",
            until=lambda got: [number for number, _ in got] == [1, 2][first - 1 :],
        )
        await eventually_async(lambda: shop.sender.view.parked == 0, "it is not parked any more")


async def test_a_note_that_comes_late(
    etcd: EtcdMember, valkey: Valkey, shop_end: Receiver, stands_on: dict[str, Any]
) -> None:
    """A note of the same grant with a lower number changes nothing; that of a later grant, or of a new sale, does."""
    none = {"webhook_url": None, "webhook_secret": None}
    async with selling(etcd, valkey, shop_end, **none, **stands_on) as shop:
        save, seven = shop.store.save_outbox, Fence(7, "locks")
        outbox = (await shop.store.outbox(["default"]))["default"]
        assert outbox.number == 0
        await save("default", seven, replace(outbox, text="second", number=2))
        await save("default", seven, replace(outbox, text="first", number=1))
        found = (await shop.store.outbox(["default"]))["default"]
        assert (found.text, found.number) == ("second", 2)
        await save("default", Fence(8, "locks"), replace(outbox, text="another's", number=1))
        assert (await shop.store.outbox(["default"]))["default"].text == "another's"
        await save("default", Fence(8, "locks"), replace(outbox, text="later", number=9))
        await shop.set_stock("default", 5, new_sale=True)
        anew = (await shop.store.outbox(["default"]))["default"]
        assert (anew.text, anew.number) == ("", 0)
        await save("default", Fence(8, "locks"), replace(anew, text="anew", number=1))
        assert (await shop.store.outbox(["default"]))["default"].text == "anew"


async def test_the_command(etcd: EtcdMember, valkey: Valkey, shop_end: Receiver) -> None:
    """`seckill orders events` lists what is parked or dead, and the life of an order; `replay` has it sent again."""
    refusing = True

    async def decide(event: dict[str, Any]) -> Response | None:
        return Response(status_code=422) if refusing and event["data"]["buyer"] == "odd" else None

    shop_end.decide = decide
    env = {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": valkey.url}

    async def seckill(*arguments: str, fails: int = 0) -> str:
        done = await asyncio.to_thread(command.seckill, "orders", *arguments, env={"COLUMNS": "200"} | env)
        assert done.returncode == fails, done.stderr
        return done.stdout or done.stderr

    async with selling(etcd, valkey, shop_end, webhook_give_up_s=1) as shop:
        assert await seckill("events") == "no event is parked or dead\n"
        odd = await held(shop, "odd")
        await held(shop, "ann")
        await eventually_async(lambda: shop.sender.view.dead == 1, "a dead letter")
        rows = await eventually_async(
            lambda: seckill("events", "--json"), "it is noted", until=lambda text: "dead" in text
        )
        (row,) = json.loads(rows)
        number = odd.order.name
        assert (row["state"], row["order"], row["why"][:12]) == ("dead", number, "answered 422")
        (event,) = json.loads(await seckill("events", number, "--json"))
        assert (event["kind"], event["delivery"]) == ("held", "dead")
        title, *lines = (await seckill("events")).splitlines()
        assert title == f"{number}  dead, for receiver default"
        assert [line.split()[0] for line in lines] == ["given", "entry"] and lines[1].endswith(row["why"])
        assert f"entry {event['entry']}, delivery: dead" in await seckill("events", number)
        # As a new sale says before it forgets them:
        assert await undelivered(shop.sale.store, "default") == {"default": 1}
        refusing = False
        assert await seckill("replay", "--dead") == "the sender is asked: default\n"
        await eventually_async(lambda: shop_end.of(odd.order), "the dead letter")
        for odd_entry in ("", "1_000", "1795679316150", "1795679316150-0-1", "1795679316150-0 ", "9999999999999-0"):
            assert "--since" in await seckill("replay", "--since", odd_entry, fails=2)
        await seckill("replay", "--since", "0", "--by", "olga")
        replays = [one for one in await shop.store.log("default") if one.what == "replay"]
        assert [one.difference for one in replays] == ["events none -> behind 0", "events none -> parked or dead"]
        assert replays[0].by == "olga"
        await eventually_async(lambda: len(shop_end.got) >= 4, "all events again")
        await eventually_async(
            lambda: seckill("events", str(odd.order), "--json"),
            "that is noted",
            until=lambda text: [event["delivery"] for event in json.loads(text)] == ["delivered"],
        )

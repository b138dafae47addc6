"""Events leave, pushed and pulled, beside a book of what has come, whatever receivers, stores and operators do.

The sender and the pull are the program's, on a store in memory and on a clock that skips waits; nothing is on a wire.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from app.errors import StockUnavailable
from app.journals import Journals, rank
from app.orders import Cancel, Confirm, Event, EventKind, Extend, Hold, OrderId
from app.outbox.endpoint import Result
from app.outbox.gate import Gate
from app.outbox.message import Message
from app.outbox.receiver import Receiver
from app.outbox.sender import Sender
from app.outbox.state import DeliveryState, Wish
from app.pace import Pace
from app.stock import StockStore
from app.stock.outbox import Slip
from app.telemetry.observer import Observer
from tests.harness.memory_store import MemoryServer, MemoryStorage
from tests.harness.till import Till
from tests.harness.virtual import VirtualLoop

START_S, ITEMS = 1_700_000_000.0, ("lamp", "zoo")
RETRY_S, GIVE_UP_S, TIMEOUT_S, ASKED_MAX_S = 1.0, 40.0, 10.0, 600.0
SETTLED_S = TIMEOUT_S + 1  # for so long a request may be under way that was sent before


class Shelf(MemoryStorage):
    """A store on a wire: `slow_s`; "away" does nothing, and "lost" does it and says nothing."""

    way, slow_s, look_every_s = "", 0.0, 1.0


def _on_a_wire(name: str) -> Callable[..., Any]:
    async def call(self: Shelf, *about: Any, **how: Any) -> Any:
        await asyncio.sleep(self.slow_s)
        if self.way == "away":
            raise StockUnavailable("away")
        found = await getattr(MemoryStorage, name)(self, *about, **how)
        if self.way == "lost":
            raise StockUnavailable("no answer")
        return found

    return call


for _name in ("page", "count", "scan", "notes", "swap_note", "board", "look"):
    setattr(Shelf, _name, _on_a_wire(_name))


@dataclass(eq=False)
class Again:
    """Why events may come again that were acknowledged by then: `ids`, and those of items behind some entries."""

    ids: Collection[str]
    behind: dict[str, str]
    until: float | None = None  # None: it goes on

    def covers(self, event: Event, name: str, last: float) -> bool:
        behind = event.sku in self.behind and rank(event.entry) > rank(self.behind[event.sku])
        return (self.until is None or last <= self.until) and (name in self.ids or behind)


class Book:
    """What a receiver has taken, of what there is."""

    def __init__(self, server: MemoryServer, kinds: frozenset[EventKind] | None, now: Callable[[], float]) -> None:
        self.server, self.kinds, self.now = server, kinds, now
        self.taken: dict[str, float] = {}  # by the events' ids, when last
        self.got: list[str] = []
        self.agains: list[Again] = []
        self.wished: dict[str, float] = {}  # events that an operator wants again, since when
        self.wishes: list[tuple[str, Again]] = []
        self.alone = set[str]()  # orders of which an event was refused that was alone in its request

    def events(self, sku: str) -> dict[str, Event]:
        return {f"{sku}~{entry}": one for entry, one in self.server.items[sku].journal.items()}

    def wanted(self, *skus: str) -> dict[str, Event]:
        some = {name: one for sku in skus or ITEMS for name, one in self.events(sku).items()}
        return {name: one for name, one in some.items() if self.kinds is None or one.kind in self.kinds}

    def came(self) -> list[Event]:
        wanted = self.wanted()
        return [wanted[name] for name in self.got if name in wanted]

    def slip(self, sku: str) -> Slip:
        return Slip.from_text(self.server.items[sku].notes.get("default", "")).current(self.server.items[sku].head.sale)

    def noted(self, sku: str) -> DeliveryState:
        return DeliveryState.from_text(self.slip(sku).text)

    def apart(self, sku: str) -> set[str]:
        """What is parked or dead by the sender's note."""
        state = self.noted(sku)
        entries = [*(one.entry for one in state.dead)]
        entries += [place.entry for one in state.parked.values() for place in one.places]
        return {f"{sku}~{entry}" for entry in entries}

    def may_come_again(self, *skus: str, since: str | None = None, until: float | None = None) -> Again:
        """From now on, what the sender has not noted as delivered, and what is behind an entry."""
        behind = {sku: min((self.noted(sku).cursor, since or "9" * 18), key=rank) for sku in skus}
        self.agains.append(Again({name for sku in skus for name in self.apart(sku)}, behind, until))
        return self.agains[-1]

    def look(self) -> None:
        """A note says the truth: what is behind its cursor was taken, or is parked or dead, or nobody wants it."""
        for sku, again in list(self.wishes):
            if not self.slip(sku).wish:
                again.until = self.now() + SETTLED_S
                self.wishes.remove((sku, again))
        for sku in ITEMS:
            state, apart, there = self.noted(sku), self.apart(sku), self.events(sku)
            done = [name for name, one in there.items() if rank(one.entry) <= rank(state.cursor)]
            assert state.count == len(done)
            places = [[rank(place.entry) for place in one.places] for one in state.parked.values()]
            assert all(some == sorted(set(some)) for some in places)
            assert {f"{sku}~{number}" for number in state.parked} <= self.alone
            wanted = self.wanted(sku)
            assert not [name for name in done if name in wanted and name not in self.taken and name not in apart]

    def take(self, ids: Sequence[str], dead: Collection[str]) -> None:
        """It comes in its order's order, and again only for a reason."""
        self.look()
        for name in ids:
            sku, _, _ = name.partition("~")
            wanted = self.wanted(sku)
            event = wanted.get(name)
            if event is None:  # of the sale before
                assert name not in self.events(sku)
                continue
            before = [other for other, one in wanted.items() if one.order == event.order and one.number < event.number]
            assert all(other in self.taken or other in dead for other in before), "too early"
            last = self.taken.get(name)
            assert last is None or any(one.covers(event, name, last) for one in self.agains), "again"
            self.taken[name] = self.now()
            self.got.append(name)

    def wish(self, sku: str, since: str | None = None) -> None:
        """An operator wants events again: of those behind `since` all, and of others those that are apart."""
        self.wishes.append((sku, self.may_come_again(sku, since=since)))
        if since is not None:
            behind = {name for name, one in self.wanted(sku).items() if rank(one.entry) > rank(since)}
            self.wished |= dict.fromkeys(behind, self.now())

    def begins_anew(self, sku: str) -> None:
        for kept in (self.taken, self.wished):
            for name in [name for name in kept if name.startswith(f"{sku}~")]:
                del kept[name]

    def missing(self, *, but: Collection[str] = ()) -> list[str]:
        """What has not come, or not again, of all orders but these."""
        wanted = {name: one for name, one in self.wanted().items() if one.order.name not in but}
        return [name for name in wanted if name not in self.taken or self.taken[name] < self.wished.get(name, 0.0)]


class Shop(Observer):
    """The receiver, in its mood, and the sender with all that is around it. `told`: the results of tries, counted."""

    where = "the shop"

    def __init__(self, loop: VirtualLoop, batch: int, kinds: frozenset[EventKind] | None) -> None:
        self.loop, self.batch, self.receiver = loop, batch, Receiver("https://shop.example/", kinds=kinds)
        self.server = MemoryServer(lambda: START_S + loop.time())
        self.till, self.shelf = Till(self.server), Shelf(self.server)
        self.book = Book(self.server, kinds, loop.time)
        self.mood, self.fits, self.asks_s, self.odd, self.ahead_s = "well", 99, 0.0, dict[str, str](), 0.0
        self.orders, self.wrong, self.posts = list[OrderId](), list[AssertionError](), 0
        self.terms: list[tuple[Sender, Any, SimpleNamespace, asyncio.Task[None], Journals]] = []
        self.told = Counter[str]()

    @override
    def delivered(self, result: str, receiver: str) -> None:
        assert not receiver
        self.told[result] += 1

    # -- the receiver, as the sender's webhook -------------------------------------------------------------------------

    async def post(self, messages: Sequence[Message]) -> Result:
        assert len(messages) <= self.batch
        self.posts += 1
        result = await self.answer(messages)
        if result.why and len(messages) == 1:
            self.book.alone |= {json.loads(messages[0].body)["data"]["order"].rpartition("~")[0]}
        return result

    async def answer(self, messages: Sequence[Message]) -> Result:  # noqa: PLR0911 - a mood each
        ids, dead = [one.id for one in messages], self.dead()  # as it is sent: a later wish doesn't call it back
        for one in messages:
            told = json.loads(one.body)["data"]
            assert told["ref"] == f"ref of {told['buyer']}"
        events = [self.book.events(name.partition("~")[0]).get(name) for name in ids]
        odd = {self.odd.get(one.order.name, "") for one in events if one is not None}
        if self.mood == "hangs" or "hangs" in odd:
            await asyncio.sleep(TIMEOUT_S)
            return Result(0, "no answer")
        await asyncio.sleep(3.0 if self.mood == "slow" else 0.05)
        if self.mood == "away":
            return Result(0, "no connection")
        if self.mood.isdigit():
            return Result(int(self.mood), "refused", self.asks_s if self.mood in ("429", "503") else 0.0)
        if len(ids) > self.fits:
            return Result(413, "too large")
        if "refused" in odd:
            return Result(422, "odd")
        try:
            self.book.take(ids, dead)
        except AssertionError as error:
            self.wrong.append(error)  # as the sender goes on whatever is raised here
        if self.mood == "deaf":
            self.book.agains.append(Again(ids, {}, self.loop.time() + SETTLED_S))
            return Result(0, "no answer")
        return Result(200)

    async def close(self) -> None:
        pass

    def dead(self) -> set[str]:
        feeds = (feed for _, work, *_ in self.terms for feed in work.reader.feeds.values())
        return {f"{feed.sku}~{one.entry}" for feed in feeds for one in feed.state.dead}

    # -- what is done --------------------------------------------------------------------------------------------------

    def begins(self) -> None:
        """A sender is elected, and whoever was it before may not know."""
        locks: Any = SimpleNamespace(guarantees=SimpleNamespace(fencing=True))
        grant: Any = SimpleNamespace(token=len(self.terms) + 1, source="memory", lost=False)
        journals = Journals(StockStore(self.shelf, "fence", instance="python"), Pace(lambda: False))
        journals.start()
        webhook: Any = self
        own: Any = {"retry_s": RETRY_S, "give_up_s": GIVE_UP_S}
        sender = Sender(locks, "sender", journals, self, webhook, **own)
        work = sender.work = sender.begin(grant)
        for *_, before, _ in self.terms:
            if not before.done():
                before.add_done_callback(partial(self.ended, self.book.may_come_again(*ITEMS)))
        self.terms.append((sender, work, grant, self.loop.create_task(work.run()), journals))

    def ended(self, again: Again, _: object) -> None:
        again.until = self.loop.time() + SETTLED_S

    async def ends(self, *, crashes: bool) -> None:
        for _, _, grant, task, journals in self.terms:
            if not task.done():
                grant.lost = crashes
                task.cancel()
                await asyncio.wait([task])
            await journals.close()
        if not crashes and not self.shelf.way:
            feeds = [feed for feed in self.terms[-1][1].reader.feeds.values() if feed.claimed]
            feeds = [feed for feed in feeds if feed.outbox.sale == self.book.slip(feed.sku).sale]
            assert all(self.book.noted(feed.sku).cursor == feed.state.cursor for feed in feeds)
        self.book.may_come_again(*ITEMS, until=self.loop.time())

    async def sells(self, sku: str, count: int) -> None:
        for number in range(len(self.orders), len(self.orders) + count):
            told = await self.till.submit(Hold(1, sku, f"b{number}", ref=f"ref of b{number}"))
            assert told.order is not None
            self.orders.append(told.order)

    async def moves(self, pick: int) -> None:
        if self.orders:
            order = self.orders[-1 - pick % len(self.orders)]
            if await self.till.order(order) is not None:
                await self.till.submit((Extend(*order), Cancel(*order), Confirm(*order, f"p{order.name}", 5))[pick % 3])

    async def wishes(self, sku: str, how: str, pick: int) -> None:
        there = list(self.book.events(sku).values())
        event = there[pick % len(there)] if there else None
        if how == "dead" or event is None:
            self.book.wish(sku)
            await Wish(dead=True).ask(self.till.store, sku)
        elif how == "order":
            self.book.wish(sku)
            await Wish(dead=True, orders=[event.order.number]).ask(self.till.store, sku)
        elif how == "since":
            self.book.wish(sku, event.entry)
            await Wish(since=event.entry).ask(self.till.store, sku)
        else:
            self.book.wish(sku, str(int(event.entry) - 1))
            await Wish(at=event.at).ask(self.till.store, sku)

    async def new_sale(self, sku: str) -> None:
        self.book.begins_anew(sku)
        await self.till.set_stock(sku, new_sale=True)

    def look(self) -> None:
        self.book.look()
        assert not self.wrong, self.wrong[0]

    async def until(self, look: Callable[[], Any], within_s: float) -> None:
        end = self.loop.time() + within_s
        while not look():
            assert self.loop.time() < end, look
            await asyncio.sleep(1.0)
            self.look()

    @property
    def patience_s(self) -> float:
        """For so long it may be left alone after all that time: each try without an answer doubles the pause."""
        silent = [*self.odd.values()].count("hangs")
        return 2.0 ** (1 + silent) * self.loop.time() + 60 + min(self.asks_s, ASKED_MAX_S)


PICK = st.integers(0, 9)
# What it answers, and after which pause it wants to be asked again.
MOODS = st.sampled_from(
    [
        *(("well", 0.0), ("well", 0.0), ("slow", 0.0), ("hangs", 0.0), ("away", 0.0), ("deaf", 0.0), ("500", 0.0)),
        *(("410", 0.0), ("429", 5.0), ("429", 86_400.0), ("503", 86_400.0)),
    ]
)
ITEM, ODD = st.sampled_from(ITEMS), st.sampled_from(["refused", "refused", "hangs"])
ACTS = st.one_of(
    st.tuples(st.just("sells"), ITEM, st.integers(1, 3)),
    *[st.tuples(st.just("moves"), PICK)] * 2,
    *[st.tuples(st.just("mood"), MOODS)] * 3,
    st.tuples(st.just("odd"), PICK, ODD),
    *[st.tuples(st.just("wishes"), ITEM, st.sampled_from(["dead", "order", "since", "since", "at"]), PICK)] * 3,
    *[st.tuples(st.just("sender"), st.sampled_from(["crashes", "crashes", "ends", "beside"]))] * 2,
    st.tuples(st.just("anew"), ITEM),
    st.tuples(st.just("store"), st.sampled_from(["", "", "away", "lost"]), st.sampled_from([0.0, 0.03, 0.3])),
    st.tuples(st.just("clock"), st.sampled_from([0.0, 3600.0])),
    st.tuples(st.just("fits"), st.sampled_from([1, 2, 99])),
)
WAITS_S = st.sampled_from([0.0, 0.1, 1.0, 2.0, 3.0, 12.0, 45.0])


def test_events_leave(caplog: pytest.LogCaptureFixture) -> None:
    """At least once, again only for a reason, in order per order; what is refused stops only its own order."""
    kinds = st.sampled_from([None, None, frozenset({EventKind.HELD, EventKind.CANCELLED})])
    acts = st.lists(st.tuples(ACTS, WAITS_S), min_size=8, max_size=18)
    run = given(acts, MOODS, st.sampled_from([1, 2, 10]), kinds, PICK)(played)
    with caplog.at_level(logging.ERROR):
        settings(max_examples=50)(run)()
    assert "unexpected" not in caplog.text


def test_a_wish_is_seen_that_came_while_the_items_were_not_known() -> None:
    """The store comes back: its board can be read before the levels of the items are known again."""

    async def away(*_: Any) -> Any:
        raise StockUnavailable("away")

    async def wished(shop: Shop) -> None:
        await shop.sells("zoo", 2)
        await asyncio.sleep(3)
        with patch.object(shop.shelf, "board", away):  # the reader ends, and then nobody follows the journals
            await asyncio.sleep(3)
            shop.shelf.way = "away"
            await asyncio.sleep(3)
            await shop.wishes("zoo", "since", 0)
            await asyncio.sleep(5.5)
        shop.shelf.way = ""
        await asyncio.sleep(10)
        shop.look()
        assert not shop.book.slip("zoo").wish
        assert not shop.book.missing()

    play(wished)


@pytest.mark.parametrize(("batch", "mood"), [(1, "away"), (10, "500")])
def test_the_receiver_is_away(batch: int, mood: str) -> None:
    """It is tried now and then, whatever it refused before; nothing dies of it; and when it is back, all comes."""

    async def story(shop: Shop) -> None:
        sender, work, *_ = shop.terms[-1]
        await shop.sells("lamp", 1)
        await asyncio.sleep(2)
        shop.mood = mood
        await shop.sells("lamp", 12)
        await shop.moves(1)  # of one the second event
        await asyncio.sleep(1000)
        view = work.view
        assert (view.sends, view.waiting, view.parked, view.dead) == (True, 0, 12, 0)  # all were tried, and some again
        assert (view.away_s, view.oldest_s) == pytest.approx((1000, 1000), abs=3)
        assert sender.warnings == [f"the receiver of events is away: none got through for {view.away_s:.0f} s"]
        assert 12 < shop.posts < 70
        assert {*shop.told} == {"delivered", "unanswered" if mood == "away" else "refused"}
        shop.mood = "well"
        await shop.until(lambda: not shop.book.missing(), 1100)
        await asyncio.sleep(3)
        assert (work.gate.is_open, work.view.parked, work.view.away_s, sender.warnings) == (True, 0, 0, [])
        assert not shop.book.noted("lamp").parked

    play(story, batch)


def test_orders_that_are_refused() -> None:
    """They are no reason to wait for any other; each event is tried less and less, and then no more; some day it is."""

    async def story(shop: Shop) -> None:
        sender, work, *_ = shop.terms[-1]
        for _ in range(6):
            await shop.sells("lamp", 2)
            odd, well = shop.orders[-2:]
            await shop.till.submit(Extend(*odd))
            shop.odd[odd.name] = "refused"
            await asyncio.sleep(1)
            assert work.gate.is_open
            assert well.number in {event.order.number for event in shop.book.came()}
        view = work.view
        assert (view.parked, view.dead, view.waiting) == (6, 0, 0)
        shop.posts = 0
        await asyncio.sleep(75)
        assert (work.view.parked, work.view.dead) == (6, 6)  # the second events
        assert shop.posts <= 6 * 2 * 7
        await asyncio.sleep(100)
        assert (work.view.parked, work.view.dead) == (0, 12)
        assert sender.warnings == ["12 events are tried no more: `seckill orders events` lists them"]
        assert (shop.told["delivered"], shop.told["dead"]) == (6, 12)
        shop.odd.clear()
        shop.book.wish("lamp")
        await Wish(dead=True).ask(shop.till.store, "lamp")
        await asyncio.sleep(4)
        shop.look()
        assert not shop.book.missing()
        assert (shop.book.noted("lamp").parked, shop.book.noted("lamp").dead) == ({}, [])
        assert (work.view.parked, work.view.dead, sender.warnings) == (0, 0, [])

    play(story, 1)


@pytest.mark.parametrize(("mood", "count"), [("429", 1), ("away", 6)])
def test_an_operator_waits_for_no_pause(mood: str, count: int) -> None:
    """Neither for the one that the receiver asked for, nor for the one after many tries."""

    async def story(shop: Shop) -> None:
        shop.mood, shop.asks_s = mood, 86_400.0
        await shop.sells("lamp", count)
        await asyncio.sleep(500)
        shop.mood = "well"
        await asyncio.sleep(2)
        assert not shop.book.got
        shop.book.wish("lamp")
        await Wish(dead=True).ask(shop.till.store, "lamp")
        await asyncio.sleep(4)
        assert not shop.book.missing()

    play(story, 1)


def test_a_busy_receiver_of_batches() -> None:
    """It gets the same batch later, and none of its orders is parked."""

    async def story(shop: Shop) -> None:
        work = shop.terms[-1][1]
        for mood in ("429", "503"):
            shop.mood, shop.asks_s, shop.posts = mood, 5.0, 0
            await shop.sells("lamp", 8)
            await asyncio.sleep(4)
            assert (shop.posts, work.view.parked) == (1, 0)
            shop.mood = "well"
            await asyncio.sleep(4)
            assert (shop.posts, work.view.parked, shop.book.missing()) == (2, 0, [])

    play(story)


def test_a_batch_that_is_too_large() -> None:
    """Later ones are smaller, and none is refused for that any more."""

    async def story(shop: Shop) -> None:
        shop.fits = 3
        await shop.sells("lamp", 8)
        await asyncio.sleep(4)
        assert not shop.book.missing()
        shop.posts = 0
        shop.book.wish("lamp", "0")
        await Wish(since="0").ask(shop.till.store, "lamp")
        await asyncio.sleep(4)
        assert (shop.posts, shop.terms[-1][1].view.parked, len(shop.book.got)) == (4, 0, 16)

    play(story)


def test_nothing_is_sent_under_a_lost_grant() -> None:
    """Whoever waits for the receiver then looks again; and nothing more is noted."""

    async def story(shop: Shop) -> None:
        *_, grant, task, _ = shop.terms[-1]
        shop.mood = "away"
        await shop.sells("lamp", 9)
        await asyncio.sleep(2)
        assert shop.posts > 5
        grant.lost, shop.mood, shop.posts = True, "well", 0
        await asyncio.sleep(5)
        assert shop.posts == 0
        task.cancel()
        await asyncio.wait([task])
        shop.begins()
        *_, grant, task, _ = shop.terms[-1]
        await shop.until(lambda: not shop.book.missing(), 60)
        await asyncio.sleep(2)
        noted = shop.book.noted("lamp")
        await shop.sells("lamp", 1)
        while shop.book.missing():
            await asyncio.sleep(0.05)
        grant.lost = True
        task.cancel()
        await asyncio.wait([task])
        assert shop.book.noted("lamp") == noted

    play(story, 1)


def test_a_sender_that_was_overtaken_ends(caplog: pytest.LogCaptureFixture) -> None:
    """It hears of it as it notes what it has sent, and says so once."""

    async def story(shop: Shop) -> None:
        await shop.sells("lamp", 1)
        await asyncio.sleep(2)
        shop.begins()
        await shop.sells("lamp", 1)
        await asyncio.sleep(3)
        assert [task.done() for *_, task, _ in shop.terms] == [True, False]

    with caplog.at_level(logging.WARNING):
        play(story)
    assert len([one for one in caplog.records if "this instance can't send events" in one.getMessage()]) == 1


def test_a_few_others_are_tried_soon_when_a_receiver_says_why_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """Pauses double while it is silent; a refusal of one event is no reason to wait longer for others."""
    loop = VirtualLoop()
    receiver: Any = SimpleNamespace(where="the shop", receiver=SimpleNamespace(suffix=""))
    gate = Gate(receiver, RETRY_S, Observer())

    async def pauses_s(*said: int) -> list[float]:
        found = list[float]()
        for status in said:
            began = loop.time()
            assert await gate.admitted()
            found.append(loop.time() - began)
            gate.was_refused([], Result(status, "no"), probe=True)
            gate.tried()
        return found

    with patch("time.monotonic", loop.time), patch("random.uniform", lambda *_: 1.0):
        gate.was_refused([("lamp", str(number)) for number in range(5)], Result(0, "no answer"), probe=False)
        assert loop.play(pauses_s(0, 500, 429)) == pytest.approx([1, 2, 4], abs=0.02)
        assert loop.play(pauses_s(422, 400, 422, 413, 422)) == pytest.approx([8, 1, 1, 1, 1], abs=0.02)
        assert loop.play(pauses_s(422, 0, 422, 401, 0)) == pytest.approx([16, 1, 32, 1, 64], abs=0.02)
        gate.got_through()
        assert gate.is_open
        for _ in range(2):
            gate.was_refused([], Result(410, "gone"), probe=False)
        assert caplog.text.count("says 410 Gone") == 1  # and not for each event
        asked = [
            gate.wait_s(tries, Result(503, "busy", wait_s)) for tries, wait_s in ((3, 2), (1, 7), (1, 86_400), (99, 0))
        ]
        assert asked == [4, 7, 600, 4 * 3600]  # a receiver may say milliseconds by mistake
    loop.close()


def play(story: Callable[[Shop], Coroutine[Any, Any, None]], batch: int = 10) -> None:
    """Play a story of a shop with a sender, and look at its end whether anything came that should not."""
    loop = VirtualLoop()
    shop = Shop(loop, batch, None)

    async def all_of_it() -> None:
        for sku in ITEMS:
            await shop.till.set_stock(sku)
        shop.begins()
        try:
            await story(shop)
            shop.look()
        finally:
            await shop.ends(crashes=True)

    with patch("time.time", lambda: START_S + loop.time()), patch("time.monotonic", lambda: 1000.0 + loop.time()):
        try:
            loop.play(all_of_it())
        finally:
            loop.close()


def played(acts: list[Any], last: tuple[str, float], batch: int, kinds: frozenset[EventKind] | None, pick: int) -> None:
    loop = VirtualLoop()
    shop = Shop(loop, batch, kinds)
    with (
        patch("time.time", lambda: START_S + loop.time() + shop.ahead_s),
        patch("time.monotonic", lambda: 1000.0 + loop.time()),
        patch("app.outbox.sender._RETRY_EVERY_S", 0.5),
    ):
        try:
            acts += [(("clock", pick % 2 * 3600.0), 0.0), (("mood", last), 0.1), (("sells", "zoo", 3), 12.0)]
            loop.play(story(shop, acts, pick))
        finally:
            loop.play(shop.ends(crashes=True))
            loop.close()


async def story(shop: Shop, acts: list[Any], pick: int) -> None:  # noqa: PLR0912 - an act each
    for sku in ITEMS:
        await shop.till.set_stock(sku)
    shop.begins()
    await shop.sells("zoo", 2)
    await shop.sells("lamp", 3)
    shop.odd |= {shop.orders[pick % 5].name: "hangs", shop.orders[pick // 2].name: "refused"}
    for (act, *about), wait_s in acts:
        match act:
            case "sells":
                await shop.sells(*about)
            case "moves":
                await shop.moves(*about)
            case "mood":
                [(shop.mood, asks_s)] = about
                shop.asks_s = max(shop.asks_s, asks_s)
            case "odd":
                name = shop.orders[-1 - about[0] % len(shop.orders)].name
                if shop.odd.pop(name, "") != about[1]:
                    shop.odd[name] = about[1]
            case "wishes":
                await shop.sells(about[0], 1)
                await asyncio.sleep(0.3)  # which the sender has not noted yet
                await shop.wishes(*about)
            case "sender":
                if about[0] != "beside":
                    await shop.sells("zoo", 1)
                    await asyncio.sleep(0.3)
                    await shop.ends(crashes=about[0] == "crashes")
                shop.begins()
            case "anew":
                await shop.new_sale(*about)
            case "store":
                shop.shelf.way, shop.shelf.slow_s = about
            case "clock":
                shop.ahead_s = about[0]
            case "fits":
                shop.fits = about[0]
        await asyncio.sleep(wait_s)
        shop.look()
    await gets_well(shop, pick)
    await shop.sells("lamp", 1)
    await asyncio.sleep(0.3)
    await shop.ends(crashes=False)


async def gets_well(shop: Shop, pick: int) -> None:
    """All is well again, first but for some orders, and then for these, too; what is wished for is what comes."""
    book, store = shop.book, shop.till.store
    shop.mood, shop.shelf.way, shop.shelf.slow_s, shop.ahead_s = "well", "", 0.0, 0.0
    await shop.sells("lamp", 3)  # the first one says that the receiver is back
    for order in shop.orders[-2:]:
        await shop.till.submit(Extend(*order))
        shop.odd[order.name] = "refused"
    await shop.until(lambda: not {*book.missing(but=shop.odd)} - shop.dead(), shop.patience_s)
    shop.odd = dict.fromkeys(shop.odd, "refused")
    await asyncio.sleep(SETTLED_S + pick % 2 * 2 * GIVE_UP_S)
    shop.odd.clear()
    await asyncio.sleep(3)  # in which it is noted
    dead = {sku: {one.order for one in book.noted(sku).dead} for sku in ITEMS}
    if all_dead := [(sku, number) for sku in ITEMS for number in sorted(dead[sku])]:
        sku, number = all_dead[pick % len(all_dead)]
        book.wish(sku)
        await Wish(dead=True, orders=[number]).ask(store, sku)
        await asyncio.sleep(5)
        dead[sku].remove(number)
        assert {sku: {one.order for one in book.noted(sku).dead} for sku in ITEMS} == dead
    for sku in ITEMS:
        book.wish(sku)
        await Wish(dead=True).ask(store, sku)
    await shop.until(lambda: not book.missing(), shop.patience_s)
    await asyncio.sleep(3)
    before, behind = len(book.got), set[str]()
    for sku in ITEMS:
        there = list(book.events(sku).values())
        if there:
            event = there[pick % len(there)]
            behind |= {name for name, one in book.wanted(sku).items() if rank(one.entry) > rank(event.entry)}
            await shop.wishes(sku, "since", pick)
    await asyncio.sleep(5)
    assert sorted(book.got[before:]) == sorted(behind)
    told = [event for name in book.got[before:] for event in [book.wanted()[name]]]
    assert all(
        one.number < other.number for n, one in enumerate(told) for other in told[n + 1 :] if one.order == other.order
    )
    for sku in ITEMS:
        state, last = book.noted(sku), max(book.events(sku).values(), key=lambda one: int(one.entry), default=None)
        assert (state.cursor, state.parked, state.dead) == (last.entry if last else "", {}, [])
    shop.look()
    assert shop.terms[-1][1].gate.is_open
    view = shop.terms[-1][1].view
    assert (view.waiting, view.parked, view.dead, view.away_s, view.stuck) == (0, 0, 0, 0.0, ())

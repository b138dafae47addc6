"""The auditor of a store in memory: what it finds, and what all instances then know, on a clock that skips waits."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from typing_extensions import override

from app.audit import Auditor, AuditVerdict, audit, audit_items
from app.audit.auditor import _apart
from app.errors import StockBehind, StockCorrupt, StockUnavailable
from app.journals import Journals
from app.orders import Cancel, Confirm, Hold, Order, OrderState, Record
from app.orders.record import Line
from app.pace import Pace
from app.stock import Level
from app.telemetry.observer import Observer
from fencelock import LockUnavailable
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.till import Till
from tests.harness.virtual import VirtualLoop

EVERY_S, START_S = 5.0, 1_700_000_000.0


class Election:
    """The lock system: who comes first leads, and all hear the leader. `read`: how often the record was."""

    def __init__(self) -> None:
        self.value, self.text, self.terms, self.said = "", "", 0, asyncio.Event()
        self.lost, self.away, self.led, self.read = False, False, False, 0

    async def recorded(self) -> str:
        self.read += 1
        if self.away:
            raise LockUnavailable("away")
        return self.text

    async def record(self, text: str) -> None:
        self.text = text

    async def proclaim(self, value: str) -> None:
        self.value = value
        self.said.set()

    @asynccontextmanager
    async def campaigning(self, value: str) -> AsyncIterator["Election"]:
        while self.led:
            await asyncio.sleep(1)
        self.terms, self.led = self.terms + 1, True
        await self.proclaim(value)
        try:
            yield self
        finally:
            self.led = False

    async def observe(self) -> AsyncIterator[Any]:
        while True:
            yield SimpleNamespace(value=self.value)
            self.said.clear()
            await self.said.wait()


class Shelf(MemoryStockStore):
    """`away`: it can't be reached; `odd`: items that can't be read."""

    away, odd = False, frozenset[str]()

    @override
    async def levels(self, *about: Any) -> Any:
        return self._as_it_is(await super().levels(*about))

    @override
    async def inspect(self, *about: Any) -> Any:
        return self._as_it_is(await super().inspect(*about))

    def _as_it_is(self, found: dict[str, Any]) -> dict[str, Any]:
        if self.away:
            raise StockUnavailable("away")
        return {sku: StockCorrupt("odd") if sku in self.odd else one for sku, one in found.items()}


class House:
    """Some items, an instance that is the auditor, and one that only hears of it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop, self.election, self.server = loop, Election(), MemoryServer(lambda: START_S + loop.time())
        self.till = Till(self.server)
        self.till.store = self.store = Shelf(self.server)
        self.store.storage.look_every_s = 0.5  # type: ignore[attr-defined]
        self.journals = Journals(self.store, Pace(lambda: False))
        self.auditor, self.other = [self.candidate(name) for name in ("a", "b")]

    def candidate(self, name: str) -> Auditor:
        election: Any = self.election
        return Auditor(election, self.journals, Observer(), instance=name, every_s=EVERY_S)

    async def sells(self, sku: str, count: int = 1) -> None:
        for _ in range(count):
            await self.till.submit(Hold(1, sku))

    async def found(self) -> AuditVerdict:
        """What all know after two rounds."""
        await asyncio.sleep(2 * EVERY_S + 0.1)
        assert self.other.verdict == self.auditor.verdict is not None
        return self.auditor.verdict

    async def missing(self) -> tuple[str, ...]:
        """What all know of it a moment later, before the next round."""
        await asyncio.sleep(1.2)
        assert self.other.told_missing == self.auditor.told_missing
        return self.auditor.told_missing


def play(story: Callable[[House], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    house = House(loop)

    async def all_of_it() -> None:
        for sku in ("lamp", "zoo"):
            await house.till.set_stock(sku)
        house.journals.start()
        house.auditor.start()
        observing = asyncio.create_task(house.other._observe())
        try:
            await story(house)
        finally:
            observing.cancel()
            await house.auditor.close()
            await house.journals.close()

    with patch("time.time", house.server.clock), patch("time.monotonic", lambda: 1000.0 + loop.time()):
        try:
            loop.play(all_of_it())
        finally:
            loop.close()


def test_what_does_not_agree_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and to all as long as it lasts; so is an item that can't be read; none hides another."""

    async def story(house: House) -> None:
        await house.sells("lamp", 3)
        verdict = await house.found()
        assert (verdict.items, verdict.orders, verdict.consistent, verdict.auditor) == (2, 3, True, "a")
        assert house.auditor.units["lamp"] == (997, 0, 0, 0, 0)
        order = (await house.till.submit(Hold(1, "zoo"))).order
        assert order is not None
        await house.till.submit(Cancel(*order))
        await house.till.submit(Confirm(*order, "p", 5))
        assert ((await house.found()).owed, house.other.owed) == (1, 1)
        house.server.items["lamp"].stock = 990
        await house.sells("lamp")
        assert (await house.found()).violations == {"lamp": 1}
        assert (house.auditor.violations, house.auditor.verdict and house.auditor.verdict.consistent) == (1, False)
        house.store.odd = frozenset(("zoo",))
        assert (await house.found()).violations == {"lamp": 1, "zoo": 1}
        assert "zoo" not in house.auditor.units
        house.store.odd = frozenset()
        house.server.items["lamp"].stock = 996
        assert (await house.found()).violations == {}
        assert house.other.units == {}

    with caplog.at_level(logging.INFO, "app.audit"):
        play(story)
    said = [one.getMessage() for one in caplog.records if one.name == "app.audit.auditor"]
    assert said == [
        "stock + held + sold is 993, but 1000 units were there at the start",
        "odd",
        *["numbers and orders agree again"] * 2,
    ]


def test_sales_that_begin_anew_and_items_that_go() -> None:
    """They are no fault, and what was known of them is forgotten."""

    async def story(house: House) -> None:
        await house.sells("lamp", 3)
        await house.found()
        await house.till.set_stock("lamp", new_sale=True)
        await house.sells("zoo", 2)
        verdict = await house.found()
        assert (verdict.items, verdict.orders, verdict.consistent) == (2, 2, True)
        await house.sells("lamp", 1)
        assert ((await house.found()).orders, house.auditor.units["lamp"][0]) == (3, 999)
        del house.server.items["zoo"]
        verdict = await house.found()
        assert (verdict.items, verdict.orders, [*house.auditor.units]) == (1, 1, ["lamp"])

    play(story)


def test_items_that_nobody_buys_have_their_turn() -> None:
    """Whatever was changed of them by hand is found: a number soon, and an old order when all are read again."""

    async def story(house: House) -> None:
        for number in range(40):
            await house.till.set_stock(f"item{number}")
            await house.sells(f"item{number}")
        assert (await house.found()).consistent
        house.server.items["item7"].stock = 5
        await asyncio.sleep(6 * EVERY_S)
        assert (await house.found()).violations == {"item7": 1}
        house.server.items["item7"].stock = 999
        assert (await house.found()).violations == {}
        await house.sells("item9")
        await house.found()
        house.server.items["item9"].journal.pop(next(iter(house.server.items["item9"].journal)))
        await asyncio.sleep(60 * EVERY_S)
        assert (await house.found()).violations == {"item9": 1}

    play(story)


def test_orders_that_are_missing() -> None:
    """The item is sold nowhere until they are there again, or are given up; a later auditor knows of them, too."""

    async def story(house: House) -> None:
        put_back = house.server.copy()
        await house.sells("lamp", 2)
        await house.sells("zoo", 1)
        assert (await house.found()).missing == ()
        assert set(json.loads(house.election.text)) == {"lamp", "zoo"}
        now = house.server.items["lamp"]
        put_back()
        assert await house.missing() == ("lamp", "zoo")
        house.server.items["lamp"] = now
        read = house.election.read
        assert await house.missing() == ("zoo",)
        assert house.election.read == read + 2  # both know what is missing now
        for one in (house.auditor, house.other):
            assert (one.halted("lamp"), type(one.halted("zoo"))) == (None, StockBehind)
        house.store.odd = frozenset(("zoo",))  # that says nothing of its orders
        assert await house.missing() == ("zoo",)
        house.store.odd = frozenset()
        late, house.election.away = house.candidate("c"), True
        with pytest.raises(LockUnavailable):
            await late._observe()
        await house.auditor.close()
        assert house.other.fresh_verdict is not None
        await asyncio.sleep(3 * EVERY_S)
        assert house.other.fresh_verdict is None  # nobody is heard any more
        assert house.other.halted("zoo") is None  # so its own looks decide: it has learned what is missing
        assert isinstance(late.halted("zoo"), StockBehind)  # and this one has not
        house.election.away = False
        later = Shelf(house.server)
        house.journals.store = later
        await house.other.learn()
        assert set(later.marks()) == {"lamp", "zoo"}
        assert isinstance((await later.inspect(["zoo"]))["zoo"], StockBehind)
        house.journals.store = house.store
        house.auditor.start()
        assert (await house.found()).missing == ("zoo",)
        await house.store.accept_loss("zoo")
        assert await house.missing() == ()
        assert house.other.halted("zoo") is None

    play(story)


def test_too_many_items_to_name() -> None:
    """Then none is sold."""

    async def story(house: House) -> None:
        put_back = house.server.copy()
        await house.sells("lamp")
        await house.sells("zoo")
        await house.found()
        put_back()
        assert (await house.found()).missing == ("*",)
        assert isinstance(house.other.halted("bag"), StockBehind)
        for sku in ("lamp", "zoo"):
            await house.store.accept_loss(sku)
        assert (await house.found()).missing == ()

    with patch("app.audit.auditor._MISSING_MAX", 1):
        play(story)


def test_an_auditor_that_cant_look() -> None:
    """It tells nothing; after some rounds another instance may try."""

    async def story(house: House) -> None:
        before = await house.found()
        house.store.away = True
        await asyncio.sleep(EVERY_S + 0.5)
        assert (house.election.terms, house.auditor.in_office) == (1, True)
        house.store.away = False
        assert (await house.found()).at > before.at
        house.store.away = True
        await asyncio.sleep(3 * EVERY_S)
        assert house.election.terms == 1
        await asyncio.sleep(2 * EVERY_S)
        assert house.election.terms > 1
        assert house.other.verdict is not None
        assert house.other.fresh_verdict is None
        house.store.away = False
        await asyncio.sleep(EVERY_S)
        assert (await house.found()).consistent

    play(story)


def test_a_candidate_knows_what_auditors_have_seen() -> None:
    """At once, though another one has the office: that one may be dead."""

    async def story(house: House) -> None:
        await house.sells("lamp")
        await house.found()
        journals = house.journals
        house.journals = SimpleNamespace(store=Shelf(house.server))  # type: ignore[assignment]
        late = house.candidate("c")
        late.start()
        await asyncio.sleep(0.1)
        assert (late.in_office, house.journals.store.marks()) == (False, house.store.marks())
        await late.close()
        house.journals = journals

    play(story)


def test_one_audit() -> None:
    """A new sale that begins behind a look is no fault; of many items those that are gone are left out."""

    async def story(house: House) -> None:
        await house.sells("lamp", 2)
        level = await house.store.level("lamp")
        await house.till.set_stock("lamp", new_sale=True)
        await house.sells("lamp")
        found = await audit(level, house.store)
        assert (found.orders, found.violations) == (1, [])
        house.store.odd = frozenset(("zoo",))
        (some,) = [page async for page in audit_items(house.store, ["lamp", "none", "zoo"])]
        assert [(one.sku, one.violations) for one in some] == [("lamp", []), ("zoo", ["odd"])]
        unreached: Any = SimpleNamespace(levels=AsyncMock(return_value={"zoo": StockUnavailable("away")}))
        with pytest.raises(StockUnavailable):
            _ = [page async for page in audit_items(unreached, ["zoo"])]

    play(story)


def order(sku: str, state: OrderState, quantity: int = 2, *lines: Line) -> Order:
    return Order(sku, Record("1", "s", state, quantity, lines=lines), None, "a", 1, "b", START_S)


HELD, GONE = OrderState.HELD, OrderState.EXPIRED


@pytest.mark.parametrize(
    ("looks", "sale_s", "said"),
    [
        ([order("bag", HELD)], 0, []),
        ([order("bag", GONE)], 0, ["order case~1 is held, and its line of 2 bag expired"]),
        ([order("bag", HELD, 1)], 0, ["order case~1 is held, and its line of 2 bag held"]),
        ([order("bag", GONE), order("bag", HELD)], 0, []),  # it ended, and this was read a moment before
        ([None], -1, ["order case~1 has a line of bag, which is not there"]),
        ([None], 1, []),  # its item has begun another sale
    ],
)
async def test_an_order_with_lines(looks: list[Order | None], sale_s: int, said: list[str]) -> None:
    """Each stands as the order does, or will in a moment."""
    case, left = order("case", HELD, 1, Line("bag", 2, number="1")), iter(looks)
    level = Level("bag", 1, 0, 1, sale=str(int(START_S + sale_s) * 1000))

    async def find(sku: str, _: str) -> Order | None:
        return case if sku == "case" else next(left, looks[-1])

    store: Any = SimpleNamespace(order=find, levels=AsyncMock(return_value={"bag": level}))
    assert await _apart(store, "case~1") == said

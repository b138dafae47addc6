"""Followers of the journals hear of everything that moves, whatever stores and operators do, and ask for little."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import StockCorrupt, StockUnavailable, UnknownItem
from app.journals import ITEMS_AT_ONCE, EntryMissing, Follower, Journals, before, in_pages, page, pages
from app.orders import Hold
from app.pace import Pace
from app.stock import Level, StockStore
from tests.harness.memory_store import MemoryServer, MemoryStorage
from tests.harness.till import Till
from tests.harness.virtual import VirtualLoop

ITEMS = ("bag", "lamp", "zoo")
SOON_S = 4.0  # by then a follower has looked at everything, also where a look takes its time and a rest comes behind it


class Shelf(MemoryStorage):
    """`away`: it can't be reached; `odd`: items with odd data; `asked`: the calls."""

    look_every_s = 0.1

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.away, self.odd, self.asked = False, set[str](), list[str]()


def _counted(name: str) -> Callable[..., Any]:
    async def call(self: Shelf, *about: Any, **how: Any) -> Any:
        self.asked.append(name)
        if self.away:
            raise StockUnavailable("away")
        found = await getattr(MemoryStorage, name)(self, *about, **how)
        if name == "look":
            return {sku: StockCorrupt("odd") if sku in self.odd else one for sku, one in found.items()}
        return found | (self.odd & about[0].keys()) if name == "moved" else found

    return call


for _name in ("page", "scan", "moved", "look"):
    setattr(Shelf, _name, _counted(_name))


class House:
    """The items, their journals, and some who follow these with what they were told last of each item."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.server = MemoryServer(lambda: 1_700_000_000 + loop.time())
        self.till, self.shelf = Till(self.server), Shelf(self.server)
        self.store = StockStore(self.shelf, "fence", instance="python")
        self.journals = Journals(self.store, Pace(lambda: False))
        self.blocks = list[tuple[ExitStack, Follower, dict[str, Any]]]()

    def follows(self) -> None:
        stack = ExitStack()
        self.blocks.append((stack, stack.enter_context(self.journals.followed()), {}))

    async def acts(self, act: str, sku: str) -> None:
        there = sku in await self.till.store.items()
        match act:
            case "sells" if there:
                await self.till.submit(Hold(1, sku))
            case "anew":
                await self.till.set_stock(sku, new_sale=True)
            case "goes" if there:
                del self.server.items[sku]
                self.till = Till(self.server)  # which does not miss its orders
            case "odd":
                self.shelf.odd ^= {sku}
            case "away":
                self.shelf.away = not self.shelf.away
            case "follows":
                self.follows()
            case "leaves" if self.blocks:
                self.blocks.pop(0)[0].close()

    async def looks(self) -> None:
        """All know what there is: as told, and as the store says."""
        if self.shelf.away or not self.blocks:
            assert not (self.shelf.away and self.journals.is_current)
            if self.shelf.away:
                with pytest.raises(StockUnavailable):  # what was known is no answer
                    await self.journals.current(ITEMS[1:2])
            return
        assert self.journals.is_current
        levels = {sku: end_of(one) for sku, one in (await self.journals.now(ITEMS)).items()}
        there = {sku: levels[sku] for sku in self.server.items}
        assert {sku: end_of(one) for sku, one in self.journals.levels.items()} == there
        assert {sku: end_of(one) for sku, one in (await self.journals.current(ITEMS)).items()} == levels
        for _, follower, told in self.blocks:
            for sku in await follower.moved(0):
                told[sku] = end_of(self.journals.levels.get(sku, UnknownItem()))
            assert {sku: one for sku, one in told.items() if one != "gone"} == there
            began = self.loop.time()
            assert await follower.moved(0.5) == set()
            assert self.loop.time() > began + 0.4


def end_of(level: Any) -> Any:
    """What is to be known of an item: where its journal ends, or why that can't be read; or that it's gone.

    A new sale without an order after another one without is none that a follower could see.
    """
    if isinstance(level, Level):
        return level.last_entry and (level.sale, level.last_entry)
    return "gone" if isinstance(level, UnknownItem) else str(level)


ACTS = st.sampled_from(["sells"] * 4 + ["odd"] * 4 + ["anew", "goes", "away", "away", "follows", "leaves"])
WAITS_S = st.sampled_from([0.0, 0.0, 0.1, 1.0, SOON_S, 7.0])


@settings(max_examples=60)
@given(st.lists(st.tuples(ACTS, st.sampled_from(ITEMS), WAITS_S), min_size=4, max_size=25))
def test_all_are_told_of_all(acts: list[tuple[str, str, float]]) -> None:
    """Sales, new items, new sales and items that go; odd data, and a store that was away; and who comes later."""

    async def story(house: House) -> None:
        house.follows()
        for act, sku, wait_s in acts:
            await house.acts(act, sku)
            await asyncio.sleep(wait_s)
            if wait_s >= SOON_S:
                await house.looks()
        await asyncio.sleep(SOON_S + 3)
        await house.looks()

    play(story)


def play(story: Callable[[House], Any]) -> None:
    loop = VirtualLoop()
    house = House(loop)

    async def all_of_it() -> None:
        for sku in ITEMS[1:]:
            await house.till.set_stock(sku)
        house.journals.start()
        try:
            await story(house)
        finally:
            await house.journals.close()

    with patch("time.time", house.server.clock), patch("time.monotonic", lambda: 1000.0 + loop.time()):
        try:
            loop.play(all_of_it())
        finally:
            loop.close()


def test_little_is_asked() -> None:
    """A few questions a second while nothing comes, not many more in a rush, and none when nobody wants to know."""

    async def asked_in(house: House, seconds: int) -> int:
        house.shelf.asked.clear()
        await asyncio.sleep(seconds)
        return len(house.shelf.asked)

    async def sells_on(house: House) -> None:
        while True:
            await house.acts("sells", "zoo")
            await asyncio.sleep(0.01)

    async def story(house: House) -> None:
        assert await asked_in(house, 10) == 0
        house.follows()
        assert 10 < await asked_in(house, 20) < 20 * 5
        house.shelf.look_every_s = 0.01
        rush = asyncio.create_task(sells_on(house))
        assert 100 < await asked_in(house, 10) < 10 * 50
        rush.cancel()
        await house.acts("leaves", "")
        await asyncio.sleep(2)
        assert await asked_in(house, 10) == 0
        assert (house.journals.levels, house.journals.is_current) == ({}, False)
        known = await house.journals.current(["zoo"])
        assert await asked_in(house, 4) > 0
        house.shelf.asked.clear()
        assert await house.journals.current(["zoo"]) == known
        assert not house.shelf.asked
        await asyncio.sleep(7)
        assert await asked_in(house, 10) == 0

    play(story)


def test_pages() -> None:
    """A journal comes whole and in order, however long it is; the entry behind which it is read must be there."""

    async def story(house: House) -> None:
        for _ in range(6):
            await house.acts("sells", "lamp")
        await house.acts("sells", "zoo")
        there = await house.store.journal("lamp")
        first, last = there[0].entry, there[-1].entry
        sizes = {"": [3, 3, 0], first: [3, 2]}
        for after, expected in sizes.items():
            house.shelf.asked.clear()
            found = [some async for some in pages(house.store, "lamp", after)]
            assert [event for some in found for event in some] == there[6 - sum(expected) :]
            assert [len(some) for some in found] == [size for size in expected if size]
            assert len(house.shelf.asked) == len(expected)
        some = [event async for part in pages(house.store, "lamp", first, until=there[4].entry) for event in part]
        assert some == there[1:5]
        assert await page(house.store, "lamp", last) == []
        for sku in ("zoo", "bag"):  # another's journal, and none
            with pytest.raises(EntryMissing):
                await page(house.store, sku, there[1].entry)

    with (
        patch("app.journals.PAGE", 3),
        patch.object(page, "__kwdefaults__", {**(page.__kwdefaults__ or {}), "limit": 3}),
    ):
        play(story)


@pytest.mark.parametrize(
    ("entry", "place"),
    [("7-3", "7-2"), ("7-0", f"6-{2**64 - 1}"), ("0-1", "0-0"), ("0-0", ""), ("7", "6"), ("1", "0"), ("0", "")],
)
def test_the_place_before_an_entry(entry: str, place: str) -> None:
    """Nothing can be between it and the entry."""
    assert before(entry) == place


def test_items_are_asked_for_in_pages() -> None:
    """None is left out."""
    assert [len(some) for some in in_pages(["a"] * (ITEMS_AT_ONCE + 1))] == [ITEMS_AT_ONCE, 1]

"""Events are pulled from whatever cursor, while the shop sells, begins anew, has odd data, or comes back older."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from app.errors import CursorAhead, StockCorrupt
from app.journals import Journals
from app.orders import Hold
from app.outbox.pull import Pull
from app.pace import Pace
from app.stock import StockStore
from tests.harness.memory_store import MemoryServer, MemoryStorage
from tests.harness.till import Till
from tests.harness.virtual import VirtualLoop

ITEMS = ("lamp", "zoo")
Places = dict[str, tuple[int, str]]  # what a cursor stands for: of each item its sale, and the last entry that was read


class Shelf(MemoryStorage):
    """`odd`: an item with odd data; `meanwhile`: what happens just before a page is read."""

    odd = ""
    meanwhile: Callable[[], Any] | None = None

    @override
    async def look(self, *about: Any, **how: Any) -> Any:
        found = await super().look(*about, **how)
        return {sku: StockCorrupt("odd") if sku == self.odd else one for sku, one in found.items()}

    @override
    async def page(self, sku: str, *about: Any) -> Any:
        now, self.meanwhile = self.meanwhile, None
        if now is not None:
            await now()
        if sku == self.odd:
            raise StockCorrupt("odd")
        return await super().page(sku, *about)


class Shop:
    """The items, and a shop that pulls their events."""

    def __init__(self) -> None:
        self.server = MemoryServer(map(float, count(1_700_000_000)).__next__)
        self.till, self.shelf = Till(self.server), Shelf(self.server)
        self.pull = Pull(Journals(StockStore(self.shelf, "fence", instance="python"), Pace(lambda: False)))
        self.cursors: list[tuple[str, Places]] = [("", {})]

    async def sells(self, sku: str, count: int) -> None:
        for _ in range(count):
            await self.till.submit(Hold(1, sku))

    async def begins_anew(self, sku: str) -> None:
        await self.till.set_stock(sku, new_sale=True)

    def entries(self, sku: str) -> list[str]:
        return list(self.server.items[sku].journal)

    async def reads(self, skus: list[str], cursor: str, places: Places, limit: int) -> None:
        """Pull a page, compare it with what is there, and keep the cursor behind it."""
        odd, busy = self.shelf.odd, self.shelf.meanwhile is not None
        sales = {sku: self.server.items[sku].head.sale for sku in ITEMS}
        before = {sku: self.entries(sku) for sku in skus if sku != odd}
        at = {sku: places[sku][1] for sku in before if sku in places and places[sku][0] == sales[sku]}
        lost = {sku for sku in before if sku in places and places[sku][0] > sales[sku]}
        lost |= {sku for sku, entry in at.items() if entry not in before[sku]}
        try:
            page = await self.pull.read(skus, cursor, limit=limit)
        except CursorAhead as error:
            assert lost
            self.cursors.append((error.next, {sku: one for sku, one in places.items() if sku not in lost}))
            return
        except StockCorrupt:
            assert skus == [odd]
            return
        anew = {sku for sku in ITEMS if self.server.items[sku].head.sale != sales[sku]}
        assert page.unread == [sku for sku in skus if sku == odd]
        kept = {sku: place for sku, place in places.items() if sku == odd and sku in skus}
        came = {sku: [one.id.partition("~")[2] for one in page.messages if one.id.startswith(sku)] for sku in before}
        assert not any(came[sku] for sku in before.keys() & (anew | lost))
        for sku in lost - anew:  # it was not its turn
            kept[sku] = places[sku]
        for sku in before.keys() - anew - lost:
            there = self.entries(sku)
            begin = there.index(at[sku]) + 1 if sku in at else 0
            assert came[sku] == there[begin : begin + len(came[sku])]
            if came[sku] or sku in at:
                kept[sku] = sales[sku], [at.get(sku, ""), *came[sku]][-1]
        assert len(page.messages) <= limit
        if not lost | anew:
            unread = sum(len(some) - (some.index(at[sku]) + 1 if sku in at else 0) for sku, some in before.items())
            assert len(page.messages) >= min(limit, unread)
            assert busy or page.more == (unread > limit)
        assert not lost - anew or page.more
        self.cursors.append((page.next, kept))

    async def comes_back_older(self, sku: str, lost: int, new: int) -> None:
        put_back = self.server.copy()
        await self.sells(sku, lost)
        await self.reads(list(ITEMS), *self.cursors[-1], 1000)
        put_back()
        self.till = Till(self.server)
        await self.sells(sku, new)
        await self.reads(list(ITEMS), *self.cursors[-1], 1000)


PICK, ITEM = st.integers(0, 9), st.sampled_from(ITEMS)
LIMITS, WHICH = st.sampled_from([1, 2, 3, 5, 1000]), st.sampled_from(["both", "both", *ITEMS])
ACTS = st.one_of(
    *[st.tuples(st.just("sells"), ITEM, st.integers(1, 4))] * 2,
    *[st.tuples(st.just("pulls"), PICK, LIMITS, WHICH)] * 4,
    st.tuples(st.just("meanwhile"), st.booleans(), ITEM),
    st.tuples(st.just("odd"), ITEM, LIMITS),
    st.tuples(st.just("anew"), ITEM),
    st.tuples(st.just("older"), ITEM, st.integers(1, 3), st.integers(0, 4)),
)


@settings(max_examples=120)
@given(st.lists(ACTS, min_size=8, max_size=30))
def test_events_are_pulled(acts: list[Any]) -> None:
    """Without a gap, in order, in pages as full as they can be; what the store has lost is said."""
    loop = VirtualLoop()
    try:
        loop.play(story(acts))
    finally:
        loop.close()


async def story(acts: list[Any]) -> None:
    shop = Shop()
    for sku in ITEMS:
        await shop.till.set_stock(sku)
        await shop.sells(sku, 3)
    for act, *about in acts:
        match act:
            case "sells":
                await shop.sells(*about)
            case "pulls":
                pick, limit, which = about
                skus = list(ITEMS) if which == "both" else [which]
                cursor, places = shop.cursors[-1 - pick % len(shop.cursors)]
                await shop.reads(skus, cursor, places, limit)
            case "meanwhile":
                sells, sku = about
                shop.shelf.meanwhile = partial(shop.sells, sku, 2) if sells else partial(shop.begins_anew, sku)
            case "odd":
                odd, limit = about
                for shop.shelf.odd in (odd, ""):
                    await shop.reads(list(ITEMS), *shop.cursors[-1], limit)
            case "anew":
                await shop.begins_anew(*about)
            case "older":
                shop.shelf.meanwhile = None
                await shop.comes_back_older(*about)

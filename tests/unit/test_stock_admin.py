"""An operator's changes of the stock, on a store in memory: under the lock, past the fence, and each once."""

import asyncio
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import (
    GroupNotPossible,
    HoursNotPossible,
    NotInCatalogue,
    PriceNotPossible,
    StockNotAsExpected,
    UnknownItem,
)
from app.operator import StockAdmin
from app.orders import LATEST, NO_TERMS
from app.orders.offer import Offer
from app.stock import Fence, Level
from fencelock import LockLost
from tests.harness.memory_store import MemoryServer, MemoryStockStore


class Counter:
    """A stock with its operator; what happens on the way is noted in its order."""

    lock_prefix = "/lock/"

    def __init__(self, **more: Any) -> None:
        self.server = MemoryServer()
        self.store = MemoryStockStore(self.server)
        self.happened, self.token = list[str](), 0
        self.meanwhile: Callable[[], None] = lambda: None  # what others do before the lock is had
        self.lost, self._lock = False, asyncio.Lock()
        self.terms: Any = NO_TERMS
        self.admin = StockAdmin(self, self, self.store, learn=self.learn, **more)  # type: ignore[arg-type]

    async def learn(self) -> None:
        self.happened.append("learn")
        await asyncio.sleep(0)  # as it asks another server: others go on
        self.meanwhile()

    # -- locks

    def lock(self, name: str) -> Any:
        return SimpleNamespace(acquire=self.acquire, release=self.release)

    async def acquire(self, *, wait_s: float) -> Any:
        await self._lock.acquire()
        self.happened.append("lock")
        self.token += 1
        return SimpleNamespace(token=self.token, source="memory", ensure_held=self.ensure_held)

    def ensure_held(self) -> None:
        if self.lost:
            raise LockLost("somebody else has it")

    async def release(self) -> None:
        self._lock.release()
        raise LockLost("it was lost behind the write")  # which is done

    # -- the shop

    def lock_name(self, sku: str) -> str:
        return sku

    def terms_of(self, level: Level) -> Any:
        return self.terms.changed(level.terms.named)

    def apart(self, skus: list[str]) -> str | None:
        return "it is sold elsewhere" if "elsewhere" in skus else None

    def look_again(self, sku: str) -> None:
        self.happened.append(f"look at {sku}")

    async def serve_the_line(self, sku: str, fence: Fence) -> None:
        self.happened.append(f"serve {sku} under {fence.token}")
        self.head(stock=0, held=5, waiting=0)

    def head(self, sku: str = "lamp", **fields: Any) -> None:
        """Have others change the numbers of an item."""
        item = self.server.items[sku]
        item.head = item.head._replace(**fields)

    async def numbers(self, sku: str = "lamp") -> tuple[int, int, int, int | None]:
        level = await self.store.level(sku)
        return level.stock, level.held, level.lucky, level.initial


async def test_a_change_is_made_under_the_lock() -> None:
    """What others have seen is learnt first; the line is served; this instance forgets what it knew."""
    counter = Counter()
    await counter.admin.set_stock("lamp", 5)
    assert counter.happened == ["learn", "lock", "look at lamp"]
    counter.head(waiting=1)
    counter.happened.clear()
    level = await counter.admin.set_stock("lamp", 5, by="ann")
    assert counter.happened == ["learn", "lock", "serve lamp under 2", "look at lamp"]
    assert (level.stock, level.held) == (0, 5)
    counter.lost = True
    for change in (counter.admin.set_stock("lamp", 9), counter.admin.remove("lamp")):
        with pytest.raises(LockLost, match="^somebody else"):
            await change
    assert await counter.numbers() == (0, 5, 0, 5)
    counter.lost = False
    await counter.admin.set_stock("pen", 1)
    counter.happened.clear()
    await counter.admin.remove("pen", by="ann")
    assert counter.happened == ["learn", "lock", "look at pen"]
    assert await counter.admin.items() == ["lamp"]


@pytest.mark.parametrize(
    ("units", "numbers"),
    [(None, (5, 3, 2)), (10, (5, 3, 2)), (12, (7, 3, 2)), (7, (2, 3, 2)), (5, (0, 3, 2)), (4, None)],
)
async def test_units_of_a_file_are_all_of_the_sale(units: int | None, numbers: Any) -> None:
    """Held and sold ones are among them, so that it can be loaded during the sale, and twice."""
    counter, offer = Counter(), Offer(units, {"limit_per_buyer": 2})
    await counter.admin.set_stock("lamp", 10)
    counter.head(stock=5, held=3, lucky=2)
    if numbers is None:
        for refused in (counter.admin.difference("lamp", offer), counter.admin.put_on_sale("lamp", offer, by="ann")):
            with pytest.raises(StockNotAsExpected, match="5 are sold or held"):
                await refused
        return
    for _ in range(2):
        assert (await counter.admin.put_on_sale("lamp", offer, by="ann")).terms.limit_per_buyer == 2
        assert await counter.numbers() == (*numbers, units or 10)
        assert await counter.admin.difference("lamp", offer) == []


@pytest.mark.parametrize("before", [None, 300, 500])
async def test_a_file_that_is_loaded_twice_at_once_counts_once(before: int | None) -> None:
    """All have read the units before any changes them; the others see that they are right, whatever is sold."""
    counter = Counter()
    if before is not None:
        await counter.admin.set_stock("lamp", before)

    def buy() -> None:
        item = counter.server.items.get("lamp")
        if item and item.head.lucky < 3:
            counter.head(stock=item.head.stock - 1, lucky=item.head.lucky + 1)  # type: ignore[operator]

    counter.meanwhile = buy
    await asyncio.gather(*(counter.admin.put_on_sale("lamp", Offer(400, {}), by="ann") for _ in range(3)))
    stock, _, lucky, initial = await counter.numbers()
    assert (stock + lucky, initial, lucky > 1) == (400, 400, True)


async def test_units_are_sold_while_a_file_is_loaded() -> None:
    """More of them are added beside the sale; some are taken away only of what was seen, and else it is tried again."""
    counter = Counter()
    await counter.admin.set_stock("lamp", 10)
    counter.meanwhile = lambda: counter.head(stock=9, lucky=1)
    await counter.admin.put_on_sale("lamp", Offer(12, {}), by="ann")
    assert await counter.numbers() == (11, 0, 1, 12)
    counter.meanwhile = lambda: counter.head(stock=10, lucky=2)
    await counter.admin.put_on_sale("lamp", Offer(8, {}), by="ann")
    assert await counter.numbers() == (6, 0, 2, 8)
    await counter.admin.set_stock("lamp", 1000, new_sale=True, forget_orders=None)
    sold = itertools.count(1)

    def go_on() -> None:
        units = next(sold)
        counter.head(stock=1000 - units, lucky=units)

    counter.meanwhile = go_on
    with pytest.raises(StockNotAsExpected, match="are sold faster than some can be taken away"):
        await counter.admin.put_on_sale("lamp", Offer(900, {}), by="ann")
    with pytest.raises(UnknownItem, match="say its units"):
        await counter.admin.difference("new", Offer(None, {}))


@pytest.mark.parametrize(
    ("terms", "refused"),
    [
        ({"starts_at": 100.0, "ends_at": 100.0}, HoursNotPossible),
        ({"starts_at": 100.0, "ends_at": 100.1}, None),
        ({"ends_at": 50.0}, HoursNotPossible),  # the item's own start is at 60
        ({"ends_at": 61.0}, None),
        ({"ends_at": 0}, None),
        ({"starts_at": -1.0}, HoursNotPossible),
        ({"ends_at": LATEST + 1}, HoursNotPossible),
        ({"price": 1505, "currency": "KWD"}, PriceNotPossible),
        ({"price": 1500, "currency": "KWD"}, None),
        ({"limit_group": "2 elsewhere"}, GroupNotPossible),
        ({"limit_group": "2 pen"}, None),
    ],
)
async def test_odd_terms_are_refused(terms: Any, refused: type[Exception] | None) -> None:
    """Hours by which nothing is ever sold, a price that nobody charges, a limit over what is sold apart."""
    counter = Counter(never_paid=lambda price, _: "not in fives" if price % 10 else None)
    await counter.admin.set_stock("lamp", 5, terms={"starts_at": 60.0})
    if refused is None:
        await counter.admin.set_stock("lamp", 0, add=True, terms=terms)
    else:
        for change in (
            counter.admin.set_stock("lamp", 0, add=True, terms=terms),
            counter.admin.difference("lamp", Offer(None, terms)),
        ):
            with pytest.raises(refused):
                await change
    assert (await counter.numbers())[0] == 5


async def test_a_new_item_is_one_of_the_catalogue() -> None:
    """A mistyped one is refused with a hint; one that is no longer there can still be ended."""
    counter = Counter(catalogue=["phone", "lamp"])
    with pytest.raises(NotInCatalogue, match="'phnoe' is not in the catalogue; did you mean phone"):
        await counter.admin.set_stock("phnoe", 1)
    assert await counter.admin.items() == []
    await counter.admin.set_stock("lamp", 1)
    counter.admin.catalogue = ["phone"]
    await counter.admin.set_stock("lamp", 0, add=True, terms={"ends_at": 1.0})


async def test_what_is_given_away_and_what_is_closed() -> None:
    """By the item's own terms, and else by the settings'; of what is gone nothing is given away."""
    counter = Counter()
    for sku, units, terms in (("lamp", 1, {}), ("pen", 0, {}), ("cup", 1, {"price": 5, "currency": "EUR"})):
        await counter.admin.set_stock(sku, units, terms=terms)
    assert await counter.admin.unpriced() == ["lamp"]
    level = await counter.store.level("lamp")
    now = time.time()
    for starts_at, ends_at, why in ((None, now, "ended"), (now + 60, None, "not started"), (now, now + 60, None)):
        counter.terms = NO_TERMS.changed({"starts_at": starts_at, "ends_at": ends_at})
        assert (why or "None") in str(counter.admin.closed(level))
    counter.terms = NO_TERMS.changed({"price": 5, "currency": "EUR"})
    assert await counter.admin.unpriced() == []

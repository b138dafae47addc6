"""The marks under sellers who come, sell, remember and go at random, while the store is put back and answers are lost.

What must hold of what is kept beside the locks, whatever happens, and of who sells after a loss (ADR 7).
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest
import redis

from app.embedded import Valkey
from app.errors import FenceRefused, LockUnavailable, StockBehind, StockChanged
from app.locks.redis.lock import RedisBackend
from app.sale.marks import Marks
from app.stock import Batch, Fence, Sold
from app.stock.redis.keys import Keys, place_of
from app.stock.redis.store import RedisStockStore

_SKU = "phone"
_PLACE = f"/marks-at-random/!known/{_SKU}"
_SECONDS = 3
_SELLERS = 3
_ROUNDS = 4


class Place(RedisBackend):
    """Where the mark is kept: a real server; calls may fail, before they do anything or after. Notes each change."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.failing = 0.0
        self.changed: Callable[[str, str], None] = lambda old, new: None

    @property
    def mark(self) -> str:
        return self.recall([_PLACE]).get(_PLACE, "")

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        fate = random.random()
        if fate < self.failing / 2:
            raise LockUnavailable("nobody there")
        done = super().remember(marks, instead_of=instead_of)
        for name in done:
            self.changed(instead_of.get(name, ""), marks[name])
        if fate < self.failing:
            raise LockUnavailable("the answer was lost")
        return done


class World:
    """The servers, and what has come of it."""

    def __init__(self, valkey: Valkey, place: Place) -> None:
        self.store_url = valkey.url
        self.place = place
        self.raw = redis.Redis.from_url(valkey.url)
        self.sellers: list[Seller] = []
        self.stores: list[RedisStockStore] = []  # also of those who have gone
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._tokens = itertools.count(1)
        self._copies: list[Callable[[], None]] = []
        place.changed = self._look_at

    def is_missing(self, mark: str) -> bool:
        """Whether it stands for an order of this sale, or of one that is to come, that is not there."""
        sale, entry = place_of(mark)
        of_now = int(self.raw.hget(Keys(_SKU).fence, "sale") or 0)
        return of_now < int(sale) or (of_now == int(sale) and not self.raw.xrange(Keys(_SKU).orders, entry, entry))

    def _look_at(self, old: str, new: str) -> None:
        self.counts["changes"] += 1
        if new < old:
            self.counts["back"] += 1
            if not self.is_missing(new):
                self.wrong.append(f"{new}, which is there, was put in the place of {old}, which came later")
        elif old and self.is_missing(old) and not self.is_missing(new):
            self.wrong.append(f"{new} was put in the place of {old}, which is missing")

    def fence(self) -> Fence:
        return Fence(next(self._tokens), "redis:1")

    def copy(self) -> None:
        """Make a backup of the store."""
        keys = Keys(_SKU).all
        with self.raw.pipeline() as pipe:  # all at one moment
            for key in keys:
                pipe.dump(key)
            dumps = dict(zip(keys, pipe.execute(), strict=True))

        def put_back() -> None:
            with self.raw.pipeline() as pipe:
                pipe.delete(*keys)
                for key, dump in dumps.items():
                    if dump is not None:
                        pipe.restore(key, 0, dump)
                pipe.execute()

        self._copies.append(put_back)

    def lose(self, *, latest: int = 3) -> None:
        """Put back one of the latest backups; those that are later than it are of no use any more."""
        if self._copies:
            number = random.choice(range(len(self._copies))[-latest:])
            del self._copies[number + 1 :]
            self._copies[number]()
            self.counts["losses"] += 1

    async def newcomer(self) -> "Seller":
        seller = Seller(self)
        while True:
            with contextlib.suppress(LockUnavailable):
                await seller.marks.learn([_SKU])
                self.sellers.append(seller)
                return seller


class Seller:
    """An instance, as far as it sells and remembers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = RedisStockStore(world.store_url)
        world.stores.append(self.store)
        self.marks = Marks(world.place, self.store, lambda sku: _PLACE)
        self._before: dict[str, str] = {}
        self._ticks = random.choice([3, 10, 40])

    @property
    def last(self) -> str | None:
        return self.store.marks().get(_SKU)

    async def sell(self) -> None:
        """Raises `StockBehind`. That somebody else was faster is as it may be."""
        fence = self.world.fence()
        batch_id = str(fence.token)
        with contextlib.suppress(FenceRefused, StockChanged):
            seen = await self.store.read(_SKU, fence, batch_id)
            await asyncio.sleep(random.choice([0, 0, 0.002]))
            await self.store.commit(_SKU, fence, Batch(batch_id, seen.stock, [Sold(1)]))
            self.world.counts["sold"] += 1

    async def tick(self) -> None:
        """What it does twice a second."""
        now = self.store.marks()
        at_least = self._before.get(_SKU, "")
        well = await self.marks.keep_now(self._before)
        self._before = now
        mark = self.world.place.mark
        if well and mark < at_least and not self.world.is_missing(mark):
            self.world.wrong.append(f"{mark} is what is kept, after {at_least} was to be")

    async def live(self) -> None:
        """Sell and remember, as chance will have it, until it is time to go."""
        while True:
            await asyncio.sleep(random.random() * 0.003)
            match random.choices(["sell", "tick", "rest", "go"], [80, self._ticks, 5, 2])[0]:
                case "sell":
                    try:
                        await self.sell()
                    except StockBehind:
                        self.world.counts["refused"] += 1
                        await asyncio.sleep(0.01)
                case "tick":
                    await self.tick()
                case "rest":
                    await asyncio.sleep(random.random() * 0.2)
                case "go":
                    if random.random() < 0.5:
                        await self.marks.keep_now(self.store.marks())
                    return


async def one_after_the_other(world: World) -> None:
    while True:
        seller = await world.newcomer()
        await seller.live()
        world.sellers.remove(seller)


async def losses(world: World) -> None:
    """The store is put back; after a while the operator accepts that, or does not yet."""
    while True:
        for _ in range(random.randrange(3, 12)):
            await asyncio.sleep(random.random() * 0.05)
            world.copy()
        world.lose()
        await asyncio.sleep(random.random())
        if random.random() < 0.8:
            await accept(world)


async def accept(world: World) -> None:
    operator = await world.newcomer()
    await operator.store.accept_loss(_SKU)
    world.sellers.remove(operator)


async def one_more_loss(world: World) -> None:
    """Of what some have seen, and perhaps remembered, and others have not."""
    await accept(world)
    world.copy()
    for seller in random.choices(world.sellers, k=2):
        with contextlib.suppress(StockBehind):
            await seller.sell()
        if random.random() < 0.3:
            await seller.tick()
    world.lose(latest=1)


@pytest.fixture
def place() -> Iterator[Place]:
    with Valkey() as server:
        place = Place(server.url)
        yield place
        place.close()


@pytest.mark.parametrize("loses", [False, True])
def test_no_loss_is_forgotten(valkey: Valkey, place: Place, loses: bool) -> None:
    """A mark gives way to a later order or to a missing one; a missing one that anybody knows of stops everybody."""

    async def main() -> World:
        world = World(valkey, place)
        first = RedisStockStore(valkey.url)
        await first.set_stock(_SKU, world.fence(), 10**6)
        await first.close()
        place.failing = 0.1
        tasks = [asyncio.create_task(one_after_the_other(world)) for _ in range(_SELLERS)]
        if loses:
            tasks.append(asyncio.create_task(losses(world)))
        await asyncio.wait(tasks, timeout=_SECONDS)
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise AssertionError from end
        place.failing = 0
        if loses:
            await one_more_loss(world)
        known = {place.mark, *(seller.last or "" for seller in world.sellers)} - {""}
        lost = {mark for mark in known if world.is_missing(mark)}
        for _ in range(_ROUNDS):
            for seller in random.sample(world.sellers, len(world.sellers)):
                with contextlib.suppress(StockBehind):
                    await seller.sell()
                await seller.tick()
        await world.newcomer()
        for seller in world.sellers:
            if lost:
                with pytest.raises(StockBehind):
                    await seller.sell()
            else:
                await seller.sell()
        for store in world.stores:
            await store.close()
        world.raw.close()
        return world

    world = asyncio.run(main())
    assert world.wrong == []
    assert world.counts["sold"]
    assert loses or not world.counts["refused"]

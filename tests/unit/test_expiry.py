"""Units whose time is up go back soon, of each item, whatever becomes of the others: on virtual time."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from app.errors import NotDecided, StockCorrupt, StockError, UnknownItem
from app.journals import EVERY_S, ITEMS_AT_ONCE, Follower
from app.sale.expiry import Expiry
from app.stock import Level
from tests.harness.virtual import VirtualLoop

SOON_S = EVERY_S + 0.1


class Sale:
    """The journals, and the shop, of items that have units which go back at some moment.

    `due_at`: when, by the shop; `by_store`: when, by the store's clock, if that is another moment; `line`: the items
    with a line; `errors`: of items that can't be read. `how`: what becomes of an attempt to give units back.
    """

    def __init__(self, loop: VirtualLoop, how: Callable[[str], Any] = lambda sku: asyncio.sleep(0)) -> None:
        self.loop, self.how = loop, how
        self.due_at, self.by_store = dict[str, float](), dict[str, float]()
        self.line = set[str]()
        self.errors = dict[str, StockError]()
        self.begun = list[tuple[str, float]]()
        self.looks = list[str]()
        self.under_way = self.most = 0
        self.follower = Follower()

    @property
    def levels(self) -> dict[str, Level | StockError]:
        return {sku: self._level(sku) for sku in {*self.due_at, *self.line, *self.errors}}

    def _level(self, sku: str) -> Level | StockError:
        if sku in self.errors:
            return self.errors[sku]
        at = self.by_store.get(sku, self.due_at.get(sku) if sku not in self.line else None)
        due_in_s = None if at is None else at - self.loop.time()
        return Level(sku, 0, 0, None, due_in_s=due_in_s, waiting=int(sku in self.line))

    async def now(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        self.looks += skus
        return {sku: self._level(sku) for sku in skus}

    @contextmanager
    def followed(self) -> Iterator[Follower]:
        self.follower.tell(self.levels.keys())
        yield self.follower

    def due_in_s(self, level: Level) -> float | None:
        at = self.due_at.get(level.sku)
        if at is None or (level.sku in self.line and at > self.loop.time()):  # no journal tells of a line's end
            return None
        return max(0.0, at - self.loop.time())

    async def give_back(self, sku: str) -> None:
        self.begun.append((sku, self.loop.time()))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.how(sku)
            self.due_at.pop(sku, None)
            self.by_store.pop(sku, None)
        finally:
            self.under_way -= 1


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    monkeypatch.setattr("fencelock.now", loop.time)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


def look(sale: Sale, for_s: float, in_office: Callable[[], bool] = lambda: True) -> None:
    """Look after a sale for some seconds."""
    shop: Any = sale
    expiry = Expiry(shop, shop, in_office)

    async def work() -> None:
        expiry.start()
        await asyncio.sleep(for_s)
        await expiry.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    sale.loop.play(work())


def test_units_go_back_as_their_time_is_up(loop: VirtualLoop) -> None:
    """By the clock that ends holds; where orders wait also as the sale ends, which no journal tells."""
    sale = Sale(loop)
    sale.due_at = {"a": 3.0, "ahead": 14.0, "line": 7.0}
    sale.by_store = {"ahead": 4.0}
    sale.line = {"line", "calm"}
    look(sale, 30)
    assert [sku for sku, _ in sale.begun] == ["a", "line", "ahead"]
    (_, a), (_, line), (_, ahead) = sale.begun
    assert 3 <= a <= 3 + SOON_S
    assert 14 <= ahead <= 14 + SOON_S
    assert 7 <= line <= 12 + SOON_S
    assert sale.looks.count("calm") in (5, 6)


def test_a_clock_that_is_right_again_is_seen(loop: VirtualLoop) -> None:
    """What the store's clock says is looked at when it says so: it may count from some moment on."""
    sale = Sale(loop)
    sale.due_at, sale.by_store = {"a": 100.0}, {"a": 5.0}
    loop.call_at(4.0, sale.due_at.update, {"a": 5.0})
    look(sale, 10)
    assert [sku for sku, at in sale.begun if at <= 5 + SOON_S] == ["a"]


def test_what_can_not_be_given_back_is_tried_again(loop: VirtualLoop, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the attempt has raised; only an error of ours is logged."""
    errors = iter([NotDecided("it took too long"), RuntimeError("ours"), StockCorrupt("odd")])

    async def fails(sku: str) -> None:
        if error := next(errors, None):
            raise error

    sale = Sale(loop, fails)
    sale.due_at = {"a": 1.0}
    with caplog.at_level(logging.WARNING):
        look(sale, 10)
    assert [sku for sku, _ in sale.begun] == ["a"] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "unexpected error in ending holds that have expired of a"
    ]


def test_many_items_are_due_at_once(loop: VirtualLoop) -> None:
    """So many are given back at a time, each once, and in the end all; the rest ends with the looking."""
    sale = Sale(loop, lambda sku: asyncio.sleep(2))
    skus = [f"item-{number}" for number in range(ITEMS_AT_ONCE + 30)]
    sale.due_at = dict.fromkeys(skus, 1.0)
    look(sale, 10)
    assert sorted(sku for sku, _ in sale.begun) == sorted(skus)
    assert sale.most == ITEMS_AT_ONCE
    sale = Sale(loop, lambda sku: asyncio.sleep(1000))
    sale.due_at = {"a": loop.time()}
    look(sale, 10)
    assert (len(sale.begun), sale.under_way) == (1, 0)


def test_only_who_is_in_office_looks(loop: VirtualLoop) -> None:
    """From when it is, and until it is not."""
    sale = Sale(loop)
    sale.due_at = {"a": 1.0, "b": 10.0, "c": 30.0}
    look(sale, 40, lambda: 5 <= loop.time() < 20)
    assert [sku for sku, _ in sale.begun] == ["a", "b"]
    assert 5 <= sale.begun[0][1] <= 5 + SOON_S


def test_an_item_that_can_not_be_read(loop: VirtualLoop) -> None:
    """It is looked at again; one that is gone is not."""
    sale = Sale(loop)
    sale.errors = {"odd": StockCorrupt("odd"), "gone": UnknownItem("gone")}
    sale.due_at = {"odd": 1.0}
    loop.call_at(5.0, sale.errors.pop, "odd")
    look(sale, 10)
    assert [(sku, at <= 5 + 2 * SOON_S) for sku, at in sale.begun] == [("odd", True)]
    assert "gone" not in sale.looks

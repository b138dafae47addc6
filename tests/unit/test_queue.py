"""The queue of a lock's buyers: its items and their pauses, and who is answered when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from app.errors import ItemBlocked, NotDecided
from app.orders import DEFAULT_SKU, Answer, Outcome, Purchase
from app.sale import Rules
from app.sale.queue import Queue
from app.sale.worker import Worker
from app.stock import Fence
from app.telemetry.observer import Observer
from fencelock import Grant
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import VirtualLock


async def test_only_the_item_itself_is_forgotten() -> None:
    """Forgetting an item does not affect a later item of the same name."""
    queue = Queue(limit=10, observer=Observer(), on_work=lambda: None)
    deadline = asyncio.get_running_loop().time() + 60
    queue.join(Purchase(), deadline)
    [first] = queue.take(1)
    queue.answer(first, Answer(Outcome.SOLD_OUT, 0))
    queue._items.clear()
    waiting = queue.join(Purchase(), deadline)
    for item in (first.item, queue.item(DEFAULT_SKU)):  # nor one that somebody waits for
        queue.forget(item)
        assert queue.waiting_by_item == {DEFAULT_SKU: 1}
    queue.close()
    with pytest.raises(NotDecided):
        await waiting


async def test_who_is_told_that_nothing_was_sold_is_not_sold_to() -> None:
    """A buyer's answer comes a few turns of the loop after the decision, and the buyer is in no batch meanwhile."""
    queue = Queue(limit=10, observer=Observer(), on_work=lambda: None)
    told = queue.join(Purchase(), asyncio.get_running_loop().time() + 60)
    [entry] = queue.take(1)
    queue.answer(entry, entry.too_late("it took too long"))
    assert not told.done() and not entry.wanted
    queue.put_back([entry])
    assert queue.take(1) == []
    with pytest.raises(NotDecided):
        await told


class SlowlyReleased(VirtualLock):
    """A lock whose release takes some turns of the loop, as a call over a network does."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    @asynccontextmanager
    async def holding(
        self, *, wait_s: float | None = None, owner: object = None, hold_max_s: float | None = None
    ) -> AsyncIterator[Grant]:
        async with super().holding(wait_s=wait_s, owner=owner, hold_max_s=hold_max_s) as grant:
            yield grant
            for _ in range(3):
                await asyncio.sleep(0)
            self._events.append("released")


async def test_the_lock_is_given_back_before_the_buyers_are_told() -> None:
    """Answers take longer than the batch, and other instances wait for the lock, so the release comes first."""
    events: list[str] = []
    store = MemoryStockStore(MemoryServer(lambda: 1e9))
    await store.set_stock(DEFAULT_SKU, Fence(1, "virtual"), 5)
    worker = Worker(cast(Any, SlowlyReleased(events)), store, Rules(), Observer())
    told = worker.queue.join(Purchase(), asyncio.get_running_loop().time() + 60)
    told.add_done_callback(lambda _: events.append("told"))
    assert (await told).outcome is Outcome.SOLD
    await worker.drain(1)
    assert events == ["released", "told"]


class Uncounted(Observer):
    """An observer that fails at each buyer."""

    def answered(self, outcome: str) -> None:
        raise RuntimeError(outcome)


async def test_who_can_not_be_counted_is_told() -> None:
    """Although the observer fails, all buyers of a batch get their answer: their deadlines ended with the queue."""
    queue = Queue(limit=10, observer=Uncounted(), on_work=lambda: None)
    deadline = asyncio.get_running_loop().time() + 60
    told = [queue.join(Purchase(), deadline) for _ in range(3)]
    for entry in queue.take(3):
        queue.answer(entry, Answer(Outcome.SOLD_OUT, 1))
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the error is logged
    assert [answer.outcome for answer in await asyncio.gather(*told)] == [Outcome.SOLD_OUT] * 3


async def test_the_first_pause_of_an_item_counts() -> None:
    """Another one that begins meanwhile makes it neither shorter nor longer; a queue that is closed wakes nobody."""
    woken = list[str]()
    queue = Queue(limit=10, observer=Observer(), on_work=lambda: woken.append("up"))
    item = queue.item("a")
    queue.park(item, 0.02)
    queue.park(item, 0.001)
    await asyncio.sleep(0.01)
    assert (woken, item.parked is None) == ([], False)
    await asyncio.sleep(0.03)
    assert (woken, item.parked) == (["up"], None)
    queue.park(item, 0.01)
    left = queue.join(Purchase(sku="a"), asyncio.get_running_loop().time() + 60)
    queue.close()
    assert isinstance(left.exception(), NotDecided)  # at once: the loop may be at its end
    await asyncio.sleep(0.02)
    assert woken == ["up"]


async def test_an_item_that_was_blocked_is_tried_at_an_operators_word() -> None:
    """Although its pause is not over."""
    queue = Queue(limit=10, observer=Observer(), on_work=lambda: None)
    queue.park(queue.item("a"), 60)
    queue.block(queue.item("a"))
    deadline = asyncio.get_running_loop().time() + 60
    with pytest.raises(ItemBlocked):
        queue.join(Purchase(sku="a"), deadline)
    queue.look_again("a")
    waiting = queue.join(Purchase(sku="a"), deadline)
    assert [queue.waiting_by_item, queue.has_work] == [{"a": 1}, False]
    queue.close()
    assert waiting.exception()


async def test_more_items_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that nobody waits for are forgotten to make room; buyers and pauses are not, and buyers are shown first."""
    monkeypatch.setattr("app.sale.queue._ITEMS_KEPT", 4)
    monkeypatch.setattr("app.sale.queue._SHOWN_MAX", 2)
    queue = Queue(limit=100, observer=Observer(), on_work=lambda: None)
    queue.park(queue.item("paused"), 60)
    deadline = asyncio.get_running_loop().time() + 60
    for number in range(20):
        queue.item(f"asked for {number}")
    waiting = [queue.join(Purchase(sku=sku), deadline) for sku in ("a", "b")]
    for number in range(100):
        queue.item(f"item {number}")
    assert [queue.knows(sku) for sku in ("a", "b", "paused", "asked for 1")] == [True, True, True, False]
    assert len(queue._items) < 15
    assert queue.waiting_by_item == {"a": 1, "b": 1}
    queue.close()
    assert all(one.exception() for one in waiting)

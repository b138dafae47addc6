"""The queue knows items that could not be sold, and purchases that nobody waits for any more."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from app.errors import ItemBlocked, NotDecided, OutcomeUnknown, StockBehind, StockUnavailable
from app.orders import DEFAULT_SKU, Answer, Outcome, Purchase
from app.sale import Rules
from app.sale.queue import Queue
from app.sale.worker import Worker
from app.stock import Fence
from app.telemetry.observer import Observer
from fencelock import Grant, LockTimeout
from fencelock.lease import Lease
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import VirtualLoop


class NoHold:
    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        pass


class VirtualLock:
    """A fair lock in memory, in no process but this one."""

    name = "/lock"
    ttl_s = 1000.0

    def __init__(self) -> None:
        self._queue: deque[tuple[object, asyncio.Event]] = deque()
        self.token = 0

    @asynccontextmanager
    async def holding(
        self, *, wait_s: float | None = None, owner: object = None, hold_max_s: float | None = None
    ) -> AsyncIterator[Grant]:
        place = (object(), asyncio.Event())
        self._queue.append(place)
        self._wake()
        try:
            try:
                await asyncio.wait_for(place[1].wait(), wait_s)
            except TimeoutError:
                raise LockTimeout("not free") from None
            self.token += 1
            yield Grant(self.name, self.token, "virtual", Lease(self.name, NoHold(), float("inf")))
        finally:
            if place in self._queue:
                self._queue.remove(place)
            self._wake()

    def _wake(self) -> None:
        if self._queue:
            self._queue[0][1].set()


def test_an_error_counts_while_it_is_tried_again() -> None:
    """The error of an unsellable item is reported while buyers want it, and not for ever.

    The buyers are refused at once.
    """
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        store = MemoryStockStore(MemoryServer(lambda: 1e9 + loop.time()))
        loop.play(store.set_stock(DEFAULT_SKU, Fence(10**6, "virtual"), 1))
        worker = Worker(cast(Any, VirtualLock()), store, Rules(), Observer())

        async def errors_after(seconds: float) -> dict[str, Exception]:
            await asyncio.sleep(seconds)
            return worker.queue.errors

        async def buy() -> None:
            until = loop.time() + 60
            while loop.time() < until:
                began = loop.time()
                with pytest.raises(ItemBlocked):
                    await worker.queue.join(Purchase(1, DEFAULT_SKU, None, None), began + 60)
                assert loop.time() - began < 1
                await asyncio.sleep(0.3)

        buying = loop.create_task(buy())
        for _ in range(50):
            assert "has seen token" in str(loop.play(errors_after(1))[DEFAULT_SKU])
        assert loop.play(errors_after(20)) == {}
        assert buying.done()
        loop.play(worker.drain(1))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Lossy(MemoryStockStore):
    """A store that loses the answer to a commit, and is then replaced by a copy without the order."""

    lost = False

    async def prepare(self, fence: Fence, batch_id: str, asks: Any) -> Any:
        if self.lost:
            return {sku: StockBehind("an order is missing") for sku in asks}
        return await super().prepare(fence, batch_id, asks)

    async def resolve(self, fence: Fence, batches: Any) -> Any:
        return await self.prepare(fence, "", batches)

    async def commit(self, fence: Fence, batches: Any, together: Any = ()) -> Any:
        await super().commit(fence, batches, together)
        self.lost = True
        raise StockUnavailable("no answer")


class Grants(Observer):
    """An observer that counts grants."""

    count = 0

    def granted(self, lock: str, token: int, waited_s: float) -> None:
        self.count += 1


def test_nobody_takes_the_lock_for_purchases_that_nobody_waits_for() -> None:
    """An unresolved batch in doubt is retried as long as its buyers wait, and then dropped."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        store = Lossy(MemoryServer(lambda: 1e9 + loop.time()))
        loop.play(store.set_stock(DEFAULT_SKU, Fence(1, "virtual"), 5))
        grants = Grants()
        worker = Worker(cast(Any, VirtualLock()), store, Rules(), grants)

        async def buy() -> None:
            with pytest.raises(OutcomeUnknown):
                await worker.queue.join(Purchase(), loop.time() + 30)

        loop.play(buy())
        assert grants.count > 10  # it was retried again and again
        loop.play(asyncio.sleep(5))
        count = grants.count
        loop.play(asyncio.sleep(60))
        assert grants.count == count
        loop.play(worker.drain(1))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_only_the_item_itself_is_forgotten() -> None:
    """Forgetting an item does not affect a later item of the same name."""
    queue = Queue(limit=10, observer=Observer(), on_work=lambda: None)
    deadline = asyncio.get_running_loop().time() + 60
    queue.join(Purchase(), deadline)
    [first] = queue.take(1)
    queue.answer(first, Answer(Outcome.SOLD_OUT, 0))
    queue._items.clear()
    waiting = queue.join(Purchase(), deadline)
    queue.forget(first.item)
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

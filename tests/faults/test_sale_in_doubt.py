"""The sale over a lock that excludes only mostly, and a store whose calls are lost, late or doubled all the time.

What the torture does now and then to whole processes happens here at each call. Workers and stores are the real ones,
over a real Valkey; what lies between them and it can't be trusted.
"""

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from app.audit.auditor import audit
from app.errors import FenceRefused, NotDecided, OutcomeUnknown, StockUnavailable
from app.sale import Answer, Outcome, Purchase, Rules
from app.sale.batch import decide_part
from app.sale.in_doubt import InDoubt
from app.sale.queue import Queue
from app.sale.worker import Worker
from app.stock import Ask, Fence, Order, Snapshot, StockStore, Terms
from app.stock.redis.store import RedisStockStore
from app.telemetry.observer import Observer
from fencelock import LockLost
from lab.servers import Valkey
from tests.harness.waiting import WITHIN_S

_SOURCE = "etcd:1"
_SECONDS = 2.5
_RARE = ("late: stale", "fenced", "resolved: not_committed", "hung up")  # must happen before it ends
_FOR_A_GRANT_S = 0.5


@dataclass
class Grant:
    """Of a lock whose holder finds out now and then that it has lost it."""

    token: int
    source: str = _SOURCE

    def ensure_held(self) -> None:
        if random.random() < 0.01:
            raise LockLost("lost")


@dataclass
class LeakyLock:
    """Gives greater tokens to later ones, and one in five times does not wait for whoever holds it."""

    mutex: asyncio.Lock
    tokens: "itertools.count[int]"
    name: str = "leaky"
    ttl_s: float = 1.0

    @asynccontextmanager
    async def holding(self, wait_s: float, hold_max_s: float) -> AsyncIterator[Grant]:
        excludes = random.random() < 0.8
        if excludes:
            try:
                async with asyncio.timeout(_FOR_A_GRANT_S):
                    await self.mutex.acquire()
            except TimeoutError:
                excludes = False
        try:
            yield Grant(next(self.tokens))
        finally:
            if excludes:
                self.mutex.release()


class Doubt:
    """Lies between stores and their server: some answers are lost, some calls arrive when nobody expects them."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._late: list[Callable[[], Awaitable[Any]]] = []

    def come_between(self, store: RedisStockStore, of_calls: float) -> None:
        """So large a part of the calls of a store that prepare and commit meets with a fault."""
        client = store._sale
        deliver, commands = client.run, client.commands

        async def run(script: Any, *call: Any, **options: Any) -> Any:
            fate = random.random() / of_calls
            if script not in (store._prepare, store._commit) or fate >= 1:
                await asyncio.sleep(random.random() * 0.004)  # whoever asks first isn't always served first
                answer = await deliver(script, *call, **options)
                await self._let_some_in()
                return answer
            if fate < 0.3:
                await deliver(script, *call, **options)
                raise StockUnavailable("the answer was lost")
            if fate < 0.4:
                raise StockUnavailable("nobody there", untouched=True)
            self._late.append(partial(deliver, script, *call))
            raise StockUnavailable("no answer in time")

        @asynccontextmanager
        async def and_then(timeout_s: float | None = None) -> AsyncIterator[Any]:
            async with commands(timeout_s) as redis:
                yield redis
            await self._let_some_in()

        client.run, client.commands = run, and_then  # type: ignore[method-assign, assignment]

    async def _let_some_in(self) -> None:
        """Right behind a call that has been served: sooner or later behind each that it could harm."""
        while self._late and random.random() < 0.3:
            await self._let_in(random.randrange(len(self._late)))

    async def _let_in(self, number: int) -> None:
        answers = await self._late.pop(number)()
        self._counts.update(f"late: {answer[0]}" for answer in answers)

    async def end(self) -> None:
        """Let all of them in."""
        while self._late:
            await self._let_in(0)


class Tally(Observer):
    """Counts the writes that were fenced off, and what became of the batches in doubt."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def resolved(self, result: str) -> None:
        self._counts[f"resolved: {result}"] += 1

    def fenced(self, lock: str, sku: str) -> None:
        self._counts["fenced"] += 1


@pytest.mark.parametrize(
    ("items", "units", "limit", "batch_max", "one_by_one"),
    [
        pytest.param(1, 2000, 0, 1000, False, id="plenty of one item"),
        pytest.param(3, 200, 2, 1000, False, id="the last units, with a limit"),
        pytest.param(3, 2000, 0, 5, False, id="several batches a grant"),
        pytest.param(2, 200, 2, 1000, True, id="a call for each item, as in a cluster"),
    ],
)
async def test_nothing_is_lost_doubled_or_untrue(
    valkey: Valkey, items: int, units: int, limit: int, batch_max: int, one_by_one: bool
) -> None:
    """Numbers and orders agree; whoever was told of an order has it, and whoever was told "nothing" has none."""
    skus = [f"item-{number}" for number in range(items)]
    tokens = itertools.count(10)
    counts: Counter[str] = Counter()
    told: list[tuple[Purchase, Answer | BaseException]] = []
    loop = asyncio.get_running_loop()
    operator = RedisStockStore(valkey.url)
    for sku in skus:
        await operator.set_stock(sku, Fence(next(tokens), _SOURCE), units)
    stores = [RedisStockStore(valkey.url, instance=f"i{number}", timeout_s=1) for number in range(4)]
    doubt = Doubt(counts)
    mutex = asyncio.Lock()
    rules = Rules(terms=Terms(limit_per_buyer=limit), batch_max=batch_max, purchase_timeout_s=0.6, max_hold_s=0.1)
    workers = []
    for store, of_calls in zip(stores, (0.05, 0.1, 0.2, 0.3), strict=True):
        doubt.come_between(store, of_calls)
        if one_by_one:
            store._clustered = True
        lock: Any = LeakyLock(mutex, tokens)
        workers.append(Worker(lock, store, rules, Tally(counts)))

    async def buy(number: int) -> None:
        purchase = wish(number, random.choice(skus), limit)
        worker, patience_s = random.choice(list(zip(workers, (0.3, 2, 0.05, 2), strict=True)))
        buying = worker.queue.join(purchase, loop.time() + patience_s)
        try:
            if random.random() < 0.05:  # a buyer who hangs up
                await asyncio.wait_for(buying, 0.02)
            told.append((purchase, await buying))
        except (NotDecided, OutcomeUnknown) as error:
            told.append((purchase, error))
        except TimeoutError:
            counts["hung up"] += 1

    stocked = dict.fromkeys(skus, units)

    async def restock() -> None:
        for sku in skus:
            if not (await operator.level(sku)).stock:
                await operator.set_stock(sku, Fence(next(tokens), _SOURCE), units, add=True)
                stocked[sku] += units

    buying = []
    end = loop.time() + _SECONDS
    for number in itertools.count():
        if loop.time() >= end:
            if all(counts[kind] for kind in _RARE) or loop.time() >= end + WITHIN_S:
                break
            await restock()  # where nothing is left nothing is written, and nothing can go wrong any more
        buying.append(asyncio.create_task(buy(number)))
        if number % 3 == 0:
            await asyncio.sleep(0.005 * random.random())
    await asyncio.gather(*buying)
    for worker in workers:
        await worker.drain(1)
    await doubt.end()
    try:
        await judge(operator, stocked, limit, told)
    finally:
        for store in (*stores, operator):
            await store.close()
    assert all(counts[kind] for kind in _RARE), f"a test of fair weather: {counts}"


def wish(number: int, sku: str, limit: int) -> Purchase:
    """Some have keys, which come again and again; some have bought before, if there is a limit."""
    if random.random() < 0.4:
        key = f"{sku}-key-{random.randrange(400)}"
        return Purchase(1, sku, f"buyer-of-{key}", key)
    again = limit and random.random() < 0.2
    buyer = f"again-{random.randrange(20)}" if again else f"once-{number}"
    return Purchase(random.choice([1, 1, 2]), sku, buyer)


async def judge(
    store: StockStore, stocked: dict[str, int], limit: int, told: list[tuple[Purchase, Answer | BaseException]]
) -> None:
    """Compare what lies in the store with what its buyers were told; `stocked`: the units that each item was given."""
    orders: dict[str, Order] = {}
    for sku, units in stocked.items():
        level = await store.level(sku)
        assert level.initial == units
        assert (found := await audit(level, store)).consistent, found.violations
        of_item: list[Order] = []
        while page := await store.orders(sku, after=of_item[-1].id if of_item else None, limit=1000):
            of_item += page
        if limit:
            bought: Counter[str | None] = Counter()
            for order in of_item:
                bought[order.buyer] += order.quantity
            assert max(bought.values()) <= limit
        orders |= {order.id: order for order in of_item}
    of_buyer = defaultdict(list)
    for order in orders.values():
        of_buyer[order.buyer].append(order)
    assert not [who for who, found in of_buyer.items() if who and who.startswith("once-") and len(found) > 1]
    sold = [(purchase, answer) for purchase, answer in told if isinstance(answer, Answer)]
    for purchase, answer in sold:
        if answer.outcome is Outcome.SOLD:
            order = orders[answer.order_id or ""]
            wanted = (purchase.sku, purchase.quantity, purchase.buyer, purchase.key)
            assert (order.sku, order.quantity, order.buyer, order.key) == wanted
    first_told = [a.order_id for _, a in sold if a.outcome is Outcome.SOLD and not a.replayed]
    assert len(first_told) == len(set(first_told)), "two were told that an order is theirs"
    nothing = {
        purchase.buyer
        for purchase, answer in told
        if isinstance(answer, NotDecided) or (isinstance(answer, Answer) and answer.outcome is not Outcome.SOLD)
    }
    assert not [who for who in nothing if who and who.startswith("once-") and of_buyer[who]], "told that they have none"


async def test_a_settlement_that_the_fence_refuses_is_tried_again(valkey: Valkey) -> None:
    """While others have gone before us a batch stays in doubt; under a later grant it is known what became of it."""
    store, queue = RedisStockStore(valkey.url), Queue(limit=1, observer=Observer(), on_work=lambda: None)
    in_doubt = InDoubt(store, Observer())
    try:
        await store.set_stock("default", Fence(1, _SOURCE), 5)
        buying = queue.join(Purchase(key="k"), asyncio.get_running_loop().time() + 60)
        entries, ours = queue.take(1), Fence(2, _SOURCE)
        snapshot = (await store.prepare(ours, "b", {"default": Ask(keys=["k"])}))["default"]
        assert isinstance(snapshot, Snapshot)
        part = decide_part(entries[0].item, "b", snapshot, entries, everywhere=Terms())
        await store.commit(ours, {"default": part.write})
        in_doubt.add([part])  # as if the answer had been lost
        await store.prepare(Fence(9, _SOURCE), "another", {"default": Ask()})
        [(_, refused)] = await in_doubt.resolve(Fence(3, _SOURCE), in_doubt.next_parts())
        assert isinstance(refused, FenceRefused)
        assert in_doubt.has_work
        [(_, ids)] = await in_doubt.resolve(Fence(10, _SOURCE), in_doubt.next_parts())
        assert ids == [order.id for order in await store.orders("default")]
        assert not in_doubt
        queue.close()
        with pytest.raises(NotDecided):
            await buying
    finally:
        await store.close()

"""The tasks of two instances that sell from one store under one lock, in every order with few oddities.

Buyers, the store and the lock system are outside of the event loop, which says in which order they are heard
(`tests/harness/chosen_loop.py`): a call is slow or lost, or its answer is; time passes at a bad moment; a buyer
hangs up. Every schedule with one or two such oddities is played. Some tests break the code on purpose, to see that
the explorer finds out.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from app.errors import Closing, NotDecided, OutcomeUnknown, SeckillError, StockError, StockUnavailable
from app.orders import DEFAULT_SKU, Answer, Ask, OrderId, Outcome, Purchase, Snapshot
from app.sale import Rules
from app.sale.batch import Part
from app.sale.in_doubt import InDoubt
from app.sale.queue import Entry, EntryState, Queue
from app.sale.shop import Shop
from app.sale.worker import Worker
from app.stock import Batch, Fence, StockStore
from app.telemetry.observer import Observer
from fencelock.backoff import Backoff
from tests.harness.chosen_loop import ChosenLoop, When
from tests.harness.explorer import BrokenPromise, Schedule, explore
from tests.harness.memory_locks import MemoryLocks, MemoryLockServer, Wire
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import let_locks_count_on

pytestmark = pytest.mark.slow

TIMEOUT_S = 2.0  # of a call to the store
PATIENCE_S = 5.0  # of a buyer
TTL_S = 4.0
RULES = Rules(purchase_timeout_s=PATIENCE_S)
LOCK = "/lock/all"
Play = Callable[[Schedule], None]

happened: Counter[str] = Counter()  # in all schedules of a test together


@pytest.fixture(autouse=True)
def loops_own_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    let_locks_count_on(lambda: asyncio.get_running_loop().time(), monkeypatch)
    happened.clear()
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


class Heard(Observer):
    """Counts what happens. `answers`: buyers of one sale who were answered."""

    def __init__(self) -> None:
        self.answers = 0

    def answered(self, outcome: str) -> None:
        self.answers += 1
        happened[outcome] += 1

    def resolved(self, result: str) -> None:
        happened[result] += 1

    def fenced(self, lock: str, sku: str) -> None:
        happened["fenced"] += 1

    def lost(self, lock: str) -> None:
        happened["lost"] += 1


class LoopWire(Wire):
    """The lock system is heard when the loop lets it be."""

    def __init__(self, loop: ChosenLoop, whose: str) -> None:
        self._loop = loop
        self._whose = whose

    async def ask(self, name: str, call: Callable[[], Any]) -> Any:
        answer = self._loop.create_future()
        self._loop.expect(f"{self._whose}'s {name} is answered", lambda: _set(answer, call()), to=self._whose)
        return await answer

    def tell(self, name: str, push: Callable[[], None]) -> None:
        self._loop.expect(f"{self._whose} hears: {name}", push, to=self._whose)


def _set(future: "asyncio.Future[Any]", answer: object) -> None:
    if not future.done():
        future.set_result(answer)


def _now(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what awaits nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it awaits something")


class Path:
    """An instance's path to the store."""

    FATES = ("is answered", "is done, and its answer is lost", "arrives when nobody waits for it any more", "is lost")

    def __init__(self, sale: "Sale", store: StockStore, whose: str) -> None:
        self._sale = sale
        self._store = store
        self._whose = whose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        return cast(Any, await self._call("prepare", lambda: self._store.prepare(fence, batch_id, asks)))

    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        self._sale.sent |= {str(sold.buyer) for batch in batches.values() for sold in batch.sold}
        return cast(Any, await self._call("commit", lambda: self._store.commit(fence, batches)))

    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        return await StockStore.resolve(cast(StockStore, self), fence, batches)  # over this path

    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        return await self._store._find(sku, batch)

    async def _call(self, name: str, call: Callable[[], Coroutine[Any, Any, object]]) -> object:
        loop, what = self._sale.loop, f"{self._whose}'s {name}"
        answer = loop.create_future()
        # A read has no fourth fate, as that would make no difference.
        fate = loop.choose(4 if name == "commit" else 3, lambda option: f"{what} {self.FATES[option]}")
        self._sale.troubles += fate > 0

        def arrives() -> None:
            answers = _now(call())
            if fate == 0 and name == "commit":
                loop.expect(f"{what} is answered", lambda: _set(answer, answers), to=self._whose)
            elif fate == 0:
                _set(answer, answers)

        match fate:
            case 0 | 1:
                loop.expect(f"{what} arrives", arrives, to=self._whose)
            case 2:
                loop.call_later(TIMEOUT_S + 1, arrives)
        gives_up = loop.call_later(TIMEOUT_S, lambda: answer.done() or answer.set_exception(StockUnavailable("")))
        try:
            return await answer
        finally:
            gives_up.cancel()


class Sale:
    """Two instances, a store, a lock system, and the buyers."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        stock: int,
        rules: Rules = RULES,
        store: type[MemoryStockStore] = MemoryStockStore,
        shuffled: bool = False,
    ) -> None:
        self.loop = ChosenLoop(schedule, shuffled=shuffled)
        self.server = MemoryServer(lambda: 1e9 + self.loop.time())
        self.lock_server = MemoryLockServer()
        self.lock_server.token = 1
        self.heard = Heard()
        self.rules = rules
        self.locks: list[MemoryLocks] = []
        self.shops: list[Shop] = []
        self.stores: list[MemoryStockStore] = []
        for name in "AB":
            self.stores.append(store(self.server, instance=name))
            path = cast(Any, Path(self, self.stores[-1], name))
            self.locks.append(MemoryLocks(self.lock_server, LoopWire(self.loop, name), ttl_s=TTL_S))
            self.shops.append(Shop(self.locks[-1].aio, path, rules, self.heard, lock_prefix="/lock"))
        self.restock(DEFAULT_SKU, stock)
        self.wanted: dict[str, Purchase] = {}
        self.told: dict[str, Answer | Exception] = {}
        self.sent: set[str] = set()  # buyers in a commit that was sent
        self.not_to_be_sold_to: set[str] = set()
        self.hung_up = 0
        self.left_behind = 0  # buyers of an instance that has been stopped
        self.longest_s = 0.0  # that anybody has waited
        self.troubles = 0  # calls to the store with which something was wrong
        self.bearable = 1  # so many of them are no reason not to be served
        self._buying = 0
        self._all_told: asyncio.Future[None] = self.loop.create_future()

    def restock(self, sku: str, units: int) -> None:
        """So many are for sale, before anybody comes."""
        _now(self.stores[0].set_stock(sku, Fence(1, "memory"), units))

    # -- what can happen ---------------------------------------------------------------------------------------------

    def comes(
        self,
        shop: int,
        who: str,
        *,
        when: When = When.IN_TURN,
        after_s: float = 0.0,
        may_hang_up: bool = False,
        **fields: Any,
    ) -> None:
        """A buyer comes, for one unit under their own name unless something else is said."""
        self.wanted[who] = purchase = Purchase(**{"buyer": who, **fields})
        has_hung_up = False

        async def buy() -> None:
            came_at = self.loop.time()
            try:
                self.told[who] = await self.shops[shop].submit(purchase, gone=lambda: has_hung_up)
            except SeckillError as error:
                self.told[who] = error
            self.longest_s = max(self.longest_s, self.loop.time() - came_at)

        def arrives() -> None:
            task = self.loop.create_task(buy(), name=who)
            task.add_done_callback(self._is_over)
            if may_hang_up:
                self.loop.expect(f"{who} hangs up", lambda: hangs_up(task), to="AB"[shop], when=When.NEVER)

        def hangs_up(task: "asyncio.Task[None]") -> None:
            nonlocal has_hung_up
            has_hung_up = True
            self.hung_up += task.cancel()
            happened["hung up"] += 1
            if purchase.buyer not in self.sent:
                self.not_to_be_sold_to.add(who)

        self._buying += 1
        if after_s:
            self.loop.call_later(after_s, arrives)
        else:
            self.loop.expect(f"{who} comes to {'AB'[shop]}", arrives, to="AB"[shop], when=when)

    def _is_over(self, _: object) -> None:
        self._buying -= 1
        if not self._buying:
            self.loop.calm = True
            self._all_told.set_result(None)

    def may_lose_the_lock(self, *, notices: bool) -> None:
        """The lock system may forget who has the lock; they notice at once, or not in time."""

        def forgets() -> None:
            queue = self.lock_server.queues.get(LOCK, [])
            if queue:
                happened["forgotten"] += 1
                holder = queue[0]
                self.lock_server.forget_holder(LOCK)
                if notices and holder.lease is not None:
                    holder.lease.lose("it was forgotten")

        self.loop.expect("the lock is lost", forgets, to=None if notices else "the lock system", when=When.NEVER)

    def may_close(self, shop: int, within_s: float) -> None:
        """An instance may be stopped."""

        async def close() -> None:
            await self.shops[shop].close(within_s=within_s)
            self.left_behind += self.shops[shop].buyers_waiting

        def is_stopped() -> None:
            self._buying += 1
            self.loop.create_task(close()).add_done_callback(self._is_over)

        self.loop.expect(f"{'AB'[shop]} is stopped", is_stopped, to="AB"[shop], when=When.NEVER)

    # -- what must be so ---------------------------------------------------------------------------------------------

    def play(self) -> None:
        """All of it, and what must be so at its end."""
        try:
            self.loop.play(self._play())
        finally:
            self.loop.calm = True
            for task in (tasks := asyncio.all_tasks(self.loop)):
                task.cancel()
            if tasks:
                self.loop.play(asyncio.wait(tasks))
            self.loop.close()

    async def _play(self) -> None:
        await self._all_told
        self.check()
        if self.troubles <= self.bearable and not self.loop.hurried:
            late = [answer for answer in self.told.values() if not isinstance(answer, Answer | Closing)]
            assert not late, f"that is no reason not to be served: {late}"
        await asyncio.sleep(10.0)
        for number, shop in enumerate(self.shops):
            if not shop.closing and shop._workers:
                self._all_told = self.loop.create_future()
                self.comes(number, last := f"the last one at {'AB'[number]}")
                await self._all_told
                assert isinstance(self.told[last], Answer), f"nobody is served any more: {self.told[last]!r}"
                assert not any(worker._in_doubt for worker in shop._workers.values())
                await shop.close(within_s=3.0)
            assert not shop.buyers_waiting
            await self.locks[number].leave_loop()
        await asyncio.sleep(20.0)  # what is late arrives
        self.check()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task is left"
        assert not self.lock_server.queues.get(LOCK), "somebody is left in the queue for the lock"

    def check(self) -> None:
        """Nothing is oversold, and nobody was told an untruth."""
        orders = {order.id: order for item in self.server.items.values() for order in item.orders}
        for item in self.server.items.values():
            assert item.stock is not None
            assert item.stock >= 0
            assert item.lucky == sum(order.quantity for order in item.orders)
            assert item.stock + item.lucky == item.initial
        purchases = [order.key or order.buyer for order in orders.values()]
        assert len(purchases) == len(set(purchases)), "a purchase is sold once"
        assert not self.not_to_be_sold_to.intersection(purchases), "who has hung up is sold to"
        told = [answer for answer in self.told.values() if not isinstance(answer, Closing)]
        assert not self.left_behind
        assert self.longest_s < self.rules.purchase_timeout_s + self.loop.stood_still_s + 0.02, "told too late"
        assert 0 <= self.heard.answers - len(told) <= self.hung_up, "each is answered once"
        for buyer, answer in self.told.items():
            wanted = self.wanted[buyer]
            match answer:
                case Answer(outcome=Outcome.SOLD, order=OrderId() as order_id):
                    order = orders[order_id]
                    assert (order.sku, order.buyer, order.key) == (wanted.sku, wanted.buyer, wanted.key)
                case Answer() | NotDecided() | Closing():
                    assert wanted.key is not None or buyer not in purchases, "nothing was sold: untrue"
                case _:
                    assert isinstance(answer, OutcomeUnknown), answer


def three_come(schedule: Schedule) -> None:
    """To two instances, for two units; the third one when the others are served, or earlier."""
    sale = Sale(schedule, stock=2)
    sale.comes(0, "a")
    sale.comes(1, "b")
    sale.comes(0, "c", when=When.WHEN_ALL_IS_QUIET)
    sale.play()


def one_comes_later(schedule: Schedule) -> None:
    """Before the first one is served, or after, or just then."""
    sale = Sale(schedule, stock=1)
    sale.comes(0, "a")
    sale.comes(0, "b", when=When.WHEN_ALL_IS_QUIET)
    sale.play()


def one_hangs_up(schedule: Schedule) -> None:
    """While another one waits at the same instance."""
    sale = Sale(schedule, stock=3)
    sale.comes(0, "a", may_hang_up=True)
    sale.comes(0, "b")
    sale.play()


def one_asks_again(schedule: Schedule) -> None:
    """With the same key, at the other instance, perhaps when the first one is not waited for any more."""
    sale = Sale(schedule, stock=3)
    sale.comes(0, "a", buyer="k", key="k", may_hang_up=True)
    sale.comes(1, "a again", buyer="k", key="k")
    sale.play()


def one_has_no_patience(schedule: Schedule) -> None:
    """Less than the store has time for an answer; nor has the next one, who comes a little later."""
    sale = Sale(schedule, stock=3, rules=replace(RULES, purchase_timeout_s=TIMEOUT_S / 2))
    sale.bearable = 0
    sale.comes(0, "a")
    sale.comes(0, "b", key="k", after_s=TIMEOUT_S / 4)
    sale.play()


def the_lock_is_lost(schedule: Schedule) -> None:
    """Its holder does not know, and goes on."""
    sale = Sale(schedule, stock=1)
    sale.may_lose_the_lock(notices=False)
    sale.comes(0, "a")
    sale.comes(1, "b")
    sale.play()


def the_lock_is_seen_to_be_lost(schedule: Schedule) -> None:
    """Its holder is told in the middle of what it does."""
    sale = Sale(schedule, stock=1)
    sale.may_lose_the_lock(notices=True)
    sale.comes(0, "a")
    sale.play()


def one_is_stopped(schedule: Schedule) -> None:
    """It gives up the buyers that it has after a second."""
    sale = Sale(schedule, stock=3)
    sale.may_close(0, within_s=1.0)
    sale.bearable = 0
    sale.comes(0, "a")
    sale.comes(0, "b")
    sale.play()


class Hesitant(MemoryStockStore):
    """Can't be asked of one item at first."""

    away = True

    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        answers = await super().prepare(fence, batch_id, asks)
        if "other" in answers and self.away:
            self.away = False
            answers["other"] = StockUnavailable("not now", untouched=True)
        return answers


def an_item_is_parked(schedule: Schedule) -> None:
    """Its buyers wait, and those of another one are served."""
    sale = Sale(schedule, stock=1, store=Hesitant)
    sale.restock("other", 1)
    sale.comes(0, "a", sku="other")
    sale.comes(0, "b")
    sale.play()


def it_is_stopped_with_an_item_parked(schedule: Schedule) -> None:
    """Sooner than the item comes back, or later."""
    sale = Sale(schedule, stock=1, store=Hesitant)
    sale.restock("other", 1)
    sale.may_close(0, within_s=0.01)
    sale.bearable = -1
    sale.comes(0, "a", sku="other")
    sale.play()


def they_take_turns(schedule: Schedule) -> None:
    """Serve one purchase a grant."""
    sale = Sale(schedule, stock=2, rules=replace(RULES, batch_max=1))
    sale.comes(0, "a")
    sale.comes(0, "b")
    sale.comes(1, "c")
    sale.play()


def tasks_go_on_in_any_order(schedule: Schedule) -> None:
    """Not only in the order in which they became ready, which asyncio keeps to."""
    sale = Sale(schedule, stock=3, shuffled=True)
    sale.comes(0, "a", may_hang_up=True)
    sale.play()


@pytest.mark.parametrize(
    ("play", "deviations", "at_least", "rare"),
    [
        (three_come, 1, 70, {"committed", "not_committed", "NotDecided", "sold_out"}),
        pytest.param(
            one_comes_later,
            2,
            1000,
            {"committed", "not_committed", "NotDecided", "sold_out"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(one_hangs_up, 2, 800, {"hung up", "committed"}, marks=pytest.mark.exhaustive),
        pytest.param(one_asks_again, 2, 1500, {"hung up", "unasked", "committed"}, marks=pytest.mark.exhaustive),
        pytest.param(
            one_has_no_patience, 2, 200, {"OutcomeUnknown", "NotDecided", "unasked"}, marks=pytest.mark.exhaustive
        ),
        pytest.param(the_lock_is_lost, 2, 1500, {"forgotten", "fenced"}, marks=pytest.mark.exhaustive),
        pytest.param(the_lock_is_seen_to_be_lost, 2, 500, {"forgotten", "lost"}, marks=pytest.mark.exhaustive),
        pytest.param(one_is_stopped, 2, 1000, {"NotDecided", "OutcomeUnknown"}, marks=pytest.mark.exhaustive),
        (an_item_is_parked, 1, 30, {"NotDecided"}),
        pytest.param(it_is_stopped_with_an_item_parked, 2, 1000, {"NotDecided"}, marks=pytest.mark.exhaustive),
        (they_take_turns, 1, 50, {"NotDecided"}),
        (tasks_go_on_in_any_order, 2, 400, {"hung up"}),
    ],
)
def test_nobody_is_wronged(play: Play, deviations: int, at_least: int, rare: set[str]) -> None:
    """Nothing is oversold, each is told one thing, and that is true; no queue keeps anybody, and no task is left."""
    assert explore(play, deviations=deviations).schedules >= at_least
    assert rare <= happened.keys(), "never happened"


def test_a_schedule_is_the_same_each_time() -> None:
    """The rest of the process has no influence: else nothing could be explored, and no failure found again."""
    runs = []
    for _ in range(2):
        happened.clear()
        runs.append((explore(three_come, deviations=1), dict(happened)))
    assert runs[0] == runs[1]


# -- what the explorer is good for -------------------------------------------------------------------------------------


def serves_those_in_doubt_again(in_doubt: InDoubt, parts: Sequence[Part]) -> None:
    for part in parts:
        part.set_state(EntryState.TAKEN)


async def is_there_a_step_too_long(worker: Worker) -> None:
    task = cast("asyncio.Task[None]", asyncio.current_task())
    task.add_done_callback(worker._tasks.discard)
    while worker._has_work():
        await worker._work(Backoff(0.02, 0.5))


async def thinks_about_it(worker: Worker, fence: Fence, parts: Sequence[Part]) -> Any:
    await asyncio.sleep(0)  # between the decision and the commit
    return await commit(worker, fence, parts)


commit = Worker._commit


@pytest.mark.parametrize(
    ("kind", "name", "mutant", "play", "what"),
    [
        (InDoubt, "add", serves_those_in_doubt_again, one_comes_later, "untrue|sold once"),
        (Worker, "_run", is_there_a_step_too_long, one_comes_later, "no reason not to be served"),
        (Worker, "_commit", thinks_about_it, one_has_no_patience, "untrue"),
        (Entry, "wanted", property(lambda entry: True), one_hangs_up, "hung up is sold to"),
        (Queue, "_sweep", lambda queue: None, one_has_no_patience, "told too late"),
    ],
)
def test_what_is_broken_is_found(
    kind: type, name: str, mutant: object, play: Play, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It all goes well by itself, and not if something odd happens."""
    monkeypatch.setattr(kind, name, mutant)
    explore(play, deviations=0)
    with pytest.raises(BrokenPromise, match=what):
        explore(play, deviations=2)

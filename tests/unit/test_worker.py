"""Workers sell rightly and to everybody, whatever the store, the lock and the buyers do: on virtual time."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import pytest

from app.errors import (
    FenceRefused,
    ForeignFence,
    NotDecided,
    OutcomeUnknown,
    StockBehind,
    StockCorrupt,
    StockError,
    StockUnavailable,
)
from app.forever import end
from app.orders import Answer, Ask, Command, Confirm, Expire, Hold, Outcome, Purchase, Refund
from app.sale import Rules
from app.sale.worker import Worker
from app.stock import Fence
from app.telemetry.observer import Observer
from fencelock import Grant, LockUnavailable
from fencelock.lease import Lease
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import NoHold, VirtualLock, VirtualLoop

SKUS = ("a", "b", "c")
A, B = Purchase(sku="a"), Purchase(sku="b")
WELL_AGAIN_S = 10.0
OPERATOR = Fence(1, "virtual")


class Shaky(MemoryStockStore):
    """A store with a server for each item: a call takes a while, and until some moment it may come to nothing.

    `away`: the servers that answer nothing; `fault`: what becomes of a commit.
    """

    def __init__(self, server: MemoryServer, fault: Callable[[], str] = lambda: "") -> None:
        super().__init__(server)
        self.away = set[str]()
        self.fault = fault
        self.calls, self.items_at_once = Counter[str](), 0
        self.late = set[asyncio.Task[Any]]()

    async def _each(self, call: Callable[[Fence, Any], Awaitable[Any]], fence: Fence, of: dict[str, Any]) -> Any:
        """Call the servers that are there; raise if none is."""
        self.calls[call.__name__] += 1
        self.items_at_once = max(self.items_at_once, len(of) if call.__name__ == "resolve" else 0)
        await asyncio.sleep(0.002)
        there = {sku: one for sku, one in of.items() if sku not in self.away}
        if not there:
            await asyncio.sleep(0.5)
            raise StockUnavailable("nobody is there")
        gone = {sku: StockUnavailable("it is away") for sku in of if sku not in there}
        return gone | await call(fence, there)

    async def prepare(self, fence: Fence, batch_id: str, asks: Any) -> Any:
        async def prepare(fence: Fence, some: Any) -> Any:
            return await super(Shaky, self).prepare(fence, batch_id, some)

        return await self._each(prepare, fence, asks)

    async def resolve(self, fence: Fence, batches: Any) -> Any:
        return await self._each(super().resolve, fence, batches)

    async def commit(self, fence: Fence, batches: Any, together: Any = ()) -> Any:
        async def commit(fence: Fence, some: Any) -> Any:
            return await super(Shaky, self).commit(fence, some, [group & some.keys() for group in together])

        match self.fault():
            case "lost answer":
                await self._each(commit, fence, batches)
                raise StockUnavailable("the answer is lost")
            case "lost request":
                raise StockUnavailable("the request is lost")
            case "refused":
                raise StockUnavailable("it takes no writes", untouched=True)
            case "late":
                write = commit(fence, batches)

                async def arrive() -> None:
                    await asyncio.sleep(1)
                    await write

                self.late.add(asyncio.get_running_loop().create_task(arrive()))
                raise StockUnavailable("it takes too long")
        return await self._each(commit, fence, batches)

    async def ping(self, skus: Any = (), *, timeout_s: float | None = None) -> None:
        self.calls["ping"] += 1
        if skus and self.away.issuperset(skus):
            await asyncio.sleep(0.5)
            raise StockUnavailable("nobody is there")


class Mortal(VirtualLock):
    """A lock that is away, or whose grant is lost, when `ill()` says so; `on_release` is called behind a release."""

    def __init__(self, ill: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._ill = ill
        self.holders, self.release_s = 0, 0.0
        self.on_release: Callable[[], object] = lambda: None

    @asynccontextmanager
    async def holding(self, **how: Any) -> AsyncIterator[Grant]:
        async with super().holding(wait_s=how["wait_s"]) as grant:
            if self._ill():
                raise LockUnavailable("it is away")
            lease = Lease(self.name, NoHold(), -1.0 if self._ill() else float("inf"))
            self.holders += 1
            assert self.holders == 1
            try:
                yield Grant(grant.key, grant.token, grant.source, lease)
            finally:
                await asyncio.sleep(self.release_s)
                self.holders -= 1
                self.on_release()


class Heard(Observer):
    """What an instance tells of itself."""

    def __init__(self) -> None:
        self.answers, self.resolutions, self.others = Counter[str](), Counter[str](), Counter[str]()

    def answered(self, outcome: str) -> None:
        self.answers[str(outcome)] += 1

    def resolved(self, result: str) -> None:
        self.resolutions[result] += 1

    def committed(self, purchases: int) -> None:
        self.others["decided"] += purchases

    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        self.others["served"] += purchases
        self.others["units"] += units

    def lost(self, lock: str) -> None:
        self.others["lost"] += 1

    def conflicted(self) -> None:
        self.others["conflicted"] += 1


class Room:
    """Some instances that sell from one store under one lock."""

    def __init__(
        self, loop: VirtualLoop, *, instances: int = 1, stock: int = 20, skus: Sequence[str] = SKUS, **rules: Any
    ) -> None:
        self.loop = loop
        self.server = MemoryServer(lambda: 1e9 + loop.time())
        self.lock = Mortal()
        self.heard = [Heard() for _ in range(instances)]
        self.stores = [Shaky(self.server) for _ in range(instances)]
        self.operator = MemoryStockStore(self.server)
        self.halted = dict[str, StockError]()
        self.workers = [
            Worker(cast(Any, self.lock), store, Rules(**rules), heard, halted=self.halted.get)
            for store, heard in zip(self.stores, self.heard, strict=True)
        ]
        for sku in skus:
            self.play(self.stores[0].set_stock(sku, OPERATOR, stock))
        self.lock.token = 1

    @property
    def store(self) -> Shaky:
        """Return the first instance's way to the store."""
        return self.stores[0]

    def play(self, work: Any) -> Any:
        """Run some work to its end."""
        return self.loop.play(work)

    async def buy(self, command: Command, *, within_s: float = 60.0, at: int = 0, **how: Any) -> Any:
        """Have an instance answer; return errors, too."""
        try:
            return await self.workers[at].queue.join(command, self.loop.time() + within_s, **how)
        except Exception as error:
            return error

    async def errors(self) -> list[Exception]:
        """Return what the first instance says of items that can't be sold."""
        return list(self.workers[0].queue.errors.values())

    async def crowd(self, *wishes: Command, **how: Any) -> list[Any]:
        """Have all of them answered at once."""
        return list(await asyncio.gather(*(self.buy(wish, **how) for wish in wishes)))

    def told(self, *wishes: Command, **how: Any) -> list[str]:
        """Return what all of them hear from the first instance: see `kinds`."""
        return kinds(self.play(self.crowd(*wishes, **how)))


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.play(end(*asyncio.all_tasks(loop)))  # of a test that has failed
    asyncio.set_event_loop(None)
    loop.close()


def kinds(told: list[Any]) -> list[str]:
    """Return the outcomes, and the names of errors."""
    return [str(one.outcome) if isinstance(one, Answer) else type(one).__name__ for one in told]


def test_a_grant_serves_so_many_and_begins_nothing_late(loop: VirtualLoop) -> None:
    """No grant serves more than `batch_max`, and none that has lasted `max_hold_s` begins a batch; a batch has 500.

    Over all grants buyers are served in the order of their arrival.
    """
    room, answered = Room(loop, stock=5000, batch_max=2), list[int]()

    async def buy(number: int) -> None:
        assert kinds([await room.buy(A)]) == ["sold"]
        answered.append(number)

    async def all_of_them() -> None:
        await asyncio.gather(*(buy(number) for number in range(5)))

    room.play(all_of_them())
    assert answered == [0, 1, 2, 3, 4]
    assert room.heard[0].others == {"decided": 5, "served": 5, "units": 5}
    assert room.lock.token == 4
    for hold_s, grants in ((0.001, 3), (1.0, 1)):
        room = Room(loop, stock=5000, batch_max=5000, max_hold_s=hold_s)
        assert {*room.told(*[A] * 1200)} == {"sold"}
        assert (room.lock.token - 1, room.store.calls["prepare"]) == (grants, 3)


def test_who_is_refused_at_the_door(loop: VirtualLoop) -> None:
    """Beyond `queue_max` nobody waits."""
    room = Room(loop, queue_max=2)
    assert room.told(*[A] * 4) == ["sold"] * 2 + ["QueueFull"] * 2
    assert room.heard[0].answers == {"sold": 2, "QueueFull": 2}


def test_each_buyer_hears_at_their_own_deadline(loop: VirtualLoop) -> None:
    """However many have left the queue before."""
    room, heard = Room(loop), list[float]()
    room.store.away = {*SKUS}

    async def buy(within_s: float) -> None:
        assert kinds([await room.buy(A, within_s=within_s)]) == ["NotDecided"]
        heard.append(round(loop.time() - within_s, 1))

    async def all_of_them() -> None:
        await asyncio.gather(*(buy(within_s) for within_s in (1.0, 2.0, 3.0)))

    room.play(all_of_them())
    assert heard == [0.0] * 3


def test_who_hangs_up_gets_no_order_that_nobody_could_learn_of(loop: VirtualLoop) -> None:
    """With a key they may ask again; and a command about what is there is done whoever has sent it."""
    room = Room(loop)
    wishes = A, Purchase(sku="a", key="k"), Expire("a")
    assert room.told(*wishes, gone=lambda: True) == ["NotDecided", "sold", "done"]
    assert room.workers[0].queue.waiting_by_item == {"a": 0}


@pytest.mark.parametrize("why", [StockBehind("an order is missing"), ForeignFence("of another lock")])
def test_an_item_that_only_an_operator_can_help(loop: VirtualLoop, why: StockError) -> None:
    """Its buyers are refused at once, the others are served; afterwards it is tried again for the next buyer."""
    room = Room(loop)
    assert room.told(A) == ["sold"]
    room.halted["a"] = why
    began = loop.time()
    assert room.told(A, B) == ["ItemBlocked", "sold"]
    assert room.told(A) == ["ItemBlocked"]
    assert loop.time() - began < 0.02
    queue = room.workers[0].queue
    assert (room.play(room.errors()), list(queue.selling)) == ([why], ["b"])
    for _ in range(20):  # as long as somebody wants it
        room.play(asyncio.sleep(1))
        assert room.told(A) == ["ItemBlocked"]
        assert room.play(room.errors()) == [why]
    del room.halted["a"]
    room.play(asyncio.sleep(20))
    assert room.play(room.errors()) == []
    assert room.told(A) == ["sold"]
    assert (room.play(room.errors()), list(queue.selling)) == ([], ["a", "b"])

    async def come_in_a_pause() -> list[Any]:
        queue.park(queue.item("a"), 0.1)  # as after a change by an operator
        return await room.crowd(A)

    assert kinds(room.play(come_in_a_pause())) == ["sold"]


def test_a_late_holder_is_refused_once(loop: VirtualLoop) -> None:
    """Its next token is the highest, and its buyers have waited."""
    room = Room(loop)
    room.play(MemoryStockStore(room.server).prepare(Fence(3, "virtual"), "other", {"a": Ask()}))
    assert room.told(A) == ["sold"]
    assert room.lock.token == 3
    assert room.play(room.errors()) == []


def test_an_item_that_is_not_there_leaves_nothing(loop: VirtualLoop) -> None:
    """Whoever asks for it hears so; its name is forgotten."""
    room = Room(loop)
    assert room.told(Purchase(sku="nope"), A) == ["UnknownItem", "sold"]
    assert room.workers[0].queue.waiting_by_item == {"a": 0}
    assert set(room.store.marks()) == {"a"}


@pytest.mark.parametrize("before_commit", [True, False])
def test_an_instance_without_its_store_takes_no_lock(
    loop: VirtualLoop, before_commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks first whether the store is there, also if a batch is in doubt, and asks no more once it was."""
    room = Room(loop)

    faults, ping = iter([] if before_commit else ["lost request"]), room.store.ping
    room.store.fault = lambda: next(faults, "")

    async def last_ping(*what: Any, **how: Any) -> None:
        await ping(*what, **how)
        room.store.away = {*SKUS}
        monkeypatch.undo()

    if before_commit:
        room.store.away = {*SKUS}
    else:
        monkeypatch.setattr(room.store, "ping", last_ping)

    async def come_back() -> None:
        await asyncio.sleep(20)
        room.store.away = set()

    told, _ = room.play(asyncio.wait_for(asyncio.gather(room.buy(A), come_back()), 60))
    assert kinds([told]) == ["sold"]
    grants = 3 if before_commit else 4
    assert (room.lock.token, loop.time() < 22, room.store.calls["ping"] > 15) == (grants, True, True)
    pings = room.store.calls["ping"]
    assert room.told(B) == ["sold"]
    assert room.store.calls["ping"] == pings


def test_nothing_is_written_under_a_grant_that_is_lost(loop: VirtualLoop) -> None:
    """The buyers are served under the next one."""
    room = Room(loop)
    ill = iter([False, True])
    room.lock._ill = lambda: next(ill, False)
    assert room.told(A) == ["sold"]
    assert (room.heard[0].others["lost"], room.store.calls["prepare"], room.store.calls["commit"]) == (1, 2, 1)


def test_an_error_of_ours_answers_nobody(loop: VirtualLoop) -> None:
    """The buyers keep waiting, and are served when it is over."""
    room = Room(loop)
    room.store.fault = lambda: "x" * (1 // int(loop.time() > 5))
    assert room.told(A) == ["sold"]
    assert 5 < loop.time() < 6


@pytest.mark.parametrize("fault", ["lost answer", "lost request"])
def test_what_is_in_doubt_is_found_out_a_few_items_at_a_time(loop: VirtualLoop, fault: str) -> None:
    """However many items a commit had: no grant lasts much longer for it. Those who have gone are not asked about."""
    skus = [f"item-{number}" for number in range(12)]
    room = Room(loop, skus=skus, max_hold_s=0.001)
    faults = iter([fault])
    room.store.fault = lambda: next(faults, "")
    patient = [Purchase(sku=sku) for sku in skus]
    told = room.play(asyncio.wait_for(asyncio.gather(room.crowd(*patient), room.crowd(Purchase(sku=skus[0]))), 60))
    assert {*kinds(sum(told, []))} == {"sold"}
    assert 0 < room.store.items_at_once <= 5
    assert room.heard[0].resolutions == {"committed" if fault == "lost answer" else "not_committed": 12}


def test_what_nobody_waits_for_is_not_found_out(loop: VirtualLoop) -> None:
    """A batch in doubt is dropped with its last buyer."""
    room = Room(loop)
    room.store.fault = lambda: "lost request"
    assert room.told(A, within_s=0.01) == ["OutcomeUnknown"]
    room.play(asyncio.sleep(3))
    assert (room.heard[0].resolutions, room.store.calls["resolve"]) == ({"unasked": 1}, 0)


@pytest.mark.parametrize(("call", "told"), [("commit", "StockCorrupt"), ("resolve", "OutcomeUnknown")])
def test_an_item_that_breaks_meanwhile(
    loop: VirtualLoop, call: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buyers hear that nothing was sold only if that is known; the others are served."""
    room = Room(loop)
    works = getattr(room.store, call)

    async def breaks(fence: Fence, of: Any, *more: Any) -> Any:
        rest = await works(fence, {sku: one for sku, one in of.items() if sku != "a"}, *more)
        return rest | ({"a": StockCorrupt("odd")} if "a" in of else {})

    faults = iter(["lost request"] if call == "resolve" else [])
    room.store.fault = lambda: next(faults, "")
    monkeypatch.setattr(room.store, call, breaks)
    assert room.told(A, B) == [told, "sold"]


@pytest.mark.parametrize("why", [FenceRefused("late"), StockBehind("older"), StockUnavailable("away")])
def test_what_could_not_be_found_out_stays_in_doubt(
    loop: VirtualLoop, why: StockError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next grant asks again; what was found out meanwhile is answered."""
    room, works = Room(loop), MemoryStockStore.resolve

    async def fails_once(store: Any, fence: Fence, of: Any) -> Any:
        monkeypatch.undo()
        return await works(store, fence, {"b": of["b"]}) | {"a": why}

    monkeypatch.setattr(MemoryStockStore, "resolve", fails_once)
    faults = iter(["lost answer"])
    room.store.fault = lambda: next(faults, "")
    assert room.told(A, B) == ["sold", "sold"]
    assert room.heard[0].resolutions == {"committed": 2}
    assert (loop.time() < 2, room.play(room.store.level("a")).lucky) == (True, 1)


def test_a_commit_that_has_done_nothing_is_not_in_doubt(loop: VirtualLoop) -> None:
    """Who is late then hears that nothing was sold."""
    room = Room(loop)
    room.store.fault = lambda: "refused"
    assert room.told(A, within_s=3.0) == ["NotDecided"]
    assert room.store.calls["resolve"] == 0


@pytest.mark.parametrize("stock", [1, 0])
@pytest.mark.parametrize(
    ("terms", "refusal"),
    [
        ({}, Outcome.SOLD_OUT),
        ({"paused": "tea"}, Outcome.PAUSED),
        ({"price": 5, "currency": "EUR"}, Outcome.HOLD_REQUIRED),
        ({"limit_per_buyer": 1}, None),
    ],
)
def test_a_refusal_is_known_for_a_while(loop: VirtualLoop, terms: Any, refusal: Outcome | None, stock: int) -> None:
    """Also why it is refused first of all; with a key, and where names count, each purchase is looked at."""
    room = Room(loop, stock=stock, sold_out_ttl_s=5.0)
    queue, wish = room.workers[0].queue, A
    room.play(room.operator.set_stock("a", Fence(1, "virtual"), 0, add=True, terms=terms))
    began = loop.time()
    room.play(room.crowd(wish._replace(buyer="ann")))
    assert queue.refusal(wish, began + 4.9) is refusal
    assert queue.refusal(wish._replace(buyer="bob"), began + 4.9) is (refusal or Outcome.SOLD_OUT)
    assert queue.refusal(wish, began + 5.1) is None
    assert queue.refusal(wish._replace(key="k", buyer="bob"), began) is None
    assert queue.refusal(B, began) is None
    queue.look_again("a")
    assert queue.refusal(wish, began) is None


def test_a_sale_that_begins_is_refused_no_longer(loop: VirtualLoop) -> None:
    """The refusal ends with the moment at which it begins; and where nothing is remembered nothing is."""
    for ttl_s in (60.0, 0.0):
        room, began = Room(loop, sold_out_ttl_s=ttl_s), loop.time()
        room.play(room.operator.set_stock("a", OPERATOR, 0, add=True, terms={"starts_at": time.time() + 9}))
        assert room.told(A) == ["not_started"]
        known = [room.workers[0].queue.refusal(A, began + at_s) for at_s in (7.0, 9.5)]
        assert known == [Outcome.NOT_STARTED if ttl_s else None, None]


@pytest.mark.parametrize(
    ("away", "cancelled", "told"),
    [(False, False, "sold"), (True, False, "NotDecided"), (True, True, "NotDecided")],
)
def test_the_end_of_an_instance(loop: VirtualLoop, away: bool, cancelled: bool, told: str) -> None:
    """It serves who waits, refuses at last who can't be served, also if it is cancelled, and ends what it has begun."""
    room = Room(loop)
    room.store.away = {*SKUS} if away else set()
    room.store.fault = iter(["refused", ""]).__next__

    async def close() -> list[Any]:
        buying = asyncio.ensure_future(room.crowd(*[Purchase(sku=sku) for sku in SKUS]))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(room.workers[0].drain(0.8))
        await asyncio.sleep(0.01)
        if cancelled:
            closing.cancel()
        await asyncio.wait({closing})
        return await buying

    assert kinds(room.play(close())) == [told] * 3
    assert loop.time() < (0.1 if cancelled else 1)
    room.store.away = set()
    room.play(asyncio.sleep(10))
    assert (room.workers[0]._tasks, room.play(room.store.level("a")).stock) == (set(), 20 if away else 19)


def test_nothing_begins_as_an_instance_ends(loop: VirtualLoop) -> None:
    """Although an item's pause is over while the last grant is given back."""
    room = Room(loop)

    async def close() -> list[Any]:
        room.store.away = {"a"}
        room.lock.release_s = 2.0
        buying = asyncio.ensure_future(room.crowd(A, B))
        queue = room.workers[0].queue
        queue.park(queue.item("b"), 1.0)
        await asyncio.sleep(0.2)
        await room.workers[0].drain(0)
        return await buying

    assert kinds(room.play(close())) == ["NotDecided"] * 2
    assert room.workers[0]._tasks == set()


def test_a_buyer_who_comes_as_the_worker_ends_is_served(loop: VirtualLoop) -> None:
    """Right after its last look at the queue, before its task is over."""
    room, late = Room(loop), list[Any]()

    def come() -> None:
        late.append(room.workers[0].queue.join(A, loop.time() + 60))

    room.lock.on_release = lambda: late or loop.call_soon(come)
    assert room.told(A) == ["sold"]
    assert kinds([room.play(asyncio.wait_for(late[0], 5))]) == ["sold"]


def test_an_instance_that_ends_as_somebody_comes(loop: VirtualLoop) -> None:
    """It has begun nothing yet, and leaves nothing behind."""
    room = Room(loop)

    async def close() -> None:
        told = room.workers[0].queue.join(A, loop.time() + 60)
        await room.workers[0].drain(0)
        assert (type(told.exception()), room.workers[0]._tasks) == (NotDecided, set())

    room.play(close())


def test_what_was_looked_at_for_a_limit_is_compared(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an item of which nothing is written: what has changed there may have reached the limit."""
    room = Room(loop)
    for sku, other in (("a", "b"), ("b", "a")):
        room.play(room.operator.set_stock(sku, OPERATOR, 5, terms={"limit_group": f"2 {other}"}))
    commit = room.store.commit

    async def late(*what: Any) -> Any:
        monkeypatch.undo()
        await room.operator.set_stock("b", Fence(room.lock.token, "virtual"), 9)
        return await commit(*what)

    monkeypatch.setattr(room.store, "commit", late)
    assert room.told(Purchase(sku="a", buyer="ann")) == ["sold"]
    assert (room.store.calls["commit"], room.heard[0].others["conflicted"]) == (2, 1)


def test_an_item_in_doubt_stops_no_other(loop: VirtualLoop) -> None:
    """While its server is away the others are sold, and its buyer is answered when it is back."""
    room = Room(loop)

    def go() -> str:
        room.store.away, room.store.fault = {"a"}, lambda: ""
        return "lost request"

    room.store.fault = go

    async def buy() -> Any:
        first = asyncio.ensure_future(room.buy(A))
        for _ in range(5):
            await asyncio.sleep(2)
            assert kinds(await room.crowd(B, within_s=2.0)) == ["sold"]
        assert not first.done()
        room.store.away = set()
        return await asyncio.wait_for(first, 2)

    assert kinds([room.play(buy())]) == ["sold"]


def test_units_are_counted_as_they_are_sold(loop: VirtualLoop) -> None:
    """At once, or as they are paid, and not as they are held, or given back."""
    room = Room(loop)

    def units_after(command: Command) -> int:
        told.append(room.play(room.buy(command)))
        return room.heard[0].others["units"]

    told = list[Any]()
    assert units_after(Hold(2, "a", "ann")) == 0
    sku, number, secret = told[0].order
    assert units_after(Confirm(sku, number, secret, "p", 5, "EUR")) == 2
    assert units_after(Purchase(1, "a")) == 3
    assert units_after(Purchase(3, "a", request_id="r")) == 6
    assert units_after(Refund(sku, number, secret, restock=True)) == 6


def test_how_long_it_waits_for_the_lock(loop: VirtualLoop) -> None:
    """As long as it waits, and no longer: neither while it serves, nor when it has given up."""
    room, seen = Room(loop, purchase_timeout_s=3.0), list[float]()

    async def look() -> None:
        async with room.lock.holding(wait_s=None):
            buying = [asyncio.ensure_future(room.buy(A, within_s=3.0))]
            await asyncio.sleep(5)
            seen.append(room.workers[0].waited_s)
            buying.append(asyncio.ensure_future(room.buy(A)))
            await asyncio.sleep(1.0)
            seen.append(room.workers[0].waited_s)
        await asyncio.sleep(0.001)
        seen.append(room.workers[0].waited_s)
        assert kinds(await asyncio.gather(*buying)) == ["NotDecided", "sold"]

    room.play(look())
    assert seen == [0.0, 1.0, 0.0]


def test_a_lock_that_is_long_in_coming(loop: VirtualLoop) -> None:
    """A worker that has given up waiting asks again, as long as somebody waits."""
    room = Room(loop, purchase_timeout_s=3.0)

    async def keep() -> list[Any]:
        async with room.lock.holding(wait_s=None):
            buying = asyncio.ensure_future(room.crowd(A))
            await asyncio.sleep(10)
        return await buying

    assert kinds(room.play(keep())) == ["sold"]


def test_a_worker_logs_nothing_under_a_buyers_name(loop: VirtualLoop) -> None:
    """Whoever has started it is one of many."""
    room, name, seen = Room(loop), ContextVar("name", default="none"), list[str]()
    room.store.fault = lambda: seen.append(name.get()) or ""

    async def buy() -> None:
        name.set("ann")
        await room.buy(A)

    room.play(buy())
    assert seen == ["none"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_buyer_hears_the_truth(loop: VirtualLoop, seed: int) -> None:
    """Requests and answers are lost, or late, servers and lock go away, an operator adds units, buyers hang up.

    Who hears "sold" has an order of their own, who hears that nothing was sold has none; and soon after all is well
    again everybody has an answer, and nobody takes the lock any more.
    """
    choice = random.Random(seed)
    room = Room(loop, instances=2, batch_max=choice.choice([1, 3, 1000]), max_hold_s=choice.choice([0.001, 0.01, 1]))
    faults = choice.choice([["", "", "lost answer", "lost request", "refused", "late"], ["", "", "late"], [""]])
    room.lock._ill = lambda: loop.time() < WELL_AGAIN_S and choice.random() < 0.05
    for store in room.stores:
        store.fault = lambda: choice.choice(faults) if loop.time() < WELL_AGAIN_S else ""
    patient, added = choice.random() < 0.5, Counter[str]()
    told = dict[str, Any]()
    gone = set[str]()

    async def buyer(number: int) -> None:
        await asyncio.sleep(choice.uniform(0, 8))
        sku, name, at = choice.choice(SKUS), f"buyer {number}", choice.randrange(2)
        key = choice.choice([None, f"key {number}"])
        if choice.random() < 0.1:
            gone.add(name)
        wish, until_s = Purchase(1, sku, name, key), 60.0 if patient else choice.choice([0.1, 3.0, 60.0])
        told[name] = await room.buy(wish, within_s=until_s, at=at, gone=lambda: name in gone)
        if key is not None and choice.random() < 0.5:
            again = await room.buy(wish, at=1 - at)
            if isinstance(told[name], Answer) and told[name].order:
                assert again == told[name]._replace(replayed=True)
            told[name] = again

    async def mishaps() -> None:
        while loop.time() < WELL_AGAIN_S:
            await asyncio.sleep(choice.expovariate(2))
            away = {sku for sku in SKUS if choice.random() < 0.2}
            for store in room.stores:
                store.away = away
            if choice.random() < 0.3:
                sku = choice.choice(SKUS)
                room.lock.token += 1
                await room.operator.set_stock(sku, Fence(room.lock.token, "virtual"), 1, add=True)
                added[sku] += 1
        for store in room.stores:
            store.away = set()

    async def all_of_it() -> None:
        await asyncio.gather(mishaps(), *(buyer(number) for number in range(70)))

    room.play(all_of_it())
    assert loop.time() < WELL_AGAIN_S + (5 if patient else 65)
    for sku in SKUS:
        level, orders = room.play(room.store.level(sku)), room.play(room.store.orders(sku, limit=1000))
        assert (level.stock + level.lucky, len(orders)) == (20 + added[sku], level.lucky)
        of = {order.buyer: order for order in orders}
        assert len(of) == len(orders)
        for name, answer in told.items():
            if isinstance(answer, Answer) and answer.order is not None and answer.order.sku == sku:
                assert of.pop(name).id == answer.order
            elif not isinstance(answer, OutcomeUnknown):
                assert name not in of or of[name].id == answer.order, answer
    errors = {type(answer) for answer in told.values() if isinstance(answer, Exception)}
    assert errors <= {NotDecided} if patient else errors <= {NotDecided, OutcomeUnknown}
    assert all(name in gone for name, answer in told.items() if isinstance(answer, NotDecided)) or not patient
    room.play(asyncio.sleep(2))
    token = room.lock.token
    room.play(asyncio.sleep(60))
    assert room.lock.token == token
    for worker in room.workers:
        assert (len(worker.queue), set(worker.queue.waiting_by_item.values()) - {0}) == (0, set())
        assert (worker._tasks, worker.waited_s, bool(worker._in_doubt)) == (set(), 0, False)

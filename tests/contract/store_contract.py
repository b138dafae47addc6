"""Test the contract of every stock store. A store's tests inherit `StoreContract`.

The tests of a store that is guarded by fencing tokens inherit `FencedStoreContract`.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import pytest

from app.errors import (
    FenceRefused,
    ForeignFence,
    HasOrders,
    ItemNotPossible,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockError,
    StockNotAsExpected,
    StockUnavailable,
    UnknownItem,
)
from app.orders import (
    ERASED,
    Ask,
    EventKind,
    OrderChange,
    OrderId,
    OrderState,
    Record,
    Settled,
    Snapshot,
    Terms,
    new_secrets,
)
from app.orders.life import changed
from app.stock import LAYOUT, Batch, Begun, Fence, Level, Refused, Sold, StockStore
from app.stock.outbox import Outbox
from app.stock.storage import Found, Head
from tests.harness.waiting import eventually_async

Answer = TypeVar("Answer")
OpenStore = Callable[..., Awaitable[StockStore]]
SOLD_OUT = Settled("sold_out", 7, "cid", None, "f00", "lamp")  # as of a basket


# What `make test` runs of the contract with the guards that compare, in MySQL and PostgreSQL: what a guard is for.
SMOKE: Final = frozenset(
    {
        "test_a_batch_is_written_whole",
        "test_sending_a_batch_again_does_nothing",
        "test_what_was_decided_on_nothing_is_not_written",
        "test_what_was_decided_before_a_restock_is_not_written",
        "test_what_was_not_written_is_never_written",
        "test_terms_are_guarded_like_the_stock",
        "test_a_change_needs_the_order_as_it_was",
        "test_concurrent_sellers_sell_each_unit_once",
    }
)


class StoreSystem(ABC):
    """A store's real server, and the operations that only the server's owner has."""

    @abstractmethod
    def open(self, **options: Any) -> StockStore:
        """Open a store on the server."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Return the names of everything that is stored."""

    @abstractmethod
    def set_by_hand(self, sku: str, stock: int) -> None:
        """Set an item's stock directly on the server, as an operator might."""

    def remove_by_hand(self, sku: str) -> None:
        """Remove an item's stock directly on the server."""
        raise NotImplementedError

    @abstractmethod
    def note_layout(self, sku: str, layout: int) -> None:
        """Note that an item's sale was begun by a release with that layout."""

    def copy_of_everything(self) -> dict[str, bytes]:
        """Return everything that is stored, for comparison."""
        raise NotImplementedError

    @abstractmethod
    def copy(self) -> Callable[[], None]:
        """Copy everything that is stored; the function returned puts the copy in place of whatever is there then."""


def fence(token: int, source: str = "etcd:1") -> Fence:
    return Fence(token, source)


def decided(
    seen: Snapshot,
    *sold: Sold | int,
    batch_id: str = "b",
    refused: tuple[Refused, ...] = (),
    held: Sequence[Begun] = (),
    changes: Sequence[OrderChange] = (),
) -> Batch:
    """Return the batch that was decided on a snapshot; a number stands for an order of so many units."""
    orders = [one if isinstance(one, Sold) else Sold(one) for one in sold]
    return Batch(batch_id, seen, orders, refused, held, changes)


HOUR_MS = 3_600_000
UNSEEN = Snapshot(5, 0, basis=Found(Head(5)))
"""What a holder would guess that has read nothing."""


def held_for(seen: Snapshot, buyer: str, quantity: int = 1, *, key: str | None = None, for_ms: int = HOUR_MS) -> Begun:
    """Return an order that is held; `for_ms`: how long, from when the snapshot was taken."""
    due_ms = seen.now_ms + for_ms
    record = Record("", new_secrets(1)[0], OrderState.HELD, quantity, buyer, None, due_ms, due_ms, currency="EUR")
    return Begun(record, key)


def paid(record: Record, ref: str) -> OrderChange:
    """Return the change by which an order that is held becomes one that is paid."""
    return changed(record, EventKind.CONFIRMED, {"payment_ref": ref, "amount": 998, "currency": "EUR"}, ref)


def run_out(record: Record) -> OrderChange:
    """Return the change by which the units of an order that is held go back."""
    return changed(record, EventKind.EXPIRED, {})


async def prepare(
    store: StockStore,
    sku: str,
    own: Fence,
    batch_id: str,
    *,
    buyers: Sequence[str] = (),
    keys: Sequence[str] = (),
    **more: Any,
) -> Snapshot:
    """Call `StockStore.prepare` for one item, and raise its error, as do the functions below."""
    return _unless_error((await store.prepare(own, batch_id, {sku: Ask(buyers, keys, **more)}))[sku])


async def commit(store: StockStore, sku: str, own: Fence, batch: Batch) -> list[str]:
    """Call `StockStore.commit` for one item."""
    return _unless_error((await store.commit(own, {sku: batch}))[sku])


async def resolve(store: StockStore, sku: str, own: Fence, batch: Batch) -> list[str] | None:
    """Call `StockStore.resolve` for one item."""
    return _unless_error((await store.resolve(own, {sku: batch}))[sku])


async def fence_of(store: StockStore, sku: str) -> Fence | None:
    """Return the highest token that the item's fence has seen."""
    return _unless_error((await store.inspect([sku]))[sku])


def _unless_error(answer: Answer | StockError) -> Answer:
    if isinstance(answer, StockError):
        raise answer
    return answer


async def sell(store: StockStore, token: int, *sold: Sold | int, sku: str = "default") -> list[str]:
    """Read, decide and write; return the ids of the orders."""
    batch_id = f"b{token}"
    orders = [one for one in sold if isinstance(one, Sold)]
    buyers, keys = [one.buyer for one in orders if one.buyer], [one.key for one in orders if one.key]
    seen = await prepare(store, sku, fence(token), batch_id, buyers=buyers, keys=keys)
    return await commit(store, sku, fence(token), decided(seen, *sold, batch_id=batch_id))


async def fenced_at_the_read_too(store: StockStore) -> list[Exception]:
    """A reads 5 and is paused; B reads 5; A wakes and writes 4; B writes 4. Return the refusals of the store."""
    await store.set_stock("default", fence(1), 5)
    first, second = fence(10), fence(11)
    for_first = await prepare(store, "default", first, "b")
    for_second = await prepare(store, "default", second, "b2")
    assert for_first.stock == for_second.stock == 5
    refused: list[Exception] = []
    for own, seen, batch_id in ((first, for_first, "b"), (second, for_second, "b2")):
        try:
            await commit(store, "default", own, decided(seen, 1, batch_id=batch_id))
        except (FenceRefused, StockChanged) as error:
            refused.append(error)
    return refused


class StoreContract:
    """The tests of the contract; every test begins with an empty server."""

    @pytest.fixture
    def system(self) -> StoreSystem:
        """Start a server that tests don't harm."""
        raise NotImplementedError

    @pytest.fixture
    async def open_store(self, system: StoreSystem) -> AsyncIterator[OpenStore]:
        """Open stores on the server, which is empty at first; close them at the end."""
        system.clear()
        async with AsyncExitStack() as stack:

            async def open_(**options: Any) -> StockStore:
                store = system.open(**options)
                stack.push_async_callback(store.close)
                return store

            yield open_

    @pytest.fixture
    def unswept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave the rows of earlier sales where they are: nobody sees them, whether they were removed yet or not."""
        monkeypatch.setattr("app.stock.sql.sweeper.Sweeper.sweep", lambda *_: None)

    # -- commits -----------------------------------------------------------------------------------------------------

    async def test_a_batch_is_written_whole(self, open_store: OpenStore) -> None:
        """Stock, lucky, orders, buyers and keys change together."""
        store = await open_store()
        await store.set_stock("default", fence(1), 10)
        seen = await prepare(store, "default", fence(2), "b")
        assert seen == Snapshot(10, 0)
        sold = [Sold(3, "ann", "k1"), Sold(1, "bob"), Sold(2, "ann")]
        ids = await commit(store, "default", fence(2), decided(seen, *sold, refused=(Refused("k2", SOLD_OUT),)))
        assert len(set(ids)) == 3
        assert await store.level("default") == Level("default", 4, 6, 10, ids[-1])
        orders = await store.orders("default")
        assert [(one.record.number, one.quantity, one.buyer, one.key, one.batch_id) for one in orders] == [
            (ids[0], 3, "ann", "k1", "b"),
            (ids[1], 1, "bob", None, "b"),
            (ids[2], 2, "ann", None, "b"),
        ]
        assert await store.order("default", ids[1]) == orders[1]
        seen = await prepare(store, "default", fence(3), "b", buyers=["ann", "bob", "cid"], keys=["k1", "k2", "k3"])
        settled = {"k1": Settled("sold", 3, "ann", orders[0].id), "k2": SOLD_OUT}
        assert seen == Snapshot(4, 6, {"ann": 5, "bob": 1}, settled, ids[-1])

    async def test_names_are_told_apart_and_kept(self, open_store: OpenStore) -> None:
        """Buyers and keys in any alphabet, in either case, with blanks and quotes, stay distinct."""
        names = ["ann", "Ann", "ann ", " ann", "änn", "🛒" * 100, "a'b", 'a"b', "a\\b", "a%sb", "a;--b"]
        store = await open_store()
        await store.set_stock("default", fence(1), 100)
        await sell(store, 2, *(Sold(number + 1, name, name) for number, name in enumerate(names)))
        seen = await prepare(store, "default", fence(3), "c", buyers=[*names, "ANN"], keys=[*names, "ANN"])
        assert seen.bought == {name: number + 1 for number, name in enumerate(names)}
        assert {key: settled.buyer for key, settled in seen.settled.items()} == {name: name for name in names}
        assert [(one.buyer, one.key) for one in await store.orders("default")] == [(name, name) for name in names]

    @pytest.mark.parametrize("what", ["buyers", "keys", "payments"])
    async def test_names_have_an_end(self, open_store: OpenStore, what: str) -> None:
        """255 characters of any alphabet can be kept, and no NUL, which a server would cut them at."""
        store = await open_store()
        await store.set_stock("default", fence(1), 1)
        assert (await prepare(store, "default", fence(2), "b", **{what: ["🛒" * 255]})).stock == 1
        for odd in ("🛒" * 255 + "x", "é" * 511, "a\0b"):
            with pytest.raises(ValueError, match="at most 1020 bytes"):
                await prepare(store, "default", fence(2), "b", **{what: [odd]})

    async def test_sending_a_batch_again_does_nothing(self, open_store: OpenStore) -> None:
        """The last batch, sent again, gets the same answer, even after another holder has read."""
        store = await open_store()
        await store.set_stock("default", fence(1), 100)
        seen = await prepare(store, "default", fence(2), "b")
        write = decided(seen, 3, Sold(4, "ann"))
        ids = await commit(store, "default", fence(2), write)
        assert await commit(store, "default", fence(2), write) == ids
        await prepare(store, "default", fence(3), "c")
        assert await commit(store, "default", fence(2), write) == ids
        assert (await store.level("default")).stock == 93
        assert [one.record.number for one in await store.orders("default")] == ids

    async def test_what_was_decided_on_nothing_is_not_written(self, open_store: OpenStore) -> None:
        """A holder that has not read may not write: its stock would be a guess."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        with pytest.raises((FenceRefused, StockChanged)):
            await commit(store, "default", fence(2), Batch("b", UNSEEN, [Sold(1)]))
        assert await store.orders("default") == []

    async def test_what_was_decided_before_a_restock_is_not_written(self, open_store: OpenStore) -> None:
        """A decision from before a restock is not written, even if as many units are there again, nor in a new sale."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        for new_sale in (False, True):
            seen = await prepare(store, "default", fence(1), "b")
            await store.set_stock("default", fence(1), 5, new_sale=new_sale)
            with pytest.raises((FenceRefused, StockChanged)):
                await commit(store, "default", fence(1), decided(seen, 1))
        assert await store.level("default") == Level("default", 5, 0, 5)

    async def test_a_restock_may_add(self, open_store: OpenStore) -> None:
        """Units can be added to the remaining ones, however many were sold, but not to an item that doesn't exist."""
        store = await open_store()
        with pytest.raises(UnknownItem):
            await store.set_stock("phone", fence(1), 5, add=True)
        await store.set_stock("phone", fence(2), 5)
        await sell(store, 3, 2, sku="phone")
        assert await store.set_stock("phone", fence(4), 10, add=True) == Level("phone", 13, 2, 15)
        await sell(store, 5, 1, sku="phone")

    async def test_a_restock_may_expect(self, open_store: OpenStore) -> None:
        """A restock that was decided on an outdated stock changes nothing."""
        store = await open_store()
        await store.set_stock("phone", fence(1), 5, if_match=(0, 0))
        await sell(store, 2, 2, sku="phone")
        with pytest.raises(StockNotAsExpected, match="3 units left and 2 sold"):
            await store.set_stock("phone", fence(3), 10, if_match=(5, 0))
        level = await store.level("phone")
        assert (level.stock, level.lucky) == (3, 2)
        assert (await store.set_stock("phone", fence(4), 10, if_match=(3, 2), new_sale=True)).stock == 10

    async def test_a_restock_that_is_sent_again(self, open_store: OpenStore) -> None:
        """Whatever is sold meanwhile, units are added once: after that as many are no longer there at the start."""
        store = await open_store()
        await store.set_stock("phone", fence(1), 5)
        await sell(store, 2, 2, sku="phone")
        assert (await store.set_stock("phone", fence(3), 4, add=True, if_initial=5)).stock == 7
        await sell(store, 4, 1, sku="phone")
        for add in (True, False):
            with pytest.raises(StockNotAsExpected, match="6 units left and 3 sold"):
                await store.set_stock("phone", fence(5), 4, if_initial=5, add=add)
        level = await store.level("phone")
        assert (level.stock, level.lucky, level.initial) == (6, 3, 9)
        assert (await store.set_stock("phone", fence(6), 1, add=True, if_initial=9)).stock == 7

    async def test_a_refusal_is_forgotten_in_time(self, open_store: OpenStore) -> None:
        """A refusal's key is free again after its time; an order's key is remembered for good."""
        store = await open_store(refusal_ttl_s=0.1)
        await store.set_stock("default", fence(1), 5)
        seen = await prepare(store, "default", fence(2), "b")
        refused = tuple(Refused(f"r{number}", SOLD_OUT) for number in range(3))
        await commit(store, "default", fence(2), decided(seen, Sold(1, None, "k"), refused=refused))
        look = partial(prepare, store, "default", fence(3), "b3", keys=["r0", "k"])
        await eventually_async(look, "it is forgotten", until=lambda seen: set(seen.settled) == {"k"})
        (bought,) = await sell(store, 4, Sold(1, "ann", "r0"))
        seen = await prepare(store, "default", fence(5), "b5", keys=["r0", "k"])
        order = await store.order("default", bought)
        assert order is not None
        assert seen.settled["r0"] == Settled("sold", 1, "ann", order.id)
        assert set(seen.settled) == {"r0", "k"}

    # -- what became of a batch --------------------------------------------------------------------------------------

    async def test_a_batch_is_found_after_others(self, open_store: OpenStore) -> None:
        """Return whether a batch was written is certain even when others have written since."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5001)
        await sell(store, 1, 1)
        seen = await prepare(store, "default", fence(2), "b")
        written, never = decided(seen, 1, 1), decided(seen, 1, batch_id="never")
        ids = await commit(store, "default", fence(2), written)
        for token in range(3, 9):
            await sell(store, token, *[1] * 400)
        assert await resolve(store, "default", fence(9), written) == ids
        assert await resolve(store, "default", fence(9), never) is None

    async def test_what_was_not_written_is_never_written(self, open_store: OpenStore) -> None:
        """A batch that was resolved as not written isn't written when it arrives after all."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        late = decided(await prepare(store, "default", fence(2), "late"), 1, batch_id="late")
        assert await resolve(store, "default", fence(3), late) is None
        with pytest.raises((FenceRefused, StockChanged)):
            await commit(store, "default", fence(2), late)
        assert await store.level("default") == Level("default", 5, 0, 5)
        await sell(store, 4, 1)

    async def test_settling_what_went_away(self, open_store: OpenStore) -> None:
        """An item that no longer exists has no orders to resolve."""
        store = await open_store()
        batch = Batch("b", UNSEEN, [Sold(1)])
        assert await resolve(store, "gone", fence(1), batch) is None

    # -- orders that are known ---------------------------------------------------------------------------------------

    async def test_marks_grow(self, open_store: OpenStore) -> None:
        """The mark of a later order is a greater text, from one sale to the next, too."""
        store = await open_store()
        found = []
        for first in (1, 5):
            await store.set_stock("default", fence(first), 10, new_sale=True)
            for token in range(first, first + 3):
                await sell(store, token, 1, 1)
                found.append(store.marks()["default"])
        assert found == sorted(set(found))
        assert list(store.marks()) == ["default"]
        for odd in ("", "x", "1/2", found[0] + "x"):
            with pytest.raises(ValueError, match="not a mark of ours"):
                store.expect("default", odd)

    async def test_a_store_that_came_back_older_is_noticed(self, system: StoreSystem, open_store: OpenStore) -> None:
        """Its seller, and all who heard of it, notice that an order is missing, until an operator accepts the loss."""
        store = await open_store()
        await store.set_stock("default", fence(1), 10)
        await sell(store, 2, 1)
        put_back = system.copy()
        await sell(store, 3, 1)
        mark = store.marks()["default"]
        other = system.open()
        try:
            other.expect("default", mark)
            assert (await prepare(other, "default", fence(4), "b4")).lucky == 2
            put_back()
            await self._sees_the_loss(store, 4)
            await self._sees_the_loss(other, 4)
            # Others have sold on without noticing.
            await sell(stranger := system.open(), 5, 1)
            await stranger.close()
            await self._sees_the_loss(other, 6)
            await other.accept_loss("default")
            for one in (store, other):
                one.expect("default", mark)
                assert (await prepare(one, "default", fence(7), "b7")).lucky == 2
                assert not isinstance((await one.inspect(["default"]))["default"], StockBehind)
                assert one.marks()["default"] > mark
        finally:
            await other.close()

    async def _sees_the_loss(self, store: StockStore, token: int) -> None:
        with pytest.raises(StockBehind, match="seckill stock accept-loss --sku default"):
            await prepare(store, "default", fence(token), "x")
        with pytest.raises(StockBehind):
            await store.set_stock("default", fence(token), 10)
        answer = (await store.inspect(["default"]))["default"]
        assert isinstance(answer, StockBehind)

    async def test_an_item_without_orders_can_be_removed(self, open_store: OpenStore) -> None:
        """An item with orders stays; a late grant removes nothing; an older decision is not written after a removal."""
        store = await open_store()
        for sku in ("pen", "phone"):
            await store.set_stock(sku, fence(1), 5)
        await sell(store, 2, 1, sku="phone")
        with pytest.raises(HasOrders):
            await store.remove("phone", fence(3))
        with pytest.raises(UnknownItem):
            await store.remove("phnoe", fence(3))
        seen = await prepare(store, "pen", fence(4), "b")
        if await fence_of(store, "pen") is not None:
            with pytest.raises(FenceRefused):
                await store.remove("pen", fence(3))
        await store.remove("pen", fence(4))
        assert await store.items() == ["phone"]
        await store.set_stock("pen", fence(4), 5)
        with pytest.raises((FenceRefused, StockChanged)):
            await commit(store, "pen", fence(4), decided(seen, 1))
        assert await store.level("pen") == Level("pen", 5, 0, 5)

    @pytest.mark.usefixtures("unswept")
    async def test_a_removed_item_is_unknown_and_misses_no_order(self, open_store: OpenStore) -> None:
        """Orders of an earlier sale are not lost when the item is removed, and don't return with it."""
        store = await open_store()
        await store.set_stock("pen", fence(1), 5)
        await sell(store, 2, Sold(1, "ann", "k"), sku="pen")
        await store.set_stock("pen", fence(3), 5, new_sale=True, terms={"limit_per_buyer": 2})
        await store.remove("pen", fence(3))
        for attempt in (
            prepare(store, "pen", fence(4), "b"),
            store.level("pen"),
            store.set_stock("pen", fence(4), 1, add=True),
            store.remove("pen", fence(4)),
        ):
            with pytest.raises(UnknownItem):
                await attempt
        assert not isinstance((await store.inspect(["pen"]))["pen"], StockBehind)
        assert (await store.items(), await store.orders("pen")) == ([], [])
        assert await store.set_stock("pen", fence(4), 0) == await store.level("pen") == Level("pen", 0, 0, 0)
        await store.set_stock("pen", fence(4), 5)
        seen = await prepare(store, "pen", fence(5), "c", buyers=["ann"], keys=["k"])
        assert (seen.bought, seen.settled) == ({}, {})
        await commit(store, "pen", fence(5), decided(seen, 1, batch_id="c"))
        assert (await store.level("pen")).lucky == await store.count_orders("pen") == 1

    async def test_the_loss_of_an_item_can_be_accepted(self, system: StoreSystem, open_store: OpenStore) -> None:
        """If a store came back without the item, an operator's word makes it one that was never there."""
        store = await open_store()
        assert await store.items() == []
        put_back = system.copy()
        await store.set_stock("default", fence(1), 5)
        await sell(store, 2, 1)
        put_back()
        with pytest.raises(StockBehind):
            await prepare(store, "default", fence(3), "a")
        await store.accept_loss("default")
        with pytest.raises(UnknownItem):
            await prepare(store, "default", fence(4), "b")
        assert await store.items() == []

    async def test_a_loss_that_is_accepted_begins_no_sale(self, open_store: OpenStore) -> None:
        """Whoever follows the journal goes on in the same sale, however often a loss is accepted, until a new one."""
        store = await open_store()
        await store.set_stock("pen", fence(1), 5)
        await sell(store, 2, 1, sku="pen")
        sales = [(await store.level("pen")).sale]
        for number in range(2):
            for _ in range(2):
                await store.accept_loss("pen")
                assert (await store.level("pen")).sale == sales[-1]
            await store.set_stock("pen", fence(3 + number), 5, new_sale=True)
            sales.append((await store.level("pen")).sale)
        assert len({*sales}) == 3
        assert sales == sorted(sales, key=int)

    async def test_what_operators_change_is_logged(self, open_store: OpenStore) -> None:
        """The log has each change with operator and values before and after, newest first, but no refused change."""
        store = await open_store()
        await store.set_stock("pen", fence(1), 5, by="ann")
        await store.set_stock("phone", fence(2), 3, by="bob", terms={"limit_per_buyer": 2})
        await sell(store, 3, Sold(1, "cid"), sku="phone")
        with pytest.raises(StockNotAsExpected):
            await store.set_stock("phone", fence(4), 9, by="bob", if_match=(7, 7))
        await store.set_stock("phone", fence(5), 0, by="ann", add=True, terms={"paused": "上茶"})
        await store.set_stock("phone", fence(6), 9, by="bob", new_sale=True)
        await store.remove("pen", fence(7), by="bob")
        await store.unfence("phone", by="cid")
        await store.accept_loss("phone", by="cid")
        log = await (await open_store()).log()
        # Changes of two items in one millisecond may stand in either order.
        phones, pens = ([one for one in log if one.sku == sku] for sku in ("phone", "pen"))
        assert [(one.by, one.what) for one in phones] == [
            ("cid", "accept loss"),
            ("cid", "unfence"),
            ("bob", "new sale"),
            ("ann", "pause"),
            ("bob", "stock"),
        ]
        assert [(one.by, one.what) for one in pens] == [("bob", "remove"), ("ann", "stock")]
        assert [one.at for one in log] == sorted((one.at for one in log), reverse=True)
        assert (phones[2].before, phones[2].after) == (
            {"stock": 2, "sold": 1, "limit_per_buyer": 2, "paused": "上茶"},
            {"stock": 9, "sold": 0, "limit_per_buyer": 2, "paused": "上茶"},
        )
        assert (pens[0].before, pens[0].after) == ({"stock": 5}, {})
        assert phones[2].difference == "sold 1 -> 0, stock 2 -> 9"
        assert [one.by for one in await store.log("pen")] == ["bob", "ann"]
        assert len(await store.log(limit=2)) == 2
        assert await store.log("nothing") == []

    async def test_terms_are_guarded_like_the_stock(self, open_store: OpenStore) -> None:
        """A decision made on other terms is not written; a lower token can't change the terms."""
        store = await open_store()
        await store.set_stock("phone", fence(1), 5)
        seen = await prepare(store, "phone", fence(2), "b")
        longest = {f"{a}{b}": "🎂" * 200 for a in "abcd" for b in "efghi"}
        await store.set_stock("phone", fence(2), 0, add=True, terms={"limit_per_buyer": 1, "paused_texts": longest})
        with pytest.raises(StockError):
            await commit(store, "phone", fence(2), decided(seen, 2))
        if store.guarded and (await store.inspect(["phone"]))["phone"] is not None:
            with pytest.raises(FenceRefused):
                await store.set_stock("phone", fence(1), 0, add=True, terms={"limit_per_buyer": 5})
        assert (await store.level("phone")).terms == Terms(limit_per_buyer=1, paused_texts=longest)

    @pytest.mark.usefixtures("unswept")
    async def test_a_new_sale_begins_anew(self, system: StoreSystem, open_store: OpenStore) -> None:
        """Orders of the old sale are not missed in a new sale, nor in a store that was emptied and filled again."""
        store = await open_store()
        await store.set_stock("default", fence(1), 10)
        put_back = system.copy()
        await sell(store, 2, 1)
        put_back()
        with pytest.raises(StockBehind):
            await prepare(store, "default", fence(3), "x")
        await store.set_stock("default", fence(3), 9, new_sale=True)
        await sell(store, 4, 1)
        system.clear()
        with pytest.raises(StockBehind):
            await prepare(store, "default", fence(5), "x")
        await store.set_stock("default", fence(5), 3)
        await sell(store, 6, 1)

    # -- items and names ---------------------------------------------------------------------------------------------

    async def test_what_a_newer_release_has_begun_is_left_alone(
        self, system: StoreSystem, open_store: OpenStore
    ) -> None:
        """Its layout is not known here: nothing is sold of it, set or removed, also if it was begun in mid-sale."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        await store.set_stock("other", fence(1), 5)
        seen = await prepare(store, "default", fence(2), "b")
        system.note_layout("default", LAYOUT)
        assert len(await commit(store, "default", fence(2), decided(seen, 1))) == 1
        system.note_layout("default", LAYOUT + 1)
        with pytest.raises(StockCorrupt):
            await prepare(store, "default", fence(9), "c")
        assert await fence_of(store, "default") in (None, fence(2))  # whoever sells it goes on
        for refused in (
            prepare(store, "default", fence(3), "c"),
            store.set_stock("default", fence(3), 9),
            store.set_stock("default", fence(3), 9, new_sale=True),
            store.remove("default", fence(3)),
        ):
            with pytest.raises(StockCorrupt, match=f"newer release.*layout {LAYOUT + 1}, and {LAYOUT} is known"):
                await refused
        assert (await prepare(store, "other", fence(3), "c")).stock == 5
        system.note_layout("default", LAYOUT)
        seen = await prepare(store, "default", fence(4), "d")
        assert (seen.stock, seen.lucky) == (4, 1)

    async def test_what_an_unreleased_state_has_begun_gives_way_to_a_new_sale_only(
        self, system: StoreSystem, open_store: OpenStore
    ) -> None:
        """Nothing is sold of an item in a smaller layout, set or removed, until a new sale takes its place."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        await sell(store, 2, Sold(1, "ann", "k"))
        system.note_layout("default", LAYOUT - 1)
        for refused in (
            prepare(store, "default", fence(3), "c"),
            store.set_stock("default", fence(3), 9),
            store.set_stock("default", fence(3), 1, add=True),
            store.remove("default", fence(3)),
        ):
            with pytest.raises(StockCorrupt, match=f"unreleased.*layout {LAYOUT - 1}, and {LAYOUT} is known.*new sale"):
                await refused
        assert (await store.level("default")).stock == 4
        await store.set_stock("default", fence(4), 9, new_sale=True)
        seen = await prepare(store, "default", fence(5), "d", buyers=["ann"], keys=["k"])
        assert (seen.stock, seen.lucky, seen.bought, seen.settled) == (9, 0, {}, {})

    async def test_items_lie_apart(self, open_store: OpenStore) -> None:
        """Items don't see each other's stock, buyers, keys and orders."""
        store = await open_store()
        skus = ["default", "phone", "phone-2"]
        for units, sku in enumerate(skus, 1):
            await store.set_stock(sku, fence(1), units)
            await sell(store, 2, Sold(1, "ann", f"key of {sku}"), sku=sku)
        assert await store.items() == skus
        assert [(await store.level(sku)).stock for sku in skus] == [0, 1, 2]
        keys = [f"key of {sku}" for sku in skus]
        seen = await store.prepare(fence(3), "c", {sku: Ask(["ann"], keys) for sku in skus})
        for sku, answer in seen.items():
            assert isinstance(answer, Snapshot)
            assert (answer.bought, set(answer.settled)) == ({"ann": 1}, {f"key of {sku}"})
            assert [one.key for one in await store.orders(sku)] == [f"key of {sku}"]
        await store.set_stock("phone", fence(4), 5, new_sale=True)
        assert len(await store.orders("phone-2")) == 1

    async def test_several_items_in_a_call(self, system: StoreSystem, open_store: OpenStore) -> None:
        """Each item of a call is read and written by itself: an error is that item's answer and doesn't stop others."""
        store = await open_store()
        for sku in ("phone", "case", "changed"):
            await store.set_stock(sku, fence(1), 5)
        asks = {"phone": Ask(["ann"], ["k"]), "case": Ask(), "nothing": Ask(), "changed": Ask()}
        seen = await store.prepare(fence(2), "b", asks)
        assert list(seen) == list(asks)
        assert [getattr(one, "stock", type(one)) for one in seen.values()] == [5, 5, UnknownItem, 5]
        await store.set_stock("changed", fence(2), 4)
        write = {
            "case": decided(_snapshot(seen["case"]), 2, 1, refused=(Refused("r", SOLD_OUT),)),
            "changed": decided(_snapshot(seen["changed"]), 2),
            "phone": decided(_snapshot(seen["phone"]), Sold(1, "ann", "k")),
        }
        done = await store.commit(fence(2), write)
        assert {sku: len(one) if isinstance(one, list) else type(one) for sku, one in done.items()} in (
            {"case": 2, "changed": StockChanged, "phone": 1},
            {"case": 2, "changed": FenceRefused, "phone": 1},
        )
        assert [(await store.level(sku)).stock for sku in write] == [2, 4, 4]
        again = await store.commit(fence(2), {sku: write[sku] for sku in ("case", "phone")})
        assert again == {sku: done[sku] for sku in ("case", "phone")}
        asked = await store.prepare(fence(3), "c", {"case": Ask([], ["r"]), "phone": Ask(["ann"], ["k"])})
        case, phone = _snapshot(asked["case"]), _snapshot(asked["phone"])
        assert case.settled == {"r": SOLD_OUT}
        assert phone.bought == {"ann": 1}
        assert phone.settled["k"].order is not None
        assert [phone.settled["k"].order.number] == done["phone"]

    async def test_items_that_are_written_together(self, open_store: OpenStore) -> None:
        """All of a group are written or none, whichever of them has changed, and the same again is the same.

        An item beside them is written in any case.
        """
        store = await open_store()
        skus = ["phone", "case", "lamp"]
        if store.apart(skus):
            pytest.skip("its items can't be written together")
        for sku in (*skus, "pen"):
            await store.set_stock(sku, fence(1), 5)
        for number, changed_sku in enumerate((*skus, None)):
            name, token = f"b{number}", fence(2 * number + 2)
            asked = await store.prepare(token, name, dict.fromkeys((*skus, "pen"), Ask()))
            write = {
                sku: decided(_snapshot(asked[sku]), *((1,) if sku != "lamp" else ()), batch_id=name) for sku in skus
            }
            before = [await store.level(sku) for sku in skus]
            if changed_sku is not None:
                await store.set_stock(changed_sku, fence(2 * number + 3), 0, add=True)
                before = [await store.level(sku) for sku in skus]
            write["pen"] = decided(_snapshot(asked["pen"]), 1, batch_id=name)
            done = await store.commit(token, write, [set(skus)])
            assert isinstance(done["pen"], list)
            assert (await store.level("pen")).lucky == number + 1
            after = [await store.level(sku) for sku in skus]
            if changed_sku is None:
                assert [one.stock for one in after] == [4, 4, 5]
                assert await store.commit(token, write, [set(skus)]) == done
                await sell(store, 98, 1, sku="phone")  # and the others are still as this batch has left them
                assert await store.commit(token, write, [set(skus)]) == done
                assert await store.resolve(fence(99), write) == done
            else:
                assert all(isinstance(one, StockChanged | FenceRefused) for sku, one in done.items() if sku != "pen"), (
                    done
                )
                assert after == before

    async def test_an_unknown_item_is_an_error_and_leaves_nothing(
        self, system: StoreSystem, open_store: OpenStore
    ) -> None:
        """A request for an item that doesn't exist writes nothing."""
        store = await open_store()
        for sku in ("default", "nope"):
            for attempt in (prepare(store, sku, fence(1), "b"), store.level(sku)):
                with pytest.raises(UnknownItem):
                    await attempt
        assert await store.orders("nope") == []
        assert await fence_of(store, "nope") is None
        assert system.leftovers() == []

    @pytest.mark.parametrize("sku", ["", "a b", "a/b", "{a}", "a\n", "ü", "x" * 65])
    async def test_an_odd_name_is_refused(self, open_store: OpenStore, sku: str) -> None:
        """A name may have only letters, digits, '.', '_' and '-'."""
        store = await open_store()
        with pytest.raises(ItemNotPossible):
            store.check(sku)
        for attempt in (
            store.level(sku),
            prepare(store, sku, fence(1), "b"),
            store.set_stock(sku, fence(1), 1),
            store.orders(sku),
            store.inspect([sku]),
            store.unfence(sku),
        ):
            with pytest.raises(ItemNotPossible):
                await attempt

    # -- orders ------------------------------------------------------------------------------------------------------

    async def test_a_number_that_is_none_finds_nothing(self, open_store: OpenStore) -> None:
        """Leading zeros make another number, of no order, even where the server reads them as the same."""
        store = await open_store()
        await store.set_stock("default", fence(1), 2)
        (real,) = await sell(store, 2, 1)
        assert await store.order("default", real) is not None
        others = {f"0{real}", real.replace("-", "-0"), real.partition("-")[0], "", "x", "1-1", "1", "9" * 40} - {real}
        for other in others:
            assert await store.order("default", other) is None
            assert await store.history("default", other) == []
            seen = await prepare(store, "default", fence(3), "c", orders=[other], holds=True)
            assert seen.records == {}
        for other in ("nonsense", f"0{real}"):
            with pytest.raises(ValueError, match="not the number of an order"):
                await store.orders("default", after=other)

    async def test_orders_come_in_pages(self, open_store: OpenStore) -> None:
        """A page begins behind the last order of the one before; the last entry of the level is where the pages end."""
        store = await open_store()
        await store.set_stock("default", fence(1), 50)
        ids = await sell(store, 2, *[1] * 25)
        until = (await store.level("default")).last_entry
        await sell(store, 3, 1)
        pages, after = [], None
        while page := await store.orders("default", after=after, until=until, limit=10):
            pages.append([order.record.number for order in page])
            after = page[-1].record.number
        assert [len(page) for page in pages] == [10, 10, 5]
        assert sum(pages, []) == ids

    # -- orders that are held ----------------------------------------------------------------------------------------

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> StockStore:
        """Open a store in which orders can be held, or skip."""
        store = await open_store()
        if not store.holds:
            pytest.skip("it holds nothing")
        return store

    async def _hold(self, store: StockStore, token: int, *held: tuple[str, int], **fields: Any) -> list[Record]:
        """Hold units for buyers, and return how the orders stand."""
        seen = await prepare(store, "default", fence(token), f"b{token}", holds=True)
        new = [held_for(seen, *one, **fields) for one in held]
        ids = await commit(store, "default", fence(token), decided(seen, batch_id=f"b{token}", held=new))
        return [one.record._replace(number=number) for one, number in zip(new, ids, strict=True)]

    async def test_a_held_order_changes(self, store: StockStore) -> None:
        """An order is paid, another runs out, and their units move once, however often the batch is sent."""
        await store.set_stock("default", fence(1), 9)
        ann, bob = await self._hold(store, 2, ("ann", 2), ("bob", 3))
        seen = await prepare(store, "default", fence(3), "c", orders=[ann.number, bob.number], holds=True)
        assert list(seen.records.values()) in ([ann, bob], [bob, ann])
        write = decided(seen, batch_id="c", changes=[paid(ann, "p"), run_out(bob)])
        for token in (4, 5):
            assert await commit(store, "default", fence(3), write) == []
            await prepare(store, "default", fence(token), f"b{token}")
        level = await store.level("default")
        assert (level.stock, level.held, level.lucky, level.initial, level.due_in_s) == (7, 0, 2, 9, None)
        assert await resolve(store, "default", fence(6), write) == []
        assert (
            await resolve(store, "default", fence(7), decided(seen, batch_id="never", changes=[paid(ann, "q")])) is None
        )
        seen = await prepare(
            store, "default", fence(8), "d", buyers=["ann", "bob"], payments=["p", "q"], orders=[bob.number], holds=True
        )
        assert (seen.bought, seen.open, seen.payments) == ({"ann": 2, "bob": 0}, {}, {"p": ann.number})
        assert {*seen.records} == {ann.number, bob.number}
        assert seen.records[bob.number].state is OrderState.EXPIRED
        seen = await prepare(store, "default", fence(8), "d", orders=[bob.number], holds=True)
        assert seen.bought == {"bob": 0}  # as bob may pay late, up to the limit
        assert [(one.buyer, one.state) for one in await store.orders("default")] == [
            ("ann", "confirmed"),
            ("bob", "expired"),
        ]
        assert await store.count_orders("default") == 2

    @pytest.mark.usefixtures("unswept")
    async def test_orders_are_found_by_a_payment(self, open_store: OpenStore) -> None:
        """A payment may be that of an order of each of several items; a new sale forgets it."""
        store = await open_store()
        found: dict[str, OrderId] = {}
        for sku in ("phone", "watch"):
            await store.set_stock(sku, fence(1), 9)
            seen = await prepare(store, sku, fence(2), "a", holds=True)
            await commit(store, sku, fence(2), decided(seen, batch_id="a", held=[held_for(seen, "ann")]))
            (order,) = await store.orders(sku)
            seen = await prepare(store, sku, fence(3), "b", orders=[order.record.number], holds=True)
            write = decided(seen, batch_id="b", changes=[paid(order.record, "p")])
            await commit(store, sku, fence(3), write)
            found[sku] = order.id
        for skus in (["phone"], ["watch", "phone", "lamp"], ["lamp"]):
            orders = await store.paid_with("p", skus)
            assert {one.sku: one.id for one in orders} == {sku: found[sku] for sku in skus if sku in found}
            assert all(one.state is OrderState.CONFIRMED for one in orders)
        assert await store.paid_with("q", ["phone", "watch"]) == []
        await store.set_stock("phone", fence(9), 9, new_sale=True, forget_orders=None)
        assert [one.sku for one in await store.paid_with("p", ["phone", "watch"])] == ["watch"]

    async def test_a_change_needs_the_order_as_it_was(self, store: StockStore) -> None:
        """A change that was decided on an older state of an order isn't written, however late it comes."""
        await store.set_stock("default", fence(1), 9)
        ann, bob = await self._hold(store, 2, ("ann", 2), ("bob", 3))
        both: dict[str, Any] = {"orders": [ann.number, bob.number], "holds": True}
        early = await prepare(store, "default", fence(3), "early", **both)
        seen = await prepare(store, "default", fence(4), "c", **both)
        await commit(store, "default", fence(4), decided(seen, batch_id="c", changes=[paid(ann, "p")]))
        before, journal = await store.level("default"), await store.journal("default")
        for changes in ([run_out(ann)], [paid(bob, "p")]):
            write = decided(early, Sold(1, "cid"), batch_id="early", changes=changes)
            with pytest.raises((FenceRefused, StockChanged)):
                await commit(store, "default", fence(3), write)
        assert (await store.level("default"), await store.journal("default")) == (before, journal)
        # Two changes of an order in a batch, one after the other, are all right.
        seen = await prepare(store, "default", fence(8), "d", **both)
        first = paid(bob, "q")
        second = changed(first.after, EventKind.REFUND_DUE, {"about": "payment", "payment_ref": "r"}, "r")
        await commit(store, "default", fence(8), decided(seen, batch_id="d", changes=[first, second]))
        seen = await prepare(store, "default", fence(9), "e", orders=[bob.number], payments=["q", "r"], holds=True)
        assert seen.records[bob.number].events == 3
        events = await store.history("default", bob.number)
        assert [(one.kind, one.number, one.batch_id) for one in events] == [
            ("held", 1, "b2"),
            ("confirmed", 2, "d"),
            ("refund_due", 3, "d"),
        ]
        assert events == [one for one in await store.journal("default") if one.order.number == bob.number]
        assert seen.payments == {"q": bob.number, "r": bob.number}

    async def test_the_journal_has_all_that_happened(self, store: StockStore) -> None:
        """Changes, holds and sales stand in one order, and come in pages; their units add up to the level's."""
        await store.set_stock("default", fence(1), 9)
        ann, bob = await self._hold(store, 2, ("ann", 2), ("bob", 1))
        asked: dict[str, Any] = {"buyers": ["cid", "dan"], "keys": ["k"], "orders": [ann.number], "holds": True}
        seen = await prepare(store, "default", fence(3), "c", **asked)
        write = decided(seen, Sold(1, "dan", "k"), batch_id="c", held=[held_for(seen, "cid")], changes=[paid(ann, "p")])
        ids = await commit(store, "default", fence(3), write)
        until = (await store.level("default")).last_entry
        assert until == ids[1]
        await sell(store, 4, 1)
        whole = await store.journal("default", until=until)
        pages, after = [], None
        while page := await store.journal("default", after=after, until=until, limit=2):
            pages.append(page)
            after = page[-1].entry
        assert sum(pages, []) == whole
        assert [await store.journal("default", after=after, until=until) for after in ("", "0")] == [whole, whole]
        assert await store.journal("default", until="0") == []
        assert write.secrets == [one.order.secret for one in whole[3:]]
        assert await store.order("default", whole[2].entry) is None  # it begins none
        asked = {"orders": [whole[2].entry], "holds": True}
        assert (await prepare(store, "default", fence(5), "e", **asked)).records == {}
        own = ([ann.number, bob.number], ids)
        assert [(one.kind, one.number, one.buyer, one.key, one.order.number, one.units) for one in whole] == [
            ("held", 1, "ann", None, own[0][0], (-2, 2, 0)),
            ("held", 1, "bob", None, own[0][1], (-1, 1, 0)),
            ("confirmed", 2, "ann", None, own[0][0], (0, -2, 2)),
            ("held", 1, "cid", None, own[1][0], (-1, 1, 0)),
            ("sold", 1, "dan", "k", own[1][1], (-1, 0, 1)),
        ]
        assert (whole[2].facts["payment_ref"], whole[2].batch_id) == ("p", "c")
        assert [one.record.number for one in await store.orders("default", after=own[0][1], until=until)] == ids
        assert [one.record.number for one in await store.orders("default", limit=3)] == [*own[0], ids[0]]

    async def test_what_is_due(self, store: StockStore) -> None:
        """Orders whose time is up are named without being asked for, some hundred at a time, the oldest first."""
        await store.set_stock("default", fence(1), 300)
        late = await self._hold(store, 2, *((f"late {number}", 1) for number in range(5)), for_ms=-5000)
        later = await self._hold(store, 3, *((f"buyer {number}", 1) for number in range(200)), for_ms=-1000)
        await self._hold(store, 4, ("ann", 1))
        seen = await prepare(store, "default", fence(5), "c")
        assert (len(seen.due), seen.more_due, set(seen.due[:5])) == (200, True, {one.number for one in late})
        assert seen.records == {one.number: one for one in (*late, *later) if one.number in seen.due}
        gone = [run_out(seen.records[number]) for number in seen.due[:5]]
        await commit(store, "default", fence(5), decided(seen, 1, batch_id="c", changes=gone))
        seen = await prepare(store, "default", fence(6), "d")
        assert (len(seen.due), seen.more_due, seen.held, seen.stock) == (200, False, 201, 98)
        assert (await store.level("default")).held == 201

    @pytest.mark.usefixtures("unswept")
    async def test_what_is_held_stays_and_goes(self, store: StockStore) -> None:
        """A restock keeps what is held, a new sale forgets it; an order that was given back is an order."""
        await store.set_stock("default", fence(1), 9)
        (ann,) = await self._hold(store, 2, ("ann", 2))
        level = await store.set_stock("default", fence(3), 20)
        assert (level.stock, level.held, level.lucky, level.initial) == (20, 2, 0, 22)
        seen = await prepare(store, "default", fence(4), "c", orders=[ann.number], holds=True)
        await commit(store, "default", fence(4), decided(seen, batch_id="c", changes=[run_out(ann)]))
        with pytest.raises(HasOrders):
            await store.remove("default", fence(5))
        await self._hold(store, 6, ("ann", 3))
        level = await store.set_stock("default", fence(7), 5, new_sale=True, forget_orders=2)
        assert level == await store.level("default") == Level("default", 5, 0, 5)
        assert (await store.orders("default"), await store.journal("default")) == ([], [])
        seen = await prepare(
            store, "default", fence(8), "e", buyers=["ann"], orders=[ann.number], payments=["p"], holds=True
        )
        assert (seen.held, seen.bought, seen.records, seen.open, seen.payments) == (0, {}, {}, {}, {})
        assert [(one.before.get("held"), one.after.get("held", 0)) for one in await store.log("default", limit=2)] == [
            (3, 0),
            (2, 2),
        ]

    async def test_a_lost_change_is_noticed(self, system: StoreSystem, store: StockStore) -> None:
        """A store that came back without a change of an order is behind, as it is without an order."""
        await store.set_stock("default", fence(1), 9)
        (ann,) = await self._hold(store, 2, ("ann", 2))
        put_back = system.copy()
        seen = await prepare(store, "default", fence(3), "c", orders=[ann.number], holds=True)
        await commit(store, "default", fence(3), decided(seen, batch_id="c", changes=[paid(ann, "p")]))
        other = system.open()
        try:
            other.expect("default", store.marks()["default"])
            await sell(other, 4, 1)  # the change is no longer the last entry, and is there
            assert (await prepare(store, "default", fence(5), "d")).lucky == 3
            put_back()
            for one in (store, other):
                with pytest.raises(StockBehind):
                    await prepare(one, "default", fence(6), "e")
        finally:
            await other.close()

    async def test_several_orders_of_a_buyer_change_at_once(self, store: StockStore) -> None:
        """Their units are counted together, and the last hold that is open is known until it is over."""
        await store.set_stock("default", fence(1), 20)
        seen = await prepare(store, "default", fence(2), "b", holds=True)
        new = [
            held_for(seen, "ann", 2),
            held_for(seen, "ann", 3),
            held_for(seen, "bob"),
            held_for(seen, "cid", key="h"),
        ]
        ids = await commit(store, "default", fence(2), decided(seen, batch_id="b", held=new))
        asked: dict[str, Any] = {"buyers": ["ann", "bob", "cid"], "orders": ids, "holds": True}
        seen = await prepare(store, "default", fence(3), "c", **asked)
        assert (seen.bought, seen.open) == (
            {"ann": 5, "bob": 1, "cid": 1},
            {"ann": ids[1], "bob": ids[2], "cid": ids[3]},
        )
        later = seen.now_ms / 1000 + 7200
        ends = [run_out(seen.records[ids[0]])]
        goes = changed(seen.records[ids[2]], EventKind.EXTENDED, {"pay_by": later, "goes_back_at": later + 60})
        gone = changed(seen.records[ids[3]], EventKind.CANCELLED, {"by": "olga"})
        shown = Settled("already_held", 3, "ann", seen.records[ids[1]].id_of("default"))
        more: dict[str, Any] = {"changes": [*ends, goes, gone], "refused": (Refused("k", shown),)}
        (sold,) = await commit(store, "default", fence(3), decided(seen, Sold(4, "ann"), batch_id="c", **more))
        seen = await prepare(store, "default", fence(4), "d", keys=["k"], **asked)
        assert seen.settled == {"k": shown}
        assert (seen.bought, seen.open) == ({"ann": 7, "bob": 1, "cid": 0}, {"ann": ids[1], "bob": ids[2]})
        assert seen.records[ids[2]].due_ms == round(1000 * (later + 60))
        for names, of, bought in (
            ({"buyers": ["bob"]}, ids[2], {"bob": 1}),
            ({"keys": ["k"]}, ids[1], {"ann": 7}),
            ({"keys": ["h"]}, ids[3], {"cid": 0}),
            ({"orders": [sold]}, sold, {"ann": 7}),
        ):
            found = await prepare(store, "default", fence(4), "d", holds=True, **names)
            assert ([*found.records], found.bought) == ([of], bought)
        seen = await prepare(store, "default", fence(4), "d", **asked)
        (line, *_) = await store.log("default")
        assert (line.by, line.what, line.before["state"], line.after["state"]) == (
            "olga",
            "cancel",
            "held",
            "cancelled",
        )
        ends = [run_out(seen.records[number]) for number in ids[1:3]]
        await commit(store, "default", fence(4), decided(seen, batch_id="d", changes=ends))
        seen = await prepare(store, "default", fence(5), "e", **asked)
        assert (seen.bought, seen.open, seen.held, seen.stock) == ({"ann": 4, "bob": 0, "cid": 0}, {}, 0, 16)
        assert await store.count_orders("default") == 5

    @pytest.mark.usefixtures("unswept")
    async def test_who_waits_stands_in_line(self, store: StockStore) -> None:
        """In the order in which they came, until they leave it; units are for them; a new sale has no line."""
        await store.set_stock("default", fence(1), 0)
        seen = await prepare(store, "default", fence(2), "b", holds=True)
        new = [Begun(Record("", new_secrets(1)[0], OrderState.WAITING, 1, name)) for name in ("ann", "bob", "cid")]
        write = replace(decided(seen, batch_id="b", held=new), wants=2)
        numbers = await commit(store, "default", fence(2), write)
        orders = await store.orders("default")
        assert [await store.before(one) for one in orders] == [0, 1, 2]
        for asks_line, line in ((False, []), (True, numbers)):
            seen = await prepare(store, "default", fence(4), "c", holds=True, line=asks_line)
            assert (seen.waiting, seen.wants, seen.line, list(seen.records)) == (3, 2, line, line)
        assert seen.open == {}
        left = changed(seen.records[numbers[0]], EventKind.CANCELLED, {})
        await commit(store, "default", fence(4), decided(seen, batch_id="c", changes=[left]))
        assert [await store.before(one) for one in orders] == [None, 0, 1]
        await store.set_stock("default", fence(5), 1, add=True)
        seen = await prepare(store, "default", fence(6), "d", buyers=["ann", "bob"])
        assert (seen.waiting, seen.wants, seen.line, seen.open) == (2, 0, numbers[1:], {"bob": numbers[1]})
        assert (await store.level("default")).waiting == 2
        await commit(store, "default", fence(6), replace(decided(seen, batch_id="d"), wants=1))
        assert (await store.set_stock("default", fence(7), 1, new_sale=True)).waiting == 0
        seen = await prepare(store, "default", fence(8), "e", line=True, holds=True)
        assert (seen.waiting, seen.wants, seen.line, await store.before(orders[1])) == (0, 0, [], None)
        new = [Begun(Record("", secret, OrderState.WAITING, 1)) for secret in new_secrets(101)]
        numbers = await commit(store, "default", fence(8), decided(seen, 1, batch_id="e", held=new))
        assert await store.count_orders("default") == 102
        assert (await prepare(store, "default", fence(9), "f", line=True)).line == numbers[:100]

    @pytest.mark.usefixtures("unswept")
    async def test_what_has_moved(self, system: StoreSystem, open_store: OpenStore) -> None:
        """Journals with an entry behind the given one; whoever waits for one hears soon, and in vain no longer."""
        store = await open_store()
        for sku in ("pen", "phone"):
            await store.set_stock(sku, fence(1), 5)
        nothing = {"pen": "", "phone": "", "nope": ""}
        assert await store.moved(nothing, 0) == set()
        assert await store.moved({}, 0) == set()
        waiting = asyncio.ensure_future(store.moved(nothing, 30))
        other = system.open()
        try:
            began = time.monotonic()
            await sell(other, 2, 1, 1, sku="phone")
            while (await waiting) == set():  # it may give up a little earlier
                waiting = asyncio.ensure_future(store.moved(nothing, 30))
            assert (await waiting, time.monotonic() - began < 20) == ({"phone"}, True)
        finally:
            await other.close()
        first, last = [one.entry for one in await store.journal("phone")]
        assert await store.moved({"phone": first}, 0) == {"phone"}
        began = time.monotonic()
        assert await store.moved({"phone": last}, 0.2) == set()
        assert 0.1 < time.monotonic() - began < 20
        await store.set_stock("phone", fence(3), 5, new_sale=True)
        assert await store.moved(nothing, 0) == set()

    async def test_the_notes_of_senders(self, open_store: OpenStore) -> None:
        """Each receiver's sender has its own, which only a later grant replaces; a new sale begins without notes."""
        store = await open_store()
        for sku in ("pen", "phone"):
            await store.set_stock(sku, fence(1), 5)
        sale = (await store.level("phone")).sale

        async def noted(receiver: str = "shop", sku: str = "phone") -> tuple[str, str]:
            found = (await store.outbox(["pen", "phone"], receiver))[sku]
            assert isinstance(found, Outbox)
            return found.text, found.wish

        async def save(token: int, text: str, number: int, **more: Any) -> None:
            await store.save_outbox("phone", fence(token), Outbox(sale, text, number=number, **more), "shop")

        await save(5, "one", 1)
        assert [await noted(), await noted("till"), await noted(sku="pen")] == [("one", ""), ("", ""), ("", "")]
        await save(5, "two", 2)
        await save(5, "one", 1)  # which comes late
        assert await noted() == ("two", "")
        another = await open_store()
        assert await another.ask_sender("phone", "again", "shop")
        assert not await another.ask_sender("phone", "other", "shop")
        await save(5, "three", 3)
        assert await noted() == ("three", "again")
        assert await another.ask_sender("phone", "other", "shop", instead_of="again")
        await save(5, "four", 4, wish="other")
        assert await noted() == ("four", "")
        with pytest.raises(FenceRefused):
            await save(4, "late", 9)
        with pytest.raises(ForeignFence):
            await store.save_outbox("phone", fence(9, "etcd:2"), Outbox(sale, "foreign"), "shop")
        await another.unfence("phone")
        await save(4, "five", 1)
        assert await noted() == ("five", "")
        assert [await store.receivers([sku]) for sku in ("phone", "pen")] == [["default", "shop"], ["default"]]
        await store.set_stock("phone", fence(9), 5, new_sale=True)
        assert await noted() == ("", "")
        assert await store.receivers(["phone"]) == ["default"]
        with pytest.raises(StockChanged):
            await save(9, "of the sale before", 2)

    async def test_a_name_is_erased(self, store: StockStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """In all that is kept of the item: the numbers stay, and others' names, and nothing that was decided before
        writes it again; nor does an erasure that began before another one bring that one's name back.
        """
        for name in ("sql.storage._PAGE", "sql.storage._AT_ONCE", "redis.storage._COPY", "redis.storage._AT_ONCE"):
            monkeypatch.setattr(f"app.stock.{name}", 2)  # so that a few orders are many
        await store.set_stock("default", fence(1), 99)
        (held,) = await self._hold(store, 2, ("ann", 2), key="k1")
        await self._hold(store, 3, ("bob", 1))
        numbers = await sell(store, 4, Sold(3, "ann", "k2"), Sold(1, "bob", "k3"), Sold(1, "cid"))
        refused = [Refused(key, Settled("limit_reached", 7, "ann", line="ann")) for key in ("r", "s", "t", "u", "v")]
        late = await prepare(store, "default", fence(5), "b5", buyers=["ann"], keys=[one.key for one in refused])
        await commit(store, "default", fence(5), decided(late, batch_id="b5", refused=(*refused,)))
        late = await prepare(store, "default", fence(6), "late", buyers=["ann"])
        before, others = await store.level("default"), ["bob"]

        @asynccontextmanager
        async def under() -> AsyncIterator[Fence]:
            if others:
                assert await store.erase("default", others.pop(), under) == 2
            yield fence(6)

        assert await store.erase("default", "ann", under, by="olga") == 2
        with pytest.raises((FenceRefused, StockChanged)):
            await commit(store, "default", fence(6), decided(late, Sold(1, "ann"), batch_id="late"))
        assert await store.level("default") == before
        names = [ERASED] * 4 + ["cid"]
        assert [one.buyer for one in await store.orders("default")] == names
        assert [one.buyer for one in await store.journal("default")] == names
        asked: dict[str, Any] = {"buyers": ["ann", "bob", "cid", ERASED], "keys": ["k1", "k2", "k3", "r", "v"]}
        seen = await prepare(store, "default", fence(7), "c", orders=[held.number], holds=True, **asked)
        assert (seen.bought, seen.open) == ({ERASED: 7, "cid": 1}, {})
        assert seen.settled["r"].line == "ann"  # an item
        assert {key: (one.outcome, one.buyer) for key, one in seen.settled.items()} == {
            "k1": ("held", ERASED),
            "k2": ("sold", ERASED),
            "k3": ("sold", ERASED),
            "r": ("limit_reached", ERASED),
            "v": ("limit_reached", ERASED),
        }
        assert seen.records[held.number] == held._replace(buyer=ERASED)
        log = (await store.log("default", limit=2))[0]
        assert (log.by, log.what, log.after) == ("olga", "erase a buyer", {"erased": 2})
        assert [await store.erase("default", name, under) for name in ("ann", "bob", "dan")] == [0, 0, 0]
        assert [one.record.number for one in await store.orders("default")][2:] == numbers

    async def test_the_only_trace_of_a_name(self, store: StockStore) -> None:
        """It is erased from a place in line, and from a refusal, also if there is no other."""
        await store.set_stock("default", fence(1), 9)
        seen = await prepare(store, "default", fence(2), "b", keys=["r"], holds=True)
        refused = Refused("r", Settled("sold_out", 7, "ann"))
        waits = Begun(Record("", new_secrets(1)[0], OrderState.WAITING, 1, "bob"))
        await commit(store, "default", fence(2), decided(seen, batch_id="b", refused=(refused,), held=[waits]))

        @asynccontextmanager
        async def under() -> AsyncIterator[Fence]:
            yield fence(3)

        assert [await store.erase("default", name, under) for name in ("ann", "bob")] == [0, 1]
        seen = await prepare(store, "default", fence(4), "c", buyers=["bob"], keys=["r"], holds=True, line=True)
        assert (seen.settled["r"].buyer, seen.open) == (ERASED, {})
        assert [record.buyer for record in seen.records.values()] == [ERASED]

    # -- the server --------------------------------------------------------------------------------------------------

    async def test_more_callers_than_connections(self, open_store: OpenStore) -> None:
        """200 callers share a few connections."""
        store = await open_store(connections=3, timeout_s=10)
        await store.set_stock("default", fence(1), 5)
        levels = await asyncio.gather(*(store.level("default") for _ in range(200)))
        assert {level.stock for level in levels} == {5}

    async def test_concurrent_sellers_sell_each_unit_once(self, system: StoreSystem, open_store: OpenStore) -> None:
        """Three stores want the same items at once, whatever answers they get: the sums are right in the end."""
        skus = ["a", "b", "c"]

        async def work(store: StockStore, number: int) -> int:
            sold = 0
            for lap in range(20):
                own, batch_id = fence(2 + 3 * lap + number), f"{number}-{lap}"
                mine = skus if number == 0 else skus[number - 1 : number + 1]
                seen = await store.prepare(own, batch_id, {sku: Ask(["ann"]) for sku in mine})
                write = {
                    sku: decided(one, Sold(1, "ann", f"{batch_id}"), 1, batch_id=batch_id)
                    for sku, one in seen.items()
                    if isinstance(one, Snapshot) and one.stock >= 2
                }
                done = await store.commit(own, write) if write else {}
                assert not [one for one in done.values() if isinstance(one, StockUnavailable)]
                sold += sum(len(one) for one in done.values() if isinstance(one, list))
            return sold

        store = await open_store(timeout_s=10)
        for sku in skus:
            await store.set_stock(sku, fence(1), 31)
        others = [system.open(timeout_s=10) for _ in range(2)]
        try:
            sold = await asyncio.gather(*(work(one, number) for number, one in enumerate((store, *others))))
        finally:
            for one in others:
                await one.close()
        levels = [await store.level(sku) for sku in skus]
        assert all(level.stock + level.lucky == 31 for level in levels)
        orders = [order for sku in skus for order in await store.orders(sku, limit=1000)]
        assert len(orders) == sum(sold) == sum(level.lucky for level in levels) > 0
        seen = await store.prepare(fence(1000), "end", {sku: Ask(["ann"]) for sku in skus})
        assert sum(_snapshot(one).bought.get("ann", 0) for one in seen.values()) == len(orders) / 2

    async def test_its_clock(self, open_store: OpenStore) -> None:
        """It tells the clock by which it names what is due, and goes on."""
        store = await open_store()
        (first,), (second,) = [(await store.clocks_ms(timeout_s=5)).values() for _ in range(2)]
        assert abs(first / 1000 - time.time()) < 60
        assert first <= second
        await store.set_stock("default", fence(1), 5)
        snapshot = _snapshot((await store.prepare(fence(2), "b", {"default": Ask(holds=True)}))["default"])
        assert second <= snapshot.now_ms < second + 60_000

    async def test_ping_and_close(self, open_store: OpenStore) -> None:
        """A store that can be written to is ready. Closing it twice does no harm."""
        store = await open_store()
        await store.ping()
        await store.ping(timeout_s=5)
        assert await store.items() == []
        await store.close()

    async def test_what_one_puts_up_all_can_read(self, open_store: OpenStore, system: StoreSystem) -> None:
        """A notice is visible to everybody until it is replaced or removed, and is no item."""
        store = await open_store()
        other = system.open()
        try:
            assert await store.notices({}) == {}
            assert await store.notices({"8080": "one"}) == {"8080": "one"}
            assert await other.notices({"8090": "甲", "x/y": ""}) == {"8080": "one", "8090": "甲", "x/y": ""}
            assert await store.notices({"8080": "two"}, drop=["x/y", "z"]) == {"8080": "two", "8090": "甲"}
            assert await other.items() == []
        finally:
            await other.close()


class FencedStoreContract(StoreContract):
    """The tests of the further contract of stores that are guarded by fencing tokens."""

    async def test_fence_at_the_read_too(self, open_store: OpenStore) -> None:
        """A holder that was overtaken between its read and its write is refused, even if nobody wrote meanwhile."""
        store = await open_store()
        refused = await fenced_at_the_read_too(store)
        assert len(refused) == 1
        assert "token 11, ours is 10" in str(refused[0])
        level = await store.level("default")
        assert (level.stock, level.lucky) == (4, 1)

    async def test_a_lower_token_may_not_even_read(self, open_store: OpenStore) -> None:
        """Tokens never decrease."""
        store = await open_store()
        await store.set_stock("default", fence(7), 5)
        with pytest.raises(FenceRefused):
            await prepare(store, "default", fence(6), "b")
        with pytest.raises(FenceRefused):
            await store.set_stock("default", fence(6), 9)
        assert (await prepare(store, "default", fence(7), "b")).stock == 5
        assert await fence_of(store, "default") == fence(7)

    async def test_a_write_needs_a_read_of_its_own(self, open_store: OpenStore) -> None:
        """A higher token that has not read may not write another holder's decision."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        seen = await prepare(store, "default", fence(2), "b")
        with pytest.raises(FenceRefused):
            await commit(store, "default", fence(3), decided(seen, 1))

    async def test_only_the_prepared_batch_is_written(self, open_store: OpenStore) -> None:
        """Preparing a batch stops an older one of the same token that is on its way, even if its stock fits."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        late = await prepare(store, "default", fence(2), "late")
        following = await prepare(store, "default", fence(2), "next")
        with pytest.raises(FenceRefused):
            await commit(store, "default", fence(2), decided(late, 1, batch_id="late"))
        await commit(store, "default", fence(2), decided(following, 1, batch_id="next"))
        assert (await store.level("default")).lucky == 1

    async def test_what_can_not_be_known_of_a_batch(self, system: StoreSystem, open_store: OpenStore) -> None:
        """A late holder, and whoever misses orders, hears so, and not that nothing was written."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        await sell(store, 2, 1)
        put_back = system.copy()
        write = decided(await prepare(store, "default", fence(3), "b"), 1)
        ids = await commit(store, "default", fence(3), write)
        with pytest.raises(FenceRefused):
            await resolve(store, "default", fence(2), write)
        assert await resolve(store, "default", fence(4), write) == ids
        put_back()
        with pytest.raises(StockBehind):
            await resolve(store, "default", fence(5), write)

    async def test_tokens_of_another_source_are_refused(self, open_store: OpenStore) -> None:
        """The tokens of another etcd are refused, with the reason and the command for the operator."""
        store = await open_store()
        await store.set_stock("default", fence(100, "etcd:old"), 5)
        for attempt in (
            prepare(store, "default", fence(101, "etcd:new"), "b"),
            store.set_stock("default", fence(101, "etcd:new"), 1),
        ):
            with pytest.raises(ForeignFence, match="etcd:old.*etcd:new.*seckill stock unfence --sku default"):
                await attempt
        await store.unfence("default")
        assert (await prepare(store, "default", fence(3, "etcd:new"), "b")).stock == 5
        with pytest.raises(ForeignFence):
            await prepare(store, "default", fence(101, "etcd:old"), "b")

    async def test_an_order_says_under_which_token_it_was_written(self, open_store: OpenStore) -> None:
        """An order names its token and the epoch, as tokens of two epochs can't be compared."""
        store = await open_store()
        await store.set_stock("default", fence(1), 5)
        await sell(store, 7, 1)
        await store.unfence("default")
        assert await fence_of(store, "default") is None
        await sell(store, 3, 1)
        assert [(one.token, one.epoch) for one in await store.orders("default")] == [(7, 0), (3, 1)]

    @pytest.mark.parametrize("token", [0, -1, 2**53, 2**64])  # Lua counts in doubles
    async def test_an_impossible_token_is_refused(self, open_store: OpenStore, token: int) -> None:
        """A token that the store can't compare is refused."""
        store = await open_store()
        for attempt in (prepare(store, "default", fence(token), "b"), store.set_stock("default", fence(token), 1)):
            with pytest.raises(ValueError, match="token"):
                await attempt

    async def test_an_operators_hand_is_noticed(self, system: StoreSystem, open_store: OpenStore) -> None:
        """A stock that was set by other means between our read and our write is not overwritten."""
        store = await open_store()
        await store.set_stock("default", fence(1), 10)
        seen = await prepare(store, "default", fence(2), "b")
        system.set_by_hand("default", 25)
        with pytest.raises(StockChanged, match="changed to 25"):
            await commit(store, "default", fence(2), decided(seen, 1))
        assert (await store.level("default")).stock == 25


def _snapshot(answer: object) -> Snapshot:
    assert isinstance(answer, Snapshot), answer
    return answer

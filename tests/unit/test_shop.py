"""The shop's own rules: who has which lock, who is refused at its door, and what buyers may look up."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.errors import (
    BasketNotPossible,
    Closing,
    HoldsNotPossible,
    ItemNotPossible,
    StockBehind,
    StockCorrupt,
    StockError,
    UnknownItem,
)
from app.orders import Answer, Cancel, Confirm, Hold, OrderId, Outcome, Purchase, Terms
from app.sale import Rules, Shop
from app.stock import Fence, Level
from fencelock import Scope
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import VirtualLock
from tests.unit.test_worker import Heard

RULES = Rules()


class Locks:
    """The locks of a backend in memory, by their names."""

    def __init__(self, scope: Scope = Scope.EVERYBODY) -> None:
        self.guarantees = SimpleNamespace(scope=scope)
        self.made = dict[str, VirtualLock]()

    def lock(self, name: str) -> VirtualLock:
        lock = self.made[name] = VirtualLock()
        lock.name, lock.token = name, 10
        return lock


class Odd(MemoryStockStore):
    """A store in which some items can't be read; it is asked for a hundred at most."""

    odd: tuple[str, ...] = ()

    async def paid_with(self, payment_ref: str, skus: Any) -> Any:
        assert len(skus) <= 100
        if found := [sku for sku in self.odd if sku in skus]:
            raise StockCorrupt(found[0])
        return await super().paid_with(payment_ref, skus)


class Corner:
    """A shop on a store in memory."""

    def __init__(self, *, guard: str = "fence", locks: Locks | None = None, rules: Rules = RULES, **how: Any) -> None:
        self.ahead_s, self.halted = 0.0, dict[str, StockError]()
        self.store = Odd(MemoryServer(lambda: time.time() + self.ahead_s), guard)
        self.locks = locks or Locks()
        self.heard = Heard()
        how = {"lock_prefix": "/locks"} | how
        self.shop = Shop(cast(Any, self.locks), self.store, rules, self.heard, halted=self.halted.get, **how)

    async def put(self, sku: str, stock: int = 5, **terms: Any) -> None:
        token = max((lock.token for lock in self.locks.made.values()), default=1)
        await self.store.set_stock(sku, Fence(token, "virtual"), stock, terms=terms)


@pytest.mark.parametrize("prefix", ["/locks", "/locks/", "/locks//"])
def test_the_names_of_locks(prefix: str) -> None:
    """One for all, or some that share the items between them, whichever release asks."""
    one, three = (Corner(lock_prefix=prefix, lock_groups=groups).shop for groups in (1, 3))
    assert {one.lock_name(sku) for sku in "abcdefgh"} == {"/locks/all"}
    assert {three.lock_name(sku) for sku in "abcdefgh"} == {f"/locks/{number}-of-3" for number in (1, 2, 3)}
    assert three.lock_name("default") == "/locks/2-of-3"
    assert one.apart(["a", "b"]) == ""
    assert "a, b have different locks" in three.apart(["a", "b"])


async def test_who_is_refused_at_the_door() -> None:
    """A name that no item can have, a basket over several locks, a hold where none can be, anybody at the end."""
    corner = Corner(lock_groups=3)
    with pytest.raises(ItemNotPossible):
        corner.shop.join(Purchase(sku="a b"))
    with pytest.raises(ItemNotPossible):
        corner.shop.join(Hold(sku="a", lines=(("a b", 1),)))
    with pytest.raises(BasketNotPossible, match="^items: a, b have different locks"):
        corner.shop.join(Hold(sku="a", lines=(("b", 1),)))
    with pytest.raises(HoldsNotPossible):
        Corner(guard="none").shop.join(Hold(sku="a"))
    await corner.shop.close(within_s=1)
    with pytest.raises(Closing):
        corner.shop.join(Purchase(sku="a"))


async def test_what_is_known_needs_no_queue() -> None:
    """The answer comes at once, and is counted; an operator's change, and a key, go to the store."""
    corner = Corner(rules=Rules(sold_out_ttl_s=60))
    await corner.put("a", 1)
    assert [str((await corner.shop.submit(Purchase(sku="a"))).outcome) for _ in range(2)] == ["sold", "sold_out"]
    assert corner.shop.join(Purchase(2, "a")) == Answer(Outcome.SOLD_OUT, 2)
    assert corner.heard.answers == {"sold": 1, "sold_out": 2}
    await corner.put("a", 3)
    assert isinstance(corner.shop.join(Purchase(sku="a")), Answer)
    corner.shop.look_again("a")
    assert (await corner.shop.submit(Purchase(sku="a"))).outcome is Outcome.SOLD


async def test_without_a_lock_each_request_decides_by_itself() -> None:
    """As in the articles, and nothing is remembered; with a guard the batches are as ever."""
    for scope, guard, batch_max in (
        (Scope.NOBODY, "none", 1),
        (Scope.NOBODY, "fence", 1000),
        (Scope.MACHINE, "none", 1000),
    ):
        corner = Corner(guard=guard, locks=Locks(scope), rules=Rules(sold_out_ttl_s=60))
        rules = corner.shop._worker("a")._rules
        assert (rules.batch_max, rules.sold_out_ttl_s) == (batch_max, 60 if batch_max > 1 else 0)


async def test_an_order_is_shown_to_who_knows_its_secret() -> None:
    """And to nobody else; its place in line counts from one."""
    corner = Corner(rules=Rules(grace_s=0))
    await corner.put("a", 1, hold_s=60)
    orders = [(await corner.shop.submit(Hold(1, "a", buyer, wait=True))).order for buyer in ("ann", "bob", "cid")]
    places = []
    for order in orders:
        assert order is not None
        found = await corner.shop.order(order)
        assert found is not None
        assert await corner.shop.order(order._replace(secret="0" * 32)) is None
        assert await corner.shop.order(OrderId("a", order.number)) is None
        places.append(await corner.shop.place(found))
    assert places[0] is None
    assert [(one.number, one.held) for one in places[1:] if one] == [(1, 1), (2, 1)]
    assert places[1] is not None
    assert places[1].first_ends_at == pytest.approx(time.time() + 60, abs=5)


async def test_all_that_has_run_out_goes_back() -> None:
    """However many batches that takes."""
    corner = Corner(rules=Rules(grace_s=0))
    await corner.put("a", 450, hold_s=60)
    for number in range(450):
        corner.shop.join(Hold(1, "a", f"buyer {number}"))
    await corner.shop.give_back("a")
    corner.ahead_s = 100
    await corner.shop.give_back("a")
    assert (await corner.shop.level("a")).stock == 450


async def test_the_orders_of_a_payment() -> None:
    """Of all items; one that can't be read hides none, and is an error only if there is no order."""
    corner = Corner()
    skus = [f"item-{number:03}" for number in range(250)]
    for sku in skus:
        await corner.put(sku)
    for sku in (skus[3], skus[240]):
        order = (await corner.shop.submit(Hold(1, sku, "ann"))).order
        assert order is not None
        await corner.shop.submit(Confirm(*order, "p", 5, "EUR"))
    corner.store.odd = (skus[2], skus[200])
    assert {order.sku for order in await corner.shop.paid_with("p")} == {skus[3], skus[240]}
    with pytest.raises(StockCorrupt):
        await corner.shop.paid_with("q")
    corner.store.odd = ()
    assert await corner.shop.paid_with("q") == []


async def test_whether_anything_can_be_sold() -> None:
    """Yes, unless what it tried fails, and all else is halted or has failed, too."""
    corner = Corner()
    assert await corner.shop.sells()
    for sku in ("a", "b"):
        await corner.put(sku)
    behind = StockBehind("an order is missing")
    corner.halted["a"] = behind
    with pytest.raises(Exception, match="a can't be sold"):
        await corner.shop.submit(Purchase(sku="a"))
    assert corner.shop.errors == {"a": behind}
    assert await corner.shop.sells()  # the other, that nobody wants
    await corner.shop.submit(Purchase(sku="b"))
    assert await corner.shop.sells()
    corner.halted["b"] = behind
    assert not await corner.shop.sells()
    assert (corner.shop.waits, corner.shop.waiting_by_item, corner.shop.buyers_waiting) == ({}, {"a": 0, "b": 0}, 0)
    await corner.shop.close(within_s=1)


async def test_added_units_are_offered_until_nobody_may_have_them() -> None:
    """A halted item offers nothing, and one that is not there is an error."""
    corner, own = Corner(), Fence(99, "virtual")
    await corner.put("a", 1)
    for number in range(4):
        await corner.shop.submit(Hold(1, "a", f"buyer {number}", wait=True))
    corner.halted["a"] = StockBehind("an order is missing")
    await corner.store.set_stock("a", own, 2, add=True)
    with pytest.raises(StockBehind):
        await corner.shop.serve_the_line("a", own)
    del corner.halted["a"]
    await corner.shop.serve_the_line("a", own)
    level = await corner.shop.level("a")
    assert (level.stock, level.held, level.waiting) == (0, 3, 1)
    with pytest.raises(UnknownItem):
        await corner.shop.serve_the_line("b", own)


def test_what_only_the_stores_wrong_clock_says_is_not_due() -> None:
    """Holds and a line end so much later as it is ahead."""
    clocks: Any = SimpleNamespace(of=lambda sku: SimpleNamespace(ahead_s=lambda lasting_s: 5.0))
    shop = Corner(clocks=clocks).shop
    assert shop.due_in_s(Level("a", 0, 0, None, due_in_s=1.0)) == 6.0
    waits = Level("a", 0, 0, None, terms=Terms(ends_at=1_030.0), waiting=1, now=1_000.0)
    assert shop.due_in_s(waits) == 35.0


@pytest.mark.parametrize(
    ("stock", "terms", "wishes", "remembered"),
    [
        (1, {}, [Purchase(2, "a", key="k")], True),  # others may have less in mind
        (1, {}, [Purchase(1, "a"), Purchase(1, "a", key="k")], False),  # nothing is left, and nothing can come back
        (1, {}, [Hold(1, "a", "ann"), Purchase(1, "a", key="k")], True),
        (5, {"ends_at": 1.0}, [Hold(1, "a", "ann", key="k")], True),
        (5, {"paused": "tea"}, [Hold(1, "a", "ann", key="k")], False),
        (5, {}, [Confirm("a", "7", "0" * 32, "p", key="k")], False),  # strangers invent such orders
    ],
)
async def test_which_refusals_are_remembered(stock: int, terms: Any, wishes: list[Any], remembered: bool) -> None:
    """Those that would be another answer later, although they are final."""
    corner = Corner()
    await corner.put("a", stock, **terms)
    await asyncio.gather(*(corner.shop.submit(wish) for wish in wishes))
    storage: Any = corner.store.storage
    assert bool(storage.server.items["a"].refused) == remembered


async def test_a_place_that_is_left() -> None:
    """The next one moves up."""
    corner = Corner()
    await corner.put("a", 1)
    orders = [(await corner.shop.submit(Hold(1, "a", buyer, wait=True))).order for buyer in ("ann", "bob", "cid")]
    assert orders[1] is not None
    assert orders[2] is not None
    await corner.shop.submit(Cancel(*orders[1]))
    found = await corner.shop.order(orders[2])
    assert found is not None
    assert getattr(await corner.shop.place(found), "number", None) == 1


async def test_units_that_come_back_are_for_sale_at_once() -> None:
    """Nothing was left before the batch, and what it gives back is not thought to be gone for the next minute."""
    corner = Corner(rules=Rules(sold_out_ttl_s=60))
    await corner.put("a", 1)
    order = (await corner.shop.submit(Hold(1, "a", "ann"))).order
    assert order is not None
    await corner.shop.submit(Cancel(*order))
    assert (await corner.shop.submit(Purchase(1, "a"))).outcome == "sold"


@pytest.mark.parametrize(
    ("starts_s", "ends_s", "outcome"), [(-60, 60, "held"), (60, 120, "not_started"), (-120, -60, "ended")]
)
async def test_the_hours_of_each_item_of_a_basket(starts_s: float, ends_s: float, outcome: str) -> None:
    """Those of the moment at which the buyer came."""
    corner, now = Corner(), time.time()
    await corner.put("a")
    await corner.put("b", starts_at=now + starts_s, ends_at=now + ends_s)
    told = await corner.shop.submit(Hold(1, "a", lines=(("b", 1),)))
    assert (told.outcome, told.line) == (outcome, None if outcome == "held" else "b")

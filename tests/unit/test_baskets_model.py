"""Baskets beside single holds on the same items: a book that knows only sums, and a worker on a store in memory.

The book is another program than the rule: it has no records, journals or looks, and counts units from all orders anew.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.audit.auditor import audit
from app.errors import BasketNotPossible, HasOrders, KeyReused
from app.orders import Answer, Cancel, Command, Confirm, Expire, Extend, Hold, OrderId, Refund, Terms
from app.orders.commands import Place
from app.sale import Rules
from app.sale.worker import Worker
from app.stock import Fence, Level
from app.telemetry.observer import Observer
from fencelock.kit import Backoff
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import VirtualLock

SKUS: Final = ("a", "b", "c")
PRICES: Final = {"a": 5, "b": 7, "c": 11}
LIMIT: Final = 4  # units of `c`, a buyer
GROUP: Final = 5  # units of `a` and `b` together, a buyer
HOLD_S, PAY_S, GRACE_S = 10.0, 30.0, 2.0
MANY: Final = 10**6


@dataclass(eq=False)
class Known:
    """An order as the book knows it."""

    buyer: str
    lines: dict[str, int]
    due: float = 0.0
    id: OrderId | None = None
    state: str = "held"
    extended: bool = False
    paid: bool = False
    new: bool = False  # in line since this batch
    declined: bool = False  # its payment came too late, and is owed for good
    gone: Counter[str] = field(default_factory=Counter)  # units that were given back, and are not sold again
    messages: set[str] = field(default_factory=set)

    @property
    def there(self) -> set[str]:
        """The items in which it has a line; its first one stays even without units."""
        return {sku for sku, count in self.lines.items() if count or (self.id and sku == self.id.sku)}

    @property
    def to_pay(self) -> int:
        return sum(PRICES[sku] * count for sku, count in self.lines.items())


class Book:
    """All that should be true."""

    def __init__(self, stock: int) -> None:
        self.stock = dict.fromkeys(SKUS, stock)
        self.orders: list[Known] = []

    def units(self, sku: str, *states: str) -> int:
        return sum(one.lines.get(sku, 0) for one in self.orders if one.state in states)

    def left(self, sku: str) -> int:
        return self.stock[sku] - self.units(sku, "held", "confirmed") - sum(one.gone[sku] for one in self.orders)

    def had(self, buyer: str, sku: str) -> int:
        return sum(
            one.lines.get(sku, 0) for one in self.orders if one.buyer == buyer and one.state in ("held", "confirmed")
        )

    def expire(self, now: float, looked_at: set[str], being_paid: set[OrderId]) -> None:
        """An item at which nobody looks keeps what is due."""
        for one in self.orders:
            if one.state == "held" and one.due <= now and one.id not in being_paid and looked_at & one.there:
                one.state = "expired"

    def may_have(self, buyer: str, lines: dict[str, int], *, late: bool = False) -> tuple[str, str | None]:
        """The outcome, and the first line that can't be had. An order that is paid late is older than all who wait."""
        before = Counter[str]()
        for sku, count in lines.items():
            if self.left(sku) == 0 or (self.units(sku, "waiting") and not late):
                return "sold_out", sku
            if sku == "c" and self.had(buyer, sku) + count > LIMIT:
                return "limit_reached", sku
            if sku in "ab":
                together = sum(self.had(buyer, one) + before[one] for one in "ab")
                if together + count > GROUP:
                    return "limit_reached", sku
            if count > self.left(sku):
                return "sold_out", sku
            before[sku] += count
        return "held", None

    def serve(self, now: float, looked_at: set[str], *, new: bool) -> None:
        """Units that are left go to those who wait, in their order; a wish that can't be met keeps them from nobody."""
        for sku in looked_at:
            for one in self.orders:
                if one.state != "waiting" or sku not in one.lines or (one.new and not new):
                    continue
                count, left = one.lines[sku], self.left(sku)
                if count <= left:
                    one.state, one.due = "held", now + HOLD_S + GRACE_S
                elif not one.new and left and count > left + self.units(sku, "held"):
                    one.state = "cancelled"
                else:
                    break

    def do(self, now: float, wish: Command, order: Known | None) -> tuple[str, str | None]:
        if isinstance(wish, Hold):
            lines = {wish.sku: wish.quantity, **dict(wish.lines)}
            outcome, line = self.may_have(wish.buyer or "", lines)
            if (
                wish.wait
                and outcome == "sold_out"
                and wish.quantity <= self.left(wish.sku) + self.units(wish.sku, "held")
            ):
                outcome = "waiting"
            if outcome in ("held", "waiting"):
                due = now + HOLD_S + GRACE_S if outcome == "held" else 0.0
                self.orders.append(Known(wish.buyer or "", lines, due, state=outcome, new=outcome == "waiting"))
            return outcome, line if wish.lines else None
        assert order is not None
        if isinstance(wish, Confirm):
            return self.confirm(order), None
        if isinstance(wish, Extend):
            if order.state == "held" and not order.extended:
                order.due, order.extended = max(order.due, now + PAY_S + GRACE_S), True
                return "extended", None
            return ("already_extended" if order.state == "held" else order.state), None
        if isinstance(wish, Cancel | Refund):
            return self.give_back(order, wish), None
        raise AssertionError(wish)

    def confirm(self, order: Known) -> str:
        if order.paid or order.declined:
            return "already_confirmed" if order.paid else "refund_due"
        if order.state == "expired":
            lines = {sku: count for sku, count in order.lines.items() if count}
            if self.may_have(order.buyer, lines, late=True)[0] != "held":
                order.declined = True
                return "refund_due"
        elif order.state != "held":
            order.declined = True
            return "refund_due"
        order.state, order.paid = "confirmed", True
        return "confirmed"

    def give_back(self, order: Known, wish: Cancel | Refund) -> str:
        cancels = isinstance(wish, Cancel)
        if wish.message in order.messages:
            return "partly_cancelled" if cancels else "partly_refunded"
        if cancels and order.state not in ("held", "waiting"):
            return "already_cancelled" if order.state == "cancelled" else order.state
        assert order.id is not None
        sku, total = wish.line or order.id.sku, sum(order.lines.values())
        whole = wish.units is None and wish.line is None
        count = total if whole else wish.units if wish.units is not None else order.lines.get(sku, 0)
        if not whole and not 1 <= count <= order.lines.get(sku, 0):
            return "too_much"
        stays_out = isinstance(wish, Refund) and not wish.restock
        if count == total:
            order.gone.update(order.lines if stays_out else {})
            order.state = "cancelled" if cancels else "refunded"
            return order.state
        order.lines[sku] -= count
        order.gone[sku] += count * stays_out
        if wish.message is not None:
            order.messages.add(wish.message)
        return "partly_cancelled" if cancels else "partly_refunded"


class Strict(Worker):
    """A worker that an unexpected error ends: it would try once more, again and again, and the test would wait."""

    async def _work(self, backoff: Backoff) -> None:
        await self._serve_under_one_grant()


class Sale:
    """A worker on a store in memory, and the book."""

    def __init__(self, stock: int) -> None:
        self.now, self.book, self.names = 1_000_000.0, Book(stock), 0
        self.orders: list[OrderId] = []
        self.store = MemoryStockStore(MemoryServer(lambda: self.now))
        self.loop = asyncio.new_event_loop()
        self.worker: Worker | None = None
        self.loop.run_until_complete(self._begin(stock))

    async def _begin(self, stock: int) -> None:
        lock = VirtualLock()
        rules = Rules(terms=Terms(hold_s=HOLD_S, pay_s=PAY_S), grace_s=GRACE_S)
        self.worker = Strict(cast(Any, lock), self.store, rules, Observer())
        for sku, other in zip(SKUS, ("b", "a", ""), strict=True):
            terms: dict[str, Any] = {"price": PRICES[sku], "currency": "EUR"}
            terms |= {"limit_group": f"{GROUP} {other}"} if other else {"limit_per_buyer": LIMIT}
            await self.store.set_stock(sku, Fence(1, "virtual"), stock, new_sale=True, terms=terms)
        lock.token = 1

    def batch(self, wishes: list[tuple[Command, Known | None]]) -> None:
        """Have commands decided at once, by the worker and by the book, and compare all there is."""
        self.loop.run_until_complete(self._batch(wishes))

    async def _batch(self, wishes: list[tuple[Command, Known | None]]) -> None:
        told = await self.ask(wish for wish, _ in wishes)
        paid = {order.id for wish, order in wishes if isinstance(wish, Confirm) and order and order.id}
        looked_at = self._looked_at(wishes, paid)
        self.book.expire(self.now, looked_at, paid)
        self.book.serve(self.now, looked_at, new=False)
        for (wish, order), answer in zip(wishes, told, strict=True):
            if isinstance(wish, Expire):
                continue
            before = len(self.book.orders)
            outcome, line = self.book.do(self.now, wish, order)
            if not isinstance(wish, Hold):
                self.book.serve(self.now, looked_at, new=False)
            if outcome == "waiting" and str(answer.outcome) == "held":  # it is checked below whether this is so
                outcome = "held"
            assert (str(answer.outcome), answer.line) == (outcome, line), (wish, order)
            if len(self.book.orders) > before:
                self.book.orders[-1].id = answer.order
        self.book.serve(self.now, looked_at, new=True)
        for one in self.book.orders:
            one.new = False
        await self._compare()

    async def ask(self, wishes: Iterable[Command]) -> list[Answer]:
        """Have commands decided at once, and return their answers."""
        assert self.worker is not None
        until = asyncio.get_running_loop().time() + MANY
        answers = [asyncio.ensure_future(self.worker.queue.join(wish, until)) for wish in wishes]
        await asyncio.sleep(0)  # they have come
        await asyncio.gather(*self.worker._tasks)
        return await asyncio.gather(*answers)

    def _looked_at(self, wishes: list[tuple[Command, Known | None]], paid: set[OrderId]) -> set[str]:
        """The items that the batch is about: of its commands, of the lines of orders that it changes, and of limits."""
        found = {wish.sku for wish, _ in wishes}
        for wish, order in wishes:
            found |= {sku for sku, count in order.lines.items() if count} if order else set()
            if isinstance(wish, Hold):
                own = {wish.sku, *dict(wish.lines)}
                found |= own | ({"a", "b"} if own & {"a", "b"} else set())
            if order and order.state == "expired" and {"a", "b"} & order.there:
                found |= {"a", "b"}  # it would count once more
        while True:
            due = (
                one for one in self.book.orders if one.state == "held" and one.due <= self.now and one.id not in paid
            )
            more = {sku for one in due if found & one.there for sku in one.there} - found
            if not more:
                return found
            found |= more

    async def _compare(self) -> None:
        for sku in SKUS:
            level = await self.store.level(sku)
            found = level.stock, level.held
            assert found == (self.book.left(sku), self.book.units(sku, "held")), sku
            there = self.store.storage.server.items[sku]  # type: ignore[attr-defined]
            for _, record in there.records.values():  # a line without units is over, and its buyer is shown the order
                assert record.quantity or not record.part_of or str(record.state) in ("cancelled", "refunded")
            assert not any(there.records[number][1].part_of for number in there.holders.values())
            checked = await audit(level, self.store)
            assert checked.violations == []
        for one in self.book.orders:
            assert one.id is not None
            order = await self.store.order(one.id.sku, one.id.number)
            assert order is not None
            record = order.record
            assert str(record.state) == one.state, one
            lines = {one.id.sku: record.quantity, **{line.sku: line.quantity for line in record.lines}}
            assert {sku: n for sku, n in lines.items() if n} == {sku: n for sku, n in one.lines.items() if n}
            assert one.state != "held" or record.to_pay == one.to_pay


def wishes_of(sale: Sale, choice: random.Random) -> list[tuple[Command, Known | None]]:
    """A few commands, of each order one: several in a batch are for another model."""
    found = list[tuple[Command, Known | None]]()
    orders = [one for one in sale.book.orders if one.id is not None]
    for _ in range(choice.randint(1, 4)):
        kind = choice.choice(
            ["hold", "basket", "basket", "pay", "pay", "extend", "cancel", "part", "refund", "units", "expire", "wait"]
        )
        if kind == "wait":
            sale.names += 1
            found.append((Hold(choice.randint(1, 2), choice.choice(SKUS), f"waiter {sale.names}", wait=True), None))
            continue
        if kind in ("hold", "basket") or not orders:
            skus = sorted(choice.sample(SKUS, 1 if kind == "hold" else choice.randint(2, 3)))
            (sku, count), *lines = [(one, choice.randint(1, 3)) for one in skus]
            found.append((Hold(count, sku, choice.choice(["ann", "bob", "cid"]), lines=tuple(lines)), None))
            continue
        if kind == "expire":
            found.append((Expire(choice.choice(SKUS)), None))
            continue
        order = orders.pop(choice.randrange(len(orders)))
        about, line = cast(OrderId, order.id), choice.choice([None, *order.lines])
        sale.names += 1
        name, units = f"m{sale.names}", choice.choice([None, 1, 1, 2])
        part: dict[str, Any] = {"units": units, "message": name, "line": line}
        whole: dict[str, Any] = {"units": None, "message": None, "line": None}
        if (
            kind in ("refund", "units") and order.state != "confirmed"
        ):  # money that came too late has a model of its own
            kind = "cancel" if kind == "refund" else "part"
        if order.state == "waiting":  # what else is asked of a place has a model of its own, too
            kind = "cancel"
        match kind:
            case "pay":
                found.append((Confirm(*about, f"p of {about.name}", order.to_pay, "EUR"), order))
            case "extend":
                found.append((Extend(*about), order))
            case "cancel" | "part":
                found.append((Cancel(*about, **(whole if kind == "cancel" else part)), order))
            case _:
                own = whole if kind == "refund" else part
                found.append((Refund(*about, choice.random() < 0.5, **own), order))
    return found


@pytest.mark.parametrize("examples", [150])
def test_baskets_and_single_holds(examples: int) -> None:
    """All units or none, all lines in one state, the sum of the lines to pay, limits over items: in any order."""

    def play(seed: int, stock: int, steps: int) -> None:
        choice, sale = random.Random(seed), Sale(stock)
        try:
            for _ in range(steps):
                sale.now += choice.choice([0, 0, 0.5, 3, HOLD_S, HOLD_S + GRACE_S, PAY_S])
                sale.batch(wishes_of(sale, choice))
        finally:
            sale.loop.close()

    seeds = st.integers(0, 10**9)
    limits = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    limits(given(seed=seeds, stock=st.integers(1, 9), steps=st.integers(2, 12))(play))()


def told(sale: Sale, *wishes: Command) -> list[str]:
    """The outcomes of a batch."""

    answers = sale.loop.run_until_complete(sale.ask(wishes))
    sale.orders += [one.order for one in answers if one.outcome == "held" and one.order]
    return [str(one.outcome) for one in answers]


def left(sale: Sale) -> dict[str, tuple[int, int]]:
    """Units left and held, by item."""
    levels = sale.loop.run_until_complete(sale.store.levels(SKUS))
    return {sku: (one.stock, one.held) for sku, one in levels.items() if isinstance(one, Level)}


def begin_anew(sale: Sale, sku: str) -> None:
    """Begin another sale of an item, which forgets its orders."""
    sale.loop.run_until_complete(sale.store.set_stock(sku, Fence(MANY, "virtual"), 9, new_sale=True))
    cast(Any, sale.worker)._lock.token = MANY


@pytest.fixture
def sale() -> Iterator[Sale]:
    made = Sale(9)
    yield made
    made.loop.close()


def test_a_line_whose_order_is_forgotten(sale: Sale) -> None:
    """Its units go back when their time is up, though no limit makes anybody look at the first item."""
    assert told(sale, Hold(1, "a", "ann", lines=(("c", 2),))) == ["held"]
    begin_anew(sale, "a")
    assert left(sale) == {"a": (9, 0), "b": (9, 0), "c": (7, 2)}
    sale.now += HOLD_S + GRACE_S
    told(sale, Expire("c"))
    assert left(sale) == {"a": (9, 0), "b": (9, 0), "c": (9, 0)}


def test_an_order_whose_line_is_forgotten(sale: Sale) -> None:
    """Nobody pays for units that are there no more; the others go back."""
    assert told(sale, Hold(1, "a", "ann", lines=(("b", 2), ("c", 1)))) == ["held"]
    begin_anew(sale, "b")
    (order,) = sale.orders
    assert told(sale, Confirm(*order, "p", 30, "EUR"), Extend(*order)) == ["refund_due", "extended"]
    sale.now += PAY_S + GRACE_S
    told(sale, Expire("c"))
    assert left(sale) == {"a": (9, 0), "b": (9, 0), "c": (9, 0)}


def test_an_item_with_a_line_has_an_order(sale: Sale) -> None:
    """It can't be removed, and a new sale that expects no order is refused."""
    assert told(sale, Hold(1, "a", "ann", lines=(("b", 2),))) == ["held"]
    for change in (
        sale.store.remove("b", Fence(MANY, "virtual")),
        sale.store.set_stock("b", Fence(MANY, "virtual"), 9, new_sale=True, forget_orders=0),
    ):
        with pytest.raises(HasOrders):
            sale.loop.run_until_complete(change)


def test_orders_that_end_in_a_chain(sale: Sale) -> None:
    """A batch that has not read all lines of an order that is due leaves it to the next one."""
    skus = [f"i{number}" for number in range(9)]
    for sku in skus:
        sale.loop.run_until_complete(sale.store.set_stock(sku, Fence(1, "virtual"), 9, new_sale=True))
    baskets = [Hold(1, one, "ann", lines=((other, 1),)) for one, other in itertools.pairwise(skus)]
    assert told(sale, *baskets) == ["held"] * 8
    sale.now += HOLD_S + GRACE_S
    told(sale, Expire(skus[0]))
    levels = sale.loop.run_until_complete(sale.store.levels(skus))
    held = [one.held for one in levels.values() if isinstance(one, Level)]
    assert held[0] == 0 < held[-1]
    for order in sale.orders:
        first = sale.loop.run_until_complete(sale.store.order(order.sku, order.number))
        assert first is not None
        (line,) = first.record.lines
        there = sale.loop.run_until_complete(sale.store.order(line.sku, line.number))
        assert there is not None
        assert there.state == first.state
    for sku in skus:
        told(sale, Expire(sku))
    levels = sale.loop.run_until_complete(sale.store.levels(skus))
    assert [one.held for one in levels.values() if isinstance(one, Level)] == [0] * 9


def more_items(sale: Sale, count: int, stock: int, **terms: Any) -> list[str]:
    """Begin more items."""
    skus = [f"i{number}" for number in range(count)]
    for sku in skus:
        setting = sale.store.set_stock(sku, Fence(1, "virtual"), stock, new_sale=True, terms=terms)
        sale.loop.run_until_complete(setting)
    return skus


def test_a_batch_ends_some_of_the_baskets_that_are_due(sale: Sale) -> None:
    """Where each has other items beside the first one, a batch would hold up all of them."""
    first, *others = more_items(sale, 1 + 30 * 9, 30)
    baskets = [Hold(1, first, lines=tuple((sku, 1) for sku in some)) for some in zip(*[iter(others)] * 9, strict=True)]
    assert told(sale, *baskets) == ["held"] * 30
    sale.now += HOLD_S + GRACE_S
    held = list[int]()
    for outcome in ("more", "done"):
        assert told(sale, Expire(first)) == [outcome]
        held.append(sale.loop.run_until_complete(sale.store.level(first)).held)
    assert held == [30 - -(-200 // 9), 0]


def test_an_order_that_is_there_is_shown_for_the_same_basket(sale: Sale) -> None:
    """A buyer who is proven, and asks once more for what they hold, is shown it; another basket is refused."""
    lines = {"a": 1, "b": 2}
    asks: Any = {"buyer": "ann", "proven": True}
    assert told(sale, Hold(1, "a", lines=(("b", 2),), **asks)) == ["held"]
    for count, other, outcome in ((1, ("b", 2), "already_held"), (1, ("b", 4), "limit_reached")):
        assert told(sale, Hold(count, "a", lines=(other,), **asks)) == [outcome]
    assert told(sale, Hold(lines["a"], "a", lines=(("b", 2), ("c", 1)), **asks)) == ["limit_reached"]


def test_a_key_belongs_to_its_basket(sale: Sale) -> None:
    """With the same lines it is the same order, and with others an error."""
    for key, outcome in (("k", "held"), ("n", "limit_reached")):
        for _ in range(2):
            assert told(sale, Hold(1, "a", "ann", key, lines=(("b", 2),))) == [outcome]
        with pytest.raises(KeyReused):
            told(sale, Hold(1, "a", "ann", key, lines=(("b", 1),)))
    assert left(sale) == {"a": (8, 1), "b": (7, 2), "c": (9, 0)}


def test_a_limit_of_several_items_counts_for_the_line(sale: Sale) -> None:
    """No place in line for units that the buyer may not have with the others."""
    assert told(sale, Hold(5, "a", "bob"), Hold(4, "a", "cid"), Hold(4, "b", "ann")) == ["held"] * 3
    assert told(sale, Hold(2, "a", "ann", wait=True)) == ["limit_reached"]
    (answer,) = sale.loop.run_until_complete(sale.ask([Hold(1, "a", "ann", wait=True)]))
    assert (answer.outcome, answer.place) == ("waiting", Place(1, 9, sale.now + HOLD_S + GRACE_S))


def test_a_limit_of_items_that_cannot_be_read_together(sale: Sale) -> None:
    """Somebody has set it as the items had one lock: it is not passed over, and the reason is said."""
    assert sale.worker is not None
    with patch.object(sale.worker, "_apart", lambda skus: f"{' and '.join(skus)} are apart" if "b" in skus else ""):
        with pytest.raises(BasketNotPossible, match="a and b are apart"):
            told(sale, Hold(1, "a", "ann"))
        assert told(sale, Hold(1, "c", "ann")) == ["held"]
    assert left(sale) == {"a": (9, 0), "b": (9, 0), "c": (8, 1)}

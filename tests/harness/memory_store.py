"""Keep the stock stores' contract in memory, for more histories than a real server allows."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import Unpack, override

from app.errors import (
    FenceRefused,
    ForeignFence,
    HasOrders,
    StockBehind,
    StockChanged,
    StockError,
    StockNotAsExpected,
    UnknownItem,
)
from app.stock import (
    NO_TERMS,
    Ask,
    Batch,
    Change,
    Event,
    Fence,
    Level,
    Order,
    Outbox,
    Restock,
    Settled,
    Snapshot,
    StockStore,
    Terms,
)
from app.stock.refusals import behind, changed, foreign, not_as_expected, superseded
from app.stock.store import facts, refuse_odd_name, sale_of, what_is_changed
from app.stock.watermark import Watermark

Position = tuple[int, int]  # of an order: its generation and number
_LARGEST_TOKEN: Final = 2**53


@dataclass
class Item:
    """An item as the server stores it."""

    stock: int | None = None
    lucky: int = 0
    initial: int | None = None
    fence: Fence | None = None
    prepared: str | None = None
    batch: tuple[str, list[str]] | None = None  # the last one that was written, and the ids of its orders
    generation: int = 0
    epoch: int = 0
    terms: Terms = NO_TERMS
    orders: list[Order] = field(default_factory=list)
    bought: dict[str, int] = field(default_factory=dict)
    settled: dict[str, tuple[Settled, float]] = field(default_factory=dict)  # and the time until which it is remembered

    def entries(self) -> list[int]:
        """Return the numbers of the orders."""
        return [_entry(order.id) for order in self.orders]


class MemoryServer:
    """The server that several stores share. `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.items: dict[str, Item] = {}
        self.notices: dict[str, str] = {}
        self.log: list[Change] = []
        self._number = 0

    def next_number(self) -> int:
        """Return an increasing number, for orders and generations."""
        self._number = max(self._number + 1, int(self.clock() * 1_000_000))
        return self._number

    def copy(self) -> Callable[[], None]:
        """Copy everything that is stored; the function returned restores the copy."""
        kept = copy.deepcopy(self.items)

        def put_back() -> None:
            self.items = copy.deepcopy(kept)

        return put_back


class MemoryStockStore(StockStore):
    """A store with a fence."""

    def __init__(
        self, server: MemoryServer, *, instance: str = "memory", refusal_ttl_s: float = 3600, **_: Any
    ) -> None:
        self._server = server
        self._instance = instance
        self._refusal_ttl_s = refusal_ttl_s
        self._watermarks: dict[str, Watermark[Position]] = {}

    def _watermark(self, sku: str) -> Watermark[Position]:
        return self._watermarks.setdefault(sku, Watermark(lambda position: "{:020}/{:020}".format(*position)))

    @override
    def check(self, sku: str) -> None:
        refuse_odd_name(sku)

    def _item(self, sku: str) -> Item:
        refuse_odd_name(sku)
        return self._server.items.get(sku) or Item()

    # -- the sale ----------------------------------------------------------------------------------------------------

    @override
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        _check_token(fence)
        return {sku: self._prepare_one(sku, fence, batch_id, ask) for sku, ask in asks.items()}

    def _prepare_one(self, sku: str, fence: Fence, batch_id: str, ask: Ask) -> Snapshot | StockError:
        item = self._item(sku)
        if error := _refuse_token(sku, item, fence) or self._missing(sku, item):
            return error
        if item.stock is None:
            if item.fence is not None:
                item.fence, item.prepared = fence, batch_id
            return UnknownItem(f"no item {sku!r}")
        item.fence, item.prepared = fence, batch_id
        item.generation = item.generation or self._server.next_number()
        watermark, entries = self._watermark(sku), item.entries()
        watermark.found(watermark.positions, (item.generation, entries[-1]) if entries else None)
        now = self._server.clock()
        return Snapshot(
            item.stock,
            item.lucky,
            {buyer: item.bought[buyer] for buyer in ask.buyers if buyer in item.bought},
            {key: item.settled[key][0] for key in ask.keys if key in item.settled and item.settled[key][1] > now},
            str(entries[-1]) if entries else None,
            terms=item.terms,
        )

    @override
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        _check_token(fence)
        return {sku: self._commit_one(sku, fence, batch) for sku, batch in batches.items()}

    def _may_write(self, item: Item, fence: Fence, batch: Batch) -> bool:
        """Apply the rule for which the store exists. Tests break it, to check that they notice."""
        return (item.fence, item.prepared) == (fence, batch.batch_id)

    def _commit_one(self, sku: str, fence: Fence, batch: Batch) -> list[str] | StockError:
        item = self._item(sku)
        if item.batch is not None and item.batch[0] == batch.batch_id:
            return item.batch[1]
        if not self._may_write(item, fence, batch):
            return FenceRefused(superseded(sku, item.fence and item.fence.token, fence))
        if item.stock != batch.expected_stock:
            return StockChanged(changed(sku, item.stock))
        now, ids = self._server.clock(), list[str]()
        for sold in batch.sold:
            order_id = f"{sku}~{self._server.next_number()}~{sold.secret}"
            own = (
                sku,
                sold.quantity,
                sold.buyer,
                sold.key,
                self._instance,
                fence.token,
                batch.batch_id,
                now,
                item.epoch,
            )
            item.orders.append(Order(order_id, *own))
            item.stock -= sold.quantity
            item.lucky += sold.quantity
            if sold.buyer is not None:
                item.bought[sold.buyer] = item.bought.get(sold.buyer, 0) + sold.quantity
            if sold.key is not None:
                item.settled[sold.key] = Settled("sold", sold.quantity, sold.buyer, order_id), float("inf")
            ids.append(order_id)
        for refused in batch.refused:
            item.settled[refused.key] = refused.settled, now + self._refusal_ttl_s
        item.batch = batch.batch_id, ids
        if ids:
            self._watermark(sku).found((), (item.generation, _entry(ids[-1])))
        return ids

    @override
    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        return [order.id for order in self._item(sku).orders if order.batch_id == batch.batch_id] or None

    # -- orders that must be there -----------------------------------------------------------------------------------

    def _missing(self, sku: str, item: Item) -> StockBehind | None:
        for generation, entry in self._watermark(sku).positions:
            if item.generation < generation or (item.generation == generation and entry not in item.entries()):
                return StockBehind(behind(sku, str(entry)))
        return None

    @override
    def marks(self) -> dict[str, str]:
        return {sku: mark for sku, watermark in self._watermarks.items() if (mark := watermark.mark)}

    @override
    def expect(self, sku: str, mark: str) -> None:
        generation, _, entry = mark.partition("/")
        if len(generation) != 20 or len(entry) != 20:
            raise ValueError(f"not a mark of ours: {mark!r}")
        self._watermark(sku).expect((int(generation), int(entry)))

    @override
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        found: dict[str, Fence | StockError | None] = {}
        for sku in skus:
            item = self._item(sku)
            found[sku] = self._missing(sku, item) or item.fence
        return found

    @override
    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        generations = [generation for generation, _ in self._watermark(sku).positions]
        item, before = self._item(sku), self._item(sku).generation
        item.generation = max(self._server.next_number(), *generations, 0) + 1
        self._note(sku, by, "accept loss", {"generation": before}, {"generation": item.generation})

    # -- the operator ------------------------------------------------------------------------------------------------

    @override
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        _check_token(fence)
        item, new_sale, if_match = self._item(sku), how.get("new_sale"), how.get("if_match")
        if refusal := _refuse_token(sku, item, fence):
            raise refusal
        if item.generation and not new_sale and (lost := self._missing(sku, item)):
            raise lost
        if if_match is not None and if_match != (item.stock or 0, item.lucky):
            raise StockNotAsExpected(not_as_expected(sku, item.stock or 0, item.lucky))
        if new_sale and how.get("forget_orders") not in (None, len(item.orders)):
            raise HasOrders(sku, len(item.orders))
        before = {} if item.stock is None else facts(self._level_of(sku, item))
        what = what_is_changed(stock, how)
        if how.get("add"):
            if item.stock is None:
                raise UnknownItem(f"no item {sku!r}")
            stock += item.stock
        if new_sale:
            item.orders, item.bought, item.settled, item.lucky, item.batch = [], {}, {}, 0, None
        if new_sale or not item.generation:
            generations = [generation for generation, _ in self._watermark(sku).positions]
            item.generation = max(self._server.next_number(), *generations, 0) + 1
        item.fence, item.prepared, item.stock, item.initial = fence, None, stock, stock + item.lucky
        item.terms = item.terms.changed(how.get("terms", {}))
        self._server.items[sku] = item
        self._note(sku, how.get("by", ""), what, before, facts(self._level_of(sku, item)))
        return Level(sku, stock, item.lucky, item.initial, terms=item.terms)

    def _note(self, sku: str, by: str, what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self._server.log.insert(0, Change(self._server.clock(), by, what, sku, before, after))

    @override
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        _check_token(fence)
        item = self._item(sku)
        if item.stock is None:
            raise UnknownItem(f"no item {sku!r}")
        if refusal := _refuse_token(sku, item, fence):
            raise refusal
        if item.orders or item.lucky:
            raise HasOrders(sku, len(item.orders))
        self._note(sku, by, "remove", {"stock": item.stock}, {})
        self._server.items[sku] = Item(fence=fence, generation=item.generation)

    @override
    async def unfence(self, sku: str, *, by: str = "") -> None:
        item = self._item(sku)
        seen = {} if item.fence is None else {"source": item.fence.source, "token": item.fence.token}
        self._note(sku, by, "unfence", seen, {})
        item.fence, item.prepared, item.epoch = None, None, item.epoch + 1

    @override
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        return [change for change in self._server.log if sku in (None, change.sku)][:limit]

    @override
    async def count_orders(self, sku: str) -> int:
        return len(self._item(sku).orders)

    @override
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        return {sku: self._level(sku) for sku in skus}

    def _level(self, sku: str) -> Level | StockError:
        item = self._item(sku)
        return UnknownItem(f"no item {sku!r}") if item.stock is None else self._level_of(sku, item)

    def _level_of(self, sku: str, item: Item) -> Level:
        assert item.stock is not None
        last = str(item.entries()[-1]) if item.orders else None
        return Level(sku, item.stock, item.lucky, item.initial, last, item.terms)

    @override
    async def items(self) -> list[str]:
        return sorted(sku for sku, item in self._server.items.items() if item.stock is not None)

    @override
    async def order(self, order_id: str) -> Order | None:
        orders = [order for item in self._server.items.values() for order in item.orders]
        return next((order for order in orders if order.id == order_id), None)

    @override
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        orders = self._item(sku).orders
        if after is not None and not (after.count("~") == 2 and after.startswith(f"{sku}~")):
            raise ValueError(f"not an order of item {sku!r}: {after!r}")
        first = _entry(after) if after else 0
        last = int(until) if until else 2**63
        return [order for order in orders if first < _entry(order.id) <= last][:limit]

    @override
    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        first, last = int(after or 0), int(until) if until else 2**63
        orders = [order for order in self._item(sku).orders if first < _entry(order.id) <= last]
        return [sale_of(order.id.split("~")[1], order) for order in orders[:limit]]

    @override
    def parts_of(self, order_id: str) -> tuple[str, str, str] | None:
        sku, _, rest = order_id.partition("~")
        number, _, secret = rest.partition("~")
        return (sku, number, secret) if secret else None

    @override
    async def count_entries(self, sku: str) -> int:
        return len(self._item(sku).orders)

    @override
    async def outbox(self, skus: Sequence[str]) -> dict[str, Outbox | StockError]:
        raise NotImplementedError

    @override
    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox) -> None:
        raise NotImplementedError

    @override
    async def ask_sender(self, sku: str, wish: str) -> None:
        raise NotImplementedError

    @override
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        self._server.notices |= put
        for name in drop:
            self._server.notices.pop(name, None)
        return dict(self._server.notices)

    @override
    async def ping(self, *, timeout_s: float | None = None) -> None:
        pass

    @override
    async def close(self) -> None:
        pass


def _entry(order_id: str) -> int:
    return int(order_id.split("~")[1])


def _check_token(fence: Fence) -> None:
    if not 0 < fence.token < _LARGEST_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")


def _refuse_token(sku: str, item: Item, ours: Fence) -> FenceRefused | None:
    seen = item.fence
    if seen is not None and seen.source != ours.source:
        return ForeignFence(foreign(sku, seen, ours))
    return FenceRefused(superseded(sku, seen.token, ours)) if seen is not None and seen.token > ours.token else None

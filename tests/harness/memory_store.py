"""Keep the stock stores' contract in memory, for more histories than a real server allows."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from app.orders import (
    NO_TERMS,
    Ask,
    Event,
    EventKind,
    Order,
    OrderChange,
    OrderState,
    Record,
    Settled,
    Snapshot,
    Terms,
    Units,
)
from app.stock import DEFAULT_RECEIVER, Batch, Change, Fence, Level, Outbox, Restock, StockStore
from app.stock.refusals import behind, changed, foreign, not_as_expected, superseded
from app.stock.store import Note, facts, note_of, refuse_odd_name, what_is_changed
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
    batch: tuple[str, list[str]] | None = None  # the last one that was written, and its orders
    generation: int = 0
    sale: int = 0  # the generation with which it began, if a loss was accepted since
    epoch: int = 0
    terms: Terms = NO_TERMS
    orders: list[Order] = field(default_factory=list)
    bought: dict[str, int] = field(default_factory=dict)
    settled: dict[str, tuple[Settled, float]] = field(default_factory=dict)  # and the time until which it is remembered
    held: int = 0
    journal: list[Event] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)  # how the orders stand, by number
    payments: dict[str, str] = field(default_factory=dict)

    def entries(self) -> list[int]:
        """Return the numbers of the journal's entries."""
        return [int(event.entry) for event in self.journal]


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

    holds = True

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
        about = _about_holds(item, ask, int(now * 1000))
        return Snapshot(
            item.stock,
            item.lucky,
            about.pop("bought", {}) | {buyer: item.bought[buyer] for buyer in ask.buyers if buyer in item.bought},
            {key: item.settled[key][0] for key in ask.keys if key in item.settled and item.settled[key][1] > now},
            str(entries[-1]) if entries else None,
            terms=item.terms,
            **about,
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
        events: dict[str, int] = {}
        for change in batch.changes:
            number = change.before.number
            there = events.get(number, item.records[number].events if number in item.records else 0)
            if there != change.before.events or item.payments.get(change.payment or "", number) != number:
                return StockChanged(changed(sku, f"order {number}"))
            events[number] = there + 1
        now, numbers = self._server.clock(), list[str]()
        by = (self._instance, fence.token, batch.batch_id)

        def note(record: Record, key: str | None, units: Units, bought: int, change: OrderChange | None = None) -> None:
            entry = str(self._server.next_number())
            kind, facts = (change.kind, change.facts) if change else (EventKind(record.state), record.facts)
            record = record._replace(number=record.number or entry)
            own = (record.quantity, record.buyer, key)
            about = (entry, kind, record.id_of(sku), record.events, *own, now, *by, item.epoch, units)
            item.journal.append(Event(*about, facts))
            item.records[record.number] = record
            item.stock, item.held = (item.stock or 0) + units.stock, item.held + units.held
            item.lucky += units.lucky
            if record.buyer is not None and bought:
                item.bought[record.buyer] = item.bought.get(record.buyer, 0) + bought
            if change is None:
                numbers.append(record.number)
                item.orders.append(Order(sku, record, key, *by, now, item.epoch))
                if key is not None:
                    settled = Settled(kind, record.quantity, record.buyer, record.id_of(sku))
                    item.settled[key] = settled, float("inf")

        for change in batch.changes:
            note(change.after, None, change.units, change.bought, change)
            if line := note_of(sku, change):
                self._note(sku, *line)
            if change.payment is not None:
                item.payments[change.payment] = change.after.number
        for begun in batch.begun:
            note(begun.record, begun.key, begun.record.units, begun.record.quantity)
        for sold in batch.sold:
            record = Record.sold("", sold.secret, sold.quantity, sold.buyer)
            note(record, sold.key, Units(-sold.quantity, 0, sold.quantity), sold.quantity)
        for refused in batch.refused:
            item.settled[refused.key] = refused.settled, now + self._refusal_ttl_s
        item.batch = batch.batch_id, numbers
        if batch.entries:
            self._watermark(sku).found((), (item.generation, item.entries()[-1]))
        return numbers

    @override
    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        item = self._item(sku)
        if not any(event.batch_id == batch.batch_id for event in item.journal):
            return None
        return [order.record.number for order in item.orders if order.batch_id == batch.batch_id]

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
        item.sale = item.sale or item.generation
        item.generation = max(self._server.next_number(), *generations, 0) + 1
        self._server.items[sku] = item
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
        unlike = how.get("if_initial") not in (None, item.initial)
        if unlike or (if_match is not None and if_match != (item.stock or 0, item.lucky)):
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
            item.journal, item.records, item.payments, item.held, item.sale = [], {}, {}, 0, 0
        if new_sale or not item.generation:
            generations = [generation for generation, _ in self._watermark(sku).positions]
            item.generation = max(self._server.next_number(), *generations, 0) + 1
        item.fence, item.prepared, item.stock = fence, None, stock
        item.initial = stock + item.held + item.lucky
        item.terms = item.terms.changed(how.get("terms", {}))
        self._server.items[sku] = item
        self._note(sku, how.get("by", ""), what, before, facts(self._level_of(sku, item)))
        return Level(sku, stock, item.lucky, item.initial, terms=item.terms, held=item.held)

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
        self._server.items[sku] = Item(fence=fence, generation=item.generation, sale=item.sale)

    @override
    async def unfence(self, sku: str, *, by: str = "") -> None:
        item = self._item(sku)
        seen = {} if item.fence is None else {"source": item.fence.source, "token": item.fence.token}
        self._note(sku, by, "unfence", seen, {})
        item.fence, item.prepared, item.epoch = None, None, item.epoch + 1

    @override
    async def note(self, sku: str, note: Note) -> None:
        self._note(sku, *note)

    @override
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        return [change for change in self._server.log if sku in (None, change.sku)][:limit]

    @override
    async def count_orders(self, sku: str) -> int:
        return len(self._item(sku).orders)

    @override
    async def paid_with(self, payment_ref: str, skus: Sequence[str]) -> list[Order]:
        numbers = {sku: number for sku in skus if (number := self._item(sku).payments.get(payment_ref))}
        return [order for one in numbers.items() if (order := await self.order(*one)) is not None]

    @override
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        return {sku: self._level(sku) for sku in skus}

    def _level(self, sku: str) -> Level | StockError:
        item = self._item(sku)
        return UnknownItem(f"no item {sku!r}") if item.stock is None else self._level_of(sku, item)

    def _level_of(self, sku: str, item: Item) -> Level:
        assert item.stock is not None
        last = item.journal[-1].entry if item.journal else None
        due = [one.due_ms / 1000 for one in item.records.values() if one.state is OrderState.HELD]
        due_in_s = min(due) - self._server.clock() if due else None
        own = (
            item.initial,
            last,
            item.terms,
            item.held,
            due_in_s,
            self._server.clock(),
            str(item.sale or item.generation),
        )
        return Level(sku, item.stock, item.lucky, *own)

    @override
    async def items(self) -> list[str]:
        return sorted(sku for sku, item in self._server.items.items() if item.stock is not None)

    @override
    async def order(self, sku: str, number: str) -> Order | None:
        item = self._item(sku)
        return next((_standing(item, order) for order in item.orders if order.record.number == number), None)

    @override
    async def history(self, sku: str, number: str) -> list[Event]:
        return [event for event in self._item(sku).journal if event.order.number == number]

    @override
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        item = self._item(sku)
        if after is not None and (not after.isdecimal() or after.startswith("0")):
            raise ValueError(f"not the number of an order: {after!r}")
        first, last = int(after or 0), int(until) if until else 2**63
        return [_standing(item, order) for order in item.orders if first < int(order.record.number) <= last][:limit]

    @override
    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        first, last = int(after or 0), int(until) if until else 2**63
        return [event for event in self._item(sku).journal if first < int(event.entry) <= last][:limit]

    @override
    async def count_entries(self, sku: str) -> int:
        return len(self._item(sku).orders)

    @override
    async def receivers(self, skus: Sequence[str]) -> list[str]:
        raise NotImplementedError

    @override
    async def outbox(self, skus: Sequence[str], receiver: str = DEFAULT_RECEIVER) -> dict[str, Outbox | StockError]:
        raise NotImplementedError

    @override
    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox, receiver: str = DEFAULT_RECEIVER) -> None:
        raise NotImplementedError

    @override
    async def ask_sender(self, sku: str, wish: str, receiver: str = DEFAULT_RECEIVER, *, instead_of: str = "") -> bool:
        raise NotImplementedError

    @override
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        self._server.notices |= put
        for name in drop:
            self._server.notices.pop(name, None)
        return dict(self._server.notices)

    @override
    async def clocks_ms(self, *, timeout_s: float | None = None) -> dict[str, int]:
        return {"": int(self._server.clock() * 1000)}

    @override
    async def ping(self, skus: Sequence[str] = (), *, timeout_s: float | None = None) -> None:
        pass

    @override
    async def close(self) -> None:
        pass


def _standing(item: Item, order: Order) -> Order:
    return replace(order, record=item.records[order.record.number])


def _about_holds(item: Item, ask: Ask, now_ms: int) -> dict[str, Any]:
    if not (item.held or ask.holds):
        return {}
    held = {number: record for number, record in item.records.items() if record.state is OrderState.HELD}
    due = sorted((number for number in held if held[number].due_ms <= now_ms), key=lambda one: (held[one].due_ms, one))
    if not (ask.holds or due):
        return {"now_ms": now_ms, "held": item.held}
    open_ = {record.buyer: number for number, record in held.items() if record.buyer in ask.buyers}
    settled = [item.settled[key][0] for key in ask.keys if key in item.settled]
    keyed = [one.order.number for one in settled if one.order and one.outcome != "sold"]
    numbers = {*ask.orders, *due[:200], *open_.values(), *keyed}
    theirs = [item.records[number].buyer for number in ask.orders if number in item.records]
    return {
        "now_ms": now_ms,
        "held": item.held,
        "bought": {buyer: item.bought[buyer] for buyer in theirs if buyer in item.bought},
        "records": {number: item.records[number] for number in numbers if number in item.records},
        "open": open_,
        "payments": {ref: item.payments[ref] for ref in ask.payments if ref in item.payments},
        "due": due[:200],
        "more_due": len(due) > 200,
    }


def _check_token(fence: Fence) -> None:
    if not 0 < fence.token < _LARGEST_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")


def _refuse_token(sku: str, item: Item, ours: Fence) -> FenceRefused | None:
    seen = item.fence
    if seen is not None and seen.source != ours.source:
        return ForeignFence(foreign(sku, seen, ours))
    return FenceRefused(superseded(sku, seen.token, ours)) if seen is not None and seen.token > ours.token else None

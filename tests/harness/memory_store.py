"""A storage in memory, for more histories than a real server allows. The rules are the real ones."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from app.errors import StockCorrupt, StockError, UnknownItem
from app.orders import ERASED, Event, OrderState, Record
from app.stock import Change, Fence, LogNote, StockStore
from app.stock.batch import LAYOUT
from app.stock.storage import DUE_MAX, LINE_MAX, Erased, Found, Head, Names, Put, Storage
from app.stock.values import tag_of


@dataclass
class Item:
    """An item as the server stores it."""

    head: Head = field(default_factory=Head)
    journal: dict[str, Event] = field(default_factory=dict)
    buyers: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    records: dict[str, tuple[str, Record]] = field(default_factory=dict)
    payments: dict[str, str] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def stock(self) -> int | None:
        """Units left."""
        return self.head.stock

    @stock.setter
    def stock(self, units: int) -> None:
        self.head = self.head._replace(stock=units)


class MemoryServer:
    """The server that several stores share. `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.items: dict[str, Item] = {}
        self.notices: dict[str, str] = {}
        self.lines: list[Change] = []

    def copy(self) -> Callable[[], None]:
        """Copy everything that is stored; the function returned restores the copy."""
        kept = copy.deepcopy(self.items)

        def put_back() -> None:
            self.items = copy.deepcopy(kept)

        return put_back


class MemoryStorage(Storage):
    """Keeps named things in a `MemoryServer`. `look_every_s`: of who waits for what has moved."""

    look_every_s = 0.01

    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    @override
    def corrupt(self, sku: str, what: str) -> StockCorrupt:
        return StockCorrupt(f"{what} of {sku!r} are odd")

    @override
    def numbers(self, head: Head, count: int) -> list[str]:
        first = max(int(head.last or 0) + 1, head.now_us)
        return [str(first + place) for place in range(count)]

    @override
    def is_number(self, text: str) -> bool:
        return text.isdecimal() and len(text) < 20 and (text == "0" or text[0] != "0")

    @override
    def mark(self, number: str) -> str:
        return f"{int(number):020}"

    @override
    def unmark(self, text: str) -> str:
        return str(int(text))

    @override
    async def look(
        self,
        names: Mapping[str, Names],
        fence: Fence | None = None,
        batch_id: str = "",
        *,
        any_layout: bool = False,
        durable: bool = False,
    ) -> dict[str, Found | StockError]:
        found: dict[str, Found | StockError] = {}
        for sku, asked in names.items():
            item = self.server.items.get(sku) or Item()
            head, known = item.head, any_layout or not item.head.generation or item.head.layout == LAYOUT
            may = head.source in (None, fence and fence.source) and (head.token or 0) <= (fence.token if fence else 0)
            if fence and known and may and (head.stock is not None or head.token):
                item.head = head._replace(source=fence.source, token=fence.token, prepared=batch_id)
            found[sku] = self._found(item, asked)
        return found

    def _found(self, item: Item, asked: Names) -> Found:
        now_us = round(self.server.clock() * 1_000_000)
        held = sorted((one.due_ms, n) for n, (_, one) in item.records.items() if one.state is OrderState.HELD)
        first_due_ms = held[0][0] if held and asked.due else None
        found = Found(item.head._replace(now_us=now_us, first_due_ms=first_due_ms))
        found.due = [n for due_ms, n in held if due_ms <= now_us // 1000][: DUE_MAX + 1]
        if item.head.waiting and (asked.line or item.head.stock or found.due):
            found.line = _line(item)[:LINE_MAX]
        things: Any = (
            (found.bought, item.buyers, asked.buyers),
            (found.keys, item.keys, asked.keys),
            (found.refused, item.refused, asked.keys),
            (found.holders, item.holders, asked.buyers),
            (found.payments, item.payments, asked.payments),
            (found.entries, item.journal, asked.entries),
        )
        for mine, theirs, wanted in things:
            mine.update({name: theirs[name] for name in wanted if name in theirs})
        found.tags = {n: tag_of(item.journal[n].order.secret) for n in asked.marks if n in item.journal}
        numbers = [*asked.numbers, *found.line]
        if asked.holds or found.due:
            of_keys = [text.split()[0] for text in found.keys.values()]
            numbers += [*found.due[:DUE_MAX], *found.holders.values(), *found.payments.values(), *of_keys]
            numbers += [text.split(" ")[2] for text in found.refused.values()]
        for number in numbers:
            buyer = None
            if number in item.records:
                found.records[number], record = item.records[number]
                buyer = record.buyer
            elif number in item.journal:
                found.sales[number] = item.journal[number]
                buyer = item.journal[number].buyer
            if buyer is not None:
                found.bought.setdefault(buyer, item.buyers.get(buyer, 0))
                if buyer in item.holders:
                    found.holders[buyer] = item.holders[buyer]
        return found

    @override
    async def put(
        self, puts: Mapping[str, Put], together: Sequence[set[str]] = ()
    ) -> dict[str, Head | StockError | None]:
        found: dict[str, Head | StockError | None] = {}
        for group in [*together, *({sku} for sku in puts if not any(sku in one for one in together))]:
            heads = {sku: (self.server.items.get(sku) or Item()).head for sku in group}
            again = any(puts[sku].batch_id and head.batch == puts[sku].batch_id for sku, head in heads.items())
            as_found = all(
                getattr(head, name) == value for sku, head in heads.items() for name, value in puts[sku].expect.items()
            )
            for sku in group:
                if as_found and not again:
                    self._put(sku, puts[sku])
                now_us = round(self.server.clock() * 1_000_000)
                found[sku] = None if again or as_found else heads[sku]._replace(now_us=now_us)
        return found

    def _put(self, sku: str, put: Put) -> None:
        item = self.server.items.get(sku) or Item()
        head, now_us = item.head, round(self.server.clock() * 1_000_000)
        self.server.items[sku] = item
        if put.clear or put.remove:
            item = self.server.items[sku] = Item(head)
        if put.batch_id:
            stock = (head.stock or 0) + put.units.stock
            head = head._replace(batch=put.batch_id, stock=stock, held=head.held + put.units.held)
            head = head._replace(lucky=head.lucky + put.units.lucky)
        own: Any = put.head
        item.head = head._replace(version=head.version + 1, **own)
        item.journal |= {event.entry: replace(event, at=int(event.entry) / 1_000_000) for event in put.entries}
        for buyer, units in put.bought.items():
            item.buyers[buyer] = max(0, item.buyers.get(buyer, 0) + units)
        item.keys |= put.keys
        item.refused |= put.refused
        item.records |= put.records
        item.payments |= put.payments
        for buyer, number in put.holders.items():
            item.holders.pop(buyer, None)
            if number is not None:
                item.holders[buyer] = number
        for event in put.erased.entries if put.erased else ():
            item.journal[event.entry] = replace(event, buyer=ERASED)
        if put.erased:
            item.buyers.pop(put.erased.buyer, None)
            item.refused |= {key: text for _, key, text in put.erased.refused}
        self.server.lines += [
            Change(now_us / 1e6, note.by, note.what, sku, note.before, note.after) for note in put.notes
        ]

    @override
    async def before(self, sku: str, number: str) -> int | None:
        line = _line(self.server.items[sku])
        return line.index(number) if number in line else None

    @override
    async def page(self, sku: str, after: str | None, until: str | None, limit: int) -> list[Event]:
        journal = self.server.items[sku].journal if sku in self.server.items else {}
        first, last = int(after or 0), int(until) if until is not None else 2**63
        return [event for entry, event in journal.items() if first < int(entry) <= last][:limit]

    @override
    async def count(self, sku: str) -> int:
        return len(self.server.items[sku].journal) if sku in self.server.items else 0

    @override
    async def scan(self) -> list[str]:
        return sorted(sku for sku, item in self.server.items.items() if item.head.stock is not None)

    @override
    async def moved(self, after: Mapping[str, str], wait_s: float) -> set[str]:
        until = time.monotonic() + wait_s
        while True:
            ends = {sku: int(next(reversed(item.journal), 0)) for sku, item in self.server.items.items()}
            found = {sku for sku, entry in after.items() if ends.get(sku, 0) > int(entry or 0)}
            if found or time.monotonic() >= until:
                return found
            await asyncio.sleep(self.look_every_s)

    @override
    async def copy(self, sku: str, erased: Erased, *, last: bool) -> None:
        erased.entries = [one for one in await self.page(sku, None, None, 2**63) if one.buyer == erased.buyer]

    @override
    async def refusals(self, sku: str) -> AsyncIterator[tuple[str, str, str]]:
        item = self.server.items.get(sku) or Item()
        for key, text in item.refused.items():
            yield "", key, text

    @override
    async def senders(self, skus: Sequence[str]) -> list[str]:
        return [name for sku in skus if sku in self.server.items for name in self.server.items[sku].notes]

    @override
    async def notes(self, skus: Sequence[str], receiver: str) -> dict[str, tuple[int, str] | StockError]:
        there = {sku: self.server.items[sku] for sku in skus if sku in self.server.items}
        return {sku: (item.head.sale, item.notes.get(receiver, "")) for sku, item in there.items()}

    @override
    async def swap_note(self, sku: str, receiver: str, old: str, new: str) -> bool:
        if sku not in self.server.items:
            raise UnknownItem(sku)
        notes = self.server.items[sku].notes
        if notes.get(receiver, "") != old:
            return False
        notes[receiver] = new
        return True

    @override
    async def log(self, sku: str | None, limit: int) -> list[Change]:
        return [one for one in reversed(self.server.lines) if sku in (None, one.sku)][:limit]

    @override
    async def add_to_log(self, sku: str, note: LogNote) -> None:
        self.server.lines.append(Change(self.server.clock(), note.by, note.what, sku, note.before, note.after))

    @override
    async def board(self, put: Mapping[str, str], drop: Sequence[str]) -> dict[str, str]:
        self.server.notices |= put
        for name in drop:
            self.server.notices.pop(name, None)
        return dict(self.server.notices)

    @override
    async def clocks_ms(self, timeout_s: float | None) -> dict[str, int]:
        return {"": int(self.server.clock() * 1000)}

    @override
    async def ping(self, skus: Sequence[str], timeout_s: float | None) -> None:
        pass

    @override
    async def close(self) -> None:
        pass


def _line(item: Item) -> list[str]:
    return sorted((n for n, (_, one) in item.records.items() if one.state is OrderState.WAITING), key=int)


class MemoryStockStore(StockStore):
    """A store on a `MemoryServer`."""

    def __init__(self, server: MemoryServer, guard: str = "fence", *, instance: str = "python", **more: Any) -> None:
        known = {name: value for name, value in more.items() if name == "refusal_ttl_s"}
        super().__init__(MemoryStorage(server), guard, instance=instance, **known)

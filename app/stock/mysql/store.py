"""What the stores in MySQL have in common: all but what tells them that nothing has changed since a read."""

import asyncio
import contextlib
import re
import secrets
import time
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from app.common.mysql import Call, MySqlClient
from app.errors import (
    FenceRefused,
    StockBehind,
    StockChanged,
    StockError,
    StockUnavailable,
    UnknownItem,
)
from app.stock.known import Known
from app.stock.mysql import tables
from app.stock.mysql.tables import Item, Written
from app.stock.store import (
    SKU_PATTERN,
    Ask,
    Batch,
    Fence,
    Level,
    Order,
    Settled,
    Snapshot,
    StockStore,
    behind,
    changed,
    refuse_odd_name,
)

Result = TypeVar("Result")
Place = tuple[int, int]  # of an order: its sale, its number

_MARK: Final = re.compile(r"([0-9]{16})/([0-9]{20})")  # of a place; with leading zeros
_ORDER_ID: Final = re.compile(rf"({SKU_PATTERN})~([0-9]{{1,19}})~([0-9a-f]{{32}})")
LARGEST: Final = 2**63 - 1  # two of them can be added in an unsigned column
_SILENT_S: Final = 5.0  # a process that is paused in a transaction stands in the way for so long
_NEW_SALE_S: Final = 60.0  # to forget some million orders


class TransactionalStockStore(StockStore):
    """Writes a batch in one transaction, if nothing has changed since it was read.

    `url`: mysql://user:password@host:3306/database, `?ssl_ca=` for TLS; `timeout_s`: deadline of a call, the wait for a
    connection included (but 60 s for a new sale: all that was sold is deleted); `connections`: to the server at most,
    each with a thread; `refusal_ttl_s`: how long a refusal is remembered for its idempotency key (an order's key is
    remembered for good). The tables are created when they are missing.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 2.0,
        connections: int = 8,
        instance: str = "python",
        refusal_ttl_s: float = 3600,
    ) -> None:
        self._client = MySqlClient(url, timeout_s=timeout_s, unavailable=StockUnavailable, schema=tables.SCHEMA)
        self._sessions = self._client.sessions(
            # In whole seconds. A wait for somebody else's transaction leaves the connection usable.
            f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeout_s / 2))}, time_zone = '+00:00'",
            silent_s=_SILENT_S,
        )
        self._threads = ThreadPoolExecutor(connections, "seckill-store")
        self._instance = instance
        self._refusal_ttl_us = max(1, int(refusal_ttl_s * 1_000_000))
        self._known: defaultdict[str, Known[Place]] = defaultdict(lambda: Known(_mark))

    # -- the guard ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _announce(self, call: Call, skus: Iterable[str], fence: Fence, batch_id: str | None) -> None:
        """Before a read: stop what others have decided, if this guard can. Begins a transaction, then."""

    @abstractmethod
    def _refusal(self, item: Item, fence: Fence, batch_id: str | None) -> FenceRefused | None:
        """Why who has announced this batch (none: a new stock) may not write it."""

    @abstractmethod
    def _version(self, item: Item) -> str | None:
        """What a batch must give back."""

    @abstractmethod
    def _unless_changed(self, fence: Fence, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        """The condition of a write, in SQL with arguments: nothing has changed since the read."""

    @abstractmethod
    def _fence(self, item: Item | None) -> Fence | None:
        """What the item's fence has seen."""

    @abstractmethod
    def _token(self, fence: Fence) -> int:
        """What is written into orders. Raises `ValueError` for a token that can't be compared."""

    # -- the store ---------------------------------------------------------------------------------------------------

    def check(self, sku: str) -> None:
        """See `StockStore.check`."""
        refuse_odd_name(sku)

    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """See `StockStore.read_many`."""
        self._token(fence)
        known = self._places_of(asks)
        for ask in asks.values():
            _refuse_long_names(ask)

        def read(call: Call) -> _Seen:
            self._announce(call, sorted(asks), fence, batch_id)
            # The items first: what is read after them is at least as new as their versions.
            items = tables.find_items(call, asks)
            lost = _find_lost(call, items, known)
            return _Seen(items, lost, tables.find_bought(call, asks), tables.find_settled(call, asks))

        try:
            seen = await self._run(read)
        except StockUnavailable as error:
            return dict.fromkeys(asks, error)
        return {sku: self._snapshot(sku, seen, fence, batch_id, known[sku]) for sku in asks}

    def _snapshot(
        self, sku: str, seen: "_Seen", fence: Fence, batch_id: str, known: tuple[Place, ...]
    ) -> Snapshot | StockError:
        item = seen.items.get(sku)
        refusal = self._refusal(item, fence, batch_id) if item else None
        if refusal or sku in seen.lost:
            return refusal or seen.lost[sku]
        if item is None:
            return _unknown(sku)
        self._known[sku].found(known, (item.sale, item.last_entry) if item.last_entry else None)
        return Snapshot(
            item.stock,
            item.lucky,
            seen.bought[sku],
            seen.settled[sku],
            last_entry=_entry(item.last_entry),
            version=self._version(item),
        )

    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """See `StockStore.commit_many`."""
        token = self._token(fence)

        def write(call: Call) -> tuple[dict[str, list[str] | StockError], dict[str, Item]]:
            call.begin()
            first_entries: dict[str, int] = {}
            for sku in sorted(batches):  # in one order, so that no two wait for each other
                call.run("SAVEPOINT item")
                first = tables.take(call, sku, batches[sku], *self._unless_changed(fence, batches[sku]))
                if first is None:
                    continue
                if tables.write_keys(call, sku, first, batches[sku], self._refusal_ttl_us):
                    first_entries[sku] = first
                else:
                    call.run("ROLLBACK TO item")
            items = tables.find_items(call, batches)
            written = {sku: Written(items[sku], batches[sku], first) for sku, first in first_entries.items()}
            tables.write_orders(call, written.values(), self._instance, token)
            answers = {
                sku: written[sku].order_ids
                if sku in written
                else self._why_not(call, sku, items.get(sku), fence, batch)
                for sku, batch in batches.items()
            }
            return answers, items

        try:
            answers, items = await self._run(write)
        except StockUnavailable as error:
            return dict.fromkeys(batches, error)
        for sku, ids in answers.items():
            if ids and not isinstance(ids, StockError):
                self._known[sku].found((), (items[sku].sale, int(ids[-1].split("~")[1])))
        return answers

    def _why_not(self, call: Call, sku: str, item: Item | None, fence: Fence, batch: Batch) -> list[str] | StockError:
        """Why a batch was not written; the ids of its orders, if it was before."""
        if item is None:
            return _unknown(sku)
        if item.batch == batch.batch_id:
            return tables.find_batch(call, sku, batch)
        return self._refusal(item, fence, batch.batch_id) or StockChanged(changed(sku, item.stock))

    async def settle(self, sku: str, fence: Fence, batch: Batch) -> list[str] | None:
        """See `StockStore.settle`."""
        # Announcing another batch stops this one for good, and waits for a transaction that is still writing it.
        with contextlib.suppress(UnknownItem):
            await self.read(sku, fence, uuid.uuid4().hex)
        found = await self._run(lambda call: tables.find_batch(call, sku, batch))
        return found or None

    async def set_stock(self, sku: str, fence: Fence, stock: int, *, new_sale: bool = False) -> Level:
        """See `StockStore.set_stock`."""
        refuse_odd_name(sku)
        self._token(fence)
        if not 0 <= stock <= LARGEST:
            raise ValueError(f"a stock must be from 0 to 2**63 - 1, not {stock}")
        known = self._places_of([sku])

        def write(call: Call) -> Item:
            call.begin()
            tables.create_item(call, sku)
            self._announce(call, [sku], fence, None)
            items = tables.find_items(call, [sku])
            item = items[sku]
            refusal = self._refusal(item, fence, None)
            if refusal is not None:
                raise refusal
            # A store without any history, or a new sale, begins anew.
            if new_sale or not item.sale:
                tables.begin_sale(call, sku, _latest_sale(known[sku]))
            elif lost := _find_lost(call, items, known):
                raise lost[sku]
            if new_sale:
                tables.forget_sold(call, sku)
            tables.set_units(call, sku, stock)
            return tables.find_items(call, [sku])[sku]

        item = await self._run(write, _NEW_SALE_S if new_sale else None)
        return Level(sku, item.stock, item.lucky, item.initial)

    async def unfence(self, sku: str) -> None:
        """See `StockStore.unfence`."""
        refuse_odd_name(sku)
        await self._run(lambda call: tables.unfence(call, sku))

    def marks(self) -> dict[str, str]:
        """See `StockStore.marks`."""
        return {sku: _mark(last) for sku, known in self._known.items() if (last := known.last)}

    def unseen(self, skus: Iterable[str]) -> list[str]:
        """See `StockStore.unseen`."""
        return [sku for sku in skus if self._known[sku].told]

    def expect(self, sku: str, mark: str) -> None:
        """See `StockStore.expect`."""
        if not _MARK.fullmatch(mark):
            raise ValueError(f"not a mark of ours: {mark[:100]!r}")
        self._known[sku].told |= {_unmark(mark)}

    async def fences(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """See `StockStore.fences`."""
        known = self._places_of(skus)

        def look(call: Call) -> tuple[dict[str, Item], dict[str, StockBehind]]:
            items = tables.find_items(call, skus)
            return items, _find_lost(call, items, known)

        try:
            items, lost = await self._run(look)
        except StockUnavailable as error:
            return dict.fromkeys(skus, error)
        for sku in known.keys() - lost.keys():
            self._known[sku].found(known[sku])
        return {sku: lost.get(sku) or self._fence(items.get(sku)) for sku in skus}

    async def accept_loss(self, sku: str) -> None:
        """See `StockStore.accept_loss`."""
        latest = _latest_sale(self._places_of([sku])[sku])
        await self._run(lambda call: tables.begin_sale(call, sku, latest))

    async def level(self, sku: str) -> Level:
        """See `StockStore.level`."""
        refuse_odd_name(sku)
        item = (await self._run(lambda call: tables.find_items(call, [sku]))).get(sku)
        if item is None:
            raise _unknown(sku)
        return Level(sku, item.stock, item.lucky, item.initial, _entry(item.last_entry))

    async def items(self) -> list[str]:
        """See `StockStore.items`."""
        return await self._run(tables.list_items)

    async def order(self, order_id: str) -> Order | None:
        """See `StockStore.order`."""
        match = _ORDER_ID.fullmatch(order_id)
        if match is None:
            return None
        sku, entry = match[1], int(match[2])
        found = await self._run(lambda call: tables.list_orders(call, sku, entry, entry, 1))
        return found[0] if found and secrets.compare_digest(found[0].id, order_id) else None

    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        """See `StockStore.orders`."""
        refuse_odd_name(sku)
        match = _ORDER_ID.fullmatch(after) if after is not None else None
        if after is not None and (match is None or match[1] != sku):
            raise ValueError(f"not an order of item {sku!r}: {after!r}")
        first = int(match[2]) + 1 if match else 0
        last = LARGEST if until is None else int(until)
        return await self._run(lambda call: tables.list_orders(call, sku, first, last, limit))

    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """See `StockStore.notices`."""
        return await self._run(lambda call: tables.exchange_notices(call, put, drop))

    async def ping(self, *, timeout_s: float | None = None) -> None:
        """See `StockStore.ping`."""
        # A write: a replica, or a server that was made read-only, answers a SELECT as if all were well.
        limit_s = self._client.timeout_s if timeout_s is None else min(timeout_s, self._client.timeout_s)
        await self._run(tables.write_something, limit_s)

    async def close(self) -> None:
        """See `StockStore.close`."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[[Call], Result], timeout_s: float | None = None) -> Result:
        """Run some statements in one of our threads, the wait for one included in the deadline.

        A thread may be at it for a moment longer than we wait for it; then what it writes is not known, as ever.
        """
        if self._client.closed:
            raise StockUnavailable("the connection to MySQL is closed")
        limit_s = self._client.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s

        def run() -> Result:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            return self._client.call(work, timeout_s=left_s, sessions=self._sessions)

        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except TimeoutError as error:
            raise StockUnavailable(f"the store did not answer within {limit_s:.2g} s") from error

    def _places_of(self, skus: Iterable[str]) -> dict[str, tuple[Place, ...]]:
        for sku in skus:
            refuse_odd_name(sku)
        return {sku: self._known[sku].places for sku in skus}


class _Seen(NamedTuple):
    """What a read has found; `lost`: for items that lack an order that is known."""

    items: dict[str, Item]
    lost: dict[str, StockBehind]
    bought: dict[str, dict[str, int]]
    settled: dict[str, dict[str, Settled]]


def _find_lost(call: Call, items: Mapping[str, Item], known: Mapping[str, tuple[Place, ...]]) -> dict[str, StockBehind]:
    """The items that lack an order that is known, unless a later sale has begun."""
    expected = {sku: sorted(places) for sku, places in known.items()}
    there = {(item.sku, item.last_entry) for item in items.values()}  # written with that order, or not at all
    there |= tables.find_orders(
        call, {sku: [entry for _, entry in orders if (sku, entry) not in there] for sku, orders in expected.items()}
    )
    lost: dict[str, StockBehind] = {}
    for sku, orders in expected.items():
        sale = items[sku].sale if sku in items else 0
        missing = [place for place in orders if sale < place[0] or (sale == place[0] and (sku, place[1]) not in there)]
        if missing:
            lost[sku] = StockBehind(behind(sku, str(missing[-1][1])), missing=map(_mark, missing))
    return lost


def _mark(place: Place) -> str:
    sale, entry = place
    return f"{sale:016}/{entry:020}"


def _unmark(mark: str) -> Place:
    sale, _, entry = mark.partition("/")
    return int(sale), int(entry)


def _latest_sale(places: Iterable[Place]) -> int:
    return max((sale for sale, _ in places), default=0)


def _entry(last_entry: int) -> str | None:
    return str(last_entry) if last_entry else None


def _refuse_long_names(ask: Ask) -> None:
    for name in (*ask.buyers, *ask.keys):
        if len(name.encode()) > tables.NAME_BYTES:
            raise ValueError(f"buyers and idempotency keys have at most {tables.NAME_BYTES} bytes: {name[:40]!r}...")


def _unknown(sku: str) -> UnknownItem:
    return UnknownItem(f"no item {sku!r}")

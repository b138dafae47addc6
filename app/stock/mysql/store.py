"""The common part of the stores in MySQL: all but how they detect a change since a read."""

import json
import re
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from typing_extensions import Unpack, override

import fencelock
from app.errors import (
    ConfigurationError,
    FenceRefused,
    ForeignFence,
    HasOrders,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockError,
    StockNotAsExpected,
    StockUnavailable,
    UnknownItem,
)
from app.orders import NO_TERMS, TERMS, Ask, Event, Order, Settled, Snapshot, Terms
from app.stock.bulkhead import Bulkhead, halves
from app.stock.mysql import holds, tables
from app.stock.mysql.erase import erase
from app.stock.mysql.sweeper import Sweeper
from app.stock.mysql.tables import ItemRow, Written
from app.stock.refusals import behind, changed, foreign, not_as_expected, other_layout, superseded
from app.stock.store import (
    DEFAULT_RECEIVER,
    LAYOUT,
    Batch,
    Change,
    Fence,
    Level,
    Note,
    Outbox,
    Restock,
    StockStore,
    facts,
    refuse_odd_name,
    what_is_changed,
)
from app.stock.watermark import Watermark
from fencelock.mysql import Call, MySqlClient

Result = TypeVar("Result")
Position = tuple[int, int, str]  # of an order: its generation, its number, the tag of its secret ("": any)

_MARK: Final = re.compile(r"([0-9]{16})/([0-9]{20})(?:/([0-9a-f]{8}))?")  # of a position; with leading zeros
LARGEST: Final = 2**63 - 1  # two of them can be added in an unsigned column


class TransactionalStockStore(StockStore):
    """Writes a batch in one transaction, if nothing has changed since it was read.

    `url`: mysql://user:password@host:3306/database, `?ssl_ca=` for TLS; `timeout_s`: deadline of a call, the wait for
    a connection included; `connections`: to the server at most; `refusal_ttl_s`: how long a
    refusal is remembered for its idempotency key (an order's key is remembered for good). Tables are made at the first
    call, where they are missing; one that is missing later has been lost, and is an error.
    """

    holds = True

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 2.0,
        connections: int = 8,
        instance: str = "python",
        refusal_ttl_s: float = 3600,
    ) -> None:
        try:
            self._client = MySqlClient(
                url,
                timeout_s=timeout_s,
                unavailable=StockUnavailable,
                schema=tables.SCHEMA,
                made_once=True,
            )
        except fencelock.ConfigurationError as error:
            raise ConfigurationError(str(error)) from None
        wait_s = max(1, int(timeout_s / 2))
        self._sessions = self._client.sessions(
            # In whole seconds. These time-outs leave the connection usable. `lock_wait_timeout` is for tables, which
            # somebody may be altering.
            f"SET SESSION innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}, time_zone = '+00:00'",
            # A client that is paused in a transaction, or cut off, has given up by then, and must not block the others.
            silent_s=timeout_s + 1,
        )
        self._sweeper = Sweeper(self._client, self._sessions)
        self._sale, self._readers = (Bulkhead(half) for half in halves(connections))
        self._instance = instance
        self._refusal_ttl_us = max(1, int(refusal_ttl_s * 1_000_000))
        self._watermarks: defaultdict[str, Watermark[Position]] = defaultdict(lambda: Watermark(_mark))

    # -- the guard ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _register(self, call: Call, skus: Iterable[str], fence: Fence, batch_id: str | None) -> None:
        """Register, before a read, the batch that may be written, if this guard can; then a transaction begins."""

    @abstractmethod
    def _refusal(self, item: ItemRow, fence: Fence, batch_id: str | None) -> FenceRefused | None:
        """The error that forbids writing `batch_id` under this fence, or None. No batch: the stock is being set."""

    def _refused(
        self, item: ItemRow, fence: Fence, batch_id: str | None, *, new_sale: bool = False
    ) -> StockError | None:
        # A new sale takes the place of an earlier layout, and reads nothing of it.
        if item.layout > LAYOUT or (item.layout < LAYOUT and not new_sale):
            return StockCorrupt(other_layout(item.sku, item.layout))
        return self._refusal(item, fence, batch_id)

    @abstractmethod
    def _version(self, item: ItemRow) -> str | None:
        """The version that a batch must give back."""

    @abstractmethod
    def _unless_changed(self, fence: Fence, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        """The condition of a write, in SQL with arguments: nothing has changed since the read."""

    @abstractmethod
    def _fence(self, item: ItemRow | None) -> Fence | None:
        """The highest token that the item's fence has seen, with its source."""

    @abstractmethod
    def _token(self, fence: Fence) -> int:
        """The token to write into orders. Raises `ValueError` for a token that can't be compared."""

    # -- the store ---------------------------------------------------------------------------------------------------

    @override
    def check(self, sku: str) -> None:
        refuse_odd_name(sku)

    @override
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        self._token(fence)
        expected = self._expected(asks)
        for ask in asks.values():
            _refuse_long_names(ask)

        async def read(call: Call) -> _Seen:
            await self._register(call, sorted(asks), fence, batch_id)
            # The items come first: all that is read after them is at least as new as their versions.
            items = await tables.find_items(call, asks)
            lost = await _find_lost(call, items, expected)
            bought = await tables.find_bought(call, items, asks)
            settled = await tables.find_settled(call, items, asks)
            return _Seen(items, lost, bought, settled, await holds.find_standing(call, items, asks, settled))

        seen = await self._run(self._sale, read)
        self._sweeper.sweep(seen.items.values())
        return {sku: self._snapshot(sku, seen, fence, batch_id, expected[sku]) for sku in asks}

    def _snapshot(
        self, sku: str, seen: "_Seen", fence: Fence, batch_id: str, expected: tuple[Position, ...]
    ) -> Snapshot | StockError:
        item = seen.items.get(sku)
        refusal = self._refused(item, fence, batch_id) if item else None
        if refusal or sku in seen.lost:
            return refusal or seen.lost[sku]
        if item is None or item.removed:
            return _unknown(sku)
        self._watermarks[sku].found(expected, _last_order(item))
        try:
            terms = _terms(item)
        except StockCorrupt as error:
            return error
        standing = seen.standing.get(sku, {})
        if isinstance(standing, StockCorrupt):
            return standing
        return Snapshot(
            item.stock,
            item.lucky,
            {**standing.pop("bought", {}), **seen.bought[sku]},
            seen.settled[sku],
            last_entry=_entry(item),
            version=self._version(item),
            terms=terms,
            **standing,
        )

    @override
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        token = self._token(fence)

        async def write(call: Call) -> tuple[dict[str, list[str] | StockError], dict[str, ItemRow]]:
            await call.begin()
            written: dict[str, Written] = {}
            for sku in sorted(batches):  # in one order, so that there is no deadlock
                await call.run("SAVEPOINT item")
                first = await tables.take(call, sku, batches[sku], *self._unless_changed(fence, batches[sku]))
                if first is None:
                    continue
                one = Written((await tables.find_items(call, [sku]))[sku], batches[sku], first)
                standing = bool(one.batch.changes or one.batch.begun)
                if (not standing or await holds.write_holds(call, one, self._instance, token)) and (
                    await tables.write_keys(call, one, self._refusal_ttl_us)
                ):
                    written[sku] = one
                else:
                    await call.run("ROLLBACK TO item")
            await tables.write_orders(call, written.values(), self._instance, token)
            items = {sku: one.item for sku, one in written.items()}
            items |= await tables.find_items(call, batches.keys() - written.keys())
            answers = {
                sku: written[sku].numbers
                if sku in written
                else await self._why_not(call, sku, items.get(sku), fence, batch)
                for sku, batch in batches.items()
            }
            return answers, items

        answers, items = await self._run(self._sale, write)
        for sku, numbers in answers.items():
            if batches[sku].entries and not isinstance(numbers, StockError):
                self._watermarks[sku].found((), _last_order(items[sku]))
        return answers

    async def _why_not(
        self, call: Call, sku: str, item: ItemRow | None, fence: Fence, batch: Batch
    ) -> list[str] | StockError:
        """Find out why a batch was not written; return the numbers of its orders, if it had been written before."""
        if item is None or item.removed:
            return _unknown(sku)
        if item.batch == batch.batch_id:
            return await tables.find_batch(call, sku, batch) or []
        return self._refused(item, fence, batch.batch_id) or StockChanged(changed(sku, item.stock))

    @override
    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        return await self._run(self._sale, lambda call: tables.find_batch(call, sku, batch))

    @override
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        new_sale, if_match, forget = how.get("new_sale", False), how.get("if_match"), how.get("forget_orders")
        refuse_odd_name(sku)
        self._token(fence)
        if not 0 <= stock <= LARGEST:
            raise ValueError(f"a stock must be from 0 to 2**63 - 1, not {stock}")
        expected = self._expected([sku])

        async def write(call: Call) -> ItemRow:
            await call.begin()
            there = await _is_there(call, sku)
            if how.get("add") and not there:
                raise _unknown(sku)
            await tables.create_item(call, sku)
            await self._register(call, [sku], fence, None)
            items = await tables.find_items(call, [sku])
            item = items[sku]
            refusal = self._refused(item, fence, None, new_sale=new_sale)
            if refusal is not None:
                raise refusal
            unlike = how.get("if_initial") not in (None, item.initial)
            if unlike or (if_match is not None and if_match != (item.stock, item.lucky)):
                raise StockNotAsExpected(not_as_expected(sku, item.stock, item.lucky))
            units = stock + item.stock if how.get("add") else stock
            if units + (0 if new_sale else item.held + item.lucky) > LARGEST:
                raise StockNotAsExpected(f"item {sku!r} can't have that many units")
            if new_sale and forget is not None and (orders := await tables.count_orders(call, sku)) != forget:
                raise HasOrders(sku, orders)
            # A store without any history, or a new sale, begins anew.
            if new_sale or not item.generation:
                await tables.begin_generation(call, sku, _latest_generation(expected[sku]))
            elif lost := await _find_lost(call, items, expected):
                raise lost[sku]
            if new_sale:
                await tables.begin_sale(call, sku)
            change = how.get("terms", {})
            try:
                own = _terms(item)
            except StockCorrupt:
                own = NO_TERMS if new_sale or change.keys() == TERMS.keys() else _terms(item, but=change)
            await tables.set_units(call, sku, units, own.changed(change).to_text())
            done = (await tables.find_items(call, [sku]))[sku]
            before = Level(sku, item.stock, item.lucky, None, terms=own, held=item.held)
            after = Level(sku, units, done.lucky, None, terms=own.changed(change), held=done.held)
            was = facts(before) if there else {}
            await tables.note(call, sku, how.get("by", ""), what_is_changed(stock, how), was, facts(after))
            return done

        item = await self._run(self._sale, write)
        self._sweeper.sweep([item])
        return Level(sku, item.stock, item.lucky, item.initial, terms=_terms(item), held=item.held)

    @override
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        refuse_odd_name(sku)
        self._token(fence)
        for item in (await self._run(self._readers, lambda call: tables.find_items(call, [sku]))).values():
            while await self._run(self._readers, partial(tables.sweep, item=item)):
                pass  # of earlier sales there may be more rows than a call can delete

        async def write(call: Call) -> None:
            await call.begin()
            if not await _is_there(call, sku):
                raise _unknown(sku)
            await tables.create_item(call, sku)
            await self._register(call, [sku], fence, None)
            item = (await tables.find_items(call, [sku]))[sku]
            if refusal := self._refused(item, fence, None):
                raise refusal
            if (orders := await tables.count_orders(call, sku)) or item.lucky:
                raise HasOrders(sku, orders)
            await tables.note(call, sku, by, "remove", {"stock": item.stock}, {})
            await tables.remove_item(call, sku)

        await self._run(self._sale, write)

    @override
    async def unfence(self, sku: str, *, by: str = "") -> None:
        refuse_odd_name(sku)

        async def write(call: Call) -> None:
            await call.begin()
            item = (await tables.find_items(call, [sku])).get(sku)
            await tables.unfence(call, sku)
            was = {"source": item.source, "token": item.token} if item and item.source else {}
            await tables.note(call, sku, by, "unfence", was, {})

        await self._run(self._readers, write)

    @override
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        if sku is not None:
            refuse_odd_name(sku)
        return await self._run(self._readers, lambda call: tables.list_changes(call, sku, limit))

    @override
    async def note(self, sku: str, note: Note) -> None:
        await self._run(self._readers, lambda call: tables.note(call, sku, *note))

    @override
    async def count_orders(self, sku: str) -> int:
        return await self._run(self._readers, lambda call: tables.count_orders(call, sku))

    @override
    def marks(self) -> dict[str, str]:
        return {sku: mark for sku, watermark in self._watermarks.items() if (mark := watermark.mark)}

    @override
    def expect(self, sku: str, mark: str) -> None:
        self._watermarks[sku].expect(_unmark(mark))

    @override
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        expected = self._expected(skus)

        async def look(call: Call) -> tuple[dict[str, ItemRow], dict[str, StockBehind]]:
            items = await tables.find_items(call, skus)
            return items, await _find_lost(call, items, expected)

        items, lost = await self._run(self._readers, look)
        for sku in expected.keys() - lost.keys():
            self._watermarks[sku].found(expected[sku], _last_order(items.get(sku)))
        return {sku: lost.get(sku) or self._fence(items.get(sku)) for sku in skus}

    @override
    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        latest = _latest_generation(self._expected([sku])[sku])

        async def write(call: Call) -> None:
            await call.begin()
            before = (await tables.find_items(call, [sku])).get(sku)
            await tables.create_item(call, sku)
            await tables.begin_generation(call, sku, latest)
            after = (await tables.find_items(call, [sku])).get(sku)
            was, became = ({"generation": one.generation} if one else {} for one in (before, after))
            await tables.note(call, sku, by, "accept loss", was, became)

        await self._run(self._readers, write)

    @override
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        for sku in skus:
            refuse_odd_name(sku)

        async def look(call: Call) -> tuple[dict[str, ItemRow], dict[str, float]]:
            items = await tables.find_items(call, skus)
            return items, await holds.find_first_due(call, items.values())

        items, due_in_s = await self._run(self._readers, look)

        def level(sku: str) -> Level | StockError:
            item = items.get(sku)
            if item is None or item.removed:
                return _unknown(sku)
            try:
                own = (
                    item.initial,
                    _entry(item),
                    _terms(item),
                    item.held,
                    due_in_s.get(sku),
                    item.now_ms / 1000,
                    str(item.sale),
                )
                return Level(sku, item.stock, item.lucky, *own)
            except StockCorrupt as error:
                return error

        return {sku: level(sku) for sku in skus}

    @override
    async def items(self) -> list[str]:
        return await self._run(self._readers, tables.list_items)

    @override
    async def order(self, sku: str, number: str) -> Order | None:
        if not tables.is_number(number):
            return None
        entry = int(number)
        found = await self._run(self._readers, lambda call: tables.list_orders(call, sku, entry, entry, 1))
        return found[0] if found else None

    @override
    async def history(self, sku: str, number: str) -> list[Event]:
        if not tables.is_number(number):
            return []
        return await self._run(self._readers, lambda call: tables.list_history(call, sku, int(number)))

    @override
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        refuse_odd_name(sku)
        if after is not None and not tables.is_number(after):
            raise ValueError(f"not the number of an order: {after!r}")
        first = int(after) + 1 if after is not None else 0
        last = LARGEST if until is None else int(until)
        return await self._run(self._readers, lambda call: tables.list_orders(call, sku, first, last, limit))

    @override
    async def paid_with(self, payment_ref: str, skus: Sequence[str]) -> list[Order]:
        return await self._run(self._readers, lambda call: tables.find_paid(call, payment_ref, skus))

    @override
    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        first, last = int(after or 0) + 1, LARGEST if until is None else int(until)
        return await self._run(self._readers, lambda call: tables.list_events(call, sku, first, last, limit))

    @override
    async def count_entries(self, sku: str) -> int:
        return await self._run(self._readers, lambda call: tables.count_orders(call, sku, entries=True))

    @override
    async def receivers(self, skus: Sequence[str]) -> list[str]:
        found = await self._run(self._readers, lambda call: tables.find_receivers(call, skus)) if skus else []
        return [DEFAULT_RECEIVER, *found]

    @override
    async def outbox(self, skus: Sequence[str], receiver: str = DEFAULT_RECEIVER) -> dict[str, Outbox | StockError]:
        found = await self._run(self._readers, lambda call: tables.find_outbox(call, skus, receiver)) if skus else {}
        return {sku: found.get(sku) or _unknown(sku) for sku in skus}

    @override
    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox, receiver: str = DEFAULT_RECEIVER) -> None:
        refusal = await self._run(self._readers, lambda call: tables.save_outbox(call, sku, fence, outbox, receiver))
        if refusal is None:
            return
        source, token = refusal
        if source is None or token is None:
            raise StockChanged(f"another sale of {sku!r} has begun")
        if source != fence.source:
            raise ForeignFence(foreign(sku, Fence(token, source), fence))
        raise FenceRefused(superseded(sku, token, fence))

    @override
    async def ask_sender(self, sku: str, wish: str, receiver: str = DEFAULT_RECEIVER, *, instead_of: str = "") -> bool:
        return await self._run(self._readers, lambda call: tables.ask_sender(call, sku, wish, receiver, instead_of))

    @override
    async def erase(
        self, sku: str, buyer: str, under: Callable[[], AbstractAsyncContextManager[Fence]], *, by: str = ""
    ) -> int:
        refuse_odd_name(sku)

        async def change(work: Callable[[Call], Awaitable[Result]]) -> Result:
            async with under() as fence:
                self._token(fence)

                async def write(call: Call) -> Result:
                    await call.begin()
                    await self._register(call, [sku], fence, None)
                    await tables.move_on(call, sku)  # before the first read, which is then as of now
                    item = (await tables.find_items(call, [sku])).get(sku)
                    if item is None or item.removed:
                        raise _unknown(sku)
                    if refusal := self._refused(item, fence, None):
                        raise refusal
                    return await work(call)

                return await self._run(self._sale, write)

        return await erase(sku, buyer, partial(self._run, self._readers), change, by)

    @override
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        return await self._run(self._readers, lambda call: tables.exchange_notices(call, put, drop))

    @override
    async def clocks_ms(self, *, timeout_s: float | None = None) -> dict[str, int]:
        return {"": await self._run(self._readers, tables.find_now_ms, timeout_s)}

    @override
    async def ping(self, skus: Sequence[str] = (), *, timeout_s: float | None = None) -> None:
        # A write, as a replica, or a server that was made read-only, answers a SELECT as if all were well.
        limit_s = self._client.timeout_s if timeout_s is None else min(timeout_s, self._client.timeout_s)
        await self._run(self._readers, tables.write_something, limit_s)

    @override
    async def ensure_lasting(self, *, timeout_s: float | None = None) -> None:
        if group := await self._run(self._readers, tables.find_group_writes, timeout_s):
            raise StockUnavailable(
                f"the store's server is a member of a cluster ({group}): two members may sell the same units, and one "
                "of the two writes is lost; use a server of its own, or a primary with replicas"
            )

    @override
    async def close(self) -> None:
        await self._sweeper.close()
        await self._client.close()

    async def _run(
        self, bulkhead: Bulkhead, work: Callable[[Call], Awaitable[Result]], timeout_s: float | None = None
    ) -> Result:
        """Run some statements, the wait for a connection included in the deadline.

        At the deadline the connection is closed; whether its statements were written is then unknown.
        """
        if self._client.closed:
            raise StockUnavailable("the connection to MySQL is closed")
        limit_s = self._client.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        try:
            async with bulkhead.call(limit_s):
                return await self._client.call(work, timeout_s=deadline - time.monotonic(), sessions=self._sessions)
        except TimeoutError as error:
            raise StockUnavailable(f"the store did not answer within {limit_s:.2g} s") from error

    def _expected(self, skus: Iterable[str]) -> dict[str, tuple[Position, ...]]:
        for sku in skus:
            refuse_odd_name(sku)
        # A name that is only asked for is not kept: it may be anything.
        marks = {sku: self._watermarks.get(sku) for sku in skus}
        return {sku: mark.positions if mark is not None else () for sku, mark in marks.items()}


class _Seen(NamedTuple):
    """The result of a read; `lost`: errors of the items that lack an expected order."""

    items: dict[str, ItemRow]
    lost: dict[str, StockBehind]
    bought: dict[str, dict[str, int]]
    settled: dict[str, dict[str, Settled]]
    standing: dict[str, holds.Standing | StockCorrupt]


async def _is_there(call: Call, sku: str) -> bool:
    item = (await tables.find_items(call, [sku])).get(sku)
    return item is not None and not item.removed


async def _find_lost(
    call: Call, items: Mapping[str, ItemRow], expected: Mapping[str, tuple[Position, ...]]
) -> dict[str, StockBehind]:
    """Find the items that lack an expected order, unless a later generation has begun."""
    # The last one was written with its item's row, or not at all.
    there = {(item.sku, item.last_entry): item.last_tag for item in items.values() if item.last_tag}
    there |= await tables.find_orders(
        call,
        items,
        {sku: [entry for _, entry, _ in orders if (sku, entry) not in there] for sku, orders in expected.items()},
    )
    lost: dict[str, StockBehind] = {}
    for sku, orders in expected.items():
        now = items[sku].generation if sku in items else 0
        for generation, entry, tag in sorted(orders, reverse=True):
            found = there.get((sku, entry))
            if now < generation or (now == generation and (found is None or tag not in ("", found))):
                lost[sku] = StockBehind(behind(sku, str(entry)))
                break
    return lost


def _mark(position: Position) -> str:
    generation, entry, tag = position
    return f"{generation:016}/{entry:020}" + (f"/{tag}" if tag else "")


def _unmark(mark: str) -> Position:
    """The position of a mark. Raises `ValueError` if it is not a mark."""
    match = _MARK.fullmatch(mark)
    if match is None:
        raise ValueError(f"not a mark of ours: {mark[:100]!r}")
    return int(match[1]), int(match[2]), match[3] or ""


def _latest_generation(positions: Iterable[Position]) -> int:
    return max((generation for generation, _, _ in positions), default=0)


def _last_order(item: ItemRow | None) -> Position | None:
    return (item.generation, item.last_entry, item.last_tag) if item and item.last_tag else None


def _terms(item: ItemRow, *, but: Collection[str] = ()) -> Terms:
    try:
        if not but:
            return Terms.from_text(item.terms)
        others = {name: value for name, value in dict(json.loads(item.terms)).items() if name not in but}
        return Terms.from_text(json.dumps(others))
    except (ValueError, TypeError):
        raise StockCorrupt(f"the column `terms` of item {item.sku!r} is not what we write") from None


def _entry(item: ItemRow) -> str | None:
    return str(item.last_entry) if item.last_tag else None


def _refuse_long_names(ask: Ask) -> None:
    for name in (*ask.buyers, *ask.keys, *ask.payments):
        if len(name.encode()) > tables.NAME_BYTES:
            raise ValueError(
                f"buyers, idempotency keys and payments have at most {tables.NAME_BYTES} bytes: {name[:40]!r}..."
            )


def _unknown(sku: str) -> UnknownItem:
    return UnknownItem(f"no item {sku!r}")

"""The stock's tables in MySQL or MariaDB, and the statements on them that do not depend on the guard."""

# ruff: noqa: S608 - they are made of constants; all else is an argument

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.errors import StockCorrupt
from app.orders import Ask, Event, EventKind, Order, OrderId, Record, Settled, Units, sale_of
from app.stock.store import DEFAULT_RECEIVER, LAYOUT, Batch, Change, Fence, Outbox
from app.stock.watermark import tag_of
from fencelock.mysql import DUPLICATE, GROUP, Call, Refused, group_of

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,18}")
NAME_BYTES: Final = 1020  # 255 characters of utf8mb4
SCHEMA: Final = tuple(
    " ".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
    for statement in Path(__file__).with_name("schema.sql").read_text(encoding="utf-8").split(";\n")
    if "CREATE" in statement
)
# In the order in which they are swept: a name is looked up in seckill_buyers, and records that have it by its entries.
_ROWS_OF_SALES: Final = (
    *("seckill_records", "seckill_orders", "seckill_events", "seckill_keys"),
    *("seckill_payments", "seckill_holders", "seckill_buyers"),
)
_OUTBOXES: Final = ("seckill_outbox", "seckill_receivers")

# By the server's clock. CURRENT_TIMESTAMP is in UTC, too: the sessions say so.
_NOW: Final = "UTC_TIMESTAMP(6)"
_NOW_US: Final = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {_NOW})"
# Both change at each write, whichever of them is compared.
_WRITTEN: Final = "version = version + 1, changed_at = GREATEST(CURRENT_TIMESTAMP, changed_at)"
# Later than any earlier write, even within one second.
_BEYOND: Final = f"{_WRITTEN} + INTERVAL 1 SECOND"
_THIS_SALE: Final = "sale = (SELECT sale FROM seckill_items WHERE sku = %s)"
_AT_ONCE: Final = 1000  # rows that a statement deletes at most
# A row outlives its item, so that a later sale continues its numbers. To set some units, by whatever means, brings the
# item back.
_REMOVED: Final = "initial IS NULL AND generation > 0 AND GREATEST(stock, held, lucky) = 0"


@dataclass(frozen=True, slots=True)
class ItemRow:
    """A row of seckill_items.

    `last_entry`: number of the last entry, in µs since 1970 or one more than the one before, also if that was of an
    earlier sale, and `last_tag`, its tag, "" if this sale has none; `generation`: since when no order has been lost,
    in ms since 1970, 0 if the item was put there by hand; `sale`: the generation with which the sale began; `swept`:
    the sale before which nothing is left; `batch`: the last one written; `terms`: the item's own, in JSON; `removed`:
    there is no such item any more; `now_ms`: the server's clock when it was read.
    """

    sku: str
    stock: int
    lucky: int
    initial: int | None
    last_entry: int
    last_tag: str
    generation: int
    sale: int
    swept: int
    epoch: int
    source: str | None
    token: int | None
    prepared: str | None
    batch: str | None
    terms: str
    version: str
    changed_at: str
    held: int
    layout: int
    removed: int
    now_ms: int


_COLUMNS: Final = (
    "sku, stock, lucky, initial, last_entry, last_tag, generation, sale, swept, "
    "epoch, source, token, prepared, batch, terms, "
    f"CAST(version AS CHAR), CAST(changed_at AS CHAR), held, layout, {_REMOVED}, {_NOW_US} DIV 1000"
)


def is_number(text: str) -> bool:
    """Return whether this may be the number of an order here: its entry in the journal."""
    return _NUMBER.fullmatch(text) is not None


async def find_items(call: Call, skus: Iterable[str]) -> dict[str, ItemRow]:
    """Find the rows of items, those of removed ones as well."""
    names = list(skus)
    if not names:
        return {}
    rows = await rows_of(call, f"SELECT {_COLUMNS} FROM seckill_items WHERE sku IN ({places(names)})", names)
    return {item.sku: item for item in (ItemRow(*map(plain, row)) for row in rows)}


async def find_orders(
    call: Call, items: Mapping[str, ItemRow], entries: Mapping[str, Sequence[int]]
) -> dict[tuple[str, int], str]:
    """Find the tags of the journal's entries that exist, by item and entry."""
    found: dict[tuple[str, int], str] = {}
    columns = "sku, entry, LEFT(SHA1(secret), 8)"
    for table in ("seckill_orders", "seckill_events"):
        wanted = [
            (items[sku], [entry for entry in some if (sku, entry) not in found])
            for sku, some in entries.items()
            if sku in items
        ]
        found |= {(sku, entry): tag for sku, entry, tag in await select(call, columns, table, "entry", wanted)}
    return found


async def find_bought(call: Call, items: Mapping[str, ItemRow], asks: Mapping[str, Ask]) -> dict[str, dict[str, int]]:
    """Find the units of each item that the given buyers have bought."""
    found: dict[str, dict[str, int]] = {sku: {} for sku in asks}
    buyers = [(item, asks[sku].buyers) for sku, item in items.items()]
    for sku, name, units in await select(call, "sku, name, units", "seckill_buyers", "name", buyers):
        found[sku][name] = units
    return found


async def find_settled(
    call: Call, items: Mapping[str, ItemRow], asks: Mapping[str, Ask]
) -> dict[str, dict[str, Settled]]:
    """Look up the results that are stored under these idempotency keys, of each item."""
    found: dict[str, dict[str, Settled]] = {sku: {} for sku in asks}
    keys = [(item, asks[sku].keys) for sku, item in items.items()]
    columns = f"sku, name, expires_at <= {_NOW}, outcome, quantity, buyer, order_id"
    for sku, name, expired, *settled in await select(call, columns, "seckill_keys", "name", keys):
        if not expired:
            outcome, quantity, buyer, order_id = settled
            found[sku][name] = Settled(outcome, quantity, buyer, OrderId.parse(order_id or ""))
    return found


async def find_batch(call: Call, sku: str, batch: Batch) -> list[str] | None:
    """Find the numbers of the new orders that a batch has written; None if it has written nothing."""
    where = f"WHERE sku = %s AND {_THIS_SALE} AND entry > %s AND batch = %s"
    rows = await rows_of(
        call,
        f"SELECT entry, 1 FROM seckill_orders {where} "
        f"UNION ALL SELECT entry, entry = order_entry FROM seckill_events {where}",
        2 * (sku, sku, int(batch.after or 0), batch.batch_id),
    )
    return [str(entry) for entry, new in sorted(rows) if new] if rows else None


_OF_EVENTS: Final = "kind, order_entry, number, stock, held, lucky, facts"
_ENTRY: Final = "entry, secret, quantity, buyer, idempotency_key, instance, token, batch, epoch"


async def _list_entries(
    call: Call, sku: str, first: int, last: int, limit: int, of_sales: str, of_events: tuple[str, str]
) -> list[list[Any]]:
    """Read the journal from one entry to another, oldest first.

    `of_sales`: what else is read of plain sales, `of_events`: what of the others, and of which.
    """
    parts = (
        f"(SELECT {_ENTRY}, {more} FROM {table} AS t WHERE sku = %s AND {_THIS_SALE} AND entry BETWEEN %s AND %s "
        f"AND {which} ORDER BY entry LIMIT %s)"
        for table, more, which in (("seckill_orders", of_sales, "TRUE"), ("seckill_events", *of_events))
    )
    rows = await rows_of(call, " UNION ALL ".join(parts), 2 * (sku, sku, first, last, limit))
    # In one statement, so that both are of one moment; sorted here, so that the server needs no table for that.
    return sorted([[plain(value) for value in row] for row in rows], key=lambda row: row[0])[:limit]


def _order(sku: str, row: Sequence[Any], record: Record | None = None) -> Order:
    entry, secret, quantity, buyer, key, instance, token, batch, epoch = row[:9]
    own = record or Record.sold(str(entry), secret, quantity, buyer)
    return Order(sku, own, key, instance, token, batch, entry / 1_000_000, epoch)


async def list_orders(call: Call, sku: str, first: int, last: int, limit: int) -> list[Order]:
    """Read the orders that began from one entry to another, oldest first, with their records."""
    record = "(SELECT record FROM seckill_records AS r WHERE r.sku = t.sku AND r.sale = t.sale AND number = t.entry)"
    found = await _list_entries(call, sku, first, last, limit, record, (record, "number = 1"))
    return [_order(sku, row, record_of(sku, row[0], row[9]) if row[9] else None) for row in found]


async def list_events(call: Call, sku: str, first: int, last: int, limit: int) -> list[Event]:
    """Read the journal from one entry to another, oldest first."""
    none = "NULL, entry, 1, 0, 0, 0, NULL"
    found = await _list_entries(call, sku, first, last, limit, none, (_OF_EVENTS, "TRUE"))
    return [_event(sku, row) for row in found]


async def list_history(call: Call, sku: str, number: int) -> list[Event]:
    """Read the events of an order, oldest first."""
    began = await list_events(call, sku, number, number, 1)
    rows = await rows_of(
        call,
        f"SELECT {_ENTRY}, {_OF_EVENTS} FROM seckill_events "
        f"WHERE sku = %s AND {_THIS_SALE} AND entry > %s AND order_entry = %s ORDER BY entry",
        (sku, sku, number, number),
    )
    return began + [_event(sku, [plain(value) for value in row]) for row in rows]


def _event(sku: str, row: Sequence[Any]) -> Event:
    sold = sale_of(_order(sku, row))
    kind, began, number, stock, held, lucky, facts = row[9:]
    if kind is None:
        return sold
    try:
        known, of_order = EventKind(kind), OrderId(sku, str(began), row[1])
        units, said = Units(stock, held, lucky), json.loads(facts)
    except ValueError:
        raise StockCorrupt(f"an entry of item {sku!r} in seckill_events is not what we write") from None
    return replace(sold, kind=known, order=of_order, number=int(number), units=units, facts=said)


def record_of(sku: str, number: int, text: str) -> Record:
    """Parse how an order stands. Raises `StockCorrupt`."""
    try:
        return Record.from_text(str(number), text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StockCorrupt(f"a record of item {sku!r} in seckill_records is not what we write") from None


async def list_items(call: Call) -> list[str]:
    """The names of all items."""
    rows = await rows_of(call, f"SELECT sku FROM seckill_items WHERE NOT ({_REMOVED}) ORDER BY sku")
    return [name.decode() for (name,) in rows]


async def list_changes(call: Call, sku: str | None, limit: int) -> list[Change]:
    """Lines of the operators' log, newest first."""
    where, args = ("", ()) if sku is None else ("WHERE sku = %s ", (sku,))
    rows = await rows_of(
        call,
        f"SELECT at, operator, what, sku, was, became FROM seckill_log {where}ORDER BY number DESC LIMIT %s",
        (*args, limit),
    )
    found = (map(plain, row) for row in rows)
    return [
        Change(at / 1e6, by, what, of, json.loads(was), json.loads(became)) for at, by, what, of, was, became in found
    ]


async def count_orders(call: Call, sku: str, *, entries: bool = False) -> int:
    """Count the orders of an item's current sale, or the entries of its journal."""
    where = f"WHERE sku = %s AND {_THIS_SALE}"
    events = f"SELECT COUNT(*) FROM seckill_events {where}" + ("" if entries else " AND number = 1")
    rows = await rows_of(call, f"SELECT COUNT(*) + ({events}) FROM seckill_orders {where}", 2 * (sku, sku))
    return int(rows[0][0])


async def find_paid(call: Call, payment_ref: str, skus: Sequence[str]) -> list[Order]:
    """See `StockStore.paid_with`."""
    rows = await rows_of(
        call,
        "SELECT sku, number FROM seckill_items JOIN seckill_payments USING (sku, sale) "
        f"WHERE payment_ref = %s AND sku IN ({places(skus)})",
        (payment_ref, *skus),
    )
    found = [await list_orders(call, plain(sku) or "", number, number, 1) for sku, number in rows]
    return [order for one in found for order in one]


# -- writes, each within a transaction ---------------------------------------------------------------------------------


async def take(call: Call, sku: str, batch: Batch, unless_changed: str, args: Sequence[Any]) -> int | None:
    """Move a batch's units, if a condition holds; None if it doesn't, or if it is the last batch again.

    Returns its first entry in the journal.
    """
    new = [(-one.quantity, 0, one.quantity) for one in batch.sold]
    new += [one.record.units for one in batch.begun]
    moved = [(0, 0, 0), *new, *(tuple(change.units) for change in batch.changes)]
    stock, held, lucky = (sum(units) for units in zip(*moved, strict=True))
    at_least = [max(0, -units) for units in (stock, held, lucky)]
    secrets = [change.after.secret for change in batch.changes] + batch.secrets
    entries, tag = len(secrets), tag_of(secrets[-1]) if secrets else ""
    answer = await call.run(
        "UPDATE seckill_items SET stock = stock + %s, held = held + %s, lucky = lucky + %s, batch = %s, "
        f"last_entry = IF(%s, LAST_INSERT_ID(GREATEST(last_entry, {_NOW_US}) + %s), last_entry), "
        f"last_tag = IF(%s, %s, last_tag), {_WRITTEN} "
        f"WHERE sku = %s AND stock >= %s AND held >= %s AND lucky >= %s AND NOT batch <=> %s AND {unless_changed}",
        (*(stock, held, lucky, batch.batch_id, entries, entries, entries, tag, sku), *at_least, batch.batch_id, *args),
    )
    return answer.last_id - entries + 1 if answer.matched else None


class Written(NamedTuple):
    """A batch's part of an item, taken from its stock; its first entry in the journal."""

    item: ItemRow
    batch: Batch
    first_entry: int

    @property
    def first_order(self) -> int:
        """The entry of the first new order, behind the changes."""
        return self.first_entry + len(self.batch.changes)

    @property
    def numbers(self) -> list[str]:
        """The numbers of the new orders, in the order of the journal."""
        return [str(self.first_order + place) for place, _ in enumerate(self.batch.secrets)]


async def write_keys(call: Call, written: Written, refusal_ttl_us: int) -> bool:
    """Write the results under a batch's idempotency keys; False, with nothing written, if one is already taken."""
    (item, batch, _), new = written, list[tuple[str | None, str, int, str | None]]()
    sku, sale = item.sku, item.sale
    new += [(one.key, str(one.record.state), one.record.quantity, one.record.buyer) for one in batch.begun]
    new += [(one.key, "sold", one.quantity, one.buyer) for one in batch.sold]
    ids = [str(OrderId(sku, *one)) for one in zip(written.numbers, batch.secrets, strict=True)]
    rows: list[tuple[Any, ...]] = [
        (sku, sale, *own, of, None) for own, of in zip(new, ids, strict=True) if own[0] is not None
    ]
    for refused in batch.refused:
        settled = refused.settled
        own = (str(settled.outcome), settled.quantity, settled.buyer, settled.order and str(settled.order))
        rows.append((sku, sale, refused.key, *own, refusal_ttl_us))
    if not rows:
        return True
    expired = f"DELETE FROM seckill_keys WHERE sku = %s AND expires_at <= {_NOW}"
    await call.run(f"{expired} AND sale = %s AND name IN ({places(rows)})", [sku, sale, *(row[2] for row in rows)])
    if batch.refused:  # so that more go than come
        await call.run(f"{expired} LIMIT {_AT_ONCE}", (sku,))
    # An INTERVAL NULL makes it NULL: never.
    values = f"(%s, %s, %s, %s, %s, %s, %s, {_NOW} + INTERVAL %s MICROSECOND)"
    return await insert_new(call, "seckill_keys", rows, values)


async def write_orders(call: Call, written: Iterable[Written], instance: str, token: int) -> None:
    """Write the orders that are sold at once, and add them to what their buyers have bought."""
    orders: list[tuple[Any, ...]] = []
    bought: Counter[tuple[str, int, str]] = Counter()
    for one in written:
        item, batch, _ = one
        for entry, sold in enumerate(batch.sold, one.first_order + len(batch.begun)):
            own = (sold.quantity, sold.buyer, sold.key, sold.secret)
            orders.append((item.sku, item.sale, entry, *own, instance, token, item.epoch, batch.batch_id))
            if sold.buyer is not None:
                bought[item.sku, item.sale, sold.buyer] += sold.quantity
    await insert(call, "seckill_orders", orders)
    await add_bought(call, bought)


async def add_bought(call: Call, bought: Mapping[tuple[str, int, str], int]) -> None:
    """Add units to what buyers have bought, of an item in a sale."""
    units = [(*of_buyer, quantity) for of_buyer, quantity in sorted(bought.items())]
    await insert(call, "seckill_buyers", units, "ON DUPLICATE KEY UPDATE units = units + VALUES(units)")


async def create_item(call: Call, sku: str) -> None:
    """Ensure that an item has a row, and lock it.

    Its versions begin above those of a row that was there before: a write that was decided on that may come late.
    """
    await call.run(
        f"INSERT INTO seckill_items SET sku = %s, version = {_NOW_US}, layout = %s ON DUPLICATE KEY UPDATE sku = sku",
        (sku, LAYOUT),
    )


async def prepare(call: Call, sku: str, fence: Fence, batch_id: str | None) -> None:
    """Raise an item's fence to our token, unless it has seen a higher or a foreign one; register the batch."""
    await call.run(
        "UPDATE seckill_items SET source = %s, token = %s, prepared = %s "
        "WHERE sku = %s AND (source IS NULL OR source = %s) AND (token IS NULL OR token <= %s)",
        (fence.source, fence.token, batch_id, sku, fence.source, fence.token),
    )


async def move_on(call: Call, sku: str) -> None:
    """Invalidate every batch that was decided on the current version. Blocks on a concurrent writer."""
    await call.run(f"UPDATE seckill_items SET {_BEYOND} WHERE sku = %s", (sku,))


async def note(call: Call, sku: str, by: str, what: str, was: Mapping[str, Any], became: Mapping[str, Any]) -> None:
    """Write a line of the operators' log."""
    facts = (json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in (was, became))
    await call.run(
        f"INSERT INTO seckill_log (sku, at, operator, what, was, became) VALUES (%s, {_NOW_US}, %s, %s, %s, %s)",
        (sku, by, what, *facts),
    )


async def remove_item(call: Call, sku: str) -> None:
    """Remove an item, and all rows of earlier sales; see `_REMOVED`."""
    for table in (*_OUTBOXES, *_ROWS_OF_SALES):
        await call.run(f"DELETE FROM {table} WHERE sku = %s", (sku,))
    await call.run(
        "UPDATE seckill_items SET stock = 0, held = 0, initial = NULL, terms = '', batch = NULL, swept = sale, "
        f"generation = GREATEST(generation, 1), {_BEYOND} WHERE sku = %s",
        (sku,),
    )


async def set_units(call: Call, sku: str, stock: int, terms: str) -> None:
    """Set the units left, and the item's own terms; batches that were decided before are no longer written."""
    await call.run(
        f"UPDATE seckill_items SET stock = %s, initial = held + lucky + %s, terms = %s, {_BEYOND} WHERE sku = %s",
        (stock, stock, terms, sku),
    )


async def begin_generation(call: Call, sku: str, after: int) -> None:
    """Begin a generation now, later than the one before and than `after` (ms since 1970)."""
    await call.run(
        f"UPDATE seckill_items SET generation = GREATEST(generation + 1, %s, {_NOW_US} DIV 1000) WHERE sku = %s",
        (after + 1, sku),
    )


async def begin_sale(call: Call, sku: str) -> None:
    """Begin a sale: earlier sales of the item no longer count, but no number is used again. See `sweep`."""
    await call.run(
        "UPDATE seckill_items SET sale = generation, held = 0, lucky = 0, last_tag = '', batch = NULL, "
        "layout = %s WHERE sku = %s",
        (LAYOUT, sku),
    )


async def sweep(call: Call, item: ItemRow) -> bool:
    """Delete some rows of an item's earlier sales; False when none is left, or another sale has begun meanwhile."""
    # Not within the DELETE: that would lock the item's row.
    if (item.sale,) not in await rows_of(call, "SELECT sale FROM seckill_items WHERE sku = %s", (item.sku,)):
        return False
    for table in _ROWS_OF_SALES:
        answer = await call.run(
            f"DELETE FROM {table} WHERE sku = %s AND sale < %s LIMIT {_AT_ONCE}", (item.sku, item.sale)
        )
        if answer.matched:
            return True
    await call.run("UPDATE seckill_items SET swept = %s WHERE sku = %s AND sale = %s", (item.sale, item.sku, item.sale))
    return False


async def unfence(call: Call, sku: str) -> None:
    """Forget the fence."""
    await call.run(
        "UPDATE seckill_items SET epoch = epoch + 1, source = NULL, token = NULL, prepared = NULL WHERE sku = %s",
        (sku,),
    )
    for table in _OUTBOXES:
        await call.run(f"UPDATE {table} SET source = NULL, token = NULL WHERE sku = %s", (sku,))


async def write_something(call: Call) -> None:
    """Check that the tables exist, and can be written to: write a key, of no item, that expires."""
    tables = ", ".join(["seckill_items", "seckill_log", *_OUTBOXES, "seckill_notices", *_ROWS_OF_SALES])
    await call.run(f"SELECT 1 FROM {tables} LIMIT 0")
    await call.run(
        "INSERT INTO seckill_keys (sku, name, outcome, quantity, expires_at) "
        f"VALUES ('', 'ping', '', 0, {_NOW} + INTERVAL 1 MINUTE) "
        "ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at)"
    )


async def find_now_ms(call: Call) -> int:
    """Find the server's clock, in ms since 1970."""
    ((now_ms,),) = await rows_of(call, f"SELECT {_NOW_US} DIV 1000")
    return int(now_ms)


async def find_group_writes(call: Call) -> str | None:
    """Find the setting by which several servers can write at once, if the server is in such a group."""
    return group_of(await rows_of(call, GROUP))


def _outbox_of(receiver: str) -> tuple[str, str, tuple[str, ...]]:
    """The table of a receiver's notes, the condition for its rows, and the arguments of that."""
    return (_OUTBOXES[0], "TRUE", ()) if receiver == DEFAULT_RECEIVER else (_OUTBOXES[1], "receiver = %s", (receiver,))


async def _begin_outbox(call: Call, sku: str, receiver: str) -> None:
    table, _, named = _outbox_of(receiver)
    columns = "sku, body, wish" + ", receiver" * len(named)
    await call.run(
        f"INSERT INTO {table} ({columns}) VALUES ({places(['', '', '', *named])}) ON DUPLICATE KEY UPDATE sku = sku",
        (sku, "", "", *named),
    )


async def find_receivers(call: Call, skus: Sequence[str]) -> list[str]:
    """See `StockStore.receivers`."""
    of = f"seckill_receivers JOIN seckill_items USING (sku, sale) WHERE sku IN ({places(skus)})"
    return sorted(plain(name) for (name,) in await rows_of(call, f"SELECT DISTINCT receiver FROM {of}", skus))


async def find_outbox(call: Call, skus: Sequence[str], receiver: str) -> dict[str, Outbox]:
    """See `StockStore.outbox`."""
    table, its, named = _outbox_of(receiver)
    rows = await rows_of(
        call,
        f"SELECT i.sku, i.sale, i.sale = o.sale, body, wish, number FROM seckill_items AS i "
        f"LEFT JOIN {table} AS o ON o.sku = i.sku AND {its} WHERE i.sku IN ({places(skus)})",
        (*named, *skus),
    )
    found = {}
    for sku, sale, current, body, wish, number in rows:
        own = (plain(body) or "", number) if current else ("", 0)
        found[plain(sku)] = Outbox(str(sale), own[0], plain(wish) or "", own[1])
    return found


async def save_outbox(
    call: Call, sku: str, fence: Fence, outbox: Outbox, receiver: str
) -> tuple[str | None, int | None] | None:
    """See `StockStore.save_outbox`; returns the source and the token that refuse it, None twice for another sale."""
    table, its, named = _outbox_of(receiver)
    await call.begin()
    await _begin_outbox(call, sku, receiver)
    columns = "source, token, sale, number"
    seen = await rows_of(call, f"SELECT {columns} FROM {table} WHERE sku = %s AND {its} FOR UPDATE", (sku, *named))
    source, token, sale, number = map(plain, seen[0])
    if source is not None and (source != fence.source or token > fence.token):
        return source, token
    if (token, sale) == (fence.token, int(outbox.sale)) and number > outbox.number:
        return None  # it was long on its way
    answer = await call.run(
        f"UPDATE {table} SET {_THIS_SALE}, body = %s, number = %s, source = %s, token = %s, wish = "
        f"IF(wish = %s, '', wish) WHERE sku = %s AND {its} AND %s = (SELECT sale FROM seckill_items WHERE sku = %s)",
        (sku, outbox.text, outbox.number, fence.source, fence.token, outbox.wish, sku, *named, int(outbox.sale), sku),
    )
    return None if answer.matched else (None, None)


async def ask_sender(call: Call, sku: str, wish: str, receiver: str, instead_of: str) -> bool:
    """See `StockStore.ask_sender`."""
    table, its, named = _outbox_of(receiver)
    await _begin_outbox(call, sku, receiver)
    where = f"sku = %s AND {its} AND wish = %s"
    answer = await call.run(f"UPDATE {table} SET wish = %s WHERE {where}", (wish, sku, *named, instead_of))
    return bool(answer.matched)


async def exchange_notices(call: Call, put: Mapping[str, str], drop: Sequence[str]) -> dict[str, str]:
    """See `StockStore.notices`."""
    for name, body in put.items():
        await call.run(
            "INSERT INTO seckill_notices (name, body) VALUES (%s, %s) ON DUPLICATE KEY UPDATE body = VALUES(body)",
            (name, body),
        )
    if drop:
        await call.run(f"DELETE FROM seckill_notices WHERE name IN ({places(drop)})", drop)
    rows = await rows_of(call, "SELECT name, body FROM seckill_notices")
    return {plain(name): plain(body) for name, body in rows}


async def rows_of(call: Call, sql: str, args: Sequence[Any] = ()) -> tuple[tuple[Any, ...], ...]:
    """Read rows."""
    return (await call.run(sql, args)).rows


async def select(
    call: Call, columns: str, table: str, key: str, wanted: Iterable[tuple[ItemRow, Sequence[object]]]
) -> list[list[Any]]:
    """Read the rows of each item that exist, by the primary key: the item, its sale, and `key`."""
    some = [(item, values) for item, values in wanted if values]
    if not some:
        return []
    where = " OR ".join(f"sku = %s AND sale = %s AND {key} IN ({places(values)})" for _, values in some)
    args = [arg for item, values in some for arg in (item.sku, item.sale, *values)]
    rows = await rows_of(call, f"SELECT {columns} FROM {table} WHERE {where}", args)
    return [[plain(value) for value in row] for row in rows]


async def insert(call: Call, table: str, rows: Sequence[Sequence[Any]], otherwise: str = "") -> None:
    """Insert rows, each with a value for every column."""
    if rows:
        values = ", ".join([f"({places(rows[0])})"] * len(rows))
        await call.run(f"INSERT INTO {table} VALUES {values} {otherwise}", [arg for row in rows for arg in row])


async def insert_new(call: Call, table: str, rows: Sequence[Sequence[Any]], values: str) -> bool:
    """Insert rows with such values; False, with nothing inserted, if one of them is there."""
    sql = f"INSERT INTO {table} VALUES {', '.join([values] * len(rows))}"
    try:
        await call.run(sql, [arg for row in rows for arg in row], tell=(DUPLICATE,))
    except Refused as refusal:
        if refusal.code != DUPLICATE:
            raise
        return False
    return True


def places(values: Sequence[object]) -> str:
    """Placeholders for so many values."""
    return ", ".join(["%s"] * len(values))


def plain(value: Any) -> Any:
    """Decode a value of a row, where texts are bytes."""
    return value.decode() if isinstance(value, bytes) else value

"""The statements in MySQL or MariaDB about orders that are not just sold: what is held, paid and given back."""

# ruff: noqa: S608 - they are made of constants; all else is an argument

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.errors import StockCorrupt
from app.orders import Ask, OrderChange, OrderState, Record, Settled, to_json
from app.stock.mysql.tables import (
    ItemRow,
    Written,
    add_bought,
    find_bought,
    find_orders,
    insert,
    insert_new,
    is_number,
    note,
    places,
    record_of,
    rows_of,
    select,
)
from app.stock.store import note_of
from fencelock.mysql import Call

_DUE_MAX: Final = 200  # orders that a batch gives back at most

Standing = dict[str, Any]  # the fields of a snapshot that are about holds


# -- reads -------------------------------------------------------------------------------------------------------------


async def find_standing(
    call: Call, items: Mapping[str, ItemRow], asks: Mapping[str, Ask], settled: Mapping[str, Mapping[str, Settled]]
) -> dict[str, Standing | StockCorrupt]:
    """Find out about holds, of the items of which some are there or are asked for."""
    due = {sku: await _find_due(call, item) for sku, item in items.items() if item.held}
    found: dict[str, Standing | StockCorrupt] = {
        sku: {"now_ms": item.now_ms, "held": item.held} for sku, item in items.items() if item.held or asks[sku].holds
    }
    asked = {sku: asks[sku] for sku in found if asks[sku].holds or due[sku]}

    async def look(what: str, table: str, key: str, wanted: Mapping[str, Iterable[Any]]) -> dict[str, list[list[Any]]]:
        rows = defaultdict[str, list[list[Any]]](list)
        for sku, *row in await select(
            call, f"sku, {what}", table, key, [(items[sku], list(some)) for sku, some in wanted.items()]
        ):
            rows[sku].append(row)
        return rows

    buyers = {sku: ask.buyers for sku, ask in asked.items()}
    refs = {sku: ask.payments for sku, ask in asked.items()}
    holders = await look("buyer, number", "seckill_holders", "buyer", buyers)
    payments = await look("payment_ref, number", "seckill_payments", "payment_ref", refs)
    numbers = {
        sku: {
            *(int(number) for number in ask.orders if is_number(number)),
            *due.get(sku, ())[:_DUE_MAX],
            *(number for _, number in holders[sku]),
            *(
                int(one.order.number)
                for one in settled[sku].values()
                if one.order and one.outcome != "sold" and is_number(one.order.number)
            ),
        }
        for sku, ask in asked.items()
    }
    records = await look("number, record", "seckill_records", "number", numbers)
    sold = {sku: some - {number for number, _ in records[sku]} for sku, some in numbers.items()}
    sales = await look("entry, secret, quantity, buyer", "seckill_orders", "entry", sold)
    standing: dict[str, dict[str, Record]] = {}
    for sku in asked:
        try:
            standing[sku] = {str(number): record_of(sku, number, text) for number, text in records[sku]}
        except StockCorrupt as error:
            found[sku] = error
        else:
            standing[sku] |= {str(entry): Record.sold(str(entry), *own) for entry, *own in sales[sku]}
    # A late payment counts for its buyer's limit, and only the order says whose it is.
    theirs = {
        sku: Ask(
            [buyer for number in asked[sku].orders if number in some and (buyer := some[number].buyer) is not None]
        )
        for sku, some in standing.items()
    }
    bought = await find_bought(call, {sku: items[sku] for sku in theirs}, theirs)
    for sku, some in standing.items():
        found[sku] = {
            "now_ms": items[sku].now_ms,
            "held": items[sku].held,
            "bought": bought[sku],
            "records": some,
            "open": {buyer: str(number) for buyer, number in holders[sku]},
            "payments": {ref: str(number) for ref, number in payments[sku]},
            "due": [str(number) for number in due.get(sku, ())[:_DUE_MAX]],
            "more_due": len(due.get(sku, ())) > _DUE_MAX,
        }
    return found


async def _find_due(call: Call, item: ItemRow) -> list[int]:
    rows = await rows_of(
        call,
        "SELECT number FROM seckill_records WHERE sku = %s AND sale = %s AND due_ms <= %s "
        "ORDER BY due_ms, number LIMIT %s",
        (item.sku, item.sale, item.now_ms, _DUE_MAX + 1),
    )
    return [number for (number,) in rows]


async def find_first_due(call: Call, items: Iterable[ItemRow]) -> dict[str, float]:
    """Find out in how many seconds the first units that are held go back, of the items that have some."""
    holding = {item.sku: item for item in items if item.held}
    if not holding:
        return {}
    one = (
        "(SELECT sku, due_ms FROM seckill_records WHERE sku = %s AND sale = %s AND due_ms IS NOT NULL "
        "ORDER BY due_ms LIMIT 1)"
    )
    args = [arg for item in holding.values() for arg in (item.sku, item.sale)]
    rows = await rows_of(call, " UNION ALL ".join([one] * len(holding)), args)
    return {sku.decode(): (due_ms - holding[sku.decode()].now_ms) / 1000 for sku, due_ms in rows}


# -- writes, within the transaction of a batch -------------------------------------------------------------------------


async def write_holds(call: Call, written: Written, instance: str, token: int) -> bool:
    """Write what a batch changes and holds; False if an order is not as it was: then all has to be rolled back."""
    item, batch, _ = written
    of = (item.sku, item.sale)
    payments = [(*of, one.payment, int(one.after.number)) for one in batch.changes if one.payment is not None]
    if not await _are_as_before(call, item, batch.changes):
        return False
    if payments and not await insert_new(call, "seckill_payments", payments, f"({places(payments[0])})"):
        return False

    events: list[tuple[Any, ...]] = []
    records: dict[int, Record] = {}
    holders: dict[str, int] = {}
    bought: Counter[str] = Counter()
    common = (instance, token, item.epoch, batch.batch_id)
    for entry, change in enumerate(batch.changes, written.first_entry):
        after, number = change.after, int(change.after.number)
        what = (after.events, str(change.kind), after.quantity, after.buyer, None, after.secret)
        events.append((*of, entry, number, *what, *change.units, _json(change.facts), *common))
        records[number] = after
        if after.buyer is not None:
            bought[after.buyer] += change.bought
        if line := note_of(item.sku, change):
            await note(call, item.sku, *line)
    closed = [(one.buyer, number) for number, one in records.items() if one.state is not OrderState.HELD and one.buyer]
    for entry, begun in enumerate(batch.begun, written.first_order):
        record = begun.record
        new = (1, str(record.state), record.quantity, record.buyer, begun.key, record.secret)
        events.append((*of, entry, entry, *new, *record.units, _json(record.facts), *common))
        records[entry] = record
        if record.buyer is not None:
            bought[record.buyer] += record.quantity
            if record.state is OrderState.HELD:
                holders[record.buyer] = entry
    await insert(call, "seckill_events", events)
    await insert(
        call,
        "seckill_records",
        [(*of, number, *_row_of(record)) for number, record in records.items()],
        "ON DUPLICATE KEY UPDATE record = VALUES(record), state = VALUES(state), steps = VALUES(steps), "
        "due_ms = VALUES(due_ms)",
    )
    if closed:
        some = places(closed)
        await call.run(
            f"DELETE FROM seckill_holders WHERE sku = %s AND sale = %s AND buyer IN ({some}) AND number IN ({some})",
            (*of, *(buyer for buyer, _ in closed), *(number for _, number in closed)),
        )
    opened = [(*of, *one) for one in holders.items()]
    await insert(call, "seckill_holders", opened, "ON DUPLICATE KEY UPDATE number = VALUES(number)")
    await add_bought(call, {(*of, buyer): units for buyer, units in bought.items() if units > 0})
    for units in {units for units in bought.values() if units < 0}:
        buyers = [buyer for buyer, own in bought.items() if own == units]
        await call.run(
            f"UPDATE seckill_buyers SET units = units - LEAST(units, %s) "
            f"WHERE sku = %s AND sale = %s AND name IN ({places(buyers)})",
            (-units, *of, *buyers),
        )
    return True


async def _are_as_before(call: Call, item: ItemRow, changes: Sequence[OrderChange]) -> bool:
    """Return whether each order has as many events as when its change was decided."""
    numbers = list({int(change.before.number) for change in changes})
    steps = dict(await select(call, "number, steps", "seckill_records", "number", [(item, numbers)]))
    if sold := [number for number in numbers if number not in steps]:
        steps |= {entry: 1 for _, entry in await find_orders(call, {item.sku: item}, {item.sku: sold})}
    for change in changes:
        number = int(change.before.number)
        if steps.get(number) != change.before.events:
            return False
        steps[number] = change.after.events
    return True


def _row_of(record: Record) -> tuple[object, ...]:
    due_ms = record.due_ms if record.state is OrderState.HELD else None
    return record.to_text(), str(record.state), record.events, due_ms


def _json(facts: Mapping[str, Any]) -> str:
    return to_json(dict(facts))

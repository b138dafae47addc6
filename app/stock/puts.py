"""The writes of a batch: entries of the journal with their numbers, and the named things that they change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from app.orders import OPEN, EventKind, OrderChange, OrderId, OrderState, Record, Settled, Units
from app.orders import Event as Entry
from app.orders.facts import NO_FACTS, Facts
from app.stock import values
from app.stock.batch import LAYOUT, Batch, Begun
from app.stock.log import note_of
from app.stock.storage import Found, Put, Value


def next_generation(generation: int, now_us: int, expected: Sequence[int] = ()) -> int:
    """The number of a generation that begins now, in ms since 1970: greater than all that are known."""
    return max(now_us // 1000, generation + 1, *(one + 1 for one in expected))


def put_of(
    sku: str, batch: Batch, numbers: Sequence[str], expect: Mapping[str, Value], *, instance: str, token: int
) -> Put:
    """The writes of a batch for an item. `numbers`: those of its entries; see `Batch` for their order."""
    # No generic is called here, and no function defined, which would be half of the time: there may be 500 in a batch.
    found: Found = batch.seen.basis
    head = found.head
    put = Put(found, expect, batch.batch_id)
    generation = head.generation or next_generation(0, head.now_us)
    if batch.wants != head.wants:
        put.head["wants"] = batch.wants
    if not head.generation:
        put.head |= {"generation": generation, "sale": generation, "layout": LAYOUT}
    number, at = iter(numbers), head.now_us / 1_000_000
    if batch.changes or batch.begun:
        _put_records(put, sku, batch, number, instance=instance, token=token)
    batch_id, epoch, facts, taken, bought = batch.batch_id, head.epoch, NO_FACTS, 0, put.bought
    for sold in batch.sold:  # most orders have no record, as it would cost as much as all the rest
        entry, quantity, buyer = next(number), sold.quantity, sold.buyer
        order, units = OrderId(sku, entry, sold.secret), Units(-quantity, 0, quantity)
        own = (quantity, buyer, sold.key, at, instance, token, batch_id, epoch, units, facts)
        put.entries.append(Entry(entry, EventKind.SOLD, order, 1, *own))
        taken += quantity
        if buyer is not None:
            bought[buyer] = bought.get(buyer, 0) + quantity
        if sold.key is not None:
            settled = Settled("sold", sold.quantity, sold.buyer, OrderId(sku, entry, sold.secret))
            put.keys[sold.key] = values.of_key(settled)
    put.units = sum_of((put.units, Units(-taken, 0, taken)))
    for refused in batch.refused:
        put.refused[refused.key] = values.of_refusal(refused.settled, generation, head.now_us // 1000)
    if batch.changes:  # what they move may add up to nothing
        put.bought = {buyer: units for buyer, units in bought.items() if units}
    if put.entries:
        put.head |= {"last": put.entries[-1].entry, "tag": values.tag_of(values.last_secret(put.entries))}
    return put


def with_lines(batches: Mapping[str, Batch], numbers: Mapping[str, Sequence[str]]) -> dict[str, Batch]:
    """The batches, in which each new basket knows the numbers of its lines, and each line its order."""
    places = {
        (begun.basket, sku): number
        for sku, batch in batches.items()
        for begun, number in zip(batch.begun, numbers[sku][len(batch.changes) :], strict=False)
        if begun.basket is not None
    }
    if not places:
        return dict(batches)
    first = {begun.basket: sku for sku, batch in batches.items() for begun in batch.begun if begun.record.lines}

    def named(begun: Begun) -> Begun:
        record, basket = begun.record, begun.basket
        if basket is None:
            return begun
        lines = tuple(one._replace(number=places[basket, one.sku]) for one in record.lines)
        of = "" if lines else OrderId(first[basket], places[basket, first[basket]]).name
        return replace(begun, record=record._replace(lines=lines, part_of=of))

    return {sku: replace(batch, begun=[named(one) for one in batch.begun]) for sku, batch in batches.items()}


def _put_records(put: Put, sku: str, batch: Batch, number: Iterator[str], *, instance: str, token: int) -> None:
    """The orders of a batch that have records: those that change, then those that begin."""
    head, moved, bought = put.found.head, list[Units](), put.bought
    at = head.now_us / 1_000_000

    def append(kind: EventKind, record: Record, event: int, units: Units, key: str | None, facts: Facts) -> str:
        entry = next(number)
        order = OrderId(sku, record.number or entry, record.secret)
        own = (record.quantity, record.buyer, key, at, instance, token, batch.batch_id, head.epoch)
        put.entries.append(Entry(entry, kind, order, event, *own, units, facts))
        moved.append(units)
        return entry

    for change in batch.changes:
        after = change.after
        entry = append(change.kind, after, after.events, change.units, None, change.facts)
        _keep_change(put, change, entry)
        if after.buyer is not None:
            bought[after.buyer] = bought.get(after.buyer, 0) + change.bought
        if change.payment is not None:
            put.payments[change.payment] = after.number
        if line := note_of(sku, change):
            put.notes.append(line)
    for begun in batch.begun:
        record = begun.record
        entry = append(EventKind(record.state), record, 1, record.units, begun.key, record.facts)
        put.records[entry] = values.of_record("", record), record
        if record.buyer is not None:
            bought[record.buyer] = bought.get(record.buyer, 0) + record.quantity
            if record.state in OPEN and not record.part_of:
                put.holders[record.buyer] = entry
        if begun.key is not None:
            order = OrderId(sku, entry, record.secret)
            settled = Settled(record.state, record.quantity, record.buyer, order, begun.said)
            put.keys[begun.key] = values.of_key(settled)
    put.units = sum_of(moved)
    if batch.changes:
        put.head["changes"] = head.changes + len(batch.changes)
    joined = sum(one.record.state is OrderState.WAITING for one in batch.begun)
    left = sum(_waits(one.before) and not _waits(one.after) for one in batch.changes)
    if joined != left:
        put.head["waiting"] = max(0, head.waiting + joined - left)


def _keep_change(put: Put, change: OrderChange, entry: str) -> None:
    """Keep an order's record after a change; if it isn't held any more, its buyer's last hold is forgotten."""
    after, number = change.after, change.after.number
    before = put.records[number][0] if number in put.records else put.found.records.get(number)
    put.records[number] = values.of_record(f"{values.entries_in(before)}{entry}\n", after), after
    over = after.state not in OPEN
    if over and after.buyer is not None and put.found.holders.get(after.buyer) == number:
        put.holders[after.buyer] = None


def _waits(record: Record) -> bool:
    return record.state is OrderState.WAITING


def sum_of(moved: Sequence[Units]) -> Units:
    """The units that some events move together."""
    stock = held = lucky = 0
    for one in moved:
        stock, held, lucky = stock + one.stock, held + one.held, lucky + one.lucky
    return Units(stock, held, lucky)


def numbers_of(put: Put) -> Iterator[str]:
    """The numbers of a put's new orders, in the order of the journal."""
    return (one.entry for one in put.entries if values.begins(one))

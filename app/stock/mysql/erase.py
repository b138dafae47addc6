"""A buyer's name is removed from an item's tables in MySQL or MariaDB, while it is being sold.

No index has the names of buyers, as each would cost every sale. So what has the name is looked up in pages, without the
item's lock, and changed under it by its primary keys; what has come meanwhile is behind the last entry that was read.
"""

# ruff: noqa: S608 - they are made of constants; all else is an argument

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

from app.orders import ERASED
from app.stock.mysql.tables import note, places, plain, rows_of
from fencelock.mysql import Call

Run = Callable[[Callable[[Call], Awaitable[Any]]], Awaitable[Any]]

_PAGE: Final = 5000  # rows that a statement looks at
_AT_ONCE: Final = 500  # entries that are changed under a grant
_JOURNAL: Final = {"seckill_orders": "entry", "seckill_events": "order_entry"}


class Place(NamedTuple):
    """An entry of the journal that has the name: its table, its sale and its number, and the number of its order."""

    table: str
    sale: int
    entry: int
    order: int


async def erase(sku: str, buyer: str, read: Run, change: Run, by: str) -> int:
    """See `StockStore.erase`. `read` runs statements, and `change` does in a transaction under the item's lock."""
    found: list[Place] = []
    if sales := await read(partial(_sales_with, sku=sku, buyer=buyer)):
        ends = dict.fromkeys(product(sales, _JOURNAL), 0)
        for of in ends:
            found += await _find_entries(read, sku, buyer, of, ends)
        for first in range(0, len(found), _AT_ONCE):
            await change(partial(_replace_in_journal, sku=sku, buyer=buyer, found=found[first : first + _AT_ONCE]))

        async def finish(call: Call) -> list[Place]:
            late: list[Place] = []
            for of in ends:
                late += await _find_entries(lambda work: work(call), sku, buyer, of, ends)
            await _replace_in_journal(call, sku, buyer, late)
            await _replace_in_counts(call, sku, buyer, sales)
            await note(call, sku, by, "erase a buyer", {}, {"erased": len(found) + len(late)})
            return late

        found += await change(finish)
    # Behind the rest, as a key is only ever written together with an entry, or with a refusal, that has the name.
    after: tuple[int, str] | None = (0, "")
    while after is not None:
        after = await read(partial(_replace_in_keys, sku=sku, buyer=buyer, after=after))
    return len(found)


async def _sales_with(call: Call, sku: str, buyer: str) -> list[int]:
    """The sales in which a buyer has had units; where there are none, no entry and no record has the name."""
    sales = [sale for (sale,) in await rows_of(call, "SELECT DISTINCT sale FROM seckill_buyers WHERE sku = %s", (sku,))]
    if not sales:
        return []
    which = f"sku = %s AND sale IN ({places(sales)}) AND name = %s"
    return [
        sale for (sale,) in await rows_of(call, f"SELECT sale FROM seckill_buyers WHERE {which}", (sku, *sales, buyer))
    ]


async def _find_entries(
    read: Run, sku: str, buyer: str, of: tuple[int, str], ends: dict[tuple[int, str], int]
) -> list[Place]:
    """Find the name in the entries of a sale in a table, behind that of `ends`, where the last one is noted."""
    sale, table = of
    found: list[Place] = []
    rows: Sequence[Any] = (None,) * _PAGE
    while len(rows) == _PAGE:
        sql = (
            f"SELECT entry, {_JOURNAL[table]}, buyer <=> %s FROM {table} "
            f"WHERE sku = %s AND sale = %s AND entry > %s ORDER BY entry LIMIT {_PAGE}"
        )
        rows = await read(partial(rows_of, sql=sql, args=(buyer, sku, sale, ends[of])))
        found += [Place(table, sale, entry, order) for entry, order, has in rows if has]
        ends[of] = rows[-1][0] if rows else ends[of]
    return found


async def _replace_in_journal(call: Call, sku: str, buyer: str, found: Sequence[Place]) -> None:
    """Put `ERASED` in the name's place in some entries, and in the records of their orders, within a transaction."""
    # In JSON's texts quotes are escaped, so this is found nowhere else.
    was, now = (f'"buyer":{json.dumps(name, ensure_ascii=False)}' for name in (buyer, ERASED))
    for sale in {one.sale for one in found}:
        for table in _JOURNAL:
            if entries := [one.entry for one in found if (one.table, one.sale) == (table, sale)]:
                which = f"sku = %s AND sale = %s AND entry IN ({places(entries)}) AND buyer = %s"
                await call.run(f"UPDATE {table} SET buyer = %s WHERE {which}", (ERASED, sku, sale, *entries, buyer))
        numbers = list({one.order for one in found if one.sale == sale})
        await call.run(
            "UPDATE seckill_records SET record = REPLACE(record, %s, %s) "
            f"WHERE sku = %s AND sale = %s AND number IN ({places(numbers)}) AND INSTR(record, BINARY %s) > 0",
            (was, now, sku, sale, *numbers, was),
        )


async def _replace_in_counts(call: Call, sku: str, buyer: str, sales: Sequence[int]) -> None:
    """Put `ERASED` in the name's place in what buyers have in some sales, within a transaction."""
    for sale in sales:
        await call.run(
            "INSERT INTO seckill_buyers (sku, sale, name, units) SELECT sku, sale, %s, units FROM "
            "(SELECT * FROM seckill_buyers WHERE sku = %s AND sale = %s AND name = %s) AS own "
            "ON DUPLICATE KEY UPDATE units = seckill_buyers.units + VALUES(units)",
            (ERASED, sku, sale, buyer),
        )
        await call.run("DELETE FROM seckill_buyers WHERE sku = %s AND sale = %s AND name = %s", (sku, sale, buyer))
        await call.run("DELETE FROM seckill_holders WHERE sku = %s AND sale = %s AND buyer = %s", (sku, sale, buyer))


async def _replace_in_keys(call: Call, sku: str, buyer: str, after: tuple[int, str]) -> tuple[int, str] | None:
    """Put `ERASED` in its place in a page of the idempotency keys, behind a sale's key: the last one if there is more.

    Nothing is decided by the name of a key's buyer but that a request is another one, so this needs no lock.
    """
    rows = await rows_of(
        call,
        "SELECT sale, name, buyer <=> %s FROM seckill_keys WHERE sku = %s AND "
        f"(sale > %s OR (sale = %s AND name > %s)) ORDER BY sale, name LIMIT {_PAGE}",
        (buyer, sku, after[0], *after),
    )
    for sale, name, has in rows:
        if has:
            which = "sku = %s AND sale = %s AND name = %s"
            await call.run(f"UPDATE seckill_keys SET buyer = %s WHERE {which}", (ERASED, sku, sale, plain(name)))
    return (rows[-1][0], plain(rows[-1][1])) if len(rows) == _PAGE else None

"""A buyer's name is removed from an item's tables in MySQL or MariaDB."""

# ruff: noqa: S608 - they are made of constants; all else is an argument

import json
from typing import Final

from app.orders import ERASED
from fencelock.clients.mysql import Call

_COLUMNS: Final = {
    "seckill_buyers": "name",
    "seckill_keys": "buyer",
    "seckill_orders": "buyer",
    "seckill_events": "buyer",
}


async def has_name(call: Call, sku: str, buyer: str) -> bool:
    """Return whether an item's tables have a buyer's name."""
    for table, column in _COLUMNS.items():
        if (await call.run(f"SELECT 1 FROM {table} WHERE sku = %s AND {column} = %s LIMIT 1", (sku, buyer))).rows:
            return True
    return False


async def replace_name(call: Call, sku: str, buyer: str) -> int:
    """Put `ERASED` in its place, within a transaction. Returns how many entries of the journal had it."""
    found = 0
    for table in ("seckill_orders", "seckill_events"):
        sql = f"UPDATE {table} SET buyer = %s WHERE sku = %s AND buyer = %s"
        found += (await call.run(sql, (ERASED, sku, buyer))).matched
    await call.run("UPDATE seckill_keys SET buyer = %s WHERE sku = %s AND buyer = %s", (ERASED, sku, buyer))
    await call.run(
        "INSERT INTO seckill_buyers (sku, sale, name, units) "
        "SELECT sku, sale, %s, units FROM (SELECT * FROM seckill_buyers WHERE sku = %s AND name = %s) AS own "
        "ON DUPLICATE KEY UPDATE units = seckill_buyers.units + VALUES(units)",
        (ERASED, sku, buyer),
    )
    await call.run("DELETE FROM seckill_buyers WHERE sku = %s AND name = %s", (sku, buyer))
    await call.run("DELETE FROM seckill_holders WHERE sku = %s AND buyer = %s", (sku, buyer))
    # In JSON's texts quotes are escaped, so this is found nowhere else.
    was, now = (f'"buyer":{json.dumps(name, ensure_ascii=False)}' for name in (buyer, ERASED))
    await call.run(
        "UPDATE seckill_records SET record = REPLACE(record, %s, %s) WHERE sku = %s AND INSTR(record, BINARY %s) > 0",
        (was, now, sku, was),
    )
    return found

"""The stock of the items on sale: who may read and write it, guarded by fencing tokens."""

from app.stock.store import (
    DEFAULT_SKU,
    SKU_PATTERN,
    Ask,
    Batch,
    Fence,
    Level,
    Order,
    Refused,
    Settled,
    Snapshot,
    Sold,
    StockStore,
    foreign,
)

__all__ = [
    "DEFAULT_SKU",
    "SKU_PATTERN",
    "Ask",
    "Batch",
    "Fence",
    "Level",
    "Order",
    "Refused",
    "Settled",
    "Snapshot",
    "Sold",
    "StockStore",
    "foreign",
]

"""The stock of the items on sale: guarded by fencing tokens."""

from app.stock.store import (
    DEFAULT_SKU,
    NO_TERMS,
    SKU_PATTERN,
    Ask,
    Batch,
    Fence,
    Level,
    Order,
    Refused,
    Restock,
    Settled,
    Snapshot,
    Sold,
    StockStore,
    Terms,
    TermsChange,
)

__all__ = [
    "DEFAULT_SKU",
    "NO_TERMS",
    "SKU_PATTERN",
    "Ask",
    "Batch",
    "Fence",
    "Level",
    "Order",
    "Refused",
    "Restock",
    "Settled",
    "Snapshot",
    "Sold",
    "StockStore",
    "Terms",
    "TermsChange",
]

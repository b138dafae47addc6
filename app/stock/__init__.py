"""The stock of the items on sale, guarded by fencing tokens: what a store keeps, and the stores."""

from app.stock.store import (
    DEFAULT_RECEIVER,
    Batch,
    Begun,
    Change,
    Fence,
    Level,
    Outbox,
    Refused,
    Restock,
    Sold,
    StockStore,
)

__all__ = [
    "DEFAULT_RECEIVER",
    "Batch",
    "Begun",
    "Change",
    "Fence",
    "Level",
    "Outbox",
    "Refused",
    "Restock",
    "Sold",
    "StockStore",
]

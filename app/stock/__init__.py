"""The stock of the items on sale: its store, whose rules are here once, and the storages that keep named things.

`store` is for the rest of the house; `puts`, `restock`, `outbox`, `values` and `log` are its rules and its texts;
`storage` is the interface of the two storages, `redis` and `sql`.
"""

from app.stock.batch import LAYOUT, Batch, Begun, Fence, Refused, Sold
from app.stock.level import Level
from app.stock.log import Change, LogNote
from app.stock.outbox import DEFAULT_RECEIVER, Outbox
from app.stock.restock import Restock
from app.stock.store import StockStore

__all__ = [
    "DEFAULT_RECEIVER",
    "LAYOUT",
    "Batch",
    "Begun",
    "Change",
    "Fence",
    "Level",
    "LogNote",
    "Outbox",
    "Refused",
    "Restock",
    "Sold",
    "StockStore",
]

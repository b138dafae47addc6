"""The stock of the items on sale, guarded by fencing tokens: what a store keeps, and the stores."""

from app.stock.store import Batch, Begun, Change, Fence, Level, Outbox, Refused, Restock, Sold, StockStore

__all__ = ["Batch", "Begun", "Change", "Fence", "Level", "Outbox", "Refused", "Restock", "Sold", "StockStore"]

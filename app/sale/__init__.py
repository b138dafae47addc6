"""The flash sale: the queue of the commands, the worker that serves it under the lock, and the search for orders."""

from app.sale.find import ATTENTION, EVERYTHING, FoundOrders, Wanted, WantedState
from app.sale.rules import Rules
from app.sale.shop import Shop

__all__ = ["ATTENTION", "EVERYTHING", "FoundOrders", "Rules", "Shop", "Wanted", "WantedState"]

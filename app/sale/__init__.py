"""The flash sale: the pure decision about it, the queue of the buyers, and the worker that serves it."""

from app.sale.admin import Admin
from app.sale.decision import Answer, Outcome, Purchase, decide
from app.sale.rules import Rules
from app.sale.shop import Shop

__all__ = ["Admin", "Answer", "Outcome", "Purchase", "Rules", "Shop", "decide"]

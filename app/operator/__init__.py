"""Everything an operator can do: stock, orders, and whether the sale can go on."""

from app.operator.orders import OrderAdmin
from app.operator.readiness import Readiness
from app.operator.stock import StockAdmin

__all__ = ["OrderAdmin", "Readiness", "StockAdmin"]

"""The cashier gives back the money that is owed: one elected instance asks the payment provider, once for each refund.

`cashier` is the office and says how it works, `provider` is the interface of a provider, and `registry` has the
providers by their settings.
"""

from app.cashier.cashier import Cashier
from app.cashier.provider import Provider
from app.cashier.registry import connect

__all__ = ["Cashier", "Provider", "connect"]

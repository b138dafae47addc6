"""The cashier gives back what is owed: the elected instance asks the payment provider for each refund, once.

    owed --request--> requested --the provider has done it--> refunded
                        |   ^
        can't be done   |   | an operator wants it tried again
                        v   |
                       failed

A request is an event in the order's journal before the provider is asked, and its key at the provider is made of the
order and the number of that event. So a cashier that takes over asks for the same thing with the same key, which is one
refund for the provider, however often it is asked. What the provider refuses waits for an operator, with the reason.
`cashier` is the office, `provider` what it needs of a provider, and `registry` knows which there are.
"""

from app.cashier.cashier import Cashier
from app.cashier.provider import Provider
from app.cashier.registry import connect

__all__ = ["Cashier", "Provider", "connect"]

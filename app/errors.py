"""All errors of the service, in one tree. HTTP statuses are assigned in `app.web.problems`.

SeckillError
├── ConfigurationError          a setting is wrong, or two of them don't go together
├── StockError
│   ├── UnknownItem             no such item
│   ├── ItemNotPossible         this store can't hold an item of that name
│   ├── StockCorrupt            the data of an item is not in our format
│   ├── StockChanged            somebody changed the stock between our read and our write
│   ├── StockNotAsExpected      a change said what it expects to be there, and something else is
│   │   └── HasOrders           a change would forget orders that it doesn't know of
│   ├── NotInCatalogue          an item that is not there yet is not in the catalogue either
│   ├── HoursNotPossible        a sale would end before it starts
│   ├── GroupNotPossible        a limit would be over items that can't be decided together
│   ├── PriceNotPossible        a payment provider that is switched on can't charge such a price
│   ├── StockBehind             the store has lost orders that were there before
│   ├── FenceRefused            the store has seen a higher token than ours, or another batch
│   │   └── ForeignFence        the store is fenced by another lock system's tokens
│   └── StockUnavailable        the store can't be reached; a write may or may not have been applied
├── NoCallbacks                 payment providers report nothing here
├── NotSigned                   a callback that the payment provider has not signed, or too long ago
├── NoSuchOrder                 no order has the payment of a callback, or not yet
├── Overloaded                  too many requests that are no purchases are in hand
├── TooManyListeners            as many listen to changes already as this instance is willing to notify
└── SaleError
    ├── QueueFull               more buyers wait than this instance is willing to hold
    ├── Closing                 this instance is shutting down
    ├── ItemBlocked             nothing of the item can be sold until an operator acts
    ├── NotDecided              the request's deadline passed; nothing was done
    ├── OutcomeUnknown          the request's deadline passed while the store's answer was out
    ├── TurnedAway              a request that was refused before it was looked at
    │   ├── ForeignOrigin       a page of another site had a browser send it
    │   ├── Prefetched          a browser sent it before anybody asked for it
    │   ├── BuyerNotSigned      the shop in front has not signed the buyer
    ├── HoldsNotPossible        this store can't hold units for later
    ├── KeyReused               the idempotency key belongs to another request
    └── BuyerRequired           a limit per buyer is in force and the purchase names none

The errors of locks are `fencelock.LockError` and below; they are in no tree of ours.
"""

from typing import Final

from fencelock import FencelockError


class SeckillError(Exception):
    """The base of all errors that a caller of this service may expect."""


class ConfigurationError(SeckillError):
    """A setting is wrong, or two of them don't go together."""


class StockError(SeckillError):
    """An error of the store."""


class UnknownItem(StockError):
    """No item of that name has a stock."""


class ItemNotPossible(StockError):
    """This store can't hold an item of that name."""


class StockCorrupt(StockError):
    """The data of an item is not in our format, such as a stock that is no number; nothing was written."""


class StockChanged(StockError):
    """Somebody changed the stock between our read and our write; nothing was written."""


class StockNotAsExpected(StockError):
    """A restock expected another stock than there is; nothing was written."""


class HasOrders(StockNotAsExpected):
    """A new sale, or a removal, would forget orders that it doesn't know of; nothing was written."""

    def __init__(self, sku: str, orders: int) -> None:
        super().__init__(
            f"{orders} {'order' if orders == 1 else 'orders'} of {sku!r} would be forgotten; nothing was changed"
        )
        self.orders = orders


class NotInCatalogue(StockError):
    """An item that is not there yet is not in the catalogue either; nothing was written."""


class HoursNotPossible(StockError):
    """An item's sale would end before it starts, or in a year that can't be stored; nothing was written."""


class GroupNotPossible(StockError):
    """A limit would be over items that can't be decided together; the text says why."""


class PriceNotPossible(StockError):
    """A payment provider that is switched on can't charge such a price; nothing was written."""


class StockBehind(StockError):
    """The store lacks an order that it had acknowledged: it was restored, or failed over to a late replica."""


class FenceRefused(StockError):
    """The store has seen a higher token than ours, or has prepared another batch; nothing was written."""


class ForeignFence(FenceRefused):
    """The store is fenced by the tokens of another lock system; nothing was written."""


class StockUnavailable(StockError):
    """The store can't be reached within the call's deadline; a write may or may not have been applied.

    `untouched`: the write was not applied; no connection could be made, or the store refused before it did anything.
    """

    def __init__(self, text: str, *, untouched: bool = False) -> None:
        super().__init__(text)
        self.untouched = untouched


class NoCallbacks(SeckillError):
    """Payment providers report nothing here."""


class NotSigned(SeckillError):
    """A callback that the payment provider has not signed, or too long ago."""


class NoSuchOrder(SeckillError):
    """No order has the payment of a callback, or not yet; nothing was done."""

    retry_after_s = 5


class Overloaded(SeckillError):
    """This instance already has its greatest number of requests beside purchases in progress."""


class TooManyListeners(SeckillError):
    """This instance already notifies its greatest number of listeners."""


class ProviderUnavailable(SeckillError):
    """The payment provider could not be asked; nothing was done."""


class CursorAhead(SeckillError):
    """Events that were read are in the journal no more: the store is older than it was.

    `next`: the cursor to go on with, at the first event of the affected items.
    """

    def __init__(self, message: str, next_: str = "") -> None:
        super().__init__(message)
        self.next = next_


class SaleError(SeckillError):
    """A request of a buyer, or about an order, that could not be processed."""


class QueueFull(SaleError):
    """More buyers wait than this instance is willing to hold; nothing was done."""


class Closing(SaleError):
    """This instance is shutting down; nothing was done."""


class ItemBlocked(SaleError):
    """Nothing of the item can be sold until an operator acts; nothing was done."""

    retry_after_s = 5


class NotDecided(SaleError):
    """The request's deadline passed before it was its turn; nothing was done."""


class OutcomeUnknown(SaleError):
    """The request's deadline passed while the store's answer was out; it may count."""


class TurnedAway(SaleError):
    """A request that was refused unread; nothing was done."""


class ForeignOrigin(TurnedAway):
    """A page of another site had a browser send it; nothing was done."""


class Prefetched(TurnedAway):
    """A browser sent it by itself, before anybody asked for it; nothing was done."""


class BuyerNotSigned(TurnedAway):
    """The buyer is not one that the shop in front has signed; nothing was done."""


class HoldsNotPossible(SaleError):
    """This store can't hold units for later; nothing was done."""


class KeyReused(SaleError):
    """The idempotency key belongs to another request."""


class AmountRequired(SaleError):
    """A provider reports a payment for an item with a price, and no amount; nothing was done."""


class BuyerRequired(SaleError):
    """A limit per buyer is in force and the purchase names no buyer."""


class BasketNotPossible(SaleError):
    """The items of a basket can't be held together; the text says why."""


EXPECTED: Final = (SeckillError, FencelockError)  # the errors that a sale may raise: `except EXPECTED as error:`

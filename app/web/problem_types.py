"""The types of problems, and their meaning for the caller. docs/errors.md is made from it."""

from enum import StrEnum
from typing import Final, NamedTuple

import fencelock as of_locks
from app import errors
from fencelock import FencelockError, LockError

URN: Final = "urn:seckill:"


class Effect(StrEnum):
    """The effect of a request that was answered with an error; a request that had its effect is answered with 200."""

    NOTHING = "nothing"  # it has changed nothing, and never will
    UNKNOWN = "unknown"  # it may have been done; the same request with the same key tells


class Kind(NamedTuple):
    """A kind of problem."""

    status: int
    title: str  # never changes for its type
    effect: Effect = Effect.NOTHING
    field: str | None = None  # the wrong field of the request
    when: str = ""  # when it is answered, in the place of a docstring
    again: bool = False  # the same request may get another answer later

    @property
    def may_come_again(self) -> bool:
        """Whether it makes sense to send the same request again."""
        return self.again or self.status == 503


_LOCK: Final = Kind(503, "Lock not available")  # before a grant nothing is written
_LOST: Final = _LOCK._replace(effect=Effect.UNKNOWN)  # the lock was perhaps lost only at its release, after the write

# By the most special class that matches.
KINDS: Final[dict[type[Exception], Kind]] = {
    errors.UnknownItem: Kind(404, "No such item", field="sku"),
    errors.ItemNotPossible: Kind(400, "Not an item that this store can hold", field="sku"),
    errors.BuyerRequired: Kind(400, "Buyer required", field="buyer"),
    errors.HoldsNotPossible: Kind(409, "Units can't be held"),
    errors.BasketNotPossible: Kind(422, "Basket not possible", field="items"),
    errors.AmountRequired: Kind(422, "Amount required", field="amount"),
    errors.KeyReused: Kind(422, "Idempotency key belongs to another request", field="Idempotency-Key"),
    errors.ForeignOrigin: Kind(403, "Not from this site"),
    errors.Prefetched: Kind(403, "Not asked for by a buyer"),
    errors.BuyerNotSigned: Kind(403, "Not a buyer of this shop", field="buyer"),
    errors.QueueFull: Kind(503, "Too many buyers at the moment"),
    errors.Closing: Kind(503, "Shutting down"),
    errors.ItemBlocked: Kind(503, "Item can't be sold at the moment"),
    errors.NotDecided: Kind(503, "Not decided in time"),
    errors.OutcomeUnknown: Kind(503, "Outcome unknown", Effect.UNKNOWN),
    errors.StockCorrupt: Kind(503, "Stock is not usable"),
    errors.StockChanged: Kind(503, "Stock not available"),
    errors.FenceRefused: Kind(503, "Refused by the stock's fence"),
    errors.ForeignFence: Kind(503, "Refused by the stock's fence"),
    errors.StockBehind: Kind(503, "Stock is being looked into"),
    errors.StockUnavailable: Kind(503, "Stock not available", Effect.UNKNOWN),
    errors.StockError: Kind(503, "Stock not available", Effect.UNKNOWN),
    **dict.fromkeys((of_locks.LockTimeout, of_locks.LockCancelled, of_locks.NoLock), _LOCK),
    **dict.fromkeys((of_locks.LockLost, of_locks.LockNotHeld, of_locks.LockUnavailable, LockError), _LOST),
    errors.HoursNotPossible: Kind(422, "Not possible hours", field="ends_at"),
    errors.GroupNotPossible: Kind(422, "Not a possible limit", field="limit_group"),
    errors.PriceNotPossible: Kind(422, "Not a possible price", field="price"),
    errors.HasOrders: Kind(412, "Orders would be forgotten"),
    errors.NotInCatalogue: Kind(422, "Not in the catalogue", field="sku"),
    errors.StockNotAsExpected: Kind(412, "The stock is not as expected"),
    errors.NoCallbacks: Kind(403, "No callbacks"),
    errors.NotSigned: Kind(400, "Not signed by the payment provider"),
    errors.NoSuchOrder: Kind(409, "No such order", again=True),
    errors.ProviderUnavailable: Kind(503, "The payment provider can't be asked"),
    errors.CursorAhead: Kind(409, "The cursor is ahead of the journal"),
    errors.TooManyListeners: Kind(503, "Too many listeners at the moment"),
    errors.Overloaded: Kind(503, "Too many requests at the moment"),
    errors.SeckillError: Kind(503, "Not available", Effect.UNKNOWN),
    FencelockError: Kind(503, "Not available", Effect.UNKNOWN),
}
# Of these no request has one of its own: they stand for what is below them, or end the process at its start.
GENERAL: Final = (
    *(errors.SeckillError, errors.StockError, errors.SaleError, errors.TurnedAway, errors.ConfigurationError),
    *(FencelockError, LockError, of_locks.ConfigurationError),
)

# Problems that are no error of ours, by the name of their type. Of HTTP's own the title may say more.
OTHERS: Final = {
    "invalid-request": Kind(422, "Invalid request", when="A field is not valid: `errors` names each."),
    "internal-error": Kind(500, "Internal error", Effect.UNKNOWN, when="An error of ours; it was logged.", again=True),
    "http-401": Kind(401, "Unauthorized", when="The bearer token of the operator or the shop is missing or wrong."),
    "http-403": Kind(403, "Forbidden", when="It is switched off, or a page has an old session: the title says which."),
    "http-404": Kind(404, "Not Found", when="No such order, hold or path; or a path that only the other port has."),
    "http-405": Kind(405, "Method Not Allowed", when="The path has other methods: `Allow` names them."),
    "http-408": Kind(408, "Request Timeout", when="The body did not arrive in time.", again=True),
    "http-413": Kind(413, "Content Too Large", when="The body is too large."),
    # Problems of a connection before there is a request.
    "bad-request": Kind(400, "Bad Request", when="It is no request of HTTP/1.1."),
    "request-timeout": Kind(408, "Request Timeout", when="The request's head did not arrive in time.", again=True),
    "request-header-fields-too-large": Kind(431, "Request Header Fields Too Large", when="The head is too large."),
    "service-unavailable": Kind(503, "Service Unavailable", when="The instance has too many connections."),
    "not-implemented": Kind(501, "Not Implemented", when="The body has another transfer coding than `chunked`."),
    "http-version-not-supported": Kind(505, "HTTP Version Not Supported", when="It is another version of HTTP."),
}


def class_of(error: Exception) -> type[Exception]:
    """The class of an error of ours that clients know: they don't know the subclasses of a lock system."""
    return next(one for one in type(error).__mro__ if one in KINDS)


def effect_of(error: Exception) -> Effect:
    """The effect of the request that got this error: nothing, if the store did not get it."""
    return Effect.NOTHING if getattr(error, "untouched", False) else KINDS[class_of(error)].effect


def name_of(error: type[Exception]) -> str:
    """The name of an error's type, such as queue-full."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in error.__name__).strip("-")


def types() -> dict[str, Kind]:
    """Each type of problem by its name, and when it is answered."""
    ours = {name_of(one): kind._replace(when=_when(one)) for one, kind in KINDS.items() if one not in GENERAL}
    return dict(sorted((ours | OTHERS).items()))


def _when(error: type[Exception]) -> str:
    """The first sentence of its docstring, without the effect on the request."""
    said = " ".join((error.__doc__ or "").partition("\n\n")[0].split())
    return said.partition("; nothing was ")[0].partition(". ")[0].rstrip(".") + "."

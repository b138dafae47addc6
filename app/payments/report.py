"""Reports of payment providers, and the interface of the readers of their notices."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from app.orders import CURRENCY_PATTERN
from app.payments.units import MinorUnits

Amount = Annotated[int, Field(ge=0, le=10**15, strict=True)]


class Kind(StrEnum):
    """The kind of a notice of a payment."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # or was not made in time; the buyer may have begun another one
    CANCELED = "canceled"  # likewise
    REFUNDED = "refunded"
    REFUND_FAILED = "refund_failed"  # a refund that was reported before: the money is here again
    DISPUTED = "disputed"  # the buyer wants it back through their bank
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"  # the bank has taken it back


class Report(BaseModel):
    """A provider's notice of a payment. Amounts are in the minor unit of `currency` by ISO 4217."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    payment_ref: str = Field(min_length=1, max_length=200)  # the payment's one name, whatever the notice is about
    message: str = Field(max_length=200)  # the notice's own name, the same each time that it is sent
    hold: str | None = None  # as the shop gave it to the provider, if the notice repeats it; it may be anything
    # charged, given back by this refund, or disputed; None: not reported, and of a refund all of the payment
    amount: Amount | None = None
    currency: Annotated[str | None, Field(pattern=CURRENCY_PATTERN)] = None
    subtotal: Amount | None = None  # the goods' part of it, without tax, shipping and discounts; None: all
    so_far: Amount | None = None  # of a refund: the sum of all refunds of the payment until `at`, in place of `amount`
    whole: bool = False  # all of the payment was given back, in whichever currency
    # the provider's own name of the refund or dispute
    refund_id: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    # ours, of a refund that the cashier has asked for
    refund_name: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    paid_at: float | None = None  # by the provider's clock, in seconds since 1970
    at: float | None = None  # when it happened, likewise
    why: str = Field("", max_length=200)  # the reason of a dispute, or of a refund that failed
    stranger: bool = False  # this is likely about another product on the same account


class Reader(ABC):
    """Reads the notices of one provider.

    `taken`: the body of the answer by which this provider knows that a notice was taken; None: it looks at the status,
    which is 200. `units`: its minor units, if they differ from ISO 4217. `other_names`: the beginnings of names that
    are no payment's, and the kinds of objects that have them, for the error that a shop gets if it confirms with one.
    """

    taken: ClassVar[str | None] = None
    units: ClassVar[MinorUnits | None] = None
    other_names: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def __init__(self, secrets: Sequence[str]) -> None:
        """Make a reader that accepts a signature by any of these secrets. Raises `ConfigurationError`."""

    @abstractmethod
    def read(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        """Read a notice; None if it says nothing about a payment of a hold. Names of headers are in small letters.

        Raises `NotSigned` if this provider has not signed it, and `ValueError` if it can't be understood: the answer is
        422, with the error's text.
        """

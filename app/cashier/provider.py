"""The cashier's interface to a payment provider."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from app.orders import OrderId
from app.payments import Report


class RefundWish(NamedTuple):
    """A refund to make. The buyer is not in it: a provider knows its payers."""

    order: OrderId
    name: str  # random, made when the refund became due, so that no restored store gives it to another one
    payment_ref: str
    amount: int | None  # in the minor unit of `currency`; None: all that is left of the payment
    currency: str | None
    shop_ref: str | None = None

    @property
    def key(self) -> str:
        """The idempotency key at the provider: the same for each try."""
        return f"refund-{self.name}"


class Became(StrEnum):
    """What became of a try."""

    DONE = "done"
    ACCEPTED = "accepted"  # a callback will tell
    REFUSED = "refused"  # and would refuse again: an operator has to look
    UNKNOWN = "unknown"  # no answer, or a request to try again, or to look at the refunds that were made


class Result(NamedTuple):
    """The result of a try."""

    became: Became
    why: str = ""  # the reason, for people
    closed: bool = False  # no other refund would get through either
    refund_id: str | None = None  # the provider's own; None: not reported
    amount: int | None = None  # the amount that was given back, in the minor unit of ISO 4217; None: not reported


class Unanswered(Exception):
    """The provider can't list the refunds that it has made.

    `result`: of the question for its refunds; no refund may be requested.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result.why)
        self.result = result


class Provider(Protocol):
    """Gives money back. `where`: its address, without secrets."""

    where: str

    async def refund(self, wish: RefundWish) -> Result:
        """Ask for a refund. Calls with one key are one refund, also if one was cancelled, or its answer was lost.

        A provider forgets its keys after a day or so: ask `made` before the first call whether the refund exists.
        """

    async def made(self, payment_ref: str) -> list[Report] | None:
        """All refunds of a payment, as callbacks report them, failed ones too; None: this provider can't tell.

        Raises `Unanswered`.
        """

    async def close(self) -> None:
        """Close all connections."""

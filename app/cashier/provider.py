"""What the cashier needs of a payment provider."""

import hashlib
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from app.orders import OrderId
from app.orders.record import Request

_KEY_DIGITS: Final = 32


class Wish(NamedTuple):
    """A refund to make. `buyer` is not told: a provider knows its payers."""

    order: OrderId
    request: Request
    shop_ref: str | None = None

    @property
    def key(self) -> str:
        """The idempotency key at the provider: the same for each try, and another one after the refund has failed."""
        said = f"{self.order}|{self.request.event}"
        return f"refund-{hashlib.sha256(said.encode()).hexdigest()[:_KEY_DIGITS]}"


class Became(StrEnum):
    """What became of a try."""

    DONE = "done"  # also if somebody has given it back before
    ACCEPTED = "accepted"  # a callback will tell
    REFUSED = "refused"  # and will be again: an operator has to look
    UNKNOWN = "unknown"  # no answer, or one that says to come again


class Result(NamedTuple):
    """The result of a try. `why`: a reason, for people; `closed`: no other refund would get through either."""

    became: Became
    why: str = ""
    closed: bool = False


class Provider(Protocol):
    """Gives money back. `where`: its address, without secrets."""

    where: str

    async def refund(self, wish: Wish, *, again: bool) -> Result:
        """Ask for a refund. `again`: another cashier may have asked for it before, perhaps long ago.

        Any number of calls with one key are one refund, also if one was cancelled, or its answer was lost.
        """

    async def close(self) -> None:
        """Close all connections."""

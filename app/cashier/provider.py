"""What the cashier needs of a payment provider, and which there are."""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from app.errors import ConfigurationError
from app.orders import OrderId
from app.orders.record import Request

_KEY_DIGITS: Final = 32
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


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


def connect(url: str, *, secrets: Sequence[str], timeout_s: float) -> Provider:
    """The provider of a URL: `stripe://KEY`, or the shop's own address, which gets signed requests (`secrets`).

    Raises `ConfigurationError`.
    """
    parts = urlsplit(url)
    if parts.scheme == "stripe":
        from app.cashier.stripe import Stripe

        key, _, host = parts.netloc.rpartition("@") if "@" in parts.netloc else (parts.netloc, "", "")
        if not key.startswith(("sk_", "rk_")):
            raise ConfigurationError("stripe:// needs a secret or restricted key of Stripe's: stripe://sk_live_...")
        return Stripe(key, api=_api(host), timeout_s=timeout_s)
    if parts.scheme in ("http", "https") and parts.hostname:
        from app.cashier.shop import Shop

        if not secrets:
            raise ConfigurationError("a shop that makes its refunds itself needs SECKILL_WEBHOOK_SECRET, too")
        return Shop(url, secrets, timeout_s=timeout_s)
    raise ConfigurationError("not stripe://KEY, and not an address such as https://shop.example/refunds")


def _api(host: str) -> str | None:
    """The address of Stripe's API, if it is another one, as in a rehearsal."""
    if not host:
        return None
    scheme = "http" if urlsplit(f"//{host}").hostname in _LOOPBACK else "https"
    return f"{scheme}://{host}"

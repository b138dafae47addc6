"""The providers that give money back, by the URLs of `SECKILL_REFUNDS`."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from app.cashier.provider import Provider
from app.errors import ConfigurationError

_KEY: Final = re.compile(r"[sr]k_\w{8,}", re.ASCII)
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def connect(url: str, *, secrets: Sequence[str], timeout_s: float) -> Provider:
    """The provider of a URL: `stripe://KEY`, or the shop's own address, which gets signed requests (`secrets`).

    Raises `ConfigurationError`.
    """
    parts = urlsplit(url)
    if parts.scheme == "stripe":
        from app.cashier.stripe import Stripe

        key, _, host = parts.netloc.rpartition("@") if "@" in parts.netloc else (parts.netloc, "", "")
        if not _KEY.fullmatch(key):
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

"""The providers that give money back, by the URLs of `SECKILL_REFUNDS`."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from app.cashier.provider import Provider
from app.errors import ConfigurationError

_KEY: Final = re.compile(r"[sr]k_\w{8,}", re.ASCII)
_TEST_KEYS: Final = ("sk_test_", "rk_test_")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def connect(
    url: str, *, secrets: Sequence[str], timeout_s: float, test_mode: bool = False, **of_stripe: Any
) -> Provider:
    """The provider of a URL: `stripe://KEY`, or the shop's own address, which gets signed requests (`secrets`).

    `test_mode`: a test key of Stripe's will do; `of_stripe`: see there. Raises `ConfigurationError`.
    """
    parts = urlsplit(url)
    if parts.scheme == "stripe":
        from app.cashier.stripe import StripeRefunds

        key, _, host = parts.netloc.rpartition("@") if "@" in parts.netloc else (parts.netloc, "", "")
        if not _KEY.fullmatch(key):
            raise ConfigurationError("stripe:// needs a secret or restricted key of Stripe's: stripe://sk_live_...")
        api = _api(host)
        if key.startswith(_TEST_KEYS) and not test_mode and not (api or "").startswith("http:"):
            raise ConfigurationError("this test key gives back nobody's money; SECKILL_STRIPE_TEST_MODE=true takes it")
        return StripeRefunds(key, api=api, timeout_s=timeout_s, **of_stripe)
    if parts.scheme in ("http", "https") and parts.hostname:
        from app.cashier.shop import ShopRefunds

        if not secrets:
            raise ConfigurationError("a shop that makes its refunds itself needs SECKILL_WEBHOOK_SECRET, too")
        return ShopRefunds(url, secrets, timeout_s=timeout_s)
    raise ConfigurationError("not stripe://KEY, and not an address such as https://shop.example/refunds")


def _api(host: str) -> str | None:
    """The address of Stripe's API, if it isn't Stripe's own, as in a rehearsal."""
    if not host:
        return None
    scheme = "http" if urlsplit(f"//{host}").hostname in _LOOPBACK else "https"
    return f"{scheme}://{host}"

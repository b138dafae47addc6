"""Rate limits of a buyer, and of an address, counted in the store, and so by all instances together."""

import asyncio
import ipaddress
import logging
import time
from typing import Any, Final

from app.errors import ConfigurationError, TooOften
from app.stock import registry
from app.stock.redis.connect import connect

_log = logging.getLogger(__name__)

_PREFIX: Final = "seckill:rate"
_CONNECTIONS: Final = 16
_AWAY_S: Final = 1.0  # how long a store that did not answer is not asked again


def rate(text: str) -> Any:
    """Parse a rate such as `10/second` or `100 per 5 minutes`. Raises `ConfigurationError`."""
    try:
        from limits import parse
    except ImportError:
        raise ConfigurationError("rates need the limits library: pip install limits") from None
    try:
        return parse(text)
    except ValueError:
        raise ConfigurationError(f"not a rate: {text!r}; write `10/second` or `100 per 5 minutes`") from None


class Rates:
    """Limits the rate of purchases, by a sliding window that is approximated by two counters.

    If the store doesn't answer, nobody is refused here. `store`: its URL, of Redis or
    Valkey; `timeout_s`: of a call to it; `per_buyer`, `per_address`: rates, or None.
    """

    def __init__(self, store: str, *, timeout_s: float, per_buyer: str | None, per_address: str | None) -> None:
        self._per_buyer = rate(per_buyer) if per_buyer else None
        self._per_address = rate(per_address) if per_address else None
        if registry.system_of(store) != registry.REDIS:
            raise ConfigurationError("rates are counted in Redis or Valkey; this stock lies elsewhere")
        from limits.aio.storage import RedisStorage
        from limits.aio.strategies import SlidingWindowCounterRateLimiter

        # The same client as the stock's, for a server, a Sentinel set, or a Cluster.
        options = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "decode_responses": False}
        clients = self._clients = connect(store, options, _CONNECTIONS)

        class Storage(RedisStorage):
            def configure_bridge(self) -> None:
                bridge: Any = self.bridge
                bridge.storage = clients[0]
                bridge.connection_getter = lambda _: clients[0]

        storage = Storage("async+redis://", wrap_exceptions=True, implementation="redispy", key_prefix=_PREFIX)
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        # A further call would find no connection, and would not be counted.
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._away_until = 0.0

    async def check_address(self, address: str | None) -> None:
        """Count one try from an address. Raises `TooOften`."""
        if self._per_address is not None and address is not None:
            await self._hit(self._per_address, "address", _network(address))

    async def check_buyer(self, buyer: str | None) -> None:
        """Count one try of a buyer. Raises `TooOften`."""
        if self._per_buyer is not None and buyer is not None:
            await self._hit(self._per_buyer, "buyer", buyer)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()

    async def _hit(self, item: Any, of: str, name: str) -> None:
        from limits.errors import StorageError

        async with self._places:
            if time.monotonic() < self._away_until:
                return
            try:
                if await self._limiter.hit(item, of, name):
                    return
                stats = await self._limiter.get_window_stats(item, of, name)
            except StorageError as error:
                self._away_until = time.monotonic() + _AWAY_S
                _log.warning("nobody's rate is limited: the store does not count: %s", error.__cause__ or error)
                return
        retry_after_s = max(1, round(stats.reset_time - time.time() + 0.5))
        raise TooOften(
            f"this {of} has tried too often ({item}); nothing was sold",
            retry_after_s=retry_after_s,
            policy=(of, item.amount, item.get_expiry()),
        )


def _network(address: str) -> str:
    """The network that counts as one address: with IPv6 a customer has a whole /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped  # as a proxy writes it that listens to both
    return str(found)

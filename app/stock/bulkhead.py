"""A bulkhead limits the calls to a store at once; a store has one for the sale and one for readers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.errors import StockUnavailable


def halves(connections: int) -> tuple[int, int]:
    """Split a store's connections between the sale and the readers, who must not stop the sale."""
    for_sale = max(1, connections // 2)
    return for_sale, max(1, connections - for_sale)


class Bulkhead:
    """Admits `calls_max` calls at once, each on a connection of its own. It lives on one event loop."""

    def __init__(self, calls_max: int) -> None:
        self._free = asyncio.Semaphore(calls_max)

    @asynccontextmanager
    async def call(self, limit_s: float) -> AsyncIterator[None]:
        """Run the block as one call, which ends with `TimeoutError` after `limit_s` seconds.

        Raises `StockUnavailable` if the wait for other calls took all of that time; nothing was sent then.
        """
        until = asyncio.get_running_loop().time() + limit_s
        if self._free.locked():
            try:
                async with asyncio.timeout_at(until):
                    await self._free.acquire()
            except TimeoutError as error:
                why = f"no connection to the store was free within {limit_s:.2g} s"
                raise StockUnavailable(why, untouched=True) from error
        else:
            await self._free.acquire()  # at once
        try:
            async with asyncio.timeout_at(until):
                yield
        finally:
            self._free.release()

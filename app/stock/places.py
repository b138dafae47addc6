"""Places at a store: how many calls are out at once, and those of the sale apart from all others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from app.errors import StockUnavailable


class Places:
    """Half of a store's connections are for the sale, the others for whoever looks: readers don't stop the sale."""

    def __init__(self, connections: int) -> None:
        for_sale = max(1, connections // 2)
        self._sale = asyncio.Semaphore(for_sale)
        self._others = asyncio.Semaphore(max(1, connections - for_sale))

    @asynccontextmanager
    async def selling(self, timeout_s: float) -> AsyncIterator[None]:
        """Have one of the sale's places for this block, in which no call waits for another.

        Raises `StockUnavailable` if there is none within `timeout_s` seconds; nothing was sent then.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._sale.acquire()
        except TimeoutError as error:
            why = f"no connection to the store was free within {timeout_s:.2g} s"
            raise StockUnavailable(why, untouched=True) from error
        before = _has_place.set(self)
        try:
            yield
        finally:
            _has_place.reset(before)
            self._sale.release()

    @property
    def mine(self) -> bool:
        """Whether the caller is in a block that has a place."""
        return _has_place.get() is self

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """A place for one call: the block's that it is in, or the next of the others'."""
        if self.mine:
            yield
        else:
            async with self._others:
                yield


_has_place: ContextVar[Places | None] = ContextVar("seckill_has_place", default=None)

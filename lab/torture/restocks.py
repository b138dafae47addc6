"""The operator, who adds units in mid-sale."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from app.errors import EXPECTED, StockError, StockUnavailable
from app.wiring import Sale
from lab.torture.history import Item, Restock

_EACH_S: Final = 4.0  # on average
_LOOK_AGAIN_S: Final = 0.1
_WAIT_S: Final = 3.0  # for the lock


class Restocks:
    """Adds units to items without a limit, and knows how many there have been.

    `noted` is called with each restock; times are by `clock`, in seconds.
    """

    def __init__(
        self, sale: Sale, items: Sequence[Item], clock: Callable[[], float], noted: Callable[[Restock], None]
    ) -> None:
        self._sale = sale
        self._units = {item.sku: item.initial for item in items}  # all that have existed
        self._free = [item.sku for item in items if not item.limit]
        self._clock = clock
        self._noted = noted
        self._turn = asyncio.Lock()

    async def run(self, seed: int, most: int) -> None:
        """Add a few units now and then, until cancelled."""
        dice = random.Random(seed)  # noqa: S311 - no secret
        while True:
            await asyncio.sleep(dice.expovariate(1 / _EACH_S))
            await self._restock(dice.choice(self._free), dice.randint(1, most), add=True)

    async def levels(self) -> dict[str, int]:
        """Return the units left of each item."""
        found = await self._sale.stock.levels(list(self._units))
        return {sku: level.stock for sku, level in found.items() if not isinstance(level, StockError)}

    async def set_to(self, sku: str, stock: int) -> None:
        """Raise an item's stock to so many units, if there are fewer now."""
        if (await self.levels()).get(sku, stock) < stock:
            await self._restock(sku, stock, add=False)

    async def _restock(self, sku: str, stock: int, *, add: bool) -> None:
        async with self._turn:
            asked_at = self._clock()
            try:
                await self._sale.stock.set_stock(sku, stock, wait_s=_WAIT_S, add=add)
            except EXPECTED:
                pass  # it may have been done all the same
            except asyncio.CancelledError:
                await asyncio.shield(self._note(sku, asked_at))
                raise
            await asyncio.shield(self._note(sku, asked_at))

    async def _note(self, sku: str, asked_at: float) -> None:
        while True:
            try:
                units = (await self._sale.store.level(sku)).initial
                break
            except StockUnavailable:
                await asyncio.sleep(_LOOK_AGAIN_S)
            except StockError:
                return  # it can't be read any more
        if units is not None and units != self._units[sku]:
            added, self._units[sku] = units - self._units[sku], units
            self._noted(Restock(round(asked_at, 4), round(self._clock(), 4), added, sku))

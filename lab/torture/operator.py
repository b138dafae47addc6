"""The operator, who adds units and pauses items in mid-sale."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from app.errors import EXPECTED, StockError, StockUnavailable
from app.stock import Level
from app.wiring import Sale
from lab.torture.history import Flow, Item, Pause, Restock

_EACH_S: Final = 4.0  # on average
_LOOK_AGAIN_S: Final = 0.1
_WAIT_S: Final = 3.0  # for the lock
_PAUSED_S: Final = 0.8  # at most; a hold lasts for longer
_MOST_OF_A_FLOW: Final = 3  # units at once: few, so that it is sold out now and then


class Operator:
    """Adds units to items without a limit, and knows how many there have been; pauses those of the flow.

    `noted` is called with each restock and pause; times are by `clock`, in seconds.
    """

    def __init__(
        self,
        sale: Sale,
        items: Sequence[Item],
        flows: Sequence[Flow],
        clock: Callable[[], float],
        noted: Callable[[Restock | Pause], None],
    ) -> None:
        self._sale = sale
        self._flows = [flow.item for flow in flows]
        all_items = (*items, *self._flows)
        self._units = {item.sku: item.initial for item in all_items}  # all that have existed
        self._free = [item.sku for item in all_items if not item.limit]
        self._clock = clock
        self._noted = noted
        self._turn = asyncio.Lock()

    async def run(self, seed: int, most: int) -> None:
        """Do something now and then, until cancelled."""
        dice = random.Random(seed)  # noqa: S311 - no secret
        flows = {item.sku for item in self._flows}
        while True:
            await asyncio.sleep(dice.expovariate(1 / _EACH_S))
            if flows and dice.random() < 1 / 3:
                await asyncio.shield(self._pause(dice.choice(sorted(flows)), dice.uniform(0, _PAUSED_S)))
                continue
            sku = dice.choice(self._free)
            units = dice.randint(1, _MOST_OF_A_FLOW if sku in flows else most)
            await self._restock(sku, lambda: self._change(sku, units, in_all=dice.random() < 0.5))  # noqa: B023

    async def rest(self) -> None:
        """Wait until nothing is paused any more."""
        async with self._turn:
            pass

    async def levels(self) -> dict[str, int]:
        """Return the units left of each item that is not of the flow."""
        plain = [sku for sku in self._units if sku not in {item.sku for item in self._flows}]
        found = await self._sale.stock.levels(plain)
        return {sku: level.stock for sku, level in found.items() if not isinstance(level, StockError)}

    async def add(self, sku: str, units: int) -> None:
        """Add units to an item."""
        await self._restock(sku, lambda: self._change(sku, units, in_all=False))

    async def set_to(self, sku: str, stock: int) -> None:
        """Raise an item's stock to so many units, if there are fewer now."""
        if (await self.levels()).get(sku, stock) < stock:
            await self._restock(sku, lambda: self._sale.stock.set_stock(sku, stock, wait_s=_WAIT_S))

    async def _change(self, sku: str, units: int, *, in_all: bool) -> Level:
        """Add units; or set all that are left, if they are as they were seen."""
        if not in_all:
            return await self._sale.stock.set_stock(sku, units, wait_s=_WAIT_S, add=True)
        seen = await self._sale.store.level(sku)
        return await self._sale.stock.set_stock(
            sku, seen.stock + units, wait_s=_WAIT_S, if_match=(seen.stock, seen.lucky)
        )

    async def _restock(self, sku: str, change: Callable[[], Awaitable[object]]) -> None:
        async with self._turn:
            asked_at = self._clock()
            try:
                await change()
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

    async def _pause(self, sku: str, for_s: float) -> None:
        """Pause an item for a moment; whatever becomes of that, it is resumed."""
        async with self._turn:
            asked_at = self._clock()
            sure = await self._set_paused(sku, "We are back in a moment.")
            done_at = self._clock() if sure else None
            await asyncio.sleep(for_s)
            until = self._clock()
            while not await self._set_paused(sku, None):  # noqa: ASYNC110 - in the store
                await asyncio.sleep(_LOOK_AGAIN_S)
            resumed_at = self._clock()
            moments = (round(one, 4) for one in (until, resumed_at))
            self._noted(Pause(sku, round(asked_at, 4), None if done_at is None else round(done_at, 4), *moments))

    async def _set_paused(self, sku: str, text: str | None) -> bool:
        try:
            await self._sale.stock.set_stock(sku, 0, wait_s=_WAIT_S, add=True, terms={"paused": text})
        except EXPECTED:
            return False
        return True

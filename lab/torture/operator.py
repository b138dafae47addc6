"""The operator, who adds units, changes pauses, hours and prices, and begins new sales, all in mid-sale."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from app.errors import EXPECTED, HasOrders, StockError, StockUnavailable
from app.orders import TermsChange
from app.stock import Level
from app.wiring import Sale
from lab.torture.history import Flow, Item, NewSale, Pause, Price, UnitsAdded

CURRENCY: Final = "EUR"
_EACH_S: Final = 2.5  # on average
_LOOK_AGAIN_S: Final = 0.1
_WAIT_S: Final = 3.0  # for the lock
_CLOSED_S: Final = (0.2, 1.4)  # units of one item come back within that, and another's holds go on
_FAR_S: Final = 2 * 86_400.0  # hours that begin, or ended, so long from now: further than a clock of the store jumps
_CHANGED: Final = 0.5  # share of changes of the flow that add no units
_SALE_EACH_S: Final = 3.0  # on average
_REMOVED: Final = 0.4  # share of the new sales before which the item is removed
_REMOVED_S: Final = 0.4  # at most
_CLOSINGS: Final[dict[str, Callable[[], TermsChange]]] = {
    "paused": lambda: {"paused": "We are back in a moment."},
    "ended": lambda: {"ends_at": time.time() - _FAR_S},
    "not_started": lambda: {"starts_at": time.time() + _FAR_S},
}
_OPEN: Final[TermsChange] = {"paused": None, "starts_at": None, "ends_at": None}
_MOST_OF_A_FLOW: Final = 3  # units at once: few, so that it is sold out now and then


class Operator:
    """Adds units to items without a limit, and knows how many there have been; closes and prices those of the flow.

    Begins new sales of the `drops`, of about as many units as they begin with, and removes them now and then.
    `noted` is called with each thing that was done; times are by `clock`, in seconds.
    """

    def __init__(
        self,
        sale: Sale,
        items: Sequence[Item],
        flows: Sequence[Flow],
        drops: Sequence[Item],
        clock: Callable[[], float],
        noted: Callable[[UnitsAdded | Pause | Price | NewSale], None],
    ) -> None:
        self._sale = sale
        self._prices = {flow.item.sku: flow.price for flow in flows}
        all_items = (*items, *(flow.item for flow in flows))
        self._units = {item.sku: item.initial for item in all_items}  # all that have existed
        self._free = [item.sku for item in all_items if not item.limit]
        self._drops = drops
        self._clock = clock
        self._noted = noted
        self._turn, self._gives_up = asyncio.Lock(), False

    async def run(self, seed: int, most: int) -> None:
        """Do something now and then, until cancelled."""
        dice = random.Random(seed)  # noqa: S311 - no secret
        flows = sorted(self._prices)
        while True:
            await asyncio.sleep(dice.expovariate(1 / _EACH_S))
            if flows and dice.random() < _CHANGED:
                sku, how = dice.choice(flows), dice.choice(["price", "price", *_CLOSINGS])
                if how != "price":
                    sku = await self._with_a_line() or sku
                if how == "price":
                    await asyncio.shield(self._price(sku, self._prices[sku] + dice.choice((-100, -1, 1, 100))))
                else:
                    await asyncio.shield(self._close(sku, dice.uniform(*_CLOSED_S), how))
                continue
            sku = dice.choice(self._free)
            units = dice.randint(1, _MOST_OF_A_FLOW if sku in flows else most)
            await self._restock(sku, lambda: self._change(sku, units, in_all=dice.random() < 0.5))  # noqa: B023

    async def begin_sales(self, seed: int) -> None:
        """Begin a new sale of a drop now and then, until cancelled."""
        dice = random.Random(seed)  # noqa: S311 - no secret
        while True:
            await asyncio.sleep(dice.expovariate(1 / _SALE_EACH_S))
            drop, removed_s = dice.choice(self._drops), dice.uniform(0, _REMOVED_S)
            units = dice.randint(1, 2 * drop.initial)
            await asyncio.shield(self._begin(drop.sku, units, removed_s if dice.random() < _REMOVED else None))

    async def rest(self, within_s: float) -> list[str]:
        """Wait until nothing is closed or removed any more; return what is wrong if that does not come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._turn:
                return []
        self._gives_up = True
        async with self._turn:
            return ["an operator has asked in vain, again and again"]

    async def _with_a_line(self) -> str | None:
        """Return an item for which somebody waits: that nobody is served while it is closed is seen only there."""
        with contextlib.suppress(*EXPECTED):
            found = await self._sale.stock.levels(sorted(self._prices))
            return next((sku for sku, one in found.items() if not isinstance(one, StockError) and one.waiting), None)
        return None

    async def levels(self) -> dict[str, int]:
        """Return the units left of each item that is not of the flow."""
        plain = [sku for sku in self._units if sku not in self._prices]
        found = await self._sale.stock.levels(plain)
        return {sku: level.stock for sku, level in found.items() if not isinstance(level, StockError)}

    async def add(self, sku: str, units: int) -> None:
        """Add units to an item."""
        await self._restock(sku, lambda: self._change(sku, units, in_all=False))

    async def set_to(self, sku: str, stock: int, then: Callable[[], None]) -> None:
        """Raise an item's stock to so many units, if there are fewer now, and do `then` before others sell."""

        async def change() -> None:
            await self._sale.stock.set_stock(sku, stock, wait_s=_WAIT_S)
            then()

        if (await self.levels()).get(sku, stock) < stock:
            await self._restock(sku, change)

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
            await self._try(sku, change)

    async def _try(self, sku: str, change: Callable[[], Awaitable[object]]) -> None:
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
            self._noted(UnitsAdded(round(asked_at, 4), round(self._clock(), 4), added, sku))

    async def _close(self, sku: str, for_s: float, how: str) -> None:
        """Close an item for a moment; whatever becomes of that, it is opened again.

        A unit of a scarce one is added meanwhile, which nobody who waits may be offered yet.
        """
        async with self._turn:
            asked_at = self._clock()
            sure = await self._set(sku, _CLOSINGS[how]())
            done_at = self._clock() if sure else None
            if sku in self._free:
                await self._try(sku, lambda: self._change(sku, 1, in_all=False))
            await asyncio.sleep(for_s)
            until = self._clock()
            resumed_at = await self._set_surely(sku, _OPEN)
            sure_at = None if done_at is None else round(done_at, 4)
            from_1970 = round(time.time() - self._clock(), 4)
            self._noted(Pause(sku, round(asked_at, 4), sure_at, round(until, 4), round(resumed_at, 4), how, from_1970))

    async def _price(self, sku: str, price: int) -> None:
        """Set the price of a unit; whoever has a hold has it at the price at which it began."""
        async with self._turn:
            asked_at = self._clock()
            done_at = await self._set_surely(sku, {"price": price, "currency": CURRENCY})
            self._prices[sku] = price
            self._noted(Price(sku, round(asked_at, 4), round(done_at, 4), price))

    async def _begin(self, sku: str, units: int, removed_s: float | None) -> None:
        """Begin a new sale, which forgets the one before; the item may be gone for a moment in between."""
        async with self._turn:
            if removed_s is not None:
                await self._begin_surely(sku, None)
                await asyncio.sleep(removed_s)
            await self._begin_surely(sku, units)

    async def _begin_surely(self, sku: str, units: int | None) -> None:
        asked_at, done = self._clock(), False
        while not done:
            try:
                if units is not None:
                    await self._sale.stock.set_stock(sku, units, wait_s=_WAIT_S, new_sale=True)
                else:
                    # What has orders can't be removed: they are forgotten first, and of no units nobody has one.
                    await self._sale.stock.set_stock(sku, 0, wait_s=_WAIT_S, new_sale=True)
                    await self._sale.stock.remove(sku, wait_s=_WAIT_S)
                done = True
            except HasOrders:
                raise  # of no units somebody has one: that is no outage
            except EXPECTED:
                if self._gives_up:
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)
        self._noted(NewSale(sku, round(asked_at, 4), round(self._clock(), 4), units))

    async def _set_surely(self, sku: str, terms: TermsChange) -> float:
        """Set terms again and again until the answer is heard; return when that was."""
        while not (await self._set(sku, terms) or self._gives_up):  # noqa: ASYNC110 - in the store
            await asyncio.sleep(_LOOK_AGAIN_S)
        return self._clock()

    async def _set(self, sku: str, terms: TermsChange) -> bool:
        try:
            await self._sale.stock.set_stock(sku, 0, wait_s=_WAIT_S, add=True, terms=terms)
        except EXPECTED:
            return False
        return True

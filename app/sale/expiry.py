"""Gives back the units of holds that have expired, of items that nobody buys at the moment."""

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from app.errors import EXPECTED
from app.forever import end, run_forever
from app.sale.shop import Shop
from app.stock import Level, StockStore

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_ALL_EVERY_S: Final = 5.0
_REST: Final = 20  # times as long as the reading took
_REST_MAX_S: Final = 5.0
_AT_ONCE: Final = 100  # items


class Expiry:
    """Looks each second for holds that have expired, and submits an `Expire` for their item.

    Each batch does so, too, so there is nothing to find in an item that somebody buys. `in_office`: whether this
    instance is the one that looks; the others needn't.
    """

    def __init__(self, shop: Shop, store: StockStore, in_office: Callable[[], bool]) -> None:
        self._shop = shop
        self._store = store
        self._in_office = in_office
        self._holding: set[str] = set()  # the items of which something is held
        self._giving_back: dict[str, asyncio.Task[None]] = {}  # by item: it waits for the lock, and the looks don't
        self._looked_at_all = 0.0
        self._first = ""  # the item with which the next look begins, as it had to wait behind others
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        about = {"every_s": _LOOK_EVERY_S, "log": _log, "what": "ending holds that have expired"}
        self._task = asyncio.get_running_loop().create_task(run_forever(self._look, **about))  # type: ignore[arg-type]

    async def close(self) -> None:
        """Look no more."""
        await end(*([self._task, *self._giving_back.values()] if self._task is not None else []))

    async def _look(self) -> None:
        if not self._in_office():
            return
        began = time.monotonic()
        all_of_them = began - self._looked_at_all > _ALL_EVERY_S
        skus = sorted(await self._store.items() if all_of_them else self._holding)
        begin, self._first = bisect_left(skus, self._first), ""
        skus = skus[begin:] + skus[:begin]
        for first in range(0, len(skus), _AT_ONCE):
            for sku, level in (await self._store.levels(skus[first : first + _AT_ONCE])).items():
                if not isinstance(level, Level) or not level.held:
                    self._holding.discard(sku)
                    continue
                self._holding.add(sku)
                if self._shop.is_due(level):
                    self._give_back(sku)
        if all_of_them:
            now = time.monotonic()
            self._looked_at_all = now + min(_REST_MAX_S, _REST * (now - began))

    def _give_back(self, sku: str) -> None:
        """Submit an `Expire`, unless one is on its way; the next look tries again."""
        if sku in self._giving_back:
            return
        if len(self._giving_back) >= _AT_ONCE:
            self._first = self._first or sku
            return

        async def give_back() -> None:
            try:
                with contextlib.suppress(*EXPECTED):
                    await self._shop.give_back(sku)
            except Exception:
                _log.exception("unexpected error in ending expired holds of %s", sku)
            finally:
                del self._giving_back[sku]

        self._giving_back[sku] = asyncio.get_running_loop().create_task(give_back(), name=f"expiry of {sku}")

"""Gives back the units of holds that have expired, of items that nobody buys at the moment."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import fencelock
from app.errors import EXPECTED, StockError, UnknownItem
from app.forever import end, run_forever
from app.journals import EVERY_S, ITEMS_AT_ONCE, Journals
from app.sale.shop import Shop
from app.stock import Level

_log = logging.getLogger(__name__)

_DOING: Final = "ending holds that have expired"
_LINE_EVERY_S: Final = 5.0  # where orders wait: an operator may end the sale, or a pause, which no journal tells


class Expiry:
    """Submits an `Expire` for an item when the first of its holds has expired, or its line ends with the sale.

    Each batch ends holds, too, so there is nothing to do for an item that somebody buys. `in_office`: whether this
    instance has to look; without an auditor each has.
    """

    def __init__(self, shop: Shop, journals: Journals, in_office: Callable[[], bool]) -> None:
        self._shop = shop
        self._journals = journals
        self._in_office = in_office
        self._due_at: dict[str, float] = {}  # when to look at the items of which something is held (`fencelock.now`)
        self._giving_back: dict[str, asyncio.Task[None]] = {}  # by item: it waits for the lock, and the looks don't
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        looking = run_forever(self._look, every_s=EVERY_S, log=_log, what=_DOING)
        self._task = asyncio.get_running_loop().create_task(looking, name="expiry")

    async def close(self) -> None:
        """Look no more."""
        await end(*([self._task, *self._giving_back.values()] if self._task is not None else []))

    async def _look(self) -> None:
        if not self._in_office():
            return
        with self._journals.followed() as follower:
            while self._in_office():
                for sku in await follower.moved():
                    self._note(sku, self._journals.levels.get(sku))
                now = fencelock.now()
                due = [sku for sku, at in self._due_at.items() if at <= now and sku not in self._giving_back]
                some = due[: ITEMS_AT_ONCE - len(self._giving_back)]
                for sku, level in (await self._journals.now(some)).items():
                    self._note(sku, level)
                    due_in_s = self._shop.due_in_s(level) if isinstance(level, Level) else None
                    if due_in_s is not None and due_in_s <= 0:
                        self._give_back(sku)

    def _note(self, sku: str, level: Level | StockError | None) -> None:
        self._due_at.pop(sku, None)
        if isinstance(level, Level):
            # Also by the store's clock: one that is ahead may count from some moment on.
            again = [level.due_in_s, self._shop.due_in_s(level), _LINE_EVERY_S if level.waiting else None]
        else:
            again = [None if level is None or isinstance(level, UnknownItem) else EVERY_S]
        if (within_s := min((one for one in again if one is not None), default=None)) is not None:
            self._due_at[sku] = fencelock.now() + within_s  # behind the others, so that each has its turn

    def _give_back(self, sku: str) -> None:
        """Submit an `Expire`; if it fails, the next look tries again."""

        async def give_back() -> None:
            try:
                with contextlib.suppress(*EXPECTED):
                    await self._shop.give_back(sku)
            except Exception:
                _log.exception("unexpected error in %s of %s", _DOING, sku)
            finally:
                del self._giving_back[sku]

        self._giving_back[sku] = asyncio.get_running_loop().create_task(give_back(), name=f"expiry of {sku}")

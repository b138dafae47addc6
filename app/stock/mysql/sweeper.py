"""Deletes the rows of earlier sales in MySQL in the background: a new sale of two million orders blocks nobody."""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from app.errors import StockUnavailable
from app.stock.mysql import tables
from app.stock.mysql.tables import ItemRow
from fencelock.mysql import MySqlClient, Sessions

_log = logging.getLogger(__name__)


class Sweeper:
    """Deletes rows of earlier sales, a thousand at a time, with pauses, in a task that does one item at a time.

    Each instance that sells an item, or begins a sale of it, sweeps, so any of them may stop early. If several
    conflict, one of them goes on.
    """

    def __init__(self, client: MySqlClient, sessions: Sessions) -> None:
        self._client = client
        self._sessions = sessions
        self._items: dict[str, ItemRow] = {}  # to be swept
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def sweep(self, items: Iterable[ItemRow]) -> None:
        """Begin to sweep the items that need it."""
        for item in items:
            if item.swept != item.sale and not self._closed:
                self._items.setdefault(item.sku, item)
        if self._items and (self._here is None or self._here.done()):
            self._task = asyncio.create_task(self._sweep_all())

    @property
    def _here(self) -> asyncio.Task[None] | None:
        """The task, if it is one of the running loop."""
        loop = asyncio.get_running_loop()
        return self._task if self._task is not None and self._task.get_loop() is loop else None

    async def _sweep_all(self) -> None:
        while self._items:
            item = next(iter(self._items.values()))
            try:
                await self._sweep(item)
            finally:
                self._items.pop(item.sku, None)

    async def _sweep(self, item: ItemRow) -> None:
        try:
            began_at = time.monotonic()
            while await self._client.call(partial(tables.sweep, item=item), sessions=self._sessions):
                # For as long as it took: the sale has the disk at least half of the time.
                await asyncio.sleep(time.monotonic() - began_at)
                began_at = time.monotonic()
        except StockUnavailable:
            pass  # the next sale tries again
        except Exception:
            _log.exception("unexpected error while sweeping %s", item.sku)

    async def close(self) -> None:
        """Stop, even in the middle of an item."""
        self._closed = True
        task = self._here
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

"""Deletes the rows of earlier sales in the background: a new sale of two million orders blocks nobody."""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import Final

from sqlalchemy import ColumnElement, Table, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import StockUnavailable
from app.stock.bulkhead import Bulkhead
from app.stock.sql.schema import ITEMS, KEYS, OF_SALES
from app.stock.sql.server import Conflict, SqlServer, now_us

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 1000  # rows that a statement deletes at most
_KEYS_EVERY_S: Final = 60.0  # of an item: expired refusals


class Sweeper:
    """Deletes rows a thousand at a time, with pauses, in a task that does one item at a time.

    Each instance that sells an item, or begins a sale of it, sweeps, so any of them may stop early. If several
    conflict, one of them goes on.
    """

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._one_at_once = Bulkhead(1)
        self._items: dict[str, int | None] = {}  # the sale whose rows stay; None: sweep expired keys
        self._keys_at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def sweep(self, items: Iterable[tuple[str, int | None]]) -> None:
        """Begin to sweep the items that need it."""
        for sku, sale in items:
            if not self._closed:
                self._items[sku] = sale
        if self._items and (self._here is None or self._here.done()):
            self._task = asyncio.create_task(self._sweep_all())

    def sweep_keys(self, sku: str) -> None:
        """Begin to delete an item's expired refusals, so that more go than come."""
        now = time.monotonic()
        if now - self._keys_at.get(sku, 0.0) > _KEYS_EVERY_S:
            self._keys_at[sku] = now
            self.sweep([(sku, None)])

    @property
    def _here(self) -> asyncio.Task[None] | None:
        """The task, if it is one of the running loop."""
        loop = asyncio.get_running_loop()
        return self._task if self._task is not None and self._task.get_loop() is loop else None

    async def _sweep_all(self) -> None:
        while self._items:
            sku, sale = next(iter(self._items.items()))
            try:
                await self._sweep(sku, sale)
            finally:
                if self._items.get(sku, sale) == sale:  # no other sale has begun meanwhile
                    self._items.pop(sku, None)

    async def _sweep(self, sku: str, sale: int | None) -> None:
        work = partial(self.sweep_some, sku=sku, sale=sale)
        try:
            began_at = time.monotonic()
            while await self._server.call(work, self._one_at_once):
                # For as long as it took: the sale has the disk at least half of the time.
                await asyncio.sleep(time.monotonic() - began_at)
                began_at = time.monotonic()
        except (StockUnavailable, Conflict):
            pass  # the next sale tries again
        except Exception:
            _log.exception("unexpected error while sweeping %s", sku)

    async def sweep_some(self, connection: AsyncConnection, sku: str, sale: int | None) -> bool:
        """Delete some rows; False when none is left, or another sale has begun meanwhile."""
        if sale is None:
            expired = (KEYS.c.sku == sku, KEYS.c.expires_ms <= now_us() / 1000)
            return await self._delete(connection, KEYS, *expired)
        # Not within the DELETE: that would lock the item's row.
        if await connection.scalar(select(ITEMS.c.sale).where(ITEMS.c.sku == sku)) != sale:
            return False
        for table in OF_SALES:
            if await self._delete(connection, table, table.c.sku == sku, table.c.sale < sale):
                return True
        await connection.execute(update(ITEMS).where(ITEMS.c.sku == sku, ITEMS.c.sale == sale).values(swept=sale))
        return False

    async def _delete(self, connection: AsyncConnection, table: Table, *which: ColumnElement[bool]) -> bool:
        return bool((await connection.execute(self._server.delete_some(table, _AT_ONCE, *which))).rowcount)

    async def close(self) -> None:
        """Stop, even in the middle of an item."""
        self._closed = True
        task = self._here
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

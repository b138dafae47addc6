"""What instances tell each other across their ends: the last order of each item that one of them has seen written.

A store that lost its last second, or was failed over to a late replica, is consistent in itself; nobody can see from it
alone that orders are missing. So the last order is remembered where the locks live, too, a moment after it was written.
What is remembered is replaced only by who has found that very order in the store: it can't be forgotten unnoticed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from app.errors import SeckillError
from app.locks import LockBackend
from app.stock import StockStore

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.5


class Marks:
    """Brings the store's marks to the lock system, and back. `name` is where the lock system keeps an item's mark."""

    def __init__(self, backend: LockBackend, store: StockStore, name: Callable[[str], str]) -> None:
        self._backend = backend
        self._store = store
        self._name = name
        self._kept: dict[str, str] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._in_trouble: set[str] = set()

    async def learn(self, sku: str) -> str | None:
        """Hold the store to what others have seen of an item; what that was. Raises `LockUnavailable`."""
        mark = await asyncio.to_thread(self._backend.recall, self._name(sku))
        if mark is not None:
            try:
                self._store.expect(sku, mark)
            except ValueError as error:
                _log.warning("%s is %s", self._name(sku), error)
        return mark

    def keep(self) -> None:
        """From now on remember, twice a second, what was sold."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_for_ever(), name="marks")

    async def _keep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._keep_all()

    async def _keep_all(self) -> None:
        for sku, mark in self._store.marks().items():
            if self._kept.get(sku) == mark:
                continue
            try:
                await self._keep_one(sku, mark)
            except SeckillError as error:
                # Said once: a loss is said at each purchase, and by /readyz.
                level = logging.DEBUG if sku in self._in_trouble else logging.WARNING
                _log.log(level, "what was sold of %s can't be remembered beside the locks: %s", sku, error)
                self._in_trouble.add(sku)
            except Exception:
                _log.exception("remembering what was sold of %s failed in a way that it must not", sku)
            else:
                self._in_trouble.discard(sku)

    async def _keep_one(self, sku: str, mark: str) -> None:
        known = await self.learn(sku)
        if known is not None and known != self._kept.get(sku):
            await self._store.fence(sku)  # raises if what the others have seen is not there
        if known is not None and mark <= known:
            self._kept[sku] = known
        elif await asyncio.to_thread(self._backend.remember, self._name(sku), mark, instead_of=known):
            self._kept[sku] = mark
        # Else somebody was faster; see in half a second what they have left.

    async def close(self) -> None:
        """Remember the last ones, and stop."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
            await self._keep_all()

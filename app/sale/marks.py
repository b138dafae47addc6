"""What instances tell each other across their ends: the last order of each item that one of them has seen written.

A store that lost its last second, or was failed over to a late replica, is consistent in itself; nobody can see from it
alone that orders are missing. So the last order is remembered where the locks live, too, a moment after it was written.
What is remembered is replaced only by who has found that very order in the store: it can't be forgotten unnoticed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app import logs
from app.errors import SeckillError, StockError
from app.locks import LockBackend
from app.stock import StockStore

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.5
_AT_ONCE: Final = 500  # items


class Marks:
    """Brings the store's marks to the lock system, and back. `name` is where the lock system keeps an item's mark."""

    def __init__(self, backend: LockBackend, store: StockStore, name: Callable[[str], str]) -> None:
        self._backend = backend
        self._store = store
        self._name = name
        self._kept: dict[str, str] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._in_trouble: set[str] = set()

    async def learn(self, skus: Sequence[str]) -> dict[str, str]:
        """Hold the store to what others have seen of some items; what that was. Raises `LockUnavailable`."""
        names = {self._name(sku): sku for sku in skus}
        recalled = await asyncio.to_thread(self._backend.recall, list(names))
        for name, mark in recalled.items():
            try:
                self._store.expect(names[name], mark)
            except ValueError as error:
                _log.warning("%s is %s", name, error)
        return {names[name]: mark for name, mark in recalled.items()}

    def keep(self) -> None:
        """From now on remember, twice a second, what was sold."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_for_ever(), name="marks")

    async def _keep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._keep_all()

    async def _keep_all(self) -> None:
        changed = {sku: mark for sku, mark in self._store.marks().items() if self._kept.get(sku) != mark}
        for first in range(0, len(changed), _AT_ONCE):
            some = dict(list(changed.items())[first : first + _AT_ONCE])
            try:
                failed = await self._keep(some)
            except SeckillError as error:
                failed = dict.fromkeys(some, error)
            except Exception:
                _log.exception("remembering what was sold failed in a way that it must not")
                continue
            for sku, reason in failed.items():
                # Said once: a loss is said at each purchase, and by /readyz.
                level = logging.DEBUG if sku in self._in_trouble else logging.WARNING
                with logs.about(sku=sku):
                    _log.log(level, "what was sold can't be remembered beside the locks: %s", reason)
            self._in_trouble = self._in_trouble.difference(some).union(failed)

    async def _keep(self, changed: Mapping[str, str]) -> dict[str, SeckillError]:
        """Remember these marks; why some can't be."""
        known = await self.learn(list(changed))
        unseen = [sku for sku, mark in known.items() if mark != self._kept.get(sku)]
        fences = await self._store.fences(unseen) if unseen else {}
        # What the others have seen is not there: it must not be forgotten.
        failed: dict[str, SeckillError] = {sku: error for sku, error in fences.items() if isinstance(error, StockError)}
        newer: dict[str, str] = {}
        for sku, mark in changed.items():
            if sku not in failed:
                if mark > known.get(sku, ""):
                    newer[sku] = mark
                else:
                    self._kept[sku] = known[sku]
        if newer:
            marks = {self._name(sku): mark for sku, mark in newer.items()}
            instead_of = {self._name(sku): mark for sku, mark in known.items()}
            done = await asyncio.to_thread(self._backend.remember, marks, instead_of=instead_of)
            # Where somebody was faster, see in half a second what they have left.
            self._kept |= {sku: mark for sku, mark in newer.items() if self._name(sku) in done}
        return failed

    async def close(self) -> None:
        """Remember the last ones, and stop."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
            await self._keep_all()

"""Whether a sale can go on: its servers, the faults of its items, and the holders and waiters of its locks."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from app.errors import EXPECTED, StockBehind, StockError
from app.locks.fallback import degraded
from app.sale.clock import StoreClocks
from app.sale.shop import Shop
from app.stock import Fence, StockStore
from app.stock.refusals import foreign, superseded
from fencelock import AsyncLocks, Contender, Guarantees, LockError

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 100  # items a call
_NAMED_MAX: Final = 10  # locks whose holders are looked up
_LONG_S: Final = 1.0  # a grant is held for some milliseconds


class Readiness:
    """The state of an instance's dependencies and of its items. It lives on the shop's event loop.

    `learn` makes the store refuse items without the orders in the auditor's record; `clocks` are the store's.
    """

    def __init__(
        self,
        shop: Shop,
        locks: AsyncLocks,
        store: StockStore,
        *,
        learn: Callable[[], Awaitable[None]],
        clocks: StoreClocks,
    ) -> None:
        self._shop = shop
        self._locks = locks
        self._store = store
        self.learn = learn
        self.clocks = clocks
        self._wrong: dict[str, str] = {}  # the last logged error of each part

    async def faults(self, sku: str, *, wait_s: float = 2.0) -> list[str]:
        """Return why an item can't be sold although store and lock system answer; sentences for the operator."""
        await self.learn()
        return (await self.faults_of([sku], wait_s=wait_s))[sku]

    async def faults_of(self, skus: Sequence[str], *, wait_s: float = 2.0) -> dict[str, list[str]]:
        """Return the faults of some hundred items; call `learn` first.

        It takes a lock for a moment, as a sale would. Raises `LockError` and what the store raises.
        """
        seen = await self._store.inspect(skus)
        if all(fence is None or isinstance(fence, StockError) for fence in seen.values()):
            return {sku: [str(fence)] if fence else [] for sku, fence in seen.items()}
        # A token is greater than all earlier ones, of whichever lock.
        async with self._locks.lock(self._shop.lock_name(skus[0])).holding(wait_s=wait_s) as grant:
            ours = Fence(grant.token, grant.source)
        return {sku: _faults(sku, fence, ours) for sku, fence in seen.items()}

    async def behind(self) -> list[str]:
        """The items of which orders are missing that were acknowledged."""
        await self.learn()
        skus, found = sorted({*await self._store.items(), *self._store.marks()}), list[str]()
        for first in range(0, len(skus), _AT_ONCE):
            seen = await self._store.inspect(skus[first : first + _AT_ONCE])
            found += [sku for sku, fence in seen.items() if isinstance(fence, StockBehind)]
        return found

    async def contenders(self) -> list[Contender]:
        """The queues of the locks of all items."""
        found = await self._locks.contenders(self._shop.lock_prefix)
        return [one for one in found if not one.key.startswith(f"{self._shop.lock_prefix}!")]

    async def queue(self, sku: str) -> list[Contender]:
        """The queue of an item's lock: the holder first, then the waiters in order, as far as they can be seen."""
        self._store.check(sku)
        return await self._locks.lock(self._shop.lock_name(sku)).contenders()

    @property
    def lock_system(self) -> tuple[str, Guarantees]:
        """The name of the lock system, and its guarantees now."""
        return self._locks.name, self._locks.guarantees

    @property
    def mode(self) -> str:
        """How sales happen now: under the "lock", or "optimistic" during a fallback, while the lock system is away."""
        return "optimistic" if degraded(self._locks) else "lock"

    @property
    def renewing(self) -> bool:
        """True if leases are being renewed."""
        return self._locks.backend._renewing

    def pause_renewal(self, for_s: float) -> None:
        """Renew no lease for some seconds, to show the use of the lock and the fence."""
        self._locks.backend._pause_renewal(for_s)

    async def ready(self, timeout_s: float) -> dict[str, str]:
        """Check each dependency of this instance: "ok" or "not available"; the reason is logged, not published.

        A lock system with a fallback is "away".
        """
        lock, store = await asyncio.gather(
            self._well(self._locks.name, self._locks.ping(timeout_s)),
            self._well("store", self._writable_and_lasting(timeout_s)),
        )
        return {
            self._locks.name: "away" if degraded(self._locks) else lock,  # which is no reason not to sell
            "store": store,
            "renewal": "ok" if self.renewing else "not available",
            "stock": "ok" if await self._sells(store) else "not available",
        }

    async def _sells(self, store: str) -> bool:
        """Return whether any item can be sold; the items that can't are warnings."""
        with contextlib.suppress(StockError):
            return not self._shop.errors or (store == "ok" and await self._shop.sells())
        return False

    async def _well(self, name: str, check: Awaitable[None]) -> str:
        """Return whether a check succeeds; a failure, and its end, is logged once."""
        try:
            await check
        except EXPECTED as error:
            if self._wrong.get(name) != str(error):
                self._wrong[name] = str(error)
                _log.warning("not ready, %s: %s", name, error)
            return "not available"
        if self._wrong.pop(name, None):
            _log.info("ready again: %s", name)
        return "ok"

    async def _writable_and_lasting(self, timeout_s: float) -> None:
        await self._store.ensure_lasting(timeout_s=timeout_s)  # comes first, as it names the cause
        await self._store.ping(timeout_s=timeout_s)
        await self.look_at_clock(timeout_s=timeout_s)

    async def look_at_clock(self, *, timeout_s: float | None = None) -> None:
        """Ask for the store's clocks. `clocks` reports a wrong clock; the sale goes on all the same."""
        asked = self.clocks.passed()
        self.clocks.hear(await self._store.clocks_ms(timeout_s=timeout_s), asked)

    async def waits_for(self, timeout_s: float) -> list[str]:
        """The instances that have kept this one waiting for a lock for more than a second: one may be stuck."""
        long = [(waited_s, name) for name, waited_s in self._shop.waits.items() if waited_s > _LONG_S]
        found = set()
        # A lock system that doesn't answer is named by `ready`.
        with contextlib.suppress(LockError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                for waited_s, name in sorted(long, reverse=True)[:_NAMED_MAX]:
                    for one in await self._locks.lock(name).contenders():
                        if one.holds:
                            found.add(one.owner.get("instance", one.key))
                            _log.warning("waited %.0f ms for %s, which %s holds", waited_s * 1000, name, one.owner)
        return sorted(found)


def _faults(sku: str, seen: Fence | StockError | None, ours: Fence) -> list[str]:
    if isinstance(seen, StockError):
        return [str(seen)]
    if seen is None:
        return []
    if seen.source != ours.source:
        return [foreign(sku, seen, ours)]
    return [superseded(sku, seen.token, ours)] if seen.token > ours.token else []

"""The operator's side of a sale: set the stock, inspect everything, and decide what only a person can."""

import asyncio
import contextlib
import dataclasses
import difflib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from typing_extensions import Unpack

from app.errors import (
    EXPECTED,
    HoursNotPossible,
    ItemNotPossible,
    NotInCatalogue,
    StockCorrupt,
    StockError,
    UnknownItem,
)
from app.orders import LATEST, Answer, Cancel, Event, Order, Refund, TermsChange
from app.sale.find import Found, Wanted, find, named, pages
from app.sale.shop import Shop
from app.stock import Change, Fence, Level, Restock, StockStore
from app.stock.refusals import foreign, superseded
from fencelock import AsyncLocks, Contender, Guarantees, LockError

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 100  # items a call
_NAMED_MAX: Final = 10  # locks whose holders are looked up
_LONG_S: Final = 1.0  # a grant is held for some milliseconds


class Admin:
    """The operator's side of a shop. It lives on the shop's event loop.

    `learn` holds the store to the orders that other processes have seen (of the auditor's record); `catalogue`: the
    items that may be put on sale, None: any. Changes are logged with `by`, the operator's name.
    """

    def __init__(
        self,
        shop: Shop,
        locks: AsyncLocks,
        store: StockStore,
        *,
        learn: Callable[[], Awaitable[None]],
        catalogue: Collection[str] | None = None,
    ) -> None:
        self._shop = shop
        self._locks = locks
        self._store = store
        self._learn = learn
        self._wrong: dict[str, type[Exception]] = {}  # the last logged error of each part
        self.catalogue = catalogue

    # -- the stock ---------------------------------------------------------------------------------------------------

    async def items(self) -> list[str]:
        """The names of the items that have a stock."""
        return await self._store.items()

    async def level(self, sku: str) -> Level:
        """Units left and sold."""
        return await self._store.level(sku)

    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """Units left and sold of any number of items, or an error for an item that has one."""
        found: dict[str, Level | StockError] = {}
        for first in range(0, len(skus), _AT_ONCE):
            found |= await self._store.levels(skus[first : first + _AT_ONCE])
        return found

    async def unpriced(self) -> list[str]:
        """The items that have units left and no price: they are sold at once, for nothing."""
        levels = await self.levels(await self.items())
        return [
            sku
            for sku, level in levels.items()
            if isinstance(level, Level) and level.stock > 0 and self._shop.terms_of(level).price is None
        ]

    async def orders(self, sku: str, *, after: str | None = None, limit: int = 100) -> list[Order]:
        """Orders of an item, oldest first."""
        return await self._store.orders(sku, after=after, limit=limit)

    async def find(self, sku: str | None, wanted: Wanted, *, after: str | None = None, limit: int = 100) -> Found:
        """Find orders of an item, or of all. Raises `ValueError` if `after` is no order of these, and `UnknownItem`."""
        return await find(self._store, await self.named(sku), wanted, after=after, limit=limit)

    async def pages(self, sku: str | None, wanted: Wanted) -> AsyncIterator[Found]:
        """All orders of an item, or of all items, that are wanted, page by page. Raises `UnknownItem`."""
        async for page in pages(self._store, await self.named(sku), wanted):
            yield page

    async def named(self, sku: str | None) -> list[str]:
        """The item of this name, or all of them. Raises `UnknownItem`: what is misspelt has nothing to be shown."""
        if sku is None:
            return await self.items()
        found = (await self._store.levels([sku]))[sku]
        if isinstance(found, UnknownItem | ItemNotPossible):
            raise found
        return [sku]

    async def numbered(self, number: str) -> Order | None:
        """An order by its number, with or without the secret."""
        return await named(self._store, number)

    async def history(self, order: Order) -> list[Event]:
        """All events of an order, oldest first."""
        return await self._store.history(order.sku, order.record.number)

    async def cancel(self, order: Order, *, by: str) -> Answer:
        """Give back what an order holds. Raises what `Shop.submit` raises."""
        return await self._shop.submit(Cancel(*order.id, by))

    async def refund(self, order: Order, *, restock: bool, payment_ref: str | None = None, by: str) -> Answer:
        """Note that money was given back. Raises what `Shop.submit` raises."""
        return await self._shop.submit(Refund(*order.id, restock, payment_ref, by))

    async def erase(self, sku: str, buyer: str, *, by: str = "", wait_s: float = 10.0) -> int:
        """Remove a buyer's name from an item, and keep the numbers. Returns how many entries of the journal had it."""

        @contextlib.asynccontextmanager
        async def under() -> AsyncIterator[Fence]:
            async with self._locks.lock(self._shop.lock_name(sku)).holding(wait_s=wait_s) as grant:
                grant.ensure_held()
                yield Fence(grant.token, grant.source)

        found = await self._store.erase(sku, buyer, under, by=by)
        if found:
            await self._tell(sku)
        return found

    async def set_stock(self, sku: str, stock: int, *, wait_s: float = 10.0, **how: Unpack[Restock]) -> Level:
        """Set the units left (see `Restock`), under the lock and past the fence like any other write."""
        self._store.check(sku)
        if self.catalogue is not None and sku not in self.catalogue:
            await self._refuse_unknown(sku, self.catalogue)
        await self._learn()
        lock = self._locks.lock(self._shop.lock_name(sku))
        async with lock.holding(wait_s=wait_s) as grant:
            if change := how.get("terms"):
                await self._refuse_odd_hours(sku, change)
            grant.ensure_held()
            level = await self._store.set_stock(sku, Fence(grant.token, grant.source), stock, **how)
        self._shop.look_again(sku)
        await self._tell(sku)
        return level

    async def remove(self, sku: str, *, by: str = "", wait_s: float = 10.0) -> None:
        """Remove an item of which nothing was sold; likewise under the lock. Raises `HasOrders` if something was."""
        self._store.check(sku)
        await self._learn()
        async with self._locks.lock(self._shop.lock_name(sku)).holding(wait_s=wait_s) as grant:
            grant.ensure_held()
            await self._store.remove(sku, Fence(grant.token, grant.source), by=by)
        self._shop.look_again(sku)
        await self._tell(sku)

    async def _refuse_unknown(self, sku: str, catalogue: Collection[str]) -> None:
        """Refuse a new item that is not in the catalogue; one that has a stock can still be paused or ended."""
        with contextlib.suppress(UnknownItem):
            await self._store.level(sku)
            return
        near = difflib.get_close_matches(sku, catalogue, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(catalogue)[:20])}"
        raise NotInCatalogue(f"{sku!r} is not in the catalogue; {hint}")

    async def _tell(self, sku: str) -> None:
        """Repeat an operator's change in this process's log."""
        with contextlib.suppress(StockError):  # the change is made, and in the store's own log
            for change in await self._store.log(sku, limit=1):
                _log.info("operator %s: %s of %s: %s", change.by, change.what, sku, change.difference)

    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        """The last changes that operators have made to an item, or to all, newest first."""
        return await self._store.log(sku, limit=limit)

    async def count_orders(self, sku: str) -> int:
        """The number of an item's orders."""
        return await self._store.count_orders(sku)

    async def _refuse_odd_hours(self, sku: str, change: TermsChange) -> None:
        for name, at in (("starts_at", change.get("starts_at")), ("ends_at", change.get("ends_at"))):
            if not 0 <= (at or 0) <= LATEST:
                raise HoursNotPossible(f"{name} must be from 1970 to 5138")
        with contextlib.suppress(UnknownItem, StockCorrupt):  # the store says what is wrong
            level = await self._store.level(sku)
            terms = self._shop.terms_of(dataclasses.replace(level, terms=level.terms.changed(change)))
            if terms.starts_at and terms.ends_at and terms.ends_at <= terms.starts_at:
                raise HoursNotPossible("ends_at must be later than starts_at")

    async def unfence(self, sku: str, *, by: str = "") -> None:
        """Forget the store's fence: an operator's decision, after etcd was replaced or restored."""
        await self._store.unfence(sku, by=by)
        await self._tell(sku)

    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        """Sell on although the store has lost orders: an operator's decision, when they are gone for good."""
        await self._learn()
        await self._store.accept_loss(sku, by=by)
        await self._tell(sku)

    async def faults(self, sku: str, *, wait_s: float = 2.0) -> list[str]:
        """Return why an item can't be sold although store and lock system answer; sentences for the operator."""
        await self.learn()
        return (await self.faults_of([sku], wait_s=wait_s))[sku]

    async def learn(self) -> None:
        """Hold the store to the orders that other processes have seen."""
        await self._learn()

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

    # -- the locks ---------------------------------------------------------------------------------------------------

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
        """The name of the lock system, and what it promises now."""
        return self._locks.name, self._locks.guarantees

    @property
    def guarded(self) -> bool:
        """True if the store refuses a write that was decided on stale data."""
        return self._store.guarded

    @property
    def mode(self) -> str:
        """How sales happen now: under the "lock", or "optimistic" during a fallback, while the lock system is away."""
        return "optimistic" if self._locks.degraded else "lock"

    @property
    def renewing(self) -> bool:
        """True if leases are being renewed."""
        return self._locks.renewing

    def pause_renewal(self, for_s: float) -> None:
        """Renew no lease for some seconds, to show what the lock and the fence are for."""
        self._locks.pause_renewal(for_s)

    # -- the instances -----------------------------------------------------------------------------------------------

    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """Exchange notices with the other instances of this sale: see `StockStore.notices`."""
        return await self._store.notices(put, drop=drop)

    async def ready(self, timeout_s: float) -> dict[str, str]:
        """Check each dependency of this instance: "ok" or "not available"; the reason is logged, not published.

        A lock system with a fallback is "away".
        """
        lock, store = await asyncio.gather(
            self._well(self._locks.name, self._locks.ping(timeout_s)),
            self._well("store", self._writable_and_lasting(timeout_s)),
        )
        return {
            self._locks.name: "away" if self._locks.degraded else lock,  # which is no reason not to sell
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
            if self._wrong.get(name) is not type(error):
                self._wrong[name] = type(error)
                _log.warning("not ready, %s: %s", name, error)
            return "not available"
        if self._wrong.pop(name, None):
            _log.info("ready again: %s", name)
        return "ok"

    async def _writable_and_lasting(self, timeout_s: float) -> None:
        await self._store.ping(timeout_s=timeout_s)
        await self._store.ensure_lasting(timeout_s=timeout_s)

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

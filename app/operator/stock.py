"""The stock, for operators: set it, remove an item, accept a loss, and reset the fence."""

import contextlib
import dataclasses
import difflib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Final

from typing_extensions import Unpack

from app import moments
from app.errors import (
    GroupNotPossible,
    HoursNotPossible,
    NotInCatalogue,
    PriceNotPossible,
    StockCorrupt,
    StockError,
    StockNotAsExpected,
    UnknownItem,
)
from app.orders import LATEST, NO_TERMS, TermsChange
from app.orders.offer import Offer
from app.sale.shop import Shop
from app.stock import Change, Fence, Level, Restock, StockStore
from fencelock import AsyncLock, AsyncLocks, Grant, LockLost

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 100  # items a call
_TRIES: Final = 10


class StockAdmin:
    """The operator's side of the stock. It lives on the shop's event loop.

    `learn` holds the store to the orders that other processes have seen (of the auditor's record); `catalogue`: the
    items that may be put on sale, None: any; `never_paid` says why such a price, in the minor unit of its currency,
    can't be charged, or None. Changes are logged with `by`, the operator's name.
    """

    def __init__(
        self,
        shop: Shop,
        locks: AsyncLocks,
        store: StockStore,
        *,
        learn: Callable[[], Awaitable[None]],
        catalogue: Collection[str] | None = None,
        never_paid: Callable[[int, str], str | None] = lambda *_: None,
    ) -> None:
        self._shop = shop
        self._locks = locks
        self._store = store
        self._learn = learn
        self.catalogue = catalogue
        self._never_paid = never_paid

    async def items(self) -> list[str]:
        """The names of the items that have a stock."""
        return await self._store.items()

    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """The levels of any number of items; for an item that can't be read its error."""
        found: dict[str, Level | StockError] = {}
        for first in range(0, len(skus), _AT_ONCE):
            found |= await self._store.levels(skus[first : first + _AT_ONCE])
        return found

    async def unpriced(self) -> list[str]:
        """The items with units left and without a price, which are sold at once, for nothing."""
        levels = await self.levels(await self.items())
        return [
            sku
            for sku, level in levels.items()
            if isinstance(level, Level) and level.stock > 0 and self._shop.terms_of(level).price is None
        ]

    async def set_stock(self, sku: str, stock: int, *, wait_s: float = 10.0, **how: Unpack[Restock]) -> Level:
        """Set the units left (see `Restock`), under the lock and past the fence like any other write."""
        self._store.check(sku)
        await self._refuse_unknown(sku)
        await self._learn()
        lock = self._locks.lock(self._shop.lock_name(sku))
        async with under(lock, wait_s) as grant:
            if change := how.get("terms"):
                await self._refuse_odd_terms(sku, change)
            grant.ensure_held()
            fence = Fence(grant.token, grant.source)
            level = await self._store.set_stock(sku, fence, stock, **how)
            if level.waiting:
                with contextlib.suppress(StockError):  # the stock is set, and the next batch serves them as well
                    await self._shop.serve_the_line(sku, fence)
                    level = await self._store.level(sku)
        self._shop.look_again(sku)
        await tell(self._store, sku)
        return level

    async def difference(self, sku: str, offer: Offer) -> list[tuple[str, str, str]]:
        """The fields that `put_on_sale` would change (`Offer.differs`). Raises its errors, if they can be foreseen."""
        await self._refuse_unknown(sku)
        await self._refuse_odd_terms(sku, offer.terms)
        try:
            level = await self._store.level(sku)
        except UnknownItem:
            if offer.units is None:
                raise UnknownItem(f"there is no item {sku!r} yet: say its units") from None
            return offer.differs(None, NO_TERMS)
        _more(level, offer)
        return offer.differs(_units_of(level), level.terms)

    async def put_on_sale(self, sku: str, offer: Offer, *, by: str) -> Level:
        """Give an item the units and terms of an offer, also while it is sold. Twice is once."""
        for _ in range(_TRIES):
            level = (await self._store.levels([sku]))[sku]
            if isinstance(level, UnknownItem):
                with contextlib.suppress(StockNotAsExpected):  # somebody else has put it on sale meanwhile
                    return await self.set_stock(sku, offer.units or 0, if_match=(0, 0), terms=offer.terms, by=by)
                continue
            if isinstance(level, StockError):
                raise level
            # Sales don't change the units at the start, and another one's load does.
            more, as_seen = _more(level, offer), level.initial
            with contextlib.suppress(StockNotAsExpected):
                if more >= 0:
                    return await self.set_stock(sku, more, add=True, if_initial=as_seen, terms=offer.terms, by=by)
                seen = (level.stock, level.lucky)
                return await self.set_stock(
                    sku, level.stock + more, if_match=seen, if_initial=as_seen, terms=offer.terms, by=by
                )
        raise StockNotAsExpected(f"units of {sku!r} are sold faster than some can be taken away; pause it first")

    def closed(self, level: Level) -> str | None:
        """The reason why an item is not sold now, apart from a pause: its sale has ended or not begun; else None."""
        terms, now = self._shop.terms_of(level), time.time()
        if terms.ends_at and terms.ends_at <= now:
            return f"its sale has ended ({moments.written(terms.ends_at)})"
        if terms.starts_at and terms.starts_at > now:
            return f"its sale has not started ({moments.written(terms.starts_at)})"
        return None

    async def remove(self, sku: str, *, by: str = "", wait_s: float = 10.0) -> None:
        """Remove an item of which nothing was sold; likewise under the lock. Raises `HasOrders` if something was."""
        self._store.check(sku)
        await self._learn()
        async with under(self._locks.lock(self._shop.lock_name(sku)), wait_s) as grant:
            grant.ensure_held()
            await self._store.remove(sku, Fence(grant.token, grant.source), by=by)
        self._shop.look_again(sku)
        await tell(self._store, sku)

    async def _refuse_unknown(self, sku: str) -> None:
        """Refuse a new item that is not in the catalogue; one that has a stock can still be paused or ended."""
        if self.catalogue is None or sku in self.catalogue:
            return
        with contextlib.suppress(UnknownItem):
            await self._store.level(sku)
            return
        near = difflib.get_close_matches(sku, self.catalogue, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(self.catalogue)[:20])}"
        raise NotInCatalogue(f"{sku!r} is not in the catalogue; {hint}")

    async def _refuse_odd_terms(self, sku: str, change: TermsChange) -> None:
        price, currency = change.get("price"), change.get("currency")
        if price is not None and currency is not None and (why := self._never_paid(price, currency)):
            raise PriceNotPossible(why)
        if (group := NO_TERMS.changed(change).group) and (why := self._shop.apart([sku, *group[1]])):
            raise GroupNotPossible(f"limit_group: {why}")
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
        await self._refuse_misspelt(sku)
        await self._store.unfence(sku, by=by)
        await tell(self._store, sku)

    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        """Sell on although the store has lost orders: an operator's decision, when they are gone for good."""
        await self._learn()
        await self._refuse_misspelt(sku)
        await self._store.accept_loss(sku, by=by)
        await tell(self._store, sku)

    async def _refuse_misspelt(self, sku: str) -> None:
        """Refuse an item that nobody knows: it is not there, and no order of it was ever seen."""
        found = (await self._store.levels([sku]))[sku]
        if isinstance(found, UnknownItem) and sku not in self._store.marks():
            raise found

    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        """The last changes that operators have made to an item, or to all, newest first."""
        return await self._store.log(sku, limit=limit)


def _units_of(level: Level) -> int:
    """The units of the whole sale of an item."""
    return level.stock + level.held + level.lucky


def _more(level: Level, offer: Offer) -> int:
    """The units to add to an item so that it has an offer's; below 0: to take away."""
    more = 0 if offer.units is None else offer.units - _units_of(level)
    if level.stock + more < 0:
        gone = level.held + level.lucky
        raise StockNotAsExpected(f"{offer.units} units of {level.sku!r} are too few: {gone} are sold or held")
    return more


@contextlib.asynccontextmanager
async def under(lock: AsyncLock, wait_s: float) -> AsyncIterator[Grant]:
    """Hold the lock for a command, which the store takes or refuses by its token.

    A loss of the lock that is noticed at the release is no error: an operator would repeat the command, and units would
    be added twice.
    """
    grant = await lock.acquire(wait_s=wait_s)
    try:
        yield grant
    finally:
        with contextlib.suppress(LockLost):
            await lock.release()


async def tell(store: StockStore, sku: str) -> None:
    """Repeat an operator's change in this process's log."""
    with contextlib.suppress(StockError):  # the change is made, and in the store's own log
        for change in await store.log(sku, limit=1):
            _log.info("operator %s: %s of %s: %s", change.by, change.what, sku, change.difference)

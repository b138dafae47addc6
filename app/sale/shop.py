"""The shop: the door of the sale for everybody outside it. Finds an item's cashier, and says what was sold."""

import asyncio
import dataclasses
import logging
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.audit.auditor import Auditor, audit
from app.audit.auditor import Stats as AuditorStats
from app.audit.ledger import Audit
from app.dashboard.journal import Journal
from app.errors import (
    Closing,
    NotDecided,
    QueueFull,
    SeckillError,
    StockBehind,
    StockError,
    StockUnavailable,
    UnknownItem,
)
from app.locks import Contender, Guarantees, LockBackend, Reach
from app.sale.cashier import Cashier, Rules, Stats
from app.sale.decision import Answer, Outcome, Purchase
from app.sale.marks import Marks
from app.stock import Fence, Level, Order, StockStore, foreign

_log = logging.getLogger(__name__)

_ITEMS_MAX: Final = 1000  # more items than that at once: those that nobody buys are forgotten
_TILLS_WITHOUT_LOCK: Final = 64  # as many requests at a time as a thread pool of a web server would
_KNOCKING_MAX: Final = 4  # items being opened; a flood of names leaves the connections to those who sell
_PROBED_MAX: Final = 5  # open items that a readiness probe looks at; different ones each time


class Shop:
    """Sells the items of a store under the locks of a backend. Lives on one event loop."""

    def __init__(
        self,
        backend: LockBackend,
        store: StockStore,
        rules: Rules,
        stats: Stats,
        *,
        lock_prefix: str,
        lock_groups: int = 1,
    ) -> None:
        self._backend = backend
        self._store = store
        self._rules = rules
        self.journal = Journal(stats)
        self._lock_prefix = lock_prefix.rstrip("/") + "/"
        self._lock_groups = lock_groups
        self._cashiers: dict[str, Cashier] = {}  # by item; those of one lock have the same
        self._by_lock: dict[str, Cashier] = {}
        self._opening: dict[str, asyncio.Task[Cashier]] = {}
        self._marks = Marks(backend, store, self._mark_name)
        self._knocking = asyncio.Semaphore(_KNOCKING_MAX)
        # Who only looks, however slowly the lock system answers, takes no thread from those who serve.
        self._lookers = ThreadPoolExecutor(2, thread_name_prefix="seckill-look")
        self._at_door = 0  # buyers for whose item a cashier is being opened
        self._closing = False

    @property
    def buyers_waiting(self) -> int:
        """Buyers who wait in this instance."""
        return sum(cashier.waiting for cashier in self._all_cashiers())

    @property
    def waiting(self) -> dict[str, int]:
        """Buyers who wait in this instance, by item."""
        found = dict.fromkeys(self._cashiers, 0)
        for cashier in self._all_cashiers():
            found |= cashier.waiting_by_item
        return found

    async def buy(self, purchase: Purchase) -> Answer:
        """Wait for one's turn, and for the answer.

        Raises a `SaleError` (queue full, deadline passed, ...) or a `StockError` (no such item, store away, ...).
        """
        if self._closing:
            raise Closing("this instance is shutting down; nothing was sold")
        if self._rules.starts_at is not None and time.time() < self._rules.starts_at:
            return self._refuse(purchase, Outcome.NOT_STARTED)
        if self._rules.ends_at is not None and time.time() >= self._rules.ends_at:
            if purchase.key is None:
                return self._refuse(purchase, Outcome.ENDED)
            purchase = dataclasses.replace(purchase, late=True)  # it may be a repeat, to be answered as the first time
        deadline = asyncio.get_running_loop().time() + self._rules.purchase_timeout_s
        cashier = self._cashiers.get(purchase.sku)
        if cashier is None:
            try:
                cashier = await self._find_cashier(purchase.sku, deadline)
            except SeckillError as error:
                self.journal.served(type(error).__name__)
                raise
        if self._closing:
            raise Closing("this instance is shutting down; nothing was sold")
        # It may have gone as idle between being opened and this step: whoever is served must be known to the shop.
        cashier = self._cashiers.setdefault(purchase.sku, cashier)
        if cashier.has_nothing_for(purchase):
            return self._refuse(purchase, Outcome.SOLD_OUT)
        try:
            return await cashier.submit(purchase, deadline)
        except UnknownItem:  # deleted since
            self._cashiers.pop(purchase.sku, None)
            raise

    def _refuse(self, purchase: Purchase, outcome: Outcome) -> Answer:
        self.journal.served(outcome)
        return Answer(outcome, purchase.quantity)

    @property
    def hours(self) -> tuple[float | None, float | None]:
        """When the sale starts and ends, in seconds since 1970; None: it always has, or never does."""
        return self._rules.starts_at, self._rules.ends_at

    async def _find_cashier(self, sku: str, deadline: float) -> Cashier:
        """Open a cashier for an item that exists. Unknown names leave nothing behind, however many are asked for."""
        if self._at_door >= self._rules.queue_max:
            raise QueueFull(f"{self._rules.queue_max} buyers are waiting already; nothing was sold")
        opening = self._opening.get(sku)
        if opening is None:  # a rush that finds the shop closed knocks once, not 500 times
            opening = asyncio.create_task(self._open(sku))
            self._opening[sku] = opening
            opening.add_done_callback(lambda _: self._opening.pop(sku))
        self._at_door += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise NotDecided("it took too long; nothing was sold") from None
        except asyncio.CancelledError:
            if opening.cancelled():  # by `close`; else we are
                raise Closing("this instance is shutting down; nothing was sold") from None
            raise
        finally:
            self._at_door -= 1

    async def _open(self, sku: str) -> Cashier:
        async with self._knocking:
            await self._store.level(sku)
            await self._marks.learn([sku])
        if self._closing:
            raise Closing("this instance is shutting down; nothing was sold")
        if len(self._cashiers) >= _ITEMS_MAX:
            self._forget_idle()
        name = self.lock_name(sku)
        if name not in self._by_lock:
            self._by_lock[name] = self._make_cashier(name)
        self._cashiers[sku] = self._by_lock[name]
        self._marks.keep()
        return self._cashiers[sku]

    def _make_cashier(self, lock_name: str) -> Cashier:
        lock = self._backend.lock(lock_name)
        if self._backend.guarantees.reach is not Reach.NOBODY or self._store.guarded:
            return Cashier(lock, self._store, self._rules, self.journal)
        # Nobody waits for anybody: each request reads, decides and writes by itself, as in the articles.
        alone = dataclasses.replace(self._rules, batch_max=1, sold_out_ttl_s=0.0)
        return Cashier(lock, self._store, alone, self.journal, tills=_TILLS_WITHOUT_LOCK)

    def _all_cashiers(self) -> set[Cashier]:
        return {*self._by_lock.values(), *self._cashiers.values()}

    def _forget_idle(self) -> None:
        busy = {cashier: cashier.forget_idle() for cashier in self._all_cashiers()}
        self._cashiers = {sku: cashier for sku, cashier in self._cashiers.items() if sku in busy[cashier]}
        self._by_lock = {name: one for name, one in self._by_lock.items() if not one.idle or one.will_stall}

    async def level(self, sku: str) -> Level:
        """Units left and sold."""
        return await self._store.level(sku)

    async def order(self, order_id: str) -> Order | None:
        """An order by its id."""
        return await self._store.order(order_id)

    async def orders(self, sku: str, *, after: str | None = None, limit: int = 100) -> list[Order]:
        """Orders of an item, oldest first."""
        return await self._store.orders(sku, after=after, limit=limit)

    async def set_stock(self, sku: str, stock: int, *, new_sale: bool = False, wait_s: float = 10.0) -> Level:
        """Set the units left, under the lock and past the fence like any other write."""
        self._store.check(sku)
        await self._marks.learn([sku])
        async with self._backend.lock(self.lock_name(sku)).on_loop(wait_s=wait_s) as grant:
            grant.ensure_held()
            level = await self._store.set_stock(sku, Fence(grant.token, grant.source), stock, new_sale=new_sale)
        if sku in self._cashiers:
            self._cashiers[sku].look_again(sku)
        return level

    async def unfence(self, sku: str) -> None:
        """Forget the store's fence: an operator's decision, after etcd was replaced or restored."""
        await self._store.unfence(sku)

    async def accept_loss(self, sku: str) -> None:
        """Sell on although the store has lost orders: an operator's decision, when they are gone for good."""
        await self._marks.learn([sku])
        await self._store.accept_loss(sku)

    async def faults(self, sku: str, *, timeout_s: float = 2.0) -> list[str]:
        """Why nothing of an item can be sold although store and lock system answer; sentences for the operator.

        Raises `LockUnavailable` and what the store raises.
        """
        await self._marks.learn([sku])
        return await self._faults([sku], timeout_s)

    async def _faults(self, skus: Sequence[str], timeout_s: float) -> list[str]:
        fences = await self._store.fences(skus)
        for answer in fences.values():
            if isinstance(answer, StockUnavailable):
                raise answer
        found = [str(answer) for answer in fences.values() if isinstance(answer, StockBehind)]
        seen = {sku: answer for sku, answer in fences.items() if isinstance(answer, Fence)}
        # In this order: what the store has seen was given before we ask how far the lock system is.
        newest = await asyncio.to_thread(self._backend.newest, self.lock_name(skus[0]), timeout_s)
        if newest is not None:
            ours = Fence(newest[1], newest[0])
            found += [_unreachable(sku, fence, ours) for sku, fence in seen.items() if not _can_follow(ours, fence)]
        return found

    async def contenders(self) -> list[Contender]:
        """The queues of the locks of all items."""
        found = await asyncio.to_thread(self._backend.contenders, self._lock_prefix)
        return [one for one in found if not one.key.startswith(f"{self._lock_prefix}!")]

    async def queue(self, sku: str) -> list[Contender]:
        """The queue of an item's lock: the holder first, then the waiters in order, as far as they can be seen."""
        self._store.check(sku)
        contenders = self._backend.lock(self.lock_name(sku)).contenders
        return await asyncio.get_running_loop().run_in_executor(self._lookers, contenders)

    @property
    def lock_system(self) -> tuple[str, Guarantees]:
        """What the locks are called, and what they promise now."""
        return self._backend.name, self._backend.guarantees

    @property
    def guarded(self) -> bool:
        """Whether the store refuses a write that was decided on what is not there any more."""
        return self._store.guarded

    async def stall(self, sku: str, for_s: float, begins: Callable[[int], None], *, within_s: float) -> bool:
        """Have the next write that sells the item come so much later, and renew no lease meanwhile.

        As if this process stood still at the worst moment. Calls `begins(token)` then; whether one came `within_s`.
        Raises what `buy` raises of an item that is not there.
        """

        def stands_still(token: int) -> None:
            self.pause_renewal(for_s)
            begins(token)

        deadline = asyncio.get_running_loop().time() + self._rules.purchase_timeout_s
        cashier = self._cashiers.get(sku) or await self._find_cashier(sku, deadline)
        return await cashier.stall(for_s, stands_still, within_s=within_s)

    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """What the instances of this sale tell each other: see `StockStore.notices`."""
        return await self._store.notices(put, drop=drop)

    async def audit(self, sku: str) -> Audit:
        """Check that the numbers and the orders of an item agree, as of one moment, even while it is being sold."""
        return await audit(await self._store.level(sku), self._store)

    def auditor(self, stats: AuditorStats, *, instance: str, every_s: float) -> Auditor | None:
        """A candidate for the auditor of this sale; None if the lock system has no elections."""
        if not self._backend.guarantees.elects:
            return None
        election = self._backend.election(f"{self._lock_prefix}!auditor")
        return Auditor(
            election,
            self._store,
            stats,
            instance=instance,
            every_s=every_s,
            busy=lambda: any(cashier.waiting for cashier in self._all_cashiers()),
            learn=self._marks.learn,
        )

    async def items(self) -> list[str]:
        """The names of the items that have a stock."""
        return await self._store.items()

    @property
    def way(self) -> str:
        """What sales happen by now: "lock", or "optimistic" while the lock system is away and that may be."""
        return self._backend.way

    @property
    def renewing(self) -> bool:
        """Whether leases are being renewed: the thread that does it is there, and gets on."""
        return self._backend.renewing

    async def ready(self, timeout_s: float) -> dict[str, str]:
        """What this instance needs, by name, each "ok" or "not available"; why is logged, not told to everybody.

        A lock system that one can do without is "away".
        """
        lock, store = await asyncio.gather(
            _well(self._backend.name, asyncio.to_thread(self._backend.ping, timeout_s)),
            _well("store", self._store.ping(timeout_s=timeout_s)),
        )
        if self._backend.way == "optimistic":
            lock = "away"  # which is no reason not to sell
        renewal = "ok" if self.renewing else "not available"
        # Whether the two go together can be seen only when both are there.
        together = lock != "not available" and store == "ok"
        stock = await _well("stock", self._probe(timeout_s)) if together else "not available"
        checks = {self._backend.name: lock, "store": store, "renewal": renewal, "stock": stock}
        return checks | ({"shop": "closing"} if self._closing else {})

    async def _probe(self, timeout_s: float) -> None:
        """Raise `StockError` if one of the items that are being sold can't be."""
        skus = random.sample(list(self._cashiers), min(_PROBED_MAX, len(self._cashiers)))
        try:
            async with asyncio.timeout(timeout_s):
                faults = await self._faults(skus, timeout_s) if skus else []
        except TimeoutError:
            raise StockUnavailable(f"not looked at within {timeout_s:g} s") from None
        if faults:
            raise StockError("; ".join(faults))

    def pause_renewal(self, for_s: float) -> None:
        """Renew no lease for so long: to see what the lock and the fence are for."""
        self._backend.pause_renewal(for_s)

    async def close(self, *, within_s: float) -> None:
        """Take no more purchases, serve those who wait, give all locks back."""
        self._closing = True
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        if self._opening:
            _, late = await asyncio.wait(self._opening.values(), timeout=within_s)
            for opening in late:
                opening.cancel()
        left_s = max(0.0, until - loop.time())
        await asyncio.gather(*(cashier.drain(left_s) for cashier in self._all_cashiers()))
        await self._marks.close()
        self._lookers.shutdown(wait=False, cancel_futures=True)

    def lock_name(self, sku: str) -> str:
        """Of an item's lock."""
        # Two layouts at once do no harm: what a fence has seen counts for its item, whatever the lock is called.
        if self._lock_groups == 0:
            return self._lock_prefix + sku
        if self._lock_groups == 1:
            return f"{self._lock_prefix}all"
        group = zlib.crc32(sku.encode()) % self._lock_groups + 1
        return f"{self._lock_prefix}{group}-of-{self._lock_groups}"

    def _mark_name(self, sku: str) -> str:
        # Where the locks are, as that is what we may write to; and no item's name begins like that.
        return f"{self._lock_prefix}!known/{sku}"


def _can_follow(ours: Fence, seen: Fence) -> bool:
    """Whether the lock system's tokens can come after what a fence has seen."""
    return seen.source == ours.source and seen.token <= ours.token


def _unreachable(sku: str, seen: Fence, ours: Fence) -> str:
    if seen.source != ours.source:
        return foreign(sku, seen, ours)
    return (
        f"the stock of {sku!r} has seen token {seen.token}, and {seen.source} is only at {ours.token}: it was restored "
        f"from an older backup. If no instance holds a lock from before: seckill stock unfence --sku {sku}"
    )


async def _well(name: str, check: Awaitable[None]) -> str:
    try:
        await check
    except SeckillError as error:
        _log.warning("not ready, %s: %s", name, error)
        return "not available"
    return "ok"

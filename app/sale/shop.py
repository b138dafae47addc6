"""Everything a buyer can do: buy, hold and pay, look at the stock, look up an order."""

import asyncio
import dataclasses
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from app.errors import BasketNotPossible, Closing, HoldsNotPossible, StockCorrupt, StockError, TurnedAway
from app.orders import (
    Answer,
    Ask,
    Command,
    Expire,
    ExpiryOutcome,
    Hold,
    Order,
    OrderId,
    OrderState,
    Place,
    Purchase,
    Terms,
)
from app.orders.commands import not_done
from app.orders.decision import Windows, outside
from app.sale.batch import Clocked, decide_parts
from app.sale.clock import StoreClocks
from app.sale.queue import Item
from app.sale.rules import Rules
from app.sale.worker import Halted, Worker
from app.stock import Fence, Level, StockStore
from app.telemetry.observer import Observer
from fencelock import AsyncLocks, Scope

_AT_ONCE: Final = 100  # items a call
_TASKS_WITHOUT_LOCK: Final = 64  # as many requests at a time as a thread pool of a web server would


class Shop:
    """Sells the items of a store under the locks of a backend. It lives on one event loop.

    Items share `lock_groups` locks. `halted(sku)`: why an item must not be sold for now. `clocks`: see `Worker`.
    """

    def __init__(
        self,
        locks: AsyncLocks,
        store: StockStore,
        rules: Rules,
        observer: Observer,
        *,
        lock_prefix: str,
        lock_groups: int = 1,
        halted: Halted = lambda sku: None,
        clocks: StoreClocks | None = None,
    ) -> None:
        self._locks = locks
        self._store = store
        self._rules = rules
        self._observer = observer
        self.lock_prefix = lock_prefix.rstrip("/") + "/"
        self._lock_groups = lock_groups
        self._halted = halted
        self._clocks = clocks
        self._workers: dict[str, Worker] = {}  # the queues, by the name of their lock
        self.leaving = self.closing = False  # about to close, but still selling; no longer selling

    async def give_back(self, sku: str) -> None:
        """Give back all units of an item whose time is up. Raises what `submit` raises."""
        while (await self.submit(Expire(sku))).outcome is ExpiryOutcome.MORE:
            pass

    async def submit(self, command: Command, *, gone: Callable[[], bool] = lambda: False) -> Answer:
        """Queue a command, and wait for the answer.

        `gone` says whether the buyer has hung up. Without a key nobody could ever learn of the new order, so such a
        buyer gets none.
        Raises a `SaleError` (queue full, deadline passed, ...) or a `StockError` (no such item, store away, ...).
        """
        told = self.join(command, gone=gone)
        return told if isinstance(told, Answer) else await told

    def join(self, command: Command, *, gone: Callable[[], bool] = lambda: False) -> "Answer | asyncio.Future[Answer]":
        """Queue a command without waiting: return the answer, if it is known already, or a future that gets it."""
        if self.closing:
            raise Closing(f"this instance is shutting down; {not_done(command)}")
        if isinstance(command, Hold) and command.lines:
            self._refuse_apart(command)
        queue, now = self._worker(command.sku).queue, asyncio.get_running_loop().time()
        if not queue.knows(command.sku):
            self._store.check(command.sku)
        elif type(command) is Purchase and (refusal := queue.refusal(command, now)):
            self._observer.answered(refusal)
            return Answer(refusal, command.quantity)
        if type(command) is not Purchase and not self._store.holds:
            raise HoldsNotPossible("the store without a guard (SECKILL_GUARD=none) can't hold units; nothing was done")
        return queue.join(command, now + self._rules.purchase_timeout_s, gone=gone)

    def _refuse_apart(self, wish: Hold) -> None:
        """Refuse a basket whose items can't be held in one write. Raises `BasketNotPossible`."""
        skus = [wish.sku, *(sku for sku, _ in wish.lines)]
        for sku in skus:
            self._store.check(sku)
        if apart := self.apart(skus):
            raise BasketNotPossible(f"items: {apart}")

    def apart(self, skus: Sequence[str]) -> str:
        """The reason why items can't be written together, as a sentence; "": they can."""
        if len({self.lock_name(sku) for sku in skus}) > 1:
            return f"{', '.join(skus)} have different locks; with SECKILL_LOCK_GROUPS=1 all items share one"
        return self._store.apart(skus)

    def turned_away(self, error: TurnedAway) -> None:
        """Count a purchase that was refused at the door among the others."""
        self._observer.answered(type(error).__name__)

    def _worker(self, sku: str) -> Worker:
        name = self.lock_name(sku)
        worker = self._workers.get(name)
        if worker is None:
            worker = self._workers[name] = self._new_worker(name)
        return worker

    def _new_worker(self, lock_name: str) -> Worker:
        rules, tasks_max = self._rules, 1
        if self._locks.guarantees.scope is Scope.NOBODY and not self._store.guarded:
            # The lock locks nothing: each request reads, decides and writes by itself, as in the articles.
            rules, tasks_max = dataclasses.replace(rules, batch_max=1, sold_out_ttl_s=0.0), _TASKS_WITHOUT_LOCK
        lock = self._locks.lock(lock_name)
        own = lock, self._store, rules, self._observer
        return Worker(*own, halted=self._halted, tasks_max=tasks_max, clocks=self._clocks, apart=self.apart)

    def lock_name(self, sku: str) -> str:
        """The name of an item's lock."""
        # Two layouts at once do no harm: a fence counts for its item under any lock.
        if self._lock_groups == 1:
            return f"{self.lock_prefix}all"
        group = zlib.crc32(sku.encode()) % self._lock_groups + 1
        return f"{self.lock_prefix}{group}-of-{self._lock_groups}"

    def look_again(self, sku: str) -> None:
        """Forget the cached answers about an item whose stock was changed."""
        self._worker(sku).queue.look_again(sku)

    async def level(self, sku: str) -> Level:
        """Units left and sold."""
        return await self._store.level(sku)

    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """Units left and sold, of some items."""
        return await self._store.levels(skus)

    async def order(self, order: OrderId) -> Order | None:
        """An order by its id, whose secret must be the right one."""
        found = await self._store.order(order.sku, order.number)
        return found if found is not None and order.opens(found.record.secret) else None

    async def paid_with(self, payment_ref: str) -> list[Order]:
        """The orders that have a payment: one of each item, at most.

        Raises `StockCorrupt` if none is found, and some item can't be read.
        """
        skus, found = await self._store.items(), list[Order]()
        unread: StockCorrupt | None = None
        ahead = [skus[first : first + _AT_ONCE] for first in range(0, len(skus), _AT_ONCE)]
        while ahead:
            some = ahead.pop()
            try:
                found += await self._store.paid_with(payment_ref, some)
            except StockCorrupt as error:
                if len(some) == 1:
                    unread = error
                else:
                    ahead += [[sku] for sku in some]
        if unread is not None and not found:
            raise unread
        return found

    def terms_of(self, level: Level) -> Terms:
        """The terms of an item: its own, and else the settings'."""
        return level.terms.completed_by(self._rules.terms)

    def due_in_s(self, level: Level) -> float | None:
        """When units go back or are offered, or the line ends, in seconds from the level's moment; None: not of itself.

        What only the store's wrong clock says is not due.
        """
        terms = self.terms_of(level)
        lasting_s = Windows.of(terms, self._rules.grace_s).lasting_s
        ahead_s = self._clocks.of(level.sku).ahead_s(lasting_s) if self._clocks is not None else 0.0
        found = [] if level.due_in_s is None else [level.due_in_s + ahead_s]
        if level.waiting and level.now is not None:
            now = level.now - ahead_s
            blocked = level.stock < level.wants <= level.stock + level.held
            if outside(terms, now) is None and level.stock and level.wants and not blocked:
                found.append(0.0)
            found += [at - now for at in (terms.starts_at, terms.ends_at) if at and (at > now or at == terms.ends_at)]
        return min(found, default=None)

    async def serve_the_line(self, sku: str, fence: Fence) -> None:
        """Give units that an operator has added to the orders that wait, under the same grant.

        Raises the error of an item that is halted, or of its store; the next batch serves them as well.
        """
        if error := self._halted(sku):
            raise error
        while True:
            batch_id, clocks = uuid.uuid4().hex, self._clocks
            asked = clocks.passed() if clocks is not None else 0.0
            snapshot = (await self._store.prepare(fence, batch_id, {sku: Ask(holds=True, line=True)}))[sku]
            if isinstance(snapshot, StockError):
                raise snapshot
            clocked = Clocked(self._rules.terms, self._rules.grace_s, clocks, asked)
            (part,) = decide_parts(batch_id, {Item(sku): snapshot}, (), clocked)
            if not part.changes_something:
                return
            done = (await self._store.commit(fence, {sku: part.write}))[sku]
            if isinstance(done, StockError):
                raise done

    async def place(self, order: Order) -> Place | None:
        """The place of an order in line; None if it doesn't wait."""
        if order.state is not OrderState.WAITING or (before := await self._store.before(order)) is None:
            return None
        level = await self._store.level(order.sku)
        ends_at = None if level.due_in_s is None or level.now is None else level.now + level.due_in_s
        return Place(before + 1, level.held, ends_at)

    @property
    def has_buyers(self) -> bool:
        """True if buyers wait in this instance."""
        return any(worker.queue for worker in self._workers.values())

    @property
    def buyers_waiting(self) -> int:
        """The number of buyers who wait in this instance."""
        return sum(len(worker.queue) for worker in self._workers.values())

    @property
    def waiting_by_item(self) -> dict[str, int]:
        """The number of buyers who wait in this instance, by item."""
        return {
            sku: number for worker in self._workers.values() for sku, number in worker.queue.waiting_by_item.items()
        }

    @property
    def waits(self) -> dict[str, float]:
        """How many seconds this instance has waited for each lock that it waits for, by the lock's name."""
        return {name: waited_s for name, worker in self._workers.items() if (waited_s := worker.waited_s)}

    @property
    def errors(self) -> dict[str, Exception]:
        """The last error of each item that can't be sold."""
        return {sku: error for worker in self._workers.values() for sku, error in worker.queue.errors.items()}

    async def sells(self) -> bool:
        """Return whether there is an item that can be sold, as far as this instance knows."""
        errors = self.errors
        if not errors:
            return True
        well = (sku for worker in self._workers.values() for sku in worker.queue.selling)
        if any(not self._halted(sku) for sku in well):
            return True
        return any(sku not in errors and not self._halted(sku) for sku in await self._store.items())

    async def close(self, *, within_s: float) -> None:
        """Take no more purchases, serve the waiting buyers for at most some seconds, and release all locks."""
        self.closing = True
        await asyncio.gather(*(worker.drain(within_s) for worker in self._workers.values()))

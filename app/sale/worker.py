"""The worker serves the queue of one lock's items: it reads, decides, commits and answers under a grant of the lock."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Final

from app.errors import (
    BasketNotPossible,
    FenceRefused,
    ForeignFence,
    SeckillError,
    StockBehind,
    StockChanged,
    StockError,
    StockUnavailable,
    UnknownItem,
)
from app.forever import end
from app.orders import Ask, Hold, Outcome, Snapshot
from app.orders.decision import outside
from app.sale.batch import Clocked, Part, ask_all, beyond, by_item, decide_parts, joined
from app.sale.clock import StoreClocks
from app.sale.in_doubt import InDoubt
from app.sale.queue import Entry, EntryState, Item, Queue
from app.sale.rules import Rules
from app.stock import Fence, StockStore
from app.telemetry import logs
from app.telemetry.observer import Observer
from fencelock import AsyncLock, Grant, LockError, LockLost, LockTimeout
from fencelock.kit import Backoff

_log = logging.getLogger(__name__)

_BATCH_MAX: Final = 500  # purchases in a commit: Lua unpacks some thousand values at most, and a script stops the store
_LOOK_AGAIN_S: Final = 0.02
_LOOKS_MAX: Final = 5  # an order, its lines, their orders: a basket that is due at one of its items needs three
_HOLD_MAX_TTLS: Final = 3  # TTLs after which a grant ends even if its worker goes on

Halted = Callable[[str], StockError | None]


class Worker:
    """Group commit: takes the lock, serves as many buyers as `rules` allow, and releases it.

    It runs only while somebody waits. An item that can't be sold is parked with its buyers, and does not stop the
    others. `halted(sku)`: why an item must not be sold, if it must not. `tasks_max`: more than one only if the lock
    locks nothing. `clocks`: compares the store's clocks with ours; None: trust the store's.
    `apart(skus)`: why items can't be written together, "" if they can.
    """

    def __init__(
        self,
        lock: AsyncLock,
        store: StockStore,
        rules: Rules,
        observer: Observer,
        *,
        halted: Halted = lambda sku: None,
        tasks_max: int = 1,
        clocks: StoreClocks | None = None,
        apart: Callable[[Sequence[str]], str] = lambda skus: "",
    ) -> None:
        self._lock = lock
        self._store = store
        self._rules = rules
        self._observer = observer
        self._halted = halted
        self._tasks_max = tasks_max
        self._clocks = clocks
        self._apart = apart
        self._tasks: set[asyncio.Task[None]] = set()
        self._store_is_away = False
        self.queue = Queue(limit=rules.queue_max, observer=observer, on_work=self._start)
        self._in_doubt = InDoubt(store, observer)
        self._asked_at: float | None = None  # for the lock, while we wait for it

    @property
    def waited_s(self) -> float:
        """How many seconds it has waited for the lock; 0 if it does not wait."""
        return 0.0 if self._asked_at is None else asyncio.get_running_loop().time() - self._asked_at

    # -- when it works -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if len(self._tasks) < self._tasks_max:
            # In a context of its own, so that it does not log under the names of the buyer who happened to start it.
            # The task's name is shown in the lock's queue.
            task = asyncio.get_running_loop().create_task(self._run(), name=self._lock.name, context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)  # a task cancelled before it began has run no `finally`

    async def _run(self) -> None:
        task = asyncio.current_task()
        backoff = Backoff(0.02, 0.5)
        try:
            while self._has_work():
                with logs.about():  # its grant, once there is one
                    await self._work(backoff)
        finally:
            # In the same step as the last look at the queue. A done-callback comes a step later: a buyer who came in
            # between would find a task that no longer serves anybody.
            self._tasks.discard(task)

    def _has_work(self) -> bool:
        self._in_doubt.forget_unwanted()  # else the worker would take the lock again and again for nobody
        return self.queue.has_work or self._in_doubt.has_work

    async def _work(self, backoff: Backoff) -> None:
        reason: SeckillError | LockError
        try:
            if self._store_is_away:
                # An instance that can't reach the store must not block others: no lock until it answers.
                in_doubt = [part.item.sku for part in self._in_doubt.next_parts()]
                await self._store.ping([*in_doubt, *self.queue.next_skus])
                self._store_is_away = False
            await self._serve_under_one_grant()
            backoff.reset()
            return
        except LockTimeout:
            return  # another instance's turn; look again
        except LockLost as error:
            self._observer.lost(self._lock.name)
            reason = error
        except StockUnavailable as error:
            self._store_is_away = True
            reason = error
        except (LockError, StockError) as error:
            reason = error
        except Exception:
            _log.exception("unexpected error while serving %s", self._lock.name)
            reason = SeckillError("an error of ours")
        finally:
            self._asked_at = None
        # They keep waiting, and are served when it is over, or answered at their deadline.
        _log.log(backoff.loudness(reason), "%s: %d buyers wait: %s", self._lock.name, len(self.queue), reason)
        await asyncio.sleep(backoff.next_s())

    async def drain(self, within_s: float) -> None:
        """Serve the waiting buyers; after `within_s` seconds refuse the rest, who may try another instance."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        try:
            while (self.queue or self._tasks) and (left_s := until - loop.time()) > 0:
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=left_s)
                else:
                    await asyncio.sleep(min(left_s, _LOOK_AGAIN_S))  # parked items will be back
        finally:  # also for a caller that is cancelled meanwhile
            self._tasks_max = 0  # from now on an item that is no longer parked starts no task
            try:
                await end(*self._tasks)
            finally:
                self.queue.close()

    # -- what it does ------------------------------------------------------------------------------------------------

    async def _serve_under_one_grant(self) -> None:
        loop = asyncio.get_running_loop()
        asked = self._asked_at = loop.time()
        tally = _Tally()
        wait_s, hold_max_s = self._rules.purchase_timeout_s, _HOLD_MAX_TTLS * self._lock.ttl_s
        async with self._lock.holding(wait_s=wait_s, hold_max_s=hold_max_s) as grant:
            granted, self._asked_at = loop.time(), None
            self._observer.granted(self._lock.name, grant.token, granted - asked)
            logs.also_about(token=grant.token)
            left = self._rules.batch_max
            until = granted + self._rules.max_hold_s
            try:
                late = False
                while not late and self._in_doubt.has_work:
                    await self._resolve(grant, tally)
                    late = loop.time() >= until
                while not late and left > 0 and (entries := self.queue.take(min(left, _BATCH_MAX))):
                    left -= len(entries)
                    await self._serve(grant, entries, tally)
                    late = loop.time() >= until
            finally:
                held_s = loop.time() - granted
                self._observer.released(self._lock.name, grant.token, held_s, tally.purchases, tally.units)
        # Not while it is held: a log that nobody reads must not block the sale.
        said = "%s: %d served, waited %.0f ms, held %.0f ms"
        _log.debug(said, self._lock.name, tally.purchases, (granted - asked) * 1000, held_s * 1000)

    async def _serve(self, grant: Grant, entries: list[Entry], tally: "_Tally") -> None:
        """Read, decide, commit and answer; or leave everybody in the queue."""
        batch_id, read_at = uuid.uuid4().hex, asyncio.get_running_loop().time()
        fence, buyers = Fence(grant.token, grant.source), by_item(entries)
        with logs.about(batch=batch_id):
            try:
                asked = self._clocks.passed() if self._clocks is not None else 0.0
                clocked = Clocked(self._rules.terms, self._rules.grace_s, self._clocks, asked)
                snapshots, missing = await self._look(fence, batch_id, ask_all(buyers))
                errors = {item: one for item in buyers if isinstance(one := missing.get(item.sku), StockError)}
                # No await between decision and commit: a buyer whose answer is "nothing was sold" must have no order.
                parts, together = list[Part](), joined(snapshots, entries)
                alone = [{sku} for sku in snapshots if not any(sku in group for group in together)]
                for group in [*together, *alone]:
                    of = {self.queue.item(sku): snapshots[sku] for sku in sorted(group)}
                    own = buyers.get(next(iter(of)), []) if len(of) == 1 else [one for one in entries if one.item in of]
                    found = decide_parts(batch_id, of, own, clocked, missing)
                    parts += found if len(of) > 1 or any(one.entries for one in found) else ()
                grant.ensure_held()
                answers = await self._commit(
                    fence, [part for part in parts if _is_written(part, parts, together)], together
                )
                for part in parts:
                    ids = answers.get(part.item.sku, [])
                    if isinstance(ids, StockError):
                        errors[part.item] = ids
                        continue
                    if self._rules.sold_out_ttl_s:
                        self._remember(part, read_at)
                    self._answer(part, ids, tally)
                for item, error in errors.items():
                    self._note(item, error, buyers.get(item, []))
            finally:
                self.queue.put_back(entries)

    async def _look(
        self, fence: Fence, batch_id: str, asks: dict[str, Ask]
    ) -> tuple[dict[str, Snapshot], dict[str, SeckillError]]:
        """Read all items that the batch is about; of a basket that it changes, or a limit, also the others."""
        snapshots, errors, more = dict[str, Snapshot](), dict[str, SeckillError](), asks
        for _ in range(_LOOKS_MAX):
            others = [sku for sku in more if sku not in asks]
            errors |= {sku: BasketNotPossible(why) for sku in others if (why := self._apart([next(iter(asks)), sku]))}
            errors |= {sku: error for sku in more if (error := self._halted(sku))}
            more = {sku: ask for sku, ask in more.items() if sku not in errors}
            if not more:
                break
            for sku, found in (await self._store.prepare(fence, batch_id, more)).items():
                if isinstance(found, StockError):
                    errors[sku] = found
                    snapshots.pop(sku, None)
                else:
                    snapshots[sku] = found
            asks = asks | more
            more = beyond(snapshots, asks)
        return snapshots, errors

    async def _commit(
        self, fence: Fence, parts: Sequence[Part], together: Sequence[set[str]]
    ) -> dict[str, list[str] | StockError]:
        """Commit; a part that gets no answer is in doubt."""
        answers: dict[str, list[str] | StockError] = {}
        for part in parts:
            part.set_state(EntryState.SENT)
        try:
            if parts:
                answers = await self._store.commit(fence, {part.item.sku: part.write for part in parts}, together)
        except StockUnavailable as error:
            answers = dict.fromkeys((part.item.sku for part in parts), error)
            raise
        finally:
            in_doubt = []
            for part in parts:
                match answers.get(part.item.sku):
                    case None | StockUnavailable(untouched=False):
                        in_doubt.append(part)  # serving these buyers once more could sell to them twice
                    case StockError():
                        part.set_state(EntryState.TAKEN)  # the store says that it was not written
            self._in_doubt.add(in_doubt)
        return answers

    async def _resolve(self, grant: Grant, tally: "_Tally") -> None:
        """Resolve batches in doubt, and answer their buyers, or have them wait again."""
        parts = self._in_doubt.next_parts()
        try:
            resolved = await self._in_doubt.resolve(Fence(grant.token, grant.source), parts)
        except StockUnavailable:
            for part in parts:
                self.queue.park(part.item, part.item.backoff.next_s())
            if not self.queue.has_work:
                raise
            return  # perhaps only one of several servers is away: items of the others can be sold
        for part, numbers in resolved:
            with logs.about(batch=part.write.batch_id, sku=part.item.sku):
                if isinstance(numbers, StockError):
                    self._note(part.item, numbers, part.entries)
                    continue
                _log.warning("a batch whose answer was lost was%s committed", " not" if numbers is None else "")
                if numbers is None:
                    part.set_state(EntryState.WAITING)
                else:
                    self._answer(part, numbers, tally)

    def _remember(self, part: Part, read_at: float) -> None:
        """Cache the refusal that a part implies for purchases in the next moment."""
        ttl_s, now = self._rules.sold_out_ttl_s, time.time()
        refusal = outside(part.terms, now)
        if refusal is Outcome.NOT_STARTED:
            ttl_s = min(ttl_s, (part.terms.starts_at or now) - now)
        if refusal is None and part.terms.price is not None:
            refusal = Outcome.HOLD_REQUIRED
        if refusal is None and part.sells_the_last:
            refusal = Outcome.SOLD_OUT
        part.item.refuse(refusal, read_at + ttl_s, limited=bool(part.terms.limit_per_buyer))

    def _answer(self, part: Part, numbers: list[str], tally: "_Tally") -> None:
        part.item.is_well()
        tally.purchases += len(part.entries)
        tally.units += part.units_sold
        self._observer.committed(len(part.entries))
        for entry, answer in part.answers(numbers):
            self.queue.answer(entry, answer)

    def _note(self, item: Item, error: StockError, entries: Sequence[Entry]) -> None:
        """Handle the error of one item; it does not concern the others."""
        with logs.about(sku=item.sku):
            match error:
                case StockChanged():
                    # Something was faster: an operator, or, without a lock, another instance. Read again.
                    self._observer.conflicted()
                    self.queue.park(item, item.conflicts.next_s())
                case FenceRefused() | StockBehind() | StockUnavailable():
                    if isinstance(error, FenceRefused):
                        self._observer.fenced(self._lock.name, item.sku)
                    again = item.error is not None and isinstance(item.error[0], FenceRefused)
                    item.error, item.sells = (error, asyncio.get_running_loop().time()), False
                    _log.log(item.backoff.loudness(error), "%d buyers wait: %s", item.waiting, error)
                    self.queue.park(item, item.backoff.next_s())
                    # A late holder is refused once, and its next token is the highest.
                    if isinstance(error, StockBehind | ForeignFence) or (isinstance(error, FenceRefused) and again):
                        self.queue.block(item)
                case _:
                    # No such item, or a corrupt stock: time will not change it.
                    _log.log(logging.DEBUG if isinstance(error, UnknownItem) else logging.ERROR, "%s", error)
                    for entry in entries:
                        sent = entry.state is EntryState.SENT
                        in_basket = isinstance(entry.command, Hold) and entry.command.lines
                        named = in_basket and isinstance(error, UnknownItem)
                        why = BasketNotPossible(f"items: {error}") if named else error
                        self.queue.answer(entry, entry.too_late(str(error)) if sent else why)
                    self.queue.forget(item)


def _is_written(part: Part, parts: Sequence[Part], together: Sequence[set[str]]) -> bool:
    """Whether a part changes something, or belongs to parts of which one does: then the store compares it, too."""
    group = next((one for one in together if part.item.sku in one), ())
    return part.changes_something or any(one.changes_something for one in parts if one.item.sku in group)


class _Tally:
    """The purchases and units of a grant."""

    __slots__ = ("purchases", "units")

    def __init__(self) -> None:
        self.purchases = self.units = 0

"""Serves the buyers of the items of one lock: they queue here, and one grant serves all who wait."""

import asyncio
import heapq
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Protocol

from app.errors import (
    Closing,
    FenceRefused,
    LockError,
    LockLost,
    LockTimeout,
    NotDecided,
    OutcomeUnknown,
    QueueFull,
    SaleError,
    SeckillError,
    StockBehind,
    StockChanged,
    StockError,
    StockUnavailable,
)
from app.locks import DistributedLock, Grant
from app.sale.batch import Item, Part, Pending, Trouble, ask, by_item, decided, supposed
from app.sale.decision import Answer, Outcome, Purchase, Verdict
from app.stock import Fence, StockStore
from app.telemetry import logs

_log = logging.getLogger(__name__)

_CHUNK: Final = 500  # purchases a commit: Lua unpacks a few thousand values at most, and a script stops the whole store
_LOOK_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Rules:
    """How a sale is run.

    `batch_max`: purchases a grant serves at most (1: the articles' one lock per request); `max_hold_s`: how long a
    grant serves at most, so that other instances get their turn; `queue_max`: buyers who may wait for one lock in
    this instance; `purchase_timeout_s`: a purchase's own deadline; `limit_per_buyer`: units, 0 for no limit;
    `sold_out_ttl_s`: how long the store's word that nothing is left is good for (0: ask each time); `starts_at`,
    `ends_at`: when purchases are served, in seconds since 1970, by this machine's clock.
    """

    batch_max: int = 1000
    max_hold_s: float = 0.05
    queue_max: int = 20_000
    purchase_timeout_s: float = 10.0
    limit_per_buyer: int = 0
    sold_out_ttl_s: float = 0.0
    starts_at: float | None = None
    ends_at: float | None = None


class Stats(Protocol):
    """What a cashier reports, for metrics."""

    def served(self, outcome: str) -> None:
        """A buyer was answered: an outcome, or the name of the error."""

    def committed(self, purchases: int) -> None:
        """A batch of that many purchases was decided."""

    def granted(self, lock: str, token: int, waited_s: float) -> None:
        """A lock was got after waiting that long."""

    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        """It is given back; so many purchases were decided under it, and so many units sold."""

    def fenced(self, lock: str, sku: str) -> None:
        """The store refused our token."""

    def lost(self, lock: str) -> None:
        """A grant was lost while we held it."""

    def conflicted(self) -> None:
        """What was decided on had changed before it was written."""

    def settled(self, result: str) -> None:
        """What became of a batch whose answer was lost: "committed", "not_committed", "unasked" (all have given up)."""


@dataclass(frozen=True, slots=True)
class _Stall:
    for_s: float
    begins: Callable[[int], None]
    begun: "asyncio.Future[bool]"

    async def run(self, token: int) -> None:
        self.begins(token)
        if not self.begun.done():
            self.begun.set_result(True)
        await asyncio.sleep(self.for_s)


_Failure = tuple[Item, StockError, list[Pending]]  # and the buyers who met with it


class _Done:
    """What was done under a grant."""

    __slots__ = ("purchases", "units")

    def __init__(self) -> None:
        self.purchases = self.units = 0

    def add(self, part: Part) -> None:
        self.purchases += len(part.live)
        self.units += part.units


class Cashier:
    """The queue of one lock's items in this instance, and the till that serves it (several if the lock locks nothing).

    Buyers are served in the order of their arrival, whatever they want to buy. A till takes the lock, serves all who
    wait, as far as `rules` let it, and gives the lock back; it runs only while somebody waits. An item that can't be
    sold is set aside with its buyers, and does not stop the others. All of this happens on one event loop.

    A commit that is not answered is never sent again and never waited for under the lock: the till gives the lock back,
    so that others can sell, and finds out under its next grant what became of it, before anybody is told anything.
    """

    def __init__(self, lock: DistributedLock, store: StockStore, rules: Rules, stats: Stats, *, tills: int = 1) -> None:
        self._lock = lock
        self._store = store
        self._rules = rules
        self._stats = stats
        self._tills_max = tills
        self._tills: set[asyncio.Task[None]] = set()
        self._items: dict[str, Item] = {}
        self._queue: deque[Pending] = deque()
        self._aside: set[Item] = set()
        self._in_hand: list[list[Pending]] = []  # taken from the queue, not answered
        self._unsettled: list[Part] = []
        self._store_is_away = False
        self._stall: _Stall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def waiting(self) -> int:
        """Buyers who are not answered yet."""
        return len(self._queue) + sum(map(len, self._taken))

    @property
    def waiting_by_item(self) -> "Counter[str]":
        """The same by item."""
        return Counter(pending.purchase.sku for pending in self._everybody())

    @property
    def _taken(self) -> list[Sequence[Pending]]:
        """Groups of buyers who are not in the queue any more and not answered yet, in the order of their deadlines."""
        aside = [item.aside for item in self._aside if item.aside]
        return [*self._in_hand, *(part.live for part in self._unsettled), *aside]

    def _everybody(self) -> Iterator[Pending]:
        yield from self._queue
        for group in self._taken:
            yield from group

    @property
    def idle(self) -> bool:
        """Whether there is nobody to serve, and no till at work."""
        return not (self._queue or self._tills or self._unsettled or self._aside)

    @property
    def will_stall(self) -> bool:
        """Whether the next write will be held back."""
        return self._stall is not None

    def forget_idle(self) -> set[str]:
        """Forget the items that nobody waits for; those that are left."""
        busy = {pending.item for pending in self._everybody()} | self._aside
        self._items = {sku: item for sku, item in self._items.items() if item in busy}
        return set(self._items)

    def has_nothing_for(self, purchase: Purchase) -> bool:
        """Whether it is known, from a moment ago, that nothing is left for this purchase.

        One with a key has to be looked up all the same: it may be asked again, and have been sold to before.
        """
        item = self._items.get(purchase.sku)
        if item is None or not item.sold_out_until or purchase.key is not None:
            return False
        if self._rules.limit_per_buyer and purchase.buyer is None:
            return False  # has to be told what is missing
        if asyncio.get_running_loop().time() >= item.sold_out_until:
            item.sold_out_until = 0.0
            return False
        return True

    def look_again(self, sku: str) -> None:
        """An item's stock was changed: what was known of it is no longer true."""
        if sku in self._items:
            self._items[sku].sold_out_until = 0.0

    async def stall(self, for_s: float, begins: Callable[[int], None], *, within_s: float) -> bool:
        """Hold the next write back for so long, after `begins(token)`; whether one came `within_s`.

        To see what a pause at the worst moment does. It is a write like any other that is on its way for long: nobody
        is told that nothing was sold, and whether it still counts when it arrives is for the store to say.
        """
        if self._stall is not None and not self._stall.begun.done():
            self._stall.begun.set_result(False)  # this one comes in its place
        stall = self._stall = _Stall(for_s, begins, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(within_s):
                return await stall.begun
        except TimeoutError:
            return False
        finally:
            if self._stall is stall:
                self._stall = None

    def submit(self, purchase: Purchase, deadline: float) -> "asyncio.Future[Answer]":
        """Queue a purchase; its future gets the answer, or the error, not later than `deadline` (the loop's clock).

        Raises `QueueFull` or `Closing` at once.
        """
        if self._closing:
            raise Closing("this instance is shutting down; nothing was sold")
        if self.waiting >= self._rules.queue_max:
            self._stats.served(QueueFull.__name__)
            raise QueueFull(f"{self._rules.queue_max} buyers are waiting already; nothing was sold")
        loop = asyncio.get_running_loop()
        item = self._items.get(purchase.sku)
        if item is None:
            item = self._items[purchase.sku] = Item(purchase.sku)
        pending = Pending(purchase, item, loop.create_future(), deadline)
        self._queue.append(pending)
        if self._timer is None:
            self._timer = loop.call_at(pending.deadline, self._sweep)
        self._open_till()
        return pending.future

    async def drain(self, within_s: float) -> None:
        """Take no more purchases, serve those who wait; after `within_s` the rest are told to go elsewhere."""
        self._closing = True
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while not self.idle and (left_s := until - loop.time()) > 0:
            if self._tills:
                await asyncio.wait(self._tills, timeout=left_s)
            else:
                await asyncio.sleep(min(left_s, _LOOK_AGAIN_S))  # who was set aside will be brought back
        for till in list(self._tills):
            till.cancel()
        if self._tills:
            await asyncio.wait(self._tills)
        for pending in list(self._everybody()):
            self._tell_error(pending, _too_late(pending, "this instance is shutting down"))
        self._queue.clear()
        self._unsettled.clear()
        for timer in (self._timer, *(item.timer for item in self._aside)):
            if timer is not None:
                timer.cancel()

    # -- a till ------------------------------------------------------------------------------------------------------

    def _open_till(self) -> None:
        if len(self._tills) < self._tills_max:
            # In a context of its own: it serves many, and is about none of those that it is opened by.
            till = asyncio.get_running_loop().create_task(
                self._run_till(), name=f"till {self._lock.name}", context=Context()
            )
            self._tills.add(till)

    async def _run_till(self) -> None:
        till = asyncio.current_task()
        try:
            await self._serve_while_somebody_waits()
        finally:
            # In the same step as the last look at the queue. A done-callback comes a step later: a buyer who came in
            # between found a till that was still there and would serve nobody any more.
            self._tills.discard(till)

    async def _serve_while_somebody_waits(self) -> None:
        trouble = Trouble()
        while self._queue or self._to_settle:
            with logs.about():  # its grant, once there is one
                await self._try_to_serve(trouble)

    async def _try_to_serve(self, trouble: Trouble) -> None:
        try:
            if self._store_is_away:
                # Who can't reach the store must not stand in the way of those who can: no lock until it answers.
                await self._store.ping()
                self._store_is_away = False
            await self._serve_under_one_grant()
            trouble.over()
            return
        except LockTimeout:
            return  # somebody else's turn; look again
        except LockLost as error:
            self._stats.lost(self._lock.name)
            reason: SeckillError = error
        except StockUnavailable as error:
            self._store_is_away = True
            reason = error
        except LockError as error:
            reason = error
        except Exception:
            _log.exception("the till of %s failed in a way that it must not", self._lock.name)
            reason = SeckillError("an error in the till")
        # They wait on, and are served when it is over or told at their deadline.
        pause_s, level = trouble.again(reason)
        _log.log(level, "%s: %d buyers wait: %s", self._lock.name, self.waiting, reason)
        await asyncio.sleep(pause_s)
        self._forget_unwanted()

    async def _serve_under_one_grant(self) -> None:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._lock.on_loop(wait_s=self._rules.purchase_timeout_s) as grant:
            granted = loop.time()
            waited_s = granted - asked
            self._stats.granted(self._lock.name, grant.token, waited_s)
            logs.also_about(token=grant.token)
            fence = Fence(grant.token, grant.source)
            done = _Done()
            left = self._rules.batch_max
            try:
                late = False
                while not late and (parts := self._to_settle):
                    with logs.about(batch=parts[0].write.batch_id, sku=parts[0].item.sku):
                        await self._settle(fence, parts[0], done)
                    late = loop.time() - granted >= self._rules.max_hold_s
                while not late and left > 0 and (batch := self._take(min(left, _CHUNK))):
                    left -= len(batch)
                    await self._serve(grant, fence, batch, done)
                    late = loop.time() - granted >= self._rules.max_hold_s
            finally:
                held_s = loop.time() - granted
                self._stats.released(self._lock.name, grant.token, held_s, done.purchases, done.units)
                said = "%s: %d served, waited %.0f ms, held %.0f ms"
                _log.debug(said, self._lock.name, done.purchases, waited_s * 1000, held_s * 1000)

    def _take(self, most: int) -> list[Pending]:
        batch: list[Pending] = []
        while self._queue and len(batch) < most:
            pending = self._queue.popleft()
            if pending.item.aside is not None:
                pending.item.aside.append(pending)
            elif not pending.future.done():
                batch.append(pending)
        return batch

    async def _serve(self, grant: Grant, fence: Fence, batch: list[Pending], done: _Done) -> None:
        """Read, decide, commit, answer; or leave everybody where they were."""
        batch_id = uuid.uuid4().hex
        self._in_hand.append(batch)
        try:
            with logs.about(batch=batch_id):
                await self._decide_and_commit(grant, fence, batch_id, batch, done)
        finally:
            self._in_hand.remove(batch)
            self._back_to_the_queue(batch)

    async def _decide_and_commit(
        self, grant: Grant, fence: Fence, batch_id: str, batch: list[Pending], done: _Done
    ) -> None:
        read_at = asyncio.get_running_loop().time()
        buyers = by_item(batch)
        items = len(buyers)
        limit = self._rules.limit_per_buyer

        # No await from a decision to its commit: who was told meanwhile "nothing was sold" must not be sold anything.
        # An operator's pause is to come between a read and a write.
        of_each = buyers.items() if self._stall is None else ()
        maybe = [supposed(item, batch_id, fence, self._store, of_item, limit) for item, of_item in of_each]
        if tried := [part for part in maybe if part is not None]:
            grant.ensure_held()
            answers = await self._commit(fence, tried)
            as_supposed: list[Part] = []
            for part in tried:
                answer = answers[part.item.sku]
                part.item.left = part.item.left - part.units if isinstance(answer, list) else 0
                if not isinstance(answer, StockChanged):
                    as_supposed.append(part)
                    del buyers[part.item]
            self._finish(as_supposed, answers, [], done, read_at, items)

        if buyers:
            failed: list[_Failure] = []
            asks = {item.sku: ask(of_item, limit) for item, of_item in buyers.items()}
            snapshots = await self._store.read_many(fence, batch_id, asks)
            parts: list[Part] = []
            for item, of_item in buyers.items():
                snapshot = snapshots[item.sku]
                if isinstance(snapshot, StockError):
                    failed.append((item, snapshot, of_item))
                else:
                    parts.append(decided(item, batch_id, snapshot, of_item, limit))
            answers = {}
            if to_write := [part for part in parts if part.write.sold or part.write.refused]:
                grant.ensure_held()
                answers = await self._commit(fence, to_write)
            self._finish(parts, answers, failed, done, read_at, items)

    def _finish(
        self,
        parts: Sequence[Part],
        answers: Mapping[str, list[str] | StockError],
        failed: list[_Failure],
        done: _Done,
        read_at: float,
        items: int,
    ) -> None:
        """Answer the buyers of the parts that were written, or had nothing to be; take note of what went wrong.

        `items`: that the batch has.
        """
        of = items if self._store.scattered else len(parts) + len(failed)
        served = 0
        for part in parts:
            ids = answers.get(part.item.sku, [])
            if isinstance(ids, StockError):
                failed.append((part.item, ids, part.live))
                continue
            part.item.trouble.over()
            part.item.conflicts.over()
            if self._rules.sold_out_ttl_s and part.sells_the_last:
                part.item.sold_out_until = read_at + self._rules.sold_out_ttl_s
            served += len(part.live)
            done.add(part)
            self._answer(part.live, part.verdicts, iter(ids))
        if served:
            self._stats.committed(served)
        self._take_note(failed, of=of)

    async def _commit(self, fence: Fence, parts: Sequence[Part]) -> dict[str, list[str] | StockError]:
        """Commit; what ends without an answer is left among the unsettled."""
        for part in parts:
            for pending in part.live:
                pending.sent = True
        answers: dict[str, list[str] | StockError] = {}
        try:
            if self._stall is not None:
                stall, self._stall = self._stall, None
                await stall.run(fence.token)
            answers = await self._store.commit_many(fence, {part.item.sku: part.write for part in parts})
        finally:
            for part in parts:
                answer = answers.get(part.item.sku)
                if answer is None or (isinstance(answer, StockUnavailable) and not answer.untouched):
                    # Serving these buyers once more could sell to them twice.
                    self._unsettled.append(part)
                elif isinstance(answer, StockError):
                    for pending in part.live:
                        pending.sent = False  # the store has said that it was not written
        return answers

    def _take_note(self, failed: Sequence[_Failure], *, of: int) -> None:
        """What goes wrong with some items is theirs; if none of so many could reach the store, it is the store's."""
        away = [error for _, error, _ in failed if isinstance(error, StockUnavailable)]
        if away and len(away) == of:
            raise away[0]
        for item, error, buyers in failed:
            with logs.about(sku=item.sku):
                self._note(item, error, buyers)

    def _note(self, item: Item, error: StockError, buyers: Sequence[Pending]) -> None:
        match error:
            case StockChanged():
                # Somebody was faster: an operator's hand, or, without a lock, another instance. Look again.
                self._stats.conflicted()
                self._set_aside(item, item.conflicts.again())
            case FenceRefused() | StockBehind() | StockUnavailable():
                if isinstance(error, FenceRefused):
                    self._stats.fenced(self._lock.name, item.sku)
                pause_s, level = item.trouble.again(error)
                _log.log(level, "%d buyers wait: %s", self.waiting_by_item[item.sku], error)
                self._set_aside(item, pause_s)
            case _:
                # No such item, or nothing that one could sell from: time will not change it.
                _log.error("%s", error)
                for pending in buyers:
                    self._tell_error(pending, _too_late(pending, str(error)) if pending.sent else error)

    def _set_aside(self, item: Item, pause_s: float) -> None:
        """Its buyers wait on, and are served when it is over or told at their deadline; the others don't wait."""
        if item.aside is None:
            item.aside = deque()
            self._aside.add(item)
            item.timer = asyncio.get_running_loop().call_later(pause_s, self._bring_back, item)

    def _bring_back(self, item: Item) -> None:
        buyers, item.aside = item.aside or (), None
        self._aside.discard(item)
        self._back_to_the_queue(buyers)
        self._forget_unwanted()
        if self._queue or self._to_settle:
            self._open_till()

    @property
    def _to_settle(self) -> list[Part]:
        return [part for part in self._unsettled if part.item.aside is None]

    async def _settle(self, fence: Fence, part: Part, done: _Done) -> None:
        """Find out what became of a part that was sent, and tell its buyers, or put them back into the queue."""
        self._unsettled.remove(part)
        self._in_hand.append(part.live)
        item, batch = part.item, part.write
        try:
            order_ids = await self._store.settle(item.sku, fence, batch)
        except (FenceRefused, StockBehind) as error:
            self._unsettled.append(part)
            self._note(item, error, ())
            return
        except StockUnavailable as error:
            self._unsettled.append(part)
            if not self._store.scattered:
                raise
            self._note(item, error, ())
            return
        except StockError as error:
            self._note(item, error, part.live)
            return
        except BaseException:
            self._unsettled.append(part)
            raise
        finally:
            self._in_hand.remove(part.live)
        _log.warning("a batch whose answer was lost was%s committed", " not" if order_ids is None else "")
        self._stats.settled("not_committed" if order_ids is None else "committed")
        if order_ids is not None:
            done.add(part)
            self._stats.committed(len(part.live))
            self._answer(part.live, part.verdicts, iter(order_ids))
            return
        for pending in part.live:
            pending.sent = False
        self._back_to_the_queue(part.live)

    def _forget_unwanted(self) -> None:
        wanted = [one for one in self._unsettled if one.wanted]
        for _ in range(len(self._unsettled) - len(wanted)):
            self._stats.settled("unasked")
        self._unsettled = wanted

    def _back_to_the_queue(self, buyers: Iterable[Pending]) -> None:
        """Those of them who are to be served again, each to their own place."""
        again = [pending for pending in buyers if not pending.future.done() and not pending.sent]
        if again:
            self._queue = deque(heapq.merge(again, self._queue, key=lambda pending: pending.deadline))

    def _answer(self, live: Sequence[Pending], verdicts: Sequence[Verdict], order_ids: Iterator[str]) -> None:
        answers: list[Answer | None] = []
        for pending, verdict in zip(live, verdicts, strict=True):
            answer = self._answer_one(pending.purchase, verdict, order_ids, answers)
            answers.append(answer)
            if answer is None:
                if verdict.error is not None:
                    self._tell_error(pending, verdict.error)
            elif not pending.future.done():
                self._stats.served(answer.outcome)
                pending.future.set_result(answer)

    def _answer_one(
        self, purchase: Purchase, verdict: Verdict, order_ids: Iterator[str], earlier: Sequence[Answer | None]
    ) -> Answer | None:
        if verdict.settled is not None:
            settled = verdict.settled
            return Answer(Outcome(settled.outcome), settled.quantity, settled.order_id, replayed=True)
        if verdict.repeats is not None:
            first = earlier[verdict.repeats]
            return None if first is None else Answer(first.outcome, first.quantity, first.order_id, replayed=True)
        if verdict.outcome is Outcome.SOLD:
            return Answer(Outcome.SOLD, purchase.quantity, next(order_ids))
        return None if verdict.outcome is None else Answer(verdict.outcome, purchase.quantity)

    # -- deadlines and ends ------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Tell those whose deadline has passed. One timer for all: they arrive in the order of their deadlines."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for group in self._taken:
            for pending in group:
                if pending.deadline <= now:
                    self._tell_error(pending, _too_late(pending, "it took too long"))
        while self._queue and (self._queue[0].deadline <= now or self._queue[0].future.done()):
            pending = self._queue.popleft()
            self._tell_error(pending, _too_late(pending, "it took too long"))
        waiting = [group[0].deadline for group in (*self._taken, self._queue) if group]
        # Among the taken are also some who were told already; look again soon rather than count them.
        self._timer = loop.call_at(max(min(waiting), now + 0.01), self._sweep) if waiting else None

    def _tell_error(self, pending: Pending, error: Exception) -> None:
        if not pending.future.done():
            self._stats.served(type(error).__name__)
            pending.fail(error)


def _too_late(pending: Pending, reason: str) -> SaleError:
    if pending.sent:
        return OutcomeUnknown(f"{reason}, while the purchase was being written; the same idempotency key will tell")
    return NotDecided(f"{reason}; nothing was sold")

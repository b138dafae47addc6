"""Serves the buyers of one item: they queue here, and one lock grant serves all who wait."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from app.sale.decision import Outcome, Purchase, Verdict, decide
from app.stock import Batch, Fence, Refused, Settled, Snapshot, Sold, StockStore

_log = logging.getLogger(__name__)

_CHUNK: Final = 500  # purchases a commit: Lua unpacks a few thousand values at most, and a script stops the whole store
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Rules:
    """How a sale is run.

    `batch_max`: purchases a grant serves at most (1: the articles' one lock per request); `max_hold_s`: how long a
    grant serves at most, so that other instances get their turn; `queue_max`: buyers who may wait for an item in
    this instance; `purchase_timeout_s`: a purchase's own deadline; `limit_per_buyer`: units, 0 for no limit;
    `sold_out_ttl_s`: how long the store's word that nothing is left is good for (0: ask each time).
    """

    batch_max: int = 1000
    max_hold_s: float = 0.05
    queue_max: int = 20_000
    purchase_timeout_s: float = 10.0
    limit_per_buyer: int = 0
    sold_out_ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a buyer is told. `replayed`: this is the answer that the same idempotency key got before."""

    outcome: Outcome
    quantity: int
    order_id: str | None = None
    replayed: bool = False


class Stats(Protocol):
    """What a cashier reports, for metrics."""

    def served(self, outcome: str) -> None:
        """A buyer was answered: an outcome, or the name of the error."""

    def committed(self, purchases: int) -> None:
        """A batch of that many purchases was decided."""

    def waited(self, seconds: float) -> None:
        """The lock was got after waiting that long."""

    def held(self, seconds: float) -> None:
        """The lock was held that long."""

    def fenced(self) -> None:
        """The store refused our token."""

    def lost(self) -> None:
        """A grant was lost while we held it."""

    def settled(self, result: str) -> None:
        """What became of a batch whose answer was lost: "committed", "not_committed", "unasked" (all have given up)."""


class _Pending:
    """A purchase that is not answered yet."""

    __slots__ = ("deadline", "future", "purchase", "sent")

    def __init__(self, purchase: Purchase, future: "asyncio.Future[Answer]", deadline: float) -> None:
        self.purchase = purchase
        self.future = future
        self.deadline = deadline
        self.sent = False  # a commit with it is out: from here on "nothing was sold" may be untrue

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True, eq=False)
class _Unsettled:
    """A batch that was sent to the store, and no answer came: written, or not, or still on its way."""

    write: Batch
    live: list[_Pending]
    verdicts: list[Verdict]

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits to be told."""
        return any(not pending.future.done() for pending in self.live)


class Cashier:
    """One item's queue in this instance, and the till that serves it (several tills only if the lock locks nothing).

    Buyers are served in the order of their arrival. A till takes the lock, serves all who wait, as far as `rules` let
    it, and gives the lock back; it runs only while somebody waits. All of this happens on one event loop.

    A commit that is not answered is never sent again and never waited for under the lock: the till gives the lock back,
    so that others can sell, and finds out under its next grant what became of it, before anybody is told anything.
    """

    def __init__(
        self, sku: str, lock: DistributedLock, store: StockStore, rules: Rules, stats: Stats, *, tills: int = 1
    ) -> None:
        self._sku = sku
        self._lock = lock
        self._store = store
        self._rules = rules
        self._stats = stats
        self._tills_max = tills
        self._tills: set[asyncio.Task[None]] = set()
        self._queue: deque[_Pending] = deque()
        self._in_hand: list[list[_Pending]] = []  # taken from the queue, not answered
        self._unsettled: list[_Unsettled] = []
        self._store_is_away = False
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._sold_out_until = 0.0  # the loop's clock

    @property
    def waiting(self) -> int:
        """Buyers who are not answered yet."""
        return len(self._queue) + sum(map(len, self._taken))

    @property
    def _taken(self) -> list[list[_Pending]]:
        """Batches of buyers who are not in the queue any more and not answered yet."""
        return self._in_hand + [one.live for one in self._unsettled]

    @property
    def idle(self) -> bool:
        """Whether there is nobody to serve, and no till at work."""
        return not self._queue and not self._tills and not self._unsettled

    def has_nothing_for(self, purchase: Purchase) -> bool:
        """Whether it is known, from a moment ago, that nothing is left for this purchase.

        One with a key has to be looked up all the same: it may be asked again, and have been sold to before.
        """
        if not self._sold_out_until or purchase.key is not None:
            return False
        if self._rules.limit_per_buyer and purchase.buyer is None:
            return False  # has to be told what is missing
        if asyncio.get_running_loop().time() >= self._sold_out_until:
            self._sold_out_until = 0.0
            return False
        return True

    def look_again(self) -> None:
        """The stock was changed: what was known of it is no longer true."""
        self._sold_out_until = 0.0

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
        pending = _Pending(purchase, loop.create_future(), deadline)
        self._queue.append(pending)
        if self._timer is None:
            self._timer = loop.call_at(pending.deadline, self._sweep)
        if len(self._tills) < self._tills_max:
            till = loop.create_task(self._run_till(), name=f"till {self._sku}")
            self._tills.add(till)
        return pending.future

    async def drain(self, within_s: float) -> None:
        """Take no more purchases, serve those who wait; after `within_s` the rest are told to go elsewhere."""
        self._closing = True
        if self._tills:
            await asyncio.wait(self._tills, timeout=within_s)
        for till in list(self._tills):
            till.cancel()
        if self._tills:
            await asyncio.wait(self._tills)
        self._answer_all(lambda pending: _too_late(pending, "this instance is shutting down"))
        if self._timer is not None:
            self._timer.cancel()

    # -- a till ------------------------------------------------------------------------------------------------------

    async def _run_till(self) -> None:
        till = asyncio.current_task()
        try:
            await self._serve_while_somebody_waits()
        finally:
            # In the same step as the last look at the queue. A done-callback comes a step later: a buyer who came in
            # between found a till that was still there and would serve nobody any more.
            self._tills.discard(till)

    async def _serve_while_somebody_waits(self) -> None:
        pause_s = 0.0
        last_trouble: type[SeckillError] | None = None  # said once, not twice a second
        while self._queue or self._unsettled:
            try:
                if self._store_is_away:
                    # Who can't reach the store must not stand in the way of those who can: no lock until it answers.
                    await self._store.ping()
                    self._store_is_away = False
                await self._serve_under_one_grant()
                pause_s, last_trouble = 0.0, None
                continue
            except (LockTimeout, StockChanged):
                continue  # nothing is wrong: somebody else's turn, or an operator's hand; look again
            except LockLost as error:
                self._stats.lost()
                trouble: SeckillError = error
            except FenceRefused as error:
                self._stats.fenced()
                trouble = error
            except StockUnavailable as error:
                self._store_is_away = True
                trouble = error
            except (LockError, StockBehind) as error:
                trouble = error
            except StockError as error:
                # No such item, or nothing that one could sell from: time will not change it.
                _log.error("%s: %s", self._sku, error)
                self._fail_all(error)
                return
            except Exception:
                _log.exception("the till of %s failed in a way that it must not", self._sku)
                trouble = SeckillError("an error in the till")
            # They wait on, and are served when it is over or told at their deadline.
            level = logging.DEBUG if type(trouble) is last_trouble else logging.WARNING
            _log.log(level, "%s: %d buyers wait: %s", self._sku, self.waiting, trouble)
            last_trouble = type(trouble)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2 or _FIRST_PAUSE_S)
            await asyncio.sleep(pause_s)
            self._forget_unwanted()

    async def _serve_under_one_grant(self) -> None:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._lock.on_loop(wait_s=self._rules.purchase_timeout_s) as grant:
            granted = loop.time()
            self._stats.waited(granted - asked)
            fence = Fence(grant.token, grant.source)
            left = self._rules.batch_max
            try:
                while self._unsettled:
                    await self._settle(fence)
                while left > 0 and (batch := self._take(min(left, _CHUNK))):
                    left -= len(batch)
                    await self._serve(grant, fence, batch)
                    if loop.time() - granted >= self._rules.max_hold_s:
                        break
            finally:
                self._stats.held(loop.time() - granted)

    def _take(self, most: int) -> list[_Pending]:
        batch: list[_Pending] = []
        while self._queue and len(batch) < most:
            pending = self._queue.popleft()
            if not pending.future.done():
                batch.append(pending)
        return batch

    async def _serve(self, grant: Grant, fence: Fence, batch: list[_Pending]) -> None:
        """Read, decide, commit, answer; or leave everybody where they were."""
        self._in_hand.append(batch)
        try:
            await self._decide_and_commit(grant, fence, batch)
        except BaseException:
            # Who is `sent` stays among the unsettled: serving them once more could sell to them twice.
            self._back_to_the_queue(batch)
            raise
        finally:
            self._in_hand.remove(batch)

    async def _decide_and_commit(self, grant: Grant, fence: Fence, batch: list[_Pending]) -> None:
        batch_id = uuid.uuid4().hex
        read_at = asyncio.get_running_loop().time()
        snapshot = await self._store.read(
            self._sku,
            fence,
            batch_id,
            buyers=_distinct(pending.purchase.buyer for pending in batch),
            keys=_distinct(pending.purchase.key for pending in batch),
        )
        # Who was told meanwhile that nothing was sold must not be sold anything. No await from here to the commit.
        live = [pending for pending in batch if not pending.future.done()]
        purchases = [pending.purchase for pending in live]
        verdicts = decide(snapshot, purchases, limit_per_buyer=self._rules.limit_per_buyer)
        write = _to_write(batch_id, snapshot, purchases, verdicts)
        order_ids: list[str] = []
        if write.sold or write.refused:
            grant.ensure_held()
            order_ids = await self._commit(fence, _Unsettled(write, live, verdicts))
        if snapshot.stock == sum(sold.quantity for sold in write.sold) and self._rules.sold_out_ttl_s:
            self._sold_out_until = read_at + self._rules.sold_out_ttl_s
        self._stats.committed(len(live))
        self._answer(live, verdicts, iter(order_ids))

    async def _commit(self, fence: Fence, batch: _Unsettled) -> list[str]:
        """Commit; if it ends without an answer the batch is left among the unsettled."""
        for pending in batch.live:
            pending.sent = True
        try:
            return await self._store.commit(self._sku, fence, batch.write)
        except BaseException as error:
            if isinstance(error, StockError) and not isinstance(error, StockUnavailable):
                for pending in batch.live:
                    pending.sent = False  # the store has said that it was not written
            else:
                self._unsettled.append(batch)
            raise

    async def _settle(self, fence: Fence) -> None:
        """Find out what became of a batch, and tell its buyers, or put them back at the head of the queue."""
        batch = self._unsettled.pop()  # the last one first: those who go back to the queue's head are then in order
        self._in_hand.append(batch.live)
        try:
            order_ids = await self._store.settle(self._sku, fence, batch.write)
        except BaseException:
            self._unsettled.append(batch)
            raise
        finally:
            self._in_hand.remove(batch.live)
        _log.warning(
            "%s: batch %s, whose answer was lost, was%s committed",
            self._sku,
            batch.write.batch_id,
            " not" if order_ids is None else "",
        )
        self._stats.settled("not_committed" if order_ids is None else "committed")
        if order_ids is not None:
            self._stats.committed(len(batch.live))
            self._answer(batch.live, batch.verdicts, iter(order_ids))
            return
        for pending in batch.live:
            pending.sent = False
        self._back_to_the_queue(batch.live)

    def _forget_unwanted(self) -> None:
        wanted = [one for one in self._unsettled if one.wanted]
        for _ in range(len(self._unsettled) - len(wanted)):
            self._stats.settled("unasked")
        self._unsettled = wanted

    def _back_to_the_queue(self, batch: Sequence[_Pending]) -> None:
        self._queue.extendleft(pending for pending in reversed(batch) if not pending.future.done() and not pending.sent)

    def _answer(self, live: Sequence[_Pending], verdicts: Sequence[Verdict], order_ids: Iterator[str]) -> None:
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
        if self._tills_max > 1:  # they put back what they could not serve in any order
            self._queue = deque(sorted(self._queue, key=lambda pending: pending.deadline))
        for batch in self._taken:
            for pending in batch:
                if pending.deadline <= now:
                    self._tell_error(pending, _too_late(pending, "it took too long"))
        while self._queue and (self._queue[0].deadline <= now or self._queue[0].future.done()):
            pending = self._queue.popleft()
            self._tell_error(pending, _too_late(pending, "it took too long"))
        waiting = [batch[0].deadline for batch in self._taken if batch] + [p.deadline for p in list(self._queue)[:1]]
        # Among the taken are also some who were told already; look again soon rather than count them.
        self._timer = loop.call_at(max(min(waiting), now + 0.01), self._sweep) if waiting else None

    def _tell_error(self, pending: _Pending, error: Exception) -> None:
        if not pending.future.done():
            self._stats.served(type(error).__name__)
            pending.fail(error)

    def _fail_all(self, error: StockError) -> None:
        self._answer_all(lambda pending: _too_late(pending, str(error)) if pending.sent else error)

    def _answer_all(self, error: Callable[[_Pending], Exception]) -> None:
        for pending in [*self._queue, *(pending for batch in self._taken for pending in batch)]:
            self._tell_error(pending, error(pending))
        self._queue.clear()
        self._unsettled.clear()


def _too_late(pending: _Pending, reason: str) -> SaleError:
    if pending.sent:
        return OutcomeUnknown(f"{reason}, while the purchase was being written; the same idempotency key will tell")
    return NotDecided(f"{reason}; nothing was sold")


def _distinct(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value is not None))


def _to_write(batch_id: str, snapshot: Snapshot, purchases: Sequence[Purchase], verdicts: Sequence[Verdict]) -> Batch:
    sold, refused = [], []
    for purchase, verdict in zip(purchases, verdicts, strict=True):
        if verdict.outcome is Outcome.SOLD:
            sold.append(Sold(purchase.quantity, purchase.buyer, purchase.key))
        elif verdict.outcome is not None and purchase.key is not None:
            refused.append(Refused(purchase.key, Settled(verdict.outcome, purchase.quantity, purchase.buyer)))
    return Batch(batch_id, snapshot.stock, sold, refused, snapshot.last_entry)

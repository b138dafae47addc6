"""A sender: the one instance that delivers the events of all journals to a receiver, at least once, in order per order.

    journals --reader--> chain of an order --gate--> request --> receiver
                  |                                     |
    store <-------+-- cursor, parked, dead: saved ------+

The next event of an order:

    waits --2xx------------------------------------> delivered: the cursor may move on
      |                                                  ^
      +-- refused, while others get through --> parked --+-- refused for `give_up_s` --> dead: the next one is tried
      |
      +-- nobody gets through: the receiver is away; cursors stand, and one event is tried now and then

Trust: the lock `!sender` only keeps two senders from working side by side. A sender that was paused may still have
requests under way while the next one sends, so an event may come twice. Its notes are fenced by its grant's token: a
later sender's are never overwritten, and `FenceRefused` ends its term.

Failures: after a death the next sender begins at the saved cursor, and sends the last second's events again. While the
store is away nothing is read or saved. An item whose journal can't be read is stuck, and delays no other one.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from typing_extensions import override

from app.errors import EXPECTED, FenceRefused, StockCorrupt
from app.forever import end, run_forever
from app.journals import Journals
from app.office import Office, holding
from app.orders import OrderId
from app.outbox.endpoint import Result
from app.outbox.feed import Chain
from app.outbox.gate import Gate
from app.outbox.message import Message
from app.outbox.reader import Reader
from app.outbox.references import References
from app.outbox.state import Parked
from app.outbox.webhook import Webhook
from app.stock import Fence
from app.telemetry.observer import Observer
from fencelock import AsyncLocks, Grant

_log = logging.getLogger(__name__)

AT_ONCE: Final = 20  # requests that are on their way
_RETRY_EVERY_S: Final = 0.2
_SLICE: Final = 50  # events that are written in one turn of the loop
_AGAIN_S: Final = 1.0
_WARN_AFTER_S: Final = 60.0
_NAMED_MAX: Final = 20
_WAITS_MAX: Final = 3  # for a busy receiver; after that, one of the events may be the cause
_WHY_MAX: Final = 300  # characters

Load = list[tuple[Chain, int]]  # orders, and how many of the first events of each


@dataclass(frozen=True, slots=True)
class OutboxView:
    """A sender's state, for people and metrics."""

    sends: bool = False
    waiting: int = 0  # events behind the cursors
    parked: int = 0  # orders
    dead: int = 0  # events
    oldest_s: float = 0.0  # age of the first event that waits
    away_s: float = 0.0  # for so long no event has got through although some were tried
    stuck: tuple[str, ...] = ()  # items that it can't read or note


class Sender(Office[Grant, "_Sending"]):
    """A candidate for the office of a receiver's sender, and the sender once it has the lock.

    `lock`: the lock's name; `retry_s`: the first wait after a failure, which doubles up to four hours; `give_up_s`: how
    long an event is tried.
    """

    def __init__(
        self,
        locks: AsyncLocks,
        lock: str,
        journals: Journals,
        observer: Observer,
        webhook: Webhook,
        *,
        retry_s: float,
        give_up_s: float,
    ) -> None:
        super().__init__(f"sender {webhook.receiver.suffix}".rstrip(), lambda: holding(locks, lock))
        self._locks = locks
        self.lock = lock
        self.journals = journals
        self.observer = observer
        self.webhook = webhook
        self.retry_s = retry_s
        self.give_up_s = give_up_s
        self.receiver = webhook.receiver
        self.said = ""

    @override
    def begin(self, grant: Grant) -> "_Sending":
        # Where a lock gives no token that grows, its grants can't be told apart.
        fencing = self._locks.guarantees.fencing
        return _Sending(self, Fence(grant.token, grant.source) if fencing else Fence(1, "unfenced"), grant)

    @override
    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self.webhook.close()

    @property
    def view(self) -> OutboxView:
        """The sender's state, if this instance is the sender."""
        return self.work.view if self.work is not None else OutboxView()

    @property
    @override
    def figures(self) -> dict[str, float]:
        view = self.view
        own = {"waiting": view.waiting, "parked": view.parked, "dead": view.dead, "stuck": len(view.stuck)}
        return {"sender": view.sends, **own, "oldest_seconds": view.oldest_s, "away_seconds": view.away_s}

    @property
    @override
    def warnings(self) -> list[str]:
        view, found = self.view, []
        whose = f"the receiver {self.receiver.name}" if self.receiver.suffix else "the receiver of events"
        if view.away_s > _WARN_AFTER_S:
            found.append(f"{whose} is away: none got through for {view.away_s:.0f} s")
        to = f" to {self.receiver.name}" if self.receiver.suffix else ""
        if view.dead:
            found.append(f"{view.dead} events{to} are tried no more: `seckill orders events` lists them")
        if view.stuck:
            named = ", ".join(view.stuck[:_NAMED_MAX]) + (", ..." if len(view.stuck) > _NAMED_MAX else "")
            found.append(f"events{to} of {len(view.stuck)} items can't be read or noted (see the log): {named}")
        return found


class _Sending:
    """The sender's work under one grant."""

    def __init__(self, sender: Sender, fence: Fence, grant: Grant) -> None:
        self._sender = sender
        self._grant = grant
        self.gate = Gate(sender.webhook, sender.retry_s, sender.observer)
        self.pace = sender.journals.pace
        self.reader = Reader(sender.journals, sender.receiver, fence, self.gate)
        self._references = References(sender.journals.store)
        self._fits = sender.webhook.batch  # the number of events that fit into a request, as far as we know

    @property
    def view(self) -> OutboxView:
        now = time.time()
        feeds = self.reader.feeds.values()
        since = [feed.window[0].at for feed in feeds if feed.window]
        since += [one.at for feed in feeds for one in feed.state.parked.values()]
        return OutboxView(
            sends=True,
            waiting=sum(max(feed.waiting, len(feed.window)) for feed in feeds),
            parked=sum(len(feed.state.parked) for feed in feeds),
            dead=sum(len(feed.state.dead) for feed in feeds),
            oldest_s=max(0.0, now - min(since)) if since else 0.0,
            away_s=self.gate.away_s,
            stuck=self.reader.stuck,
        )

    async def run(self) -> None:
        """Send, until the lock is lost, or a later sender has been here."""
        _log.info("events are sent to %s", self._sender.webhook.where)
        try:
            await self._run()
        except FenceRefused as error:
            if str(error) != self._sender.said:
                self._sender.said = str(error)
                _log.warning("this instance can't send events: %s", error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        forever = partial(run_forever, log=_log, what="sending events")
        work: list[tuple[str, Coroutine[Any, Any, Any]]] = [("sender's lane", self._lane()) for _ in range(AT_ONCE)]
        work += [
            ("sender saves", self.reader.save_forever()),
            ("sender reads", forever(self.reader.read, every_s=_AGAIN_S)),
            ("sender retries", forever(self.reader.retry, every_s=_RETRY_EVERY_S)),
        ]
        tasks = [loop.create_task(self.pace.counted(one), name=name) for name, one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            try:
                await end(*tasks)
            finally:
                if not self._grant.lost:
                    with contextlib.suppress(*EXPECTED):
                        await self.reader.save()

    async def _lane(self) -> None:
        while not self._grant.lost:
            load = self._load(await self.reader.ready.get())
            chains = [chain for chain, _ in load]
            try:
                await self._send(load)
                for chain in chains:
                    self._go_on(chain)
            except EXPECTED as error:  # the store was away when it was asked for a reference
                _log.debug("sending events: %s", error)
                for chain in filter(self._is_current, chains):
                    self._again_later(chain)
            except Exception as error:
                _log.exception("unexpected error in sending events")
                for chain in filter(self._is_current, chains):  # not again at once, as it may fail each time
                    self._put_off(chain, Result(0, f"unexpected {type(error).__name__}; the log has it"), probe=False)

    def _load(self, first: Chain) -> Load:
        """As many events as go into one request. An order that was refused before goes alone."""
        load, room, chain = list[tuple[Chain, int]](), self._fits, first
        while True:
            load.append((chain, min(room, len(chain.waiting))))
            room -= load[-1][1]
            if room <= 0 or first.parked is not None or self.reader.ready.empty():
                return load
            chain = self.reader.ready.get_nowait()
            if chain.parked is not None:
                self.reader.ready.put_nowait(chain)
                return load

    def _is_current(self, chain: Chain) -> bool:
        """Return whether this chain has to send its order's events, and no later chain."""
        feed = chain.feed
        return self.reader.feeds.get(feed.sku) is feed and feed.chains.get(chain.order) is chain

    def _again_later(self, chain: Chain) -> None:
        asyncio.get_running_loop().call_later(_AGAIN_S, self.reader.ready.put_nowait, chain)

    async def _send(self, load: Load) -> None:
        """Deliver in one request; if it is refused, in halves, so that a bad event parks only its own order."""
        todo = [load]
        while todo:
            if some := self._current(todo.pop()):
                todo += await self._attempt(some)
                await self.pace.rest()

    async def _attempt(self, load: Load) -> list[Load]:
        """Try a load once; return its unsent parts, the last part first."""
        later: list[Load] = []
        probe = await self.gate.admitted()
        try:
            load = self._current(load)
            if self._grant.lost or not load:
                return []
            if probe and load[0][0].parked is not None and self.reader.has_fresh:
                del load[0][0].feed.chains[load[0][0].order]  # a parked order has its turn when the gate is open
                return []
            load, rest = _cut(load, 1 if probe else self._fits)
            later = [rest]
            result, asked = await self._try(load)
        finally:
            if probe:
                self.gate.tried()
        load = self._current(load)  # without the events of a new sale, and without events that an operator wants again
        if not result.why:
            self._taken(load)
        elif load:
            size, first = sum(count for _, count in load), load[0][0]
            busy = first.waits < _WAITS_MAX and (result.status == 429 or (result.status == 503 and size > 1))
            if asked:  # of several one may be odd: no answer to all of them counts as one order's
                counts = size == 1 or busy or not result.status
                self.gate.was_refused(_anew(load)[:1] if counts else [], result, probe)
            if busy:
                waits = first.waits + 1
                for chain, _ in load:
                    chain.waits = waits
                self.gate.rest(self.gate.wait_s(waits, result))
                return [*later, load]
            if result.status == 413 and size > 1:
                self._fits = min(self._fits, size // 2)
            if size > 1:
                return [*later, *reversed(_cut(load, size // 2))]
            self._put_off(first, result, probe)
        return later

    def _current(self, load: Load) -> Load:
        return [(chain, count) for chain, count in load if count and self._is_current(chain)]

    def _taken(self, load: Load) -> None:
        """Note that the first events of these orders were delivered."""
        for chain, count in load:
            for _ in range(count):
                pending = chain.waiting.popleft()
                if pending.slot is not None:
                    pending.slot.done = True
                elif chain.parked is not None:
                    chain.parked.places.remove(pending.place)
                self._sender.observer.delivered("delivered", self._sender.receiver.suffix)
            chain.waits = 0
            chain.feed.advance()
        self._got_through()

    def _go_on(self, chain: Chain) -> None:
        """Queue the rest of a chain, or note that nothing of it waits."""
        if not self._is_current(chain):
            return
        if chain.waiting:
            self.reader.ready.put_nowait(chain)
        else:
            self._close(chain)

    def _close(self, chain: Chain) -> None:
        """Note that nothing of a chain waits any more."""
        feed, parked = chain.feed, chain.parked
        del feed.chains[chain.order]
        if parked is not None:
            parked.tries, parked.due = 0, time.time()
            if not parked.places:
                del feed.state.parked[chain.order]

    async def _try(self, load: Load) -> tuple[Result, bool]:
        """Try some events once, in one request; whether the receiver was asked is returned, too."""
        asked = False
        try:
            messages = []
            for chain, count in load:
                for pending in itertools.islice(chain.waiting, count):
                    messages.append(Message.of(pending.event, await self._references.of(pending.event)))
                    if len(messages) % _SLICE == 0:
                        await asyncio.sleep(0)  # buyers have their turn
            asked = True
            return await self._sender.webhook.post(messages), asked
        except StockCorrupt as error:
            return Result(0, str(error)), False
        except EXPECTED:
            raise
        except Exception as error:
            _log.exception("unexpected error in sending events")
            return Result(0, f"unexpected {type(error).__name__}; the log has it"), asked

    def _got_through(self) -> None:
        away_since = self.gate.got_through()
        if away_since is None:
            return
        now, self._fits = time.time(), self._sender.webhook.batch  # the address may be a new one, or accept more
        for feed in self.reader.feeds.values():
            for parked in feed.state.parked.values():
                # An order that was refused while all were begins anew, but once only: it may be refused always.
                if parked.since >= away_since and not parked.again:
                    parked.tries, parked.since, parked.due, parked.again = 0, now, now, True
                    feed.dirty = True

    def _put_off(self, chain: Chain, result: Result, probe: bool) -> None:
        """Park the order, and give its first event up if that has failed for too long."""
        now, feed, parked = time.time(), chain.feed, chain.parked
        wait_s, why = self.gate.wait_s(parked.tries + 1 if parked else 1, result), result.why[:_WHY_MAX]
        if parked is None:
            places = [pending.place for pending in chain.waiting]
            at = chain.waiting[0].event.at
            parked = Parked(chain.order, places, at, 1, now, now + wait_s, why, wait_s=wait_s)
            feed.state.parked[chain.order] = parked
            for pending in chain.waiting:
                assert pending.slot is not None  # noqa: S101 - only those of a parked order have none
                pending.slot.done = True
        else:
            parked.tries, parked.why = parked.tries + 1, why
            parked.due, parked.wait_s, parked.since = now + wait_s, wait_s, min(parked.since, now)
            if now - parked.since > self._sender.give_up_s and not probe:
                place = parked.places[0]
                feed.state.give_up(parked, now)
                self._sender.observer.delivered("dead", self._sender.receiver.suffix)
                _log.error(
                    "event %s of order %s is a dead letter: %s",
                    place.entry,
                    OrderId(feed.sku, chain.order),
                    why,
                )
        del feed.chains[chain.order]
        feed.advance()


def _cut(load: Load, size: int) -> tuple[Load, Load]:
    """Cut a load after a number of events; an order may have events in both parts."""
    first, rest = list[tuple[Chain, int]](), list[tuple[Chain, int]]()
    for chain, count in load:
        here = min(count, size)
        size -= here
        first.append((chain, here))
        rest.append((chain, count - here))
    return first, rest


def _anew(load: Load) -> list[tuple[str, str]]:
    """The orders of a load that are not known to be refused."""
    return [(chain.feed.sku, chain.order) for chain, _ in load if chain.parked is None]

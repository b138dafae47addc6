"""The sender: the one instance that delivers the events of all journals, at least once, in order per order.

It follows each journal from a cursor that the store keeps. An order whose event is refused while others get through is
parked, with a back-off of its own. When nobody gets through, the receiver is away: then the cursors stand, and one
event is tried now and then.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.errors import EXPECTED, FenceRefused, StockChanged, StockCorrupt, StockError
from app.forever import run_forever
from app.orders import Event, EventKind, OrderId
from app.outbox.state import Parked, Place, State, Wish, rank
from app.outbox.webhook import Result, Webhook
from app.stock import Fence, Level, Outbox, StockStore
from app.telemetry.observer import Observer
from fencelock import AsyncLocks, LockLost

_log = logging.getLogger(__name__)

AT_ONCE: Final = 20  # events that are on their way
_WINDOW: Final = 1000  # events that are read and not yet delivered
_PARKED_MAX: Final = 1000  # orders; then the cursors stand
_PAGE: Final = 200
_AWAY_AFTER: Final = 5  # orders in a row of which none gets through
_LONGEST_S: Final = 4 * 3600.0
_LOOK_EVERY_S: Final = 0.2
_TOP_UP_S: Final = 0.05
_ALL_EVERY_S: Final = 1.0
_SAVE_EVERY_S: Final = 1.0
_RETRY_EVERY_S: Final = 0.2
_SKUS_AT_ONCE: Final = 100
_REST: Final = 20  # times as long as it worked, while buyers wait here: as the auditor
_IDLE_REST: Final = 2
_REST_MAX_S: Final = 2.0
_ALL_REST_MAX_S: Final = 5.0  # between looks at all items: new ones, and an operator's wish, are noticed in seconds
_BUSY_PAUSE_S: Final = 0.4  # of each lane after an event while buyers wait: all lanes take 5 % of an instance
_AGAIN_S: Final = 1.0
_REFS_MAX: Final = 10_000
_WARN_AFTER_S: Final = 60.0
_SAY_GONE_EVERY_S: Final = 600.0
_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class OutboxView:
    """The sender's state, for people and metrics.

    `waiting`: events behind the cursors; `parked`: orders; `dead`: events; `oldest_s`: since when the first one waits;
    `away_s`: since when none has got through although some were tried; `stuck`: items that it
    can't read or note.
    """

    sends: bool = False
    waiting: int = 0
    parked: int = 0
    dead: int = 0
    oldest_s: float = 0.0
    away_s: float = 0.0
    stuck: tuple[str, ...] = ()


class Sender:
    """A candidate for the sender's office, and the sender once it has the lock. Lives on one event loop.

    `lock`: the lock's name; `retry_s`: the first wait after a failure, which doubles up to four hours; `give_up_s`: how
    long an event is tried; `busy`: whether buyers, who go first, wait here.
    """

    def __init__(
        self,
        locks: AsyncLocks,
        lock: str,
        store: StockStore,
        observer: Observer,
        webhook: Webhook,
        *,
        retry_s: float,
        give_up_s: float,
        busy: Callable[[], bool],
    ) -> None:
        self._locks = locks
        self._lock = lock
        self.store = store
        self.observer = observer
        self.webhook = webhook
        self.retry_s = retry_s
        self.give_up_s = give_up_s
        self.busy = busy
        self._office: _Office | None = None
        self._task: asyncio.Task[Any] | None = None
        self._said = ""

    def start(self) -> None:
        """Stand for the office."""
        standing = run_forever(self._stand, every_s=_AGAIN_S, log=_log, what="sending events")
        self._task = asyncio.get_running_loop().create_task(standing, name="sender")

    async def close(self) -> None:
        """Note how far we have come, and give the office up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.webhook.close()

    @property
    def view(self) -> OutboxView:
        """The sender's state, if this instance is the sender."""
        return self._office.view if self._office is not None else OutboxView()

    @property
    def figures(self) -> dict[str, float]:
        """The `view` as figures for `/metrics`."""
        view = self.view
        own = {"waiting": view.waiting, "parked": view.parked, "dead": view.dead, "stuck": len(view.stuck)}
        return {"sender": view.sends, **own, "oldest_seconds": view.oldest_s, "away_seconds": view.away_s}

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator, in sentences."""
        view, found = self.view, []
        if view.away_s > _WARN_AFTER_S:
            found.append(f"the receiver of events is away: none got through for {view.away_s:.0f} s")
        if view.dead:
            found.append(f"{view.dead} events are tried no more: `seckill orders events` lists them")
        if view.stuck:
            named = ", ".join(view.stuck[:_NAMED_MAX]) + (", ..." if len(view.stuck) > _NAMED_MAX else "")
            found.append(f"events of {len(view.stuck)} items wait, as their data is unreadable (see the log): {named}")
        return found

    async def _stand(self) -> None:
        async with self._locks.lock(self._lock).holding(cancel_on_lost=True) as grant:
            if self._locks.degraded:
                return  # a fallback gives everybody a grant
            # Where a lock gives no token that grows, its grants can't be told apart.
            fencing = self._locks.guarantees.fencing
            fence = Fence(grant.token, grant.source) if fencing else Fence(1, "unfenced")
            self._office = _Office(self, fence, lambda: grant.lost)
            _log.info("this instance sends the events to %s", self.webhook.where)
            try:
                await self._office.run()
            except FenceRefused as error:
                if str(error) != self._said:
                    _log.warning("this instance can't send events: %s", error)
                    self._said = str(error)
            finally:
                self._office = None


@dataclass(slots=True)
class _Slot:
    """An entry that was read. `done`: delivered, or parked."""

    entry: str
    at: float
    done: bool = False


@dataclass(slots=True)
class _Pending:
    event: Event
    place: Place
    slot: _Slot | None


@dataclass(slots=True)
class _Chain:
    """The events of an order that wait, oldest first: new ones, or of an order that was `parked`."""

    feed: "_Feed"
    order: str
    waiting: deque[_Pending] = field(default_factory=deque)
    parked: Parked | None = None


@dataclass(slots=True)
class _Feed:
    """An item's journal, as far as it was read."""

    sku: str
    outbox: Outbox
    state: State
    read_to: str
    last: str = ""  # the journal's end, as far as we know
    window: deque[_Slot] = field(default_factory=deque)
    chains: dict[str, _Chain] = field(default_factory=dict)
    dirty: bool = False
    waiting: int = 0

    def advance(self) -> None:
        """Move the cursor behind all that is done."""
        while self.window and self.window[0].done:
            self.state.cursor = self.window.popleft().entry
            self.state.count += 1
            self.waiting = max(0, self.waiting - 1)
        self.dirty = True


class _Office:
    """The sender's work under one grant."""

    def __init__(self, sender: Sender, fence: Fence, lost: Callable[[], bool]) -> None:
        self._sender = sender
        self._store = sender.store
        self._fence = fence
        self._lost = lost
        self._feeds: dict[str, _Feed] = {}
        self._ready: asyncio.Queue[_Chain] = asyncio.Queue()
        self._looked_at_all = 0.0
        self._rested_s = 0.0  # so far
        self._odd: dict[str, str] = {}  # items that could not be looked at, and why
        self._said: dict[str, dict[str, str]] = {}  # what can't be done, for which items, and why, as the log has it
        self._refs: OrderedDict[OrderId, str | None] = OrderedDict()
        # The gate is closed while the receiver is away; then one at a time gets through, to try.
        self._closed_until: float | None = None  # by the monotonic clock, as the wall clock may be wrong for a while
        self._probing = False
        self._probes = 0
        self._moved = asyncio.Event()
        self._failed_orders: set[tuple[str, str]] = set()  # for the first time since one got through
        self._failing_since: float | None = None
        self._said_gone = 0.0

    @property
    def view(self) -> OutboxView:
        now = time.time()
        feeds = self._feeds.values()
        since = [feed.window[0].at for feed in feeds if feed.window]
        since += [one.at for feed in feeds for one in feed.state.parked.values()]
        return OutboxView(
            sends=True,
            waiting=sum(max(feed.waiting, len(feed.window)) for feed in feeds),
            parked=sum(len(feed.state.parked) for feed in feeds),
            dead=sum(len(feed.state.dead) for feed in feeds),
            oldest_s=max(0.0, now - min(since)) if since else 0.0,
            away_s=now - self._failing_since if self._failing_since is not None else 0.0,
            stuck=tuple(sorted({sku for items in self._said.values() for sku in items})),
        )

    async def run(self) -> None:
        """Send, until the lock is lost. Raises `FenceRefused` if a later sender has been here."""
        loop = asyncio.get_running_loop()
        forever: dict[str, Any] = {"log": _log, "what": "sending events"}
        tasks = [loop.create_task(self._lane(), name="sender's lane") for _ in range(AT_ONCE)]
        tasks += [
            loop.create_task(self._save_forever(), name="sender saves"),
            loop.create_task(run_forever(self._read, every_s=_LOOK_EVERY_S, **forever), name="sender reads"),
            loop.create_task(run_forever(self._retry, every_s=_RETRY_EVERY_S, **forever), name="sender retries"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not self._lost():
                with contextlib.suppress(*EXPECTED):
                    await self._save()

    async def _rest(self, began: float) -> None:
        ended = time.monotonic()
        await asyncio.sleep(min(_REST_MAX_S, (ended - began) * (_REST if self._sender.busy() else _IDLE_REST)))
        self._rested_s += time.monotonic() - ended

    def _say(self, what: str, odd: dict[str, str]) -> None:
        """Warn of each item with which something can't be done, once for each reason, and say when it can be."""
        before, self._said[what] = self._said.get(what, {}), odd
        for sku, why in odd.items() - before.items():
            _log.warning("events of %s can't be %s, and those of others go on: %s", sku, what, why)
        for sku in before.keys() - odd.keys():
            _log.info("events of %s are %s again", sku, what)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        if time.monotonic() > self._looked_at_all:
            began, rested_s = time.monotonic(), self._rested_s
            await self._look_at_all()
            worked_s = time.monotonic() - began - (self._rested_s - rested_s)
            rest_s = min(_ALL_REST_MAX_S, _REST * worked_s)
            self._looked_at_all = time.monotonic() + max(_ALL_EVERY_S, rest_s)
        else:
            await self._look_at_ends(list(self._feeds))
        odd = self._odd.copy()
        while behind := [feed for feed in self._feeds.values() if feed.last != feed.read_to and feed.sku not in odd]:
            for feed in behind:
                if not self._has_room:
                    break
                began = time.monotonic()
                with _apart(feed.sku, odd):
                    await self._read_page(feed)
                await self._rest(began)
            if not self._has_room:
                await asyncio.sleep(_TOP_UP_S if self._closed_until is None else _ALL_EVERY_S)
                if time.monotonic() > self._looked_at_all:
                    odd = self._said.get("read", {}) | odd  # some were not tried
                    break
        self._say("read", odd)

    @property
    def _has_room(self) -> bool:
        feeds = self._feeds.values()
        parked = sum(len(feed.state.parked) for feed in feeds)
        return parked < _PARKED_MAX and sum(len(feed.window) for feed in feeds) + _PAGE <= _WINDOW

    async def _look_at_all(self) -> None:
        """Find new items, new sales, and what operators have asked for."""
        self._odd, skus = {}, await self._store.items()
        for sku in self._feeds.keys() - set(skus):
            del self._feeds[sku]
        for first in range(0, len(skus), _SKUS_AT_ONCE):
            page = skus[first : first + _SKUS_AT_ONCE]
            began = time.monotonic()
            for sku, outbox in (await self._store.outbox(page)).items():
                feed = self._feeds.get(sku)
                if isinstance(outbox, StockError):
                    if isinstance(outbox, StockCorrupt):
                        self._odd[sku] = str(outbox)
                    continue
                if feed is None or feed.outbox.sale != outbox.sale:
                    feed = self._feeds[sku] = _feed_of(sku, outbox)
                if outbox.wish:
                    with _apart(sku, self._odd):
                        await self._grant_wish(feed, outbox)
            await self._look_at_ends(page)
            for sku in page:
                feed = self._feeds.get(sku)
                if feed is not None:
                    behind = feed.last != feed.state.cursor
                    with _apart(sku, self._odd):
                        feed.waiting = max(0, await self._store.count_entries(sku) - feed.state.count) if behind else 0
            await self._rest(began)

    async def _look_at_ends(self, skus: list[str]) -> None:
        for first in range(0, len(skus), _SKUS_AT_ONCE):
            began = time.monotonic()
            for sku, level in (await self._store.levels(skus[first : first + _SKUS_AT_ONCE])).items():
                feed = self._feeds.get(sku)
                if feed is not None and isinstance(level, Level):
                    feed.last = level.last_entry or feed.read_to
                elif isinstance(level, StockCorrupt):
                    self._odd[sku] = str(level)
            if len(skus) > _SKUS_AT_ONCE:
                await self._rest(began)

    async def _read_page(self, feed: _Feed) -> None:
        page = await self._store.journal(feed.sku, after=feed.read_to or None, limit=_PAGE)
        if self._feeds.get(feed.sku) is not feed:
            return
        if not page:  # a new sale, whose entries are not behind those of the one before
            del self._feeds[feed.sku]
            return
        for event in page:
            self._take(feed, event)
        if len(page) < _PAGE:
            feed.last = feed.read_to

    def _take(self, feed: _Feed, event: Event) -> None:
        order, place = event.order.number, Place(feed.read_to, event.entry)
        slot = _Slot(event.entry, event.at)
        feed.read_to = event.entry
        feed.window.append(slot)
        chain, parked = feed.chains.get(order), feed.state.parked.get(order)
        if parked is not None:  # it waits behind the one that is refused
            parked.places.append(place)
            slot.done = True
            feed.advance()
        elif chain is not None:
            chain.waiting.append(_Pending(event, place, slot))
        else:
            chain = feed.chains[order] = _Chain(feed, order, deque([_Pending(event, place, slot)]))
            self._ready.put_nowait(chain)

    async def _grant_wish(self, feed: _Feed, outbox: Outbox) -> None:
        # Entries that were read are forgotten, and read anew.
        state = feed.state
        try:
            wish = Wish.from_text(outbox.wish)
            if wish.since is not None:
                places = (state.cursor, state.count), await self._find(feed.sku, wish.since)
                cursor, state.count = min(places, key=lambda place: rank(place[0]))  # never past what was not sent
                state.go_back(cursor)
            if wish.dead:
                state.revive(time.time())
            _log.info("events of %s are sent again, as an operator asks: %s", feed.sku, outbox.wish)
        except (ValueError, TypeError, StockCorrupt) as error:
            _log.warning("what an operator asks for events of %s is not done: %s: %s", feed.sku, outbox.wish, error)
        if self._closed_until is not None:  # tried at once, too
            self._closed_until, self._probes = 0.0, 0
            self._moved.set()
        fresh = self._feeds[feed.sku] = _Feed(feed.sku, outbox, state, state.cursor, feed.last, dirty=True)
        await self._save_one(fresh)

    async def _find(self, sku: str, entry: str) -> tuple[str, int]:
        """Find the last entry that is there up to `entry` ("": none), and count those up to it."""
        rank(entry)  # raises
        found, count = "", 0
        while page := await self._store.journal(sku, after=found or None, until=entry, limit=_PAGE):
            found, count = page[-1].entry, count + len(page)
        return found, count

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _lane(self) -> None:
        while not self._lost():
            chain = await self._ready.get()
            try:
                await self._send(chain)
            except EXPECTED as error:  # the store, which was asked for a reference
                _log.debug("sending events: %s", error)
                self._again_later(chain)
            except Exception as error:
                _log.exception("unexpected error in sending events")
                if self._is_current(chain):  # not at once again: it may be so each time
                    self._put_off(chain, Result(0, f"unexpected {type(error).__name__}; the log has it"), probe=False)

    def _is_current(self, chain: _Chain) -> bool:
        """Return whether the events of its order are this chain's to send, and no later one's."""
        feed = chain.feed
        return self._feeds.get(feed.sku) is feed and feed.chains.get(chain.order) is chain

    def _again_later(self, chain: _Chain) -> None:
        asyncio.get_running_loop().call_later(_AGAIN_S, self._ready.put_nowait, chain)

    async def _send(self, chain: _Chain) -> None:
        feed, parked = chain.feed, chain.parked
        while chain.waiting:
            probe = await self._admitted()
            try:
                if self._lost() or not self._is_current(chain):
                    return
                pending = chain.waiting[0]
                result, asked = await self._try(pending.event)
            finally:
                if probe:
                    self._probing = False
                    self._moved.set()
            if not self._is_current(chain):
                return  # a new sale has begun, or an operator wants this again
            if result.why:
                if asked:
                    self._count_failure(chain, result, probe)
                self._put_off(chain, result, probe)
                return
            self._sender.observer.delivered("delivered")
            self._got_through()
            chain.waiting.popleft()
            if pending.slot is not None:
                pending.slot.done = True
            elif parked is not None:
                parked.places.remove(pending.place)
            feed.advance()
            if self._sender.busy():
                await asyncio.sleep(_BUSY_PAUSE_S)
        self._close(chain)

    def _close(self, chain: _Chain) -> None:
        """Note that nothing of a chain waits any more."""
        if not self._is_current(chain):
            return
        feed, parked = chain.feed, chain.parked
        del feed.chains[chain.order]
        if parked is not None:
            parked.tries, parked.due = 0, time.time()
            if not parked.places:
                del feed.state.parked[chain.order]

    async def _try(self, event: Event) -> tuple[Result, bool]:
        """Try an event once; whether the receiver was asked is returned, too."""
        try:
            return await self._sender.webhook.post(event, await self._ref(event)), True
        except StockCorrupt as error:
            return Result(0, str(error)), False
        except EXPECTED:
            raise
        except Exception as error:
            _log.exception("unexpected error in sending events")
            return Result(0, f"unexpected {type(error).__name__}; the log has it"), True

    async def _ref(self, event: Event) -> str | None:
        """The shop's own number of an order, which its first event has."""
        if event.kind is EventKind.SOLD:
            return None
        if event.kind is EventKind.HELD:
            found = event.facts.get("ref")
        elif event.order in self._refs:
            return self._refs[event.order]
        else:
            order = await self._store.order(event.sku, event.order.number)
            found = order.record.ref if order is not None else None
        self._refs[event.order] = found
        if len(self._refs) > _REFS_MAX:
            self._refs.popitem(last=False)
        return found

    async def _admitted(self) -> bool:
        """Wait until the gate is open, or for our turn to try whether the receiver is back: True."""
        while self._closed_until is not None:
            left_s = self._closed_until - time.monotonic()
            if left_s <= 0 and not self._probing:
                self._probing = True
                return True
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), max(0.01, left_s) if not self._probing else None)
        return False

    def _got_through(self) -> None:
        failing_since, self._failing_since = self._failing_since, None
        self._failed_orders.clear()
        if self._closed_until is None:
            return
        self._closed_until, self._probes = None, 0
        self._moved.set()
        _log.info("the receiver of events is back: %s", self._sender.webhook.where)
        now = time.time()
        for feed in self._feeds.values():
            for parked in feed.state.parked.values():
                # An order that was refused while all were begins anew, but once only: it may be refused always.
                if failing_since is not None and parked.since >= failing_since and not parked.again:
                    parked.tries, parked.since, parked.due, parked.again = 0, now, now, True
                    feed.dirty = True

    def _count_failure(self, chain: _Chain, result: Result, probe: bool) -> None:
        """Note that the receiver has refused an event; it may be away."""
        now = time.time()
        self._sender.observer.delivered("refused" if result.status else "unanswered")
        if self._failing_since is None:
            self._failing_since = now
        if result.status == 410 and now > self._said_gone + _SAY_GONE_EVERY_S:
            self._said_gone = now
            where = self._sender.webhook.where
            _log.error("%s says 410 Gone: it wants no events; without SECKILL_WEBHOOK_URL none are sent", where)
        if chain.parked is None:
            self._failed_orders.add((chain.feed.sku, chain.order))
        if probe or (self._closed_until is None and len(self._failed_orders) >= _AWAY_AFTER):
            if self._closed_until is None:
                where = self._sender.webhook.where
                _log.warning("the receiver of events is away, and they wait: %s %s", where, result.why)
            self._probes += 1
            self._closed_until = time.monotonic() + self._wait_s(self._probes, result)

    def _put_off(self, chain: _Chain, result: Result, probe: bool) -> None:
        """Park the order, and give its first event up if that has failed for too long."""
        now, feed, parked = time.time(), chain.feed, chain.parked
        wait_s = self._wait_s(parked.tries + 1 if parked else 1, result)
        if parked is None:
            places = [pending.place for pending in chain.waiting]
            at = chain.waiting[0].event.at
            parked = Parked(chain.order, places, at, 1, now, now + wait_s, result.why, wait_s=wait_s)
            feed.state.parked[chain.order] = parked
            for pending in chain.waiting:
                assert pending.slot is not None  # noqa: S101 - only those of a parked order have none
                pending.slot.done = True
        else:
            parked.tries, parked.why = parked.tries + 1, result.why
            parked.due, parked.wait_s, parked.since = now + wait_s, wait_s, min(parked.since, now)
            if now - parked.since > self._sender.give_up_s and not probe:
                place = parked.places[0]
                feed.state.give_up(parked, now)
                self._sender.observer.delivered("dead")
                _log.error(
                    "event %s of order %s is a dead letter: %s",
                    place.entry,
                    OrderId(feed.sku, chain.order),
                    result.why,
                )
        del feed.chains[chain.order]
        feed.advance()

    def _wait_s(self, tries: int, result: Result) -> float:
        longest_s = min(_LONGEST_S, self._sender.retry_s * 2.0 ** min(tries - 1, 30))
        # Jitter, downwards: several receivers behind one server are not to be tried at once.
        return min(_LONGEST_S, max(longest_s * random.uniform(0.7, 1.0), result.retry_after_s))  # noqa: S311

    async def _retry(self) -> None:
        """Have the parked orders whose time has come tried again."""
        odd: dict[str, str] = {}
        for feed in list(self._feeds.values()):
            for parked in list(feed.state.parked.values()):
                if not self._rests(feed, parked):  # it was delivered while others were read
                    continue
                chain = _Chain(feed, parked.order, parked=parked)
                with _apart(feed.sku, odd):
                    for place in list(parked.places):
                        page = await self._store.journal(
                            feed.sku, after=place.after or None, until=place.entry, limit=1
                        )
                        if page:
                            chain.waiting.append(_Pending(page[0], place, None))
                        elif place in parked.places:  # it was trimmed
                            parked.places.remove(place)
                    if self._rests(feed, parked):
                        feed.chains[parked.order] = chain
                        self._ready.put_nowait(chain)
        self._say("tried again", odd)

    def _rests(self, feed: _Feed, parked: Parked) -> bool:
        """Return whether a parked order is due, and nobody has taken it up."""
        known = self._feeds.get(feed.sku) is feed and feed.state.parked.get(parked.order) is parked
        return known and parked.is_due(time.time()) and parked.order not in feed.chains

    # -- noting ------------------------------------------------------------------------------------------------------

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            try:
                await self._save()
            except (FenceRefused, LockLost):
                raise
            except EXPECTED as error:
                _log.debug("not noted which events were sent: %s", error)
            except Exception:
                _log.exception("unexpected error in noting which events were sent")

    async def _save(self) -> None:
        odd: dict[str, str] = {}
        for feed in list(self._feeds.values()):
            if feed.dirty:
                with _apart(feed.sku, odd):
                    await self._save_one(feed)
        self._say("noted", odd)

    async def _save_one(self, feed: _Feed) -> None:
        feed.dirty = False
        text = feed.state.to_text()
        try:
            await self._store.save_outbox(feed.sku, self._fence, replace(feed.outbox, text=text))
            feed.outbox = replace(feed.outbox, wish="")
        except StockChanged:  # a new sale has begun
            if self._feeds.get(feed.sku) is feed:
                del self._feeds[feed.sku]
        except BaseException:
            feed.dirty = True
            raise


@contextlib.contextmanager
def _apart(sku: str, odd: dict[str, str]) -> Iterator[None]:
    """Have data of an item that can't be read concern that item only."""
    try:
        yield
    except StockCorrupt as error:
        odd[sku] = str(error)


def _feed_of(sku: str, outbox: Outbox) -> _Feed:
    try:
        state = State.from_text(outbox.text)
    except (ValueError, KeyError, TypeError):
        _log.error("what the sender has noted of %s is not ours; its events are sent from the first one", sku)
        state = State()
    return _Feed(sku, outbox, state, state.cursor)

"""Follows the journals of all items for a sender, and notes how far their events have left."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from app.errors import EXPECTED, FenceRefused, ForeignFence, StockChanged, StockCorrupt, StockError
from app.outbox.feed import Chain, Feed, Pending
from app.outbox.gate import Gate
from app.outbox.pace import Pace
from app.outbox.receiver import Receiver
from app.outbox.state import Parked, Wish, rank
from app.stock import Fence, Level, Outbox, StockStore
from fencelock import LockLost

_log = logging.getLogger(__name__)

_WINDOW: Final = 2000  # events that are read and not yet delivered
_PARKED_MAX: Final = 1000  # orders; then the cursors stand
_PAGE: Final = 200
_TOP_UP_S: Final = 0.05
_ALL_EVERY_S: Final = 1.0
_SAVE_EVERY_S: Final = 1.0
_SKUS_AT_ONCE: Final = 100
_REST: Final = 20  # times as long as it worked, while buyers wait here: as the auditor
_IDLE_REST: Final = 2
_REST_MAX_S: Final = 2.0
_ALL_REST_MAX_S: Final = 5.0  # between looks at all items: new ones, and an operator's wish, are noticed in seconds


class Reader:
    """Reads the journals under the sender's grant. New events and those whose time has come are put into `ready`."""

    def __init__(self, store: StockStore, receiver: Receiver, fence: Fence, gate: Gate, pace: Pace) -> None:
        self._store = store
        self._receiver = receiver
        self._fence = fence
        self._gate = gate
        self._pace = pace
        self.feeds: dict[str, Feed] = {}
        self.ready: asyncio.Queue[Chain] = asyncio.Queue()
        self._superseded: FenceRefused | None = None  # by a later sender
        self._looked_at_all = 0.0
        self._rested_s = 0.0  # so far
        self._odd: dict[str, str] = {}  # items that could not be looked at, and why
        self._said: dict[str, dict[str, str]] = {}  # what can't be done, for which items, and why, as the log has it

    @property
    def stuck(self) -> tuple[str, ...]:
        """The items that can't be read or noted."""
        return tuple(sorted({sku for items in self._said.values() for sku in items}))

    async def read(self) -> None:
        """Look for new events, and read those for which there is room."""
        if time.monotonic() > self._looked_at_all:
            began, rested_s = time.monotonic(), self._rested_s
            await self._look_at_all()
            worked_s = time.monotonic() - began - (self._rested_s - rested_s)
            rest_s = min(_ALL_REST_MAX_S, _REST * worked_s)
            self._looked_at_all = time.monotonic() + max(_ALL_EVERY_S, rest_s)
        else:
            await self._look_at_ends(list(self.feeds))
        await self._claim_all()
        odd = self._odd.copy()
        while behind := [
            feed for feed in self.feeds.values() if feed.claimed and feed.last != feed.read_to and feed.sku not in odd
        ]:
            for feed in behind:
                if not self._has_room:
                    break
                with _apart(feed.sku, odd):
                    await self._read_page(feed)
                await self._pace.rest()
            if not self._has_room:
                await asyncio.sleep(_TOP_UP_S if self._gate.is_open else _ALL_EVERY_S)
                if time.monotonic() > self._looked_at_all:
                    odd = self._said.get("read", {}) | odd  # some were not tried
                    break
        self._say("read", odd)

    @property
    def has_fresh(self) -> bool:
        """Whether events wait of orders that were not refused: these say whether the receiver is back."""
        return any(chain.parked is None for feed in self.feeds.values() for chain in feed.chains.values())

    @property
    def _has_room(self) -> bool:
        feeds = self.feeds.values()
        parked = sum(len(feed.state.parked) for feed in feeds)
        return parked < _PARKED_MAX and sum(len(feed.window) for feed in feeds) + _PAGE <= _WINDOW

    async def _look_at_all(self) -> None:
        """Find new items, new sales, and what operators have asked for."""
        self._odd, skus = {}, await self._store.items()
        for sku in self.feeds.keys() - set(skus):
            del self.feeds[sku]
        for first in range(0, len(skus), _SKUS_AT_ONCE):
            page = skus[first : first + _SKUS_AT_ONCE]
            began = time.monotonic()
            for sku, outbox in (await self._store.outbox(page, self._receiver.name)).items():
                feed = self.feeds.get(sku)
                if isinstance(outbox, StockError):
                    if isinstance(outbox, StockCorrupt):
                        self._odd[sku] = str(outbox)
                    continue
                if feed is None or feed.outbox.sale != outbox.sale:
                    feed = self.feeds[sku] = Feed.of(sku, outbox, self._receiver.kinds)
                if outbox.wish:
                    with _apart(sku, self._odd):
                        await self._grant_wish(feed, outbox)
            await self._look_at_ends(page)
            for sku in page:
                feed = self.feeds.get(sku)
                if feed is not None:
                    behind = feed.last != feed.state.cursor
                    with _apart(sku, self._odd):
                        feed.waiting = max(0, await self._store.count_entries(sku) - feed.state.count) if behind else 0
            await self._rest(began)

    async def _look_at_ends(self, skus: list[str]) -> None:
        for first in range(0, len(skus), _SKUS_AT_ONCE):
            began = time.monotonic()
            for sku, level in (await self._store.levels(skus[first : first + _SKUS_AT_ONCE])).items():
                feed = self.feeds.get(sku)
                if feed is not None and isinstance(level, Level):
                    feed.last = level.last_entry or feed.read_to
                    behind = rank(level.last_entry or "") < rank(feed.state.cursor)
                    if behind and level.sale == feed.outbox.sale:  # nothing is sent until it is longer again
                        self._odd[sku] = "the store has come back older than it was: it lacks events that were sent"
                elif isinstance(level, StockCorrupt):
                    self._odd[sku] = str(level)
            if len(skus) > _SKUS_AT_ONCE:
                await self._rest(began)

    async def _claim_all(self) -> None:
        """Make sure that events are ours to send, before the first one of an item is: the store takes a note of us.

        An item whose last sender had its lock from another lock system is left alone until the next look at all.
        """
        for feed in list(self.feeds.values()):
            if not feed.claimed and (feed.state.parked or feed.last != feed.read_to):
                began = time.monotonic()
                with _apart(feed.sku, self._odd):
                    await self._save_one(feed)
                await self._rest(began)

    async def _read_page(self, feed: Feed) -> None:
        page = await self._store.journal(feed.sku, after=feed.read_to or None, limit=_PAGE)
        if self.feeds.get(feed.sku) is not feed:
            return
        if not page:
            if rank(feed.last) <= rank(feed.read_to):  # it was read to its end, and looked at before that
                feed.last = feed.read_to
            else:  # a new sale, whose entries are not behind those of the one before
                del self.feeds[feed.sku]
            return
        for event in page:
            if (chain := feed.take(event)) is not None:
                self.ready.put_nowait(chain)
        if len(page) < _PAGE:
            feed.last = feed.read_to

    async def _grant_wish(self, feed: Feed, outbox: Outbox) -> None:
        # Entries that were read are forgotten, and read anew.
        state = feed.state
        try:
            wish, now = Wish.from_text(outbox.wish), time.time()
            if wish.since is not None or wish.at is not None:
                places = (state.cursor, state.count), await self._find(feed.sku, wish)
                cursor, state.count = min(places, key=lambda place: rank(place[0]))  # never past what was not sent
                state.go_back(cursor)
            if wish.dead:
                state.revive(now)
            state.try_now(now)
            _log.info("events of %s are sent again, as an operator asks: %s", feed.sku, outbox.wish)
        except (ValueError, TypeError, StockCorrupt) as error:
            _log.warning("what an operator asks for events of %s is not done: %s: %s", feed.sku, outbox.wish, error)
        self._gate.try_now()
        outbox = replace(outbox, number=max(outbox.number, feed.outbox.number))  # a note of ours may be on its way
        fresh = self.feeds[feed.sku] = Feed(feed.sku, outbox, state, state.cursor, feed.last, dirty=True)
        await self._save_one(fresh)

    async def _find(self, sku: str, wish: Wish) -> tuple[str, int]:
        """Find the last entry that is there behind which a wish begins ("": none), and count those up to it."""
        if wish.since is not None:
            rank(wish.since)  # raises
        found, count, before = "", 0, math.inf if wish.at is None else wish.at
        while page := await self._store.journal(sku, after=found or None, until=wish.since, limit=_PAGE):
            for event in page:
                if event.at >= before:
                    return found, count
                found, count = event.entry, count + 1
            await self._pace.rest()
        return found, count

    async def retry(self) -> None:
        """Have the parked orders whose time has come tried again."""
        if not self._gate.is_open and self.has_fresh:
            return
        odd: dict[str, str] = {}
        for feed in list(self.feeds.values()):
            for parked in list(feed.state.parked.values()):
                if not self._rests(feed, parked):  # it was delivered while others were read
                    continue
                chain = Chain(feed, parked.order, parked=parked)
                with _apart(feed.sku, odd):
                    for place in list(parked.places):
                        page = await self._store.journal(
                            feed.sku, after=place.after or None, until=place.entry, limit=1
                        )
                        if page and feed.state.wants(page[0]):
                            chain.waiting.append(Pending(page[0], place, None))
                        elif place in parked.places:  # it was trimmed, or the receiver wants it no more
                            parked.places.remove(place)
                            feed.dirty = True
                    if self._rests(feed, parked):
                        feed.chains[parked.order] = chain
                        self.ready.put_nowait(chain)
        self._say("tried again", odd)

    def _rests(self, feed: Feed, parked: Parked) -> bool:
        """Return whether a parked order is due, and nobody has taken it up."""
        known = self.feeds.get(feed.sku) is feed and feed.state.parked.get(parked.order) is parked
        return known and feed.claimed and parked.is_due(time.time()) and parked.order not in feed.chains

    async def save_forever(self) -> None:
        """Note each second how far the events have left. Raises `FenceRefused` if a later sender has been here."""
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            if self._superseded is not None:
                raise self._superseded
            try:
                await self.save()
            except (FenceRefused, LockLost):
                raise
            except EXPECTED as error:
                _log.debug("not noted which events were sent: %s", error)
            except Exception:
                _log.exception("unexpected error in noting which events were sent")

    async def save(self) -> None:
        """Note how far the events have left."""
        odd: dict[str, str] = {}
        for feed in list(self.feeds.values()):
            if feed.dirty:
                with _apart(feed.sku, odd):
                    await self._save_one(feed)
        self._say("noted", odd)

    async def _save_one(self, feed: Feed) -> None:
        feed.dirty = False
        feed.outbox = replace(feed.outbox, text=feed.state.to_text(), number=feed.outbox.number + 1)
        try:
            await self._store.save_outbox(feed.sku, self._fence, feed.outbox, self._receiver.name)
            feed.outbox, feed.claimed = replace(feed.outbox, wish=""), True
        except ForeignFence:
            if self.feeds.get(feed.sku) is feed:  # read anew when an operator has unfenced it
                del self.feeds[feed.sku]
            raise
        except FenceRefused as error:
            self._superseded = error
            raise
        except StockChanged:  # a new sale has begun
            if self.feeds.get(feed.sku) is feed:
                del self.feeds[feed.sku]
        except BaseException:
            feed.dirty = True
            raise

    async def _rest(self, began: float) -> None:
        ended = time.monotonic()
        await asyncio.sleep(min(_REST_MAX_S, (ended - began) * (_REST if self._pace.busy() else _IDLE_REST)))
        self._rested_s += time.monotonic() - ended

    def _say(self, what: str, odd: dict[str, str]) -> None:
        """Warn of each item with which something can't be done, once for each reason, and say when it can be."""
        before, self._said[what] = self._said.get(what, {}), odd
        for sku, why in odd.items() - before.items():
            _log.warning("events of %s can't be %s, and those of others go on: %s", sku, what, why)
        for sku in before.keys() - odd.keys():
            _log.info("events of %s are %s again", sku, what)


@contextlib.contextmanager
def _apart(sku: str, odd: dict[str, str]) -> Iterator[None]:
    """Have data of an item that can't be read, or a fence that isn't ours, concern that item only."""
    try:
        yield
    except (StockCorrupt, ForeignFence) as error:
        odd[sku] = str(error)

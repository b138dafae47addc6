"""Follows the journals of all items for a sender, and notes how far their events have left."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from app.errors import EXPECTED, FenceRefused, ForeignFence, StockChanged, StockCorrupt, StockError
from app.journals import EVERY_S, PAGE, EntryMissing, Journals, in_pages, page, pages, rank
from app.outbox.feed import Chain, Feed, Pending
from app.outbox.gate import Gate
from app.outbox.receiver import Receiver
from app.outbox.state import Parked, Wish
from app.stock import Fence, Level, Outbox
from fencelock import LockLost

_log = logging.getLogger(__name__)

_WINDOW: Final = 2000  # events that are read and not yet delivered
_PARKED_MAX: Final = 1000  # orders; then the cursors stand
_TOP_UP_S: Final = 0.05
_OLDER: Final = (
    "the store has come back older than it was, and lacks events that were sent: compare the orders with the "
    "receiver's, and say from where on to send (`seckill orders replay --since`)"
)


class Reader:
    """Reads the journals under the sender's grant. New events, and parked ones that are due, are put into `ready`."""

    def __init__(self, journals: Journals, receiver: Receiver, fence: Fence, gate: Gate) -> None:
        self._journals = journals
        self._store = journals.store
        self._receiver = receiver
        self._fence = fence
        self._gate = gate
        self.feeds: dict[str, Feed] = {}
        self.ready: asyncio.Queue[Chain] = asyncio.Queue()
        self._superseded: FenceRefused | None = None  # by a later sender
        self._looked_at = 0.0
        self._odd: dict[str, str] = {}  # items that could not be looked at, and why
        self._said: dict[str, dict[str, str]] = {}  # the log's text of each failure, with its items and its reason

    @property
    def stuck(self) -> tuple[str, ...]:
        """The items that can't be read or noted."""
        return tuple(sorted({sku for items in self._said.values() for sku in items}))

    async def read(self) -> None:
        """Read new events as they come, while there is room, and do as operators ask."""
        with self._journals.followed() as follower:
            whole = True
            while True:
                await self._take(await follower.moved(EVERY_S if whole else 0.0))
                if time.monotonic() >= self._looked_at + EVERY_S:
                    await self._look_around()
                whole = await self._read_all()

    async def _take(self, skus: set[str]) -> None:
        """Note the ends of these items' journals, and begin to read new items."""
        begun = set[str]()
        for sku in skus:
            level, feed = self._journals.levels.get(sku), self.feeds.get(sku)
            self._odd.pop(sku, None)
            if isinstance(level, Level):
                if feed is None or feed.outbox.sale != level.sale:
                    begun.add(sku)
                else:
                    feed.last = level.last_entry or ""
            elif isinstance(level, StockCorrupt):
                self._odd[sku] = str(level)
            elif level is None:
                self.feeds.pop(sku, None)
        await self._look(begun)

    async def _look(self, skus: Collection[str], rung: str | None = None) -> None:
        """Read the notes on some items: begin with new items and new sales, and do what operators have asked for.

        `rung`: the operators' bell, as it was before.
        """
        for some in in_pages(skus):
            began = time.monotonic()
            for sku, outbox in (await self._store.outbox(some, self._receiver.name)).items():
                feed, level = self.feeds.get(sku), self._journals.levels.get(sku)
                if isinstance(outbox, StockError):
                    if isinstance(outbox, StockCorrupt):
                        self._odd[sku] = str(outbox)
                    continue
                self._odd.pop(sku, None)
                if feed is None or feed.outbox.sale != outbox.sale:
                    feed = self.feeds[sku] = Feed.of(sku, outbox, self._receiver.kinds)
                    feed.last = (level.last_entry or "") if isinstance(level, Level) else feed.read_to
                if outbox.wish:
                    with _apart(sku, self._odd):
                        feed = await self._grant_wish(feed, outbox)
                feed.rung = rung
            await self._journals.pace.rest_since(began)

    async def _look_around(self) -> None:
        """Look each second for operators' requests, and count the events that wait."""
        self._looked_at = time.monotonic()
        there = [sku for sku, level in self._journals.levels.items() if isinstance(level, Level)]
        rung = Wish.rung(await self._store.notices({}), self._receiver.name)
        # Also the items that could not be read, or that an operator has to unfence.
        feeds = [(sku, self.feeds.get(sku)) for sku in there]
        new = [sku for sku, feed in feeds if feed is None or feed.rung != rung or sku in self._odd]
        await self._look(new, rung)
        for feed in list(self.feeds.values()):
            feed.waiting = 0  # beyond those in the window
            if feed.last != feed.read_to:
                with _apart(feed.sku, self._odd):
                    feed.waiting = max(0, await self._store.count_entries(feed.sku) - feed.state.count)

    async def _read_all(self) -> bool:
        """Read the journals; return False if there was no room to read them to their ends."""
        await self._claim_all()
        odd, whole = self._odd.copy(), True
        while behind := [
            feed for feed in self.feeds.values() if feed.claimed and feed.last != feed.read_to and feed.sku not in odd
        ]:
            for feed in behind:
                if not self._has_room:
                    break
                with _apart(feed.sku, odd):
                    await self._read_page(feed)
                await self._journals.pace.rest()
            if not self._has_room:
                await asyncio.sleep(_TOP_UP_S if self._gate.is_open else EVERY_S)
                if time.monotonic() >= self._looked_at + EVERY_S:
                    odd, whole = self._said.get("read", {}) | odd, False  # some were not tried
                    break
        self._say("read", odd)
        return whole

    @property
    def has_fresh(self) -> bool:
        """Whether events wait of orders that were not refused: these say whether the receiver is back."""
        return any(chain.parked is None for feed in self.feeds.values() for chain in feed.chains.values())

    @property
    def _has_room(self) -> bool:
        feeds = self.feeds.values()
        parked = sum(len(feed.state.parked) for feed in feeds)
        return parked < _PARKED_MAX and sum(len(feed.window) for feed in feeds) + PAGE <= _WINDOW

    async def _claim_all(self) -> None:
        """Claim an item before its first event is sent, by a note in the store.

        An item whose last sender used another lock system is left alone until the next look at all items.
        """
        for feed in list(self.feeds.values()):
            if not feed.claimed and (feed.state.parked or feed.last != feed.read_to):
                began = time.monotonic()
                with _apart(feed.sku, self._odd):
                    await self._save_one(feed)
                await self._journals.pace.rest_since(began)

    async def _read_page(self, feed: Feed) -> None:
        try:
            found = await page(self._store, feed.sku, feed.read_to)
        except EntryMissing as error:
            (outbox,) = (await self._store.outbox([feed.sku], self._receiver.name)).values()
            if isinstance(outbox, StockError) or outbox.sale == feed.outbox.sale:
                raise StockCorrupt(_OLDER) from error
            if self.feeds.get(feed.sku) is feed:  # a new sale has begun
                del self.feeds[feed.sku]
            return
        if self.feeds.get(feed.sku) is not feed:
            return
        for event in found:
            if (chain := feed.take(event)) is not None:
                self.ready.put_nowait(chain)
        if len(found) < PAGE:
            feed.last = feed.read_to

    async def _grant_wish(self, feed: Feed, outbox: Outbox) -> Feed:
        # Entries that were read are forgotten, and read anew.
        state = feed.state
        try:
            wish, now = Wish.from_text(outbox.wish), time.time()
            if wish.since is not None or wish.at is not None:
                places = (state.cursor, state.count), await self._find(feed.sku, wish)
                cursor, state.count = min(places, key=lambda place: rank(place[0]))  # never past what was not sent
                state.go_back(cursor)
                state.try_now(now)
            if wish.dead:
                state.revive(now, wish.orders)
            state.try_now(now, wish.orders)
            _log.info("events of %s are sent again, as an operator asks: %s", feed.sku, outbox.wish)
        except (ValueError, TypeError, StockCorrupt) as error:
            _log.warning("what an operator asks for events of %s is not done: %s: %s", feed.sku, outbox.wish, error)
        self._gate.try_now()
        outbox = replace(outbox, number=max(outbox.number, feed.outbox.number))  # our own note may be under way
        fresh = self.feeds[feed.sku] = Feed(feed.sku, outbox, state, state.cursor, feed.last, dirty=True)
        await self._save_one(fresh)
        return fresh

    async def _find(self, sku: str, wish: Wish) -> tuple[str, int]:
        """Find the entry behind which to send again ("": the beginning), and count the entries up to it."""
        if wish.since is not None:
            rank(wish.since)  # raises
        found, count, first_at = "", 0, math.inf if wish.at is None else wish.at
        async for some in pages(self._store, sku, until=wish.since, pace=self._journals.pace):
            for event in some:
                if event.at >= first_at:
                    return found, count
                found, count = event.entry, count + 1
        return found, count

    async def retry(self) -> None:
        """Queue the parked orders that are due."""
        if not self._gate.is_open and self.has_fresh:
            return
        odd: dict[str, str] = {}
        for feed in list(self.feeds.values()):
            for parked in list(feed.state.parked.values()):
                if not self._rests(feed, parked):  # the event was delivered while others were read
                    continue
                chain = Chain(feed, parked.order, parked=parked)
                with _apart(feed.sku, odd):
                    for place in list(parked.places):
                        page = await self._store.journal(
                            feed.sku, after=place.after or None, until=place.entry, limit=1
                        )
                        if page and feed.state.wants(page[0]):
                            chain.waiting.append(Pending(page[0], place, None))
                        elif place in parked.places:  # the event was trimmed, or the receiver refuses its type
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
            await asyncio.sleep(EVERY_S)
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

    def _say(self, what: str, odd: dict[str, str]) -> None:
        """Log each item that can't be read or noted, once for each reason, and its recovery."""
        before, self._said[what] = self._said.get(what, {}), odd
        for sku, why in odd.items() - before.items():
            _log.warning("events of %s can't be %s, and those of others go on: %s", sku, what, why)
        for sku in before.keys() - odd.keys():
            _log.info("events of %s are %s again", sku, what)


@contextlib.contextmanager
def _apart(sku: str, odd: dict[str, str]) -> Iterator[None]:
    """Let an item's damaged data, or a fence that isn't ours, stop only that item."""
    try:
        yield
    except (StockCorrupt, ForeignFence) as error:
        odd[sku] = str(error)

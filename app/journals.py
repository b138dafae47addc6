"""The journals of all items: an instance follows them once, at one pace, for all its readers.

    store --moved--> Journals: which items there are, and the level of each --> Followers, each with its own cursors
                                                                                   |
    store <--pages: behind an entry that must be there-----------------------------+

While nobody buys, it asks the store some four times a second, however many items there are: it waits for news of all of
them together, and looks together whether the last entry of each is still there. If that is gone, a new sale has begun,
or the store has come back older.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from app.errors import StockError, UnknownItem
from app.forever import end, run_forever
from app.orders import Event
from app.pace import Pace
from app.stock import Level, StockStore

_log = logging.getLogger(__name__)

PAGE: Final = 500  # entries read at once: some milliseconds of the loop, which also serves buyers
ITEMS_AT_ONCE: Final = 100
EVERY_S: Final = 1.0  # after this time each follower looks, even without news, and new items are looked for
_LEAST_S: Final = 0.05  # seconds between two looks, as a rush moves a journal a hundred times a second
_ASKED_S: Final = 5.0  # for so long it goes on after the last question
# In canonical form, and within what a store can compare.
_ENTRY: Final = re.compile(r"(0|[1-9][0-9]{0,18})(-(0|[1-9][0-9]{0,18}))?")
_LAST_OF_MS: Final = 2**64 - 1  # of a stream's entries

Levels = Mapping[str, Level | StockError]


class EntryMissing(Exception):
    """The entry behind which a journal is to be read is not there: see `Journals`."""


def rank(entry: str) -> tuple[int, ...]:
    """Return the key that orders a journal's entries, "" first. Raises `ValueError` for a text that is no entry."""
    if entry and not _ENTRY.fullmatch(entry):
        raise ValueError(f"not an entry: {entry!r}")
    return tuple(int(part) for part in entry.split("-")) if entry else (0,)


def before(entry: str) -> str:
    """Return the place just before an entry ("": the beginning)."""
    *ms, last = rank(entry)
    if last:
        return "-".join(map(str, (*ms, last - 1)))
    return f"{ms[0] - 1}-{_LAST_OF_MS}" if ms and ms[0] else ""


def in_pages(skus: Collection[str]) -> Iterator[list[str]]:
    """Divide items into as many as are asked for in one call."""
    ordered = list(skus)
    return (ordered[first : first + ITEMS_AT_ONCE] for first in range(0, len(ordered), ITEMS_AT_ONCE))


async def page(
    store: StockStore, sku: str, after: str, *, until: str | None = None, limit: int = PAGE, there: bool = False
) -> list[Event]:
    """The events behind an entry ("": all), oldest first; the entry is `there`, or else `EntryMissing` is raised."""
    if there or not after:
        return await store.journal(sku, after=after or None, until=until, limit=limit)
    found = await store.journal(sku, after=before(after) or None, until=until, limit=limit + 1)
    if not found or found.pop(0).entry != after:
        raise EntryMissing(f"the journal of {sku} lacks the entry {after}")
    return found


async def pages(
    store: StockStore, sku: str, after: str = "", *, until: str | None = None, pace: Pace | None = None
) -> AsyncIterator[list[Event]]:
    """The events behind an entry, in pages; with a `pace` it rests behind each. Raises `EntryMissing`."""
    there = False
    while True:
        began = time.monotonic()
        found = await page(store, sku, after, until=until, there=there)
        if found:
            yield found
            there, after = True, found[-1].entry
        if pace is not None:
            await pace.rest_since(began)
        if len(found) < PAGE:
            return


class Follower:
    """The items with news since the last `moved`; at first all of them."""

    def __init__(self) -> None:
        self._new = set[str]()
        self._event = asyncio.Event()

    def tell(self, skus: Collection[str]) -> None:
        """Note that these items have moved, have come, or are gone."""
        self._new.update(skus)
        if skus:
            self._event.set()

    async def moved(self, within_s: float = EVERY_S) -> set[str]:
        """Wait for items with news, at most that many seconds, and take them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._event.wait()
        found, self._new = self._new, set()
        self._event.clear()
        return found


class Journals:
    """Follows them while anybody in this instance wants it. It lives on one event loop.

    `levels`: each item's level at the last move of its journal, or its read error; empty while nobody follows.
    `is_current`: whether the levels are up to date: it follows, and the store answers.
    """

    def __init__(self, store: StockStore, pace: Pace) -> None:
        self.store = store
        self.pace = pace
        self.levels: dict[str, Level | StockError] = {}
        self._followers = set[Follower]()
        self._wanted = asyncio.Event()
        self._asked_at = 0.0
        self.is_current = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Be ready to follow."""
        following = run_forever(self._follow, every_s=EVERY_S, log=_log, what="following the journals")
        self._task = asyncio.get_running_loop().create_task(following, name="journals")

    async def close(self) -> None:
        """Follow no more."""
        if self._task is not None:
            await end(self._task)

    @contextmanager
    def followed(self) -> Iterator[Follower]:
        """Follow all journals in a block."""
        one = Follower()
        one.tell(self.levels)
        self._followers.add(one)
        self._wanted.set()
        try:
            yield one
        finally:
            self._followers.discard(one)

    async def current(self, skus: Sequence[str]) -> Levels:
        """The levels of these items as of some milliseconds before, for one who asks again and again."""
        self._asked_at = time.monotonic()
        self._wanted.set()
        known = {sku: level for sku in skus if self.is_current and (level := self.levels.get(sku))}
        return known if len(known) == len(skus) else await self.now(skus)

    async def now(self, skus: Collection[str]) -> Levels:
        """The levels of these items, read anew."""
        found = dict[str, Level | StockError]()
        for some in in_pages(skus):
            found |= await self.store.levels(some)
        return found

    async def items(self) -> list[str]:
        """The items that are there now."""
        found = await self.store.items()
        self._forget(self.levels.keys() - set(found))
        return found

    async def _follow(self) -> None:
        """Follow all journals, from when somebody wants it until nobody does."""
        await self._wanted.wait()
        # Read all levels anew, as entries may have been missed, or a journal may be damaged or on another server.
        await self._look(await self.items(), anew=True)
        looked_at = time.monotonic()
        try:
            while self._is_wanted():
                self.is_current = True
                ends = {sku: level.last_entry or "" for sku, level in self.levels.items() if isinstance(level, Level)}
                moved = await self.store.moved(ends, EVERY_S)
                if (began := time.monotonic()) >= looked_at + EVERY_S:
                    last = {sku: before(entry) for sku, entry in ends.items() if entry}
                    moved |= last.keys() - await self.store.moved(last, 0)
                    moved |= set(await self.items()) - ends.keys()  # new ones, and those that could not be read
                    await self.pace.rest_since(began)
                    looked_at = time.monotonic()
                await self._look(moved)
                await asyncio.sleep(_LEAST_S)
        finally:
            self.is_current = False

    def _is_wanted(self) -> bool:
        if not self._followers and time.monotonic() > self._asked_at + _ASKED_S:
            self._wanted.clear()
            self.levels.clear()
        return self._wanted.is_set()

    async def _look(self, skus: Collection[str], *, anew: bool = False) -> None:
        for some in in_pages(sorted(skus)):
            began = time.monotonic()
            found = await self.store.levels(some)
            self._forget([sku for sku, level in found.items() if isinstance(level, UnknownItem)])
            there = {sku: level for sku, level in found.items() if not isinstance(level, UnknownItem)}
            moved = [sku for sku, level in there.items() if anew or _end(level) != _end(self.levels.get(sku))]
            self.levels |= there
            self._tell(moved)
            await self.pace.rest_since(began)

    def _forget(self, skus: Collection[str]) -> None:
        gone = [sku for sku in skus if self.levels.pop(sku, None) is not None]
        self._tell(gone)

    def _tell(self, skus: Collection[str]) -> None:
        for one in self._followers:
            one.tell(skus)


def _end(level: Level | StockError | None) -> object:
    """The part of a level that changes when its journal moves: its end and its sale, or the read error."""
    return (level.sale, level.last_entry) if isinstance(level, Level) else str(level)

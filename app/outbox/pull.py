"""A pull beside the push: the events behind a cursor, item by item, as the webhook has them.

A cursor is how far somebody has come in each item's journal, so a page may be asked for again at any time. An item that
it doesn't name begins at its first event: one that is new, or came back after it was removed. Of a new sale, all events
come; those of the one before that were not read are gone with its orders. A store that comes back older than it was is
noticed, also when it has been written to since: the entry that a cursor names must be there.
"""

import asyncio
import base64
import json
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from app.errors import CursorAhead, StockCorrupt, StockError, UnknownItem
from app.outbox.message import Message
from app.outbox.pace import Pace
from app.outbox.references import References
from app.outbox.state import before, rank
from app.stock import Level, Outbox, StockStore

ITEMS_MAX: Final = 100  # of a cursor: however long their names are, it fits into the head of a request
_CURSOR_BYTES_MAX: Final = 100_000  # of JSON
_SKUS_AT_ONCE: Final = 100
_PAGE: Final = 100
_SALE: Final = re.compile("[0-9]{0,20}")


class Place(NamedTuple):
    """A place in the journal of an item's sale: behind that entry."""

    sale: str
    entry: str


class Pulled(NamedTuple):
    """Some events. `next`: the cursor behind them; `more`: there were others; `unread`: items whose data are odd."""

    messages: Sequence[Message]
    next: str
    more: bool
    unread: Sequence[str]


class Ends(NamedTuple):
    """The sale and the last entry of each item, and the items that can't be read."""

    sales: Mapping[str, str]
    last: Mapping[str, str | None]
    unread: Sequence[str]

    def ahead(self, places: Mapping[str, Place]) -> list[str]:
        """The items whose journal ends before a place, or whose sale is one before that of the place."""
        return [
            sku
            for sku, place in places.items()
            if sku in self.sales
            and (_number(place.sale), rank(place.entry)) > (_number(self.sales[sku]), rank(self.last[sku] or ""))
        ]


class _Missed(Exception):
    """The entry that a cursor names is not in the journal."""


class Pull:
    """Reads the journals for whoever asks, within a share of the instance's time while buyers wait (`busy`)."""

    def __init__(self, store: StockStore, busy: Callable[[], bool]) -> None:
        self._store = store
        self._references = References(store)
        self._pace = Pace(busy)
        self._looking = asyncio.Lock()
        self._looked: dict[tuple[str, ...], tuple[float, Ends]] = {}

    async def read(self, skus: Sequence[str], after: str, *, limit: int, within_s: float = 0.0) -> Pulled:
        """The events of these items behind a cursor ("": all), `limit` at most.

        `within_s`: how old a look at the journals' ends may be, which then is one for all who ask. Raises `ValueError`,
        and `CursorAhead`.
        """
        return await self._pace.counted(self._read(skus, _parsed(after), limit, within_s))

    async def _read(self, skus: Sequence[str], places: dict[str, Place], limit: int, within_s: float) -> Pulled:
        ends = await self._look_within(skus, within_s)
        if ends.ahead(places):  # or an older look, or another sale has begun while we looked
            ends = await self._look(skus)
            if ahead := ends.ahead(places):
                raise _ahead(ahead, places)
        sales, last, unread, given = ends.sales, ends.last, [*ends.unread], places
        places = {sku: place for sku, place in places.items() if sales.get(sku) == place.sale or sku in unread}
        behind = [sku for sku in sales if last[sku] not in (None, places[sku].entry if sku in places else None)]
        if len(behind) > limit:  # each of them has its turn
            first = random.randrange(len(behind))  # noqa: S311 - no secret
            behind = behind[first:] + behind[:first]
        found: dict[str, list[Message]] = {sku: [] for sku in behind}
        left, missed = limit, list[str]()
        while behind and left:
            share = max(1, min(_PAGE, left // len(behind)))
            for sku in behind[:left]:
                try:
                    page = await self._page(sku, places.get(sku), share, read=bool(found[sku]))
                except StockCorrupt:
                    unread.append(sku)
                    behind.remove(sku)
                    continue
                except _Missed:
                    missed.append(sku)
                    behind.remove(sku)
                    continue
                found[sku] += page
                left -= len(page)
                if page:
                    places[sku] = Place(sales[sku], page[-1].id.rpartition("~")[2])
                if len(page) < share:
                    behind.remove(sku)
                await self._pace.rest()
        await self._pace.rest()
        again = (await self._look(list(found))).sales if found else {}
        changed = {sku for sku in found if again.get(sku) != sales[sku]}  # these may be of another sale
        if ahead := [sku for sku in missed if sku not in changed]:
            raise _ahead(ahead, given)
        messages = [one for sku, some in found.items() if sku not in changed for one in some]
        kept = {sku: place for sku, place in places.items() if sku not in changed and (sku in skus or sku in unread)}
        more = bool(changed) or any(sku not in kept or kept[sku].entry != last[sku] for sku in behind)
        return Pulled(messages, _text(kept), more, sorted(unread))

    async def _look_within(self, skus: Sequence[str], within_s: float) -> Ends:
        if not within_s:
            return await self._look(skus)
        async with self._looking:
            since, key = time.monotonic() - within_s, tuple(skus)
            self._looked = {one: found for one, found in self._looked.items() if found[0] > since}
            if key not in self._looked:
                self._looked[key] = time.monotonic(), await self._look(skus)
            return self._looked[key][1]

    async def _look(self, skus: Sequence[str]) -> Ends:
        """Look at the ends of these journals. Raises for the only one."""
        sales, last, unread = dict[str, str](), dict[str, str | None](), list[str]()
        for first in range(0, len(skus), _SKUS_AT_ONCE):
            page = skus[first : first + _SKUS_AT_ONCE]
            outboxes, levels = await self._store.outbox(page), await self._store.levels(page)
            for sku in page:
                outbox, level = outboxes[sku], levels[sku]
                if isinstance(level, Level) and isinstance(outbox, Outbox):
                    sales[sku], last[sku] = outbox.sale, level.last_entry
                    continue
                error = next(one for one in (level, outbox) if isinstance(one, StockError))
                if len(skus) == 1 or not isinstance(error, StockCorrupt | UnknownItem):
                    raise error
                unread += [] if isinstance(error, UnknownItem) else [sku]  # it was removed a moment ago
        return Ends(sales, last, unread)

    async def _page(self, sku: str, place: Place | None, limit: int, *, read: bool) -> list[Message]:
        """The events behind a place, which was `read` just now, or else must be there: it raises `_Missed`."""
        if place is None or read:
            events = await self._store.journal(sku, after=place.entry if place else None, limit=limit)
        else:
            events = await self._store.journal(sku, after=before(place.entry) or None, limit=limit + 1)
            if not events or events.pop(0).entry != place.entry:
                raise _Missed
        return [Message.of(event, await self._references.of(event)) for event in events]


def _ahead(skus: Sequence[str], places: Mapping[str, Place]) -> CursorAhead:
    others = {sku: place for sku, place in places.items() if sku not in skus}
    said = (
        f"the store has come back older than it was, and lacks events of {', '.join(skus)} that are before the cursor: "
    )
    said += "compare these orders with your own, and go on with `next`, from the first event of these items"
    return CursorAhead(said, _text(others))


def _number(sale: str) -> int:
    """The number of a sale, which is greater for a later one."""
    return int(sale) if sale.isdecimal() else 0


def _text(places: Mapping[str, Place]) -> str:
    packed = zlib.compress(json.dumps(places, sort_keys=True, separators=(",", ":")).encode())
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def _parsed(text: str) -> dict[str, Place]:
    if not text:
        return {}
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        unpacked = unpacking.decompress(packed, _CURSOR_BYTES_MAX)
        found = {sku: Place(*place) for sku, place in json.loads(unpacked).items()}
        for place in found.values():
            rank(place.entry)
        if (
            not unpacking.eof
            or unpacking.unused_data
            or not all(_SALE.fullmatch(place.sale) for place in found.values())
        ):
            raise ValueError
    except (ValueError, TypeError, AttributeError, zlib.error, RecursionError):
        raise ValueError("not a cursor: give what `next` was, or nothing, which begins at the first event") from None
    return found

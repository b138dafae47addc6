"""A pull beside the push: the events behind a cursor, item by item, as the webhook has them.

A cursor is a place in each item's journal, so a page may be asked for again at any time. An item that it doesn't name,
as it is new or was removed for a while, begins at its first event. After a new sale all its events come; unread events
of the sale before are gone with its orders. A store that comes back older than it was is noticed, also when it has been
written to since: the entry that a cursor names must be there.
"""

import base64
import json
import random
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.errors import CursorAhead, StockCorrupt, UnknownItem
from app.journals import EntryMissing, Journals, Levels, page, rank
from app.outbox.message import Message
from app.outbox.references import References
from app.stock import Level

ITEMS_MAX: Final = 100  # items in a cursor: with the longest names it still fits into the head of a request
_CURSOR_BYTES_MAX: Final = 100_000  # of JSON
_PAGE: Final = 100
_SALE: Final = re.compile("[0-9]{0,20}")


class PullPlace(NamedTuple):
    """A place in the journal of an item's sale: behind that entry."""

    sale: str
    entry: str


class Pulled(NamedTuple):
    """Some events.

    `next`: the cursor behind them; `more`: there are further events; `unread`: items with damaged data.
    """

    messages: Sequence[Message]
    next: str
    more: bool
    unread: Sequence[str]


class Pull:
    """Reads the journals for whoever asks, within a share of the instance's time while buyers wait."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._store = journals.store
        self._references = References(journals.store)

    async def read(self, skus: Sequence[str], after: str, *, limit: int, again: bool = False) -> Pulled:
        """The events of these items behind a cursor ("": all), `limit` at most.

        `again`: the caller polls, and needs no fresh look at the journals. Raises `ValueError`, and `CursorAhead`.
        """
        return await self._journals.pace.counted(self._read(skus, _parsed(after), limit, again))

    async def _read(self, skus: Sequence[str], places: dict[str, PullPlace], limit: int, again: bool) -> Pulled:
        there, unread = _read_of(await (self._journals.current(skus) if again else self._journals.now(skus)))
        if any(_is_ahead(place, there.get(sku)) for sku, place in places.items()):  # or our look is older
            there, unread = _read_of(await self._journals.now(skus))
            if ahead := [sku for sku, place in places.items() if _is_ahead(place, there.get(sku))]:
                raise _ahead(ahead, places)
        given, last = places, {sku: level.last_entry for sku, level in there.items()}
        places = {
            sku: place
            for sku, place in places.items()
            if sku in unread or (sku in there and there[sku].sale == place.sale)
        }
        behind = [sku for sku in there if last[sku] not in (None, places[sku].entry if sku in places else None)]
        if len(behind) > limit:  # each of them has its turn
            first = random.randrange(len(behind))  # noqa: S311 - no secret
            behind = behind[first:] + behind[:first]
        found: dict[str, list[Message]] = {sku: [] for sku in behind}
        left, missed = limit, list[str]()
        while behind and left:
            share = max(1, min(_PAGE, left // len(behind)))
            for sku in behind[:left]:
                try:
                    after = places[sku].entry if sku in places else ""
                    some = await page(self._store, sku, after, limit=share, there=bool(found[sku]))
                    told = (event for event in some if not event.is_of_line)
                    found[sku] += [Message.of(event, await self._references.of(event)) for event in told]
                except StockCorrupt:
                    unread.append(sku)
                    behind.remove(sku)
                    continue
                except EntryMissing:
                    missed.append(sku)
                    behind.remove(sku)
                    continue
                left -= len(some)
                if some:
                    places[sku] = PullPlace(there[sku].sale, some[-1].entry)
                if len(some) < share:
                    behind.remove(sku)
                await self._journals.pace.rest()
        await self._journals.pace.rest()
        now, _ = _read_of(await self._journals.now(found))
        changed = {sku for sku in found if sku not in now or now[sku].sale != there[sku].sale}  # others' events
        if ahead := [sku for sku in missed if sku not in changed]:
            raise _ahead(ahead, given)
        messages = [one for sku, some in found.items() if sku not in changed for one in some]
        kept = {sku: place for sku, place in places.items() if sku not in changed}
        more = bool(changed) or any(sku not in kept or kept[sku].entry != last[sku] for sku in behind)
        return Pulled(messages, _text(kept), more, sorted(unread))


def _read_of(levels: Levels) -> tuple[dict[str, Level], list[str]]:
    """Divide items into readable and unreadable ones. Raises for the only one."""
    there, unread = dict[str, Level](), list[str]()
    for sku, level in levels.items():
        if isinstance(level, Level):
            there[sku] = level
        elif len(levels) == 1 or not isinstance(level, StockCorrupt | UnknownItem):
            raise level
        else:
            unread += [] if isinstance(level, UnknownItem) else [sku]  # the item was removed a moment ago
    return there, unread


def _is_ahead(place: PullPlace, level: Level | None) -> bool:
    """Whether an item's journal ends before a place, or its sale is one before that of the place."""
    at = _number(place.sale), rank(place.entry)
    return level is not None and at > (_number(level.sale), rank(level.last_entry or ""))


def _ahead(skus: Sequence[str], places: Mapping[str, PullPlace]) -> CursorAhead:
    others = {sku: place for sku, place in places.items() if sku not in skus}
    said = (
        f"the store has come back older than it was, and lacks events of {', '.join(skus)} that are before the cursor: "
    )
    said += "compare these orders with your own, and go on with `next`, from the first event of these items"
    return CursorAhead(said, _text(others))


def _number(sale: str) -> int:
    """The number of a sale, which is greater for a later one."""
    return int(sale) if sale.isdecimal() else 0


def _text(places: Mapping[str, PullPlace]) -> str:
    packed = zlib.compress(json.dumps(places, sort_keys=True, separators=(",", ":")).encode())
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def _parsed(text: str) -> dict[str, PullPlace]:
    if not text:
        return {}
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        unpacked = unpacking.decompress(packed, _CURSOR_BYTES_MAX)
        found = {sku: PullPlace(*place) for sku, place in json.loads(unpacked).items()}
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

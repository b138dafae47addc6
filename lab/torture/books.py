"""The books of an item at the end: its journal, and how each order stands, as the store has them."""

from collections.abc import Iterable

from app.orders import Event, Order
from app.orders.commands import own_key
from app.orders.view import standing
from app.stock import StockStore
from lab.torture.history import Entry, Kept

_PAGE = 1000


async def journal_of(store: StockStore, sku: str) -> list[Entry]:
    """Read an item's journal."""
    found: list[Entry] = []
    while page := await store.journal(sku, after=found[-1].entry if found else None, limit=_PAGE):
        found += map(_entry, page)
    return found


def _entry(one: Event) -> Entry:
    who = str(one.order), one.number, one.quantity, one.buyer, own_key(one.key)
    how = one.token, one.batch_id, one.epoch
    return Entry(one.sku, one.entry, str(one.kind), *who, *how, *one.units, dict(one.facts), one.at, one.instance)


async def kept_of(store: StockStore, sku: str, journal: Iterable[Entry]) -> list[Kept]:
    """Read how an item's orders stand, and the lines of other items' orders that are in its journal."""
    lines = [one.entry for one in journal if one.sku == sku and one.number == 1 and "part_of" in one.facts]
    orders = [await store.order(sku, number) for number in lines]
    found = [_kept(one) for one in orders if one is not None]
    after = None
    while page := await store.orders(sku, after=after, limit=_PAGE):
        for one in page:
            after = one.record.number
            found.append(_kept(one))
    return found


def _kept(one: Order) -> Kept:
    return Kept(str(one.id), one.record.events, standing(one.id, one.record))

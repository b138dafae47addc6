"""The books of an item at the end: its journal, and how each order stands, as the store has them."""

from app.orders import Event
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
    return Entry(one.sku, one.entry, str(one.kind), *who, *how, *one.units, dict(one.facts), one.at)


async def kept_of(store: StockStore, sku: str) -> list[Kept]:
    """Read how an item's orders stand."""
    found: list[Kept] = []
    after = None
    while page := await store.orders(sku, after=after, limit=_PAGE):
        for one in page:
            after = one.record.number
            found.append(Kept(str(one.id), one.record.events, standing(one.id, one.record)))
    return found

"""Where an item's units and payments are, counted from its journal alone."""

from dataclasses import dataclass

from app.orders import EventKind, OrderId
from app.stock import Level, StockStore

_PAGE = 1000


@dataclass(slots=True)
class Whereabouts:
    """Units and payments. `came_back`: units that went back, counted once per return; `not_needed`: payments that are
    to be given back; `duplicates`: of these, second ones of an order.
    """

    at_first_try: int = 0
    after_it_came_back: int = 0
    came_back: int = 0
    ran_out: int = 0
    cancelled: int = 0
    left: int = 0
    held: int = 0
    payments: int = 0
    not_needed: int = 0
    duplicates: int = 0

    @property
    def sold(self) -> int:
        """Units that are paid, or sold at once."""
        return self.at_first_try + self.after_it_came_back

    @property
    def too_late(self) -> int:
        """Payments that found no unit any more."""
        return self.not_needed - self.duplicates


async def whereabouts(store: StockStore, level: Level) -> Whereabouts:
    """Read the journal of an item up to a level."""
    found = Whereabouts(left=level.stock, held=level.held)
    taken, after = 0, None  # units that were taken so far: beyond the first so many, each has come back before
    again: set[OrderId] = set()  # orders that have such units
    paid: set[OrderId] = set()
    while events := await store.journal(level.sku, after=after, until=level.last_entry, limit=_PAGE):
        for event in events:
            order, kind, units = event.order, event.kind, event.units
            if units.stock < 0:
                taken -= units.stock
                if level.initial is not None and taken > level.initial:
                    again.add(order)
            elif units.stock > 0:
                found.came_back += units.stock
                found.ran_out += units.stock if kind is EventKind.EXPIRED else 0
                found.cancelled += units.stock if kind is EventKind.CANCELLED else 0
            if order in again:
                found.after_it_came_back += units.lucky
            else:
                found.at_first_try += units.lucky
            if kind is EventKind.CONFIRMED:
                found.payments += 1
                paid.add(order)
            elif kind is EventKind.REFUND_DUE and "why" in event.facts:  # else it is one that counts
                found.payments += 1
                found.not_needed += 1
                found.duplicates += order in paid
        after = events[-1].entry
    return found

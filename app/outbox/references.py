"""The shop's own numbers of orders, which only their first events have."""

from collections import OrderedDict
from typing import Final

from app.orders import Event, EventKind, OrderId
from app.stock import StockStore

_MAX: Final = 10_000


class References:
    """Finds them, and remembers some thousand."""

    def __init__(self, store: StockStore) -> None:
        self._store = store
        self._known: OrderedDict[OrderId, str | None] = OrderedDict()

    async def of(self, event: Event) -> str | None:
        """The shop's own number of the event's order. Raises what the store raises."""
        if event.kind is EventKind.SOLD:
            return None
        if event.kind in (EventKind.HELD, EventKind.WAITING):
            found = event.facts.get("ref")
        elif event.order in self._known:
            return self._known[event.order]
        else:
            order = await self._store.order(event.sku, event.order.number)
            found = order.record.ref if order is not None else None
        self._known[event.order] = found
        if len(self._known) > _MAX:
            self._known.popitem(last=False)
        return found

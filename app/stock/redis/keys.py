"""The keys of an item's data in Redis or Valkey, and the format of its entries."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from app.errors import StockCorrupt
from app.orders import DEFAULT_SKU, Event, EventKind, OrderId, Units, to_json
from app.stock.log import Change, LogNote

LOG_MAX: Final = 10_000  # lines of an item's log


class Keys:
    """The keys of an item's data.

    The default item's `stock` and `lucky` are called just that, as the articles do and as people look for them with
    redis-cli. All keys of any other item lie in one hash slot, so that a Redis Cluster can hold it.
    """

    def __init__(self, sku: str) -> None:
        item = f"seckill:{{{sku}}}"
        default = sku == DEFAULT_SKU
        self.stock = "stock" if default else f"{item}:stock"
        self.lucky = "lucky" if default else f"{item}:lucky"
        self.fence = f"{item}:fence"
        self.buyers = f"{item}:buyers"
        self.settled = f"{item}:keys"
        self.orders = f"{item}:orders"
        # Refusals that are remembered for a while: the newer ones, and the older ones.
        refused = (f"{item}:refused", f"{item}:refused-before")
        # Of orders that are not just sold: how they stand, by number; when those that are held go back; the order of
        # each payment; each buyer's last one that is held or waits; the line.
        standing = tuple(f"{item}:{name}" for name in ("records", "due", "payments", "holders", "waiting"))
        # The operators' log; how far the events have left, which begins anew with a sale.
        self.log, self.outbox = f"{item}:log", f"{item}:outbox"
        self.refused, self.refused_before = refused
        self.records, self.due, self.payments, self.holders, self.waiting = standing
        # The keys that a new sale deletes; others delete the stock and the orders.
        self.of_sale = (self.buyers, self.settled, *refused, *standing, self.outbox)
        self.all = (
            *(self.stock, self.lucky, self.fence, self.buyers, self.settled, self.orders, *refused),
            *(*standing, self.log, self.outbox),  # as `NAMES` in common.lua
        )


@lru_cache(10_000)
def keys_of(sku: str) -> Keys:
    """The keys of an item, cached."""
    return Keys(sku)


def fields_of(event: Event) -> list[str]:
    """The fields of an entry; a plain sale has no field for its kind."""
    own = [
        *("quantity", str(event.quantity), "buyer", event.buyer or "", "key", event.key or ""),
        *("secret", event.order.secret, "instance", event.instance, "token", str(event.token)),
        *("batch", event.batch_id, "epoch", str(event.epoch)),
    ]
    if event.kind is EventKind.SOLD and not event.facts:
        return own
    facts = to_json(dict(event.facts)) if event.facts else ""
    own += ["kind", str(event.kind), "units", " ".join(map(str, event.units)), "facts", facts]
    if event.number > 1:
        own += ["order", event.order.number, "n", str(event.number)]
    return own


def event_of(sku: str, entry_id: str, fields: dict[str, str]) -> Event:
    """Parse an entry of the stream as an event. Raises `StockCorrupt`."""
    try:  # not by way of an order and its record: millions of entries are read
        quantity, is_sale = int(fields["quantity"]), "kind" not in fields
        return Event(
            entry=entry_id,
            kind=EventKind.SOLD if is_sale else EventKind(fields["kind"]),
            order=OrderId(sku, fields.get("order", entry_id), fields["secret"]),
            number=int(fields.get("n", "1")),
            quantity=quantity,
            buyer=fields["buyer"] or None,
            key=fields["key"] or None,
            at=int(entry_id.partition("-")[0]) / 1000,
            instance=fields["instance"],
            token=int(fields["token"]),
            batch_id=fields["batch"],
            epoch=int(fields.get("epoch", "0")),
            units=Units(-quantity, 0, quantity) if is_sale else Units(*map(int, fields["units"].split())),
            facts={} if is_sale else json.loads(fields["facts"] or "{}"),
        )
    except (KeyError, ValueError, TypeError):
        raise StockCorrupt(f"the key {Keys(sku).orders!r} of item {sku!r} holds something that is not ours") from None


def change_of(sku: str, entry_id: str, fields: dict[str, str]) -> Change:
    """Parse an entry of the operators' log. Raises `StockCorrupt`."""
    try:
        before, after = json.loads(fields["before"]), json.loads(fields["after"])
        return Change(int(entry_id.partition("-")[0]) / 1000, fields["by"], fields["what"], sku, before, after)
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).log!r} holds something that is not ours") from None


def pack_note(note: LogNote) -> Mapping[str, str]:
    """Encode a line of the operators' log."""
    return {"by": note.by, "what": note.what, "before": to_json(dict(note.before)), "after": to_json(dict(note.after))}


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """A mapping whose names and values the server has written one behind the other."""
    return dict(zip(flat[::2], flat[1::2], strict=True))

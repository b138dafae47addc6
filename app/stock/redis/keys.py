"""Where an item's data lies in Redis or Valkey, and what the texts there stand for."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Final

from app.errors import StockCorrupt, UnknownItem
from app.stock.store import DEFAULT_SKU, SKU_PATTERN, Ask, Level, Order, Settled, Snapshot, Sold, refuse_odd_name

Place = tuple[str, str]  # of an order: its sale, its entry in the stream; both as the store writes them

_ENTRY_ID: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
ORDER_ID: Final = re.compile(rf"({SKU_PATTERN})~({_ENTRY_ID.pattern})~([0-9a-f]{{32}})")
_MARK: Final = re.compile(r"([0-9]{16})/([0-9]{16})-([0-9]{16})")  # of a place; with leading zeros
_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")  # Lua counts in doubles, exact below 2**53


class Keys:
    """Where an item's data lies.

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
        self.all = (self.stock, self.lucky, self.fence, self.buyers, self.settled, self.orders)
        self._refused = f"{item}:refused:"

    def refused(self, keys: Sequence[str]) -> list[str]:
        """Where the refusals of these idempotency keys are remembered for a while."""
        return [self._refused + key for key in keys]


@lru_cache(10_000)
def keys_of(sku: str) -> Keys:
    """The same for an item; made once. Raises `ItemNotPossible` for a name that is none."""
    refuse_odd_name(sku)
    return Keys(sku)


def mark_of(place: Place) -> str:
    """What others are told of an order: later ones have greater ones."""
    sale, entry = place
    ms, _, seq = entry.partition("-")
    return f"{sale:0>16}/{ms:0>16}-{seq:0>16}"


def place_of(mark: str) -> Place:
    """The order that a mark stands for. Raises `ValueError` for what is no mark."""
    match = _MARK.fullmatch(mark)
    if match is None:
        raise ValueError(f"not a mark of ours: {mark[:100]!r}")
    sale, ms, seq = map(int, match.groups())
    return str(sale), f"{ms}-{seq}"


def flat(places: Iterable[Place]) -> list[str]:
    """Places as the scripts are told them."""
    return [text for place in places for text in place]


def whole(sku: str, name: str, text: str) -> int:
    """A number of units. Raises `StockCorrupt`, with the name of the key, for anything else."""
    if not _WHOLE.fullmatch(text):
        raise StockCorrupt(f"the key {name!r} of item {sku!r} is not a whole number of 0 or more")
    return int(text)


def level_of(
    sku: str, stock: str | None, lucky: str | None, initial: str | None, last_entry: str | None = None
) -> Level:
    """Units left and sold, of the texts. Raises `UnknownItem` and `StockCorrupt`."""
    at = Keys(sku)
    if stock is None:
        raise unknown(sku)
    units = None if initial is None else whole(sku, f"{at.fence} initial", initial)
    return Level(sku, whole(sku, at.stock, stock), whole(sku, at.lucky, lucky or "0"), units, last_entry)


def snapshot_of(
    sku: str,
    stock: int,
    lucky: int,
    bought: Sequence[str | None],
    settled: Sequence[str | None],
    ask: Ask,
    last_entry: str | None = None,
) -> Snapshot:
    """What a decision is made on: `bought` and `settled` are texts, or None, for the buyers and the keys of `ask`."""
    if not (ask.buyers or ask.keys):
        return Snapshot(stock, lucky, last_entry=last_entry)
    return Snapshot(
        stock=stock,
        lucky=lucky,
        bought={
            buyer: whole(sku, keys_of(sku).buyers, units)
            for buyer, units in zip(ask.buyers, bought, strict=False)
            if units
        },
        settled={key: unpack(sku, text) for key, text in zip(ask.keys, settled, strict=False) if text},
        last_entry=last_entry,
    )


def pack(settled: Settled, secret: str | None = None) -> str:
    """What a key stands for, behind the id of its order or the number of the sale; `secret`: of the order's id."""
    fields = {name: value for name, value in asdict(settled).items() if value is not None}
    return json.dumps(fields | ({"secret": secret} if secret else {}), separators=(",", ":"))


def pack_sold(sold: Sold) -> str:
    """What the order's key stands for; nobody asks without a key."""
    return pack(Settled("sold", sold.quantity, sold.buyer), sold.secret) if sold.key is not None else ""


def unpack(sku: str, text: str) -> Settled:
    """What a key stands for. Raises `StockCorrupt`."""
    entry_id, _, packed = text.partition(" ")
    try:
        fields = json.loads(packed)
        secret = fields.pop("secret", None)
        order_id = f"{sku}~{entry_id}~{secret}" if secret else None
        return Settled(fields["outcome"], fields["quantity"], fields.get("buyer"), order_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StockCorrupt(f"the key {Keys(sku).settled!r} of item {sku!r} holds something that is not ours") from None


def order_of(sku: str, entry_id: str, fields: dict[str, str]) -> Order:
    """An entry of the stream. Raises `StockCorrupt`."""
    try:
        return Order(
            id=f"{sku}~{entry_id}~{fields['secret']}",
            sku=sku,
            quantity=int(fields["quantity"]),
            buyer=fields["buyer"] or None,
            key=fields["key"] or None,
            instance=fields["instance"],
            token=int(fields["token"]),
            batch_id=fields["batch"],
            era=int(fields.get("era", "0")),
            sold_at=int(entry_id.partition("-")[0]) / 1000,
        )
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).orders!r} of item {sku!r} holds something that is not ours") from None


def unknown(sku: str) -> UnknownItem:
    """The error of an item that is not there."""
    # The default item's key has a name that people know; the others' names are nobody's business.
    why = f": the key {Keys(sku).stock!r} is not there" if sku == DEFAULT_SKU else ""
    return UnknownItem(f"no item {sku!r}{why}")

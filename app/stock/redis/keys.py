"""The keys of an item's data in Redis or Valkey, and the format of their values."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from app.errors import (
    FenceRefused,
    ForeignFence,
    HasOrders,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockError,
    StockNotAsExpected,
    StockUnavailable,
    UnknownItem,
)
from app.stock.refusals import behind, changed, foreign, half, not_as_expected, superseded
from app.stock.store import (
    DEFAULT_SKU,
    SKU_PATTERN,
    Ask,
    Change,
    Fence,
    Level,
    Order,
    Settled,
    Snapshot,
    Sold,
    Terms,
    refuse_odd_name,
)

# Of an order: its generation and its entry in the stream, as the store writes them; the tag of its secret ("": any).
Position = tuple[str, str, str]

_ENTRY_ID: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
ORDER_ID: Final = re.compile(rf"({SKU_PATTERN})~({_ENTRY_ID.pattern})~([0-9a-f]{{32}})")
_MARK: Final = re.compile(r"([0-9]{16})/([0-9]{16})-([0-9]{16})(?:/([0-9a-f]{8}))?")  # of a position; leading zeros
_LARGEST_TOKEN: Final = 2**53  # Lua counts in doubles
_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")


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
        self.log = f"{item}:log"  # for operators' scripts alone
        self.all = (self.stock, self.lucky, self.fence, self.buyers, self.settled, self.orders, *refused)


@lru_cache(10_000)
def keys_of(sku: str) -> Keys:
    """The keys of an item, cached. Raises `ItemNotPossible` for a name that is not valid."""
    refuse_odd_name(sku)
    return Keys(sku)


def mark_of(position: Position) -> str:
    """A position as a text that is greater for later orders."""
    generation, entry, tag = position
    ms, _, seq = entry.partition("-")
    return f"{generation:0>16}/{ms:0>16}-{seq:0>16}" + (f"/{tag}" if tag else "")


def position_of(mark: str) -> Position:
    """The position of a mark. Raises `ValueError` if it is not a mark."""
    match = _MARK.fullmatch(mark)
    if match is None:
        raise ValueError(f"not a mark of ours: {mark[:100]!r}")
    generation, ms, seq = map(int, match.groups()[:3])
    return str(generation), f"{ms}-{seq}", match[4] or ""


def whole(sku: str, name: str, text: str) -> int:
    """Parse a number of units. Raises `StockCorrupt`, with the name of the key, for anything else."""
    if not _WHOLE.fullmatch(text):
        raise StockCorrupt(f"the key {name!r} of item {sku!r} is not a whole number of 0 or more")
    return int(text)


def level_of(
    sku: str, stock: str | None, lucky: str | None, initial: str | None, last_entry: str | None, terms: str
) -> Level:
    """Parse the units left and sold. Raises `UnknownItem` and `StockCorrupt`."""
    at = Keys(sku)
    if stock is None:
        raise unknown(sku)
    units = None if initial is None else whole(sku, f"{at.fence} initial", initial)
    return Level(
        sku, whole(sku, at.stock, stock), whole(sku, at.lucky, lucky or "0"), units, last_entry, terms_of(sku, terms)
    )


def terms_of(sku: str, text: str) -> Terms:
    """Parse an item's own terms. Raises `StockCorrupt`."""
    try:
        return Terms.from_text(text)
    except ValueError:
        raise StockCorrupt(f"the field `terms` of the key {Keys(sku).fence!r} is not what we write") from None


def snapshot_of(
    sku: str,
    stock: int,
    lucky: int,
    bought: Sequence[str | None],
    settled: Sequence[str | None],
    ask: Ask,
    last_entry: str | None = None,
    terms: str = "",
) -> Snapshot:
    """Make a snapshot; `bought` and `settled` have a text or None for each buyer and each key of `ask`."""
    own = terms_of(sku, terms)
    if not (ask.buyers or ask.keys):
        return Snapshot(stock, lucky, last_entry=last_entry, terms=own)
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
        terms=own,
    )


def pack(settled: Settled) -> str:
    """Encode what the key of a refusal stands for. (For the key of an order the scripts do so: common.lua.)"""
    fields = {name: value for name, value in asdict(settled).items() if value is not None}
    return json.dumps(fields, separators=(",", ":"))


def pack_sold(sold: Sold) -> tuple[str, str, str, str]:
    """Encode an order for the scripts."""
    return str(sold.quantity), sold.buyer or "", sold.key or "", sold.secret


def unpack(sku: str, text: str) -> Settled:
    """Parse what a key stands for. Raises `StockCorrupt`."""
    entry_id, _, packed = text.partition(" ")
    try:
        fields = json.loads(packed)
        secret = fields.pop("secret", None)
        order_id = f"{sku}~{entry_id}~{secret}" if secret else None
        return Settled(fields["outcome"], fields["quantity"], fields.get("buyer"), order_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StockCorrupt(f"the key {Keys(sku).settled!r} of item {sku!r} holds something that is not ours") from None


def order_of(sku: str, entry_id: str, fields: dict[str, str]) -> Order:
    """Parse an entry of the stream. Raises `StockCorrupt`."""
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
            epoch=int(fields.get("epoch", "0")),
            sold_at=int(entry_id.partition("-")[0]) / 1000,
        )
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).orders!r} of item {sku!r} holds something that is not ours") from None


def change_of(sku: str, entry_id: str, fields: dict[str, str]) -> Change:
    """Parse an entry of the operators' log. Raises `StockCorrupt`."""
    try:
        before, after = json.loads(fields["before"]), json.loads(fields["after"])
        return Change(int(entry_id.partition("-")[0]) / 1000, fields["by"], fields["what"], sku, before, after)
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).log!r} holds something that is not ours") from None


def unknown(sku: str) -> UnknownItem:
    """The error for an item that does not exist."""
    # The default item's key has a name that people know; the others' names are internal.
    why = f": the key {Keys(sku).stock!r} is not there" if sku == DEFAULT_SKU else ""
    return UnknownItem(f"no item {sku!r}{why}")


def token_of(fence: Fence) -> str:
    """Encode a token for the scripts. Raises `ValueError`."""
    if not 0 < fence.token < _LARGEST_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")
    return str(fence.token)


def refusal_of(sku: str, fence: Fence | None, answer: Sequence[Any]) -> StockError:  # noqa: PLR0912 - a case each
    """The error for a script's refusal; an answer that no script of ours gives comes from something else."""
    parts: list[Any] = answer if isinstance(answer, list) and answer else [None]
    reason, *details = parts
    error: StockError
    match reason:
        case "unknown":
            error = unknown(sku)
        case "foreign" if fence is not None:
            error = ForeignFence(foreign(sku, Fence(int(details[1]), details[0]), fence))
        case "behind":
            error = StockBehind(behind(sku, details[0]))
        case "stale" if fence is not None:
            error = FenceRefused(superseded(sku, details[0], fence))
        case "changed":
            error = StockChanged(changed(sku, details[0]))
        case "half":
            error = StockCorrupt(half(sku, details[0]))
        case "forbidden":
            error = StockUnavailable(f"the store's user may not {details[0]}", untouched=True)
        case "not as expected":
            error = StockNotAsExpected(not_as_expected(sku, int(details[0]), int(details[1])))
        case "orders":
            error = HasOrders(sku, int(details[0]))
        case "too many":
            error = StockNotAsExpected(f"item {sku!r} can't have that many units")
        case "no number":
            error = StockCorrupt(f"the key {details[0]!r} of item {sku!r} is not a whole number of 0 or more")
        case "corrupt":
            error = StockCorrupt(f"the key {details[0]!r} of item {sku!r} holds something that is not ours")
        case _:
            error = nonsense(answer)
    return error


def nonsense(answer: object) -> StockUnavailable:
    """The error for an answer that no script of ours gives: the request may or may not have been carried out."""
    return StockUnavailable(f"the store gives an answer that is none: {str(answer)[:80]!r}")

"""The keys of an item's data in Redis or Valkey, and the format of their values."""

import json
import re
from collections.abc import Mapping, Sequence
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
from app.orders import (
    DEFAULT_SKU,
    Ask,
    Event,
    EventKind,
    Order,
    OrderChange,
    OrderId,
    OrderState,
    Record,
    Settled,
    Snapshot,
    Terms,
    Units,
    to_json,
)
from app.stock.refusals import behind, changed, foreign, half, not_as_expected, other_layout, superseded
from app.stock.store import DEFAULT_RECEIVER, Begun, Change, Fence, Level, Note, Sold, refuse_odd_name

# Of an order: its generation and its entry in the stream, as the store writes them; the tag of its secret ("": any).
Position = tuple[str, str, str]

_NUMBER: Final = re.compile("(?:0|[1-9][0-9]{0,15})-(?:0|[1-9][0-9]{0,15})")  # of an order: its entry in the stream
_MARK: Final = re.compile(r"([0-9]{16})/([0-9]{16})-([0-9]{16})(?:/([0-9a-f]{8}))?")  # of a position; leading zeros
LOG_MAX: Final = 10_000  # lines of an item's log, as in common.lua
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
        # Of orders that are not just sold: how they stand, by number; when those that are held go back; the order of
        # each payment; each buyer's last one that is held.
        standing = (f"{item}:records", f"{item}:due", f"{item}:payments", f"{item}:holders")
        # For operators' scripts alone; how far the events have left, which begins anew with a sale: see `suffix_of`.
        self.log, self.outbox = f"{item}:log", f"{item}:outbox"
        self.records, self.payments, self.holders = standing[0], standing[2], standing[3]
        self.all = (
            *(self.stock, self.lucky, self.fence, self.buyers, self.settled, self.orders, *refused),
            *standing,
        )


def suffix_of(receiver: str) -> str:
    """What a receiver's fields of the outbox end in; those of the default one are all that earlier releases know."""
    return "" if receiver == DEFAULT_RECEIVER else f":{receiver}"


@lru_cache(10_000)
def keys_of(sku: str) -> Keys:
    """The keys of an item, cached. Raises `ItemNotPossible` for a name that is not valid."""
    refuse_odd_name(sku)
    return Keys(sku)


def is_number(text: str) -> bool:
    """Return whether this may be the number of an order here."""
    return _NUMBER.fullmatch(text) is not None


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
    sku: str,
    stock: str | None,
    lucky: str | None,
    initial: str | None,
    last_entry: str | None,
    terms: str,
    held: str | None = None,
    due_in_ms: str | None = None,
    now_ms: str | None = None,
    sale: str = "",
) -> Level:
    """Parse the units left, held and sold. Raises `UnknownItem` and `StockCorrupt`."""
    at = Keys(sku)
    if stock is None:
        raise unknown(sku)
    units = None if initial is None else whole(sku, f"{at.fence} initial", initial)
    return Level(
        sku,
        whole(sku, at.stock, stock),
        whole(sku, at.lucky, lucky or "0"),
        units,
        last_entry,
        terms_of(sku, terms),
        whole(sku, f"{at.fence} held", held or "0"),
        int(due_in_ms) / 1000 if due_in_ms else None,
        int(now_ms) / 1000 if now_ms else None,
        sale,
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
    standing: Sequence[Any] | None = None,
) -> Snapshot:
    """Make a snapshot; `bought` and `settled` have a text or None for each buyer and each key of `ask`.

    `standing`: what is read about holds: see prepare.lua.
    """
    own = terms_of(sku, terms)
    about: dict[str, Any] = {} if standing is None else _standing_of(sku, ask, *standing)
    if not (ask.buyers or ask.keys):
        return Snapshot(stock, lucky, last_entry=last_entry, terms=own, **about)
    had = {
        buyer: whole(sku, keys_of(sku).buyers, units) for buyer, units in zip(ask.buyers, bought, strict=False) if units
    }
    return Snapshot(
        stock=stock,
        lucky=lucky,
        bought=about.pop("bought", {}) | had,
        settled={key: unpack(sku, text) for key, text in zip(ask.keys, settled, strict=False) if text},
        last_entry=last_entry,
        terms=own,
        **about,
    )


def _standing_of(
    sku: str,
    ask: Ask,
    now_ms: str,
    held: str,
    found: Sequence[Any],
    holders: Sequence[str | None],
    payments: Sequence[str | None],
    due: Sequence[str],
    more: int,
    had: Sequence[str],
) -> dict[str, Any]:
    """The fields of a snapshot that are about orders which are not just sold."""
    records = {number: record_of(sku, number, text) for number, text in zip(found[::2], found[1::2], strict=True)}
    return {
        "now_ms": int(now_ms),
        "held": whole(sku, f"{Keys(sku).fence} held", held),
        "records": records,
        "open": {buyer: number for buyer, number in zip(ask.buyers, holders, strict=False) if number},
        "payments": {ref: number for ref, number in zip(ask.payments, payments, strict=False) if number},
        "due": due,
        "more_due": bool(more),
        "bought": {
            buyer: whole(sku, Keys(sku).buyers, units) for buyer, units in zip(had[::2], had[1::2], strict=True)
        },
    }


def record_of(sku: str, number: str, text: str | Sequence[str]) -> Record:
    """Parse how an order stands: its record, or the fields of the entry by which it was sold. Raises `StockCorrupt`."""
    try:
        if isinstance(text, str):
            return Record.from_text(number, text[text.index("{") :])
        fields = dict(zip(text[::2], text[1::2], strict=True))
        own = fields["secret"], int(fields["quantity"]), fields["buyer"] or None
        return Record.sold(number, *own)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StockCorrupt(f"the key {Keys(sku).records!r} of item {sku!r} holds something that is not ours") from None


def entries_of(text: str | None) -> list[str]:
    """The later entries of an order, which the scripts keep in front of its record."""
    return (text or "{").partition("{")[0].split()


def pack(settled: Settled) -> str:
    """Encode the result of a refused request. (That of an order is encoded by the scripts: common.lua.)"""
    fields = {"outcome": settled.outcome, "quantity": settled.quantity, "buyer": settled.buyer}
    if settled.order is not None:
        fields |= {"order_id": str(settled.order), "number": settled.order.number}
    return json.dumps({name: value for name, value in fields.items() if value is not None}, separators=(",", ":"))


def pack_sold(sold: Sold) -> tuple[str, str, str, str]:
    """Encode an order for the scripts."""
    return str(sold.quantity), sold.buyer or "", sold.key or "", sold.secret


def pack_begun(begun: Begun) -> dict[str, str]:
    """Encode an order that begins with a record for the scripts."""
    record = begun.record
    return {
        "quantity": str(record.quantity),
        "buyer": record.buyer or "",
        "key": begun.key or "",
        "secret": record.secret,
        "record": record.to_text(),
        "due": _due(record),
        "facts": _json(record.facts),
        "state": record.state,
    }


def pack_change(change: OrderChange) -> dict[str, object]:
    """Encode a change of an order for the scripts."""
    after = change.after
    return {
        "number": after.number,
        "event": str(after.events),
        "record": after.to_text(),
        "due": _due(after),
        "units": [str(units) for units in change.units],
        "bought": str(change.bought),
        "buyer": after.buyer or "",
        "payment": change.payment or "",
        "kind": change.kind,
        "quantity": str(after.quantity),
        "secret": after.secret,
        "facts": _json(change.facts),
    }


def pack_note(note: Note) -> dict[str, str]:
    """Encode a line of the operators' log for the scripts."""
    return {"by": note.by, "what": note.what, "before": to_json(note.before), "after": to_json(note.after)}


def _due(record: Record) -> str:
    return str(record.due_ms) if record.state is OrderState.HELD else ""


def _json(facts: Mapping[str, Any]) -> str:
    return to_json(facts) if facts else ""


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


def unpack(sku: str, text: str) -> Settled:
    """Parse the result that is stored under a key. Raises `StockCorrupt`."""
    entry_id, _, packed = text.partition(" ")
    try:
        fields = json.loads(packed)
        secret = fields.pop("secret", None)
        order = OrderId(sku, entry_id, secret) if secret else OrderId.parse(fields.get("order_id", ""))
        return Settled(fields["outcome"], fields["quantity"], fields.get("buyer"), order)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StockCorrupt(f"the key {Keys(sku).settled!r} of item {sku!r} holds something that is not ours") from None


def order_of(sku: str, entry_id: str, fields: dict[str, str], record: str | None = None) -> Order:
    """Parse an entry of the stream, and the record of how its order stands. Raises `StockCorrupt`."""
    try:
        own = fields["secret"], int(fields["quantity"]), fields["buyer"] or None
        return Order(
            sku=sku,
            record=record_of(sku, entry_id, record) if record else Record.sold(entry_id, *own),
            key=fields["key"] or None,
            instance=fields["instance"],
            token=int(fields["token"]),
            batch_id=fields["batch"],
            epoch=int(fields.get("epoch", "0")),
            sold_at=int(entry_id.partition("-")[0]) / 1000,
        )
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).orders!r} of item {sku!r} holds something that is not ours") from None


def is_gone(fields: Mapping[str, str], record: str | None) -> bool:
    """Return whether an order that began as held has no record: a new sale came between the reads of the two."""
    return not record and fields.get("kind") == OrderState.HELD


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
        case "layout":
            error = StockCorrupt(other_layout(sku, int(details[0])))
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

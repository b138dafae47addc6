"""The texts of named things: the meaning of a key, and an order's record with the entries of its later events."""

import hashlib
import json
from collections.abc import Sequence

from app.orders import Event, EventKind, Order, OrderId, Record, Settled, to_json

Odd = (ValueError, KeyError, TypeError, AttributeError)
"""The errors of the readers here, for a text that is none of ours."""


def tag_of(secret: str) -> str:
    """The tag that tells orders with the same number apart, if a store was set back: the beginning of a digest."""
    return hashlib.sha1(secret.encode(), usedforsecurity=False).hexdigest()[:8]


def of_key(settled: Settled) -> str:
    """Write the text of an idempotency key: its order's number, and the answer."""
    own: dict[str, object] = {"outcome": settled.outcome, "quantity": settled.quantity}
    if settled.buyer is not None:
        own["buyer"] = settled.buyer
    if settled.order is not None:
        own["secret"] = settled.order.secret
    for name in ("basket", "line"):
        if (value := getattr(settled, name)) is not None:
            own[name] = value
    return f"{settled.order.number if settled.order else ''} {to_json(own)}"


def key_of(sku: str, text: str) -> Settled:
    """Read the text of a key. Raises one of `Odd`."""
    number, _, packed = text.partition(" ")
    own = json.loads(packed)
    secret = own.get("secret")
    order = OrderId(sku, number, secret) if number and secret else None
    return Settled(own["outcome"], own["quantity"], own.get("buyer"), order, own.get("basket"), own.get("line"))


def of_refusal(settled: Settled, generation: int, at_ms: int) -> str:
    """Write the text of a key whose refusal is remembered for a while, and its time."""
    return f"{generation} {at_ms} {of_key(settled)}"


def refusal_of(sku: str, text: str, generation: int, since_ms: int) -> Settled | None:
    """Read the text of a refusal; None if it is of another generation, or from before `since_ms`.

    Raises one of `Odd`.
    """
    of, at_ms, own = text.split(" ", 2)
    return key_of(sku, own) if int(of) == generation and int(at_ms) > since_ms else None


def of_record(entries: str, record: Record) -> str:
    """Write how an order stands, behind the entries of its later events, a line each."""
    return entries + record.to_text()


def record_of(number: str, text: str) -> Record:
    """Read how an order stands. Raises one of `Odd`."""
    return Record.from_text(number, text[text.index("{") :])


def entries_in(text: str | None) -> str:
    """The lines in front of a record: the entries of its order's later events."""
    return "" if text is None else text.partition("{")[0]


def sale_record(event: Event) -> Record:
    """The record of an order of which nothing is kept but its entry."""
    return Record.sold(event.entry, event.order.secret, event.quantity, event.buyer)


def order_of(event: Event, record: Record | None) -> Order:
    """The order that began with an event, and how it stands."""
    return Order(
        sku=event.sku,
        record=record or sale_record(event),
        key=event.key,
        instance=event.instance,
        token=event.token,
        batch_id=event.batch_id,
        sold_at=event.at,
        epoch=event.epoch,
    )


def begins(event: Event) -> bool:
    """Return whether an entry of the journal is the beginning of its order."""
    return event.number == 1


def is_gone(event: Event, record: Record | None) -> bool:
    """Return whether an order that began as held has no record: a new sale came between the reads of the two."""
    return record is None and event.kind in (EventKind.HELD, EventKind.WAITING)


def without(text: str, buyer: str, instead: str) -> str:
    """A text of ours, in which quotes are escaped, with another name for its buyer."""
    was, now = (f'"buyer":{to_json(name)}' for name in (buyer, instead))
    return text.replace(was, now)


def has_buyer(text: str, buyer: str) -> bool:
    """Return whether a text of ours has the name of a buyer."""
    return f'"buyer":{to_json(buyer)}' in text


def last_secret(events: Sequence[Event]) -> str:
    """The secret of the order that the last of these events is about."""
    return events[-1].order.secret

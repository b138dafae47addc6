"""What the events of orders say: each kind, when it comes, and an example that the decision has made.

A test drives the decision over all states and commands, and compares what it saw with the rows.
"""

from collections.abc import Iterator
from typing import Any, Final

from app.orders import (
    NO_UNITS,
    Cancel,
    Command,
    Confirm,
    Event,
    EventKind,
    Expire,
    Hold,
    Incident,
    OrderChange,
    OrderId,
    Purchase,
    Record,
    Refund,
    RequestRefund,
    Snapshot,
    decide,
)
from app.orders.commands import Extend
from app.orders.decision import Windows
from app.orders.view import of_event

_ORDER: Final = OrderId("lamp", "1795679839808-0", "0123456789abcdef" * 2)
_BEGAN_MS: Final = 1_794_398_400_000
_PRICE: Final = 49_900
_WINDOWS: Final = Windows(price=_PRICE, currency="EUR")
# By type and what it is about: when it comes.
WHEN: Final[dict[tuple[EventKind, str], str]] = {
    (EventKind.SOLD, "order"): "A purchase of an item without a price: it is sold at once.",
    (EventKind.HELD, "order"): "Units are held until `pay_by`.",
    (EventKind.EXTENDED, "order"): "The buyer goes to pay, and has until `pay_by`.",
    (EventKind.CONFIRMED, "order"): "The payment counts: ship. `late`: the hold was over, and units were left.",
    (EventKind.AMOUNT_MISMATCH, "payment"): "A payment of another `amount` than `expected`; the hold goes on.",
    (EventKind.EXPIRED, "order"): "Nobody has paid in time: the units are on sale again.",
    (EventKind.CANCELLED, "order"): "The buyer, the shop or an operator gave the units back.",
    (EventKind.CANCELLED, "units"): "Some `units` of a hold were given back; the rest is held.",
    (EventKind.REFUND_DUE, "payment"): "A payment came too late, or is one too many, or of a wrong amount: `why`.",
    (EventKind.REFUND_DUE, "part"): "A part of a payment is to be given back.",
    (EventKind.REFUND_REQUESTED, "payment"): "The cashier is about to ask the provider for a refund.",
    (EventKind.REFUND_REQUESTED, "part"): "Likewise, of a part.",
    (EventKind.REFUND_FAILED, "payment"): "A refund did not come through: it is due, and an operator has to look.",
    (EventKind.REFUNDED, "order"): "The order's money was given back; `restock`: its units are on sale again.",
    (EventKind.REFUNDED, "units"): "Some `units` of a paid order, and their money, were given back.",
    (EventKind.REFUNDED, "payment"): "`payment_refs` were to be given back, and were. The order stays as it is.",
    (EventKind.REFUNDED, "part"): "`amount` of `payment_refs` was given back. The order stays as it is.",
    (EventKind.DISPUTED, "payment"): "The buyer wants the money back from their bank.",
    (EventKind.DISPUTE_WON, "payment"): "The bank leaves it to the shop.",
    (EventKind.DISPUTE_LOST, "payment"): "The bank has given it back.",
}
_OF_ALL: Final = ("state", "about", "order", "sku", "number", "quantity", "buyer", "ref", "request_id", "traceparent")
_HOLD: Final = Hold(3, "lamp", "ann", ref="R-9")
_DAY_S: Final = 86_400
# Lives of orders in which each of these events comes.
_LIVES: Final[tuple[tuple[Command, ...], ...]] = (
    (Purchase(1, "lamp", "ann", request_id="r"), Refund(*_ORDER, restock=True, by="bob")),
    (_HOLD, Expire("lamp")),
    (_HOLD, Cancel(*_ORDER)),
    (
        _HOLD,
        Extend(*_ORDER),
        Cancel(*_ORDER, units=1, message="one less"),
        Confirm(*_ORDER, "pi_1", _PRICE, "EUR"),
        Confirm(*_ORDER, "pi_2", 2 * _PRICE, "EUR"),
        RequestRefund(*_ORDER, "pi_1", "cashier"),
        Incident(*_ORDER, EventKind.REFUND_FAILED, "pi_1", why="the card has expired"),
        Refund(*_ORDER, restock=False, payment_ref="pi_1", by="bob"),
        Refund(*_ORDER, restock=False, payment_ref="pi_2", amount=1_000, message="a scratch", later=True),
        RequestRefund(*_ORDER, "a scratch", "cashier"),
        Refund(*_ORDER, restock=False, payment_ref="pi_2", of_part="a scratch"),
        Refund(*_ORDER, restock=True, units=1, message="one came back"),
        Incident(*_ORDER, EventKind.DISPUTED, "pi_2", 48_900, message="dp_1"),
        Incident(*_ORDER, EventKind.DISPUTE_WON, "pi_2", 48_900, message="dp_1"),
        Incident(*_ORDER, EventKind.DISPUTE_LOST, "pi_2", 48_900, message="dp_2"),
        Refund(*_ORDER, restock=True, by="bob"),
    ),
)


def examples() -> dict[tuple[EventKind, str], dict[str, Any]]:
    """Return the first event of each kind, by what it is about, as the webhook has it."""
    found: dict[tuple[EventKind, str], dict[str, Any]] = {}
    for life in _LIVES:
        for event in _events(life):
            body = of_event(event, "R-9")
            found.setdefault((event.kind, body["data"]["about"]), body)
    return found


def own_facts(body: dict[str, Any]) -> dict[str, Any]:
    """Return what an event says beside what each one does."""
    return {name: fact for name, fact in body["data"].items() if name not in _OF_ALL}


def _events(life: tuple[Command, ...]) -> Iterator[Event]:
    at_ms, (begins, *others) = _BEGAN_MS, life
    windows = _WINDOWS if isinstance(begins, Hold) else Windows()
    [decision] = decide(Snapshot(9, 0, now_ms=at_ms, layout=2), [begins], windows=windows).decisions
    assert decision.begins is not None  # noqa: S101 - for the type checker
    record = decision.begins._replace(number=_ORDER.number, secret=_ORDER.secret)
    yield _event(EventKind(record.state), record, at_ms, record.facts)
    for command in others:
        at_ms += _DAY_S * 1_000 if isinstance(command, Expire) else 1_000
        for change in _changes(record, command, at_ms):
            record = change.after
            yield _event(change.kind, record, at_ms, change.facts)


def _changes(record: Record, command: Command, at_ms: int) -> list[OrderChange]:
    due = [record.number] if isinstance(command, Expire) else []
    about: dict[str, Any] = {"records": {record.number: record}, "due": due, "layout": 2}
    return decide(Snapshot(9, 0, now_ms=at_ms, **about), [command], windows=_WINDOWS).changes


def _event(kind: EventKind, record: Record, at_ms: int, facts: Any) -> Event:
    own = (record.events, record.quantity, record.buyer, None, at_ms / 1_000, "8080", 7, "b", 0, NO_UNITS)
    return Event(f"{at_ms}-0", kind, _ORDER, *own, facts)

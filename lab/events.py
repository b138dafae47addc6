"""What the events of orders say: each kind, when it comes, and an example that the decision has made.

A test drives the decision over all states and commands, and compares what it saw with the rows.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from app.orders import (
    NO_UNITS,
    Cancel,
    Command,
    Confirm,
    Event,
    EventKind,
    Expire,
    GivenBack,
    Hold,
    Incident,
    OrderChange,
    OrderId,
    OrderState,
    Purchase,
    Record,
    Refund,
    RequestRefund,
    Snapshot,
    decide,
)
from app.orders.account import PROVIDER
from app.orders.commands import Extend
from app.orders.decision import Windows
from app.orders.view import of_event

_ORDER: Final = OrderId("lamp", "1795679839808-0", "0123456789abcdef" * 2)
_BEGAN_MS: Final = 1_794_398_400_000
_PRICE: Final = 49_900
_CASHIER: Final = "the cashier"
_WINDOWS: Final = Windows(price=_PRICE, currency="EUR")
# By type and what it is about: when it comes.
WHEN: Final[dict[tuple[EventKind, str], str]] = {
    (EventKind.SOLD, "order"): "A purchase of an item without a price: it is sold at once.",
    (EventKind.WAITING, "order"): "None is left, others hold some, and the buyer gets in line.",
    (EventKind.OFFERED, "order"): "Units came back, and are held until `pay_by` for the one who was next in line.",
    (EventKind.HELD, "order"): "Units are held until `pay_by`.",
    (EventKind.EXTENDED, "order"): "The buyer goes to pay, and has until `pay_by`.",
    (EventKind.CONFIRMED, "order"): "The payment counts: ship. `late`: the hold was over, and units were left.",
    (EventKind.AMOUNT_MISMATCH, "payment"): "A payment of another `amount` than `expected`; the hold goes on.",
    (EventKind.EXPIRED, "order"): "Nobody has paid in time: the units are on sale again.",
    (EventKind.CANCELLED, "order"): "The buyer, the shop or an operator gave the units, or a place in line, back. "
    "`why` is `ended`: the sale is over, and with it the line.",
    (EventKind.CANCELLED, "units"): "Some `units` of a hold, or of a wish in line, were given back; the rest stays.",
    (EventKind.REFUND_DUE, "payment"): "`amount` is owed: the payment is not needed (`why`), or an operator wants it.",
    (EventKind.REFUND_REQUESTED, "payment"): "The cashier is about to ask the provider for `amount`.",
    (EventKind.REFUND_FAILED, "payment"): "A refund was refused, or came back: it is owed, and somebody has to look.",
    (EventKind.REFUND_NAMED, "payment"): "The provider tells of a refund that was known: it has its `id` now.",
    (EventKind.REFUNDED, "order"): "`amount`, the rest of the payment that counts, went back.",
    (EventKind.REFUNDED, "units"): "Some `units` of a paid order were given back, for `amount`.",
    (EventKind.REFUNDED, "payment"): "`amount` of a payment went back, and the order stays as it is.",
    (EventKind.DISPUTED, "payment"): "The buyer wants `amount` back from their bank.",
    (EventKind.DISPUTE_WON, "payment"): "The bank leaves `amount` to the shop.",
    (EventKind.DISPUTE_LOST, "payment"): "The bank has given `amount` back.",
    (EventKind.DISPUTE_LOST, "order"): "Likewise, and it was the rest of the payment that counts.",
}
_OF_ALL: Final = ("state", "about", "order", "sku", "number", "quantity", "buyer", "ref", "request_id", "traceparent")
_OF_MONEY: Final = ("payment_ref", "currency", "sums", "message", "outcome", "by")
_AROUND: Final = ("by", "why", "at")
_HOLD: Final = Hold(3, "lamp", "ann", ref="R-9")
_WAIT: Final = Hold(3, "lamp", "ann", ref="R-9", wait=True)
_DAY_S: Final = 86_400
# Lives of orders in which each of these events comes.
_LIVES: Final[tuple[tuple[Command, ...], ...]] = (
    (Purchase(1, "lamp", "ann", request_id="r"),),
    (_HOLD, Expire("lamp")),
    (_WAIT, Expire("lamp")),
    (_HOLD, Cancel(*_ORDER)),
    (
        _HOLD,
        Extend(*_ORDER),
        Cancel(*_ORDER, units=1, message="one less"),
        Confirm(*_ORDER, "pi_1", _PRICE, "EUR"),
        Confirm(*_ORDER, "pi_2", 2 * _PRICE, "EUR"),
        RequestRefund(*_ORDER, "refund-1", _CASHIER),
        Incident(*_ORDER, EventKind.REFUND_FAILED, "pi_1", name="refund-1", why="the card has expired", by=_CASHIER),
        Refund(*_ORDER, restock=False, payment_ref="pi_2", amount=1_000, message="a scratch", by="bob"),
        GivenBack(*_ORDER, "pi_2", PROVIDER, 1_000, refund_id="re_1"),
        Refund(*_ORDER, restock=True, units=1, message="one came back", by="bob"),
        Incident(*_ORDER, EventKind.DISPUTED, "pi_2", 48_900, refund_id="dp_1"),
        Incident(*_ORDER, EventKind.DISPUTE_WON, "pi_2", 48_900, refund_id="dp_1"),
        Incident(*_ORDER, EventKind.DISPUTE_LOST, "pi_2", 900, refund_id="dp_2"),
        Incident(*_ORDER, EventKind.DISPUTE_LOST, "pi_2", 48_000, refund_id="dp_3"),
    ),
    (_HOLD, Confirm(*_ORDER, "pi_1", 3 * _PRICE, "EUR"), Refund(*_ORDER, restock=True, by="bob")),
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
    """Return what an event says beside what each one does, and each one about money."""
    facts = {name: fact for name, fact in body["data"].items() if name not in (*_OF_ALL, *_OF_MONEY) and fact}
    if "refunds" in facts:  # without what the event says itself, and when it was
        refunds = [{name: fact for name, fact in one.items() if name not in _AROUND} for one in facts["refunds"]]
        facts["refunds"] = refunds
    return facts


def _events(life: tuple[Command, ...]) -> Iterator[Event]:
    names = (f"refund-{number}" for number in count(1))
    at_ms, (begins, *others) = _BEGAN_MS, life
    windows = _WINDOWS if isinstance(begins, Hold) else Windows()
    there = Snapshot(0, 0, held=9, now_ms=at_ms) if begins is _WAIT else Snapshot(9, 0, now_ms=at_ms)
    [decision] = decide(there, [begins], windows=windows).decisions
    assert decision.begins is not None  # noqa: S101 - for the type checker
    record = decision.begins._replace(number=_ORDER.number, secret=_ORDER.secret)
    yield _event(EventKind(record.state), record, at_ms, record.facts)
    for command in others:
        at_ms += _DAY_S * 1_000 if isinstance(command, Expire) else 1_000
        for change in _changes(record, command, at_ms, names.__next__):
            record = change.after
            yield _event(change.kind, record, at_ms, change.facts)


def _changes(record: Record, command: Command, at_ms: int, fresh: Callable[[], str]) -> list[OrderChange]:
    about: dict[str, Any] = {"records": {record.number: record}}
    if isinstance(command, Expire):
        own = [record.number]
        about |= {"line": own, "waiting": 1} if record.state is OrderState.WAITING else {"due": own}
    return decide(Snapshot(9, 0, now_ms=at_ms, **about), [command], windows=_WINDOWS, fresh=fresh).changes


def _event(kind: EventKind, record: Record, at_ms: int, facts: Any) -> Event:
    own = (record.events, record.quantity, record.buyer, None, at_ms / 1_000, "8080", 7, "b", 0, NO_UNITS)
    return Event(f"{at_ms}-0", kind, _ORDER, *own, facts)

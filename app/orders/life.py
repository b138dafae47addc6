"""The life of an order: the events that each state allows, the units that they move, and the records they make.

`decision` and `refunds` choose the events; here are their effects. The auditor, and the judge in the lab, read
journals by the same table.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from app.orders import account
from app.orders.account import Dispute, DisputeState, Payment, PaymentRefund, PaymentState, RefundState, Sums, Way
from app.orders.facts import Facts
from app.orders.record import NO_UNITS, EventKind, Line, Notice, OrderChange, OrderState, Record, Units

_SOLD, _WAITING, _HELD, _CONFIRMED, _EXPIRED, _CANCELLED, _REFUNDED = OrderState
_WITH_MONEY: Final = (_WAITING, _HELD, _CONFIRMED, _EXPIRED, _CANCELLED, _REFUNDED)
_OF_MONEY: Final = (
    *(EventKind.REFUND_DUE, EventKind.REFUND_REQUESTED, EventKind.REFUND_FAILED, EventKind.REFUND_NAMED),
    *(EventKind.REFUNDED, EventKind.DISPUTED, EventKind.DISPUTE_WON, EventKind.DISPUTE_LOST),
)


class Step(NamedTuple):
    """The state after an event, the units that it moves, and the units that its buyer has more for their limit."""

    state: OrderState
    units: Units = NO_UNITS
    bought: int = 0


# By the state before (None: nothing yet) and the event, for one unit.
_STEPS: Final[Mapping[tuple[OrderState | None, EventKind], Step]] = {
    (None, EventKind.SOLD): Step(_SOLD, Units(-1, 0, 1), 1),
    (None, EventKind.HELD): Step(_HELD, Units(-1, 1, 0), 1),
    (None, EventKind.WAITING): Step(_WAITING, bought=1),  # so that no offer is over the buyer's limit
    (_WAITING, EventKind.OFFERED): Step(_HELD, Units(-1, 1, 0)),
    (_WAITING, EventKind.CANCELLED): Step(_CANCELLED, bought=-1),
    (_HELD, EventKind.EXTENDED): Step(_HELD),
    (_HELD, EventKind.AMOUNT_MISMATCH): Step(_HELD),
    (_HELD, EventKind.CONFIRMED): Step(_CONFIRMED, Units(0, -1, 1)),
    (_HELD, EventKind.EXPIRED): Step(_EXPIRED, Units(1, -1, 0), -1),
    (_HELD, EventKind.CANCELLED): Step(_CANCELLED, Units(1, -1, 0), -1),
    (_EXPIRED, EventKind.CONFIRMED): Step(_CONFIRMED, Units(-1, 0, 1), 1),  # a late payment
    # Of a payment, or a part of one: the order stays as it is.
    **{(state, kind): Step(state) for state in _WITH_MONEY for kind in _OF_MONEY},
}
# Events that give back all or some units of an order, by the state before.
_ENDS: Final = {
    (state, kind): Step(_REFUNDED, Units(1, 0, -1), -1)
    for state in (_SOLD, _CONFIRMED)
    for kind in (EventKind.REFUNDED, EventKind.DISPUTE_LOST)
}
_SOME_OF: Final = {
    (_SOLD, EventKind.REFUNDED): _ENDS[_SOLD, EventKind.REFUNDED],
    (_CONFIRMED, EventKind.REFUNDED): _ENDS[_CONFIRMED, EventKind.REFUNDED],
    (_HELD, EventKind.CANCELLED): _STEPS[_HELD, EventKind.CANCELLED],
    (_WAITING, EventKind.CANCELLED): _STEPS[_WAITING, EventKind.CANCELLED],
}


def step(state: OrderState | None, kind: EventKind, quantity: int, facts: Facts) -> Step | None:
    """The effect of an event; None if it may not come then. `quantity`: the order's, if `facts` name no units."""
    about, count = facts.get("about"), facts.get("units", quantity)
    if state is not None and about == "units":
        found = _SOME_OF.get((state, kind))
        found = found and found._replace(state=state)
    elif state is not None and about == "order" and kind in (EventKind.REFUNDED, EventKind.DISPUTE_LOST):
        found = _ENDS.get((state, kind))
    else:
        found = _STEPS.get((state, kind))
    if found is None:
        return None
    if "line" in facts:  # the units are of another item, whose journal moves them
        return Step(found.state)
    stays_out = kind in (EventKind.REFUNDED, EventKind.DISPUTE_LOST) and not facts.get("restock")
    units = NO_UNITS if stays_out else Units(*(count * one for one in found.units))
    return Step(found.state, units, count * found.bought)


def apply(record: Record, kind: EventKind, facts: Facts) -> Record:
    """The record after an event. Raises `ValueError` if the event may not come in this state."""
    done = step(record.state, kind, record.quantity, facts)
    if done is None:
        raise ValueError(f"{kind} can't come when an order is {record.state}")
    fields: dict[str, Any] = {"state": done.state, "events": record.events + 1}
    if "line" in facts:
        fewer = [
            one._replace(quantity=one.quantity - facts["units"] * (one.sku == facts["line"])) for one in record.lines
        ]
        fields["lines"] = tuple(one for one in fewer if one.quantity)
    elif facts.get("about") == "units":
        fields["quantity"] = record.quantity - facts["units"]
    if kind in (EventKind.EXTENDED, EventKind.OFFERED):
        pay_by_ms, due_ms = round(facts["pay_by"] * 1000), round(facts["goes_back_at"] * 1000)
        fields |= {"pay_by_ms": pay_by_ms, "due_ms": due_ms}
        fields["extended" if kind is EventKind.EXTENDED else "waited"] = True
    if "payment_ref" in facts:
        before = record.payment(facts["payment_ref"])
        payment = payment_after(before, kind, facts, paid=record.counted is not None)
        fields["payments"] = record.with_payment(payment)
    if "message" in facts:
        fields["notices"] = (*record.notices, Notice(facts["message"], facts["outcome"]))
    return record._replace(**fields)


def payment_after(before: Payment | None, kind: EventKind, facts: Facts, *, paid: bool) -> Payment:
    """The event's payment, after it. `paid`: whether one counted before it."""
    now = before or Payment(facts["payment_ref"])
    if before is None or kind in (EventKind.CONFIRMED, EventKind.AMOUNT_MISMATCH):
        now = now._replace(amount=facts.get("amount", now.amount), currency=facts.get("currency", now.currency))
    match kind:
        case EventKind.CONFIRMED:
            now = now._replace(state=PaymentState.COUNTS)
        case EventKind.AMOUNT_MISMATCH:
            now = now._replace(state=PaymentState.WRONG)
        case EventKind.REFUND_DUE if before is None:
            now = now._replace(state=PaymentState.SECOND if paid else PaymentState.LATE)
    if "refunds" in facts:
        now = now._replace(refunds=account.applied(now.refunds, map(refund_of, facts["refunds"])))
    if "disputes" in facts:
        told = [Dispute(**one | {"state": DisputeState(one["state"])}) for one in facts["disputes"]]
        now = now._replace(disputes=tuple(told))
    return now


_OF_A_LINE: Final = ("pay_by", "goes_back_at", "restock", "late")


def of_line(kind: EventKind, facts: Facts, line: Line) -> Facts | None:
    """The facts of the event by which a line follows its order; None if it stays as it is."""
    about = facts.get("about")
    if about == "payment" or (about == "units" and facts.get("line") != line.sku):
        return None
    own = cast(Facts, {name: one for name, one in facts.items() if name in _OF_A_LINE})
    if about == "units" and facts["units"] < line.quantity:
        return own | Facts(about=about, units=facts["units"])
    return own | Facts(about="order") if kind in (EventKind.REFUNDED, EventKind.DISPUTE_LOST) else own


_SHOWN: Final = ("name", "state", "amount")


def told(one: PaymentRefund) -> dict[str, Any]:
    """A refund in the form that an event has."""
    usual = PaymentRefund._field_defaults
    return {name: value for name, value in one._asdict().items() if name in _SHOWN or value != usual.get(name)}


def refund_of(told: Mapping[str, Any]) -> PaymentRefund:
    """The refund in an event. Raises `ValueError` or `TypeError` if it is none."""
    own = PaymentRefund(**told)
    return own._replace(state=RefundState(own.state), way=Way(own.way))


def changed(record: Record, kind: EventKind, facts: Facts, payment: str | None = None) -> OrderChange:
    """The change of an order by an event, to which the changed sums are added.

    `payment`: its name, if it belongs to no order yet. Raises `ValueError` as `apply` does.
    """
    after = apply(record, kind, facts)
    done = step(record.state, kind, record.quantity, facts)
    assert done is not None  # noqa: S101 - it was applied
    facts = facts | Facts(state=str(done.state))
    now = after.sums
    if now and "payment_ref" in facts:
        moved = account.changes(record.sums, now)
        facts |= {"changes": list(map(Sums.said_change, moved)), "sums": list(map(Sums.said, now.values()))}
    return OrderChange(record, after, kind, facts, done.units, done.bought, payment)

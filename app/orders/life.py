"""The life of an order, as its journal tells it: which event may come in which state, and what it does.

`decision` and `refunds` make the events; here they are read, by the auditor and by the judge in the lab.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.orders.record import NO_UNITS, EventKind, OrderState, Units

_SOLD, _HELD, _CONFIRMED, _EXPIRED, _CANCELLED, _REFUNDED = OrderState
_WITH_MONEY: Final = (_HELD, _CONFIRMED, _EXPIRED, _CANCELLED, _REFUNDED)
# From a state (None: nothing yet) and an event to the next state, and the units left, held and sold by each of its.
_STEPS: Final[Mapping[tuple[OrderState | None, EventKind], tuple[OrderState, Units]]] = {
    (None, EventKind.SOLD): (_SOLD, Units(-1, 0, 1)),
    (None, EventKind.HELD): (_HELD, Units(-1, 1, 0)),
    (_HELD, EventKind.EXTENDED): (_HELD, NO_UNITS),
    (_HELD, EventKind.AMOUNT_MISMATCH): (_HELD, NO_UNITS),
    (_HELD, EventKind.CONFIRMED): (_CONFIRMED, Units(0, -1, 1)),
    (_HELD, EventKind.EXPIRED): (_EXPIRED, Units(1, -1, 0)),
    (_HELD, EventKind.CANCELLED): (_CANCELLED, Units(1, -1, 0)),
    (_EXPIRED, EventKind.CONFIRMED): (_CONFIRMED, Units(-1, 0, 1)),  # a late payment
    **{(state, EventKind.REFUND_DUE): (state, NO_UNITS) for state in _WITH_MONEY if state is not _HELD},
    **{
        (state, kind): (state, NO_UNITS)
        for state in OrderState
        for kind in (
            *(EventKind.REFUND_REQUESTED, EventKind.REFUND_FAILED),
            *(EventKind.DISPUTED, EventKind.DISPUTE_WON, EventKind.DISPUTE_LOST),
        )
    },
}
_SOME_OF: Final = {EventKind.REFUNDED: (_SOLD, _CONFIRMED), EventKind.CANCELLED: (_HELD,)}  # when some units may go


def step(
    state: OrderState | None, kind: EventKind, quantity: int, facts: Mapping[str, Any]
) -> tuple[OrderState, Units] | None:
    """The state after an event, and the units that it moves; None if no such event may come then."""
    count, restocked = facts.get("units", quantity), facts.get("restock")
    if facts.get("about") == "units":
        after = state if state in _SOME_OF.get(kind, ()) else None
    elif kind is not EventKind.REFUNDED:
        found = _STEPS.get((state, kind))
        return found and (found[0], Units(*(count * one for one in found[1])))
    elif restocked is None:  # a payment, or a part of one: the order stays as it is
        after = state if state in _WITH_MONEY else None
    else:
        after = _REFUNDED if state in (_SOLD, _CONFIRMED) else None
    if state is None or after is None:
        return None
    back = kind is EventKind.CANCELLED or restocked
    return after, (Units(count, -count, 0) if state is _HELD else Units(count, 0, -count)) if back else NO_UNITS

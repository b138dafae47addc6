"""An event as it is told to the shop: what it is about, and the order's state after it."""

from typing import Any

import pytest

from app.orders import Event, EventKind, OrderId, Units
from app.orders.view import of_event


@pytest.mark.parametrize(
    ("kind", "facts", "state", "about"),
    [
        # As releases wrote them that did not say it: they wait to be sent when one updates, and may be replayed.
        ("refunded", {"payment_refs": ["p2"]}, None, "payment"),
        ("refunded", {"payment_refs": ["p1"], "restock": False}, "refunded", "order"),
        ("refund_due", {"payment_ref": "p2"}, None, "payment"),
        ("confirmed", {"payment_ref": "p1"}, "confirmed", "order"),
        # And as they are written now.
        ("refunded", {"about": "payment", "state": "confirmed", "payment_refs": ["p2"]}, "confirmed", "payment"),
        ("refunded", {"about": "part", "state": "confirmed", "amount": 1}, "confirmed", "part"),
    ],
)
def test_state_and_about(kind: str, facts: dict[str, Any], state: str | None, about: str) -> None:
    """A refund of one payment too many is never told as one of the order, which would not be shipped."""
    event = Event(
        "2-0",
        EventKind(kind),
        OrderId("default", "1-0", "aa"),
        2,
        1,
        "ann",
        None,
        1.0,
        "test",
        7,
        "b",
        1,
        Units(),
        facts,
    )
    data = of_event(event, None)["data"]
    assert (data["state"], data["about"]) == (state, about)

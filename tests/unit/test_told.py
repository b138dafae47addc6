"""An event as it is told to the shop: what it is about, and the order's state after it."""

import pytest

from app.orders import Event, EventKind, OrderId, Units
from app.orders.facts import Facts
from app.orders.view import of_event


@pytest.mark.parametrize(
    ("kind", "facts", "state", "about"),
    [
        ("held", {"pay_by": 1.0}, "held", "order"),
        ("refunded", {"about": "payment", "state": "confirmed", "payment_ref": "p2"}, "confirmed", "payment"),
        ("refunded", {"about": "order", "state": "refunded", "payment_ref": "p1"}, "refunded", "order"),
        ("refunded", {"about": "units", "state": "confirmed", "units": 1}, "confirmed", "units"),
    ],
)
def test_state_and_about(kind: str, facts: Facts, state: str | None, about: str) -> None:
    """A refund of one payment too many is never told as one of the order, which would not be shipped."""
    own = (2, 1, "ann", None, 1.0, "test", 7, "b", 1, Units())
    event = Event("2-0", EventKind(kind), OrderId("default", "1-0", "aa"), *own, facts)
    data = of_event(event, None)["data"]
    assert (data["state"], data["about"]) == (state, about)

"""What an audit learns of the line from the events of its orders."""

from app.audit.lives import Lives
from app.orders import Event, EventKind, OrderId, Units
from app.orders.facts import Facts

WAITS = (EventKind.WAITING, Units(0, 0, 0))
OFFERED = (EventKind.OFFERED, Units(-1, 1, 0))
PAID = (EventKind.CONFIRMED, Units(0, -1, 1))
PAID_LATE = (EventKind.CONFIRMED, Units(-1, 0, 1))
EXPIRED = (EventKind.EXPIRED, Units(1, -1, 0))
CANCELLED = (EventKind.CANCELLED, Units(1, -1, 0))
LEFT = (EventKind.CANCELLED, Units(0, 0, 0))
HELD = (EventKind.HELD, Units(-1, 1, 0))
STORIES = {
    "1": (HELD, PAID),  # never in line
    "2": (WAITS, OFFERED, PAID),
    "3": (WAITS, OFFERED, EXPIRED, PAID_LATE),  # lapsed, whatever comes then
    "4": (WAITS, OFFERED, CANCELLED),
    "5": (WAITS, LEFT),
    "6": (WAITS, OFFERED),
    "7": (WAITS,),
}


def test_offers_are_counted_by_their_end() -> None:
    violations: list[str] = []
    lives = Lives(violations.append)
    for number, story in STORIES.items():
        for at, (kind, units) in enumerate(story, 1):
            order, facts = OrderId("lamp", number, "s"), Facts(pay_by=100.0)
            lives.add(Event("1", kind, order, at, 1, "ann", None, 50.0, "a", 1, "b", 0, units, facts))
    assert (lives.waiting, lives.taken, lives.lapsed, violations) == (1, 1, 2, [])

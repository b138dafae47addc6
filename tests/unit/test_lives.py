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


def test_orders_are_found_by_their_numbers() -> None:
    """Also those that began before others of which an event has come, and where a server counts within a moment."""
    violations: list[str] = []
    lives = Lives(violations.append)
    begun = ["5-0", "5-1048576", "6-2", "5-4", "7-0"]  # one of them comes late
    for at, number in enumerate(begun, 1):
        order = OrderId("lamp", number, "s")
        lives.add(Event("1", HELD[0], order, 1, 1, "ann", None, 50.0, "a", 1, "b", 0, HELD[1], {"pay_by": float(at)}))
    for number in begun[::2]:
        order = OrderId("lamp", number, "s")
        lives.add(
            Event("1", EventKind.EXTENDED, order, 2, 1, "ann", None, 50.0, "a", 1, "b", 0, LEFT[1], {"pay_by": 9.0})
        )
        lives.add(Event("1", EXPIRED[0], order, 3, 1, "ann", None, 50.0, "a", 1, "b", 0, EXPIRED[1], {}))
    lives.add(
        Event(
            "1",
            EventKind.EXTENDED,
            OrderId("lamp", "5-4", "s"),
            2,
            1,
            "",
            None,
            50.0,
            "a",
            1,
            "b",
            0,
            LEFT[1],
            {"pay_by": 8.0},
        )
    )
    assert (violations, lives.held) == ([], {"5-1048576": 2.0, "5-4": 8.0})
    assert [lives.events(number) for number in begun] == [3, 1, 3, 2, 3]


def test_more_events_than_are_counted() -> None:
    """An order's count has an end, and its state has none."""
    violations: list[str] = []
    lives, order = Lives(violations.append), OrderId("lamp", "1", "s")
    lives.add(Event("1", HELD[0], order, 1, 1, "", None, 50.0, "a", 1, "b", 0, HELD[1], {"pay_by": 1.0}))
    for number in range(2, 8200):
        lives.add(
            Event("1", EventKind.EXTENDED, order, number, 1, "", None, 50.0, "a", 1, "b", 0, LEFT[1], {"pay_by": 1.0})
        )
    assert (violations, [*lives.held]) == ([], ["1"])

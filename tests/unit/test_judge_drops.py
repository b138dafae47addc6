"""The judge of new sales and removals: a history that it lets pass, and each way to forge it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.torture.history import Delivery, Entry, FinalState, History, HttpCall, Item, Left, Look, NewSale, Setup
from lab.torture.judge import Finding, judge

Forgery = Callable[[History], object]


def bid(name: str, at: float, outcome: str | None, quantity: int = 1, **more: Any) -> HttpCall:
    """Return a request for a drop, and its answer, which came at that time; its order is named after the buyer."""
    given = {"status": 200 if outcome else 404, "key": name, "outcome": outcome}
    given |= {"told": f"drop~{name}" if outcome == "sold" else None}
    return HttpCall("buy", name, "drop", name, quantity, "one", at - 0.1, at, **given | more)


def order(name: str, quantity: int = 1) -> Entry:
    who = f"drop~{name}", 1, quantity, name, name, 1, "batch", 0
    return Entry("drop", name, "sold", *who, -quantity, 0, quantity, instance="one")


def told(name: str, at: float, **more: Any) -> Delivery:
    """Return a delivery of the event of an order."""
    given: dict[str, Any] = {"id": f"drop~{at:g}", "event": "sold", "order": f"drop~{name}", "body": f"of {name}"}
    return Delivery("one", at, at + 0.1, 200, **given | more)


def look(at: float, stock: int, lucky: int) -> Look:
    return Look(at - 0.05, at, "drop", stock, 0, lucky)


def history() -> History:
    """Three units for a and b, until 5 s; then two, of which c had one; no item from 8 s on; then three for d and e."""
    made = History(Setup((), 2, 2.0, 4.0, "etcd", "redis", "fence", 1, (), drops=(Item("drop", 3),)))
    made.sales = [NewSale("drop", 5, 5.2, 2), NewSale("drop", 8, 8.2, None), NewSale("drop", 10, 10.2, 3)]
    made.bids = [
        bid("a", 1, "sold", 2),
        bid("b", 2, "sold"),
        bid("z", 3, "sold_out", 2),
        bid("c", 6, "sold"),
        bid("y", 9, None),
        bid("d", 11, "sold", 2),
        bid("e", 12, "sold"),
        bid("x", 13, "sold_out"),
        bid("e", 14, "sold", replayed=True),
    ]
    made.announced = [told("a", 1.5), told("c", 6.5), told("d", 11.5), told("d", 11.5), told("e", 12.5)]
    made.seen = [look(2.6, 0, 3), look(5.1, 3, 0), look(6.6, 1, 1)]
    made.end = FinalState((Left("drop", 0, 0, 3, 3),), journal=(order("d", 2), order("e")))
    return made


def broken(made: History) -> list[Finding]:
    """Return the broken promises about drops; what a sale has to have is not there."""
    promises = ("a new sale", "a removed item", "an event's name")
    return [one for one in judge(made) if not one.holds and one.promise.startswith(promises)]


def kept(made: History, *orders: Entry, stock: int = 0) -> None:
    assert made.end is not None
    lucky = sum(one.quantity for one in orders)
    made.end = replace(made.end, journal=orders, left=(Left("drop", stock, 0, lucky, 3),))


FORGED: dict[str, dict[str, Forgery]] = {
    "sells what it has, and no more": {
        "more than it has": lambda made: made.bids.append(bid("w", 4, "sold")),
        "more than the new one has": lambda made: made.bids.append(bid("w", 7, "sold", 2)),
        "refused what was there": lambda made: made.bids.append(bid("w", 7, "sold_out")),
        "a unit that is nowhere": lambda made: kept(made, order("d", 2), stock=0),
        "a look that adds up to another sale": lambda made: made.seen.append(look(6.6, 1, 2)),
        "a look below nothing": lambda made: made.seen.append(look(6.6, -1, 3)),
        "a unit too many": lambda made: kept(made, order("d", 2), order("e"), stock=1),
    },
    "has forgotten the one before": {
        "told of an order that is gone": lambda made: made.bids.append(bid("a", 7, "sold", 2, replayed=True)),
        "an order that stayed": lambda made: kept(made, order("b"), order("d", 2)),
        "an order that is gone": lambda made: kept(made, order("e"), stock=2),
        "an order of nobody": lambda made: kept(made, order("d", 2), order("nobody")),
    },
    "a removed item": {
        "sold, and it was removed": lambda made: made.bids.append(bid("w", 9.5, "sold")),
        "sold out, and it was removed": lambda made: made.bids.append(bid("w", 9.5, "sold_out")),
        "told from memory for too long": lambda made: made.bids.append(replace(bid("w", 9.5, "sold_out"), key=None)),
        "unknown, and it was there": lambda made: made.bids.append(bid("w", 7, None)),
        "an error": lambda made: (
            made.bids.append(bid("w", 5.1, None, status=500)) or made.bids.append(bid("w", 7, None, status=500))
        ),
    },
    "an event's name": {
        "the name of an event of a sale that is over": lambda made: made.announced.append(
            told("e", 12.6, id="drop~1.5")
        ),
        "an event that never comes": lambda made: made.announced.pop(),
    },
}


def test_a_good_history_is_let_pass() -> None:
    assert broken(history()) == []


@pytest.mark.parametrize(
    ("promise", "forgery"),
    [pytest.param(promise, forge, id=name) for promise, forged in FORGED.items() for name, forge in forged.items()],
)
def test_a_forged_history_is_rejected(promise: str, forgery: Forgery) -> None:
    """The judge reports that each forgery breaks its promise."""
    made = history()
    forgery(made)
    assert [one for one in broken(made) if promise in one.promise], broken(made)


@pytest.mark.parametrize(
    "bids",
    [
        [bid("w", 5.1, "sold", 3)],
        [bid("w", 8.1, "sold_out")],
        [bid("w", 8.1, None)],
        [bid("w", 5.0, None, status=0, error="ReadTimeout"), bid("v", 7, "sold_out")],
        [replace(bid("w", 9.1, "sold_out"), key=None)],
        [bid("z", 7, "sold_out", replayed=True)],
    ],
    ids=[
        "sold in between",
        "refused in between",
        "removed in between",
        "perhaps sold to another",
        "told from memory",
        "told once more",
    ],
)
def test_what_nobody_can_know_is_let_pass(bids: list[HttpCall]) -> None:
    """While a sale begins, an answer may be of either; a request without an answer may have had the unit."""
    made = history()
    made.bids += bids
    assert broken(made) == []

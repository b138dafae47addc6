"""An audit follows each unit, order and payment of a journal: what can't be is named, and all else is not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest

from app.audit.ledger import Audit, Ledger
from app.orders import (
    Event,
    EventKind,
    Order,
    OrderId,
    OrderState,
    Payment,
    PaymentRefund,
    PaymentState,
    Record,
    RefundState,
    Units,
)
from app.orders.facts import Facts
from app.stock import Level

NOW_S = 1000.0


class Step(NamedTuple):
    """An event: of which order, its kind, the units that move, its facts, and what else it says."""

    order: str
    kind: EventKind
    units: tuple[int, int, int] = (0, 0, 0)
    facts: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}


class Books:
    """Three holds of two units each, of ten, and then what never would be written."""

    def __init__(self, *steps: Step) -> None:
        self.ledger, self.counts, self.units = Ledger(), Counter[str](), Units(10, 0, 0)
        for n in "123":
            self.write(Step(n, EventKind.HELD, (-2, 2, 0), {"pay_by": NOW_S + int(n)}))
        for one in steps:
            self.write(one)

    def write(self, one: Step) -> None:
        self.counts[one.order] += 1
        id_, count = OrderId("tv", one.order, "s"), self.counts[one.order]
        event = Event(
            "9", one.kind, id_, count, 2, None, None, NOW_S, "a", 1, "b", 0, Units(*one.units), cast(Facts, one.facts)
        )
        self.ledger.add(replace(event, **one.more))
        self.units = Units(*(a + b for a, b in zip(self.units, one.units, strict=True)))

    def level(self, **others: Any) -> Level:
        stock, held, lucky = self.units
        return replace(Level("tv", stock, lucky, 10, held=held, now=NOW_S, due_in_s=1.0), **others)

    def audit(self, **others: Any) -> Audit:
        return self.ledger.compare(self.level(**others))


def sums(paid: int = 0, given_back: int = 0, owed: int = 0, disputed: int = 0) -> dict[str, Any]:
    return {"currency": None, "paid": paid, "given_back": given_back, "owed": owed, "disputed": disputed}


def paid(order: str, ref: str, units: tuple[int, int, int] = (0, -2, 2)) -> Step:
    facts = {"payment_ref": ref, "amount": 5, "changes": [{"currency": None, "paid": 5}], "sums": [sums(5)]}
    return Step(order, EventKind.CONFIRMED, units, facts)


def refund(order: str, ref: str, state: str, kind: EventKind, **facts: Any) -> Step:
    """An event of the one refund of a payment."""
    one = {"name": "of it", "state": state, "amount": 5}
    return Step(order, kind, facts={"about": "payment", "payment_ref": ref, "refunds": [one]} | facts)


def owed(order: str, ref: str) -> Step:
    """A second payment, which has to go back."""
    changes = [{"currency": None, "paid": 5, "owed": 5}]
    return refund(order, ref, "due", EventKind.REFUND_DUE, amount=5, changes=changes, sums=[sums(10, 0, 5)])


def given_back(order: str, ref: str, **facts: Any) -> Step:
    changes = [{"currency": None, "given_back": 5, "owed": -5}]
    about = {"amount": 5, "changes": changes, "sums": [sums(10, 5, 0)]} | facts
    return refund(order, ref, "given", EventKind.REFUNDED, **about)


EXPIRES = Step("1", EventKind.EXPIRED, (2, -2, 0))
CANCELS = Step("1", EventKind.CANCELLED, (2, -2, 0))
WRONG = Step(
    "1",
    EventKind.AMOUNT_MISMATCH,
    facts={"payment_ref": "p", "amount": 1, "changes": [{"currency": None, "paid": 1}], "sums": [sums(1)]},
)
EXTENDS = Step("1", EventKind.EXTENDED, facts={"pay_by": 9e9})
WAITS = Step("4", EventKind.WAITING)
SOLD = Step("4", EventKind.SOLD, (-2, 0, 2))
ASKS = refund("1", "q", "asked", EventKind.REFUND_REQUESTED, changes=[], sums=[sums(10, 0, 5)])
DISPUTE = {"payment_ref": "p", "about": "payment", "changes": [{"currency": None, "disputed": 5}]}


def disputed(*shown: int) -> Step:
    return Step("1", EventKind.DISPUTED, facts=DISPUTE | {"sums": [sums(*shown)]})


LIVES: dict[str, tuple[list[Step], str]] = {
    "expires twice": ([EXPIRES, EXPIRES], "order tv~1: expired, which can't come when it is expired"),
    "paid after its cancellation": ([CANCELS, paid("1", "p")], "confirmed, which can't come when it is cancelled"),
    "extended after it was over": ([EXPIRES, EXTENDS], "extended, which can't come when it is expired"),
    "cancelled after it was paid": ([paid("1", "p"), CANCELS], "cancelled, which can't come when it is confirmed"),
    "never began": ([Step("4", EventKind.EXPIRED)], "order tv~4: expired, which can't come when it is nothing yet"),
    "an event is missing": (
        [EXTENDS._replace(more={"number": 4})],
        "order tv~1: extended is its event 4, and event 2 is missing",
    ),
    "an event is there twice": (
        [EXTENDS, EXTENDS._replace(more={"number": 2})],
        "order tv~1: extended is its event 2, and it has had that one",
    ),
    "a late payment takes none of what is left": (
        [EXPIRES, paid("1", "p")],
        "event 3 of order tv~1 moves other units than confirmed does",
    ),
    "units are made": ([EXPIRES._replace(units=(3, -2, 0))], "event 2 of order tv~1 makes units, or loses some"),
    "units are lost": ([EXPIRES._replace(units=(1, -2, 0))], "event 2 of order tv~1 makes units, or loses some"),
    "an older token": ([EXTENDS._replace(more={"token": 0})], "order tv~1 was written with token 0, after 1"),
    "an older token of an epoch": (
        [SOLD._replace(order=n, more={"token": token, "epoch": 1}) for n, token in (("4", 0), ("5", 3), ("6", 2))],
        "order tv~6 was written with token 2, after 3",
    ),
    "a key buys twice": (
        [SOLD._replace(order=n, more={"key": "k"}) for n in "45"],
        "order tv~5 has an idempotency key that an earlier order has",
    ),
    "facts that are not ours": (
        [Step("1", EventKind.EXTENDED, facts={"pay_by": "soon"})],
        "event 2 of order tv~1 says what we don't write",
    ),
    "money that is not ours": (
        [Step("1", EventKind.AMOUNT_MISMATCH, facts={"payment_ref": "p", "amount": 1})],
        "event 2 of order tv~1 says what we don't write",
    ),
    "a payment of two orders": ([paid("2", "p"), paid("1", "p")], "order tv~1: payment 'p' is another order's"),
    "owed by two orders": ([paid("2", "p"), paid("1", "q"), owed("1", "p")], "payment 'p' is another order's"),
    "two payments count": ([paid("1", "p"), paid("1", "q")], "payment 'q' counts, and another one did"),
    "owed after it was given": (
        [
            *(paid("1", "p"), owed("1", "q"), given_back("1", "q")),
            refund("1", "q", "due", EventKind.REFUND_DUE, changes=[], sums=[sums(10, 5, 0)]),
        ],
        "order tv~1: refund 'of it' is due, and was given",
    ),
    "asked for and never owed": (
        [paid("1", "p"), refund("1", "p", "asked", EventKind.REFUND_REQUESTED, changes=[], sums=[sums(5)])],
        "order tv~1: refund 'of it' is asked, and was not there",
    ),
    "given back, and never made": (
        [paid("1", "p"), given_back("1", "q")],
        "order tv~1: payment 'q' is in refunded, and was never announced",
    ),
    "disputed, and never made": (
        [paid("1", "q"), disputed(5, 0, 0, 5)],
        "order tv~1: payment 'p' is in disputed, and was never announced",
    ),
    "a refund is told twice": (
        [paid("1", "p"), owed("1", "q"), given_back("1", "q", sums=[sums(10, 10, 0)])],
        "event 4 of order tv~1 tells sums to which its money does not add up",
    ),
    "a dispute has no sum": (
        [paid("1", "p"), owed("1", "q"), disputed(10, 0, 5, 0)],
        "event 4 of order tv~1 tells sums to which its money does not add up",
    ),
    "a wrong payment is owed by nobody": (
        [WRONG, CANCELS],
        "order tv~1: payment 'p' is of a wrong amount, and owed by nobody",
    ),
}


@pytest.mark.parametrize("what", LIVES)
def test_what_can_not_be_is_named(what: str) -> None:
    """Numbers that add up do not hide it; and what was written before it is no fault."""
    steps, said = LIVES[what]
    begun = Books(*steps[:-1]).audit().violations
    assert not [one for one in begun if said in one]
    found = Books(*steps).audit().violations
    assert [one for one in found if said in one], found
    assert not [one for one in found if "add up to" in one]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [EXTENDS, paid("1", "p")],
        [EXPIRES, paid("1", "p", (-2, 0, 2))],
        [paid("1", "p"), owed("1", "q"), ASKS, given_back("1", "q")],
        [paid("1", "p"), paid("2", "q"), owed("1", "r"), owed("2", "s"), given_back("2", "s"), given_back("1", "r")],
        [paid("1", "p"), owed("1", "q"), disputed(10, 0, 5, 5)],
        [WAITS, WAITS._replace(order="5"), Step("5", EventKind.CANCELLED)],
        [SOLD._replace(more={"key": "k", "token": 7}), SOLD._replace(order="5", more={"key": "l", "token": 7})],
        [SOLD._replace(more={"token": 0, "epoch": 1})],
        [WRONG],
    ],
)
def test_what_can_be_is_no_fault(steps: list[Step]) -> None:
    """Also what comes in an odd order, or late."""
    assert Books(*steps).audit(waiting=int(WAITS in steps)).violations == []


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"lucky": 3, "stock": 3}, "3 units are sold, but the orders add up to 2"),
        ({"lucky": 1, "stock": 5}, "1 units are sold, but the orders add up to 2"),
        ({"held": 5, "stock": 3}, "5 units are held, but the orders add up to 4"),
        ({"held": 3, "stock": 5}, "3 units are held, but the orders add up to 4"),
        ({"waiting": 2}, "2 orders wait in line, and 1 by their events"),
        ({"waiting": 0}, "0 orders wait in line, and 1 by their events"),
        ({"stock": 3}, "stock + held + sold is 9, but 10 units were there at the start"),
        ({"stock": -5, "initial": 1}, "1 units were sold that did not exist"),
    ],
)
def test_numbers_that_differ(others: dict[str, int], said: str) -> None:
    """The item's own numbers are compared with those of its orders, each by itself."""
    books = Books(paid("1", "p"), WAITS)
    assert books.audit(waiting=1).violations == []
    assert books.audit(**{"waiting": 1, **others}).violations == [said]
    assert books.audit(waiting=1, initial=None, stock=3).violations == []  # nobody knows how many there were


def test_what_an_audit_tells() -> None:
    """Orders, units and money are summed up; a line is its order's, and many faults are counted only."""
    line = SOLD._replace(order="5", facts={"part_of": "case~1"}, more={"instance": "b"})
    books = Books(paid("1", "p"), owed("1", "q"), SOLD._replace(facts={"lines": []}), line)
    found = books.audit()
    assert (found.orders, found.units_ordered, found.owed, found.oversold) == (4, 6, 1, 0)
    assert (found.units_per_instance, found.consistent) == ({"a": 4, "b": 2}, True)
    assert books.ledger.baskets == {"case~1", "tv~4"}
    for _ in range(12):
        books.write(EXTENDS)
    said = books.audit().violations
    assert (len(said), said[-1]) == (11, "and 2 more such faults")
    assert not books.audit().consistent
    books.write(given_back("1", "q"))
    assert books.audit().owed == 0
    assert (Books(WRONG).audit().owed, Books(WRONG, paid("1", "p")).audit().owed) == (1, 0)
    assert books.audit(initial=4, lucky=9).oversold == 2


def order(state: OrderState = OrderState.HELD, **more: Any) -> Order:
    record = Record("1", "s", state, 2, due_ms=round((NOW_S + 60) * 1000), events=1)
    return Order("tv", record._replace(**more), None, "a", 1, "b", NOW_S)


@pytest.mark.parametrize(
    ("others", "number"),
    [
        ({"now": NOW_S + 5, "due_in_s": 1.0}, "1"),
        ({"now": NOW_S + 5, "due_in_s": -3.0}, "1"),
        ({"now": NOW_S + 5, "due_in_s": -4.5}, None),  # the next batch ends it
        ({"due_in_s": 5.0}, None),  # its buyer has some time
        ({"due_in_s": None}, "1"),
        ({"due_in_s": None, "held": 0}, None),
    ],
)
def test_a_hold_that_may_be_overlooked(others: dict[str, Any], number: str | None) -> None:
    """The store's first end of a hold is compared with what the buyers were told."""
    books = Books()
    assert books.ledger.overlooked(books.level(**others)) == number
    assert Books(*(EXPIRES._replace(order=n) for n in "123")).ledger.overlooked(books.level(**others)) is None


@pytest.mark.parametrize(
    ("found", "due_in_s", "said"),
    [
        (None, 1.0, "order tv~1 is held by its events, and is not there"),
        (order(), 1.0, ""),
        (order(), 60.5, ""),
        (order(), 62.0, "order tv~1 is held, and the store has lost its end: nobody will give its units back"),
        (order(), None, "order tv~1 is held, and the store has lost its end: nobody will give its units back"),
        (order(OrderState.EXPIRED, events=2), 1.0, ""),  # since it was read
        (order(OrderState.EXPIRED), 1.0, "order tv~1 is expired, and held by its events"),
    ],
)
def test_whether_a_hold_will_end(found: Order | None, due_in_s: float | None, said: str) -> None:
    """The order itself says when; a second may lie between two readings of the clock."""
    books = Books()
    assert books.ledger.check_hold(books.level(due_in_s=due_in_s), "1", found) == ([said] if said else [])


OTHER = "order tv~1 has other money than its events say"
DUE = PaymentRefund("of it", RefundState.DUE, 5)
PAID, SECOND = Payment("p", 5, state=PaymentState.COUNTS), Payment("q", 5, state=PaymentState.SECOND)


@pytest.mark.parametrize(
    ("events", "payments", "said"),
    [
        (3, [PAID, SECOND._replace(refunds=(DUE,))], ""),
        (3, [PAID, SECOND], OTHER),
        (
            3,
            [PAID._replace(amount=4), SECOND._replace(refunds=(DUE,))],
            OTHER,
        ),
        (
            3,
            [PAID, SECOND._replace(refunds=(DUE._replace(state=RefundState.ASKED),))],
            OTHER,
        ),
        (4, [PAID], ""),  # since it was read
        (2, [PAID], ""),  # it is of another sale
        (0, None, "order tv~1 has money by its events, and is not there"),
    ],
)
def test_an_orders_money_is_that_of_its_events(events: int, payments: list[Payment] | None, said: str) -> None:
    """Those with refunds are looked at, each once after each event; what was only paid is in the units."""
    books = Books(paid("2", "o"), paid("1", "p"), owed("1", "q"))
    assert books.ledger.payments.changed(9) == ["1"]
    found = None if payments is None else order(OrderState.CONFIRMED, events=events, payments=tuple(payments))
    assert books.ledger.payments.check("1", found) == ([said] if said else [])
    assert books.ledger.payments.changed(9) == []


def test_a_refund_that_is_settled() -> None:
    """Nothing of it is left in the order."""
    changes = [{"currency": None, "owed": -5}]
    settles = refund("1", "q", "settled", EventKind.REFUNDED, changes=changes, sums=[sums(10)])
    books = Books(paid("1", "p"), owed("1", "q"), settles)
    found = order(OrderState.CONFIRMED, events=4, payments=(PAID, SECOND))
    assert (books.ledger.payments.check("1", found), books.audit().owed) == ([], 0)

"""The judge accepts a correct history, and finds each violation in forged ones."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.torture.history import (
    Belief,
    Cents,
    Count,
    Entry,
    Fault,
    FinalState,
    History,
    HttpCall,
    Item,
    Kept,
    LastStand,
    Late,
    Left,
    Look,
    Reading,
    Setup,
    Theft,
    UnitsAdded,
)
from lab.torture.judge import judge
from lab.torture.picture import draw
from lab.torture.standing import standings


def attempt(
    key: str,
    outcome: str | None,
    *,
    at: float = 1.0,
    status: int = 200,
    quantity: int = 1,
    sku: str = "default",
    keyless: bool = False,
    **more: Any,
) -> HttpCall:
    """Return a request to buy, and its answer, which came at that time."""
    buyer = f"buyer of {key}"
    about = "buy", buyer if keyless else key, sku, buyer, quantity, "one", at - 0.1, at, status
    told: dict[str, Any] = {"outcome": outcome, "told": f"{sku}~{key}" if outcome == "sold" else None}
    told |= {"shown": {"quantity": quantity} if outcome else {}, "retry_after": "1" if status == 503 else None}
    return HttpCall(*about, None if keyless else key, **told | more)


def order(key: str, *, token: int = 1, sku: str = "default", quantity: int = 1, **more: Any) -> Entry:
    """Return the event of a purchase."""
    who = f"{sku}~{key}", 1, quantity, f"buyer of {key}", key, token, f"batch {token}", 0
    made = Entry(sku, f"{token}-{key}", "sold", *who, -quantity, 0, quantity, instance="one")
    return replace(made, **more)


def reading(sku: str, there: int, sold: int, limit: int, orders: int = 4) -> Reading:
    """Return what an instance says of an item of which so many units were sold."""
    level = {"stock": there - sold, "held": 0, "lucky": sold, "initial": there, "limit_per_buyer": limit}
    nothing = dict.fromkeys(("waiting", "held", "confirmed", "expired", "cancelled", "refunded"), 0)
    sums = {"orders": nothing | {"sold": orders}, "units": nothing | {"sold": sold}, "to_ship": sold, "attention": 0}
    return Reading("one", sku, level | {"paused": "", "price": None}, sums | {"money": {}})


def theft(status: int, said: str | None = None) -> Theft:
    return Theft("a", "default", "one", 1.5, status, said)


KEYLESS = replace(order("k", token=5), key=None)
MUGS = order("m", token=6, sku="mug", quantity=2)
PROMISES = ("fair", "fencing", "survives_silence", "survives_restart", "survives_cut", "everybody")
SALE = "/seckill/lock/all"


def history() -> History:
    """Return a history: a, b and c got a unit each (b asked twice, c after a 503 and a lost answer); d got none.

    Then a fourth unit was added, and sold to k, without a key. Of the mugs m got two, and was refused a third.
    """
    items = (Item("default", 3), Item("mug", 5, limit=2))
    made = History(Setup(items, 2, 2.0, 4.0, "etcd", "redis", "fence", 1, ("pause",), PROMISES))
    made.attempts = [
        attempt("a", "sold", at=1.0),
        attempt("b", "sold", at=1.5),
        replace(attempt("b", "sold", at=2.0), replayed=True),
        attempt("c", None, at=3.0, status=503),
        replace(attempt("c", None, at=4.0, status=0), instance="two"),
        replace(attempt("c", "sold", at=5.0), replayed=True),
        attempt("d", "sold_out", at=6.0),
        attempt("k", "sold", at=8.0, keyless=True),
        attempt("m", "sold", at=8.2, quantity=2, sku="mug"),
        replace(attempt("n", "limit_reached", at=8.4, sku="mug"), buyer="buyer of m"),
    ]
    made.looks = [look(0.5, 3, 0), look(1.7, 1, 2), look(7.0, 0, 3), look(8.6, 0, 4)]
    made.restocks = [UnitsAdded(7.2, 7.4, 1)]
    made.beliefs = [
        Belief("one", SALE, 1, 0.9, 1.6),
        Belief("one", SALE, 2, 2.1, 4.2, lost=True),
        Belief("two", SALE, 4, 4.3, 4.9),
        Belief("one", SALE, 5, 7.9, 8.3),
        Belief("one", "/long", 9, 9.5, 12.5),
    ]
    made.thefts = [theft(422, "urn:seckill:key-reused"), theft(503), theft(0)]
    made.readings = [reading("default", 4, 4, 0), reading("mug", 5, 2, 2, orders=1)]
    made.cents = [Cents(2, 1, [], [])]
    made.counts = [Count(2.0, 4.0, "one", "fenced_writes_total", 1)]
    made.faults = [Fault("pause", "one", True, 2.0, 5.0, 2.0, 8.45)]
    orders = (order("a"), order("b"), order("c", token=4, instance="two"), KEYLESS, MUGS)
    made.end = FinalState((Left("default", 0, 0, 4, 4), Left("mug", 3, 0, 2, 5)))
    written(made, *orders)
    return made


def look(at: float, stock: int, lucky: int) -> Look:
    return Look(at - 0.1, at, "default", stock, 0, lucky)


def written(made: History, *orders: Entry) -> Any:
    """Have these purchases in the journal, and their orders as they are by it."""
    ends(made, journal=orders, kept=tuple(Kept(one.order, 1, standings([one])[0].shown) for one in orders))


def verdicts(made: History) -> dict[str, tuple[str, ...]]:
    """Return the violations of each broken promise."""
    return {finding.promise: finding.violations for finding in judge(made) if not finding.holds}


def test_a_good_history_is_let_pass() -> None:
    """A correct history keeps all promises."""
    assert verdicts(history()) == {}


Forgery = Callable[[History], object]


def at_end(made: History) -> FinalState:
    assert made.end is not None
    return made.end


def ends(made: History, **changes: Any) -> Any:
    made.end = replace(at_end(made), **changes)


def has(made: History, **changes: Any) -> Any:
    for name, value in changes.items():
        setattr(made, name, value)


def asked(made: History, *attempts: HttpCall) -> Any:
    made.attempts += attempts


def left(made: History, **changes: Any) -> Any:
    default, *others = at_end(made).left
    ends(made, left=(replace(default, **changes), *others))


def sells(made: History, *more: Entry) -> Any:
    written(made, *at_end(made).journal, *more)


def changed(found: list[Any], at: int, **changes: Any) -> Any:
    found[at] = replace(found[at], **changes)


def order_changed(made: History, at: int, **changes: Any) -> Any:
    orders = list(at_end(made).journal)
    changed(orders, at, **changes)
    written(made, *orders)


def without(made: History, key: str) -> Any:
    """Remove the attempts with that key."""
    made.attempts = [one for one in made.attempts if one.key != key]


def with_more_units(made: History, units: int) -> Any:
    """Start with so many units that some are left at the end, and remove all reads."""
    default, *others = made.setup.items
    made.setup = replace(made.setup, items=(replace(default, initial=default.initial + units), *others))
    made.looks = []
    left(made, stock=units, initial=4 + units)


def paused(at: float, until: float, ended_at: float | None = None) -> Fault:
    return Fault("pause", "one", True, at, ended_at or at + 0.1, at, until)


def refused(*times: float, status: int = 200, outcome: str | None = "sold_out") -> list[HttpCall]:
    return [attempt("e", outcome, at=at, status=status) for at in times]


def oversold(made: History) -> Any:
    made.attempts.append(attempt("e", "sold"))
    sells(made, order("e", token=9))
    left(made, lucky=5)


def a_token_that_went_back(made: History) -> Any:
    order_changed(made, 0, token=2, batch="batch 2")


# The forgeries, by the promise that each of them breaks.
FORGED: dict[str, dict[str, Forgery]] = {
    "what is seen": {
        "a look that does not add up": lambda made: changed(made.looks, 1, lucky=1),
        "a negative stock": lambda made: changed(made.looks, 1, stock=-1, lucky=4),
        "sales undone": lambda made: made.looks.append(look(8.0, 2, 1)),
        "an end that does not add up": lambda made: left(made, stock=1),
        "units that are held at the end": lambda made: left(made, held=1),
        "a sale too many at the end": lambda made: left(made, lucky=5),
        "another beginning": lambda made: left(made, initial=5),
        "units from nowhere": lambda made: made.restocks.clear(),
        "units before they were added": lambda made: made.looks.insert(3, look(7.1, 1, 3)),
        "units that were added, and went": lambda made: made.looks.insert(3, look(7.6, 0, 3)),
        "said before it was so": lambda made: changed(made.looks, 1, stock=2, lucky=1),
        "seen before it was asked for": lambda made: made.looks.insert(1, look(0.7, 2, 1)),
        "seen as it had been before": lambda made: made.looks.insert(2, look(5.6, 1, 2)),
        "seen as it was before another look": lambda made: (
            made.attempts.pop(5),
            made.looks.insert(2, look(4.6, 0, 3)),
            made.looks.insert(3, look(4.8, 1, 2)),
        ),
        "lucky without an order": lambda made: (
            without(made, "c"),
            written(made, *at_end(made).journal[:2], *at_end(made).journal[3:]),
        ),
        "an item that can't be read": lambda made: ends(made, unreadable=("tablet: corrupt",)),
    },
    "no unit is in two places": {
        "oversold": oversold,
        "sold before it was there": lambda made: changed(made.restocks, 0, asked_at=8.1, done_at=8.2),
    },
    "a path to its end": {"an order that is there twice": lambda made: sells(made, MUGS)},
    "by another's key": {
        "a key that opens the order to another": lambda made: made.thefts.append(theft(200, "sold")),
        "another error": lambda made: made.thefts.append(theft(422, "urn:seckill:bad-request")),
    },
    "first come, first served": {
        "orders in another order": lambda made: written(
            made, at_end(made).journal[1], at_end(made).journal[0], *at_end(made).journal[2:]
        ),
        "refused an item with a limit": lambda made: asked(made, attempt("e", "sold_out", at=8.6, sku="mug")),
        "refused what was there": lambda made: (
            with_more_units(made, 1),
            changed(made.restocks, 0, asked_at=5.0, done_at=5.1),
        ),
        "refused three when three were left": lambda made: (
            with_more_units(made, 4),
            changed(made.attempts, 6, quantity=3, shown={"quantity": 3}),
        ),
        "refused what was sold later": lambda made: asked(made, *refused(0.6)),
        "refused below the limit": lambda made: changed(made.attempts, -1, buyer="buyer of x"),
    },
    "are told is true": {
        "told sold without an order": lambda made: asked(made, attempt("e", "sold")),
        "told another order": lambda made: changed(made.attempts, 2, told="default~a"),
        "sold out and then sold of nothing": lambda made: asked(made, attempt("d", "sold", at=6.8)),
        "another outcome": lambda made: changed(made.attempts, 6, outcome="perhaps"),
    },
    "shown as it stood": {
        "another quantity than it has": lambda made: changed(made.attempts, 0, quantity=2, shown={"quantity": 2}),
        "an answer about another quantity": lambda made: changed(made.attempts, 6, shown={"quantity": 2}),
    },
    "no answer was untrue": {
        "told sold, then sold out": lambda made: changed(
            made.attempts, 2, outcome="sold_out", told=None, replayed=False
        ),
        "told nothing was sold, but it was": lambda made: made.attempts.pop(4),  # c's only answer is then a 503
        "told another order than before": lambda made: changed(made.attempts, 2, told="default~a"),
        "told twice as if anew": lambda made: changed(made.attempts, 2, replayed=False),
        "told again at the first time": lambda made: changed(made.attempts, 0, replayed=True),
        "refused and has an order": lambda made: (without(made, "a"), asked(made, attempt("a", "sold_out"))),
        "perhaps sold, then refused, and has an order": lambda made: (
            without(made, "a"),
            made.restocks.clear(),
            asked(made, attempt("a", None, status=0), attempt("a", "sold_out", at=1.2)),
        ),
        "refused without a key and sold": lambda made: changed(
            made.attempts, 7, status=503, outcome=None, told=None, retry_after="1"
        ),
    },
    "unasked": {
        "an order that nobody asked for": lambda made: without(made, "a"),
        "an order without a key": lambda made: order_changed(made, 0, key=None),
        "an order of somebody else": lambda made: order_changed(made, 0, buyer="mallory"),
        "another quantity than was asked for": lambda made: order_changed(made, 0, quantity=2),
        "an instance that was not asked": lambda made: order_changed(made, 2, instance="three"),
        "two orders for a key": lambda made: sells(made, replace(order("c", token=9), order="default~z")),
        "a purchase without a key that was written twice": lambda made: (
            sells(made, replace(KEYLESS, order="default~z")),
            left(made, lucky=5, initial=5),
            changed(made.restocks, 0, added=2),
        ),
    },
    "never decrease": {"a token that went back": a_token_that_went_back},
    "an event has a grant": {
        "a grant of two instances": lambda made: order_changed(made, 1, instance="two"),
        "a grant that two instances had": lambda made: (
            order_changed(made, 1, instance="two"),
            made.beliefs.append(Belief("two", SALE, 1, 1.61, 1.62)),
        ),
        "an order without a grant": lambda made: order_changed(made, 0, token=0, batch="batch 0"),
        "a batch of two grants": lambda made: order_changed(made, 2, batch="batch 1"),
    },
    "nothing is left in": {
        "a key left in the queue": lambda made: ends(made, queue=("/seckill/lock/default/1",)),
        "a lease left": lambda made: ends(made, leases=("1",)),
    },
    "answers are": {
        "an internal error": lambda made: made.attempts.insert(0, attempt("a", None, status=500)),
        "a 503 that says not when": lambda made: changed(made.attempts, 3, retry_after=None),
        "a buyer who was never told": lambda made: asked(made, attempt("e", None, status=0)),
    },
    "sales go on": {
        "silence after a fault": lambda made: has(made, faults=[paused(6.0, 14.0, 6.5)]),
        "silence that ends after the watch": lambda made: asked(made, *refused(60.0)),
        "silence over several faults": lambda made: (
            has(made, faults=[paused(at, at + 3.0) for at in (6.0, 9.0, 12.0)]),
            asked(made, *refused(15.0)),
        ),
        "silence of one item": lambda made: (
            asked(made, *[attempt(f"e{n}", "sold_out", at=8.5 + n) for n in range(1, 8)]),
            has(made, faults=[paused(9.0, 14.0)]),
        ),
        "an item that nobody gets": lambda made: asked(
            made, *[replace(one, sku="cup") for one in refused(1.0, status=503, outcome=None) + refused(8.4)]
        ),
    },
    "each sells again": {
        "an instance that stays silent": lambda made: (
            asked(made, *[replace(one, instance="two") for one in refused(*range(6, 13), status=503, outcome=None)]),
            asked(made, *refused(*range(6, 13))),
            has(made, faults=[paused(2.0, 11.0, 5.0)]),
        ),
    },
    "nobody is fenced off": {
        "fenced off in peace": lambda made: made.counts.append(Count(9.5, 9.7, "one", "fenced_writes_total", 1)),
    },
    "more than the limit": {
        "more than the limit": lambda made: sells(made, replace(MUGS, order="default~z", key="n", quantity=1)),
    },
    "two never believe": {
        "two owners at once": lambda made: changed(made.beliefs, 2, since=4.1),
        "a lost grant that was believed in": lambda made: changed(made.beliefs, 1, lost=False, until=5.0),
        "an owner for ever": lambda made: changed(made.beliefs, 0, until=9.0),
    },
    "token is higher": {"a token that does not grow": lambda made: changed(made.beliefs, 2, token=2)},
    "nobody loses a lock": {
        "a grant lost in peace": lambda made: changed(made.beliefs, -1, lost=True, until=11.6),
        "a grant that is never given back": lambda made: changed(made.beliefs, -1, ended=False, until=9.5),
    },
    "numbers that add up": {
        "no answer": lambda made: changed(made.readings, 0, level={}, sums={}),
        "a unit too many": lambda made: changed(made.readings, 0, level=made.readings[0].level | {"stock": 1}),
        "a sale too few": lambda made: changed(made.readings, 0, sums=made.readings[0].sums | {"to_ship": 3}),
    },
    "no connection is cut": {
        "a connection cut in peace": lambda made: made.attempts.insert(
            0, replace(attempt("k", None, at=1.0, status=0, keyless=True), error="ReadError")
        ),
    },
    "nobody waits": {
        "a long wait in peace": lambda made: asked(made, *refused(9.2, status=503, outcome=None), *refused(12.0)),
    },
    "late or lost commit": {"late commits that nobody noticed": lambda made: made.counts.clear()},
    "each buyer has what is due": {
        "a cent that is kept": lambda made: changed(made.cents, 0, of_buyers=["1 cent of order 1-1 is kept, not 0"]),
    },
    "the provider's books and ours agree": {
        "a cent that only they know": lambda made: changed(made.cents, 0, wrong=["the bank has 1 cent more"]),
    },
    "a test of refunds": {"nobody is given back anything": lambda made: changed(made.cents, 0, asked=0)},
    "a test of all this": {
        "nobody was refused": lambda made: (with_more_units(made, 1), made.attempts.pop(6)),
        "no faults": lambda made: made.faults.clear(),
        "faults that missed": lambda made: changed(made.faults, 0, struck=False),
        "nobody looked": lambda made: made.looks.clear(),
        "nothing sold": lambda made: (has(made, attempts=made.attempts[6:7]), written(made)),
        "no long hold": lambda made: made.beliefs.pop(),
        "nobody asked again": lambda made: made.attempts.pop(2),
        "another fault that was asked for": lambda made: has(
            made, setup=replace(made.setup, nemeses=("pause", "kill"))
        ),
    },
}


@pytest.mark.parametrize(
    ("promise", "forgery"),
    [pytest.param(promise, forge, id=name) for promise, forged in FORGED.items() for name, forge in forged.items()],
)
def test_a_forged_history_is_rejected(promise: str, forgery: Forgery) -> None:
    """The judge reports that each forgery breaks its promise."""
    made = history()
    forgery(made)
    assert [name for name in verdicts(made) if promise in name], verdicts(made)


OLDER = Fault("lock-older", "all of its servers", True, 5.5, 7.7, 7.7, 8.45, hit_at=7.0)


def older_tokens(made: History, **changes: Any) -> Any:
    """Reissue tokens 2 and 3, as the copy knew only token 1, after the operator's `unfence` of the item."""
    changed(made.beliefs, 3, token=3)
    order_changed(made, 3, **({"token": 3, "batch": "batch 3", "epoch": 1} | changes))


def a_token_that_was_given_again(made: History) -> Any:
    """Reissue the last token from before to another instance, whose sale is a new one."""
    made.beliefs.append(Belief("one", SALE, 4, 8.35, 8.4))
    order_changed(made, 4, token=4, batch="another")
    older_tokens(made)


def a_grant_that_was_forgotten(made: History, until: float = 8.9) -> Any:
    """Forget a grant, whose holder notices at the deadline."""
    changed(made.beliefs, 2, until=until, lost=True)


@pytest.mark.parametrize(
    ("consequence", "promises"),
    [
        (older_tokens, ("never decrease", "token is higher")),
        (a_token_that_was_given_again, ("an event has a grant",)),
        (a_grant_that_was_forgotten, ("two never believe",)),
    ],
)
def test_a_lock_that_came_back_older_explains_what_it_must(consequence: Forgery, promises: tuple[str, ...]) -> None:
    """A restored lock system explains reissued tokens and a forgotten grant, but only if it was restored."""
    made = history()
    consequence(made)
    assert all(any(promise in name for name in verdicts(made)) for promise in promises), verdicts(made)
    made.faults.append(OLDER)
    assert verdicts(made) == {}


@pytest.mark.parametrize(
    ("promise", "forgery"),
    [
        ("token is higher", FORGED["token is higher"]["a token that does not grow"]),
        ("never decrease", a_token_that_went_back),
        ("two never believe", FORGED["two never believe"]["two owners at once"]),
        ("token is higher", lambda made: (made.beliefs.append(Belief("two", SALE, 2, 8.31, 8.32)), older_tokens(made))),
        ("never decrease", lambda made: older_tokens(made, epoch=0)),  # without the operator's command
        ("never decrease", lambda made: (older_tokens(made), order_changed(made, 4, epoch=2))),  # and a second command
        ("two never believe", lambda made: a_grant_that_was_forgotten(made, 9.1)),  # and renewed
        ("an event has a grant", lambda made: (a_token_that_was_given_again(made), made.beliefs.pop())),
        ("no unit is in two places", oversold),
    ],
)
def test_a_lock_that_came_back_older_explains_nothing_else(promise: str, forgery: Forgery) -> None:
    """A restored lock system explains neither earlier events, nor repetitions, nor a missing operator's command."""
    made = history()
    made.faults.append(OLDER)
    forgery(made)
    assert [name for name in verdicts(made) if promise in name], verdicts(made)


def test_a_lock_that_promises_no_order_may_let_somebody_wait() -> None:
    """An instance may lose a race, and the next one; with a fair lock the same wait is a violation."""
    made = history()
    FORGED["nobody waits"]["a long wait in peace"](made)
    (waited,) = (one for one in judge(made) if "nobody waits" in one.promise)
    made.setup = replace(made.setup, promises=PROMISES[1:])
    (overtaken,) = (one for one in judge(made) if "nobody waits" in one.promise)
    assert (len(waited.violations), len(overtaken.violations)) == (1, 0)
    asked(made, attempt("f", None, at=20.0, status=503), attempt("f", "sold_out", at=27.0))
    assert any("nobody waits" in promise for promise in verdicts(made))


@pytest.mark.parametrize("promise", ["nobody loses a lock", "no connection is cut", "nobody waits", "is fenced off"])
def test_a_rule_of_peace_does_not_speak_where_the_processor_was_elsewhere(promise: str) -> None:
    """What happened while the run's own loop was late, or soon after, is excused and counted; nothing else is."""
    made = history()
    next(iter(next(forged for name, forged in FORGED.items() if promise in name).values()))(made)
    made.lates = [Late(30.0, 31.0)]
    assert promise in " ".join(verdicts(made))
    made.lates += [Late(0.5, 0.8), Late(9.4, 9.6)]
    (found,) = (one for one in judge(made) if promise in one.promise)
    assert found.holds
    assert "1 excused, as the processor was elsewhere" in found.looked_at


@pytest.mark.parametrize(
    ("promise", "fault"),
    [
        ("survives_restart", "lock-kill"),
        ("survives_silence", "lock-pause"),
        ("survives_cut", "lock-reset"),
        ("everybody", "renewal"),
    ],
)
def test_a_fault_that_a_lock_promises_to_survive_is_no_excuse(promise: str, fault: str) -> None:
    """What it does not promise is excused, where the fault has struck just then."""
    made = history()
    FORGED["two never believe"]["two owners at once"](made)
    made.faults.append(Fault(fault, "etcd", True, 4.0, 4.5, 4.5, 8.45))
    assert any("two never believe" in name for name in verdicts(made))
    made.setup = replace(made.setup, promises=tuple(one for one in PROMISES if one != promise))
    assert not any("two never believe" in name for name in verdicts(made))
    for missed in ({"struck": False}, {"began_at": 4.95, "ended_at": 4.99}, {"began_at": 2.0, "ended_at": 2.05}):
        changed(made.faults, -1, **{"began_at": 4.0, "ended_at": 4.5, "struck": True} | missed)
        assert promise == "everybody" or any("two never believe" in name for name in verdicts(made)), missed


def test_a_run_without_an_end_is_not_judged() -> None:
    """An unfinished run proves nothing."""
    made = history()
    made.end = None
    with pytest.raises(ValueError, match="no end"):
        judge(made)


def test_the_picture_shows_faults_and_verdict() -> None:
    """The page has grants, faults, answers and verdicts; it loads nothing from elsewhere, and escapes all text."""
    made = history()
    made.faults = [replace(made.faults[0], target="</script><script>one")]
    ends(made, leases=("1",))
    page = draw(made, judge(made))
    assert '"label":"pause"' in page
    assert '"label":"503, try again"' in page
    assert page.count('"token":') == len(made.beliefs)
    assert "lease 1 is still there" in page
    assert "<script>one" not in page
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(?!data:)""", page)


TAKEN = Fault("holder-key", "one, a holder", True, 4.1, 4.2, 4.2, 8.45, hit_at=4.2)


@pytest.mark.parametrize(
    ("late", "promise"),
    [
        (Belief("one", SALE, 3, 5.0, 5.2, waited_s=0.9), "token is higher"),
        (Belief("one", SALE, 3, 4.85, 4.95, waited_s=0.7), "two never believe"),
    ],
)
def test_a_grant_whose_key_was_taken_before_its_holder_heard_of_it(late: Belief, promise: str) -> None:
    """A late belief in a grant is excused only if its key was taken away in just that time, without another fault."""
    made = history()
    made.beliefs.append(late)
    made.faults.append(TAKEN)
    assert promise not in " ".join(verdicts(made))
    made.faults[-1] = replace(TAKEN, struck=False)
    assert promise in " ".join(verdicts(made))
    made.faults[-1] = replace(TAKEN, name="renewal")
    assert promise in " ".join(verdicts(made))
    made.faults[-1] = TAKEN
    made.beliefs[-1] = replace(late, waited_s=0.1)
    assert promise in " ".join(verdicts(made))


def test_what_is_gone_for_good_stops_the_rest_for_a_moment() -> None:
    """The rest has to do each thing within fifteen seconds."""
    made = history()
    made.stands = [LastStand("one, etcd1", 5.0, 9.0, {"sold": 5.5, "held": 8.9})]
    assert not any(verdicts(made).values())
    made.stands = [LastStand("one, etcd1", 5.0, 35.0, {"sold": 21.0, "held": None})]
    found = [one for finding in judge(made) for one in finding.violations]
    assert found == ["sold: 16.0 s after one, etcd1 was gone", "held: never, in 30 s without one, etcd1"]

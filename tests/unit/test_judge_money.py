"""The judge of holds and payments accepts a correct history, and finds each violation in forged ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from app.orders import OrderState
from lab.torture import judge_money
from lab.torture.history import (
    Delivery,
    Entry,
    Fault,
    FinalState,
    Flow,
    History,
    HttpCall,
    Item,
    Kept,
    Look,
    Pause,
    Price,
    Reading,
    Setup,
    UnitsAdded,
)
from lab.torture.judge import Finding, judge
from lab.torture.standing import Stood, announced, standings

Forgery = Callable[[History], object]
HOLD_S, PAY_S, GRACE_S, PRICE = 1.0, 2.0, 0.25, 499
BEGIN_S = 1000.0
AGAIN = {"name": "once more", "state": "given", "amount": 2 * PRICE}


def entry(order: str, kind: str, at: float, *units: int, quantity: int = 1, **facts: Any) -> Entry:
    """Return an event of an order, such as `ticket~a`, of the buyer with that name; `at` names its batch as well."""
    sku, _, name = order.partition("~")
    if kind in ("held", "waiting"):
        facts = {"ref": f"visit of {name}", "price": PRICE} | facts
    if kind in ("held", "offered"):
        facts = {"pay_by": BEGIN_S + at + HOLD_S} | facts
    if kind == "extended":
        facts = {"pay_by": BEGIN_S + at + PAY_S} | facts
    buyer, key = facts.pop("buyer", name), f"visit of {name}" if kind in ("held", "waiting") else None
    stock, held, lucky = (*units, 0, 0, 0)[:3]
    written = (1, f"batch {at:g}", 0, stock, held, lucky, facts, BEGIN_S + at, "one")
    return Entry(sku, f"{at:g}", kind, order, 0, quantity, buyer, key, *written)


def paid(order: str, kind: str, at: float, ref: str, *units: int, quantity: int = 1, **facts: Any) -> Entry:
    """Return an event about a payment; one that is owed, or is given back, has a refund of its own."""
    amount = PRICE * quantity
    states = {"refund_due": "due", "refunded": "given"}
    if kind in states:
        refund = {"name": f"back {ref}", "state": states[kind], "amount": amount}
        facts = {"refunds": [refund], "about": "order" if "restock" in facts else "payment"} | facts
    return entry(order, kind, at, *units, quantity=quantity, **{"payment_ref": ref, "amount": amount} | facts)


def call(
    verb: str, order: str, at: float, outcome: str, *, ref: str | None = None, units: int = 1, **more: Any
) -> HttpCall:
    """Return a request about an order and its answer, which came at that time."""
    sku, _, name = order.partition("~")
    new = verb in ("hold", "buy")
    given: dict[str, Any] = {"verb": verb, "wish": f"visit of {name}", "sku": sku, "buyer": name, "quantity": units}
    given |= {"instance": "one", "sent_at": at - 0.1, "done_at": at, "status": 200, "outcome": outcome}
    given |= {"key": f"visit of {name}" if new else None, "order": None if new else order, "payment": ref}
    given |= {"amount": PRICE * units if ref and verb == "confirm" else None}
    given |= {"refund": ref if outcome in ("refund_due", "duplicate_payment") else None}
    given |= {"told": order if outcome not in ("sold_out", "limit_reached", "hold_required", "not_found") else None}
    return HttpCall(**given | more)


def history() -> History:
    """Return a history: three tickets and three seats, of which each buyer may have two.

    Ticket a is extended and paid, with a second payment to give back; b's two run out, go to s, who first tried to buy
    them at once, and are paid too late. d was refused in between. Of the seats c's are cancelled; e's run out, and are
    paid late; f was refused a third. At the end s and e are refunded, and b's payment is given back. The shop is told
    of all; it drops the first event.
    """
    flows = tuple(Flow(item, HOLD_S, PAY_S, GRACE_S, PRICE) for item in (Item("ticket", 3), Item("seat", 3, limit=2)))
    made = History(Setup((), 2, 2.0, 4.0, "etcd", "redis", "fence", 1, (), flows=flows))
    journal = [
        entry("ticket~a", "held", 1, -1, 1),
        entry("ticket~b", "held", 2, -2, 2, quantity=2),
        entry("ticket~a", "extended", 2.5),
        paid("ticket~a", "confirmed", 3.5, "p-a", 0, -1, 1),
        entry("ticket~b", "expired", 4, 2, -2, quantity=2),
        paid("ticket~a", "refund_due", 5, "p-a2", why="duplicate_payment"),
        entry("ticket~s", "held", 6, -2, 2, quantity=2),
        paid("ticket~s", "confirmed", 6.5, "p-s", 0, -2, 2, quantity=2),
        paid("ticket~b", "refund_due", 7, "p-b", quantity=2, why="refund_due"),
        entry("seat~c", "held", 1, -2, 2, quantity=2),
        entry("seat~c", "cancelled", 3, 2, -2, quantity=2),
        entry("seat~e", "held", 4, -2, 2, quantity=2),
        entry("seat~e", "expired", 5.5, 2, -2, quantity=2),
        paid("seat~e", "confirmed", 6, "p-e", -2, 0, 2, quantity=2, late=True),
        paid("ticket~s", "refunded", 9, "p-s", 2, 0, -2, quantity=2, restock=True),
        paid("ticket~b", "refunded", 9.5, "p-b", quantity=2),
        paid("seat~e", "refunded", 9, "p-e", quantity=2, restock=False),
    ]
    made.calls = [
        call("hold", "ticket~a", 1.1, "held"),
        call("hold", "ticket~b", 2.1, "held", units=2),
        call("extend", "ticket~a", 2.6, "extended"),
        call("hold", "ticket~d", 3, "sold_out"),
        call("confirm", "ticket~a", 3.6, "confirmed", ref="p-a"),
        call("confirm", "ticket~a", 3.8, "already_confirmed", ref="p-a"),
        call("confirm", "seat~c", 3.9, "payment_ref_in_use", ref="p-a"),
        call("confirm", "ticket~a", 5.1, "duplicate_payment", ref="p-a2"),
        call("hold", "ticket~s", 6.1, "held", units=2),
        call("confirm", "ticket~b", 7.1, "refund_due", ref="p-b", units=2),
        call("confirm", "ticket~nobody", 7.2, "not_found", ref="p-x"),
        call("hold", "seat~c", 1.1, "held", units=2),
        call("hold", "seat~f", 2, "limit_reached", buyer="c"),
        call("cancel", "seat~c", 3.1, "cancelled", units=2),
        call("hold", "seat~e", 4.1, "held", units=2),
        call("confirm", "seat~e", 6.1, "confirmed", ref="p-e", units=2),
        call("refund", "ticket~s", 9.1, "refunded", restock=True),
        call("refund", "ticket~s", 9.2, "already_refunded", restock=True),
        call("refund", "ticket~b", 9.6, "refunded", ref="p-b", restock=True),
        call("buy", "ticket~s", 6.0, "hold_required", units=2),
        call("confirm", "ticket~s", 6.6, "confirmed", ref="p-s", units=2),
        call("refund", "seat~e", 9.1, "refunded", restock=False),
    ]
    made.looks = [
        Look(0.1, 0.2, "ticket", 3, 0, 0),
        Look(2.9, 3.0, "ticket", 0, 3, 0, 0.2),
        Look(8.0, 8.1, "ticket", 0, 0, 3),
        Look(8.0, 8.1, "seat", 1, 0, 2),
    ]
    made.end = FinalState()
    written(made, journal)
    made.calls = [replace(one, shown=shown(made, one)) for one in made.calls]
    made.deliveries = deliveries(made)
    made.deliveries.insert(0, replace(made.deliveries[0], at=1.1, done_at=1.2, status=0))
    return made


def stood(made: History) -> dict[str, tuple[Entry, Stood]]:
    """Return each event, and how its order stood after it, by the event's name."""
    assert made.end is not None
    of: dict[str, list[Entry]] = {}
    for one in made.end.journal:
        of.setdefault(one.order, []).append(one)
    return {
        f"{one.sku}~{one.entry}": (one, after)
        for entries in of.values()
        for one, after in zip(entries, standings(entries), strict=True)
    }


def shown(made: History, one: HttpCall) -> dict[str, Any]:
    """Return what an answer shows of its order, as it stood by then."""
    by_then = [(entry, after) for entry, after in stood(made).values() if entry.at < BEGIN_S + one.done_at]
    last = [after.shown for entry, after in by_then if one.told == entry.order]
    return last[-1] if last else {"quantity": one.quantity}


def deliveries(made: History) -> list[Delivery]:
    """Return a delivery of each event, soon after it has happened."""
    found = []
    for name, (one, after) in stood(made).items():
        at, what = float(one.entry) + 0.3, (one.kind, one.order, one.number, one.quantity, one.buyer)
        told: dict[str, Any] = {"body": f"body of {name}", "facts": announced(one, after), "happened_at": one.at}
        found.append(Delivery("one", at, at + 0.1, 200, name, *what, one.facts.get("payment_ref"), **told))
    assert made.end is not None
    places = [f"{one.sku}~{one.entry}" for one in made.end.journal if "part_of" not in one.facts]
    return sorted((one for one in found if one.id in places), key=lambda one: places.index(one.id))


def written(made: History, journal: list[Entry]) -> None:
    """Number the events, let them say how their orders stood, and let the store keep these so."""
    events: Counter[str] = Counter()
    for place, one in enumerate(journal):
        events[one.order] += 1
        journal[place] = replace(one, number=events[one.order])
    assert made.end is not None
    made.end = replace(made.end, journal=tuple(journal))
    after = stood(made)
    at = [(one, after[f"{one.sku}~{one.entry}"][1]) for one in journal]
    journal = [replace(one, facts=one.facts | its.said) for one, its in at]
    kept = {one.order: Kept(one.order, one.number, its.shown) for one, its in at}
    made.end = replace(made.end, journal=tuple(journal), kept=tuple(kept.values()))


def verdicts(made: History) -> list[Finding]:
    """Return the broken promises of the flow; what a sale has to have is not there."""
    broken = [one for one in judge(made) if not one.holds]
    return [
        one
        for one in broken
        if one.invariant.startswith(("M", "I1", "I2", "I3", "I4", "I7, I8")) or "decided" in one.promise
    ]


def test_a_good_history_is_let_pass() -> None:
    """A correct history keeps all promises."""
    assert verdicts(history()) == []


def test_a_line_is_let_pass() -> None:
    """Places in line, their offers and their ends keep all promises; those whom the end of a sale sends away, too."""
    made = history()
    with_a_line(made)
    assert verdicts(made) == []
    made = history()
    with_a_line(made)
    made.calls.pop()
    ended(made)
    made.deliveries = deliveries(made)
    assert verdicts(made) == []


def test_what_is_given_back_at_the_end_of_a_hold_is_let_pass() -> None:
    """A wrong amount is owed with the end of its order; a wrong clock explains what is signed by it, and no more."""
    made = history()
    with_a_wrong_amount(made)
    assert verdicts(made) == []
    made = history()
    too_new(made)
    a_clock(made)
    assert verdicts(made) == []


def test_a_basket_is_let_pass() -> None:
    """A basket beside single orders keeps all promises, with its parts; so does one that a limit keeps out."""
    made = history()
    with_a_basket(made)
    assert verdicts(made) == []
    grouped(made, 3)
    told(made, call("hold", "ticket~u", 20.3, "limit_reached", buyer="w~s"))
    assert verdicts(made) == []


def event(made: History, place: int, **changes: Any) -> Any:
    """Change an event, and the facts in it."""
    assert made.end is not None
    journal = list(made.end.journal)
    journal[place] = replace(journal[place], **changes | {"facts": journal[place].facts | changes.get("facts", {})})
    made.end = replace(made.end, journal=tuple(journal))


def lost(made: History, at: int) -> Any:
    """Take an event out of the journal."""
    assert made.end is not None
    made.end = replace(made.end, journal=(*made.end.journal[:at], *made.end.journal[at + 1 :]))


def order(
    made: History, at: int, about: dict[str, Any] | None = None, *, also: bool | None = False, **shown: Any
) -> Any:
    """Let the store keep an order that is another, or is shown otherwise; or keep both, or none (None)."""
    assert made.end is not None
    kept = list(made.end.kept)
    other = replace(kept[at], shown=kept[at].shown | shown, **about or {})
    kept[at : at + 1] = [] if also is None else [kept[at], other] if also else [other]
    made.end = replace(made.end, kept=tuple(kept))


def more(made: History, *entries: Entry, at: int | None = None) -> Any:
    """Add events; how orders stand agrees with them."""
    assert made.end is not None
    journal = list(made.end.journal)
    journal[len(journal) if at is None else at :] = [*entries, *(journal[at:] if at is not None else ())]
    written(made, journal)


def told(made: History, *calls: HttpCall) -> Any:
    made.calls += [replace(one, shown=shown(made, one)) for one in calls]


def answered(made: History, at: int, **changes: Any) -> Any:
    made.calls[at] = replace(made.calls[at], **changes)


def shows(made: History, name: str, value: Any) -> Any:
    """Let the answer to a's payment show something else."""
    answered(made, 4, shown=made.calls[4].shown | {name: value})


def sent(made: History, place: int, **changes: Any) -> Any:
    made.deliveries[place] = replace(made.deliveries[place], **changes)


def said(made: History, place: int, **facts: Any) -> Any:
    sent(made, place, facts=made.deliveries[place].facts | facts)


def sent_too(made: History, place: int, **changes: Any) -> Any:
    made.deliveries.append(replace(made.deliveries[place], **changes))


def said_to_be_over(made: History, order: str, at: float) -> Any:
    sent_too(made, 4, event="expired", order=order, at=at, done_at=at + 0.1)


def sold_too(made: History) -> Any:
    assert made.end is not None
    made.end = replace(made.end, journal=(*made.end.journal, entry("mug~g", "sold", 12, -1, 0, 1)))


def seen(made: History, *looks: Look) -> Any:
    made.looks += looks


def early(made: History, at: float = 2.9) -> Any:
    """Let b's hold run out a moment before its end."""
    event(made, 4, at=BEGIN_S + at)


def early_though_extended(made: History) -> Any:
    """Let a's hold run out after its first window, and within the second."""
    more(made, entry("ticket~a", "expired", 3.4, 1, -1), at=3)
    event(made, 4, stock=-1, held=0, lucky=1, facts={"late": True})


def with_a_line(made: History) -> None:
    """Let two wait behind y's two tickets: when these are given back, k gets one; l leaves. j came when it was late."""
    more(
        made,
        entry("ticket~y", "held", 10, -2, 2, quantity=2),
        entry("ticket~k", "waiting", 10.2),
        entry("ticket~l", "waiting", 10.4, quantity=2),
        entry("ticket~y", "cancelled", 11, 2, -2, quantity=2),
        entry("ticket~k", "offered", 11.01, -1, 1),
        entry("ticket~l", "cancelled", 11.5, quantity=2),
        entry("ticket~k", "expired", 12.5, 1, -1),
    )
    told(
        made,
        call("hold", "ticket~y", 10.1, "held", units=2),
        call("hold", "ticket~k", 10.3, "waiting", wait=True),
        call("hold", "ticket~k", 10.35, "already_waiting", wait=True, told=None),
        call("hold", "ticket~l", 10.5, "waiting", units=2, wait=True),
        call("look", "ticket~k", 10.6, "waiting"),
        call("cancel", "ticket~y", 11.1, "cancelled", units=2),
        call("hold", "ticket~j", 11.2, "sold_out"),
        call("look", "ticket~k", 11.3, "held"),
        call("look", "ticket~k", 12.6, "expired"),
        call("cancel", "ticket~l", 11.6, "cancelled", units=2),
    )
    made.deliveries = deliveries(made)


def with_a_basket(made: History) -> None:
    """Let w hold a seat and two tickets, give up one, pay for the rest, and have the other's money and unit back."""

    def line(kind: str, at: float, *units: int, quantity: int = 1, **facts: Any) -> Entry:
        own = {"part_of": "seat~w", "buyer": "w~s", "ref": None} | facts
        return replace(entry("ticket~w1~t", kind, at, *units, quantity=quantity, **own), key=None)

    two, one = ([{"sku": "ticket", "quantity": units, "price": PRICE, "number": "w1"}] for units in (2, 1))
    part: dict[str, Any] = {"about": "units", "units": 1, "line": "ticket"}
    back: dict[str, Any] = {
        "refunds": [{"name": "part", "state": "given", "amount": PRICE}],
        "amount": PRICE,
        "restock": True,
    }
    more(
        made,
        entry("seat~w~s", "held", 20, -1, 1, lines=two),
        line("held", 20, -2, 2, quantity=2),
        entry("seat~w~s", "cancelled", 20.5, **part, lines=one),
        line("cancelled", 20.5, 1, -1, about="units", units=1),
        paid("seat~w~s", "confirmed", 21, "p-w", 0, -1, 1, lines=one, amount=2 * PRICE),
        line("confirmed", 21, 0, -1, 1),
        paid("seat~w~s", "refunded", 21.5, "p-w", **part | back),
        line("refunded", 21.5, 1, 0, -1, about="order", restock=True),
    )
    told(
        made,
        call("hold", "seat~w~s", 20.1, "held", items={"seat": 1, "ticket": 2}),
        replace(call("cancel", "seat~w~s", 20.6, "partly_cancelled", line="ticket"), units=1),
        call("confirm", "seat~w~s", 21.1, "confirmed", ref="p-w", amount=2 * PRICE),
        replace(call("refund", "seat~w~s", 21.6, "partly_refunded", line="ticket", restock=True), units=1),
        call("hold", "seat~v~s", 22, "sold_out", items={"seat": 1, "ticket": 1}, refused="seat"),
        call("refund", "seat~w~s", 22.1, "too_much", line="ticket", restock=True),
    )
    made.deliveries = deliveries(made)


def with_a_wrong_amount(made: History) -> None:
    """Let x pay a wrong amount for a seat, which is owed as soon as x gives it up."""
    due: dict[str, Any] = {"refunds": [{"name": "back", "state": "due", "amount": 1}], "why": "refund_due", "amount": 1}
    more(
        made,
        entry("seat~x", "held", 15, -1, 1),
        paid("seat~x", "amount_mismatch", 15.2, "p-w", amount=1),
        entry("seat~x", "cancelled", 15.5, 1, -1),
        replace(paid("seat~x", "refund_due", 15.7, "p-w", **due), batch="batch 15.5"),
    )
    told(
        made,
        call("hold", "seat~x", 15.1, "held"),
        call("confirm", "seat~x", 15.3, "amount_mismatch", ref="p-w", amount=1),
        call("cancel", "seat~x", 15.6, "cancelled"),
    )
    made.deliveries = deliveries(made)


def wrongly_paid(forge: Forgery) -> Forgery:
    """Forge a history with a wrong amount."""

    def forged(made: History) -> None:
        with_a_wrong_amount(made)
        forge(made)

    return forged


def in_a_basket(forge: Forgery) -> Forgery:
    """Forge a history with a basket."""

    def forged(made: History) -> None:
        with_a_basket(made)
        forge(made)

    return forged


def grouped(made: History, units: int) -> Any:
    """Let a buyer have so many units of all items together."""
    made.setup = replace(made.setup, flows=tuple(replace(one, group=units) for one in made.setup.flows))


def in_line(forge: Forgery) -> Forgery:
    """Forge a history with a line."""

    def forged(made: History) -> None:
        with_a_line(made)
        forge(made)

    return forged


def ended(made: History, **changes: Any) -> Any:
    """End the line with the sale, which begins again at once."""
    event(made, -2, facts={"why": "ended"})
    made.pauses.append(replace(Pause("ticket", 11.4, 11.45, 11.55, 11.6, "ended"), **changes))


def too_new(made: History) -> Any:
    """Send an event whose signature is of another hour."""
    sent_too(made, 4, status=400, wrong="Message timestamp too new")


def a_clock(made: History, **changes: Any) -> Any:
    """Let an instance's clock be wrong."""
    made.faults.append(replace(Fault("instance-clock", "one", True, 3.0, 4.0, 4.0, 9.0), **changes))


FORGED: dict[str, dict[str, Forgery]] = {
    "no unit is in two places": {
        "a cancellation that gives nothing back": lambda made: event(made, 10, stock=0),
        "a cancellation that gives too much back": lambda made: event(made, 10, stock=3),
        "a unit that another item had more": lambda made: (
            made.restocks.append(UnitsAdded(7.5, 7.6, 1, "seat")),
            more(made, entry("ticket~g", "held", 8, -1, 1), at=9),
        ),
        "a basket of units that are not there": in_a_basket(lambda made: event(made, -7, stock=-9, held=9)),
        "units that nobody held": lambda made: event(made, 0, stock=0, held=0),
        "units that nobody had": lambda made: event(made, 7, held=0, lucky=0),
        "a late payment of a unit that isn't there": lambda made: more(
            made, paid("ticket~b", "confirmed", 8, "p-b2", -2, 0, 2, quantity=2), at=9
        ),
    },
    "what is seen": {
        "a look that was never": lambda made: seen(made, Look(4.1, 4.2, "ticket", 1, 2, 0)),
    },
    "a path to its end": {
        "expired after it was paid": lambda made: more(made, entry("seat~e", "expired", 7, 2, -2, quantity=2)),
        "sold at once, though it has a price": lambda made: event(made, 6, kind="sold", held=0, lucky=2),
        "confirmed twice": lambda made: more(made, paid("seat~e", "confirmed", 7, "p-e", quantity=2)),
        "a gap": lambda made: event(made, 3, number=4),
        "a number twice": lambda made: event(made, 3, number=2),
        "extended after the end": lambda made: more(made, entry("seat~c", "extended", 3.5)),
        "other units than its own": lambda made: event(made, 3, held=-2, lucky=2),
        "refunded twice": lambda made: more(
            made, entry("ticket~s", "refunded", 10, 2, 0, -2, quantity=2, restock=True, about="order")
        ),
        "sold again, and the units should be gone": lambda made: event(made, 16, stock=2, lucky=-2),
        "gone, and the units should be sold again": lambda made: event(made, 14, stock=0, lucky=0),
        "restocked for a payment too many": lambda made: event(made, 15, stock=2, held=-2),
    },
    "go one way": {
        name: in_a_basket(forge)
        for name, forge in dict[str, Forgery](
            {
                "a line that is kept": lambda made: lost(made, -1),
                "a line that was never held": lambda made: lost(made, -7),
                "a line of another batch": lambda made: event(made, -3, batch="another"),
                "a line with more units": lambda made: event(made, -7, quantity=3),
                "another end of a line": lambda made: event(made, -1, kind="expired"),
                "a part of the wrong line": lambda made: event(made, -6, facts={"line": "seat"}),
                "a line of nobody": lambda made: [event(made, at, facts={"lines": []}) for at in (-8, -6, -4)],
            }
        ).items()
    },
    "is what its events say": {
        "an event outside of the journal": lambda made: lost(made, 10),
        "another state": lambda made: order(made, 1, state="held"),
        "another payment": lambda made: order(made, 0, payment_ref="p-a2"),
        "a refund that was forgotten": lambda made: order(made, 0, owed=0, payments=[]),
        "an event too few": lambda made: order(made, 0, {"events": 2}),
        "an order without events": lambda made: order(made, 3, {"order": "seat~z"}, also=True),
        "an order that is gone": lambda made: order(made, 3, also=None),
    }
    | {
        f"an event with {what}": partial(event, place=5, facts=facts)
        for what, facts in {
            "other changes": {"changes": []},
            "other sums": {"sums": []},
            "another state": {"state": "held"},
        }.items()
    },
    "more than the limit": {
        "a place too many": lambda made: more(made, entry("seat~g", "waiting", 2, buyer="c"), at=10),
        "a basket over the limit of a group": in_a_basket(lambda made: grouped(made, 2)),
        "two holds and one more": lambda made: more(made, entry("seat~g", "held", 2, -1, 1, buyer="c"), at=10),
    },
    "expires before its end": {
        "an offer that was cut short": in_line(lambda made: event(made, -3, facts={"pay_by": BEGIN_S + 13})),
        "too early": early,
        "within its grace": lambda made: early(made, 3.1),
        "an extension that was ignored": early_though_extended,
    },
    "has the time that they were told": {
        "a store's clock that jumped, and was believed": lambda made: said_to_be_over(made, "ticket~s", 7.1),
        "an extended hold": lambda made: said_to_be_over(made, "ticket~a", 4.6),
        "an offer": in_line(lambda made: said_to_be_over(made, "ticket~k", 12.1)),
    },
    "every hold ends": {
        "one that is held at the end": lambda made: order(made, 1, state="held", pay_by=BEGIN_S + 3),
        "one that stays": lambda made: seen(made, Look(9, 9.1, "seat", 1, 0, 2, -4.5)),
        "one that stays for long": lambda made: seen(
            made, Look(9, 9.1, "seat", 1, 0, 2, -4.5), Look(10, 10.1, "seat", 1, 0, 2)
        ),
        "one that stays after a fault": lambda made: (
            made.faults.append(Fault("pause", "one", True, 8, 8.5, 8, 9)),
            seen(made, Look(9, 9.1, "seat", 1, 0, 2, -4.5)),
        ),
    },
    "are told is true": {
        "a price, and told sold": lambda made: answered(made, 19, outcome="sold", told="ticket~s"),
        "told waiting, and has not asked for a place": in_line(
            lambda made: told(made, call("hold", "ticket~k", 10.3, "waiting"))
        ),
        "told waiting, and it never was": lambda made: told(made, call("hold", "ticket~a", 1.2, "waiting")),
        "waits already, and never did": lambda made: told(
            made, call("hold", "ticket~a", 1.2, "already_waiting", told=None)
        ),
        "told held without a hold": lambda made: told(made, call("hold", "ticket~z", 8, "held")),
        "told of another's hold": lambda made: told(made, call("hold", "ticket~a", 1.2, "held", buyer="mallory")),
        "told of another's payment": lambda made: answered(made, 4, told="ticket~b"),
        "told confirmed without a payment": lambda made: answered(made, 4, payment="p-z"),
        "told cancelled, and it has run out": lambda made: told(made, call("cancel", "ticket~b", 8, "cancelled")),
        "told not found, and it is there": lambda made: answered(made, 9, outcome="not_found"),
        "an order without its secret": lambda made: answered(made, 10, outcome="confirmed", told="ticket~a"),
        "in use, and it isn't": lambda made: answered(made, 6, payment="p-y"),
        "a word that isn't one": lambda made: answered(made, 2, outcome="perhaps"),
        "told refunded, and it isn't": lambda made: told(made, call("refund", "ticket~a", 10, "refunded")),
        "another payment refunded": lambda made: answered(made, 18, payment="p-z"),
        "too much, and it is not": in_a_basket(lambda made: answered(made, -1, line="seat")),
        "nothing to give back, and it was paid": lambda made: told(made, call("refund", "seat~e", 9, "nothing_due")),
    },
    "are what was said": {
        "a wrong amount that counts": lambda made: answered(made, 4, amount=1),
        "the price of one line": in_a_basket(lambda made: answered(made, -4, amount=PRICE)),
        "an owed amount that is another": lambda made: event(made, 5, facts={"amount": 1}),
        "an amount that is forgotten": lambda made: event(made, 3, facts={"amount": None}),
        "the right amount, and told that it is wrong": lambda made: answered(made, 4, outcome="amount_mismatch"),
        "units sold again, and they should be gone": lambda made: answered(made, 21, restock=True),
        "the other payment to give back": lambda made: answered(made, 7, refund="p-a"),
        "nothing to give back": lambda made: answered(made, 9, refund=None),
    },
    "shown as it stood": {
        name: partial(shows, name=name, value=value)
        for name, value in {
            "state": "held",
            "quantity": 2,
            "price": PRICE + 1,
            "currency": "USD",
            "to_pay": 1,
            "pay_by": BEGIN_S + 3600,
            "extended": False,
            "payment_ref": "p-z",
            "paid": 1,
            "given_back": 1,
            "payments": [],
            "a field that no rule knows": 1,
        }.items()
    }
    | {
        "of another quantity": lambda made: answered(made, 3, shown={"quantity": 2}),
        "as it was before": lambda made: answered(made, 4, shown=made.calls[0].shown),
    },
    "charged without a unit or a refund": {
        "owed, and not noted": lambda made: told(made, call("confirm", "seat~c", 8, "refund_due", ref="p-c")),
        "a payment of two orders": lambda made: more(
            made, paid("seat~c", "refund_due", 8, "p-a", quantity=2, why="refund_due")
        ),
        "a payment for another order": lambda made: (
            event(made, 5, facts={"payment_ref": "p-x"}),
            made.calls.pop(7),
        ),
        "a payment that counts and is owed": lambda made: event(made, 5, facts={"payment_ref": "p-a"}),
        "a payment of nobody": lambda made: event(made, 3, facts={"payment_ref": "p-z"}),
        "a wrong amount": lambda made: event(made, 3, facts={"amount": 1}),
        "a line that is paid too well": in_a_basket(lambda made: event(made, -4, facts={"amount": 3 * PRICE})),
        "a part that gives back too little": in_a_basket(
            lambda made: event(made, -2, facts={"refunds": [{"name": "part", "state": "given", "amount": 1}]})
        ),
        "a part that gives back too much": in_a_basket(
            lambda made: event(made, -2, facts={"refunds": [{"name": "part", "state": "given", "amount": 2 * PRICE}]})
        ),
        "owed once more": lambda made: more(
            made, paid("ticket~b", "refund_due", 10, "p-b", refunds=[AGAIN | {"state": "due", "amount": 1}])
        ),
        "the right amount, and refused": wrongly_paid(lambda made: event(made, -3, facts={"amount": PRICE})),
        "a wrong amount that is kept": wrongly_paid(lambda made: lost(made, -1)),
        "given back twice": lambda made: more(
            made, paid("ticket~b", "refunded", 10, "p-b", quantity=2, refunds=[AGAIN])
        ),
        "given back by another": lambda made: event(made, 15, facts={"payment_ref": "p-e"}),
        "two refunds told, and one made": lambda made: told(made, call("refund", "ticket~s", 9.3, "refunded")),
    },
    "first come, first served": {
        "refused what nobody waits for": in_line(lambda made: told(made, call("hold", "ticket~j", 12.9, "sold_out"))),
        "refused what was there": lambda made: told(made, call("hold", "seat~g", 3.9, "sold_out")),
        "refused for a limit that there is not": lambda made: told(made, call("hold", "ticket~g", 8, "limit_reached")),
        "a basket that was refused, and could be had": in_a_basket(
            lambda made: told(
                made, call("hold", "seat~v~s", 21.9, "sold_out", items={"seat": 1, "ticket": 1}, refused="ticket")
            )
        ),
        "refused for a limit of a group that is not reached": in_a_basket(
            lambda made: (grouped(made, 1), told(made, call("hold", "ticket~u", 21.9, "limit_reached")))
        ),
        "refused for a limit of others": lambda made: told(made, call("hold", "seat~g", 3.9, "limit_reached")),
        "a late payment given back for nothing": lambda made: lost(made, 6),
        "held before its turn": lambda made: answered(made, 0, sent_at=2.2, done_at=2.3),
    },
    "asked": {
        "another key": lambda made: event(made, 0, key="visit of b"),
        "a hold for nobody": lambda made: event(made, 0, facts={"ref": "visit of z"}),
        "a cancellation of nobody": lambda made: made.calls.pop(13),
        "a refund of nobody": lambda made: made.calls.pop(),
        "other lines": in_a_basket(lambda made: answered(made, -6, items={"seat": 1, "ticket": 3})),
        "held twice for one visit": lambda made: more(made, entry("ticket~z", "held", 8, ref="visit of a")),
    },
    "overtaken who waits": {
        name: in_line(forge)
        for name, forge in dict[str, Forgery](
            {
                "a press that gets what is left": lambda made: more(
                    made, entry("ticket~j", "held", 11.1, -1, 1), at=-2
                ),
                "a purchase that gets what is left": lambda made: more(
                    made, entry("ticket~j", "sold", 11.1, -1, 0, 1), at=-2
                ),
                "a basket that gets what is left": lambda made: more(
                    made, entry("ticket~j~s", "held", 11.1, -1, 1, part_of="seat~j"), at=-2
                ),
                "the second before the first": lambda made: event(made, -3, order="ticket~l"),
                "offered, and has never waited": lambda made: event(made, -3, order="ticket~b"),
                "offered twice": lambda made: more(made, entry("ticket~k", "offered", 11.2, -1, 1), at=-2),
                "offered after it has left": lambda made: more(made, entry("ticket~l", "offered", 12, -1, 1)),
                "offered in a pause": lambda made: made.pauses.append(
                    Pause("ticket", 10.8, 10.85, 11.4, 11.5, from_1970=BEGIN_S)
                ),
                "offered at the end": lambda made: made.pauses.append(
                    Pause("ticket", 10.8, 10.85, 11.4, 11.5, "ended", BEGIN_S)
                ),
                "sent away for a wish that can be met": lambda made: event(made, -4, facts={"why": "sold_out"}),
                "sent away though others may give up": lambda made: event(made, -2, facts={"why": "sold_out"}),
                "sent away before its turn": lambda made: more(
                    made,
                    entry("ticket~m", "waiting", 10.6, quantity=9),
                    entry("ticket~m", "cancelled", 10.8, quantity=9, why="sold_out"),
                    at=-4,
                ),
                "sent away in a pause": lambda made: ended(made, how="paused"),
                "sent away after another end": lambda made: ended(made, resumed_at=10.0),
                "sent away before the end": lambda made: ended(made, asked_at=20.0),
                "sent away in mid-sale": lambda made: event(made, -2, facts={"why": "ended"}),
                "waits at the end": lambda made: more(made, entry("ticket~m", "waiting", 13, quantity=2)),
            }
        ).items()
    },
    "at a price that was in force": {
        "one that was never set": lambda made: event(made, 9, facts={"price": 1}),
        "one that was over": lambda made: made.prices.append(Price("ticket", 0.1, 0.2, 600)),
        "one that is yet to come": lambda made: (
            event(made, 0, facts={"price": 600}),
            made.prices.append(Price("ticket", 5.0, 5.1, 600)),
        ),
    },
    "nothing begins": {
        "held, and the sale has ended": lambda made: made.pauses.append(Pause("ticket", 0.5, 0.6, 1.5, 1.6, "ended")),
        "told that it has ended, and it is paused": lambda made: (
            told(made, call("hold", "ticket~d", 3.2, "ended")),
            made.pauses.append(Pause("ticket", 3.0, 3.0, 3.4, 3.5)),
        ),
        "in line in a pause": in_line(lambda made: made.pauses.append(Pause("ticket", 10.1, 10.15, 10.4, 10.45))),
        "held in a pause": lambda made: made.pauses.append(Pause("ticket", 0.5, 0.6, 1.5, 1.6)),
        "a line that was held in a pause": in_a_basket(
            lambda made: made.pauses.append(Pause("ticket", 19.0, 19.1, 20.5, 20.6))
        ),
        "told of a pause that was none": lambda made: told(made, call("hold", "ticket~d", 3.2, "paused")),
        "told of a pause that was over": lambda made: (
            told(made, call("hold", "ticket~d", 3.2, "paused")),
            made.pauses.append(Pause("ticket", 2.0, 2.1, 2.2, 2.3)),
        ),
    },
    "all are decided": {
        "a payment that nobody answers": lambda made: answered(made, 9, status=503, retry_after="1"),
        "a 503 without Retry-After": lambda made: told(made, call("hold", "ticket~d", 3.2, "", status=503)),
        "an error": lambda made: told(made, call("hold", "ticket~d", 3.2, "", status=500)),
        "a refund that nobody answers": lambda made: answered(made, 18, status=503, retry_after="1"),
    },
    "from one sender": {
        "two send side by side": lambda made: sent(made, 4, instance="two"),
        "another one tries, too": lambda made: sent_too(made, 4, instance="two", status=500),
    },
    "never decrease": {"a change by one who was overtaken": lambda made: event(made, 3, token=0)},
    "told each event": {
        "one that never comes": lambda made: made.deliveries.pop(3),
        "one that is not taken": lambda made: sent(made, 3, status=500),
        "a sale that is not told": sold_too,
        "other lines than its own": in_a_basket(lambda made: said(made, -4, items=[])),
        "one that never happened": lambda made: sent_too(made, 3, id="ticket~2.6"),
        "another kind": lambda made: sent(made, 4, event="expired"),
        "another order": lambda made: sent(made, 4, order="ticket~b"),
        "another payment": lambda made: sent(made, 4, payment="p-z"),
        "an amount that is another": lambda made: sent(made, 4, facts={"payment_ref": "p-a", "amount": 1}),
        "a state that it was not in": lambda made: said(made, 4, state="held"),
        "about something else": lambda made: said(made, 4, about="payment"),
        "another number of the shop": lambda made: said(made, 4, ref="visit of b"),
        "a fact that was none": lambda made: said(made, 4, late=True),
        "another moment": lambda made: sent(made, 4, happened_at=BEGIN_S),
        "two contents of an event": lambda made: sent_too(made, 4, body="something else"),
        "a signature that is wrong": lambda made: sent_too(made, 4, status=400, wrong="No matching signature found"),
        "a clock that is wrong": too_new,
        "a clock that was wrong once": lambda made: (too_new(made), a_clock(made, began_at=0.1, ended_at=0.5)),
        "a clock that will be wrong": lambda made: (too_new(made), a_clock(made, began_at=4.0)),
        "a clock that nobody changed": lambda made: (too_new(made), a_clock(made, struck=False)),
        "a clock that explains no other error": lambda made: (
            sent_too(made, 4, status=400, wrong="No matching signature found"),
            a_clock(made),
        ),
    },
    "events come in order": {
        "one before another": lambda made: sent(made, 4, at=2.6),
        "one without another": lambda made: made.deliveries.pop(3),
        "one before another is taken": lambda made: sent(made, 3, done_at=3.85),
        "one before another is taken at the second try": lambda made: (
            sent_too(made, 3, at=3.9, done_at=4.0),
            sent(made, 3, status=429),
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
    found = verdicts(made)
    assert [one for one in found if promise in one.promise], found


UNEXPLAINED = "the journal is a run of the model"
IN_THE_MODEL = ("a path to its end", "is what its events say", "more than the limit")
ALSO = {
    "a unit that another item had more",
    "a basket of units that are not there",
    "a cancellation that gives nothing back",
    "a late payment of a unit that isn't there",
    "a wrong amount",
    "given back twice",
    "given back by another",
    "a late payment given back for nothing",
    "a payment that counts and is owed",
}


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(forge, id=name)
        for promise, forged in FORGED.items()
        for name, forge in forged.items()
        if (promise in IN_THE_MODEL and not name.startswith(("an event with", "a basket", "an order that is gone")))
        or name in ALSO
    ],
)
def test_the_model_has_no_such_run(forgery: Forgery) -> None:
    """What an order can't do is no run of the model, whichever rule it breaks."""
    made = history()
    forgery(made)
    assert [one for one in verdicts(made) if one.promise == UNEXPLAINED]


@pytest.mark.parametrize("at", [-8, -7])
def test_a_basket_takes_units_from_the_model(at: int) -> None:
    """A basket is beyond the model, and its units are not: what isn't there can't be held."""
    made = history()
    with_a_basket(made)
    event(made, at, stock=-4, held=4)
    assert [one for one in verdicts(made) if one.promise == UNEXPLAINED]


def test_a_wrong_clock_makes_events_unbelievable() -> None:
    """An instance whose clock is an hour ahead signs for another hour, which is not the sender's fault."""
    made = history()
    sent_too(made, 4, status=400, wrong="Message timestamp too new")
    made.faults.append(Fault("several", "kill, one; instance-clock, two", True, 3.5, 4.5, 4.5, 6.0))
    assert "M6" not in [one.invariant for one in verdicts(made)]


def test_units_may_be_added_and_items_paused_and_priced() -> None:
    """What operators do is part of the story: units come from somewhere, and nothing is held in a pause."""
    made = history()
    held = entry("seat~g", "held", 10, -2, 2, quantity=2, price=600)
    more(made, held)
    told(made, call("hold", "seat~g", 10.1, "held", units=2))
    assert [one for one in verdicts(made) if one.promise == UNEXPLAINED]
    made.restocks.append(UnitsAdded(9.5, 9.6, 1, "seat"))
    made.pauses.append(Pause("seat", 5.0, 5.1, 5.4, 5.5))
    made.pauses.append(Pause("seat", 6.0, 6.1, 6.4, 6.5, "not_started"))
    made.prices.append(Price("seat", 9.0, 9.1, 600))
    told(made, call("hold", "seat~h", 5.3, "paused"), call("hold", "seat~i", 6.3, "not_started"))
    told(made, call("hold", "seat~h", 8.9, "paused", replayed=True))  # the answer that its key has kept
    seen(made, Look(10.2, 10.3, "seat", 0, 2, 2))
    assert made.end is not None
    made.deliveries.append(deliveries(made)[-1])
    assert not [one for one in verdicts(made) if one.invariant.startswith("M")]


def test_a_batch_has_no_order_within() -> None:
    """A refusal is true if the units were given back in the same batch, after it was decided."""
    made = history()
    more(made, entry("ticket~g", "held", 4, -2, 2, quantity=2), at=5)
    made.calls += [call("hold", "ticket~g", 4.2, "held", units=2), call("hold", "ticket~h", 4.2, "sold_out")]
    assert "first come, first served" not in [one.promise for one in verdicts(made)]


def test_what_readers_are_told_in_the_end_is_what_the_orders_add_up_to() -> None:
    """Units, orders and money of the tickets; each number that is another is told."""
    made, nothing = history(), dict.fromkeys(map(str, OrderState), 0)
    level = {"stock": 2, "held": 0, "lucky": 1, "initial": 3, "limit_per_buyer": 0, "price": PRICE, "paused": ""}
    sums: dict[str, Any] = {"orders": nothing | dict.fromkeys(("confirmed", "expired", "refunded"), 1)}
    sums |= {"units": nothing | {"confirmed": 1, "expired": 2, "refunded": 2}, "to_ship": 1, "attention": 1}
    money = {"paid": 6 * PRICE, "given_back": 4 * PRICE, "owed": PRICE, "kept": 2 * PRICE, "disputed": 0}
    right = Reading("one", "ticket", level, sums | {"money": {"": money}})
    made.readings = [right]
    assert verdicts(made) == []
    for wrong in (
        *(replace(right, level=right.level | {name: "another"}) for name in right.level),
        *(replace(right, sums=right.sums | {name: "another"}) for name in right.sums),
    ):
        made.readings = [wrong]
        assert [one.promise for one in verdicts(made)] == ["all readers are told numbers that add up"], wrong


def lacks(made: History, kind: str = "") -> list[str]:
    """Return what a run lacks for a test, without the events of some kind."""
    assert made.end is not None
    made.end = replace(made.end, journal=tuple(one for one in made.end.journal if one.kind != kind))
    return list(judge_money.tested(judge_money.Money(made, made.end)))


def test_a_run_that_lacks_something_is_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of event has to come; what is rare, only in a long run."""
    assert lacks(history()) == []
    for kind, text in {
        "confirmed": "nobody paid",
        "expired": "no hold has run out",
        "cancelled": "nobody cancelled",
        "extended": "nobody extended",
        "refund_due": "no payment had to be given back",
        "refunded": "nothing was refunded",
    }.items():
        assert lacks(history(), kind) == [text]
    made = history()
    made.calls, made.deliveries = [one for one in made.calls if one.verb != "buy"], made.deliveries[1:]
    assert lacks(made) == ["nobody tried to buy what has a price at once", "no event was sent again"]
    monkeypatch.setattr(judge_money, "_MANY", 1)
    rare = ["nobody paid a wrong amount", "nobody got units by waiting for them"]
    assert lacks(history()) == rare
    made = history()
    made.setup = replace(made.setup, flows=tuple(replace(one, basket=True) for one in made.setup.flows))
    assert lacks(made) == ["there were no baskets", *rare]
    for more_of in (with_a_basket, with_a_line, with_a_wrong_amount):
        more_of(made)
    sent_too(made, 0)
    assert lacks(made) == []
    made.calls = [one for one in made.calls if not one.units]
    assert lacks(made) == ["there were no parts cancelled", "there were no parts refunded"]

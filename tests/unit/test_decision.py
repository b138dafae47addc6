"""The decision gives units to purchases; `test_orders_model` has the rest of it."""

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from app.errors import KeyReused, SeckillError, StockCorrupt, UnknownItem
from app.orders import (
    Answer,
    Cancel,
    CancelOutcome,
    Command,
    Confirm,
    ConfirmOutcome,
    EventKind,
    Expire,
    ExpiryOutcome,
    Extend,
    ExtendOutcome,
    Hold,
    HoldOutcome,
    OrderId,
    OrderState,
    Outcome,
    Payment,
    Purchase,
    Record,
    Settled,
    Snapshot,
    Terms,
    decide,
)
from app.orders.account import PaymentState
from app.orders.commands import Place
from app.orders.decision import Basis, Decision, Windows, decide_together, outside
from app.orders.record import ERASED, Line
from app.sale.batch import Clocked, decide_parts
from app.sale.queue import Entry, Item


def outcomes(decisions: list[Decision]) -> list[object]:
    return [decision.outcome for decision in decisions]


def test_the_example_of_the_articles() -> None:
    """There are 4 units: the first buyer wants 3 and gets them, the second wants 2 and gets none, the third gets 1."""
    decisions = decide(Snapshot(4, 0), [Purchase(3), Purchase(2), Purchase(1)]).decisions
    assert outcomes(decisions) == [Outcome.SOLD, Outcome.SOLD_OUT, Outcome.SOLD]


def test_what_only_the_stores_clock_ends_stays_held() -> None:
    """Of the holds that are due by it, those go back that are due by the other one; the others can be extended."""
    ends = {"1-1": 1_000, "1-2": 2_000, "1-3": 2_400}
    records = {
        number: Record(number, "s", OrderState.HELD, 1, pay_by_ms=due_ms - 500, due_ms=due_ms)
        for number, due_ms in ends.items()
    }
    about: dict[str, Any] = {"held": 3, "records": records, "due": [*ends], "more_due": True, "now_ms": 90_000}
    wishes: list[Command] = [Expire("default"), Extend("default", "1-3", "s")]
    decided = decide(Snapshot(0, 0, **about), wishes, due_by_ms=2_000)
    assert [(one.kind, one.after.number) for one in decided.changes] == [
        (EventKind.EXPIRED, "1-1"),
        (EventKind.EXPIRED, "1-2"),
        (EventKind.EXTENDED, "1-3"),
    ]
    assert outcomes(decided.decisions) == [ExpiryOutcome.DONE, ExtendOutcome.EXTENDED]  # else it would be asked again
    assert outcomes(decide(Snapshot(0, 0, **about), wishes).decisions) == [ExpiryOutcome.MORE, ExtendOutcome.EXPIRED]


def test_what_is_due_and_is_not_there_is_not_looked_for_again() -> None:
    """Numbers without a record, as somebody's hand may have left them, keep nobody busy for ever."""
    odd = Snapshot(5, 0, due=["1-0", "2-0"], more_due=True)
    assert outcomes(decide(odd, [Expire("tv")]).decisions) == [ExpiryOutcome.DONE]
    held = Record("3-0", "s" * 32, OrderState.HELD, 1)
    some = Snapshot(5, 0, due=["1-0", "3-0"], more_due=True, records={"3-0": held})
    assert outcomes(decide(some, [Expire("tv")]).decisions) == [ExpiryOutcome.MORE]


def test_a_sale_is_open_from_its_start_to_before_its_end() -> None:
    """At the very instant of its start it sells, and at that of its end it does not."""
    terms = Terms(starts_at=10.0, ends_at=20.0)
    found = [outside(terms, at) for at in (9.999, 10.0, 19.999, 20.0)]
    assert found == [Outcome.NOT_STARTED, None, None, Outcome.ENDED]
    assert outside(replace(terms, paused="wait"), 15.0) is Outcome.PAUSED
    assert outside(Terms(starts_at=0.0, ends_at=0.0), 15.0) is None


def test_units_are_held_for_a_time() -> None:
    """By default as `Windows` has it; going to pay lasts as long as the hold at least."""
    assert Windows.of(Terms(), 60.0) == Windows() and Windows().lasting_s == 1_620
    assert Windows.of(Terms(hold_s=1_000.0, price=5, currency="EUR"), 1.5) == Windows(
        1_000_000, 1_000_000, 1_500, 5, "EUR", 1_000_000
    )


def test_a_late_payment_counts_for_a_buyer_who_has_a_name() -> None:
    """What the limit allows no more goes back; names that were erased are of many buyers, and share one count."""
    for buyer, outcome in (("ann", ConfirmOutcome.REFUND_DUE), (ERASED, ConfirmOutcome.CONFIRMED)):
        ended = {"1-1": Record("1-1", "s", OrderState.EXPIRED, 1, buyer)}
        about: dict[str, Any] = {"records": ended, "bought": {buyer: 1}}
        paid = Confirm("default", "1-1", "s", "p")
        assert outcomes(decide(Snapshot(5, 0, **about), [paid], limit_per_buyer=1).decisions) == [outcome]


def test_a_long_line_is_served_in_several_batches() -> None:
    """A batch that has served all whom it has read asks for another one; nobody who comes meanwhile passes the rest."""
    records = {f"{n}-0": Record(f"{n}-0", "s", OrderState.WAITING, 1, f"b{n}") for n in (1, 2)}
    some = Snapshot(5, 0, held=3, now_ms=1_000, records=records, waiting=4, line=[*records])
    decided = decide(some, [Hold(1, buyer="new", wait=True), Expire("default")])
    assert [str(one.kind) for one in decided.changes] == ["offered", "offered"]
    assert [one.outcome for one in decided.decisions] == [HoldOutcome.WAITING, ExpiryOutcome.MORE]
    assert decided.wants == 1
    assert outcomes(decide(replace(some, stock=2), [Expire("default")]).decisions) == [ExpiryOutcome.DONE]
    paused = decide(some, [Expire("default")], now_closed=Outcome.PAUSED)
    assert (paused.changes, paused.decisions[0].outcome) == ([], ExpiryOutcome.DONE)
    unseen = decide(replace(some, line=(), wants=7), [Hold(1, buyer="new")])
    assert (unseen.decisions[0].outcome, unseen.wants) == (HoldOutcome.SOLD_OUT, 7)


@pytest.mark.parametrize(
    ("left", "held", "closed", "smaller_first", "states"),
    [
        (0, 1, None, False, ["waiting", "waiting"]),  # nothing is kept from anybody: a refund may bring units
        (1, 0, None, False, ["cancelled", "held"]),
        (1, 1, None, False, ["cancelled", "held"]),
        (1, 2, None, False, ["waiting", "waiting"]),  # the holders of two may give them back
        (1, 2, None, True, ["waiting", "held"]),
        (1, 0, Outcome.PAUSED, False, ["waiting", "waiting"]),
        (3, 0, None, False, ["held", "waiting"]),
    ],
)
def test_a_wish_that_can_not_be_met_keeps_no_unit(
    left: int, held: int, closed: Outcome | None, smaller_first: bool, states: list[str]
) -> None:
    """The first in line wants three, and the next one wants one."""
    records = {f"{n}-0": Record(f"{n}-0", "s", OrderState.WAITING, units, f"b{n}") for n, units in ((1, 3), (2, 1))}
    item = Snapshot(left, 0, held=held, now_ms=1_000, records=records, waiting=2, wants=3, line=[*records])
    decided = decide(item, [Expire("default")], now_closed=closed, windows=Windows(smaller_first=smaller_first))
    after = {number: str(one.state) for number, one in records.items()}
    assert list((after | {one.after.number: str(one.after.state) for one in decided.changes}).values()) == states


def test_a_number_in_line_without_a_record_stops_nobody() -> None:
    """The next one is served, and nobody is told that the line needs nothing."""
    records = {"2-0": Record("2-0", "s", OrderState.WAITING, 1, "b")}
    item = Snapshot(1, 0, now_ms=1_000, records=records, waiting=2, wants=1, line=["1-0", "2-0"])
    assert [one.after.number for one in decide(item, [Expire("default")]).changes] == ["2-0"]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        (False, False, HoldOutcome.ALREADY_WAITING),  # one place a name
        (True, True, HoldOutcome.ALREADY_WAITING),
        (False, True, HoldOutcome.WAITING),  # a stranger's place keeps the buyer out of nothing
        (True, False, HoldOutcome.SOLD_OUT),  # and a stranger learns nothing of the buyer's
    ],
)
def test_a_name_alone_proves_nothing_in_line(before: bool, first: bool, second: bool, outcome: HoldOutcome) -> None:
    """Two get in line in one name, in one batch or one after the other; each is proven, or is not."""
    own = Record("1-0", "s", OrderState.WAITING, 1, "ann", proven=first)
    there: dict[str, Any] = (
        {"records": {"1-0": own}, "open": {"ann": "1-0"}, "waiting": 1, "wants": 1} if before else {}
    )
    wishes = [Hold(1, buyer="ann", wait=True, proven=one) for one in ((second,) if before else (first, second))]
    told = decide(Snapshot(0, 0, held=9, now_ms=1_000, **there), wishes).decisions[-1]
    assert told.outcome is outcome
    assert (told.record, told.repeats) == (None, None) or second


def basket(due_ms: int = 1_500) -> tuple[Record, Record]:
    """An order of one `a` that is held, and its line of one `b`."""
    about: dict[str, Any] = {"pay_by_ms": due_ms, "due_ms": due_ms}
    order = Record("1-0", "s", OrderState.HELD, 1, lines=(Line("b", 1, number="2-0"),), **about)
    return order, Record("2-0", "t", OrderState.HELD, 1, part_of="a~1-0", **about)


@pytest.mark.parametrize(("read_at_ms", "expired"), [(1_499, []), (1_500, ["a", "b"])])
def test_a_line_ends_by_the_clock_of_its_order(read_at_ms: int, expired: list[str]) -> None:
    """The first item was read a moment before the line's, and then its order was not due."""
    order, line = basket()
    first = Snapshot(0, 0, held=1, now_ms=read_at_ms, records={"1-0": order})
    other = Snapshot(0, 0, held=1, now_ms=2_000, records={"2-0": line}, due=["2-0"])
    decided = decide_together({"a": Basis(first), "b": Basis(other)}, [Expire("b")])
    assert [sku for sku, one in decided.items() if one.changes] == expired


@pytest.mark.parametrize(("pay_ms", "pay_by_ms"), [(50_000, 50_000), (5_000, 9_000)])
def test_an_order_is_extended_as_its_shortest_item_allows(pay_ms: int, pay_by_ms: int) -> None:
    """The buyer pays once, for all of them; and has no less time than before, if the terms are others now."""
    order, line = basket(9_000)
    items = {
        "a": Basis(Snapshot(0, 0, held=1, records={"1-0": order}), windows=Windows(pay_ms=80_000, grace_ms=5)),
        "b": Basis(Snapshot(0, 0, held=1, records={"2-0": line}), windows=Windows(pay_ms=pay_ms, grace_ms=7)),
    }
    found = decide_together(items, [Extend("a", "1-0", "s")])["a"].decisions[0]
    assert found.record is not None
    assert (found.record.pay_by_ms, found.record.due_ms) == (pay_by_ms, pay_by_ms + 5)


@pytest.mark.parametrize(("had", "outcome"), [((0, 1, 1), HoldOutcome.HELD), ((1, 1, 1), HoldOutcome.LIMIT_REACHED)])
def test_a_limit_over_three_items(had: tuple[int, ...], outcome: HoldOutcome) -> None:
    """All of them count, whichever is bought."""
    terms = Terms(limit_group="3 b c")
    items = {
        sku: Basis(Snapshot(9, 0, bought={"ann": count}), terms=terms)
        for sku, count in zip(("a", "b", "c"), had, strict=True)
    }
    assert decide_together(items, [Hold(1, "a", "ann")])["a"].decisions[0].outcome is outcome


EUR: Any = {"price": 5, "currency": "EUR"}


@pytest.mark.parametrize(
    ("other", "about", "outcome", "line"),
    [
        (Basis(Snapshot(9, 0), terms=Terms(starts_at=20.0)), {}, HoldOutcome.NOT_STARTED, "b"),
        (Basis(Snapshot(9, 0), terms=Terms(starts_at=10.0)), {}, HoldOutcome.HELD, None),
        (Basis(Snapshot(9, 0), terms=Terms(paused="wait")), {}, HoldOutcome.PAUSED, "b"),
        (Basis(Snapshot(9, 0)), {"closed": [Outcome.ENDED, None]}, HoldOutcome.ENDED, "a"),
        (Basis(Snapshot(0, 0)), {}, HoldOutcome.SOLD_OUT, "b"),
        (Basis(Snapshot(9, 0, bought={"ann": 1}), limit_per_buyer=1), {}, HoldOutcome.LIMIT_REACHED, "b"),
        (Basis(Snapshot(9, 0), windows=Windows(currency="USD")), {}, HoldOutcome.HELD, None),  # and has no price
        (Basis(Snapshot(9, 0), windows=Windows(**EUR)), {}, "items: .*: a has no price, b is paid in EUR", None),
        (None, {"errors": {"b": UnknownItem("no item 'b'")}}, "items: no item 'b'", None),
        (None, {"errors": {"b": StockCorrupt("no number")}}, "^no number", None),
        (None, {}, "items: b can't be read together", None),
    ],
)
def test_a_basket_that_can_not_be_had_takes_nothing(
    other: Basis | None, about: dict[str, Any], outcome: HoldOutcome | str, line: str | None
) -> None:
    """The answer names the first line that can't be had, or says why; the buyer may still have all units of another."""
    items = {"a": Basis(Snapshot(9, 0), limit_per_buyer=9)} | ({"b": other} if other else {})
    wishes = [Hold(1, "a", "ann", lines=(("b", 1),)), Hold(9, "a", "ann")]
    first, second = decide_together(items, wishes, came_at=[10.0, 10.0], **{"closed": (), **about})["a"].decisions
    if not isinstance(outcome, HoldOutcome):
        with pytest.raises(SeckillError, match=outcome):
            raise first.error or AssertionError(first)
    else:
        assert (first.outcome, first.line) == (outcome, line)
    assert (second.outcome is HoldOutcome.HELD) == (outcome is not HoldOutcome.HELD)


def test_a_basket_is_held_for_the_shortest_time_of_its_items() -> None:
    """All lines end at once, with the grace; the shop's own number is that of the order alone."""
    items = {
        "a": Basis(Snapshot(9, 0, now_ms=1_000), windows=Windows(hold_ms=9_000, grace_ms=5, price=3, currency="EUR")),
        "b": Basis(Snapshot(9, 0, now_ms=1_000), windows=Windows(hold_ms=7_000, grace_ms=5, **EUR)),
    }
    decided = decide_together(items, [Hold(1, "a", ref="R", lines=(("b", 2),), request_id="r")])
    ((_, line),), order = decided["b"].lines, decided["a"].decisions[0].begins
    assert order is not None and order.lines == (Line("b", 2, 5),)
    assert [(one.pay_by_ms, one.due_ms, one.request_id) for one in (order, line)] == [(8_000, 8_005, "r")] * 2
    assert (order.ref, order.price, line.ref, line.price, line.part_of) == ("R", 3, None, 5, "a/0")


def test_a_buyer_is_shown_the_basket_that_they_began_in_this_batch() -> None:
    """Not the first order of the batch, and not for another basket; the key of one belongs to its lines."""
    items = {sku: Basis(Snapshot(9, 0), limit_per_buyer=2) for sku in "ab"}
    about: Any = {"buyer": "ann", "proven": True}
    first = [Hold(1, "a", "bob"), Hold(1, "a", lines=(("b", 2),), key="k", **about)]
    wishes = [
        Hold(1, "a", lines=(("b", 2),), **about),
        Hold(1, "a", lines=(("b", 1),), **about),
        Hold(1, "a", lines=(("b", 1),), key="k", **about),
        first[1],
    ]
    same, another, reused, again = decide_together(items, [*first, *wishes])["a"].decisions[2:]
    assert (same.outcome, same.repeats) == (HoldOutcome.ALREADY_HELD, 1)
    assert (another.outcome, another.line) == (HoldOutcome.LIMIT_REACHED, "b")
    assert isinstance(reused.error, KeyReused)
    assert (again.outcome, again.repeats) == (None, 1)


def test_a_place_in_line_is_told_again() -> None:
    """Whoever asks once more, with the key or as the proven buyer, hears how many are before them."""
    records = {f"{n}-0": Record(f"{n}-0", "s", OrderState.WAITING, 1, f"b{n}", ref="R", proven=True) for n in (1, 2)}
    settled = {" hold k": Settled(HoldOutcome.WAITING, 1, "b2", OrderId("default", "2-0"))}
    about: Any = {"records": records, "waiting": 2, "line": [*records], "open": {"b2": "2-0"}, "settled": settled}
    snapshot = Snapshot(0, 0, held=3, now_ms=1_000, first_due_ms=5_000, **about)
    item, unanswered = Item("default"), cast(Any, Future())
    wishes = [Hold(1, buyer="b2", key=key, ref="R", wait=True, proven=True) for key in ("k", None)]
    entries = [Entry(wish, item, unanswered, 0.0, bool) for wish in wishes]
    (part,) = decide_parts("b", {item: snapshot}, entries, Clocked(Terms()))
    assert [cast(Answer, answer).place for _, answer in part.answers([])] == [Place(2, 3, 5.0)] * 2


@pytest.mark.parametrize(("errors", "why"), [({"b": StockCorrupt("no number")}, "^no number"), ({}, "items: b can't")])
def test_an_order_of_which_a_line_can_not_be_read_stays(errors: dict[str, SeckillError], why: str) -> None:
    """Its units would go one way, and those of the line another."""
    items = {"a": Basis(Snapshot(0, 0, held=1, records={"1-0": basket()[0]}))}
    decided = decide_together(items, [Cancel("a", "1-0", "s")], errors=errors)["a"]
    assert decided.changes == []
    with pytest.raises(SeckillError, match=why):
        raise decided.decisions[0].error or AssertionError(decided)


@pytest.mark.parametrize(("now_ms", "outcome"), [(1_999, ExtendOutcome.EXTENDED), (2_000, ExtendOutcome.EXPIRED)])
def test_a_hold_is_over_at_its_end(now_ms: int, outcome: ExtendOutcome) -> None:
    """Whether or not somebody has given its units back by then."""
    held = Snapshot(0, 0, held=1, records={"1-0": Record("1-0", "s", OrderState.HELD, 1, due_ms=2_000)}, now_ms=now_ms)
    assert outcomes(decide(held, [Extend("default", "1-0", "s")]).decisions) == [outcome]


def test_a_purchase_is_answered_once_more_as_before() -> None:
    """A hold is told with the present state of its order, and a purchase without."""
    settled = Settled(Outcome.SOLD, 2, None, OrderId("default", "1-0"))
    later = {"1-0": Record("1-0", "s", OrderState.SOLD, 1)}
    told = decide(Snapshot(5, 0, settled={"k": settled}, records=later), [Purchase(2, key="k")]).decisions
    assert told == [Decision(settled=settled)]


def test_a_line_is_no_order_of_its_own() -> None:
    """Whoever knows its number and secret changes nothing: it goes with its order."""
    item = Snapshot(0, 0, held=1, records={"2-0": basket()[1]})
    assert outcomes(decide(item, [Cancel("b", "2-0", "t")]).decisions) == [CancelOutcome.NOT_FOUND]


@pytest.mark.parametrize(("waiting", "outcome"), [(9_999, HoldOutcome.WAITING), (10_000, HoldOutcome.SOLD_OUT)])
def test_a_line_has_so_many_places(waiting: int, outcome: HoldOutcome) -> None:
    wish = Hold(1, buyer="ann", wait=True)
    assert outcomes(decide(Snapshot(0, 0, held=1, waiting=waiting), [wish]).decisions) == [outcome]


def test_units_that_come_back_in_a_batch_are_for_those_who_wait_since_it() -> None:
    """Who asks twice in it is told of the hold; and a count that is too low makes no room beyond the limit."""
    bobs = Record("1-0", "s", OrderState.HELD, 1, "bob")
    item = Snapshot(0, 0, held=1, now_ms=1_000, records={"1-0": bobs}, bought={"bob": 0})
    ann, gone = Hold(1, buyer="ann", wait=True, proven=True), Cancel("default", "1-0", "s")
    told = decide(item, [ann, ann, gone]).decisions
    assert outcomes(told) == [HoldOutcome.HELD, HoldOutcome.ALREADY_HELD, CancelOutcome.CANCELLED]
    again = decide(replace(item, stock=5), [gone, Hold(2, buyer="bob")], limit_per_buyer=1).decisions
    assert outcomes(again) == [CancelOutcome.CANCELLED, HoldOutcome.LIMIT_REACHED]


def test_a_late_payment_of_nothing_is_late_once_for_all() -> None:
    """Nothing of it is owed; told again, it does not count after all."""
    late = Payment("p", 0, "EUR", PaymentState.LATE)
    item = Snapshot(5, 0, records={"1-0": Record("1-0", "s", OrderState.EXPIRED, 1, payments=(late,))})
    decided = decide(replace(item, payments={"p": "1-0"}), [Confirm("default", "1-0", "s", "p", 0, "EUR")])
    assert (outcomes(decided.decisions), decided.changes) == ([ConfirmOutcome.REFUND_DUE], [])

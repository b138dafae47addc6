"""The decision gives units to purchases; `test_orders_model` has the rest of it."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.errors import KeyReused
from app.orders import (
    Command,
    EventKind,
    Expire,
    ExpiryOutcome,
    Extend,
    ExtendOutcome,
    OrderId,
    OrderState,
    Outcome,
    Purchase,
    Record,
    Settled,
    Snapshot,
    Terms,
    decide,
)
from app.orders.decision import Decision, outside


def outcomes(decisions: list[Decision]) -> list[object]:
    return [decision.outcome for decision in decisions]


def test_the_example_of_the_articles() -> None:
    """There are 4 units: the first buyer wants 3 and gets them, the second wants 2 and gets none, the third gets 1."""
    decisions = decide(Snapshot(4, 0), [Purchase(3), Purchase(2), Purchase(1)]).decisions
    assert outcomes(decisions) == [Outcome.SOLD, Outcome.SOLD_OUT, Outcome.SOLD]


@given(stock=st.integers(0, 60), buyers=st.integers(0, 80), data=st.data())
def test_the_sum_does_not_depend_on_the_order(stock: int, buyers: int, data: st.DataObject) -> None:
    """Buyers of one unit each get min(stock, demand), in any order and split into any batches."""
    crowd = [Purchase(buyer=f"buyer-{number}") for number in range(buyers)]
    line = data.draw(st.permutations(crowd))
    cut = data.draw(st.integers(0, buyers))
    first = outcomes(decide(Snapshot(stock, 0), line[:cut]).decisions).count(Outcome.SOLD)
    second = outcomes(decide(Snapshot(stock - first, first), line[cut:]).decisions).count(Outcome.SOLD)
    assert first + second == min(stock, buyers)


def test_a_settled_key_gets_its_answer_again() -> None:
    """A key that the store knows gets the same answer, without units, even if units are there by now."""
    sold = Settled("sold", 1, "ann", OrderId("default", "1-1", "s"))
    refused = Settled("sold_out", 1, "bob")
    snapshot = Snapshot(5, 1, settled={"a": sold, "b": refused})
    line = [Purchase(1, buyer="ann", key="a"), Purchase(1, buyer="bob", key="b")]
    others = [Purchase(2, buyer="ann", key="a"), Purchase(1, buyer="bob", key="a"), Purchase(1, key="a")]
    decisions = decide(snapshot, line + others).decisions
    assert decisions[:2] == [Decision(settled=sold), Decision(settled=refused)]
    assert [type(decision.error) for decision in decisions[2:]] == [KeyReused] * 3


def test_what_only_the_stores_clock_ends_stays_held() -> None:
    """Of the holds that are due by it, those go back that are due by the other one; the others can be extended."""
    ends = {"1-1": 1_000, "1-2": 2_000, "1-3": 9_000}
    records = {
        number: Record(number, "s", OrderState.HELD, 1, pay_by_ms=due_ms, due_ms=due_ms)
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

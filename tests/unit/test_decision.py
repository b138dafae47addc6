"""The decision gives units to purchases."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.errors import BuyerRequired, KeyReused
from app.orders import (
    Command,
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
    Purchase,
    Record,
    Settled,
    Snapshot,
    decide,
)
from app.orders.decision import Decision, Windows

quantities = st.lists(st.integers(1, 8), max_size=60)
purchases = st.lists(
    st.builds(
        Purchase,
        quantity=st.integers(1, 5),
        buyer=st.one_of(st.none(), st.sampled_from(["ann", "bob", "cid"])),
        key=st.one_of(st.none(), st.sampled_from([f"k{number}" for number in range(8)])),
    ),
    max_size=40,
)


def outcomes(decisions: list[Decision]) -> list[object]:
    return [decision.outcome for decision in decisions]


def test_the_example_of_the_articles() -> None:
    """There are 4 units: the first buyer wants 3 and gets them, the second wants 2 and gets none, the third gets 1."""
    decisions = decide(Snapshot(4, 0), [Purchase(3), Purchase(2), Purchase(1)]).decisions
    assert outcomes(decisions) == [Outcome.SOLD, Outcome.SOLD_OUT, Outcome.SOLD]


@given(stock=st.integers(0, 100), wanted=quantities)
def test_never_oversells(stock: int, wanted: list[int]) -> None:
    """No more units are sold than there are."""
    decisions = decide(Snapshot(stock, 0), [Purchase(quantity) for quantity in wanted]).decisions
    assert sum(q for q, v in zip(wanted, decisions, strict=True) if v.outcome is Outcome.SOLD) <= stock


@given(stock=st.integers(0, 100), wanted=quantities)
def test_never_undersells(stock: int, wanted: list[int]) -> None:
    """Nobody is refused units that were there when their turn came."""
    left = stock
    for quantity, decision in zip(
        wanted, decide(Snapshot(stock, 0), [Purchase(q) for q in wanted]).decisions, strict=True
    ):
        assert (decision.outcome is Outcome.SOLD) == (quantity <= left)
        left -= quantity if decision.outcome is Outcome.SOLD else 0


@given(stock=st.integers(0, 60), buyers=st.integers(0, 80), data=st.data())
def test_the_sum_does_not_depend_on_the_order(stock: int, buyers: int, data: st.DataObject) -> None:
    """Buyers of one unit each get min(stock, demand), in any order and split into any batches."""
    crowd = [Purchase(buyer=f"buyer-{number}") for number in range(buyers)]
    line = data.draw(st.permutations(crowd))
    cut = data.draw(st.integers(0, buyers))
    first = outcomes(decide(Snapshot(stock, 0), line[:cut]).decisions).count(Outcome.SOLD)
    second = outcomes(decide(Snapshot(stock - first, first), line[cut:]).decisions).count(Outcome.SOLD)
    assert first + second == min(stock, buyers)


@given(stock=st.integers(0, 60), line=purchases, limit=st.integers(0, 6))
def test_a_key_buys_once(stock: int, line: list[Purchase], limit: int) -> None:
    """Of the purchases with one key at most one is decided; the others repeat it or hear that the key is taken."""
    decisions = decide(Snapshot(stock, 0), line, limit_per_buyer=limit).decisions
    decided: dict[str, int] = {}
    for index, (purchase, decision) in enumerate(zip(line, decisions, strict=True)):
        if purchase.key is None or isinstance(decision.error, BuyerRequired):
            continue
        if purchase.key not in decided:
            assert decision.outcome is not None
            decided[purchase.key] = index
            continue
        first = line[decided[purchase.key]]
        if (first.quantity, first.buyer) == (purchase.quantity, purchase.buyer):
            assert decision == Decision(repeats=decided[purchase.key])
        else:
            assert isinstance(decision.error, KeyReused)


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


@given(line=purchases, limit=st.integers(1, 6), had=st.integers(0, 6))
def test_the_limit_per_buyer_holds(line: list[Purchase], limit: int, had: int) -> None:
    """Nobody gets more units than the limit, including earlier ones; a buyer without a name gets none."""
    snapshot = Snapshot(1000, 0, bought={"ann": had})
    units = {"ann": had}
    for purchase, decision in zip(line, decide(snapshot, line, limit_per_buyer=limit).decisions, strict=True):
        if purchase.buyer is None:
            assert decision.outcome is not Outcome.SOLD
        elif decision.outcome is Outcome.SOLD:
            units[purchase.buyer] = units.get(purchase.buyer, 0) + purchase.quantity
            assert units[purchase.buyer] <= limit
        elif decision.outcome is Outcome.LIMIT_REACHED:
            assert units.get(purchase.buyer, 0) + purchase.quantity > limit


@given(line=purchases, stock=st.integers(0, 60), limit=st.integers(0, 5), price=st.integers(0, 10**6))
def test_what_has_a_price_is_held(line: list[Purchase], stock: int, limit: int, price: int) -> None:
    """Nothing of it is sold at once, whatever the rest of the batch is, and a purchase takes no unit from a hold."""
    commands: list[Command] = [Hold(1, buyer="dan"), *line] if stock else [*line]
    decided = decide(
        Snapshot(stock, 0), commands, limit_per_buyer=limit, windows=Windows(price=price, currency="EUR")
    ).decisions
    held, rest = decided[: len(commands) - len(line)], decided[len(commands) - len(line) :]
    assert [one.outcome for one in held] == [HoldOutcome.HELD] * len(held)
    assert {one.outcome for one in rest if one.error is None and one.repeats is None} <= {Outcome.HOLD_REQUIRED}


def test_what_only_the_stores_clock_ends_stays_held() -> None:
    """Of the holds that are due by it, those go back that are due by the other one; the others can be extended."""
    ends = {"1-1": 1_000, "1-2": 2_000, "1-3": 9_000}
    records = {
        number: Record(number, "s", OrderState.HELD, 1, pay_by_ms=due_ms, due_ms=due_ms)
        for number, due_ms in ends.items()
    }
    about: dict[str, Any] = {"held": 3, "records": records, "due": [*ends], "more_due": True, "now_ms": 90_000}
    wishes: list[Command] = [Expire("default"), Extend("default", "1-3", "s")]
    decided = decide(Snapshot(0, 0, **about), wishes, due_by_ms=3_000)
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

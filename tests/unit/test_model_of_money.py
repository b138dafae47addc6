"""The model of an order's life is explored completely; and without any one mechanism a promise breaks."""

from html import escape

import pytest

from lab.model.money import BREAKS, SCOPES, SMALLEST, Money, MoneyScope, Safeguard
from lab.model.picture import draw
from lab.model.search import explore

# The least number of steps in which a promise breaks without the mechanism.
STEPS = {
    Safeguard.FENCE: 7,
    Safeguard.EVENTS_COMPARED: 7,
    Safeguard.STILL_HELD: 8,
    Safeguard.MOVED_DEADLINE: 7,
    Safeguard.EXPIRY_BY_ORDER: 7,
    Safeguard.EXPIRY_LOOKS: 3,
    Safeguard.PAYMENT_BY_ORDER: 8,
    Safeguard.PAID_ONCE: 8,
    Safeguard.REFERENCE: 7,
    Safeguard.LATE_UNIT: 8,
    Safeguard.LATE_REFUND: 6,
    Safeguard.AMOUNT: 5,
    Safeguard.WRONG_OWED: 7,
    Safeguard.GIVEN_BACK: 9,
    Safeguard.JOURNAL: 8,
    Safeguard.SENT_FIRST: 8,
    Safeguard.IN_ORDER: 5,
    Safeguard.MARKS_OF_CHANGES: 6,
}


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES[:3], ids=str)
def test_every_promise_is_kept(scope: MoneyScope) -> None:
    """Every promise holds in each state that can be reached with all mechanisms."""
    found = explore(Money(scope))
    assert found.violation == "", found.history
    assert found.states > 8000


@pytest.mark.parametrize("scope", sorted(set(SMALLEST.values()) - {SMALLEST[Safeguard.FENCE]}), ids=str)
def test_every_promise_is_kept_where_a_mechanism_is_missed(scope: MoneyScope) -> None:
    """With all mechanisms nothing breaks in the scopes that show what each is for."""
    assert explore(Money(scope)).violation == ""


@pytest.mark.parametrize("mechanism", Safeguard)
def test_each_mechanism_is_missed(mechanism: Safeguard) -> None:
    """Without the mechanism a promise is broken, and the history can be drawn."""
    model = Money.lacking(mechanism)
    found = explore(model)
    assert found.violation == BREAKS[mechanism]
    assert len(found.history) == STEPS[mechanism]
    assert all({note.by, note.to} <= {*model.lanes, ""} for note, _ in found.history)
    assert f"✗ {escape(found.violation)}" in draw(model, found, mechanism)


@pytest.mark.parametrize("scope", [MoneyScope(buyers=2, asks=2), MoneyScope(asks=2, units=2)], ids=str)
def test_behind_a_fence_nothing_is_left_to_compare(scope: MoneyScope) -> None:
    """With the fence the same states are reached whether or not the events of an order are compared."""
    compared, not_compared = explore(Money(scope)), explore(Money(scope, without={Safeguard.EVENTS_COMPARED}))
    assert compared.violation == not_compared.violation == ""
    assert compared.states == not_compared.states

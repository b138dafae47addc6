"""The model of the protocol is explored completely; and without any one mechanism a promise breaks."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from lab.model.picture import draw
from lab.model.protocol import BREAKS, SCOPES, SMALLEST, Mechanism, Protocol, Scope, State, canonical
from lab.model.search import SearchResult, TooManyStates, explore

# The least number of steps in which a promise breaks without the mechanism.
STEPS = {
    Mechanism.LOCK: 13,
    Mechanism.LEASE: 6,
    Mechanism.TOKENS: 17,
    Mechanism.FENCE_AT_READ: 18,
    Mechanism.FENCE_AT_WRITE: 16,
    Mechanism.COMPARE: 9,
    Mechanism.KEYS: 15,
    Mechanism.DOUBT: 11,
    Mechanism.SETTLE: 16,
    Mechanism.ANSWER_LAST: 7,
    Mechanism.MARKS: 18,
    Mechanism.APART: 18,
}
SLOW = {Mechanism.LOCK, Mechanism.TOKENS, Mechanism.MARKS, Mechanism.APART}  # they take some seconds each


def without(mechanism: Mechanism) -> tuple[Protocol, SearchResult[State]]:
    protocol = Protocol(SMALLEST.get(mechanism, Scope()), without=frozenset({mechanism}))
    return protocol, explore(protocol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scope", SCOPES[:3], ids=str)
def test_the_whole_protocol_keeps_every_promise(scope: Scope) -> None:
    """Every promise holds in each state that can be reached with a fault of any kind."""
    found = explore(Protocol(scope))
    assert found.violation == "", found.history
    assert found.states > 20_000


def test_without_faults_every_promise_is_kept() -> None:
    """Every promise holds without faults, too, which takes a second to explore."""
    assert explore(Protocol(Scope(faults=0))).violation == ""


@pytest.mark.parametrize(
    "mechanism", [pytest.param(one, marks=[pytest.mark.exhaustive] if one in SLOW else []) for one in Mechanism]
)
def test_each_mechanism_is_missed(mechanism: Mechanism) -> None:
    """Without the mechanism a promise is broken; a mechanism that is not needed would be deleted."""
    steps = STEPS[mechanism]
    _, found = without(mechanism)
    assert found.violation == BREAKS[mechanism]
    assert len(found.history) == steps


@pytest.mark.exhaustive
def test_tokens_that_are_dealt_out_again_do_no_harm() -> None:
    """Where lock and stock go back together, it is only the lost order that nobody misses."""

    class Lenient(Protocol):
        def violation(self, state: State) -> str:
            broken = super().violation(state)
            return "" if broken == BREAKS[Mechanism.APART] else broken

    found = explore(Lenient(Scope(), without={Mechanism.APART}))
    assert found.violation == "", found.history
    assert found.states > 100_000


def test_a_history_is_made_of_steps_that_there_are() -> None:
    """Each state of a history follows from the one before."""
    protocol, found = without(Mechanism.DOUBT)
    states = [protocol.start, *(state for _, state in found.history)]
    for before, after in pairwise(states):
        ways = (protocol.steps, protocol.options, protocol.mishaps)
        assert after in {canonical(state) for way in ways for _, state in way(before)}


def test_a_picture_has_each_step_and_what_it_came_to() -> None:
    """The picture is an SVG that a browser can read."""
    protocol, found = without(Mechanism.LEASE)
    picture = draw(protocol, found, Mechanism.LEASE)
    texts = [element.text or "" for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "Without lease" in texts[0]
    assert [text for text in texts if text.startswith("5. crashes")]
    assert texts[-1] == "✗ Ann waits for ever"


def test_too_many_states_are_said() -> None:
    """A search beyond the limit reports that, and gives no verdict."""
    with pytest.raises(TooManyStates, match="more than 1,000 states"):
        explore(Protocol(Scope()), most=1000)

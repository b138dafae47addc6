"""The picture of an order's life shows what the decision does, and nothing else."""

from itertools import product

import pytest

from app.main import create_app
from app.orders import NO_UNITS, Event, EventKind, GivenBack, Incident, OrderState, Refund, RequestRefund, life
from app.orders.record import Line
from app.orders.view import OrderEventData, OrderEventView, of_event
from app.settings import Settings
from lab import events
from lab.life import ARROWS, LOOPS, Arrow
from tests.harness.lives import begun, changes

OF_MONEY = {
    *(EventKind.REFUND_REQUESTED, EventKind.REFUND_FAILED, EventKind.REFUND_NAMED),
    *(EventKind.DISPUTED, EventKind.DISPUTE_WON, EventKind.DISPUTE_LOST),
}


@pytest.mark.slow
def test_the_picture_shows_every_change_and_no_other() -> None:
    """All commands in all states: what was seen is drawn, and what is drawn was seen."""
    seen = {Arrow(None, type(command), EventKind(record.state), record.state) for command, record in begun()}
    for command, one in changes():
        by = Refund if isinstance(command, GivenBack) else type(command)  # it is the provider's word for one
        arrow = Arrow(one.before.state, by, one.kind, one.after.state)
        is_drawn = by not in (RequestRefund, Incident) and one.kind is not EventKind.REFUND_NAMED
        if is_drawn or arrow.before is not arrow.after:
            seen.add(arrow)
    assert seen == ARROWS.keys() | LOOPS.keys()


def test_the_journal_tells_what_was_decided() -> None:
    """A reader of the events alone comes to the same states and units; what no decision makes is refused."""
    kinds = {(one.before.state, one.kind) for _, one in changes()} | {
        (None, EventKind(one.state)) for _, one in begun()
    }
    for _, record in begun():
        found = life.step(None, EventKind(record.state), record.quantity, record.facts)
        assert found is not None
        assert found[:2] == (record.state, record.units)
    for _, one in changes():
        found = life.step(one.before.state, one.kind, one.after.quantity, one.facts)
        assert found == (one.after.state, one.units, one.bought), (one.before, one.kind, one.facts)
    for state, kind in product((None, *OrderState), EventKind):
        late = kind in OF_MONEY and state is not None  # these come whenever the provider or the cashier says so
        assert bool(life.step(state, kind, 1, {"restock": False})) <= ((state, kind) in kinds or late), (state, kind)


def test_an_arrow_leads_elsewhere_and_a_loop_does_not() -> None:
    """The picture has arrows between its boxes, and lists in them what leaves the state as it is."""
    assert all(one.before is not one.after for one in ARROWS)
    assert all(one.before is one.after for one in LOOPS)


def test_the_description_of_events_has_all_that_they_say() -> None:
    """Each event that the decision makes is an `OrderEventView`, which misses none of its facts."""
    document = create_app(Settings(_env_file=None)).openapi()
    assert document["webhooks"].keys() == {f"order.{kind}" for kind in EventKind}
    facts = [(EventKind(record.state), record.facts, record) for _, record in begun()]
    facts += [(one.kind, one.facts, one.after) for _, one in changes()]
    basket = next(record for _, record in begun() if record.state is OrderState.HELD)._replace(lines=(Line("case", 2),))
    part = life.changed(basket, EventKind.CANCELLED, {"about": "units", "units": 1, "line": "case"})
    facts.append((part.kind, part.facts, part.after))
    seen: set[str] = set()
    for kind, said, record in facts:
        order = record.id_of("default")
        event = Event("1-0", kind, order, 1, 1, "ann", None, 0.0, "a", 1, "b", 0, NO_UNITS, said)
        body = of_event(event, record.ref)
        assert OrderEventView.model_validate(body, strict=False).data.state == record.state
        seen |= body["data"].keys()
    assert seen <= OrderEventData.model_fields.keys()
    assert OrderEventData.model_fields.keys() - seen == {"traceparent"}


def test_the_reference_has_every_event() -> None:
    """What the decision writes has a row and an example, and nothing else has."""
    written = {(EventKind(record.state), "order") for _, record in begun()}
    for _, one in changes():
        event = Event(
            "1-0", one.kind, one.after.id_of("lamp"), 1, 1, "ann", None, 0.0, "a", 1, "b", 0, NO_UNITS, one.facts
        )
        written.add((one.kind, of_event(event, None)["data"]["about"]))
    assert written == events.WHEN.keys() == events.examples().keys()

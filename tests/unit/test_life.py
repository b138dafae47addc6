"""The picture of an order's life shows what the decision does, and nothing else."""

from app.orders import EventKind
from lab.life import ARROWS, LOOPS, Arrow
from tests.harness.lives import begun, changes


def test_the_picture_shows_every_change_and_no_other() -> None:
    """All commands in all states: what was seen is drawn, and what is drawn was seen."""
    seen = {Arrow(None, type(command), EventKind(record.state), record.state) for command, record in begun()}
    seen |= {Arrow(one.before.state, type(command), one.kind, one.after.state) for command, one in changes()}
    assert seen == ARROWS.keys() | LOOPS.keys()


def test_an_arrow_leads_elsewhere_and_a_loop_does_not() -> None:
    """The picture has arrows between its boxes, and lists in them what leaves the state as it is."""
    assert all(one.before is not one.after for one in ARROWS)
    assert all(one.before is one.after for one in LOOPS)

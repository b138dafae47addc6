"""What a batch does about orders that are there, where the model (`test_orders_model`) has no way to come."""

from app.orders import Confirm, ConfirmOutcome, OrderState, Record, Settled, Snapshot, decide
from app.orders.commands import fingerprint

SECRET = 32 * "a"
NOW_MS = 1_000_000


def test_a_wrong_secret_is_shown_nothing_the_second_time_either() -> None:
    """A key that was answered "not found" is so again: the order is not shown to somebody who can't open it."""
    order = Record("1", SECRET, OrderState.HELD, 1, "ann", pay_by_ms=2 * NOW_MS, due_ms=2 * NOW_MS, price=5)
    wish = Confirm("default", "1", "b" * 32, "p1", 5, key="k")
    key = " confirm k"
    settled = Settled(ConfirmOutcome.NOT_FOUND, *fingerprint(wish), None)
    snapshot = Snapshot(0, 0, held=1, records={"1": order}, now_ms=NOW_MS, settled={key: settled})
    [decision] = decide(snapshot, [wish]).decisions
    assert decision.settled is settled and decision.record is None

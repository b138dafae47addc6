"""What the judge makes of an order's events is what the program makes of them, whatever happens to its money."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.orders import Command, EventKind, Hold, Incident, OrderId, Record, Refund, Snapshot, decide, view
from app.orders.account import PROVIDER
from app.orders.commands import Cancel, Confirm, Expire, GivenBack, RequestRefund
from app.orders.decision import Windows
from lab.torture.history import Entry
from lab.torture.standing import standings

PRICE, ORDER = 499, OrderId("lamp", "1-0", "s" * 32)
WINDOWS = Windows(price=PRICE, currency="EUR")
REFS, NAMES, IDS = st.sampled_from("pq"), st.sampled_from(["r0", "r1", "r2"]), st.sampled_from(["re_1", "re_2", None])
AMOUNTS, CURRENCIES = st.sampled_from([PRICE, 2 * PRICE, 100, 1, None]), st.sampled_from(["EUR", "EUR", "USD", None])
FLAGS = st.booleans()
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(lambda ref, amount, currency: Confirm(*ORDER, ref, amount, currency), REFS, AMOUNTS, CURRENCIES),
    st.builds(
        lambda ref, amount, units, later, away: Refund(
            *ORDER, True, ref, "ann", amount, units, None, later, None, away
        ),
        *(st.none() | REFS, AMOUNTS, st.sampled_from([None, None, 1]), FLAGS, FLAGS),
    ),
    st.builds(
        lambda ref, amount, currency, own: GivenBack(*ORDER, ref, PROVIDER, amount, None, False, currency, own),
        *(REFS, AMOUNTS, CURRENCIES, IDS),
    ),
    st.builds(lambda name, again: RequestRefund(*ORDER, name, again=again), NAMES, FLAGS),
    st.builds(
        lambda kind, ref, amount, own, name: Incident(*ORDER, kind, ref, amount, own, name, by=PROVIDER),
        *(
            st.sampled_from(
                [EventKind.REFUND_FAILED, EventKind.DISPUTED, EventKind.DISPUTE_WON, EventKind.DISPUTE_LOST]
            ),
        ),
        *(REFS, AMOUNTS, IDS, st.none() | NAMES),
    ),
    st.sampled_from([Cancel(*ORDER), Cancel(*ORDER, units=1), Expire("lamp")]),
)


@given(commands=st.lists(COMMANDS, max_size=14))
def test_the_judge_adds_up_as_the_program_does(commands: Sequence[Command]) -> None:
    """After each event the sums, the changes, the state, and all that is shown are what the events alone say."""
    names = map("r{}".format, count())
    [begun] = decide(Snapshot(9, 0, now_ms=1_000), [Hold(2, "lamp", "ann")], windows=WINDOWS).decisions
    assert begun.begins is not None
    record = begun.begins._replace(number=ORDER.number, secret=ORDER.secret)
    entries, records = [entry("held", record, record.facts)], [record]
    for command in commands:
        about: dict[str, Any] = {"records": {record.number: record}, "due": [record.number]}
        about["payments"] = {one.ref: record.number for one in record.payments}
        snapshot = Snapshot(9, 0, now_ms=2_000, **about | ({} if isinstance(command, Expire) else {"due": []}))
        for change in decide(snapshot, [command], windows=WINDOWS, fresh=names.__next__).changes:
            record = change.after
            entries.append(entry(str(change.kind), record, change.facts))
            records.append(record)
    for one, after, stood in zip(entries, records, standings(entries), strict=True):
        assert stood.shown == view.standing(ORDER, after)
        assert stood.said == {name: one.facts.get(name) for name in stood.said}
        assert stood.attention == after.needs_attention


def entry(kind: str, record: Record, facts: Any) -> Entry:
    own = (record.quantity, record.buyer, None, 1, "batch", 0, 0, 0, 0)
    return Entry("lamp", f"{record.events}-0", kind, str(ORDER), record.events, *own, dict(facts), 1.0)

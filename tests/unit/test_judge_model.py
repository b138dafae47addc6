"""The program's rule and the model of money decide alike: whatever is asked for, the journal is a run of the model."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.orders import (
    Cancel,
    Confirm,
    EventKind,
    Expire,
    Extend,
    Hold,
    OrderId,
    OrderState,
    Record,
    Refund,
    Snapshot,
    decide,
    decision,
)
from app.orders.commands import Command
from app.orders.decision import Windows
from app.orders.view import standing
from lab.model.money import Safeguard
from lab.torture.bugs import BUGS
from lab.torture.history import Entry, Flow, Item, Kept
from lab.torture.judge_model import ModelFollower

PRICE, SECRET = 499, "s" * 32
WINDOWS = Windows(hold_ms=1_000, pay_ms=3_000, grace_ms=500, price=PRICE, currency="EUR")
FLOW = Flow(Item("ticket", 4, limit=3), 1.0, 3.0, 0.5, PRICE)


class Sale:
    """A sale in memory that decides by the program's rule, and its journal."""

    def __init__(self) -> None:
        self.left, self.records, self.payments = FLOW.item.initial, dict[str, Record](), dict[str, str]()
        self.bought, self.batches, self.now_ms = dict[str, int](), list[list[Entry]](), 1_000_000

    def do(self, commands: Sequence[Command]) -> list[Entry]:
        """Do a batch, and return its entries: as in a store, orders that begin are written last."""
        held = [one for one in self.records.values() if one.state is OrderState.HELD]
        due = [one.number for one in sorted(held, key=lambda one: one.due_ms) if one.due_ms <= self.now_ms]
        numbers = {one.buyer or "": one.number for one in held}
        about: dict[str, Any] = {"records": self.records, "open": numbers, "payments": self.payments, "due": due}
        snapshot = Snapshot(self.left, 0, bought=self.bought, now_ms=self.now_ms, **about)
        decisions, changes, *_ = decide(snapshot, commands, limit_per_buyer=FLOW.item.limit, windows=WINDOWS)
        batch = list[Entry]()
        for change in changes:
            self._write(batch, change.after, change.kind, change.units, change.facts)
            if change.payment is not None:
                self.payments[change.payment] = change.after.number
            buyer = change.after.buyer or ""
            self.bought[buyer] = self.bought[buyer] + change.bought
        for one in decisions:
            if one.begins is not None:
                number = f"{len(self.records) + 1}-0"
                record = one.begins._replace(number=number, secret=SECRET)
                self.bought[record.buyer or ""] = self.bought.get(record.buyer or "", 0) + record.quantity
                self._write(batch, record, EventKind.HELD, (-record.quantity, record.quantity, 0), {})
        self.batches.append(batch)
        return batch

    def _write(self, batch: list[Entry], record: Record, kind: EventKind, units: Any, facts: Any) -> None:
        self.records[record.number] = record
        self.left += units[0]
        name, at = f"ticket~{record.number}", self.now_ms / 1000
        batch_id = str(len(self.batches))
        written = (record.events, record.quantity, record.buyer, None, 1, batch_id, 0, *units, dict(facts), at)
        batch.append(Entry("ticket", f"{batch_id}/{len(batch)}", str(kind), name, *written))

    def kept(self) -> list[Kept]:
        """Return how the orders stand."""
        return [
            Kept(f"ticket~{one.number}", one.events, standing(one.id_of("ticket"), one))
            for one in self.records.values()
        ]


ANN, BOB, CEM = (OrderId("ticket", f"{number}-0", SECRET) for number in (1, 2, 3))
ABOUT: st.SearchStrategy[OrderId] = st.integers(1, 4).map(lambda number: OrderId("ticket", f"{number}-0", SECRET))
REFS = st.sampled_from(["p", "q", "r", "s"])


def confirm(about: OrderId, ref: str, units: int) -> Confirm:
    return Confirm(*about, ref, PRICE * units, "EUR")


def refund(about: OrderId, restock: bool, ref: str | None) -> Refund:
    return Refund(*about, restock, ref)


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(lambda units, buyer: Hold(units, "ticket", buyer), st.integers(1, 2), st.sampled_from(["ann", "bob"])),
    ABOUT.map(lambda about: Extend(*about)),
    ABOUT.map(lambda about: Cancel(*about)),
    st.builds(refund, ABOUT, st.booleans(), st.none() | REFS),
    st.builds(confirm, ABOUT, REFS, st.sampled_from([1, 1, 1, 2])),
    st.just(Expire("ticket")),
)
WAITS_MS = st.sampled_from([0, 0, 0, 400, 1_600, 4_000])
ACTS = st.lists(st.tuples(WAITS_MS, st.lists(COMMANDS, min_size=1, max_size=3)), max_size=12)


def asked(sale: Sale, command: Command) -> Entry | None:
    """Return the entry that a command would have if it did something; None if it is about no order that is there."""
    number = getattr(command, "number", "")
    if isinstance(command, Expire) or (number and number not in sale.records):
        return None
    kinds = {Hold: "held", Extend: "extended", Cancel: "cancelled", Confirm: "confirmed", Refund: "refunded"}
    facts: dict[str, Any] = {}
    if isinstance(command, Confirm):
        facts = {"payment_ref": command.payment_ref, "amount": command.amount}
    if isinstance(command, Refund):
        by_name = {"payment_ref": command.payment_ref} if command.payment_ref else {}
        paid = sale.records[number].payment_ref
        facts = {"restock": command.restock} if command.payment_ref in (None, paid) else by_name
    quantity, buyer = (command.quantity, command.buyer) if isinstance(command, Hold) else (1, None)
    own = (quantity, buyer or "", None, 1, "", 0, 0, 0, 0, facts)
    return Entry("ticket", "", kinds[type(command)], f"ticket~{number}", 0, *own)


# Ann's late payment would be one unit too many for her; and a payment that came back comes again.
OVER: list[tuple[int, list[Command]]] = [
    (0, [Hold(2, "ticket", "ann")]),
    (1_600, [Expire("ticket")]),
    (0, [Hold(2, "ticket", "ann")]),
    (0, [confirm(ANN, "p", 2)]),
    (0, [refund(ANN, False, "p")]),
    (0, [confirm(ANN, "p", 2)]),
]


CORRECTED: list[tuple[int, list[Command]]] = [
    (0, [Hold(1, "ticket", "ann")]),
    (0, [confirm(ANN, "p", 2), confirm(ANN, "p", 1)]),
]


@example(acts=OVER)
@example(acts=CORRECTED)
@given(acts=ACTS)
def test_the_program_and_the_model_decide_alike(acts: list[tuple[int, list[Command]]]) -> None:
    """Each batch of the program is a run of the model; what the program writes nothing for, the model does, too."""
    sale, model = Sale(), ModelFollower(FLOW)
    for wait_ms, commands in acts:
        sale.now_ms += wait_ms
        batch = sale.do(commands)
        assert model.take(batch) == ""
        if not batch and len(commands) == 1 and (entry := asked(sale, commands[0])) is not None:
            assert model.has_nothing_to_write(entry), commands
    assert not list(model.follow([], sale.kept()))


STORY: list[tuple[int, Command]] = [
    (0, Hold(2, "ticket", "ann")),
    (0, Hold(1, "ticket", "bob")),
    (0, Refund(*ANN, True, "nobody's")),
    (0, Confirm(*ANN, "p", PRICE, "EUR")),  # too little
    (0, Confirm(*ANN, "p", PRICE, "EUR")),  # the same notice
    (500, Extend(*BOB)),
    (100, Confirm(*ANN, "q", 2 * PRICE, "EUR")),  # p is owed
    (0, Confirm(*ANN, "q", 2 * PRICE, "EUR")),
    (0, Confirm(*ANN, "r", 2 * PRICE, "EUR")),
    (2_000, Expire("ticket")),  # nothing: bob has extended
    (2_000, Expire("ticket")),
    (0, Hold(2, "ticket", "cem")),
    (0, Confirm(*BOB, "s", PRICE, "EUR")),  # too late, and nothing is left
    (0, Refund(*ANN, True)),
    (0, Refund(*ANN, True)),  # what else she has paid
    (0, Refund(*ANN, True)),  # nothing
    (0, Refund(*BOB, False, "s")),
    (0, Cancel(*CEM)),
]
# Nobody sees these in a journal: they are about other orders, crashes, the fence, or the way to the receiver.
UNSEEN = {
    *(Safeguard.FENCE, Safeguard.EVENTS_COMPARED, Safeguard.EXPIRY_BY_ORDER, Safeguard.EXPIRY_LOOKS),
    *(Safeguard.PAYMENT_BY_ORDER, Safeguard.JOURNAL, Safeguard.SENT_FIRST, Safeguard.IN_ORDER),
    *(Safeguard.MARKS_OF_CHANGES, Safeguard.MOVED_DEADLINE, Safeguard.STILL_HELD),
}


def told(without: frozenset[str] = frozenset()) -> str:
    """Follow the story with a model, and return what has no explanation."""
    sale, model = Sale(), ModelFollower(FLOW, without)
    for wait_ms, command in STORY:
        sale.now_ms += wait_ms
        batch = sale.do([command])
        if wrong := model.take(batch):
            return wrong
        if not batch and (entry := asked(sale, command)) is not None and not model.has_nothing_to_write(entry):
            return f"the program does nothing for {command}"
    return next(model.follow([], sale.kept()), "")


def test_the_story_is_a_run() -> None:
    """The model explains all of it."""
    assert told() == ""


@pytest.mark.parametrize("mechanism", sorted(set(Safeguard) - UNSEEN))
def test_a_model_that_is_broken_alone_is_noticed(mechanism: Safeguard) -> None:
    """A model without one of its mechanisms has another story."""
    assert told(frozenset({mechanism}))


# The bug that switches a mechanism off in the program, of those that are in its rule and that a journal shows.
IN_THE_PROGRAM = {
    Safeguard.GIVEN_BACK: "restocks-again",
    Safeguard.LATE_REFUND: "forgets-what-is-owed",
    Safeguard.LATE_UNIT: "late-takes-anything",
    Safeguard.WRONG_OWED: "keeps-wrong-amounts",
}


@pytest.mark.parametrize("mechanism", sorted(IN_THE_PROGRAM))
def test_a_program_that_is_broken_alone_is_noticed(mechanism: Safeguard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without one of the mechanisms has a story that the whole model does not explain."""
    for name, method in list(vars(decision._Now).items()):
        if callable(method):
            monkeypatch.setattr(decision._Now, name, method)  # so that it is set back
    BUGS[IN_THE_PROGRAM[mechanism]].plant()
    assert told() != ""

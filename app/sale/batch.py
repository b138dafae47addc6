"""The decisions of a batch, item by item: the orders for the store, and the answers for the buyers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.orders import (
    Answer,
    Ask,
    Cancel,
    CancelOutcome,
    Command,
    Confirm,
    Expire,
    Hold,
    HoldOutcome,
    OrderId,
    OrderState,
    Outcome,
    Purchase,
    Settled,
    Snapshot,
    Terms,
    decide,
    new_secrets,
)
from app.orders.commands import fingerprint, key_of
from app.orders.decision import OUTCOMES, SELL, Decision, Windows, outside
from app.sale.clock import StoreClock
from app.sale.queue import Entry, EntryState, Item
from app.stock import Batch, Begun, Refused, Sold

_ABOUT_NOBODY: Final = Ask()
_NEW: Final = (Purchase, Hold)
_NOT_FOUND: Final = "not_found"  # among the outcomes of each command about an order


@dataclass(slots=True, eq=False)
class Part:
    """The part of a batch that is about one item."""

    item: Item
    write: Batch
    units: int  # taken from the stock
    entries: list[Entry]
    decisions: list[Decision]
    terms: Terms  # on which it was decided

    @property
    def changes_something(self) -> bool:
        """True if there is anything to write: orders, changes of them, answers to remember, or the line's need."""
        return bool(self.write.entries or self.write.refused) or self.write.wants != self.write.seen.wants

    @property
    def units_sold(self) -> int:
        """How many are sold for good: at once, or as they are paid."""
        paid = sum(change.units.lucky for change in self.write.changes if change.units.lucky > 0)
        at_once = [one.record.quantity for one in self.write.begun if one.record.state is OrderState.SOLD]
        return paid + sum(one.quantity for one in self.write.sold) + sum(at_once)

    @property
    def sells_the_last(self) -> bool:
        """True if nothing is left when this is written."""
        return self.write.seen.stock == self.units

    @property
    def wanted(self) -> bool:
        """True if a buyer still waits for the answer."""
        return any(entry.wanted for entry in self.entries)

    def set_state(self, state: EntryState) -> None:
        """Set the state of all its purchases."""
        for entry in self.entries:
            entry.state = state

    def answers(self, numbers: Sequence[str]) -> Iterator[tuple[Entry, Answer | Exception]]:
        """The answer for each buyer once the batch is written, given the numbers of its new orders."""
        begun, sku = len(self.write.begun), self.item.sku
        orders = [OrderId(sku, *one) for one in zip(numbers, self.write.secrets, strict=True)]
        ids = iter(orders[begun:]), iter(orders[:begun])
        told: list[Answer | Exception] = []
        for entry, decision in zip(self.entries, self.decisions, strict=True):
            answer = _answer(entry, decision, *ids, told)
            if isinstance(answer, Answer) and self._was_done_before(entry.command, answer):
                answer = answer._replace(replayed=True)
            told.append(answer)
            yield entry, told[-1]

    def _was_done_before(self, command: Command, answer: Answer) -> bool:
        """Return whether an earlier batch has cancelled this part: the order remembers it longer than the key."""
        if not isinstance(command, Cancel) or command.message is None:
            return False
        names = (
            one.name for change in self.write.changes for one in {*change.after.notices} - {*change.before.notices}
        )
        now = command.message in names
        return answer.outcome is CancelOutcome.PARTLY_CANCELLED and not now


def _answer(  # noqa: PLR0911 - a case each
    entry: Entry,
    decision: Decision,
    sold: Iterator[OrderId],
    begun: Iterator[OrderId],
    earlier: Sequence[Answer | Exception],
) -> Answer | Exception:
    if decision is SELL:
        assert isinstance(entry.command, Purchase)  # noqa: S101 - for the type checker
        return Answer(Outcome.SOLD, entry.command.quantity, next(sold))
    if decision.settled is not None:
        settled, record = decision.settled, decision.record
        outcome = OUTCOMES[type(entry.command)](settled.outcome)
        order = settled.order or (record.id_of(entry.item.sku) if record else None)
        quantity = record.quantity if record else settled.quantity
        return Answer(outcome, quantity, order, True, record, decision.refund, decision.place)
    if decision.repeats is not None:
        first = earlier[decision.repeats]
        if isinstance(first, Exception):
            return first
        return first._replace(outcome=decision.outcome or first.outcome, replayed=decision.outcome is None)
    if decision.error is not None:
        return decision.error
    assert decision.outcome is not None  # noqa: S101 - for the type checker
    quantity = entry.command.quantity if isinstance(entry.command, _NEW) else 0
    if decision.outcome is Outcome.SOLD:
        return Answer(decision.outcome, quantity, next(begun))
    if decision.begins is not None:
        order = next(begun)
        record = decision.begins._replace(number=order.number, secret=order.secret)
        return Answer(decision.outcome, record.quantity, order, record=record, place=decision.place)
    found = decision.record
    if found is None:
        return Answer(decision.outcome, quantity)
    order = found.id_of(entry.item.sku)
    return Answer(decision.outcome, found.quantity, order, record=found, refund=decision.refund)


def decide_part(
    item: Item,
    batch_id: str,
    snapshot: Snapshot,
    entries: Sequence[Entry],
    *,
    everywhere: Terms,
    grace_s: float = 0.0,
    clock: StoreClock | None = None,
    asked: float = 0.0,
) -> Part:
    """Decide on the buyers of an item who still wait. `asked`: when the snapshot was requested, by `clock.passed()`."""
    entries = [entry for entry in entries if entry.wanted]
    commands = [entry.command for entry in entries]
    terms = snapshot.terms.completed_by(everywhere)
    may_be_closed = terms.starts_at or terms.ends_at or terms.paused
    closed = [outside(terms, entry.came_at) for entry in entries] if may_be_closed else []
    windows, due_by_ms, now = Windows.of(terms, grace_s), None, snapshot.now_ms / 1000
    if clock is not None and snapshot.now_ms:
        clock.hear(snapshot.now_ms, asked)
        if ahead_s := clock.ahead_s(windows.lasting_s):
            due_by_ms = snapshot.now_ms - round(1000 * ahead_s)
            now = due_by_ms / 1000
    decisions, changes, wants = decide(
        snapshot,
        commands,
        limit_per_buyer=terms.limit_per_buyer or 0,
        closed=closed,
        windows=windows,
        due_by_ms=due_by_ms,
        now_closed=outside(terms, now) if may_be_closed and snapshot.waiting else None,
    )
    decided = list(zip(commands, decisions, strict=True))
    served = [one for one, decision in decided if decision is SELL and isinstance(one, Purchase)]
    beginning = [(command, decision.begins) for command, decision in decided if decision.begins is not None]
    secrets = new_secrets(len(served) + len(beginning))
    sold = [Sold(one.quantity, one.buyer, one.key, secret) for one, secret in zip(served, secrets, strict=False)]
    begun = [
        Begun(record._replace(secret=secret), key_of(command))
        for (command, record), secret in zip(beginning, secrets[len(served) :], strict=True)
    ]
    units = sum(one.quantity for one in sold) + sum(one.record.quantity for one in begun)
    units -= sum(one.record.quantity for one in begun if one.record.state is OrderState.WAITING)
    units -= sum(change.units.stock for change in changes)
    # "Sold out" needs no record in the store while it stays the same: while nothing is left, and nothing can come back.
    # "Not started" and "paused" are not final; "ended" is, as the same purchase may still wait at another instance.
    may_return = snapshot.held or any(one.record.state is OrderState.HELD for one in begun)
    lasting = {Outcome.LIMIT_REACHED, Outcome.ENDED, HoldOutcome.LIMIT_REACHED, HoldOutcome.ENDED}
    if units < snapshot.stock or may_return:
        lasting |= {Outcome.SOLD_OUT, HoldOutcome.SOLD_OUT}
    refused = []
    for command, decision in decided:
        if decision is SELL:
            continue
        if (key := key_of(command)) is None or decision.outcome is None or decision.begins is not None:
            continue
        if isinstance(command, _NEW) and decision.outcome not in lasting and decision.record is None:
            continue
        if decision.outcome == _NOT_FOUND:  # else strangers with invented orders would crowd out other keys
            continue
        quantity, buyer = fingerprint(command)
        order = decision.record.id_of(item.sku) if decision.record else None
        refused.append(Refused(key, Settled(decision.outcome, quantity, buyer, order)))
    write = Batch(batch_id, snapshot, sold, refused, begun, changes, wants)
    return Part(item, write, units, entries, decisions, terms)


def by_item(entries: Iterable[Entry]) -> dict[Item, list[Entry]]:
    """Group the entries by item, in their order."""
    found: dict[Item, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.item, []).append(entry)
    return found


def ask(entries: Sequence[Entry]) -> Ask:
    """Return the questions that a decision on these commands has."""
    keys: list[str] = []
    names: list[str] = []
    orders: list[str] = []
    payments: list[str] = []
    holds = line = first_due = False
    for entry in entries:
        command = entry.command
        if (key := command.key if type(command) is Purchase else key_of(command)) is not None:
            keys.append(key)
        if isinstance(command, _NEW):
            if command.buyer is not None:
                names.append(command.buyer)
            holds = holds or type(command) is Hold or command.request_id is not None
            first_due = first_due or (type(command) is Hold and command.wait)
        else:
            holds = line = True
            if not isinstance(command, Expire):
                orders.append(command.number)
            if isinstance(command, Confirm):
                payments.append(command.payment_ref)
    if not (keys or names or holds):
        return _ABOUT_NOBODY
    names, keys, orders, payments = (list(dict.fromkeys(some)) for some in (names, keys, orders, payments))
    return Ask(names, keys, orders, payments, holds, line, first_due)

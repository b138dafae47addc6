"""The decisions of a batch, item by item: the orders for the store, and the answers for the buyers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from app.errors import SeckillError
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
    Record,
    Settled,
    Snapshot,
    Terms,
    new_secrets,
)
from app.orders.commands import basket_of, fingerprint, key_of
from app.orders.decision import NO_ERRORS, OUTCOMES, SELL, Basis, Decided, Decision, Windows, decide_together, outside
from app.sale.clock import StoreClocks
from app.sale.queue import Entry, EntryState, Item
from app.stock import Batch, Begun, Refused, Sold

_ABOUT_NOBODY: Final = Ask()
_NEW: Final = (Purchase, Hold)
_LINES_DUE_MAX: Final = 200  # of the orders of an item that are due, in a batch
_OF_A_LINE: Final = 10  # lines that an order may have of which only one was read
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
        return Answer(outcome, quantity, order, True, record, decision.refund, decision.place, settled.line)
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
        return Answer(decision.outcome, quantity, line=decision.line)
    order = found.id_of(entry.item.sku)
    return Answer(decision.outcome, found.quantity, order, record=found, refund=decision.refund, place=decision.place)


class Clocked(NamedTuple):
    """The decisions' view of time: see `decide_parts`."""

    everywhere: Terms  # as the settings have them
    grace_s: float = 0.0
    clocks: StoreClocks | None = None
    asked: float = 0.0  # when the snapshots were requested, by `clocks.passed()`


def decide_parts(
    batch_id: str,
    snapshots: Mapping[Item, Snapshot],
    entries: Sequence[Entry],
    clocked: Clocked,
    errors: Mapping[str, SeckillError] = NO_ERRORS,
) -> list[Part]:
    """Decide on the buyers of some items who still wait, in the order in which they came.

    Several items only if a basket, or a limit of several items, joins them. `errors`: of items that can't be read.
    """
    entries = [entry for entry in entries if entry.wanted]
    terms = {item: snapshot.terms.completed_by(clocked.everywhere) for item, snapshot in snapshots.items()}
    may_be_closed = any(one.starts_at or one.ends_at or one.paused for one in terms.values())
    decided = decide_together(
        {item.sku: _basis(item, snapshot, terms[item], clocked) for item, snapshot in snapshots.items()},
        [entry.command for entry in entries],
        [outside(terms[entry.item], entry.came_at) for entry in entries] if may_be_closed else (),
        came_at=[entry.came_at for entry in entries] if len(snapshots) > 1 else (),
        errors=errors,
    )
    of = by_item(entries)
    return [
        _part(item, batch_id, snapshot, of.get(item, []), decided[item.sku], terms[item])
        for item, snapshot in snapshots.items()
    ]


def _basis(item: Item, snapshot: Snapshot, terms: Terms, clocked: Clocked) -> Basis:
    windows, due_by_ms, now = Windows.of(terms, clocked.grace_s), None, snapshot.now_ms / 1000
    if clocked.clocks is not None and snapshot.now_ms:
        clock = clocked.clocks.of(item.sku)
        clock.hear(snapshot.now_ms, clocked.asked)
        if ahead_s := clock.ahead_s(windows.lasting_s):
            due_by_ms = snapshot.now_ms - round(1000 * ahead_s)
            now = due_by_ms / 1000
    closed = outside(terms, now) if snapshot.waiting else None
    return Basis(snapshot, terms.limit_per_buyer or 0, windows, due_by_ms, closed, terms)


def _part(item: Item, batch_id: str, snapshot: Snapshot, entries: list[Entry], of: Decided, terms: Terms) -> Part:
    commands, decisions, changes = [entry.command for entry in entries], of.decisions, of.changes
    decided = list(zip(commands, decisions, strict=True))
    served = [one for one, decision in decided if decision is SELL and isinstance(one, Purchase)]
    beginning = [(command, decision) for command, decision in decided if decision.begins is not None]
    secrets = new_secrets(len(served) + len(beginning) + len(of.lines))
    sold = [Sold(one.quantity, one.buyer, one.key, secret) for one, secret in zip(served, secrets, strict=False)]
    rest = iter(secrets[len(served) :])
    begun = [
        Begun(one.begins._replace(secret=next(rest)), key_of(command), one.basket, basket_of(command))
        for command, one in beginning
        if one.begins is not None
    ]
    begun += [Begun(record._replace(secret=next(rest)), basket=basket) for basket, record in of.lines]
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
        settled = Settled(decision.outcome, quantity, buyer, order, basket_of(command), decision.line)
        refused.append(Refused(key, settled))
    write = Batch(batch_id, snapshot, sold, refused, begun, changes, of.wants)
    return Part(item, write, units, entries, decisions, terms)


def ask_all(buyers: Mapping[Item, Sequence[Entry]]) -> dict[str, Ask]:
    """Return the questions of a batch, by item: those of its commands, and those about the lines of baskets."""
    found = {item.sku: ask(of_item) for item, of_item in buyers.items()}
    for of_item in buyers.values():
        for entry in of_item:
            if isinstance(entry.command, Hold):
                for sku, _ in entry.command.lines:
                    there = found.get(sku, _ABOUT_NOBODY)
                    found[sku] = replace(there, buyers=[*there.buyers, entry.command.buyer or ""], holds=True)
    return found


def beyond(snapshots: Mapping[str, Snapshot], asks: Mapping[str, Ask]) -> dict[str, Ask]:
    """The questions that are still to be asked: about the lines of baskets, and a limit of several items.

    An order that is asked for, or due, is changed with all its lines; the next batch reads on if too many are due.
    """
    orders, buyers = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for sku, snapshot in snapshots.items():
        ask = asks[sku]
        for record in _whole(snapshot, ask):
            for line in record.lines:
                orders[line.sku].add(line.number)
            if record.part_of and (name := OrderId.parse_name(record.part_of)):
                orders[name.sku].add(name.number)
        if group := snapshot.terms.group:
            again = (snapshot.records.get(number) for number in ask.orders)
            # An expired order that is paid after all counts once more.
            expired = {one.buyer for one in again if one is not None and one.state is OrderState.EXPIRED}
            for other in group[1] if ask.buyers or expired - {None} else ():
                buyers[other].update(ask.buyers, (one for one in expired if one))
    found = dict[str, Ask]()
    for sku in orders.keys() | buyers.keys():
        ask = asks.get(sku, _ABOUT_NOBODY)
        more = (sorted(orders[sku] - {*ask.orders}), sorted(buyers[sku] - {*ask.buyers}))
        if any(more) or sku not in asks:
            found[sku] = replace(
                ask,
                orders=[*ask.orders, *more[0]],
                buyers=[*ask.buyers, *more[1]],
                holds=ask.holds or bool(orders[sku]),
                line=ask.line or bool(orders[sku]),
            )
    return found


def _whole(snapshot: Snapshot, ask: Ask) -> list[Record]:
    """The orders that must be read with their lines: those that were asked for, and the first of those that are due."""
    left, due = _LINES_DUE_MAX, list[str]()
    for number in snapshot.due:
        if left > 0 and (record := snapshot.records.get(number)) is not None:
            left -= _OF_A_LINE if record.part_of else len(record.lines)
            due.append(number)
    found = (snapshot.records.get(number) for number in dict.fromkeys([*ask.orders, *due]))
    return [record for record in found if record is not None]


def joined(snapshots: Mapping[str, Snapshot], entries: Sequence[Entry]) -> list[set[str]]:
    """The items that are decided on together, and written all or not at all, as a basket or a limit joins them."""
    groups = list[set[str]]()
    for all_names in _joints(snapshots, entries):
        names = all_names & snapshots.keys()
        near = [one for one in groups if one & names]
        groups = [one for one in groups if one not in near] + [names.union(*near)]
    return [one for one in groups if len(one) > 1]


def _joints(snapshots: Mapping[str, Snapshot], entries: Sequence[Entry]) -> Iterator[set[str]]:
    for entry in entries:
        if isinstance(entry.command, Hold) and entry.command.lines:
            yield {entry.item.sku, *(sku for sku, _ in entry.command.lines)}
    for sku, snapshot in snapshots.items():
        if group := snapshot.terms.group:
            yield {sku, *group[1]}
        for record in snapshot.records.values():
            if record.lines:
                yield {sku, *(line.sku for line in record.lines)}
            if record.part_of and (name := OrderId.parse_name(record.part_of)):
                yield {sku, name.sku}


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

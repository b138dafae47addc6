"""The decisions of a batch, item by item: the orders for the store, and the answers for the buyers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.sale.decision import Answer, Decision, Outcome, Purchase, decide, outside
from app.sale.queue import Entry, EntryState, Item
from app.stock import Ask, Batch, Refused, Settled, Snapshot, Sold, Terms, new_secrets

_ABOUT_NOBODY: Final = Ask()


@dataclass(slots=True, eq=False)
class Part:
    """The part of a batch that is about one item. `units`: how many it sells; `terms`: those it was decided on."""

    item: Item
    write: Batch
    units: int
    entries: list[Entry]
    decisions: list[Decision]
    terms: Terms

    @property
    def changes_something(self) -> bool:
        """Whether there is anything to write: sales, or refusals to remember."""
        return bool(self.write.sold or self.write.refused)

    @property
    def sells_the_last(self) -> bool:
        """Whether nothing is left when this is written."""
        return self.write.expected_stock == self.units

    @property
    def wanted(self) -> bool:
        """Whether a buyer still waits for the answer."""
        return any(entry.wanted for entry in self.entries)

    def set_state(self, state: EntryState) -> None:
        """Set the state of all its purchases."""
        for entry in self.entries:
            entry.state = state

    def answers(self, order_ids: Iterable[str]) -> Iterator[tuple[Entry, Answer | Exception]]:
        """The answer for each buyer once the batch is written, given the ids of its orders in their order."""
        ids = iter(order_ids)
        told: list[Answer | Exception] = []
        for entry, decision in zip(self.entries, self.decisions, strict=True):
            told.append(_answer(entry.purchase, decision, ids, told))
            yield entry, told[-1]


def _answer(
    purchase: Purchase, decision: Decision, order_ids: Iterator[str], earlier: Sequence[Answer | Exception]
) -> Answer | Exception:
    if decision.settled is not None:
        settled = decision.settled
        return Answer(Outcome(settled.outcome), settled.quantity, settled.order_id, replayed=True)
    if decision.repeats is not None:
        first = earlier[decision.repeats]
        if isinstance(first, Exception):
            return first
        return Answer(first.outcome, first.quantity, first.order_id, replayed=True)
    if decision.error is not None:
        return decision.error
    assert decision.outcome is not None  # noqa: S101 - for the type checker
    return Answer(decision.outcome, purchase.quantity, next(order_ids) if decision.outcome is Outcome.SOLD else None)


def decide_part(item: Item, batch_id: str, snapshot: Snapshot, entries: Sequence[Entry], *, everywhere: Terms) -> Part:
    """Decide on the buyers of an item who still wait."""
    entries = [entry for entry in entries if entry.wanted]
    purchases = [entry.purchase for entry in entries]
    terms = snapshot.terms.completed_by(everywhere)
    may_be_closed = terms.starts_at or terms.ends_at or terms.paused
    closed = [outside(terms, entry.came_at) for entry in entries] if may_be_closed else []
    decisions = decide(snapshot, purchases, limit_per_buyer=terms.limit_per_buyer or 0, closed=closed)
    decided = list(zip(purchases, decisions, strict=True))
    served = [purchase for purchase, decision in decided if decision.outcome is Outcome.SOLD]
    units = sum(purchase.quantity for purchase in served)
    # "Sold out" needs no record in the store: the answer stays the same while nothing is left. "Not started" and
    # "paused" are not final; "ended" is, as the same purchase may still wait at another instance.
    lasting = {Outcome.LIMIT_REACHED, Outcome.ENDED} | ({Outcome.SOLD_OUT} if units < snapshot.stock else set())
    sold = [
        Sold(one.quantity, one.buyer, one.key, secret)
        for one, secret in zip(served, new_secrets(len(served)), strict=True)
    ]
    refused = [
        Refused(one.key, Settled(decision.outcome, one.quantity, one.buyer))
        for one, decision in decided
        if decision.outcome in lasting and one.key is not None
    ]
    write = Batch(batch_id, snapshot.stock, sold, refused, snapshot.last_entry, snapshot.version)
    return Part(item, write, units, entries, decisions, terms)


def by_item(entries: Iterable[Entry]) -> dict[Item, list[Entry]]:
    """Group the entries by item, in their order."""
    found: dict[Item, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.item, []).append(entry)
    return found


def ask(entries: Sequence[Entry]) -> Ask:
    """Return what a decision on these buyers needs to know."""
    keys = [entry.purchase.key for entry in entries if entry.purchase.key is not None]
    names = [entry.purchase.buyer for entry in entries if entry.purchase.buyer is not None]
    return Ask(list(dict.fromkeys(names)), list(dict.fromkeys(keys))) if keys or names else _ABOUT_NOBODY

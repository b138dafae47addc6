"""Where each payment of a journal is: kept or owed by one order, or given back, and each of that once."""

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import IntEnum
from typing import Final

from app.orders import Event, EventKind, OrderId


class _Place(IntEnum):
    NOWHERE = 0
    WRONG = 1
    KEPT = 2
    OWED = 3
    BACK = 4


_WORDS: Final = ("never announced", "of a wrong amount", "kept", "owed", "given back")
_NEW: Final = (_Place.NOWHERE, _Place.WRONG)
_BITS: Final = 3
_DUE: Final = (EventKind.REFUND_DUE, EventKind.AMOUNT_MISMATCH, EventKind.REFUND_FAILED)
ABOUT_PAYMENTS: Final = frozenset((*_DUE, EventKind.CONFIRMED, EventKind.REFUNDED))


class Payments:
    """The payments of an item, some 150 bytes each. `violate` is told what is wrong.

    `owed`: those that are to be given back, and parts of such, and those of a wrong amount, by their order.
    """

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._places: dict[int, int] = {}  # by their hashes: where each is, and the hash of its order
        self._wrong: dict[OrderId, set[str]] = {}
        self.owed: set[tuple[OrderId, str]] = set()

    def add(self, event: Event) -> None:
        """Add the next event of the journal that is about a payment."""
        facts, order, kind = event.facts, event.order, event.kind
        ref, of_part = facts.get("payment_ref", ""), "part" in facts
        match kind:
            case EventKind.AMOUNT_MISMATCH:
                self._move(event, (ref,), _NEW, _Place.WRONG)
            case EventKind.CONFIRMED:
                self._move(event, (ref,), _NEW, _Place.KEPT)
            case EventKind.REFUND_DUE if not of_part:
                self._move(event, (ref,), _NEW, _Place.OWED)
            case EventKind.REFUND_DUE if facts["part"] and (order, facts["part"]) in self.owed:
                self._violate(f"order {order.name}: part {facts['part']!r} of payment {ref!r} is owed twice")
            case EventKind.REFUND_FAILED if not of_part and self._place(order, ref) is _Place.BACK:
                self._move(event, (ref,), (_Place.BACK,), _Place.OWED)
            case EventKind.REFUNDED if facts.get("about") not in ("part", "units"):
                due = _Place.OWED, _Place.WRONG
                may = due if facts.get("about") == "payment" else (*due, _Place.KEPT)
                self._move(event, facts.get("payment_refs", ()), may, _Place.BACK)
                self._move(event, facts.get("refunds_due", ()), (_Place.KEPT,), _Place.OWED)
        self._note(event)

    def _move(self, event: Event, refs: Iterable[str], of: Collection[_Place], to: _Place) -> None:
        order = event.order
        for ref in refs:
            was = self._place(order, ref)
            if was is None:
                self._violate(f"order {order.name}: payment {ref!r} is {_WORDS[to]}, and is another order's")
                continue
            if was not in of:
                before = "before" if was else "for it"
                self._violate(f"order {order.name}: payment {ref!r} is {_WORDS[to]}, and was {_WORDS[was]} {before}")
            self._places[hash(ref)] = hash(order.number) << _BITS | to
            if to is _Place.WRONG:
                self._wrong.setdefault(order, set()).add(ref)
            elif order in self._wrong:
                self._wrong[order].discard(ref)
                if not self._wrong[order]:
                    del self._wrong[order]

    def _place(self, order: OrderId, ref: str) -> _Place | None:
        """Where a payment is; None if another order has it."""
        found = self._places.get(hash(ref))
        if found is None:
            return _Place.NOWHERE
        return _Place(found & (1 << _BITS) - 1) if found >> _BITS == hash(order.number) else None

    def _note(self, event: Event) -> None:
        order, facts = event.order, event.facts
        if event.kind in _DUE:
            self.owed.add((order, facts.get("part", facts["payment_ref"])))
        elif event.kind is EventKind.CONFIRMED:
            self.owed.discard((order, facts.get("payment_ref", "")))
        elif facts.get("about") in ("part", "units"):
            self.owed.discard((order, facts.get("message", "")))
        else:
            done = (*facts.get("payment_refs", ()), *facts.get("parts", ()))
            self.owed.difference_update((order, name) for name in done)
            self.owed.update((order, ref) for ref in facts.get("refunds_due", ()))
        if event.kind is EventKind.REFUNDED and "part" in facts:  # some of the money is still to be given back
            self.owed.add((order, facts["part"]))

    def not_owed(self, held: Collection[str]) -> Iterator[str]:
        """The payments of a wrong amount that nobody owes, although their order is held no more."""
        for order, refs in self._wrong.items():
            if order.number not in held:
                yield from (
                    f"order {order.name}: payment {ref!r} is of a wrong amount, and owed by nobody" for ref in refs
                )

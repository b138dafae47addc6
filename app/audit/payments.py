"""The money of a journal: each payment belongs to one order, each refund has a possible state, and each sum adds up."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final

from app.orders import Event, EventKind, Order, OrderId, Payment, RefundState
from app.orders.account import NEXT, OPEN
from app.orders.life import payment_after, refund_of

_SUMS: Final = ("paid", "given_back", "owed", "disputed")
_NEW: Final = (EventKind.CONFIRMED, EventKind.AMOUNT_MISMATCH, EventKind.REFUND_DUE)


class Payments:
    """The payments of an item: some 150 bytes each, and some 500 more for an order with refunds.

    It calls `violate` with each contradiction. `owed`: the refunds that are owed, and payments of a wrong amount, by
    their order.
    """

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._owners: dict[int, int] = {}  # the hash of each payment's order, by the payment's hash
        self._paid: set[int] = set()  # orders with a payment that counts, by their hashes
        self._wrong: dict[OrderId, dict[str, Payment]] = {}
        self._refunds: dict[OrderId, dict[str, RefundState]] = {}
        self._sums: dict[OrderId, dict[str | None, dict[str, int]]] = {}
        self.owed: set[tuple[OrderId, str]] = set()
        self._changed: dict[str, tuple[OrderId, int]] = {}  # by number, with the number of its events

    def add(self, event: Event) -> None:
        """Add the next event of the journal that is about a payment."""
        facts, order = event.facts, event.order
        ref = facts["payment_ref"]
        self._own(event, ref)
        self._add_up(event)
        states = self._refunds.get(order, {})
        for told in map(refund_of, facts.get("refunds", ())):
            name = f"{ref}\n{told.name}"  # a provider's own names of refunds count within a payment only
            before = states.get(name)
            if told.state not in NEXT[before]:
                self._violate(
                    f"order {order.name}: refund {told.name!r} is {told.state}, and was {before or 'not there'}"
                )
            states[name] = told.state
            if told.state is RefundState.SETTLED:
                states.pop(name, None)
            (self.owed.add if told.state in OPEN else self.owed.discard)((order, name))
        if states:
            self._refunds[order] = states
        self._note_wrong(event, ref)

    def _own(self, event: Event, ref: str) -> None:
        """Note whose a payment is."""
        own, order = hash(event.order.number), event.order
        owner = self._owners.get(hash(ref))
        if owner is not None and owner != own:
            self._violate(f"order {order.name}: payment {ref!r} is another order's")
        elif owner is None and event.kind not in _NEW:
            self._violate(f"order {order.name}: payment {ref!r} is in {event.kind}, and was never announced")
        self._owners[hash(ref)] = own
        if event.kind is EventKind.CONFIRMED and own in self._paid:
            self._violate(f"order {order.name}: payment {ref!r} counts, and another one did")

    def _add_up(self, event: Event) -> None:
        """Add the changes to the sums, and compare them with the sums in the event."""
        order, facts = event.order, event.facts
        told = {one["currency"]: {name: one[name] for name in _SUMS} for one in facts["sums"]}
        before = self._sums.get(order)
        was_paid = before is None and hash(order.number) in self._paid
        now = told if was_paid else before or {}  # no sums are kept of orders that were only paid
        for one in () if was_paid else facts["changes"]:
            sums = now.setdefault(one["currency"], dict.fromkeys(_SUMS, 0))
            for name in _SUMS:
                sums[name] += one.get(name, 0)
        if _shown(now) != _shown(told):
            self._violate(f"event {event.number} of order {order.name} tells sums to which its money does not add up")
        if before is not None or event.kind is not EventKind.CONFIRMED:
            self._sums[order] = now
            self._changed[order.number] = order, event.number
        if event.kind is EventKind.CONFIRMED:
            self._paid.add(hash(order.number))

    def changed(self, most: int) -> list[str]:
        """The numbers of some orders of which money has gone back since they were asked for; see `check`."""
        return list(islice(self._changed, most))

    def check(self, number: str, found: Order | None) -> list[str]:
        """Compare an order with its events; it was read after them."""
        order, events = self._changed.pop(number)
        if found is None:
            return [f"order {order.name} has money by its events, and is not there"]
        if found.record.events != events:  # since, or it is of another sale
            return []
        sums = {one.currency: {name: getattr(one, name) for name in _SUMS} for one in found.record.sums.values()}
        states = {
            f"{payment.ref}\n{one.name}": one.state for payment in found.record.payments for one in payment.refunds
        }
        if _shown(sums) == _shown(self._sums[order]) and states == self._refunds.get(order, {}):
            return []
        return [f"order {order.name} has other money than its events say"]

    def _note_wrong(self, event: Event, ref: str) -> None:
        """Note the payments of a wrong amount, until they count or are owed."""
        order, facts = event.order, event.facts
        wrong = self._wrong.setdefault(order, {}) if event.kind is EventKind.AMOUNT_MISMATCH else self._wrong.get(order)
        if wrong is None:
            return
        if event.kind is EventKind.AMOUNT_MISMATCH or ref in wrong:
            wrong[ref] = payment_after(wrong.get(ref), event.kind, facts, paid=False)
        waits = ref in wrong and wrong[ref].waits
        (self.owed.add if waits else self.owed.discard)((order, ref))

    def not_owed(self, held: Collection[str]) -> Iterator[str]:
        """The payments of a wrong amount that nobody owes, although their order is held no more."""
        for order, wrong in self._wrong.items():
            if order.number not in held:
                waiting = (one.ref for one in wrong.values() if one.waits)
                yield from (
                    f"order {order.name}: payment {ref!r} is of a wrong amount, and owed by nobody" for ref in waiting
                )


def _shown(sums: dict[str | None, dict[str, int]]) -> dict[str | None, dict[str, int]]:
    return {currency: one for currency, one in sums.items() if any(one.values())}

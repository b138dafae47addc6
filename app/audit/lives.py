"""The state of each order of a journal, by its events: no event is impossible, missing or repeated."""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from app.orders import Event, EventKind, OrderState, life

_STATES: Final = (None, *OrderState)
_AT: Final = {state: at for at, state in enumerate(_STATES)}
_BITS: Final = 3  # for a state
_EVENTS_MAX: Final = (1 << 16 - _BITS) - 1  # the limit of counted events of an order
_SEQUENCE_BITS: Final = 22


class Lives:
    """The orders of an item: 10 bytes each, and some 200 more while one is held.

    It calls `violate` with each contradiction.
    """

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._orders = array("Q")  # in the order in which they began
        self._standing = array("H")  # the state of each, and the number of its events
        self.held: dict[str, float] = {}  # by number, the deadline that its buyer sees
        self.waiting = 0  # orders in line
        self._offered: set[str] = set()  # the orders that were in line, and are held now
        self.taken = self.lapsed = 0  # offers to orders in line, by their end

    def add(self, event: Event) -> None:
        """Add the next event of the journal."""
        number, kind = event.order.number, event.kind
        place, orders = _place(number), self._orders
        if event.number == 1 and (not orders or place > orders[-1]):
            at, before, events = len(orders), None, 0
            orders.append(place)
            self._standing.append(0)
        else:
            at, before, events = self._find(place)
        if event.number != events + 1 and events < _EVENTS_MAX:
            missing = f"event {events + 1} is missing" if event.number > events else "it has had that one"
            self._violate(f"order {event.order.name}: {kind} is its event {event.number}, and {missing}")
        found = life.step(before, kind, event.quantity, event.facts)
        if found is None:
            self._violate(f"order {event.order.name}: {kind}, which can't come when it is {before or 'nothing yet'}")
        elif event.units != found.units:
            self._violate(f"event {event.number} of order {event.order.name} moves other units than {kind} does")
        after = found.state if found else before
        self.waiting += (after is OrderState.WAITING) - (before is OrderState.WAITING)
        self._standing[at] = min(event.number, _EVENTS_MAX) << _BITS | _AT[after]
        if after is OrderState.HELD:
            if kind in (EventKind.HELD, EventKind.OFFERED, EventKind.EXTENDED):
                self.held[number] = float(event.facts["pay_by"])
            if kind is EventKind.OFFERED:
                self._offered.add(number)
        elif before is OrderState.HELD:
            self.held.pop(number, None)
            if number in self._offered:
                self._offered.remove(number)
                self.taken += after is OrderState.CONFIRMED
                self.lapsed += after is not OrderState.CONFIRMED

    def _find(self, place: int) -> tuple[int, OrderState | None, int]:
        """The place of an order, its state, and the number of its events; a new order gets a place."""
        at = bisect_left(self._orders, place)
        if at == len(self._orders) or self._orders[at] != place:
            self._orders.insert(at, place)
            self._standing.insert(at, 0)
        standing = self._standing[at]
        return at, _STATES[standing & (1 << _BITS) - 1], standing >> _BITS

    def events(self, number: str) -> int:
        """How many events an order has had."""
        return self._find(_place(number))[2]


def _place(number: str) -> int:
    """A number that grows with an order's: in Redis it has two parts, a moment in ms and a sequence."""
    ms, _, sequence = number.partition("-")
    return int(ms) << _SEQUENCE_BITS | int(sequence) if sequence else int(ms)

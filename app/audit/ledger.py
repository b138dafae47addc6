"""The audit, a pure function of what the store says: whether the numbers and the orders of an item agree."""

from dataclasses import dataclass, field
from typing import Final

from app.orders import Event, EventKind, OrderId, Units
from app.stock import Level

_ABOUT_PAYMENTS: Final = frozenset(
    (
        *(EventKind.REFUND_DUE, EventKind.AMOUNT_MISMATCH, EventKind.CONFIRMED, EventKind.REFUNDED),
        EventKind.REFUND_FAILED,
    )
)
_MOST: Final = 10  # violations of orders that are described; one cause may have thousands


@dataclass(slots=True)
class Audit:
    """The result of an audit. `oversold`: units sold that did not exist; `violations`: sentences for a person; `owed`:
    payments that are to be given back, or of a wrong amount.
    """

    sku: str
    stock: int
    lucky: int
    initial: int | None
    held: int = 0
    orders: int = 0
    units_ordered: int = 0
    oversold: int = 0
    units_per_instance: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    owed: int = 0

    @property
    def consistent(self) -> bool:
        """True if every invariant holds."""
        return not self.violations


class Ledger:
    """The journal of an item as far as it was read, oldest first. An order with a key takes some 75 to 130 bytes."""

    def __init__(self) -> None:
        self.last: Event | None = None
        self.orders = 0
        self._units = self._held = 0
        self._units_per_instance: dict[str, int] = {}
        self._keys: set[int] = set()  # their hashes: among a billion keys two collide with a probability of 3 %
        self._token = self._epoch = 0
        self._violations: list[str] = []
        self._more = 0  # violations that are counted only
        self._owed: set[tuple[OrderId, str]] = (
            set()
        )  # payments that are to be given back, or were wrong, by their order

    def add(self, event: Event) -> None:
        """Add the next event, and check I2 (an idempotency key buys once) and I5 (tokens never decrease)."""
        self.last = event
        units = event.units
        self._units += units.lucky
        self._held += units.held
        if sum(units) != 0 or units != _moves(event):
            self._violate(f"event {event.number} of order {event.order.name} moves other units than {event.kind} does")
        if event.number == 1:
            self.orders += 1
        if event.kind in _ABOUT_PAYMENTS:
            self._note_payments(event)
        of_instance = self._units_per_instance.get(event.instance, 0)
        self._units_per_instance[event.instance] = of_instance + units.lucky
        if event.epoch != self._epoch:
            self._token, self._epoch = 0, event.epoch  # an operator has accepted that the tokens begin anew
        if event.token < self._token:
            self._violate(f"order {event.order.name} was written with token {event.token}, after {self._token}")
        self._token = max(self._token, event.token)
        if event.key is not None:
            key = hash(event.key)
            if key in self._keys:
                self._violate(f"order {event.order.name} has an idempotency key that an earlier order has")
            self._keys.add(key)

    def _note_payments(self, event: Event) -> None:
        order, facts = event.order, event.facts
        if event.kind in (EventKind.REFUND_DUE, EventKind.AMOUNT_MISMATCH, EventKind.REFUND_FAILED):
            self._owed.add((order, facts.get("part", facts["payment_ref"])))
        elif event.kind is EventKind.CONFIRMED:
            self._owed.discard((order, facts.get("payment_ref", "")))
        elif facts.get("about") in ("part", "units"):
            self._owed.discard((order, facts.get("message", "")))
        else:
            done = (*facts.get("payment_refs", ()), *facts.get("parts", ()))
            self._owed.difference_update((order, name) for name in done)
            self._owed.update((order, ref) for ref in facts.get("refunds_due", ()))
        if event.kind is EventKind.REFUNDED and "part" in facts:  # some of the money is still to be given back
            self._owed.add((order, facts["part"]))

    def _violate(self, text: str) -> None:
        if len(self._violations) < _MOST:
            self._violations.append(text)
        else:
            self._more += 1

    def compare(self, level: Level) -> Audit:
        """Check I1 and I2; `level` was read together with the last of these orders."""
        result = Audit(level.sku, level.stock, level.lucky, level.initial, level.held)
        result.orders, result.units_ordered = self.orders, self._units
        result.units_per_instance = dict(self._units_per_instance)
        result.violations, result.owed = list(self._violations), len(self._owed)
        if self._more:
            result.violations.append(f"and {self._more} orders more with such faults")
        if self._units != level.lucky:
            result.violations.append(f"lucky is {level.lucky}, but the orders add up to {self._units}")
        if self._held != level.held:
            result.violations.append(f"{level.held} units are held, but the orders add up to {self._held}")
        if level.initial is None:
            return result
        total = level.stock + level.held + level.lucky
        if total != level.initial:
            what = "stock + held + lucky" if level.held else "stock + lucky"
            result.violations.append(f"{what} is {total}, but {level.initial} units were there at the start")
        result.oversold = max(0, self._units - level.initial)
        if result.oversold:
            result.violations.append(f"{result.oversold} units were sold that did not exist")
        return result


def _moves(event: Event) -> Units:
    """The units that such an event moves."""
    quantity = event.facts.get("units", event.quantity)  # some of them, or all
    match event.kind:
        case EventKind.SOLD:
            return Units(-quantity, 0, quantity)
        case EventKind.HELD:
            return Units(-quantity, quantity, 0)
        case EventKind.CONFIRMED:
            return Units(-quantity, 0, quantity) if event.facts.get("late") else Units(0, -quantity, quantity)
        case EventKind.EXPIRED | EventKind.CANCELLED:
            return Units(quantity, -quantity, 0)
        case EventKind.REFUNDED if event.facts.get("restock"):
            return Units(quantity, 0, -quantity)
    return Units()

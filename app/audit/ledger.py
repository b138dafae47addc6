"""The audit: whether the numbers and the orders of an item agree. It is a pure function of the store's data."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from app.audit.lives import Lives
from app.audit.payments import Payments
from app.orders import Event, Order, OrderId, OrderState
from app.stock import Level

_CLOCK_S: Final = 1.0  # seconds by which two readings of the store's clock may differ
_MOST: Final = 10  # described violations of orders at most, as one cause may have thousands


@dataclass(slots=True)
class Audit:
    """The result of an item's audit."""

    sku: str
    stock: int
    lucky: int
    initial: int | None
    held: int = 0
    orders: int = 0
    units_ordered: int = 0
    oversold: int = 0  # units sold that did not exist
    units_per_instance: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)  # sentences for a person
    owed: int = 0  # payments that are to be given back, or of a wrong amount

    @property
    def consistent(self) -> bool:
        """True if every invariant holds."""
        return not self.violations


class Ledger:
    """The journal of an item as far as it was read, oldest first. An order with a key takes some 85 to 140 bytes."""

    def __init__(self) -> None:
        self.last: Event | None = None
        self.orders = 0
        self.lives, self.payments = Lives(self._violate), Payments(self._violate)
        self._units = self._held = 0
        self._units_per_instance: dict[str, int] = {}
        self._keys: set[int] = set()  # the keys' hashes: among a billion keys two collide with a probability of 3 %
        self._token = self._epoch = 0
        self.baskets = set[str]()  # names of orders with lines that have changed since they were last compared
        self._violations: list[str] = []
        self._more = 0  # violations that are counted only

    def add(self, event: Event) -> None:
        """Add the next event, and check the life of its order, I2 (an idempotency key buys once) and I5 (tokens never
        decrease).
        """
        self.last = event
        units = event.units
        self._units += units.lucky
        self._held += units.held
        if sum(units) != 0:
            self._violate(f"event {event.number} of order {event.order.name} makes units, or loses some")
        if event.number == 1 and not event.is_of_line:
            self.orders += 1
        try:
            self.lives.add(event)
            if "payment_ref" in event.facts:
                self.payments.add(event)
        except (KeyError, ValueError, TypeError, OverflowError):
            self._violate(f"event {event.number} of order {event.order.name} says what we don't write")
        if "part_of" in event.facts or "lines" in event.facts:
            self.baskets.add(str(event.facts.get("part_of") or event.order.name))
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
        result.violations, result.owed = list(self._violations), len(self.payments.owed)
        if self._more:
            result.violations.append(f"and {self._more} more such faults")
        result.violations += islice(self.payments.not_owed(self.lives.held), _MOST)
        if self._units != level.lucky:
            result.violations.append(f"{level.lucky} units are sold, but the orders add up to {self._units}")
        if self._held != level.held:
            result.violations.append(f"{level.held} units are held, but the orders add up to {self._held}")
        if self.lives.waiting != level.waiting:
            result.violations.append(f"{level.waiting} orders wait in line, and {self.lives.waiting} by their events")
        if level.initial is None:
            return result
        total = level.stock + level.held + level.lucky
        if total != level.initial:
            what = "stock + held + sold" if level.held else "stock + sold"
            result.violations.append(f"{what} is {total}, but {level.initial} units were there at the start")
        result.oversold = max(0, self._units - level.initial)
        if result.oversold:
            result.violations.append(f"{result.oversold} units were sold that did not exist")
        return result

    def overlooked(self, level: Level) -> str | None:
        """The number of the hold whose buyer is to pay first, if the store's first end of a hold is later than that."""
        if not level.held or not self.lives.held:
            return None
        number, pay_by = min(self.lives.held.items(), key=lambda one: one[1])
        if level.due_in_s is None:
            return number
        return number if level.now is not None and pay_by < min(level.now, level.now + level.due_in_s) else None

    def check_hold(self, level: Level, number: str, order: Order | None) -> list[str]:
        """Check that the store will end a hold; `order` is the hold in the store, read after the level."""
        name = OrderId(level.sku, number).name
        if order is None:
            return [f"order {name} is held by its events, and is not there"]
        if order.state is not OrderState.HELD:
            changed = order.record.events > self.lives.events(number)  # since the level was read
            return [] if changed else [f"order {name} is {order.state}, and held by its events"]
        due_at = order.record.due_ms / 1000 + _CLOCK_S
        if level.due_in_s is not None and level.now is not None and level.now + level.due_in_s <= due_at:
            return []
        return [f"order {name} is held, and the store has lost its end: nobody will give its units back"]

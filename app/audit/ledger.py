"""The audit, a pure function of what the store says: whether the numbers and the orders of an item agree."""

from dataclasses import dataclass, field
from typing import Final

from app.stock import Level, Order

_MOST: Final = 10  # violations of orders that are described; one cause may have thousands


@dataclass(slots=True)
class Audit:
    """The result of an audit. `oversold`: units sold that did not exist; `violations`: sentences for a person."""

    sku: str
    stock: int
    lucky: int
    initial: int | None
    orders: int = 0
    units_ordered: int = 0
    oversold: int = 0
    units_per_instance: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def consistent(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations


class Ledger:
    """The orders of an item read so far, oldest first. An order with a key takes some 75 to 130 bytes."""

    def __init__(self) -> None:
        self.last: Order | None = None
        self.orders = 0
        self._units = 0
        self._units_per_instance: dict[str, int] = {}
        self._keys: set[int] = set()  # their hashes: among a billion keys two collide with a probability of 3 %
        self._token = self._epoch = 0
        self._violations: list[str] = []
        self._more = 0  # violations that are counted only

    def add(self, order: Order) -> None:
        """Add the next order, and check I2 (an idempotency key buys once) and I5 (tokens never decrease)."""
        self.last = order
        self.orders += 1
        self._units += order.quantity
        of_instance = self._units_per_instance.get(order.instance, 0)
        self._units_per_instance[order.instance] = of_instance + order.quantity
        if order.epoch != self._epoch:
            self._token, self._epoch = 0, order.epoch  # an operator has accepted that the tokens begin anew
        if order.token < self._token:
            self._violate(f"order {_name(order)} was written with token {order.token}, after {self._token}")
        self._token = max(self._token, order.token)
        if order.key is not None:
            key = hash(order.key)
            if key in self._keys:
                self._violate(f"order {_name(order)} has an idempotency key that an earlier order has")
            self._keys.add(key)

    def _violate(self, text: str) -> None:
        if len(self._violations) < _MOST:
            self._violations.append(text)
        else:
            self._more += 1

    def compare(self, level: Level) -> Audit:
        """Check I1 and I2; `level` was read together with the last of these orders."""
        result = Audit(level.sku, level.stock, level.lucky, level.initial)
        result.orders, result.units_ordered = self.orders, self._units
        result.units_per_instance = dict(self._units_per_instance)
        result.violations = list(self._violations)
        if self._more:
            result.violations.append(f"and {self._more} orders more with such faults")
        if self._units != level.lucky:
            result.violations.append(f"lucky is {level.lucky}, but the orders add up to {self._units}")
        if level.initial is None:
            return result
        total = level.stock + level.lucky
        if total != level.initial:
            result.violations.append(f"stock + lucky is {total}, but {level.initial} units were there at the start")
        result.oversold = max(0, self._units - level.initial)
        if result.oversold:
            result.violations.append(f"{result.oversold} units were sold that did not exist")
        return result


def _name(order: Order) -> str:
    # Without the secret: the whole id opens the order.
    return order.id.rpartition("~")[0]

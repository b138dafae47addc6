"""The audit: do the numbers and the orders of an item agree? Pure, over what the store says."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from app.stock import Level, Order


@dataclass(slots=True)
class Audit:
    """What an audit found. `oversold`: units that were sold but did not exist; `violations`: sentences for a person."""

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


async def audit(level: Level, orders: AsyncIterator[Order]) -> Audit:
    """Check I1 and I2 (stock + lucky, orders, keys) and I5 (tokens never decrease) of one item.

    `orders` are those that were there when `level` was read, oldest first.
    """
    result = Audit(level.sku, level.stock, level.lucky, level.initial)
    keys: dict[str, str] = {}
    token = era = 0
    async for order in orders:
        result.orders += 1
        result.units_ordered += order.quantity
        of_instance = result.units_per_instance.get(order.instance, 0)
        result.units_per_instance[order.instance] = of_instance + order.quantity
        if order.era != era:
            token, era = 0, order.era  # an operator has accepted that the tokens begin anew
        if order.token < token:
            result.violations.append(f"order {order.id} was written with token {order.token}, after {token}")
        token = max(token, order.token)
        if order.key is not None:
            if order.key in keys:
                result.violations.append(f"orders {keys[order.key]} and {order.id} have one idempotency key")
            keys[order.key] = order.id
    _compare(result)
    return result


def _compare(result: Audit) -> None:
    if result.units_ordered != result.lucky:
        result.violations.append(f"lucky is {result.lucky}, but the orders add up to {result.units_ordered}")
    if result.initial is None:
        return
    total = result.stock + result.lucky
    if total != result.initial:
        result.violations.append(f"stock + lucky is {total}, but {result.initial} units were there at the start")
    result.oversold = max(0, result.units_ordered - result.initial)
    if result.oversold:
        result.violations.append(f"{result.oversold} units were sold that did not exist")

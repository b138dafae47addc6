"""The result of a sale: parcels, money, and who held and did not pay, by item and by day."""

import csv
import io
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from app import money
from app.orders import Order, OrderState, account

_MONEY: Final = ("paid", "given_back", "owed", "kept", "disputed")
_COUNTS: Final = ("to_ship", "from_line", "paid_orders", "unpaid_orders", "attention")
COLUMNS: Final = (
    "item",
    "day",
    *_COUNTS,
    *(f"{state}_{what}" for what in ("orders", "units") for state in OrderState),
    "currency",
    *_MONEY,
)


@dataclass(slots=True)
class OrderSums:
    """The sums of some orders: orders and units by state, and their payments by currency ("": of none)."""

    orders: Counter[OrderState] = field(default_factory=Counter)
    units: Counter[OrderState] = field(default_factory=Counter)
    attention: int = 0
    from_line: int = 0  # units that were sold to buyers who had waited
    left_line: int = 0  # orders that waited, and were never offered anything
    money: dict[str, account.Sums] = field(default_factory=dict)

    def add(self, order: Order) -> None:
        """Add an order."""
        self.orders[order.state] += 1
        self.units[order.state] += order.quantity
        self.attention += order.record.needs_attention
        if order.state is OrderState.CONFIRMED and order.record.waited:
            self.from_line += order.quantity
        self.left_line += order.state is OrderState.CANCELLED and not order.record.due_ms
        account.add_up(self.money, order.record.sums.values())

    def merge(self, other: "OrderSums") -> None:
        """Add the sums of others."""
        self.orders.update(other.orders)
        self.units.update(other.units)
        self.attention += other.attention
        self.from_line += other.from_line
        self.left_line += other.left_line
        account.add_up(self.money, other.money.values())

    @property
    def to_ship(self) -> int:
        """The units that buyers have paid, or got at once."""
        return self.units[OrderState.SOLD] + self.units[OrderState.CONFIRMED]

    @property
    def paid_orders(self) -> int:
        """The orders that were held, and then paid."""
        return self.orders[OrderState.CONFIRMED] + self.orders[OrderState.REFUNDED]

    @property
    def unpaid_orders(self) -> int:
        """The orders that were held, and never paid."""
        return self.orders[OrderState.EXPIRED] + self.orders[OrderState.CANCELLED] - self.left_line

    @property
    def conversion(self) -> float | None:
        """The share of paid holds among the holds that are over; None if none is over."""
        over = self.paid_orders + self.unpaid_orders
        return round(self.paid_orders / over, 4) if over else None

    @property
    def told(self) -> dict[str, Any]:
        """The sums for programs. Amounts are in the minor unit of their currency."""
        return {
            **{what: {str(state): getattr(self, what)[state] for state in OrderState} for what in ("orders", "units")},
            **{name: getattr(self, name) for name in _COUNTS},
            "conversion": self.conversion,
            "money": {
                currency: {name: getattr(total, name) for name in _MONEY}
                for currency, total in sorted(self.money.items())
            },
        }


class Report:
    """Adds orders up. `since`: only orders that began then or later.

    `zone`: that of the days; without it the offset of `since`, or UTC. `sku`: only what is of this item; the money of
    an order is at its first one.
    """

    def __init__(self, since: datetime | None = None, zone: tzinfo | None = None, sku: str | None = None) -> None:
        self._sku = sku
        self._since = since.timestamp() if since else 0.0
        self._zone = zone or (since.tzinfo if since else UTC)
        self._at = time.time()
        self._sums: dict[tuple[str, str], OrderSums] = {}  # by item and day

    def add(self, order: Order) -> None:
        """Add an order."""
        if order.sold_at >= self._since:
            day = datetime.fromtimestamp(order.sold_at, self._zone).date().isoformat()
            if self._sku in (None, order.sku):
                self._sums.setdefault((order.sku, day), OrderSums()).add(order)
            for line in order.record.lines:  # its order and its money are the first item's
                if self._sku in (None, line.sku):
                    self._sums.setdefault((line.sku, day), OrderSums()).units[order.state] += line.quantity

    @property
    def total(self) -> OrderSums:
        """The sums of all orders."""
        found = OrderSums()
        for sums in self._sums.values():
            found.merge(sums)
        return found

    @property
    def items(self) -> dict[str, OrderSums]:
        """The sums of each item that has orders, by its name."""
        return self._by(0)

    @property
    def days(self) -> dict[str, OrderSums]:
        """The sums of each day on which orders began, oldest first."""
        return self._by(1)

    def _by(self, part: int) -> dict[str, OrderSums]:
        found: dict[str, OrderSums] = {}
        for key, sums in sorted(self._sums.items(), key=lambda one: one[0][part]):
            found.setdefault(key[part], OrderSums()).merge(sums)
        return found

    @property
    def told(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "at": self._at,
            "total": self.total.told,
            "items": [{"sku": sku} | sums.told for sku, sums in self.items.items()],
            "days": [{"day": day} | sums.told for day, sums in self.days.items()],
        }

    def csv(self) -> str:
        """The report for spreadsheets: a line for each item, day and currency; the first of a day has the counts."""
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow(COLUMNS)
        for (sku, day), sums in sorted(self._sums.items()):
            for number, row in enumerate(_rows(sums)):
                lines.writerow(
                    (sku, day, *(row if number == 0 else [0] * (len(row) - len(_MONEY) - 1) + row[-len(_MONEY) - 1 :]))
                )
        return text.getvalue()


def _rows(sums: OrderSums) -> Iterator[list[Any]]:
    told = sums.told
    counts = [told[name] for name in _COUNTS] + [*told["orders"].values(), *told["units"].values()]
    for currency, sums_of in (told["money"] or {"": dict.fromkeys(_MONEY, 0)}).items():
        yield [*counts, currency, *(money.decimal(one, currency or None) for one in sums_of.values())]

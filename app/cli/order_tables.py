"""Orders and their lives, for people."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from app import moments, money
from app.cli import tables
from app.orders import Event, Order, Record
from app.orders.view import step

_AMOUNTS: Final = ("price", "amount", "expected", "subtotal", "given_back")  # facts of events


def print_orders(orders: list[Order]) -> None:
    """Print a line for each order."""
    if not orders:
        Console().print("There is no such order.")
        return
    names = (
        "began",
        Column("number", overflow="fold"),
        "state",
        "units",
        "buyer",
        "ref",
        "to pay",
        "payment",
        "due back",
    )
    table = Table(*names)
    for one in orders:
        record = one.record
        texts = (record.ref or "", _money(record), record.payment_ref or "", " ".join(record.refunds_due))
        own = (moments.written(one.sold_at), one.id.name, one.state, str(one.quantity), one.buyer or "")
        table.add_row(*map(tables.foreign, (*own, *texts)))
    Console().print(table)


def print_life(order: Order, events: list[Event]) -> None:
    """Print an order, and a line for each of its events."""
    print_orders([order])
    table = Table("when", "event", "token", Column("batch", overflow="fold"), Column("facts", overflow="fold"))
    for one in events:
        facts = step(order, one)["facts"]
        said = ", ".join(_fact(name, facts, order.record) for name in facts)
        table.add_row(*map(tables.foreign, (moments.written(one.at), one.kind, str(one.token), one.batch_id, said)))
    Console().print(table)


def _money(record: Record) -> str:
    """The amount of an order."""
    return "" if record.to_pay is None else money.written(record.to_pay, record.currency)


def _fact(name: str, facts: Mapping[str, Any], record: Record) -> str:
    """A fact of an event; amounts are in the currency of the order, or in that of the payment."""
    value = facts[name]
    if name == "pay_by":
        value = moments.written(value)
    if name in _AMOUNTS and isinstance(value, int):
        value = money.written(value, facts.get("currency", record.currency) if name == "amount" else record.currency)
    return f"{name} {value}"

"""Orders and their lives, for people."""

from collections.abc import Mapping
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from app import moments, money
from app.cli import tables
from app.orders import Event, Order, Record
from app.orders.view import step

_AMOUNTS: Final = ("price", "amount", "expected", "subtotal", "given_back")  # facts of events
_DROPPED_FIRST: Final = ("ref", "to pay", "began", "payment")
_WHOLE: Final = ("number", "state", "units")
_EDGE: Final = 3  # of a cell


def print_orders(orders: list[Order]) -> None:
    """Print a line for each order, whose number can be copied; a narrow terminal lacks other columns."""
    console = Console()
    if not orders:
        console.print("There is no such order.")
        return
    columns: dict[str, list[str]] = {
        "began": [moments.written(one.sold_at) for one in orders],
        "number": [one.id.name for one in orders],
        "state": [one.state for one in orders],
        "units": [str(one.quantity) for one in orders],
        "buyer": [one.buyer or "" for one in orders],
        "ref": [one.record.ref or "" for one in orders],
        "to pay": [_money(one.record) for one in orders],
        "payment": [one.record.payment_ref or "" for one in orders],
        "due back": [" ".join(one.record.refunds_due) for one in orders],
    }
    widths = {name: max(map(cell_len, (name, *cells))) + _EDGE for name, cells in columns.items()}
    dropped: list[str] = []
    while sum(widths[name] for name in columns) > console.width and len(dropped) < len(_DROPPED_FIRST):
        dropped.append(_DROPPED_FIRST[len(dropped)])
        del columns[dropped[-1]]
    table = Table(*(Column(name, no_wrap=name in _WHOLE, overflow="fold") for name in columns))
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(tables.foreign, cells))
    console.print(table)
    if dropped:
        console.print(f"Not shown here: {', '.join(dropped)}. A wider terminal has all, and so has --json.")


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

"""`seckill report`: the result of the sale, in tables."""

import json
from datetime import datetime, tzinfo
from typing import Final

from rich.console import Console
from rich.table import Column, Table

from app import money
from app.cli import tables
from app.cli.common import with_sale
from app.cli.progress import progress
from app.operator.report import OrderSums, Report
from app.wiring import Sale

_WIDEST: Final = 1000
_DAY_WIDTH: Final = len("2026-11-11")
_MONEY: Final = ("paid", "given_back", "owed", "kept")


def run(sku: str | None, since: datetime | None, zone: tzinfo | None, as_: str) -> None:
    """Print the report on an item, or on all."""

    async def add_up(sale: Sale) -> Report:
        async with progress(sale, sku) as advance:
            return await sale.orders.report(sku, since, zone, looked=advance)

    found = with_sale(add_up)
    if as_ == "csv":
        print(found.csv(), end="")  # noqa: T201
    elif as_ == "json":
        print(json.dumps(found.told, indent=2))  # noqa: T201
    else:
        _print(found)


def _print(report: Report) -> None:
    console = Console()
    if not report.items:
        console.print("There is no order.")
        return
    line = report.total.from_line > 0
    by_item = _table("item", line=line)
    for sku, sums in report.items.items():
        by_item.add_row(*_row(sku, sums, line=line))
    if len(report.items) > 1:
        by_item.add_section()
        by_item.add_row(*_row("all", report.total, line=line))
    _show(by_item)
    if len(report.days) > 1:
        by_day = _table("day", line=line)
        for day, sums in report.days.items():
            by_day.add_row(*_row(day, sums, line=line))
        _show(by_day)
    if report.total.attention:
        said = f"Orders that need attention: {report.total.attention:,}. See `seckill orders list --state attention`."
        console.print(said, markup=False, highlight=False)


def _show(table: Table) -> None:
    """Print it in full width, as a shortened sum would be a wrong one."""
    Console(width=max(Console().width, Console(width=_WIDEST).measure(table).maximum)).print(table)


def _table(of: str, *, line: bool) -> Table:
    counts = ("ship", *(["from\nline"] if line else []), "paid\norders", "un-\npaid", "%", "")
    numbers = (*counts, *(name.replace("_", "\n") for name in _MONEY))
    columns = (Column(name, justify="right", no_wrap=True) for name in numbers)
    return Table(Column(of, overflow="fold", min_width=_DAY_WIDTH), *columns, box=None, padding=(0, 1, 0, 0))


def _row(name: str, sums: OrderSums, *, line: bool) -> list[str]:
    """A row. Counts are orders, except the units to ship, and those of them from the `line`; a currency has a line."""
    told = sums.told
    rate = "" if sums.conversion is None else f"{sums.conversion * 100:.0f}"
    counts = (sums.to_ship, *([sums.from_line] if line else []), sums.paid_orders, sums.unpaid_orders)
    amounts = [
        "\n".join(money.decimal(one[what], currency or None) for currency, one in told["money"].items())
        for what in _MONEY
    ]
    return [tables.foreign(name), *(f"{one:,}" for one in counts), rate, "\n".join(told["money"]), *amounts]

"""A bar on standard error, while orders are looked through."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.wiring import Sale


@asynccontextmanager
async def progress(sale: Sale, sku: str | None) -> AsyncIterator[Callable[[int], None]]:
    """Show the bar for an item, or for all, if somebody looks; yield the function that moves it on by some orders."""
    total = sum([await sale.store.count_orders(one) for one in await sale.orders.named(sku)])
    columns = TextColumn("orders"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("orders", total=total)
        yield lambda more: bar.update(task, advance=more)

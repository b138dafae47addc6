"""Questions to the operator before data is lost, and the export of that data."""

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import typer

from app.cli.common import counted
from app.cli.events import undelivered
from app.errors import ConfigurationError, SeckillError, UnknownItem
from app.sale import EVERYTHING
from app.sale.export import Format, head, lines
from app.stock import DEFAULT_RECEIVER
from app.wiring import Sale


async def is_meant(sale: Sale, sku: str) -> None:
    """Ask whether a new item is meant, if existing ones have similar names."""
    if sale.stock.catalogue is not None:
        return  # the catalogue knows all items
    try:
        await sale.store.level(sku)
    except UnknownItem:
        if there := await sale.stock.items():
            near = difflib.get_close_matches(sku, there, n=3) or there[:5]
            typer.confirm(
                f"There is no item {sku!r} yet; there is {', '.join(near)}. Make a new one?", abort=True, err=True
            )


async def may_forget(sale: Sale, sku: str, export: Path | None, *, yes: bool) -> int | None:
    """Export an item's orders, and ask whether they may be forgotten. Returns their number; None: any number."""
    count = await _export(sale, sku, export) if export is not None else None
    behind = (await undelivered(sale.store, sku)).items()
    to = {name: "the webhook" if name == DEFAULT_RECEIVER else f"the receiver {name}" for name, _ in behind}
    lost = ", and ".join(
        f"{counted(count, 'event')} of {sku!r} that {to[name]} did not get" for name, count in behind if count
    )
    if yes:
        if lost:
            typer.echo(f"forgotten: {lost}", err=True)
        return count
    if count is None:
        count = await sale.store.count_orders(sku)
    if count:
        orders = f"{counted(count, 'order')} of {sku!r}" + (f", and {lost}," if lost else "")
        typer.confirm(f"{orders} will be forgotten. Begin a new sale?", abort=True, err=True)
    return count


async def _export(sale: Sale, sku: str, file: Path) -> int:
    """Write all orders of an item to a new file, and return their number."""
    count = 0
    form: Format = "csv" if file.suffix.lower() == ".csv" else "jsonl"
    with whole_file(file, "--export") as text:
        text.write(head(form))
        async for page in sale.orders.pages(sku, EVERYTHING):
            text.write(lines(page.orders, form))
            count += len(page.orders)
    return count


@contextmanager
def whole_file(file: Path, option: str) -> Iterator[TextIO]:
    """Create a text file that appears only when it is complete."""
    try:
        if file.exists():
            raise ConfigurationError(f"{option}: {file} exists")
        unfinished = file.with_name(f".{file.name}-{os.getpid()}")
        try:
            with unfinished.open("x", newline="", encoding="utf-8") as text:
                unfinished.chmod(0o600)  # the orders are confidential
                yield text
                text.flush()
                os.fsync(text.fileno())
            unfinished.rename(file)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise SeckillError(f"{option}: {file} can't be written: {error.strerror}") from None

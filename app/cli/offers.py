"""`seckill stock load` compares the stock with a file, shows the differences, and then makes them, item by item."""

from collections.abc import Mapping
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from app.cli import tables
from app.cli.common import counted, name_of, say, with_sale
from app.errors import EXPECTED, SeckillError, StockError
from app.orders.offer import Offer
from app.web import catalogue
from app.wiring import Sale

_Differences = Mapping[str, list[tuple[str, str, str]]]


def load(file: Path, *, dry_run: bool, yes: bool, by: str) -> None:
    """Show how the store differs from the file, ask, and change it."""
    offers, operator = catalogue.read(file).offers, name_of(by)

    async def work(sale: Sale) -> int:
        differences = await _differences(sale, offers)
        _print(differences)
        if others := sorted(set(await sale.stock.items()) - offers.keys()):
            _tell(f"Not in {file.name}, and left alone: {', '.join(others)}")
        changed = {sku: offers[sku] for sku, found in differences.items() if found}
        if not changed:
            _tell(f"Nothing to change: everything is as {file.name} says.")
        if not changed or dry_run:
            return 0
        if not yes:
            typer.confirm(f"Change {counted(len(changed), 'item')}?", abort=True, err=True)
        return await _change(sale, changed, operator)

    raise typer.Exit(with_sale(work))


async def _differences(sale: Sale, offers: Mapping[str, Offer]) -> _Differences:
    """The differences of each item. Raises `SeckillError` with all that is wrong: then nothing is changed."""
    found, wrong = {}, []
    for sku, offer in offers.items():
        try:
            found[sku] = await sale.stock.difference(sku, offer)
        except StockError as error:
            wrong.append(f"{sku}: {error}")
    if wrong:
        raise SeckillError("\n".join([*wrong, "nothing was changed"]))
    return found


async def _change(sale: Sale, offers: Mapping[str, Offer], by: str) -> int:
    left = list(offers)
    for sku, offer in offers.items():
        try:
            level = await sale.stock.put_on_sale(sku, offer, by=by)
        except EXPECTED as error:
            status = say(f"{sku}: {error}")
            say(f"not done: {', '.join(left)}; the same command again does the rest")
            return status
        left.remove(sku)
        why = sale.stock.closed(level)
        _tell(f"{sku}: done" + (f", and nothing of it is sold now: {why}" if why else ""))
    return 0


def _print(differences: _Differences) -> None:
    table = Table(
        "item", "what", Column("is", overflow="fold"), Column("will be", overflow="fold"), box=box.SIMPLE_HEAD
    )
    for sku, found in differences.items():
        for number, texts in enumerate(found):
            table.add_row(*map(tables.foreign, ("" if number else sku, *texts)))
    if table.row_count:
        Console().print(table)


def _tell(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)

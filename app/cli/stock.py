"""`seckill stock`: look at the stock, and set it."""

import dataclasses
import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from app.cli import tables, terms
from app.cli.common import By, Json, Yes, name_of, print_json, say, with_sale
from app.errors import StockError
from app.orders import DEFAULT_SKU, PAUSED_MAX, PAUSED_PATTERN
from app.stock import Level
from app.wiring import Sale

stock = typer.Typer(
    name="stock",
    help="Look at the stock, and set it (under the lock, guarded like any other write).",
    no_args_is_help=True,
)

Sku = Annotated[str, typer.Option(help="The item.")]
All = Annotated[bool, typer.Option("--all", help="All items, one after the other.")]


@stock.command("show")
def stock_show(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Show the units left and sold."""

    async def show(sale: Sale) -> list[Level]:
        if sku:
            return [await sale.store.level(sku)]
        found = await sale.stock.levels(await sale.stock.items())
        return [level for level in found.values() if isinstance(level, Level)]

    _print_levels(with_sale(show), as_json)


@stock.command("set")
@terms.with_options
def stock_set(
    units: Annotated[
        int | None, typer.Argument(min=0, max=10**12, help="Units left from now on; as many as there are without.")
    ] = None,
    sku: Sku = DEFAULT_SKU,
    add: Annotated[bool, typer.Option("--add", help="Add so many to those that are left.")] = False,
    new_sale: Annotated[
        bool,
        typer.Option(
            "--new-sale", help="Forget what was sold: orders, buyers and keys are deleted. Asks, with their number."
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Before the new sale, write the orders to this new file: CSV if it ends so, else JSON Lines."
        ),
    ] = None,
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
    **given: str | None,
) -> None:
    """Set the units left, and the item's terms. Units that were sold stay sold, unless it is a new sale.

    `none`: no limit, no start, no end; `default`: as the settings have it for all items.
    """
    if export is not None and not new_sale:
        raise typer.BadParameter("goes with --new-sale", param_hint="--export")
    if add and new_sale:
        raise typer.BadParameter("not together with --new-sale", param_hint="--add")
    changed = terms.read(given)
    if doubt := terms.doubtful(changed):
        say(doubt)
    if units is None and (add or new_sale or not changed):
        raise typer.BadParameter("say how many", param_hint="UNITS")

    async def change(sale: Sale) -> Level:
        from app.cli import questions  # which `pause` doesn't need

        if not yes and units is not None and not add:
            await questions.is_meant(sale, sku)
        forget = await questions.may_forget(sale, sku, export, yes=yes) if new_sale else None
        return await sale.stock.set_stock(
            sku,
            units or 0,
            new_sale=new_sale,
            forget_orders=forget,
            add=add or units is None,
            terms=changed,
            by=name_of(by),
        )

    _print_levels([with_sale(change)], as_json)


@stock.command("pause")
def stock_pause(
    sku: Sku = DEFAULT_SKU,
    everything: All = False,
    text: Annotated[str, typer.Option(help="What buyers are told.")] = "The sale is paused.",
    by: By = "",
    as_json: Json = False,
) -> None:
    """Sell nothing of an item for now. Buyers are told so, and the shop's page opens again by itself."""
    if not 0 < len(text) <= PAUSED_MAX or not re.fullmatch(PAUSED_PATTERN, text):
        raise typer.BadParameter(f"a line of {PAUSED_MAX} characters at most", param_hint="--text")
    _change_terms(sku, everything, by, as_json, paused=text)


@stock.command("resume")
def stock_resume(sku: Sku = DEFAULT_SKU, everything: All = False, by: By = "", as_json: Json = False) -> None:
    """Sell on after a pause."""
    _change_terms(sku, everything, by, as_json, paused=None)


@stock.command("end")
def stock_end(sku: Sku = DEFAULT_SKU, everything: All = False, by: By = "", as_json: Json = False) -> None:
    """End the sale of an item now, by this machine's clock. `stock set --ends-at` opens it again."""
    _change_terms(sku, everything, by, as_json, ends_at=time.time())


def _change_terms(sku: str, everything: bool, by: str, as_json: bool, **change: Any) -> None:
    failed = []

    async def change_each(sale: Sale) -> list[Level]:
        done = []
        for one in await sale.stock.items() if everything else [sku]:
            try:
                done.append(await sale.stock.set_stock(one, 0, add=True, terms=change, by=name_of(by)))
            except StockError as error:
                if not everything:
                    raise
                failed.append(say(f"{one}: {error}"))  # the others are changed all the same
        return done

    _print_levels(with_sale(change_each), as_json)
    raise typer.Exit(max(failed, default=0))


@stock.command("remove")
def stock_remove(sku: Annotated[str, typer.Option(help="The item.")], by: By = "") -> None:
    """Remove an item of which nothing was sold, such as one whose name was mistyped."""
    with_sale(lambda sale: sale.stock.remove(sku, by=name_of(by)))


@stock.command("unfence")
def stock_unfence(
    sku: Sku = DEFAULT_SKU,
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Forget the store's fence, after etcd was replaced or restored from a backup.

    Until the next sale nothing stops a paused instance of the old cluster from writing; be sure that none is left.
    """
    if not yes:
        typer.confirm(f"Have all instances that sell {sku!r} under the old lock system ended?", abort=True)

    async def unfence(sale: Sale) -> Level:
        await sale.stock.unfence(sku, by=name_of(by))
        return await sale.store.level(sku)

    _print_levels([with_sale(unfence)], as_json)


@stock.command("accept-loss")
def stock_accept_loss(
    sku: Sku = DEFAULT_SKU,
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Sell on although the store has lost orders, when no complete copy of it is left.

    Some buyers were told "sold" whose orders are gone, and their units are for sale again: set the stock accordingly.
    """

    async def accept(sale: Sale) -> Level:
        faults = await sale.readiness.faults(sku)
        for fault in faults or [f"nothing is wrong with {sku!r}: no order is known to be lost"]:
            Console(stderr=True).print(fault, markup=False, highlight=False, soft_wrap=True)
        if not yes:
            typer.confirm(f"Are the lost orders of {sku!r} gone for good?", abort=True)
        await sale.stock.accept_loss(sku, by=name_of(by))
        return await sale.store.level(sku)

    _print_levels([with_sale(accept)], as_json)


def _print_levels(levels: list[Level], as_json: bool) -> None:
    if as_json:
        print_json([dataclasses.asdict(level) for level in levels])
        return
    tables.print_levels(levels)

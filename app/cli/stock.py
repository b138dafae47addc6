"""`seckill stock`: look at the stock, and set it."""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terms
from app.cli.common import By, Json, Result, Yes, name_of, print_json, say, with_sale
from app.errors import StockError
from app.orders import DEFAULT_SKU, TERMS

if TYPE_CHECKING:
    from app.stock import Level
    from app.wiring import Sale

_CLOSED = 1  # an exit status

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

    async def show(sale: "Sale") -> "list[Level]":
        return [await sale.store.level(sku)] if sku else await _levels(sale, await sale.stock.items())

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

    `none`: no limit, no start, no end; `default`: the value of the settings.
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

    async def change(sale: "Sale") -> "Level":
        from app.cli import questions  # which `pause` doesn't need

        if not yes and units is not None and not add:
            await questions.is_meant(sale, sku)
        forget = await questions.may_forget(sale, sku, export, yes=yes) if new_sale else None
        level = await sale.stock.set_stock(
            sku,
            units or 0,
            new_sale=new_sale,
            forget_orders=forget,
            add=add or units is None,
            terms=changed,
            by=name_of(by),
        )
        if not changed.keys() & {"starts_at", "ends_at"}:
            _say_closed(sale, [level])
        return level

    _print_levels([with_sale(change)], as_json)


@stock.command("load")
def stock_load(
    file: Annotated[Path, typer.Argument(help="What is on sale, in TOML: names, units and terms of items.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: Yes = False,
    by: By = "",
) -> None:
    """Give items the units and terms of a file: shows the differences, asks, and changes item by item.

    Fields that the file lacks stay as they are, and so do items that it doesn't name. It may be repeated, also during a
    sale.
    """
    from app.cli.offers import load  # with the reader of catalogues, which `pause` doesn't need

    load(file, dry_run=dry_run, yes=yes, by=by)


@stock.command("pause")
def stock_pause(
    sku: Sku = DEFAULT_SKU,
    everything: All = False,
    text: Annotated[str, typer.Option(help="What buyers are told.")] = "The sale is paused.",
    text_in: Annotated[
        list[str] | None,
        typer.Option(metavar="LANGUAGE=TEXT", help="What readers of a language are told, such as zh=暂停; repeatable."),
    ] = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Sell nothing of an item for now. Buyers are told so, and the shop's page opens again by itself."""
    texts = dict(one.partition("=")[::2] for one in text_in or ())
    for name, value, option in (("paused", text, "--text"), ("paused_texts", texts, "--text-in")):
        if not TERMS[name].may_be_kept(value):
            raise typer.BadParameter(TERMS[name].wanted, param_hint=option)
    _change_terms(sku, everything, by, as_json, paused=text, paused_texts=texts or None)


@stock.command("resume")
def stock_resume(
    sku: Sku = DEFAULT_SKU,
    everything: All = False,
    ends_at: Annotated[
        str | None,
        typer.Option(metavar="TIME|none|default", help="When it ends from now on; none: open what has ended."),
    ] = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Sell on after a pause. Exit status 1: an item's sale has ended, or not started, and nothing of it is sold."""
    _change_terms(sku, everything, by, as_json, paused=None, paused_texts=None, **terms.read({"ends_at": ends_at}))


@stock.command("end")
def stock_end(sku: Sku = DEFAULT_SKU, everything: All = False, by: By = "", as_json: Json = False) -> None:
    """End the sale of an item now, by this machine's clock. `resume --ends-at none` opens it again."""
    _change_terms(sku, everything, by, as_json, ends_at=time.time())


def _change_terms(sku: str, everything: bool, by: str, as_json: bool, **change: Any) -> None:
    statuses: list[int] = []

    async def change_each(sale: "Sale") -> "list[Level]":
        skus = await sale.stock.items() if everything else [sku]
        set_one = partial(sale.stock.set_stock, stock=0, add=True, terms=change, by=name_of(by))
        done = await _each(skus, set_one, statuses)
        if change.get("paused", "") is None:
            statuses.extend(_say_closed(sale, done))
        return done

    _print_levels(with_sale(change_each), as_json)
    raise typer.Exit(max(statuses, default=0))


async def _each(skus: Sequence[str], change: "Callable[[str], Awaitable[Result]]", statuses: list[int]) -> list[Result]:
    """Change some items: of several, one that can't be changed stops no other, and has an exit status."""
    done = []
    for one in skus:
        try:
            done.append(await change(one))
        except StockError as error:
            if len(skus) == 1:
                raise
            statuses.append(say(f"{one}: {error}"))
    return done


def _say_closed(sale: "Sale", levels: "Sequence[Level]") -> list[int]:
    """Say which items are not sold although they are not paused, and how they are; return an exit status for each."""
    closed = {level.sku: why for level in levels if (why := sale.stock.closed(level))}
    for sku, why in closed.items():
        option = "--ends-at" if "ended" in why else "--starts-at"
        say(f"{sku}: {why}; `seckill stock set --sku {sku} {option} none` opens it")
    return [_CLOSED] * len(closed)


@stock.command("remove")
def stock_remove(sku: Annotated[str, typer.Option(help="The item.")], by: By = "") -> None:
    """Remove an item of which nothing was sold, such as one whose name was mistyped."""
    with_sale(lambda sale: sale.stock.remove(sku, by=name_of(by)))


@stock.command("unfence")
def stock_unfence(
    sku: Sku = DEFAULT_SKU, everything: All = False, yes: Yes = False, by: By = "", as_json: Json = False
) -> None:
    """Forget the store's fence, after etcd was replaced or restored from a backup.

    Until the next sale nothing stops a paused instance of the old cluster from writing; be sure that none is left.
    """
    if not yes:
        what = "" if everything else f" {sku!r}"
        typer.confirm(f"Have all instances that sell{what} under the old lock system ended?", abort=True)

    statuses: list[int] = []

    async def unfence(sale: "Sale") -> "list[Level]":
        skus = await sale.stock.items() if everything else [sku]
        await _each(skus, partial(sale.stock.unfence, by=name_of(by)), statuses)
        return await _levels(sale, skus)

    _print_levels(with_sale(unfence), as_json)
    raise typer.Exit(max(statuses, default=0))


@stock.command("accept-loss")
def stock_accept_loss(
    sku: Sku = DEFAULT_SKU,
    everything: Annotated[bool, typer.Option("--all", help="All items of which orders are lost.")] = False,
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Sell on although the store has lost orders, when no complete copy of it is left.

    Some buyers heard "sold", but their orders are gone, and their units are for sale again: set the stock accordingly.
    """

    async def accept(sale: "Sale") -> "list[Level]":
        skus = await sale.readiness.behind() if everything else [sku]
        for one in skus:
            faults = await sale.readiness.faults(one)
            for fault in faults or [f"nothing is wrong with {one!r}: no order is known to be lost"]:
                typer.echo(fault, err=True)
        if not skus:
            say("no item is known to have lost orders")
        elif not yes:
            typer.confirm(f"Are the lost orders of {', '.join(map(repr, skus))} gone for good?", abort=True)
        for one in skus:
            await sale.stock.accept_loss(one, by=name_of(by))
        return await _levels(sale, skus)

    _print_levels(with_sale(accept), as_json)


async def _levels(sale: "Sale", skus: Sequence[str]) -> "list[Level]":
    from app.stock import Level

    found = await sale.stock.levels(skus)
    return [level for level in found.values() if isinstance(level, Level)]


def _print_levels(levels: "list[Level]", as_json: bool) -> None:
    from app.cli import tables

    if as_json:
        print_json([dataclasses.asdict(level) for level in levels])
        return
    tables.print_levels(levels)

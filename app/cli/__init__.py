"""The `seckill` command, for operators; where the lab is installed, with its commands, too."""

import dataclasses
import errno
import os
import re
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from typer.core import TyperGroup
from typing_extensions import override

from app.audit import Audit
from app.cli import events, orders, payments, questions, tables, terms
from app.cli.common import HAS_LAB, By, Json, Yes, print_json, say, with_sale
from app.cli.questions import name_of
from app.errors import EXPECTED, SeckillError, StockError
from app.orders import DEFAULT_SKU, PAUSED_MAX, PAUSED_PATTERN
from app.settings import load
from app.stock import Level
from app.wiring import Sale
from fencelock import LockError, LockTimeout


class _Commands(TyperGroup):
    """The commands; those of the lab are loaded when one of them is asked for, or all."""

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._add_lab()
        return super().get_command(ctx, cmd_name)

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        self._add_lab()
        return super().list_commands(ctx)

    def _add_lab(self) -> None:
        if HAS_LAB:  # looked up by name: see the import rules
            self.commands.update(typer.main.get_group(import_module("lab.cli").app).commands)


app = typer.Typer(
    cls=_Commands,
    help="A flash sale that never oversells, undersells or loses an order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
stock = typer.Typer(
    help="Look at the stock, and set it (under the lock, guarded like any other write).", no_args_is_help=True
)
app.add_typer(stock, name="stock")
app.add_typer(orders.orders, name="orders")
app.add_typer(orders.buyers, name="buyers")
app.add_typer(payments.payments, name="payments")

_LAB_COMMANDS: Final = ("demo", "up", "rehearse", "torture", "model")
_ANYTHING: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

_SAY_EVERY_S = 2.0


def _version(wanted: bool) -> None:
    if wanted:
        print(f"seckill {version('seckill')}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


Sku = Annotated[str, typer.Option(help="The item.")]
All = Annotated[bool, typer.Option("--all", help="All items, one after the other.")]


def main() -> None:
    """Run the command; an error of ours is one line on standard error, not a stack trace."""
    try:
        app(standalone_mode=True)
    except LockTimeout as error:
        sys.exit(say(f"{error}; `seckill locks` shows who has it"))
    except EXPECTED as error:
        sys.exit(say(str(error)))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left in the buffer at its end
        sys.exit(say(f"not all was written: {error.strerror}"))


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; SECKILL_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; SECKILL_PORT.")] = None,
    operator_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the operator's own; SECKILL_OPERATOR_PORT.")
    ] = None,
) -> None:
    """Run one instance against the servers that the environment or .env names."""
    from app import server

    server.run(load(host=host, port=port, operator_port=operator_port))


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
    text_zh: Annotated[str, typer.Option(help="What readers of Chinese are told, if not the same.")] = "",
    by: By = "",
    as_json: Json = False,
) -> None:
    """Sell nothing of an item for now. Buyers are told so, and the shop's page opens again by itself."""
    for name, said in (("--text", text), ("--text-zh", text_zh or text)):
        if not 0 < len(said) <= PAUSED_MAX or not re.fullmatch(PAUSED_PATTERN, said):
            raise typer.BadParameter(f"a line of {PAUSED_MAX} characters at most", param_hint=name)
    _change_terms(sku, everything, by, as_json, paused=text, paused_zh=text_zh or None)


@stock.command("resume")
def stock_resume(sku: Sku = DEFAULT_SKU, everything: All = False, by: By = "", as_json: Json = False) -> None:
    """Sell on after a pause."""
    _change_terms(sku, everything, by, as_json, paused=None, paused_zh=None)


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


@app.command()
def log(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many lines.")] = 100,
    as_json: Json = False,
) -> None:
    """List operators' changes, the last one first: who, what, before and after."""
    changes = with_sale(lambda sale: sale.stock.log(sku, limit=limit))
    if as_json:
        print_json([dataclasses.asdict(change) for change in changes])
    else:
        tables.print_log(changes)


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


@app.command()
def locks(as_json: Json = False) -> None:
    """Show the queue of each lock: the holder first, then the waiters in order."""
    contenders = with_sale(lambda sale: sale.readiness.contenders())
    if as_json:
        print_json([dataclasses.asdict(contender) for contender in contenders])
        return
    tables.print_queues(contenders)


@app.command()
def check(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Audit the sale: do units left, units sold and orders agree, and does the store have what was acknowledged?

    Exit status 0 if so, 1 if not.
    """

    async def audit(sale: Sale) -> list[Audit]:
        audits: list[Audit] = []
        skus, said_at, compare = [sku] if sku else await sale.stock.items(), time.monotonic(), True
        async for page in sale.audits(skus):
            faults: dict[str, list[str]] = {}
            try:
                if not audits:
                    await sale.readiness.learn()
                if page and compare:
                    faults = await sale.readiness.faults_of([one.sku for one in page])
            except LockError as error:
                say(f"not compared with the lock system: {error}")
                compare = False
            for one in page:
                one.violations += [fault for fault in faults.get(one.sku, []) if fault not in one.violations]
            audits += page
            if time.monotonic() - said_at > _SAY_EVERY_S:
                said_at = time.monotonic()
                say(f"looked at {len(audits):,} of {len(skus):,} items")
        if sku and not audits:
            await sale.audit(sku)  # raises
        return audits

    audits = with_sale(audit)
    if as_json:
        print_json([dataclasses.asdict(one) | {"consistent": one.consistent} for one in audits])
    else:
        tables.print_audits(audits)
    raise typer.Exit(0 if all(one.consistent for one in audits) else 1)


def _print_levels(levels: list[Level], as_json: bool) -> None:
    if as_json:
        print_json([dataclasses.asdict(level) for level in levels])
        return
    tables.print_levels(levels)


def _without_lab(command: typer.Context) -> None:
    raise SeckillError(f"`seckill {command.info_name}` is in the lab, which is not installed here; in a checkout: make")


events.add_to(orders.orders, with_sale)

if not HAS_LAB:
    for _name in _LAB_COMMANDS:
        app.command(_name, hidden=True, context_settings=_ANYTHING)(_without_lab)

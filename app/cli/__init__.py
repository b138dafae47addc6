"""The `seckill` command: what an operator does. Where the lab is, its commands are here, too."""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console

from app.audit import Audit
from app.cli import tables, terms
from app.errors import EXPECTED, SeckillError, StockUnavailable
from app.main import Sale, open_sale
from app.settings import PREFIX, Settings, load, unknown_variables
from app.stock import DEFAULT_SKU, Level
from fencelock import LockError, LockTimeout, LockUnavailable

app = typer.Typer(
    help="A flash sale that never oversells, undersells or loses an order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
stock = typer.Typer(
    help="Look at the stock, and set it (under the lock, guarded like any other write).", no_args_is_help=True
)
app.add_typer(stock, name="stock")

# Looked up by name, as the service never needs its lab: the container and the wheel have none.
_lab: Any = import_module("lab.cli") if find_spec("lab") else None
_LAB_COMMANDS: Final = ("demo", "up", "rehearse", "torture", "model")
_ANYTHING: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

Result = TypeVar("Result")

_SAY_EVERY_S = 2.0
_FAILED = 2  # could not be done; 1 is the answer "not consistent"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"seckill {version('seckill')}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sku = Annotated[str, typer.Option(help="The item.")]


def main() -> None:
    """Run the command; an error of ours is one line on standard error, not a stack trace."""
    try:
        app(standalone_mode=True)
    except LockTimeout as error:
        sys.exit(_say(f"{error}; `seckill locks` shows who has it"))
    except EXPECTED as error:
        sys.exit(_say(str(error)))


def _say(message: str) -> int:
    for line in message.splitlines():
        print(f"seckill: {line}", file=sys.stderr)  # noqa: T201
    return _FAILED


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; SECKILL_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; SECKILL_PORT.")] = None,
) -> None:
    """Run one instance against the servers that the environment or .env names."""
    from app import server

    server.run(load(host=host, port=port))


@stock.command("show")
def stock_show(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Units left and sold."""

    async def show(sale: Sale) -> list[Level]:
        if sku:
            return [await sale.admin.level(sku)]
        found = await sale.admin.levels(await sale.admin.items())
        return [level for level in found.values() if isinstance(level, Level)]

    _print_levels(_with_sale(show), as_json)


@stock.command("set")
def stock_set(
    units: Annotated[
        int | None, typer.Argument(min=0, max=10**12, help="Units left from now on; as many as there are without.")
    ] = None,
    sku: Sku = DEFAULT_SKU,
    limit: Annotated[
        str | None, typer.Option(metavar="UNITS|none|default", help="How many one buyer may have of this item.")
    ] = None,
    starts_at: Annotated[
        str | None,
        typer.Option(metavar="TIME|none|default", help="When its sale starts, such as 2026-11-11T20:00:00+08:00."),
    ] = None,
    ends_at: Annotated[str | None, typer.Option(metavar="TIME|none|default", help="When it ends.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add so many to those that are left.")] = False,
    new_sale: Annotated[
        bool,
        typer.Option("--new-sale", help="Forget what was sold: lucky becomes 0; orders, buyers, keys are deleted."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Set the units left, and on what terms the item is sold. What was sold stays sold, unless it is a new sale.

    `none`: no limit, no start, no end; `default`: as the settings have it for all items.
    """
    if add and new_sale:
        raise typer.BadParameter("not together with --new-sale", param_hint="--add")
    changed = terms.read(limit, starts_at, ends_at)
    if units is None and (add or new_sale or not changed):
        raise typer.BadParameter("say how many", param_hint="UNITS")

    async def change(sale: Sale) -> Level:
        return await sale.admin.set_stock(sku, units or 0, new_sale=new_sale, add=add or units is None, terms=changed)

    _print_levels([_with_sale(change)], as_json)


@stock.command("unfence")
def stock_unfence(
    sku: Sku = DEFAULT_SKU,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget the store's fence, after etcd was replaced or restored from a backup.

    Until the next sale nothing stops a paused instance of the old cluster from writing; be sure that none is left.
    """
    if not yes:
        typer.confirm(f"Have all instances that sell {sku!r} under the old lock system ended?", abort=True)

    async def unfence(sale: Sale) -> Level:
        await sale.admin.unfence(sku)
        return await sale.admin.level(sku)

    _print_levels([_with_sale(unfence)], as_json)


@stock.command("accept-loss")
def stock_accept_loss(
    sku: Sku = DEFAULT_SKU,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Sell on although the store has lost orders, when no complete copy of it is left.

    Buyers were told "sold" whose orders are gone, and their units are for sale again: set the stock accordingly.
    """

    async def accept(sale: Sale) -> Level:
        faults = await sale.admin.faults(sku)
        for fault in faults or [f"nothing is wrong with {sku!r}: no order is known to be lost"]:
            Console(stderr=True).print(fault, markup=False, highlight=False, soft_wrap=True)
        if not yes:
            typer.confirm(f"Are the lost orders of {sku!r} gone for good?", abort=True)
        await sale.admin.accept_loss(sku)
        return await sale.admin.level(sku)

    _print_levels([_with_sale(accept)], as_json)


@app.command()
def locks(as_json: Json = False) -> None:
    """The queue of each lock: the holder first, then the waiters in order."""
    contenders = _with_sale(lambda sale: sale.admin.contenders())
    if as_json:
        _print_json([dataclasses.asdict(contender) for contender in contenders])
        return
    tables.print_queues(contenders)


@app.command()
def check(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Audit the sale: do stock, lucky and the orders agree, and does the store have what was acknowledged?

    Exit status 0 if so, 1 if not.
    """

    async def audit(sale: Sale) -> list[Audit]:
        audits: list[Audit] = []
        skus, said_at, compare = [sku] if sku else await sale.admin.items(), time.monotonic(), True
        async for page in sale.audits(skus):
            faults: dict[str, list[str]] = {}
            try:
                if not audits:
                    await sale.admin.learn()
                if page and compare:
                    faults = await sale.admin.faults_of([one.sku for one in page])
            except LockError as error:
                _say(f"not compared with the lock system: {error}")
                compare = False
            for one in page:
                one.violations += [fault for fault in faults.get(one.sku, []) if fault not in one.violations]
            audits += page
            if time.monotonic() - said_at > _SAY_EVERY_S:
                said_at = time.monotonic()
                _say(f"looked at {len(audits):,} of {len(skus):,} items")
        if sku and not audits:
            await sale.audit(sku)  # raises
        return audits

    audits = _with_sale(audit)
    if as_json:
        _print_json([dataclasses.asdict(one) | {"consistent": one.consistent} for one in audits])
    else:
        tables.print_audits(audits)
    raise typer.Exit(0 if all(one.consistent for one in audits) else 1)


def _print_levels(levels: list[Level], as_json: bool) -> None:
    if as_json:
        _print_json([dataclasses.asdict(level) for level in levels])
        return
    tables.print_levels(levels)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))  # noqa: T201


def _with_sale(work: Callable[[Sale], Awaitable[Result]]) -> Result:
    settings, hint = _settings()
    for line in unknown_variables():
        _say(line)

    async def run() -> Result:
        async with open_sale(settings) as sale:
            return await work(sale)

    try:
        return asyncio.run(run())
    except StockUnavailable as error:
        raise SeckillError(f"{str(error).rstrip('.')}; {hint or f'{PREFIX}STORE says where it is'}") from None
    except LockUnavailable as error:
        raise SeckillError(f"{str(error).rstrip('.')}; {hint or f'{PREFIX}LOCK says where it is'}") from None


def _settings() -> tuple[Settings, str]:
    """The user's, or those of a `seckill up` that runs here; and a hint for when nobody answers there."""
    if _lab is None:
        return load(), ""
    found: tuple[Settings, str] = _lab.settings(_say)
    return found


def _without_lab(command: typer.Context) -> None:
    raise SeckillError(f"`seckill {command.info_name}` is in the lab, which is not installed here; in a checkout: make")


if _lab is not None:
    app.add_typer(_lab.app)
else:
    for _name in _LAB_COMMANDS:
        app.command(_name, hidden=True, context_settings=_ANYTHING)(_without_lab)

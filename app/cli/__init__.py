"""The `seckill` command, for operators, with the commands of the lab if that is installed."""

import dataclasses
import errno
import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from app import moments
from app.cli.common import HAS_LAB, Json, moment, print_json, say, with_sale
from app.errors import EXPECTED, SeckillError
from fencelock import LockError, LockTimeout

if TYPE_CHECKING:  # a command loads what it needs when it runs: `--help` and a wrong option are answered at once
    from app.audit import Audit
    from app.wiring import Sale

_GROUPS: Final = {"stock": "stock", "orders": "orders", "buyers": "orders", "payments": "payments"}  # and their modules


class _Commands(TyperGroup):
    """The commands. A group is loaded when it is asked for; a name that no group has may be a command of the lab."""

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _GROUPS:
            self._add(cmd_name)
        elif cmd_name not in self.commands:
            self._add_lab()
        return super().get_command(ctx, cmd_name)

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        for name in _GROUPS:
            self._add(name)
        self._add_lab()
        return super().list_commands(ctx)

    def _add(self, name: str) -> None:
        if name not in self.commands:
            group = getattr(import_module(f"app.cli.{_GROUPS[name]}"), name)
            self.commands[name] = typer.main.get_group(group)

    def _add_lab(self) -> None:
        if HAS_LAB:  # looked up by name: see the import rules
            self.commands.update(typer.main.get_group(import_module("lab.cli").app).commands)


app = typer.Typer(
    cls=_Commands,
    help="A flash sale that never oversells, undersells or loses an order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_LAB_COMMANDS: Final = ("demo", "up", "rehearse", "torture", "model")
_ANYTHING: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

_SAY_EVERY_S = 2.0


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"seckill {version('seckill')}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


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
    from app.settings import load

    server.run(load(host=host, port=port, operator_port=operator_port))


@app.command()
def log(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many lines.")] = 100,
    as_json: Json = False,
) -> None:
    """List operators' changes, the last one first: the name, the change, before and after."""
    from app.cli import tables

    changes = with_sale(lambda sale: sale.stock.log(sku, limit=limit))
    if as_json:
        print_json([dataclasses.asdict(change) for change in changes])
    else:
        tables.print_log(changes)


@app.command()
def report(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only orders that began then or later, such as 2026-11-11T00:00:00+08:00; days have its offset."
        ),
    ] = None,
    zone: Annotated[str | None, typer.Option(help="The time zone of the days, such as Europe/Berlin.")] = None,
    as_: Annotated[
        str, typer.Option("--format", metavar="text|csv|json", help="For people, spreadsheets, or programs.")
    ] = "text",
) -> None:
    """Report on the sale: parcels, money, and how many held and did not pay, by item and by day."""
    if as_ not in ("text", "csv", "json"):
        raise typer.BadParameter("text, csv or json", param_hint="--format")
    from app.cli.report import run

    try:
        days_in = None if zone is None else moments.zone(zone)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--zone") from None
    run(sku, moment(since, "--since"), days_in, as_)


@app.command()
def locks(as_json: Json = False) -> None:
    """Show the queue of each lock: the holder first, then the waiters in order."""
    from app.cli import tables

    contenders = with_sale(lambda sale: sale.readiness.contenders())
    if as_json:
        print_json([dataclasses.asdict(contender) for contender in contenders])
        return
    tables.print_queues(contenders)


@app.command()
def check(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Audit the sale: do units left, units sold and orders agree, and does the store have all acknowledged orders?

    Exit status 0 if so, 1 if not.
    """

    from app.cli import tables

    async def audit(sale: "Sale") -> "list[Audit]":
        await sale.readiness.look_at_clock()  # which says what is wrong
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


def _without_lab(command: typer.Context) -> None:
    raise SeckillError(f"`seckill {command.info_name}` is in the lab, which is not installed here; in a checkout: make")


if not HAS_LAB:
    for _name in _LAB_COMMANDS:
        app.command(_name, hidden=True, context_settings=_ANYTHING)(_without_lab)

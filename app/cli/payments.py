"""`seckill payments`: the provider's list of payments beside the orders."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import money
from app.cli.common import Json, counted, moment, print_json, with_sale
from app.errors import SeckillError

if TYPE_CHECKING:
    from app.payments.reconcile import Difference, Movement, Reconciliation
    from app.settings import Settings
    from app.wiring import Sale

payments = typer.Typer(name="payments", help="The provider's payments beside the orders.", no_args_is_help=True)


@payments.callback()
def _payments() -> None:
    pass


@payments.command("reconcile")
def reconcile(
    file: Annotated[
        Path | None, typer.Argument(help="The provider's list: CSV, Stripe's itemized report, or JSON Lines (.jsonl).")
    ] = None,
    stripe: Annotated[bool, typer.Option("--stripe", help="Ask Stripe, with the key of SECKILL_REFUNDS.")] = False,
    since: Annotated[
        str | None, typer.Option(help="When the list begins, such as 2026-11-11T20:00:00+08:00; all without.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare each charge and each refund with the orders. Exit status 1: something differs."""
    if (file is None) != stripe:
        raise typer.BadParameter("name a file, or say --stripe", param_hint="FILE")
    first = moment(since, "--since")
    begin = first.timestamp() if first else 0.0

    from app.operator.payments import reconcile as reconciled
    from app.settings import load

    async def compare(sale: "Sale") -> "Reconciliation":
        async with aclosing(_of_stripe(load(), begin) if file is None else _of_file(file)) as lines:
            return await reconciled(sale.orders, lines, begin)

    found = with_sale(compare)
    differences = list(found.differences())
    if as_json:
        totals = {currency: total.told for currency, total in found.totals.items()}
        print_json({"differences": [one._asdict() for one in differences], "totals": totals})
    else:
        _print(differences, found)
    raise typer.Exit(1 if differences else 0)


def _print(differences: "list[Difference]", found: "Reconciliation") -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    names = ("charged there", "paid here", "given back there", "given back here", "owed", "kept")
    table = Table("", *(Column(name, justify="right") for name in names), box=None)
    for currency, total in found.totals.items():
        here = total.here
        sums = (total.charged, here.paid, total.refunded, here.given_back, here.owed, here.kept)
        table.add_row(currency or "no currency", *(money.decimal(one, currency or None) for one in sums))
    console.print(table)
    for one in differences:
        console.print(str(one), markup=False, highlight=False, soft_wrap=True)
    count = len(differences)
    said = counted(count, "difference") if count else "Each payment is where it should be."
    console.print(said, markup=False, highlight=False)


async def _of_file(file: Path) -> "AsyncGenerator[Movement, None]":
    for line in _lines(file):
        yield line


def _lines(file: Path) -> "Iterator[Movement]":
    from app.payments.statement import StatementError, read

    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            yield from read(text, json_lines=file.suffix == ".jsonl")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not in UTF-8"
        raise SeckillError(f"{file}: {reason}") from None
    except StatementError as error:
        raise SeckillError(f"{file}, {error}") from None


async def _of_stripe(settings: "Settings", since: float) -> "AsyncGenerator[Movement, None]":
    from app.wiring import refunds_of

    url = settings.refunds.get_secret_value() if settings.refunds else ""
    if not url.startswith("stripe://"):
        raise SeckillError("SECKILL_REFUNDS: --stripe needs stripe://KEY")
    provider: Any = refunds_of(settings)
    try:
        async with aclosing(provider.movements(since)) as lines:
            async for line in lines:
                yield line
    finally:
        await provider.close()

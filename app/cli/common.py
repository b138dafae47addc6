"""The common part of the commands: their options, and the sale that they work on."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from app import moments
from app.errors import SeckillError, StockUnavailable
from fencelock import LockUnavailable

if TYPE_CHECKING:
    from app.settings import Settings
    from app.wiring import Sale

HAS_LAB: Final = find_spec("lab") is not None  # not in the container and the wheel, as the service never needs it

Result = TypeVar("Result")

_NAME_MAX: Final = 64
_FAILED = 2  # the command could not be carried out; 1 is the answer "not consistent"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
By = Annotated[str, typer.Option(help="Who does it, for the log.", show_default="the login name")]


def say(message: str) -> int:
    """Print lines on standard error; return the exit status of a command that can't be carried out."""
    for line in message.splitlines():
        print(f"seckill: {line}", file=sys.stderr)  # noqa: T201
    return _FAILED


def counted(count: int, what: str) -> str:
    """A number of things, for people."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def name_of(by: str) -> str:
    """The operator's name for the log: the given one, or the login name."""
    if not by:
        import getpass

        try:
            by = getpass.getuser()
        except (OSError, KeyError):  # a container's user may have no name
            by = f"uid {os.getuid()}"
    if not by.isprintable() or len(by) > _NAME_MAX:
        raise typer.BadParameter(f"a name of {_NAME_MAX} characters at most", param_hint="--by")
    return by


def moment(text: str | None, option: str) -> datetime | None:
    """Parse a time with its zone. Raises `typer.BadParameter`, which names the option."""
    try:
        return None if text is None else moments.read(text)
    except ValueError:
        raise typer.BadParameter(f"not {moments.A_MOMENT}", param_hint=option) from None


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, allow_nan=False), flush=True)  # noqa: T201


def with_sale(work: "Callable[[Sale], Awaitable[Result]]") -> Result:
    """Do some work on the sale that the settings name."""
    import asyncio

    from app.settings import PREFIX, unknown_variables
    from app.wiring import open_sale

    settings, hint = _settings()
    for line in unknown_variables():
        say(line)

    async def run() -> Result:
        async with open_sale(settings) as sale:
            return await work(sale)

    try:
        return asyncio.run(run())
    except (StockUnavailable, LockUnavailable) as error:
        of = "STORE" if isinstance(error, StockUnavailable) else "LOCK"
        raise SeckillError(f"{str(error).rstrip('.')}; {hint or f'{PREFIX}{of} says where it is'}") from None


def _settings() -> "tuple[Settings, str]":
    """The user's settings, or those of a running `seckill up`; and a hint for when no server answers."""
    if not HAS_LAB:
        from app.settings import load

        return load(), ""
    found: tuple[Settings, str] = import_module("lab.demo.state_file").settings(say)
    return found

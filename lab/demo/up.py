"""`seckill up`: the sale on this machine, open until Ctrl-C."""

import asyncio
import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from app.errors import ConfigurationError
from app.settings import PREFIX, Guard
from lab.demo import provider, state_file
from lab.demo.stage import Stage, StageOptions, set_up
from lab.servers.process import ProcessFailed

# The settings that lead to the servers, for other terminals.
_LEADING: Final = ("LOCK", "STORE", "GUARD")
_LOOK_EVERY_S: Final = 0.5


def run(options: StageOptions, variables: Mapping[str, str], *, pay: bool = False) -> int:
    """Start the stage with these further settings, begin a new sale, and stay. `pay`: with a payment provider.

    Return the exit status: 0, or 130 if interrupted while starting.
    """
    console = Console()
    try:
        with contextlib.ExitStack() as running:
            till = provider.ProviderProcess() if pay else None
            if till and options.chosen_guard is Guard.NONE:
                raise ConfigurationError("--pay needs a guard: units can't be held without one")
            stage = running.enter_context(set_up(options, console, {**variables, **(till.variables if till else {})}))
            asyncio.run(stage.begin_sale(options.stock, *((provider.PRICE, provider.BESIDE) if till else ())))
            if till:
                running.enter_context(till.of([instance.url for instance in stage.instances]))
            stay_up(stage, console, till)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0


def stay_up(stage: Stage, console: Console, till: provider.ProviderProcess | None = None) -> None:
    """Say where everything is, and stay until Ctrl-C or SIGTERM; say so when a process ends before that.

    Raises `ProcessFailed` when no instance is left.
    """
    try:
        with _told_to_others(stage, console) as file:
            _say_where(stage, console, file, till)
            watched = [*stage.processes, *([till] if till else [])]
            while True:
                for process in [one for one in watched if not one.running]:
                    watched.remove(process)
                    console.print(
                        f"{process.name} has ended:\n{process.last_lines(3)}",
                        style="red",
                        markup=False,
                        highlight=False,
                        soft_wrap=True,
                    )
                if not any(instance.running for instance in stage.instances):
                    raise ProcessFailed("all instances have ended, so nothing can be sold any more")
                time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        console.print("Stopping.")


@contextlib.contextmanager
def _told_to_others(stage: Stage, console: Console) -> Iterator[Path | None]:
    """Keep the file by which other terminals find the sale; yield None if it can't be written, and say so."""
    urls = [instance.url for instance in stage.instances]
    with contextlib.ExitStack() as kept:
        file = None
        try:
            file = kept.enter_context(state_file.told(state_file.of(stage.settings, urls)))
        except OSError as error:
            console.print(f"Other terminals won't find it by themselves: {error}", markup=False, soft_wrap=True)
        yield file


def _say_where(stage: Stage, console: Console, file: Path | None, till: provider.ProviderProcess | None) -> None:
    """Print for people first, then for programs and other terminals. Nothing is wrapped, so that it can be copied."""
    token = stage.admin_token
    first, *others = [instance.url for instance in stage.instances]
    places = [
        ("The shop", f"{first}/"),
        *(("", f"{url}/") for url in others),
        *([("The payments", f"{till.url}/callbacks"), ("Their bad days", f"{till.url}/sandbox")] if till else []),
        ("The control room", f"{first}/control?token={token}"),
        ("The API", f"{first}/docs"),
        ("The admin token", token),
        ("The lock", stage.variables["LOCK"]),
        ("The store", stage.variables["STORE"]),
        *([("All of this", f"{file} (until the end)")] if file else []),
    ]
    console.print()
    for name, place in places:
        console.print(f"  [bold]{name:16}[/]  [cyan]{place}[/]", soft_wrap=True, highlight=False)
    # Other terminals find the sale by themselves, unless the user has set something that leads elsewhere.
    leading = " ".join(
        f"{PREFIX}{name}={shlex.quote(value)}" for name, value in stage.variables.items() if name in _LEADING
    )
    seckill = shlex.quote(str(Path(sys.executable).with_name("seckill")))
    lines = [
        "",
        "  To look into it, and to have 300 units again, in another terminal:",
        "",
        *([f"  export {leading}"] if file is None or state_file.leads_elsewhere() else []),
        f"  {seckill} stock set 300",
        f"  {seckill} locks",
        f"  {seckill} check",
        "",
        "  Ctrl-C ends it.",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

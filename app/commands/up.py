"""`seckill up`: the sale on this machine, open until Ctrl-C."""

import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from app.commands.stage import Stage, StageOptions, set_up
from app.settings import PREFIX

# The settings that lead to the servers, for other terminals.
_LEADING: Final = ("LOCK", "STORE", "GUARD")
_LOOK_EVERY_S: Final = 0.5


def run(options: StageOptions) -> int:
    """Start all of it, begin a new sale, and stay; the exit status: 0, or 130 if it was ended before it stood."""
    console = Console()
    try:
        with set_up(options, console) as stage:
            asyncio.run(stage.begin_sale(options.stock))
            stay_up(stage, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0


def stay_up(stage: Stage, console: Console) -> None:
    """Say where everything is, and stay until Ctrl-C or SIGTERM; say so when a process ends before that."""
    try:
        _say_where(stage, console)
        watched = stage.processes
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
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        console.print("Stopping.")


def _say_where(stage: Stage, console: Console) -> None:
    """For people first, then for programs and other terminals. Nothing is wrapped: it is there to be copied."""
    token = stage.variables["ADMIN_TOKEN"]
    first, *others = [instance.url for instance in stage.instances]
    places = [
        ("The shop", f"{first}/"),
        *(("", f"{url}/") for url in others),
        ("The control room", f"{first}/control?token={token}"),
        ("The interface", f"{first}/docs"),
        ("The admin token", token),
    ]
    console.print()
    for name, place in places:
        console.print(f"  [bold]{name:16}[/]  [cyan]{place}[/]", soft_wrap=True, highlight=False)
    leading = " ".join(
        f"{PREFIX}{name}={shlex.quote(value)}" for name, value in stage.variables.items() if name in _LEADING
    )
    seckill = Path(sys.executable).with_name("seckill")
    lines = [
        "",
        "  To look into it, and to begin anew, in another terminal:",
        "",
        f"  export {leading}",
        f"  {seckill} stock set 300 --new-sale",
        f"  {seckill} locks",
        f"  {seckill} check",
        "",
        "  Ctrl-C ends it.",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

"""`seckill model`: explores the protocol, either whole or without one of its mechanisms."""

import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from lab.model.picture import draw
from lab.model.protocol import MEANING, SCOPES, SMALLEST, Mechanism, Protocol, Scope
from lab.model.search import Found, explore

_FAST: Final = 3  # number of scopes; the last one takes minutes


def whole(*, thorough: bool) -> int:
    """Explore the whole protocol, and return 0 if no state breaks a promise."""
    console = Console()
    for scope in SCOPES if thorough else SCOPES[:_FAST]:
        began = time.monotonic()
        with console.status(f"Exploring {_text(scope)}"):
            found = explore(Protocol(scope))
        took_s = time.monotonic() - began
        console.print(f"{_text(scope)}: {found.states:,} states in {took_s:.0f} s", end="", highlight=False)
        console.print(f", [red]✗ {found.violation}[/]" if found.violation else ", [green]every promise is kept[/]")
        if found.violation:
            _tell(console, found)
            return 1
    return 0


def without(mechanism: Mechanism, picture: Path | None) -> int:
    """Explore it without a mechanism, and print the shortest history that breaks a promise; return 1 if one exists."""
    console = Console()
    scope = SMALLEST.get(mechanism, Scope())
    protocol = Protocol(scope, without=frozenset({mechanism}))
    console.print(f"Without {mechanism}, {_text(scope)}. It means: {MEANING[mechanism]}.", highlight=False)
    found = explore(protocol)
    if not found.violation:
        console.print(f"{found.states:,} states, and every promise is kept: it is not needed here.", highlight=False)
        return 0
    _tell(console, found)
    console.print(
        f"This is what `{mechanism}` is for: with it, no state breaks a promise.", style="bold", highlight=False
    )
    if picture is not None:
        picture.write_text(draw(protocol, found, mechanism, MEANING[mechanism]))
        console.print(f"The picture is in {picture}", highlight=False)
    return 1


def each(pictures: Path | None) -> int:
    """Leave out one mechanism after the other, and return 0 if each of them is missed."""
    console = Console()
    table = Table("without", "what breaks", "steps", "states", title="Each mechanism, left out by itself")
    needless = []
    for mechanism in Mechanism:
        protocol = Protocol(SMALLEST.get(mechanism, Scope()), without=frozenset({mechanism}))
        with console.status(f"Exploring without {mechanism}"):
            found = explore(protocol)
        if not found.violation:
            needless.append(mechanism)
        elif pictures is not None:
            (pictures / f"without-{mechanism}.svg").write_text(draw(protocol, found, mechanism, MEANING[mechanism]))
        table.add_row(mechanism, found.violation or "nothing", str(len(found.history) or ""), f"{found.states:,}")
    console.print(table)
    if needless:
        console.print(f"Nothing misses {', '.join(needless)}: delete it.", style="red")
    return 1 if needless else 0


def _tell(console: Console, found: Found) -> None:
    for number, (note, _) in enumerate(found.history, 1):
        who = f"{note.by} → {note.to}" if note.to else note.by
        console.print(f"{number:4}  {who:22}  {note.text}", highlight=False)
    console.print(f"✗ {found.violation}", style="red", highlight=False)


def _text(scope: Scope) -> str:
    faults = f"{scope.faults} fault{'s' * (scope.faults != 1)}"
    units = f"{scope.units} unit{'s' * (scope.units != 1)}"
    return f"{scope.instances} instances, {scope.buyers} buyers who ask up to {scope.asks} times, {units}, {faults}"

"""`seckill model`: explores the models, either whole or without one of their mechanisms."""

import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from lab.model.money import Money
from lab.model.picture import draw
from lab.model.protocol import Protocol
from lab.model.search import Model, SearchResult, explore

_MODELS: Final[tuple[type[Model[Any]], ...]] = (Protocol, Money)
_FAST: Final = 3  # number of scopes; the last one takes minutes


def whole(*, thorough: bool) -> int:
    """Explore the models with all mechanisms, and return 0 if no state breaks a promise."""
    console = Console()
    for kind in _MODELS:
        for scope in kind.scopes if thorough else kind.scopes[:_FAST]:
            began = time.monotonic()
            with console.status(f"Exploring {scope}"):
                found = explore(kind(scope))
            took_s = time.monotonic() - began
            console.print(f"{scope}: {found.states:,} states in {took_s:.0f} s", end="", highlight=False)
            console.print(f", [red]✗ {found.violation}[/]" if found.violation else ", [green]every promise is kept[/]")
            if found.violation:
                _tell(console, found)
                return 1
    return 0


def without(name: str, picture: Path | None) -> int:
    """Explore it without a mechanism, and print the shortest history that breaks a promise; return 1 if one exists."""
    console = Console()
    mechanism, kind = next((one, kind) for kind in _MODELS for one in kind.mechanisms if one == name)
    model = kind.lacking(mechanism)
    console.print(f"Without {mechanism}, {model.scope}. It means: {kind.meaning[mechanism]}.", highlight=False)
    found = explore(model)
    if not found.violation:
        console.print(f"{found.states:,} states, and every promise is kept: it is not needed here.", highlight=False)
        return 0
    _tell(console, found)
    console.print(
        f"This is what `{mechanism}` is for: with it, no state breaks a promise.", style="bold", highlight=False
    )
    if picture is not None:
        picture.write_text(draw(model, found, mechanism))
        console.print(f"The picture is in {picture}", highlight=False)
    return 1


def each(pictures: Path | None) -> int:
    """Leave out one mechanism after the other, and return 0 if each of them is missed."""
    console = Console()
    table = Table("without", "what breaks", "steps", "states", title="Each mechanism, left out by itself")
    needless = []
    for mechanism, model in [(one, kind.lacking(one)) for kind in _MODELS for one in kind.mechanisms]:
        with console.status(f"Exploring without {mechanism}"):
            found = explore(model)
        if not found.violation:
            needless.append(mechanism)
        elif pictures is not None:
            (pictures / f"without-{mechanism}.svg").write_text(draw(model, found, mechanism))
        table.add_row(mechanism, found.violation or "nothing", str(len(found.history) or ""), f"{found.states:,}")
    console.print(table)
    if needless:
        console.print(f"Nothing misses {', '.join(needless)}: delete it.", style="red")
    return 1 if needless else 0


def _tell(console: Console, found: SearchResult[Any]) -> None:
    for number, (note, _) in enumerate(found.history, 1):
        who = f"{note.by} → {note.to}" if note.to else note.by
        console.print(f"{number:4}  {who:22}  {note.text}", highlight=False)
    console.print(f"✗ {found.violation}", style="red", highlight=False)

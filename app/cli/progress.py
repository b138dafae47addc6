"""A bar on standard error, while orders are looked through."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress() -> Iterator[Any]:
    """Show the bar, if somebody looks; yield the function that moves it on: `advance(more, total)`."""
    columns = TextColumn("orders"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("orders", total=None)
        yield lambda more, total: bar.update(task, advance=more, total=total)

"""Each command says how it is used."""

from collections.abc import Iterator
from typing import Any

import click
import typer
from typer.testing import CliRunner

from app.cli import app


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    yield path
    if hasattr(command, "list_commands"):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands((*path, name), command.get_command(context, name))


def test_every_command_has_a_help() -> None:
    """All groups and commands, the lab's, too: with the oldest libraries that are allowed as well (.ci/lowest)."""
    names = list(commands((), typer.main.get_command(app)))
    assert {("stock", "pause"), ("orders", "find"), ("payments", "reconcile"), ("serve",)} <= set(names)
    for path in names:
        told = CliRunner().invoke(app, [*path, "--help"])
        assert (told.exit_code, "Usage:" in told.stdout) == (0, True), (path, told.output, told.exception)

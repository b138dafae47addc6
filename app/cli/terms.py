"""The terms of an item as options of the command line: see `app.orders.terms`."""

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from app import moments
from app.orders import TERMS, TermsChange
from app.orders.terms import OPTIONS, NotATerm, read_terms

Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(command: Command) -> Command:
    """Give a command an option for each term, in the place of its `**given`."""
    signature = inspect.signature(command)
    found = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for option, name in OPTIONS.items():
        about = typer.Option(metavar=TERMS[name].metavar, help=TERMS[name].help)
        own = {"default": None, "annotation": Annotated[str | None, about]}
        found.append(inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, **own))
    command.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]  # Typer reads it
    return command


def read(given: Mapping[str, str | None]) -> TermsChange:
    """Parse the options; None leaves a term as it is. Raises `typer.BadParameter`, which names the option."""
    try:
        return read_terms({option: text for option, text in given.items() if text is not None})
    except NotATerm as error:
        raise typer.BadParameter(str(error), param_hint=f"--{error.option.replace('_', '-')}") from None


def doubtful(change: TermsChange) -> str | None:
    """A warning about terms that are valid but probably a mistake, or None."""
    start = change.get("starts_at")
    if not start or not moments.long_past(datetime.fromtimestamp(start, UTC)):
        return None
    return f"--starts-at is before this year: the sale has started ({moments.written(start)})"

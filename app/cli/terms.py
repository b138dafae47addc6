"""The terms of an item as options of the command line: see `app.orders.terms`."""

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import typer

from app import moments
from app.orders import DEFAULT, NONE, TERMS, TermsChange

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: Final = {term.option: name for name, term in TERMS.items() if term.option}


def with_options(command: Command) -> Command:
    """Give a command an option for each term, in the place of its `**given`."""
    signature = inspect.signature(command)
    found = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for option, name in _OPTIONS.items():
        about = typer.Option(metavar=TERMS[name].metavar, help=TERMS[name].help)
        own = {"default": None, "annotation": Annotated[str | None, about]}
        found.append(inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, **own))
    command.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]  # Typer reads it
    return command


def read(given: Mapping[str, str | None]) -> TermsChange:
    """Parse the options; one that is None changes nothing. Raises `typer.BadParameter`, which names the option."""
    found: dict[str, Any] = {}
    for option, text in given.items():
        if text is None:
            continue
        name = _OPTIONS[option]
        found[name] = _value(name, text)
        if name == "price":
            found["price"], found["currency"] = found["price"] or (None, None)
    start, end = found.get("starts_at"), found.get("ends_at")
    if start and end and end <= start:
        raise typer.BadParameter("must be later than --starts-at", param_hint="--ends-at")
    return found


def _value(name: str, text: str) -> Any:
    term, option = TERMS[name], "--" + TERMS[name].option.replace("_", "-")
    if text == DEFAULT or (text == NONE and not term.wanted):
        return None
    try:
        return term.read("0" if text == NONE else text)
    except ValueError as error:
        why = f"{text!r} is not {term.wanted}" if term.wanted else f"{text!r}: {error}; or `{NONE}`"
        raise typer.BadParameter(why, param_hint=option) from None


def doubtful(change: TermsChange) -> str | None:
    """A warning about terms that are valid but probably a mistake, or None."""
    start = change.get("starts_at")
    if not start or not moments.long_past(datetime.fromtimestamp(start, UTC)):
        return None
    return f"--starts-at is before this year: the sale has started ({moments.written(start)})"

"""The terms of an item, as they are written on the command line, and shown."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import typer

from app import money
from app.settings import A_MOMENT, long_past, read_moment
from app.stock import LATEST, Terms, TermsChange

Value = TypeVar("Value")

NONE: Final = "none"  # no limit, no start, no end
DEFAULT: Final = "default"  # as the settings have it
_LIMIT_MAX: Final = 10**6
_WINDOW_MAX_S: Final = 86_400
_UNITS: Final = "a number of units, a million at most"
_SECONDS: Final = "a whole number of seconds, a day at most"
_MOMENT: Final = f"{A_MOMENT} (from 1970 to 5138)"


def read(
    limit: str | None,
    starts_at: str | None,
    ends_at: str | None,
    hold: str | None = None,
    pay: str | None = None,
    price: str | None = None,
) -> TermsChange:
    """Parse the options; one that is None changes nothing. Raises `typer.BadParameter`, which names the option."""
    found = TermsChange()
    if limit is not None:
        found["limit_per_buyer"] = _value(limit, "--limit", _units, _UNITS)
    if starts_at is not None:
        found["starts_at"] = _value(starts_at, "--starts-at", _read_moment, _MOMENT)
    if ends_at is not None:
        found["ends_at"] = _value(ends_at, "--ends-at", _read_moment, _MOMENT)
    if hold is not None:
        found["hold_s"] = _value(hold, "--hold", _seconds, _SECONDS)
    if pay is not None:
        found["pay_s"] = _value(pay, "--pay", _seconds, _SECONDS)
    if price is not None:
        found["price"], found["currency"] = (None, None) if price in (NONE, DEFAULT) else _price(price)
    start, end = found.get("starts_at"), found.get("ends_at")
    if start and end and end <= start:
        raise typer.BadParameter("must be later than --starts-at", param_hint="--ends-at")
    return found


def doubtful(change: TermsChange) -> str | None:
    """A warning about terms that are valid but probably a mistake, or None."""
    start = change.get("starts_at")
    if not start or not long_past(datetime.fromtimestamp(start, UTC)):
        return None
    return f"--starts-at is before this year: the sale has started ({moment(start)})"


def shown(terms: Terms) -> str:
    """An item's own terms for people; empty if there are none."""
    found = []
    if terms.limit_per_buyer is not None:
        found.append(f"{terms.limit_per_buyer} a buyer" if terms.limit_per_buyer else "no limit")
    if terms.starts_at is not None:
        found.append(f"starts {moment(terms.starts_at)}" if terms.starts_at else "has started")
    if terms.ends_at is not None:
        found.append(f"ends {moment(terms.ends_at)}" if terms.ends_at else "never ends")
    if terms.price is not None:
        found.append(money.written(terms.price, terms.currency))
    if terms.hold_s is not None:
        found.append(f"held for {terms.hold_s:g} s")
    if terms.pay_s is not None:
        found.append(f"{terms.pay_s:g} s to pay")
    if terms.paused is not None:
        found.append(f"PAUSED: {terms.paused}")
    return ", ".join(found)


def _value(text: str, option: str, read_one: Callable[[str], Value], wanted: str) -> Value | None:
    try:
        return None if text == DEFAULT else read_one("0" if text == NONE else text)
    except ValueError:
        words = f"`{DEFAULT}`" if option in ("--hold", "--pay") else f"`{NONE}` or `{DEFAULT}`"
        raise typer.BadParameter(f"{text!r} is not {wanted}, {words}", param_hint=option) from None


def _units(text: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) > _LIMIT_MAX:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= _WINDOW_MAX_S:
        raise ValueError
    return float(text)


def _price(text: str) -> tuple[int, str]:
    try:
        return money.read(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}; or `{NONE}`", param_hint="--price") from None


def _read_moment(text: str) -> float:
    at = 0 if text == "0" else read_moment(text).timestamp()
    if not 0 <= at <= LATEST:
        raise ValueError
    return at


def moment(at: float) -> str:
    """Format a moment, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")

"""A provider's list of payments, as a file: with our own columns, or as Stripe's itemized report."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from app import money
from app.payments.reconcile import Movement, MovementKind

_OWN: Final = ("payment_ref", "kind", "amount", "currency")
# The meaning of Stripe's categories, and whether a positive amount brings money (1) or takes it (-1).
_STRIPES: Final = {
    "charge": (MovementKind.CHARGE, 1),
    "charge_failure": (MovementKind.CHARGE, 1),
    "refund": (MovementKind.REFUND, -1),
    "partial_capture_reversal": (MovementKind.CHARGE, 1),  # the part of the charge that was never captured
    "refund_failure": (MovementKind.REFUND, -1),
    "dispute": (MovementKind.DISPUTE, -1),
    "dispute_reversal": (MovementKind.DISPUTE, -1),
}


_HOLD: Final = "payment_metadata[hold]"  # the payment's name, also in the lines of its refunds
_DIGITS_MAX: Final = 15  # of an amount


class StatementError(ValueError):
    """The file is no list of payments."""


def read(lines: Iterable[str], *, json_lines: bool = False) -> Iterator[Movement]:
    """Read a list. Raises `StatementError`, with the number of the line and the field.

    In CSV amounts are written with their decimals (499.00); in JSON Lines they are whole numbers of the minor unit.
    """
    return (one for one in each(lines, json_lines=json_lines) if one is not None)


def each(lines: Iterable[str], *, json_lines: bool = False) -> Iterator[Movement | None]:
    """Read a list as `read` does; None for a line without a payment, so that the caller may rest after each line."""
    if json_lines:
        for number, line in enumerate(lines, 1):
            yield _movement(_object(line, number), number, _minor) if line.strip() else None
        return
    rows = csv.DictReader(lines)
    try:
        yield from _of_rows(rows)
    except csv.Error as error:
        raise StatementError(f"line {rows.line_num + 1}: {error}") from None


def _of_rows(rows: "csv.DictReader[str]") -> Iterator[Movement | None]:
    names = set(rows.fieldnames or ())
    if {"reporting_category", "gross", "currency"} <= names:
        for row in rows:
            yield _of_stripe(row, rows.line_num)
        return
    if missing := [name for name in _OWN if name not in names]:
        raise StatementError(f"line 1: no column {missing[0]!r}; the columns are {', '.join(_OWN)}, and name and at")
    for row in rows:
        yield _movement(row, rows.line_num, _decimal)


def _object(line: str, number: int) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StatementError(f"line {number}: not an object of JSON")
    return found


def _movement(row: Mapping[str, Any], number: int, amount: Callable[[Any, str, int], int]) -> Movement:
    ref, currency = row.get("payment_ref"), _currency(row.get("currency"), number)
    if not isinstance(ref, str) or not ref or not ref.isprintable():
        raise StatementError(f"line {number}: payment_ref is empty, or not printable")
    try:
        kind = MovementKind(str(row.get("kind") or ""))
    except ValueError:
        raise StatementError(f"line {number}: kind is one of {', '.join(MovementKind)}") from None
    name = str(row.get("name") or f"line {number}")
    return Movement(ref, kind, amount(row.get("amount"), currency, number), currency, name, _at(row.get("at"), number))


def _currency(given: Any, number: int) -> str:
    currency = str(given or "").upper()
    if len(currency) != 3 or not currency.isascii() or not currency.isalpha():
        raise StatementError(f"line {number}: currency is none such as EUR")
    return currency


def _of_stripe(row: Mapping[str, Any], number: int) -> Movement | None:
    kind, sign = _STRIPES.get(row["reporting_category"], (None, 0))
    ref = row.get("payment_intent_id") or row.get("charge_id")
    if kind is None or not ref or row.get(_HOLD) == "":
        return None  # a fee, a payout, or a sale of another product
    # `gross` is in the account's currency; an amount in the customer's currency without a sign has the sign of `gross`.
    facing = row.get("customer_facing_amount") and row.get("customer_facing_currency")
    currency = _currency(facing or row["currency"], number)
    amount = _decimal(row["customer_facing_amount" if facing else "gross"], currency, number)
    amount = sign * (-abs(amount) if str(row["gross"]).startswith("-") else abs(amount))
    own = row.get("charge_id" if kind is MovementKind.CHARGE else "source_id")
    name = own or f"line {number}"
    return Movement(ref, kind, amount, currency, name, _at(row.get("created_utc") or row.get("created"), number))


def _decimal(text: Any, currency: str, number: int) -> int:
    try:
        found = Decimal(str(text or "")).scaleb(money.decimals(currency))
        if found.adjusted() > _DIGITS_MAX or found != int(found):
            raise ValueError
    except (ArithmeticError, ValueError):
        raise StatementError(
            f"line {number}: amount is none of {currency}, such as {money.written(0, currency)}"
        ) from None
    return int(found)


def _minor(value: Any, _: str, number: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 10**_DIGITS_MAX:
        raise StatementError(f"line {number}: amount is a whole number of the currency's minor unit")
    return value


def _at(value: Any, number: int) -> float | None:
    if value in (None, ""):
        return None
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC).timestamp()
        found = datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        raise StatementError(f"line {number}: at is none such as 2026-11-11T20:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

"""Orders as rows of a file: CSV for spreadsheets, JSON Lines for programs."""

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, Final, Literal

from app.orders import Order
from app.orders.view import COLUMNS, row

Format = Literal["csv", "jsonl"]
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def head(as_: Format) -> str:
    """The beginning of a file."""
    return _csv([COLUMNS]) if as_ == "csv" else ""


def lines(orders: Iterable[Order], as_: Format) -> str:
    """The lines of some orders."""
    if as_ == "csv":
        return _csv([map(_cell, row(order).values()) for order in orders])
    return "".join(json.dumps(row(order), ensure_ascii=False) + "\n" for order in orders)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a spreadsheet shows it, and never computes it: the apostrophe makes a text of a formula."""
    if isinstance(value, list):
        value = " ".join(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

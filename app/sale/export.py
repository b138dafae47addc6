"""Orders as rows of a file: CSV for spreadsheets, JSON Lines for programs."""

import csv
import io
import json
import re
from collections.abc import Iterable
from typing import Any, Final, Literal

from app.orders import Order
from app.orders.view import AMOUNTS, COLUMNS, cells, row

Format = Literal["csv", "jsonl"]
# Behind the beginning of a cell, or of another one where the separator is not a comma: skipped characters, and
# the sign of a formula, also in full width and in small.
_FORMULA: Final = re.compile(
    r"""(\A(?=[\t\r\n])|(?:\A|[,;|\t\r\n"])(?=[\s\0\u200b\u2060\ufeff]*[=+@\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b-]))"""
)
# A text that a spreadsheet reads as a number, or a date, and writes in another way; a short number is always the same.
_RESHAPED: Final = re.compile(r"(?!(?:0|[1-9]\d{0,10})\Z)\d[\d\s.,:/eE-]*")
_BOM: Final = "\ufeff"  # without it Excel takes the file for one of its country's


def head(as_: Format) -> str:
    """The beginning of a file."""
    return _BOM + _csv([COLUMNS]) if as_ == "csv" else ""


def lines(orders: Iterable[Order], as_: Format) -> str:
    """The lines of some orders."""
    if as_ == "csv":
        rows = (one for order in orders for one in cells(order))
        return _csv([[one if name in AMOUNTS else _cell(one) for name, one in row.items()] for row in rows])
    return "".join(json.dumps(row(order), ensure_ascii=False) + "\n" for order in orders)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a spreadsheet shows it, and never computes it: an apostrophe makes a text of a formula or number."""
    if isinstance(value, list):
        value = " ".join(value)
    if not isinstance(value, str):
        return value
    return f"'{value}" if _RESHAPED.fullmatch(value) else _FORMULA.sub(r"\1'", value)

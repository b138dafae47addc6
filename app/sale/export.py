"""Orders as rows of a file: CSV for spreadsheets, JSON Lines for programs."""

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

from app.stock import Order

Format = Literal["csv", "jsonl"]
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def row(order: Order) -> dict[str, Any]:
    """An order's row. The secret in its id is left out, as the id opens the order, and files are passed on."""
    record = order.record
    return {
        "order": order.id.rpartition("~")[0],
        "item": order.sku,
        "state": str(order.state),
        "quantity": order.quantity,
        "buyer": order.buyer,
        "ref": record and record.ref,
        "began": _moment(order.sold_at),
        "pay_by": _moment(record.pay_by_ms / 1000) if record and record.pay_by_ms else None,
        "price": record and record.price,
        "currency": record and record.currency,
        "to_pay": record and record.to_pay,
        "payment_ref": record and record.payment_ref,
        "amount": record and record.amount,
        "refunds_due": list(record.refunds_due) if record else [],
        "refunded": list(record.refunded) if record else [],
        "request_id": record and record.request_id,
        "key": order.key,
        "token": order.token,
        "batch": order.batch_id,
        "instance": order.instance,
    }


COLUMNS: Final = (
    *("order", "item", "state", "quantity", "buyer", "ref", "began", "pay_by", "price", "currency", "to_pay"),
    *("payment_ref", "amount", "refunds_due", "refunded", "request_id", "key", "token", "batch", "instance"),
)


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


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

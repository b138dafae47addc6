"""How an order stands: its text, and its row in a file."""

import csv
import io
import json
from typing import Any

import pytest

from app.orders import Confirm, Order, OrderState, Payment, Record, Snapshot, decide
from app.orders.account import PaymentState, Sums
from app.orders.view import COLUMNS, cells, row
from app.sale.export import head, lines

SECRET = 32 * "a"


def begun() -> Record:
    return Record("1-0", SECRET, OrderState.HELD, 2, "ann", price=5, currency="EUR", proven=True)


def after(record: Record, *commands: Any) -> Record:
    """Return the order after some commands, each in a batch of its own."""
    for command in commands:
        for change in decide(Snapshot(5, 0, held=2, now_ms=6, records={"1-0": record}), [command]).changes:
            record = Record.from_text("1-0", change.after.to_text())  # as another instance reads it
    return record


def confirm(ref: str, amount: int | None, currency: str | None = None) -> Confirm:
    return Confirm("default", "1-0", SECRET, ref, amount, currency)


def test_fields_of_a_later_release_are_kept() -> None:
    """A release that changes an order leaves alone what it doesn't know of it."""
    text = begun().to_text().replace("{", '{"gift":true,', 1)
    record = after(Record.from_text("1-0", text), confirm("p", 10))
    assert '"gift":true' in record.to_text()
    assert record._replace(unknown={}) == after(begun(), confirm("p", 10))


def test_a_sheet_has_payments_side_by_side_and_a_row_for_each_currency() -> None:
    """A cell has several payments, and nothing where there are none; a formula is a text; no file has the secret."""
    record = after(begun(), confirm("p", 10), confirm("=q", 300, "USD"))
    order = Order("default", record, None, "i", 1, "b", 1.0)
    own, dollars = cells(order)
    assert tuple(own) == tuple(dollars) == COLUMNS
    assert (own["payments"], own["currency"], own["paid"], own["owed"]) == (["p", "=q"], "EUR", "0.10", "0.00")
    assert (dollars["payments"], dollars["currency"], dollars["owed"]) == (None, "USD", "3.00")
    assert ",p =q," in lines([order], "csv")
    assert ",EUR,0.10," in lines([order], "csv")  # numbers, of which a sheet makes sums
    assert head("csv").startswith("\ufeff")  # else Excel takes it for one of its country's
    assert row(order)["other_currencies"] == [record.sums["USD"].said()]
    assert SECRET not in lines([order], "csv") + lines([order], "jsonl")


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        (" \u00a0@SUM(A1)", "' \u00a0@SUM(A1)"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\ufe631", "'\ufe631"),
        ("\n=1", "'\n'=1"),
        ("\tann", "'\tann"),
        ("x;=1+1", "x;'=1+1"),
        ("x\t -1|+2", "x\t' -1|'+2"),
        ('a "=1"', 'a "\'=1"'),
        ("00123", "'00123"),
        ("00123456789012345678", "'00123456789012345678"),
        ("1e5", "'1e5"),
        ("3-4", "'3-4"),
        ("2026/11/27", "'2026/11/27"),
        ("12345678901", "12345678901"),
        ("123456789012", "'123456789012"),
        ("12 monkeys", "12 monkeys"),
        ("0", "0"),
        ("Anna-Maria, 7+1", "Anna-Maria, 7+1"),
        ("王=1", "王=1"),
    ],
)
def test_a_spreadsheet_shows_a_name_as_it_is(name: str, cell: str) -> None:
    """Whatever separates its cells: none is a formula, and no number or date is written in another way."""
    order = Order("default", begun()._replace(buyer=name), None, "i", 1, "b", 1.0)
    read = list(csv.DictReader(io.StringIO((head("csv") + lines([order], "csv")).removeprefix("\ufeff"), newline="")))
    assert [one["buyer"] for one in read] == [cell]
    for separator in ",;\t|":
        for line in csv.reader(io.StringIO(lines([order], "csv"), newline=""), delimiter=separator):
            assert not [one for one in line if one.lstrip().startswith(tuple("=+-@\uff1d\ufe63"))]
    assert json.loads(said := lines([order], "jsonl"))["buyer"] == name
    assert "王" in said or "王" not in name


def test_a_row_for_programs() -> None:
    """The key is as the client has said it, and the deadline a moment; sums are those of the order's own currency."""
    foreign = Payment("p", 5, "USD", PaymentState.LATE)
    held = begun()._replace(pay_by_ms=1_000, due_ms=2_000, payments=(foreign,))
    shown = row(Order("default", held, " hold k", "i", 1, "b", 1.0))
    assert (shown["key"], shown["pay_by"], shown["paid"]) == ("k", shown["began"], 0)
    assert held.own_sums == Sums("EUR")
    assert (held.facts["pay_by"], held.facts["goes_back_at"]) == (1.0, 2.0)

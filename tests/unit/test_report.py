"""The report: its sums, its days, and how it is shown."""

import csv
import io
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from app import moments
from app.cli.report import run
from app.operator.report import Report
from app.orders import Order, OrderState, Payment, PaymentRefund, Record, RefundState
from app.orders.record import Line


def test_days_are_those_of_a_zone_in_summer_and_in_winter() -> None:
    """An order is of its day in the zone's own time, also when an offset of the beginning holds no more."""
    begin = moments.read("2026-10-24T00:00:00+02:00")
    report, berlin = Report(begin, moments.zone("Europe/Berlin")), ZoneInfo("Europe/Berlin")
    days = [f"2026-10-{day}" for day in (24, 25, 26, 27)]  # summer time ends on the 25th
    for day in days:
        for hour in ("00:10", "23:50"):
            at = datetime.fromisoformat(f"{day}T{hour}").replace(tzinfo=berlin).timestamp()
            report.add(Order("lamp", Record("1-0", "s" * 32, OrderState.SOLD, 1), None, "i", 1, "b", at))
    assert {day: sums.orders.total() for day, sums in report.days.items()} == dict.fromkeys(days, 2)


def an_order(state: OrderState, units: int, at: float = 0.0, sku: str = "lamp", **about: Any) -> Order:
    return Order(sku, Record("1-0", "s" * 32, state, units, **about), None, "i", 1, "b", at)


def test_sums_are_those_of_an_item_and_a_day() -> None:
    """What waited in vain was never held; a basket's money is at its first item, and its units are each item's."""
    paid = Payment("p", 998, "EUR"), Payment("q", 100, "JPY", refunds=(PaymentRefund("r", RefundState.DUE, 100),))
    orders = [
        an_order(OrderState.CONFIRMED, 2, waited=True, due_ms=1, payments=paid, lines=(Line("pen", 3),)),
        an_order(OrderState.CONFIRMED, 1, due_ms=1),
        an_order(OrderState.HELD, 5, waited=True, due_ms=1),
        an_order(OrderState.CANCELLED, 1),  # it left the line
        an_order(OrderState.CANCELLED, 1, due_ms=1),
        an_order(OrderState.EXPIRED, 1, due_ms=1, at=86_400.0),
        an_order(OrderState.SOLD, 4, sku="pen", at=86_400.0),
    ]
    whole, pens, lamps = Report(), Report(sku="pen"), Report(sku="lamp")
    late = Report(moments.read("1970-01-02T02:00:00+02:00"))
    for order in orders:
        for report in (whole, pens, lamps, late):
            report.add(order)
    lamp, pen, total = whole.items["lamp"], whole.items["pen"], whole.total
    assert (lamp.to_ship, lamp.from_line, lamp.paid_orders, lamp.unpaid_orders, lamp.conversion) == (3, 2, 2, 2, 0.5)
    assert (pen.to_ship, pen.paid_orders, pen.conversion, pen.money) == (7, 0, None, {})
    assert (total.to_ship, total.attention, total.unpaid_orders, total.left_line) == (10, 1, 2, 1)
    assert (pens.total.told, lamps.total.told) == (pen.told, lamp.told)
    assert [*whole.days] == ["1970-01-01", "1970-01-02"]
    assert {day: sums.orders.total() for day, sums in late.days.items()} == {"1970-01-02": 2}  # the days of its offset
    rows = list(csv.DictReader(io.StringIO(whole.csv())))
    about = ("item", "day", "to_ship", "attention", "currency", "paid", "owed")
    assert [tuple(row[name] for name in about) for row in rows] == [
        ("lamp", "1970-01-01", "3", "1", "EUR", "9.98", "0.00"),
        ("lamp", "1970-01-01", "0", "0", "JPY", "100", "100"),
        ("lamp", "1970-01-02", "0", "0", "", "0", "0"),
        ("pen", "1970-01-01", "3", "0", "", "0", "0"),
        ("pen", "1970-01-02", "4", "0", "", "0", "0"),
    ]


def test_the_command_tells_the_units_of_those_who_waited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the units to ship; the column is there only if there are some."""
    report = Report()
    monkeypatch.setitem(run.__globals__, "with_sale", lambda _: report)
    for waited, title, row in ((False, "ship orders", "lamp 3 1"), (True, "ship line orders", "lamp 6 3 2")):
        record = Record("1-0", "s" * 32, OrderState.CONFIRMED, 3, waited=waited, due_ms=1)
        report.add(Order("lamp", record, None, "i", 1, "b", 0.0))
        run(None, None, None, "table")
        shown = " ".join(capsys.readouterr().out.split())
        assert title in shown
        assert row in shown
    assert (report.total.to_ship, report.total.from_line) == (6, 3)

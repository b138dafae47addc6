"""The days of the report."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from app import moments
from app.cli.report import run
from app.operator.report import Report
from app.orders import Order, OrderState, Record


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

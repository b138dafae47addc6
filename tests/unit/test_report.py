"""The days of the report."""

from datetime import datetime
from zoneinfo import ZoneInfo

from app import moments
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

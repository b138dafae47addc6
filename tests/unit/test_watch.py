"""Another instance's control room notes, once, events that no instance can report of itself."""

from dataclasses import replace

import pytest

from app.dashboard.journal import GrantRecord, Journal
from app.dashboard.picture import InstanceReport, InstanceState, PastGrant
from app.dashboard.watch import DashboardWatch
from fencelock import Contender

LOCK = "/lock"
ONE, TWO = (InstanceReport(name, 1, 0, 0, "lock", [], [], [], False, 0.0) for name in ("one", "two"))


def states(*reports: InstanceReport, silent_s: float = 0.0) -> list[InstanceState]:
    """Return states of which the first has been silent for that long."""
    return [InstanceState(report, 0.0 if place else silent_s) for place, report in enumerate(reports)]


def holding(report: InstanceReport, token: int, *, paused_s: float = 0.0) -> InstanceReport:
    return replace(report, held=[GrantRecord(LOCK, token, 1.0, 0.0)], paused_s=paused_s)


def holder(name: str, token: int) -> Contender:
    return Contender(key=name, token=token, owner={"instance": name}, holds=True, waited_s=None, ttl_left_s=1.0)


def noted(journal: Journal) -> list[tuple[str, dict[str, str | int | float]]]:
    return [(event.kind, event.facts) for event in journal.events]


def test_who_was_overtaken_is_told_once() -> None:
    """A paused holder is noted once when its lease is over, and once when another one has had the lock since."""
    journal = Journal()
    watch = DashboardWatch(journal)
    still = states(holding(ONE, 7, paused_s=3.0), TWO)
    watch.compare(LOCK, 10.0, [holder("one", 7)], still, [])
    assert noted(journal) == []
    watch.compare(LOCK, 11.0, [], still, [])
    assert noted(journal) == [("ran_out", {"of": "one", "token": 7})]
    later = [PastGrant("two", GrantRecord(LOCK, token, 10.0 + token / 10, 0.0, 0.01), None) for token in (9, 8)]
    for at in (12.0, 13.0):
        watch.compare(LOCK, at, [holder("two", 12)], still, later)
    assert noted(journal)[1:] == [("overtaken", {"of": "one", "token": 7, "by": "two", "by_token": "8"})]
    assert [event.at for event in journal.events] == [pytest.approx(11.0, abs=0.01), pytest.approx(10.8)]


def test_a_take_over_is_dated_by_the_one_who_took_over() -> None:
    """The next holder is noted at the moment that it reports to have the lock since, and without a report at last."""
    journal = Journal()
    watch = DashboardWatch(journal)
    still = holding(ONE, 7, paused_s=3.0)
    watch.compare(LOCK, 10.0, [holder("one", 7)], states(still, TWO), [])
    watch.compare(LOCK, 11.5, [holder("two", 8)], states(still, TWO), [])
    assert [event.kind for event in journal.events] == ["ran_out"]
    heir = replace(TWO, held=[GrantRecord(LOCK, 8, 11.1, 0.0)])
    watch.compare(LOCK, 12.0, [holder("two", 8)], states(still, heir), [])
    assert [(event.kind, event.at) for event in journal.events][1:] == [("overtaken", 11.1)]
    other = DashboardWatch(journal)
    for at in (20.0, 22.0):
        other.compare(LOCK, at, [holder("two", 9)], states(still, TWO), [])
    assert [(event.kind, event.at) for event in journal.events][-1] == ("overtaken", 22.0)


def test_a_grant_that_has_just_ended_is_no_mistake() -> None:
    """A grant that has just ended is not reported, as an instance's report is up to a second old."""
    journal = Journal()
    watch = DashboardWatch(journal)
    for at, told in [(10.0, 0), (11.0, 0), (12.0, 1)]:
        watch.compare(LOCK, at, [], states(holding(ONE, 7)), [])
        assert len(journal.events) == told
    journal.events.clear()
    watch.compare(LOCK, 20.0, [], states(holding(ONE, 8)), [])
    watch.compare(LOCK, 21.0, [holder("one", 8)], states(holding(ONE, 8)), [])
    watch.compare(LOCK, 22.0, [], states(holding(ONE, 8)), [])
    assert noted(journal) == []


def test_who_comes_and_goes() -> None:
    """Going silent, coming back, joining and leaving are noted, except for those that the first look finds."""
    journal = Journal()
    watch = DashboardWatch(journal)
    watch.hear(states(ONE, TWO))
    assert noted(journal) == []
    watch.hear(states(ONE, TWO, silent_s=4.0))
    watch.hear(states(ONE, TWO, silent_s=5.0))
    watch.hear(states(ONE, TWO))
    watch.hear(states(ONE))
    watch.hear(states(ONE, TWO))
    assert noted(journal) == [
        ("silent", {"of": "one"}),
        ("back", {"of": "one"}),
        ("left", {"of": "two"}),
        ("came", {"of": "two"}),
    ]


def test_nobody_is_silent_when_nobody_can_be_heard() -> None:
    """Reports are in the store: while it is away, only that is noted."""
    journal = Journal()
    watch = DashboardWatch(journal)
    watch.hear(states(ONE, TWO))
    for error in ("away", "away", None, None):
        watch.reach("store", error)
        watch.hear(states(ONE, TWO, silent_s=4.0 if error else 0.0))
    watch.reach("lock", "away")
    assert noted(journal) == [("away", {"of": "store"}), ("reached", {"of": "store"}), ("away", {"of": "lock"})]


def test_another_auditor() -> None:
    """The first auditor is no change."""
    journal = Journal()
    watch = DashboardWatch(journal)
    for name in (None, "one", None, "one", "two"):
        watch.audit(name)
    assert noted(journal) == [("auditor", {"of": "two"})]

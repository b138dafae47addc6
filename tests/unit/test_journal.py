"""The journal remembers the last of what happened, and passes everything on to be counted."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.dashboard.journal import Journal

LOCK = "/lock/all"


class Counts:
    """Counts nothing, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *facts: self.told.append((name, *facts))


class Clock:
    """Stands still until it is set."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.dashboard.journal.time", SimpleNamespace(time=clock.time))
    return clock


def test_everything_is_counted(clock: Clock) -> None:
    """What a cashier reports reaches the metrics, word for word."""
    counts = Counts()
    journal = Journal(counts)
    reports = [
        ("granted", LOCK, 7, 0.1),
        ("committed", 3),
        ("fenced", LOCK, "phone"),
        ("released", LOCK, 7, 0.2, 3, 4),
        ("lost", LOCK),
        ("settled", "committed"),
        ("served", "sold"),
        ("conflicted",),
    ]
    for name, *facts in reports:
        getattr(journal, name)(*facts)
    assert counts.told == reports


def test_a_grant_from_its_beginning_to_its_end(clock: Clock) -> None:
    """It is held, then over; what was decided under it is known then."""
    journal = Journal(Counts())
    journal.granted(LOCK, 7, 0.25)
    (held,) = journal.held
    assert (held.lock, held.token, held.at, held.waited_s, held.held_s) == (LOCK, 7, 1000.0, 0.25, None)
    clock.now = 1001.0
    journal.released(LOCK, 7, 0.5, 3, 4)
    assert journal.held == []
    (over,) = journal.grants
    assert (over.token, over.at, over.held_s, over.purchases, over.units) == (7, 1000.0, 0.5, 3, 4)
    assert journal.units == 4


def test_locks_are_apart(clock: Clock) -> None:
    """A grant of each lock may be held; the end of a grant that is not the newest one leaves that alone."""
    journal = Journal(Counts())
    journal.granted("/lock/1", 7, 0.0)
    journal.granted("/lock/2", 8, 0.0)
    assert [one.token for one in journal.held] == [7, 8]
    journal.granted("/lock/1", 9, 0.0)
    journal.released("/lock/1", 7, 1.0, 1, 1)
    assert {one.token for one in journal.held} == {8, 9}
    assert journal.units == 1


def test_only_the_last_grants_are_kept(clock: Clock) -> None:
    """All units count, for good; of the grants only the last dozen is remembered."""
    journal = Journal(Counts())
    for token in range(1, 51):
        journal.granted(LOCK, token, 0.0)
        journal.released(LOCK, token, 0.0, 1, 2)
    assert [one.token for one in journal.grants] == list(range(39, 51))
    assert journal.units == 100


def test_the_same_again_within_a_second_is_one_event(clock: Clock) -> None:
    """Something that happens a thousand times a second doesn't push everything else out."""
    journal = Journal(Counts())
    for _ in range(3):
        journal.settled("committed")
        clock.now += 0.25
    journal.settled("unasked")  # other facts
    journal.note("committed")  # another kind
    clock.now += 2.0
    journal.note("committed")  # later
    assert [(one.kind, one.facts, one.times) for one in journal.events] == [
        ("settled", {"result": "committed"}, 3),
        ("settled", {"result": "unasked"}, 1),
        ("committed", {}, 1),
        ("committed", {}, 1),
    ]
    numbers = [one.number for one in journal.events]
    assert numbers == sorted(set(numbers))


def test_only_the_last_events_are_kept(clock: Clock) -> None:
    """Two dozen; their numbers go on."""
    journal = Journal(Counts())
    for number in range(100):
        journal.note("rush", buyers=number)
    assert [one.facts["buyers"] for one in journal.events] == list(range(76, 100))
    assert journal.events[-1].number == 100


def test_which_token_was_refused_and_which_was_lost(clock: Clock) -> None:
    """A refusal comes while the grant is held, the loss is noticed when it is given back: both name its token."""
    journal = Journal(Counts())
    journal.granted(LOCK, 7, 0.0)
    journal.fenced(LOCK, "phone")
    journal.released(LOCK, 7, 6.0, 0, 0)
    journal.lost(LOCK)
    assert [(one.kind, one.facts) for one in journal.events] == [
        ("fenced", {"sku": "phone", "token": 7}),
        ("lost", {"lock": LOCK, "token": 7}),
    ]
    # Where nothing is known of a grant, nothing is made up.
    journal.fenced("/lock/2", "phone")
    journal.lost("/lock/2")
    assert [one.facts["token"] for one in journal.events][2:] == [0, 0]

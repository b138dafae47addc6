"""The journal keeps the latest events; observers get the events of the methods that they override."""

from types import SimpleNamespace

import pytest

from app.dashboard.journal import Journal
from app.telemetry.observer import Observer, Observers

LOCK = "/lock/all"


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.dashboard.journal.time", SimpleNamespace(time=clock.time))
    return clock


def test_a_grant_from_its_beginning_to_its_end(clock: Clock) -> None:
    """A grant is held, then over; only then are its decisions known."""
    journal = Journal()
    journal.granted(LOCK, 7, 0.25)
    (held,) = journal.held
    assert (held.lock, held.token, held.at, held.waited_s, held.held_s) == (LOCK, 7, 1000.0, 0.25, None)
    clock.now = 1001.0
    journal.released(LOCK, 7, 0.5, 3, 4)
    assert journal.held == []
    (over,) = journal.grants
    assert (over.token, over.at, over.held_s, over.purchases, over.units) == (7, 1000.0, 0.5, 3, 4)
    assert (journal.units, journal.served) == (4, 3)


def test_locks_are_apart(clock: Clock) -> None:
    """Each lock may have a held grant; the end of an older grant does not affect the newest one."""
    journal = Journal()
    journal.granted("/lock/1", 7, 0.0)
    journal.granted("/lock/2", 8, 0.0)
    assert [one.token for one in journal.held] == [7, 8]
    journal.granted("/lock/1", 9, 0.0)
    journal.released("/lock/1", 7, 1.0, 1, 1)
    assert {one.token for one in journal.held} == {8, 9}
    assert journal.units == 1


def test_only_the_last_grants_are_kept(clock: Clock) -> None:
    """All units count for good, but only the last two thousand grants are kept."""
    journal = Journal()
    for token in range(1, 2051):
        journal.granted(LOCK, token, 0.0)
        journal.released(LOCK, token, 0.0, 1, 2)
    assert [one.token for one in journal.grants] == list(range(51, 2051))
    assert journal.units == 4100


@pytest.mark.parametrize(("since_s", "least", "tokens"), [(-1.0, 0, []), (1.5, 0, [9, 10]), (1.5, 4, [7, 8, 9, 10])])
def test_the_grants_of_late(clock: Clock, since_s: float, least: int, tokens: list[int]) -> None:
    """Grants that ended within that time are returned; and if those are few, some more."""
    journal = Journal()
    for token in range(1, 11):
        journal.granted(LOCK, token, 0.0)
        clock.now += 1.0
        journal.released(LOCK, token, 1.0, 1, 1)
    assert [one.token for one in journal.grants_since(clock.now - since_s, least=least)] == tokens


def test_the_same_again_within_a_second_is_one_event(clock: Clock) -> None:
    """A kind of event that occurs a thousand times a second doesn't push all others out."""
    journal = Journal()
    for _ in range(3):
        journal.resolved("committed")
        clock.now += 0.25
    journal.resolved("unasked")  # differs in its facts
    journal.note("committed")  # differs in its kind
    clock.now += 2.0
    journal.note("committed")  # comes later
    assert [(one.kind, one.facts, one.times) for one in journal.events] == [
        ("resolved", {"result": "committed"}, 3),
        ("resolved", {"result": "unasked"}, 1),
        ("committed", {}, 1),
        ("committed", {}, 1),
    ]
    numbers = [one.number for one in journal.events]
    assert numbers == sorted(set(numbers))


def test_only_the_last_events_are_kept(clock: Clock) -> None:
    """The last forty events are kept, and their numbers continue."""
    journal = Journal()
    for number in range(100):
        journal.note("rush", buyers=number)
    assert [one.facts["buyers"] for one in journal.events] == list(range(60, 100))
    assert journal.events[-1].number == 100


def test_which_token_was_refused_and_which_was_lost(clock: Clock) -> None:
    """A refusal comes while the grant is held, the loss appears at the release: both name its token."""
    journal = Journal()
    journal.granted(LOCK, 7, 0.0)
    journal.fenced(LOCK, "phone")
    journal.released(LOCK, 7, 6.0, 0, 0)
    journal.lost(LOCK)
    assert [(one.kind, one.facts) for one in journal.events] == [
        ("fenced", {"sku": "phone", "token": 7}),
        ("lost", {"lock": LOCK, "token": 7}),
    ]
    # An unknown grant's token is 0.
    journal.fenced("/lock/2", "phone")
    journal.lost("/lock/2")
    assert [one.facts["token"] for one in journal.events][2:] == [0, 0]


# -- observers ---------------------------------------------------------------------------------------------------------

# A call of each method, without Python's own.
REPORTS: dict[str, tuple[object, ...]] = {
    "answered": ("sold",),
    "committed": (3,),
    "granted": (LOCK, 7, 0.1),
    "released": (LOCK, 7, 0.2, 3, 4),
    "fenced": (LOCK, "phone"),
    "lost": (LOCK,),
    "changed": ("hold", "held"),
    "conflicted": (),
    "resolved": ("committed",),
    "renewal": ("renewed",),
    "fallback": ("away",),
    "audited": ("consistent",),
    "delivered": ("delivered", ""),
    "refunded": ("done",),
}


def make_listener(*names: str) -> tuple[Observer, list[tuple[object, ...]]]:
    """Make an observer that overrides these methods, and the list of its calls."""
    told: list[tuple[object, ...]] = []

    def hear(name: str) -> object:
        return lambda self, *about: told.append((name, *about))

    kind: type[Observer] = type("Listener", (Observer,), {name: hear(name) for name in names})
    return kind(), told


def report(observer: Observer) -> None:
    for name, about in REPORTS.items():
        getattr(observer, name)(*about)


def test_the_examples_are_about_all_that_can_be_heard() -> None:
    """A new event of `Observer` needs an example here."""
    assert set(REPORTS) == {name for name in vars(Observer) if not name.startswith("_")}


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_all_hear_everything_word_for_word(count: int) -> None:
    """Each report of a worker reaches each observer once, in order, with all facts."""
    listeners = [make_listener(*REPORTS) for _ in range(count)]
    report(Observers(observer for observer, _ in listeners))
    for _, told in listeners:
        assert told == [(name, *about) for name, about in REPORTS.items()]


def test_each_hears_only_what_it_wants_to() -> None:
    """A method that an observer does not override is never called."""
    counts, heard_by_counts = make_listener("answered", "lost")
    spans, heard_by_spans = make_listener("lost")
    both = Observers([counts, spans, Observer()])
    report(both)
    assert heard_by_counts == [("answered", "sold"), ("lost", LOCK)]
    assert heard_by_spans == [("lost", LOCK)]
    assert both.answered == counts.answered  # the method itself, called for each buyer without anything in between


def test_the_journal_hears_everything() -> None:
    """The journal keeps unusual events, and ignores the rest."""
    journal = Journal()
    report(journal)
    assert [event.kind for event in journal.events] == ["fenced", "lost", "resolved"]
    assert [one.token for one in journal.grants] == [7]

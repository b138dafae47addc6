"""Leases and their renewal, on a clock of the test's own."""

import threading
from collections.abc import Callable

import pytest

from fencelock import LockLost, LockUnavailable
from fencelock.lease import Lease
from fencelock.renewer import ThreadRenewer
from fencelock.steps import in_thread


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers renewals as the test wants."""

    def __init__(self) -> None:
        self.answer: bool | None = True  # None: away
        self.asked: list[float] = []
        self.ended = 0
        self.on_renew: Callable[[], None] = lambda: None

    async def renew(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        self.on_renew()
        if self.answer is None:
            raise LockUnavailable("away")
        return self.answer

    async def end(self, timeout_s: float) -> None:
        if self.answer is None:
            raise LockUnavailable("away")
        self.ended += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def renewer(clock: Clock, events: list[str], monkeypatch: pytest.MonkeyPatch) -> ThreadRenewer:
    # The thread only decides when; the tests say when themselves.
    monkeypatch.setattr(ThreadRenewer, "_run", lambda self: None)
    return ThreadRenewer(ratio=1 / 3, clock=clock, on_event=events.append)


def lease(clock: Clock, server: Server, *, ttl_s: float = 9) -> Lease:
    return Lease("key", server, ttl_s, clock=clock)


def test_renews_at_each_third_of_the_ttl(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """Nothing is sent before a third of the TTL is over, then once each third; the deadline moves with it."""
    one = lease(clock, server)
    renewer.keep(one)
    for _ in range(5):
        clock.now += 2.9
        renewer.run_due()
        asked = len(server.asked)
        clock.now += 0.2
        renewer.run_due()
        assert len(server.asked) == asked + 1
        assert one.deadline == clock.now + 9


def test_the_deadline_counts_from_before_the_request(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """A slow answer doesn't make us believe in the lease for longer than the server does."""
    one = lease(clock, server)
    renewer.keep(one)
    clock.now += 3
    asked_at = clock.now

    def slowly() -> None:
        clock.now += 2

    server.on_renew = slowly
    renewer.run_due()
    assert one.deadline == asked_at + 9


def test_an_outage_is_retried_until_the_deadline(
    renewer: ThreadRenewer, clock: Clock, server: Server, events: list[str]
) -> None:
    """A server that is away is asked again and again; if it is back before the deadline nothing was lost."""
    one = lease(clock, server)
    renewer.keep(one)
    server.answer = None
    clock.now += 3
    while clock.now < one.deadline - 0.6:
        renewer.run_due()
        clock.now += 0.25
    assert len(server.asked) > 5
    server.answer = True
    clock.now = one.deadline - 0.1
    renewer.run_due()
    assert not one.lost
    assert one.deadline == clock.now + 9
    assert set(events) == {"retried", "renewed"}


def test_lost_at_the_deadline(renewer: ThreadRenewer, clock: Clock, server: Server, events: list[str]) -> None:
    """A lease that is not renewed in time is lost: the renewer calls the callback once, and never renews it again."""
    told: list[str] = []
    one = lease(clock, server)
    one.on_lost(lambda: told.append("lost"))
    renewer.keep(one)
    server.answer = None
    while clock.now < one.deadline:
        clock.now += 0.1
        renewer.run_due()
    assert told == ["lost"]
    assert one.lost
    with pytest.raises(LockLost, match="not renewed within its 9 s"):
        one.ensure_held()
    server.answer = True
    asked = len(server.asked)
    clock.now += 10
    renewer.run_due()
    assert len(server.asked) == asked
    assert events[-1] == "lost"


def test_lost_when_refused(renewer: ThreadRenewer, clock: Clock, server: Server, events: list[str]) -> None:
    """If the server no longer knows the lease it is lost at once, long before the deadline."""
    one = lease(clock, server)
    renewer.keep(one)
    server.answer = False
    clock.now += 3
    renewer.run_due()
    assert one.lost
    assert one.left_s == 0
    assert events == ["lost"]


def test_a_renewal_never_brings_a_lost_lease_back(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """An answer that comes after the deadline changes nothing: somebody else may own the lock already."""
    one = lease(clock, server)
    renewer.keep(one)
    clock.now += 3

    def too_slowly() -> None:
        clock.now += 20

    server.on_renew = too_slowly
    renewer.run_due()
    assert one.lost


def test_without_a_thread_the_deadline_still_counts(clock: Clock, server: Server) -> None:
    """A frozen process finds its lease lost when it wakes, before any thread of it has run."""
    one = lease(clock, server)
    clock.now += 9
    assert one.lost


def test_dropped_is_not_renewed(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """A released lease is asked for no more."""
    one = lease(clock, server)
    renewer.keep(one)
    renewer.drop(one)
    clock.now += 5
    renewer.run_due()
    assert server.asked == []


def test_a_release_during_a_renewal_is_not_a_loss(
    renewer: ThreadRenewer, clock: Clock, server: Server, events: list[str]
) -> None:
    """A renewal that is refused because the lease was just given back is no news to anybody."""
    told: list[str] = []
    one = lease(clock, server)
    one.on_lost(lambda: told.append("lost"))
    renewer.keep(one)
    server.answer = False
    server.on_renew = lambda: renewer.drop(one)
    clock.now += 3
    renewer.run_due()
    assert told == []
    assert events == []


def test_the_end_of_what_was_handed_back_is_no_loss(
    renewer: ThreadRenewer, clock: Clock, server: Server, events: list[str]
) -> None:
    """Nobody is told when its time is over, or would have been."""
    told: list[str] = []
    one = lease(clock, server)
    one.on_lost(lambda: told.append("lost"))
    renewer.keep(one)
    in_thread(renewer.hand_back(one, 2.0))
    clock.now += 10
    renewer.run_due()
    assert one.lost
    assert server.ended == 1
    assert told == events == []


def test_abandoned_is_given_back(renewer: ThreadRenewer, clock: Clock, server: Server, events: list[str]) -> None:
    """A lease whose owner, a thread, has ended is not renewed but given back."""
    one = lease(clock, server)
    one.owner = threading.Thread()  # which does not run
    renewer.keep(one)
    clock.now += 3
    renewer.run_due()
    renewer.run_due()
    assert one.lost
    assert server.asked == []
    assert server.ended == 1
    assert events == ["abandoned"]


def test_ending_is_tried_until_it_works(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """A lease that can't be given back is tried again until the server is there, or the lease has run out anyway."""
    one = lease(clock, server)
    server.answer = None
    renewer.end(one)
    renewer.run_due()
    clock.now += 1
    server.answer = True
    renewer.run_due()
    assert server.ended == 1
    late = lease(clock, server)
    server.answer = None
    renewer.end(late)
    clock.now += 10
    server.answer = True
    renewer.run_due()
    assert server.ended == 1


def test_what_is_held_goes_before_what_is_given_back(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """Leases that can't be given back, each of which costs time, are not what another one is lost for."""

    class Frozen(Server):
        async def end(self, timeout_s: float) -> None:
            clock.now += timeout_s
            raise LockUnavailable("frozen")

    held = lease(clock, server)
    renewer.keep(held)
    for _ in range(20):
        renewer.end(lease(clock, Frozen()))
    over = clock.now + 30
    while clock.now < over:
        asked = clock.now
        renewer.run_due()
        clock.now = max(clock.now, asked + 0.1)
    assert not held.lost
    assert len(server.asked) >= 30 / 4.5  # each third of its TTL, and half of that later at most


def test_one_lease_does_not_take_the_others_time(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """A call for one lease may take half an interval at most, as the others wait behind it."""
    renewer.keep(lease(clock, server, ttl_s=9))
    clock.now += 3
    renewer.run_due()
    assert server.asked == [pytest.approx(1.5)]


def test_a_callback_that_fails_does_not_stop_the_others(clock: Clock, server: Server) -> None:
    """Everybody who asked to be told is told."""
    told: list[str] = []
    one = lease(clock, server)
    one.on_lost(lambda: 1 / 0)  # type: ignore[arg-type]
    one.on_lost(lambda: told.append("told"))
    one.lose("a test")
    one.on_lost(lambda: told.append("late"))
    assert told == ["told", "late"]


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5])
def test_an_odd_ratio_is_refused(ratio: float) -> None:
    """Renewing at or after the end would lose every lease."""
    with pytest.raises(ValueError, match="ratio"):
        ThreadRenewer(ratio=ratio)


def test_the_thread_renews_and_ends(server: Server) -> None:
    """With the real clock: one thread serves several leases, and ends with `close`."""
    renewed = threading.Semaphore(0)
    renewer = ThreadRenewer(on_event=lambda event: renewed.release())

    for _ in range(3):
        renewer.keep(Lease("key", server, 1.5))
    for _ in range(9):
        assert renewed.acquire(timeout=60)
    assert sum(thread.name == "fencelock-renewer" for thread in threading.enumerate()) == 1
    assert renewer.alive
    renewer.close()
    assert not renewer.alive
    assert not any(thread.name == "fencelock-renewer" for thread in threading.enumerate())


def test_nothing_is_renewed_beyond_its_age(renewer: ThreadRenewer, clock: Clock, server: Server) -> None:
    """A lease whose age is bounded ends a TTL after its last permitted renewal."""
    one = lease(clock, server)
    one.renew_until = clock.now + 20
    renewer.keep(one)
    began = clock.now
    while not one.lost:
        clock.now += 0.5
        renewer.run_due()
    assert 20 < clock.now - began <= 29
    clock.now += 0.5
    renewer.run_due()
    assert server.ended == 1  # what would live on without it

"""Leases and their renewal, on a clock of the test's own."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from fencelock import Grant, LockLost, LockUnavailable
from fencelock.lease import Lease
from fencelock.renewer import Renewer
from tests.harness.waiting import eventually_async


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


class Played(Renewer):
    """A renewer whose loop only runs when the test says so."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def run_due(self) -> None:
        """Do all that is due."""

        async def do() -> None:
            self._look()
            while self._tasks:
                await asyncio.wait(self._tasks.values())
                await asyncio.sleep(0)

        self.run(do())


@pytest.fixture
def renewer(clock: Clock, events: list[str]) -> Iterator[Played]:
    loop = asyncio.new_event_loop()
    yield Played(loop, ratio=1 / 3, clock=clock, on_event=events.append)
    loop.close()


def lease(clock: Clock, server: Server, *, ttl_s: float = 9) -> Lease:
    return Grant("key", 1, "", Lease("key", server, ttl_s, clock=clock)).lease


def test_the_deadline_counts_from_before_the_request(renewer: Played, clock: Clock, server: Server) -> None:
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


def test_lost_before_the_lease_above_is_given_back(renewer: Played, clock: Clock, server: Server) -> None:
    """What lives as long as its session would stand in everybody's way; a waiter leaves its queue by itself."""
    session = Lease("session", server, 60, clock=clock)
    one, waiter = (Lease("key", server, 9, under=session, clock=clock) for _ in range(2))
    Grant("key", 1, "", one)
    for each in one, waiter:
        renewer.keep(each)
    clock.now += 10
    renewer.run_due()
    assert one.lost
    assert waiter.lost
    renewer.run_due()
    assert server.ended == 1


def test_a_renewal_never_brings_a_lost_lease_back(renewer: Played, clock: Clock, server: Server) -> None:
    """An answer that comes after the deadline changes nothing: somebody else may own the lock already."""
    one = lease(clock, server)
    renewer.keep(one)
    clock.now += 3

    def too_slowly() -> None:
        clock.now += 20

    server.on_renew = too_slowly
    renewer.run_due()
    assert one.lost


def test_a_finalizer_may_drop_a_lease_during_a_look(renewer: Played, clock: Clock, server: Server) -> None:
    """So may another thread, to which a finalizer gives way: the garbage collector runs where objects are made."""

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            renewer.drop(dropped)

    many = [lease(clock, server, ttl_s=3600) for _ in range(5000)]  # Python keeps some thousand tuples to use again
    dropped = many[0]
    for one in many:
        renewer.keep(one)
    threshold = gc.get_threshold()
    try:
        gc.collect()
        gc.disable()
        Garbage()
        gc.set_threshold(1000)
        gc.enable()
        renewer.run_due()
    finally:
        gc.enable()
        gc.set_threshold(*threshold)
        gc.collect()
    assert dropped not in renewer._jobs
    assert len(renewer._jobs) == len(many) - 1


def test_a_release_during_a_renewal_is_not_a_loss(
    renewer: Played, clock: Clock, server: Server, events: list[str]
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
    renewer: Played, clock: Clock, server: Server, events: list[str]
) -> None:
    """Nobody is told when its time is over, or would have been."""
    told: list[str] = []
    one = lease(clock, server)
    one.on_lost(lambda: told.append("lost"))
    renewer.keep(one)
    renewer.run(renewer.hand_back(one, 2.0))
    with pytest.raises(LockLost, match="given back"):
        one.ensure_held()
    clock.now += 10
    renewer.run_due()
    assert "given back" in one.reason
    assert server.ended == 1
    assert told == events == []


def test_ending_is_tried_until_it_works(renewer: Played, clock: Clock, server: Server) -> None:
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


def test_a_call_takes_no_longer_than_an_interval(renewer: Played, clock: Clock, server: Server) -> None:
    """Then it is time for the next one."""
    renewer.keep(lease(clock, server, ttl_s=9))
    clock.now += 3
    renewer.run_due()
    assert server.asked == [pytest.approx(3)]


async def test_a_loop_renews_until_the_end(server: Server) -> None:
    """With the real clock: several leases are kept, and none after `close`."""
    renewed: asyncio.Queue[str] = asyncio.Queue()
    renewer = Renewer(asyncio.get_running_loop(), on_event=renewed.put_nowait)
    for _ in range(3):
        renewer.keep(Lease("key", server, 1.5))
    for _ in range(9):
        assert await asyncio.wait_for(renewed.get(), 60) == "renewed"
    assert renewer.alive
    await renewer.close()
    assert not renewer.alive
    assert renewer._timer is None


async def test_what_is_to_be_given_back_is_tried_once_more_at_the_end(server: Server) -> None:
    """A renewer that is closed right behind a call that failed leaves nothing for a whole TTL."""
    renewer = Renewer(asyncio.get_running_loop())
    server.answer = None
    await renewer.hand_back(Lease("key", server, 60), 1)
    server.answer = True
    await renewer.close()
    assert server.ended == 1


async def test_many_take_turns() -> None:
    """No more calls are under way at once than the server is to have, neither renewals nor releases."""
    under_way, most, done = 0, 0, 0

    class Slow:
        async def renew(self, timeout_s: float) -> bool:
            nonlocal under_way, most, done
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            done += 1
            return True

        async def end(self, timeout_s: float) -> None:
            await self.renew(timeout_s)

    renewer = Renewer(asyncio.get_running_loop(), calls_max=3)
    held = [Lease(f"{number}", Slow(), 60) for number in range(50)]
    for lease in held:
        renewer.keep(lease)
        renewer._jobs[lease].due = 0
    renewer._look()
    await eventually_async(lambda: done == 50, "all are renewed")
    await asyncio.gather(*(renewer.hand_back(lease, 60) for lease in held))
    assert (done, most) == (100, 3)
    await renewer.close()


def test_nothing_is_renewed_beyond_its_age(renewer: Played, clock: Clock, server: Server) -> None:
    """A lease whose age is bounded ends a TTL after its last permitted renewal."""
    one = lease(clock, server)
    one.renew_until = clock.now + 20.02  # the last renewal is due just before that, as timers are late
    renewer.keep(one)
    began = clock.now
    while not one.lost:
        clock.now += 0.5
        renewer.run_due()
    assert 28 <= clock.now - began <= 29
    server.answer = None
    for _ in range(2):
        clock.now += 0.5
        renewer.run_due()
    server.answer = True
    clock.now += 0.5
    renewer.run_due()
    assert server.ended == 1  # what would live on without it


def test_what_is_renewed_comes_before_what_is_given_back(renewer: Played, clock: Clock) -> None:
    """And what ends soonest comes first: a renewal that is late is a loss, a release is only late."""
    done: list[str] = []

    class Told(Server):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def renew(self, timeout_s: float) -> bool:
            done.append(f"renew {self.name}")
            return True

        async def end(self, timeout_s: float) -> None:
            done.append(f"end {self.name}")

    renewer.end(lease(clock, Told("old"), ttl_s=4))
    for name, ttl_s in (("long", 9), ("short", 6)):
        renewer.keep(lease(clock, Told(name), ttl_s=ttl_s))
    clock.now += 3
    renewer.run_due()
    assert done == ["renew short", "renew long", "end old"]


def test_a_lease_has_one_call_at_a_time(renewer: Played, clock: Clock, server: Server) -> None:
    """A renewal without an answer is not repeated before it is over; then it is, if it is due."""
    one, free = lease(clock, server), asyncio.Event()

    class Stuck(Server):
        async def renew(self, timeout_s: float) -> bool:
            self.asked.append(timeout_s)
            await free.wait()
            return True

    one.hold = stuck = Stuck()
    renewer.keep(one)

    async def work() -> None:
        for _ in range(3):
            clock.now += 2
            renewer._look()
            await asyncio.sleep(0)
        assert len(stuck.asked) == 1
        free.set()
        await asyncio.wait(renewer._tasks.values())

    renewer.run(work())
    clock.now += 1
    renewer.run_due()
    assert len(stuck.asked) == 2


def test_releases_that_fail_leave_room_for_the_next(renewer: Played, clock: Clock, server: Server) -> None:
    """As many as may be under way at once, and one more."""
    held = [lease(clock, server) for _ in range(65)]
    server.answer = None
    for one in held:
        renewer.run(renewer.hand_back(one, 1))
    server.answer = True
    renewer.run(renewer.hand_back(lease(clock, server), 1))
    assert server.ended == 1


def test_a_lease_of_another_loop_is_given_back_there(server: Server) -> None:
    """Its connection belongs to that loop."""
    ended_on: list[asyncio.AbstractEventLoop] = []

    class There(Server):
        async def end(self, timeout_s: float) -> None:
            ended_on.append(asyncio.get_running_loop())

    async def work() -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        renewer = Renewer(loop)
        one = Lease("key", There(), 60)
        await asyncio.to_thread(lambda: asyncio.run(renewer.hand_back(one, 1)))
        assert one.reason
        await renewer.close()
        return loop

    assert [asyncio.run(work())] == ended_on


def test_a_renewer_that_is_late_does_not_live(renewer: Played, clock: Clock, server: Server) -> None:
    """A pause on purpose is none of that until it is over; who is lost in it is told as it ends."""
    one, told = lease(clock, server), list[str]()
    one.on_lost(lambda: told.append(one.reason))
    renewer.keep(one)
    renewer.keep(lease(clock, server, ttl_s=200))
    renewer.pause(100)
    clock.now += 99
    renewer.run_due()
    assert (server.asked, told, renewer.alive) == ([], [], True)
    clock.now += 2
    renewer.run_due()
    assert (len(server.asked), told) == (1, ["not renewed within its 9 s"])
    clock.now = renewer._next_due() + 29
    assert renewer.alive
    clock.now += 2
    assert not renewer.alive


def test_an_answer_never_takes_time_away(clock: Clock, server: Server) -> None:
    """Neither one to an earlier question, nor the deadline of a lease that was asked for before it was made."""
    one = Lease("key", server, 9, clock=clock, asked_at=clock.now - 2)
    assert one.deadline == clock.now + 7
    one.renewed(clock.now)
    one.renewed(clock.now - 1)
    assert one.deadline == clock.now + 9

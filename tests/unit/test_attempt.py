"""An attempt to get a lock, beside a server whose answers are written down, on an event loop whose time is its own."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from fencelock import Contender, Grant, LockCancelled, LockTimeout, LockUnavailable
from fencelock.connection import Attempt, Connection, PlaceLost, Terms
from fencelock.lease import Lease
from fencelock.waiting import Wait
from tests.harness.virtual import VirtualLoop

TTL_S = 6.0
LOOK_S = 0.5  # a waiter looks so often


class Line(Connection):
    """A connection to a server that is away in some periods, and gives the lock when it is free."""

    def __init__(self, free_at: float, away: Sequence[tuple[float, float]]) -> None:
        terms = Terms("written", {})
        self.time = terms.clock = asyncio.get_running_loop().time
        super().__init__(terms)
        self.free_at = free_at
        self._away = away
        self.asked, self.ended = 0, 0
        self.before_answer: Callable[[Lease], None] = lambda lease: None

    def attempt(self, name: str, ttl_s: float) -> "Place":
        return Place(self, name, ttl_s)

    async def contenders(self, prefix: str) -> list[Contender]:
        return []

    async def reach(self, timeout_s: float) -> None:
        if any(begin <= self.time() < end for begin, end in self._away):
            await asyncio.sleep(timeout_s)
            raise LockUnavailable("away")


class Place(Attempt[Line]):
    async def take(self, wait: Wait) -> Grant | float:
        line = self.connection
        line.asked += 1
        self.lease = self.lease or Lease("/l/1", self, self.ttl_s, clock=line.time)
        self.lease.renewed(line.time())
        await line.reach(0)
        line.before_answer(self.lease)
        return Grant("/l/1", 1, "written", self.lease) if line.time() >= line.free_at else LOOK_S

    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        await self.connection.reach(timeout_s)
        self.connection.ended += 1


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def play(loop: VirtualLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop.play(work())


@pytest.mark.parametrize(
    ("away", "free_at", "raises_at"),
    [
        ([(0, 1)], 0, 0),  # the first try has to be answered
        ([(1, 6)], 3, None),
        ([(1, 6), (7, 12), (13, 18)], 15, None),  # each of them is shorter than a TTL
        ([(1, 20)], 3, 1 + TTL_S),
        ([(1, 6), (7, 20)], 15, 7 + TTL_S),
    ],
)
def test_an_outage_is_waited_for_a_ttl_once_the_server_has_answered(
    loop: VirtualLoop, away: list[tuple[float, float]], free_at: float, raises_at: float | None
) -> None:
    """An attempt that fails returns at once, and gives its place back when the server is there again."""

    async def work() -> None:
        line = Line(free_at, away)
        trying = line.take("/l", TTL_S, Wait(clock=loop.time))
        if raises_at is None:
            assert not (await trying).lost
            assert loop.time() >= free_at
        else:
            with pytest.raises(LockUnavailable):
                await trying
            assert raises_at <= loop.time() < raises_at + LOOK_S
        await asyncio.sleep(TTL_S)
        assert line.ended == (raises_at == 0)  # else its lease has run out before
        await line.close()

    play(loop, work)


@pytest.mark.parametrize("times", [1, 2])
def test_a_place_that_is_lost_is_taken_anew(loop: VirtualLoop, times: int) -> None:
    """Once without a look at the time, for who doesn't wait; each place that was lost is given back."""

    async def work() -> None:
        line = Line(0, ())
        left = times

        def lose(lease: Lease) -> None:
            nonlocal left
            if left:
                left -= 1
                raise PlaceLost

        line.before_answer = lose
        trying = line.take("/l", TTL_S, Wait(0, clock=loop.time))
        if times == 1:
            await trying
        else:
            with pytest.raises(LockTimeout):
                await trying
        assert (line.asked, line.ended) == (2, times)
        await line.close()

    play(loop, work)


def test_a_grant_that_is_lost_as_it_comes_is_none(loop: VirtualLoop) -> None:
    async def work() -> None:
        line = Line(0, ())
        line.before_answer = lambda lease: lease.lose("meanwhile") if line.asked < 3 else None
        grant = await line.take("/l", TTL_S, Wait(clock=loop.time))
        assert not grant.lost
        assert (line.asked, line.ended) == (3, 2)
        await line.close()

    play(loop, work)


def test_a_grant_that_comes_when_all_is_closed_is_given_back(loop: VirtualLoop) -> None:
    async def work() -> None:
        line = Line(0, ())
        line.before_answer = lambda lease: setattr(line.waiters, "dismissed", True)
        with pytest.raises(LockUnavailable, match="closed"):
            await line.take("/l", TTL_S, Wait(clock=loop.time))
        assert line.ended == 1

    play(loop, work)


def test_who_is_called_off_before_its_turn_asks_nothing(loop: VirtualLoop) -> None:
    """Nor does one whose turn comes after it was called off."""

    async def work() -> None:
        line, wait = Line(0, ()), Wait(clock=loop.time)
        for _ in range(line.calls_max):
            await line.turns.acquire()
        trying = asyncio.create_task(line.take("/l", TTL_S, wait))
        await asyncio.sleep(1)
        wait.call_off()
        line.turns.release()
        with pytest.raises(LockCancelled):
            await trying
        assert line.asked == 0
        assert not line.turns.locked()  # its turn is the next one's

    play(loop, work)


def test_what_was_given_up_is_given_back_once(loop: VirtualLoop) -> None:
    async def work() -> None:
        line = Line(math.inf, ())
        place = line.attempt("/l", TTL_S)
        await place.take(Wait(clock=loop.time))
        await place.leave()
        await place.leave()
        assert line.ended == 1

    play(loop, work)

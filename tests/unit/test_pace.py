"""The offices' work has a tenth of a core while buyers wait, and all that it wants while none does."""

import asyncio
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from app.pace import Pace
from tests.harness.virtual import VirtualLoop


class Desk:
    """A pace, on clocks that only work and waits advance. `buyers`: whether some wait."""

    def __init__(self) -> None:
        self.loop, self.buyers, self.worked_s = VirtualLoop(), True, 0.0
        self.pace = Pace(lambda: self.buyers)

    def work(self, work_s: float) -> None:
        self.worked_s += work_s
        self.loop.pass_s(work_s)

    def rested_s(self, *works_s: float, waits_s: float = 0.0) -> float:
        """Do some work, piece by piece, with a rest behind each; return for how long it has rested."""

        async def all_of_it() -> float:
            rested_s = 0.0
            await asyncio.sleep(waits_s)
            for work_s in works_s:
                self.work(work_s)
                before = self.loop.time()
                await self.pace.rest()
                rested_s += self.loop.time() - before
            return rested_s

        return self.loop.play(self.pace.counted(all_of_it()))

    def rested_since_s(self, look_s: float) -> float:
        before = self.loop.time()
        self.loop.pass_s(look_s)
        self.loop.play(self.pace.rest_since(before))
        return self.loop.time() - before - look_s


@pytest.fixture
def desk() -> Iterator[Desk]:
    one = Desk()
    with patch("time.thread_time", lambda: one.worked_s), patch("time.monotonic", one.loop.time):
        yield one
    one.loop.close()


def test_work_has_a_tenth(desk: Desk) -> None:
    """Some pieces are done without a rest; waits are no work; and a pause of the process is not held against it."""
    assert desk.rested_s(*[0.002] * 500, waits_s=5) == pytest.approx(9, abs=0.2)
    assert desk.rested_s(0.009, waits_s=5) == 0
    assert desk.rested_s(10, 0.001, waits_s=5) == pytest.approx(1, abs=0.05)


def test_nobody_waits(desk: Desk) -> None:
    """There is no rest, but others have their turn."""
    desk.buyers, turns = False, list[str]()

    async def both() -> None:
        other = asyncio.ensure_future(asyncio.sleep(0))
        other.add_done_callback(lambda _: turns.append("other"))
        for _ in range(3):
            await desk.pace.rest()
        turns.append("ours")

    assert desk.rested_s(*[0.05] * 20) == 0
    desk.loop.play(both())
    assert turns == ["other", "ours"]


def test_looks_at_the_store(desk: Desk) -> None:
    """The rest behind one is in proportion to it, longer while buyers wait, and never long."""
    assert desk.rested_since_s(0.01) == pytest.approx(0.2)
    assert desk.rested_since_s(60) == pytest.approx(2)
    desk.buyers = False
    assert desk.rested_since_s(0.01) == pytest.approx(0.02)


def test_work_that_is_told_of_an_error(desk: Desk) -> None:
    """What is awaited may fail, or be cancelled: the work itself decides what then."""

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def work() -> str:
        try:
            await asyncio.ensure_future(fails())
        except ValueError:
            await asyncio.sleep(1)
            return "it goes on"
        return "no error"

    assert desk.loop.play(desk.pace.counted(work())) == "it goes on"

"""Work that goes on whatever it raises; who ends it waits until it is over, also when that wait is ended."""

import asyncio
import logging

import pytest

from app.errors import StockUnavailable
from app.forever import end, run_forever
from tests.harness.virtual import VirtualLoop


async def test_work_is_over_when_its_end_is_cancelled() -> None:
    """A sender that is cancelled in the middle of stopping has no task that still writes afterwards."""
    begun, may_end, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await may_end.wait()  # its last word to the store
            over.set()

    task = asyncio.create_task(work())
    await begun.wait()
    ending = asyncio.create_task(end(task))
    for _ in range(3):
        await asyncio.sleep(0)
        ending.cancel()
    await asyncio.sleep(0)
    assert not ending.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert over.is_set()


def test_work_goes_on_whatever_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    """With a pause behind each step; an error that nobody expects is in the log."""
    loop, steps = VirtualLoop(), list[float]()

    async def step() -> None:
        steps.append(loop.time())
        raise (StockUnavailable("away"), ValueError("a bug"))[len(steps) % 2]

    async def some() -> None:
        forever = asyncio.create_task(run_forever(step, every_s=2, log=logging.getLogger("app"), what="cleaning"))
        await asyncio.sleep(7)
        await end(forever)

    loop.play(some())
    loop.close()
    assert steps == [0, 2, 4, 6]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == [
        "unexpected error in cleaning"
    ] * 2

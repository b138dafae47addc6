"""`app.forever.end`: the one who ends work waits until it is over, also when that wait is ended."""

import asyncio

import pytest

from app.forever import end


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

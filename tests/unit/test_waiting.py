"""Waiters are woken and dismissed."""

import asyncio

import pytest

from fencelock.lock import interruptible
from fencelock.waiting import Wait, Waiters, Wake
from tests.harness.waiting import WITHIN_S


async def test_what_was_set_before_is_noticed_once() -> None:
    """A wake that was set twice is noticed once, and a wait for nothing ends in time."""
    wake = Wake()
    wake.set()
    wake.set()
    assert await wake.wait(0)
    assert not await asyncio.wait_for(wake.wait(0.01), WITHIN_S)
    assert not await wake.wait(0)


async def test_wakes_a_task_from_any_thread() -> None:
    """A task that waits is woken at once, by whichever thread."""
    wake = Wake()
    waiting = asyncio.create_task(wake.wait(WITHIN_S))
    await asyncio.sleep(0)
    await asyncio.to_thread(wake.set)
    assert await waiting


async def test_all_who_wait_are_dismissed() -> None:
    """Waiters that come after `dismiss` leave, too."""
    waiters = Waiters()

    async def wait() -> bool:
        wake = Wake()
        with waiters.waiting(wake):
            return await wake.wait(WITHIN_S)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await waiters.dismiss()
    assert await waiting
    assert await wait()


@pytest.mark.parametrize("steps", range(8))
def test_a_result_that_nobody_wants_is_undone_whenever_the_loop_ends(steps: int) -> None:
    """The caller was cancelled; then `asyncio.run` ends, and cancels all tasks, in any step of the loop from there."""
    got, undone = list[int](), list[int]()

    async def main() -> None:
        free = asyncio.Event()

        async def take() -> int:
            await free.wait()
            got.append(1)
            return 1

        async def undo(result: int) -> None:
            undone.append(result)

        caller = asyncio.create_task(interruptible(take(), Wait(), undo))
        for _ in range(3):
            await asyncio.sleep(0)
        caller.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        free.set()
        for _ in range(steps):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert undone == got

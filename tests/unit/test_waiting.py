"""Waiters are woken and dismissed."""

import asyncio
import contextlib

import pytest

from fencelock import Cancel, LockCancelled, LockTimeout
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


def test_a_wait_ends_at_its_deadline_or_when_it_is_called_off() -> None:
    """The latter says more, if both are so; a call to the server has a second, however little of the wait is left."""
    now, cancel = 100.0, Cancel()
    wait = Wait(5, cancel, clock=lambda: now)
    for now, left_s in ((100.0, 5.0), (104.5, 0.5)):  # noqa: B007 - the clock reads it
        wait.check("it")
        assert wait.left_s == left_s
    assert [wait.call_s(2), wait.call_s(0.1)] == [1, 0.1]
    now = 105.0
    with pytest.raises(LockTimeout):
        wait.check("it")
    cancel.set()
    with pytest.raises(LockCancelled):
        wait.check("it")


async def test_a_crowd_of_waiters_looks_more_seldom() -> None:
    """Fifty look as often as one; twice as many look half as often."""
    waiters, crowds = Waiters(), list[float]()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(waiters.waiting(Wake()))
            crowds.append(waiters.crowd)
    assert (crowds[0], crowds[49], crowds[99]) == (1, 1, 2)

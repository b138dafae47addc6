"""Waiters are woken and dismissed."""

import asyncio

from fencelock.waiting import Waiters, Wake
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

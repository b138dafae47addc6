"""What wakes a waiter, and what calls it off."""

import asyncio
import subprocess
import sys
import threading
import time

from fencelock.steps import on_loop
from fencelock.waiting import Shutdown, Wake
from tests.harness.forked import Forked
from tests.harness.waiting import WITHIN_S


def test_a_signal_handler_may_wake_its_own_thread() -> None:
    """At whatever moment of a wait it comes: neither of them blocks."""
    subprocess.run([sys.executable, "-c", _INTERRUPTED], check=True, timeout=4 * WITHIN_S)


# In a process of its own, as the timer of signals is pytest's.
_INTERRUPTED = """
import random, signal
from fencelock.waiting import Wake

wake, chance = Wake(), random.Random(1)
signal.signal(signal.SIGALRM, lambda *_: wake.set())
for _ in range(3000):
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.00012))
    for _ in range(3):
        wake.block(0.00003)
"""


def test_what_was_set_before_is_noticed_once() -> None:
    """However often it was set; and a wait for nothing ends in time."""
    wake = Wake()
    wake.set()
    wake.set()
    assert wake.block(0)
    began = time.monotonic()
    assert not wake.block(0.01)
    assert time.monotonic() - began < WITHIN_S


async def test_wakes_a_task_from_any_thread() -> None:
    """A task that waits is woken at once, by whichever thread; what was set before it waits is noticed, too."""
    wake = Wake()
    waiting = asyncio.create_task(on_loop(_wait(wake, WITHIN_S)))
    await asyncio.sleep(0)
    await asyncio.to_thread(wake.set)
    assert await waiting
    wake.set()
    assert await on_loop(_wait(wake, WITHIN_S))
    assert not await on_loop(_wait(wake, 0.01))
    assert not await on_loop(_wait(wake, 0))


async def _wait(wake: Wake, timeout_s: float) -> bool:
    return await wake.wait(timeout_s)


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    """At the fork one of them waits for a lock, and is about to say so."""
    shutdown, inside, enough = Shutdown(), threading.Event(), threading.Event()

    def wait() -> None:
        with shutdown.waiting(lambda: None), shutdown._callbacks._mutex:
            inside.set()
            enough.wait(WITHIN_S)

    def use(_: object) -> set[object]:
        with shutdown.waiting(lambda: None):
            pass
        return shutdown._waiting

    thread = threading.Thread(target=wait)
    thread.start()
    assert inside.wait(WITHIN_S)
    assert Forked(use).result() == set()
    enough.set()
    thread.join()

"""The loop of a client whose users are threads: what is done there, called off, and ended."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from fencelock.loop_thread import LoopEnded, LoopThread
from tests.harness.waiting import WITHIN_S, eventually


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("test-loop")
    yield loop
    loop.close()
    assert "test-loop" not in {thread.name for thread in threading.enumerate()}


class Long:
    """Something that takes for ever; knows whether it was begun, and called off."""

    def __init__(self) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_it_has_one_thread_for_all(loop: LoopThread) -> None:
    """Results and errors come back to the thread that asked; there is no thread before."""
    assert not loop.begun

    async def where() -> int:
        return threading.get_ident()

    async def fail() -> None:
        raise KeyError("x")

    assert loop.run(where()) == loop.run(where()) != threading.get_ident()
    with pytest.raises(KeyError):
        loop.run(fail())


def test_an_interrupt_calls_the_work_off(loop: LoopThread) -> None:
    """What a thread no longer waits for is not done."""
    long, heard = Long(), threading.Event()

    def interrupt(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def send() -> None:
        long.begun.wait(WITHIN_S)
        # Python does not hear a signal that comes just before a thread goes to sleep on a lock: ask again.
        while not heard.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(0.1)

    before = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=send)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            loop.run(long.work())
        assert long.cancelled.wait(WITHIN_S)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_closing_ends_what_is_under_way(loop: LoopThread) -> None:
    """Whoever waits is told, and whoever comes later; nothing hangs."""
    long, told = Long(), threading.Event()

    def wait() -> None:
        with pytest.raises(LoopEnded):
            loop.run(long.work())
        told.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert long.begun.wait(WITHIN_S)
    loop.close()
    assert told.wait(WITHIN_S)
    assert long.cancelled.is_set()
    thread.join()
    with pytest.raises(LoopEnded):
        loop.run(long.work())


def test_a_forgotten_one_ends() -> None:
    """Its thread doesn't outlive it."""
    loop = LoopThread("test-forgotten")
    loop.run(asyncio.sleep(0))
    del loop
    eventually(lambda: "test-forgotten" not in {thread.name for thread in threading.enumerate()}, "it has ended")

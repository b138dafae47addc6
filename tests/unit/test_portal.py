"""The loop that all threads share: what is done there, called off, and undone."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from fencelock import LockError, portal
from tests.harness.forked import Forked
from tests.harness.signals import handled_at
from tests.harness.waiting import WITHIN_S, eventually


class Interrupt(NamedTuple):
    """Once `go` is set the test's thread gets a Ctrl-C; `heard` is set before that raises."""

    go: threading.Event
    heard: threading.Event


@pytest.fixture
def interrupted() -> Iterator[Interrupt]:
    go, heard = threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def send() -> None:
        # Python does not hear a signal that comes just before a thread goes to sleep on a lock: ask again.
        while go.wait(WITHIN_S) and not heard.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(0.1)

    before = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=send)
    thread.start()
    yield Interrupt(go, heard)
    go.set()
    heard.set()
    thread.join()
    signal.signal(signal.SIGINT, before)


async def where() -> int:
    return threading.get_ident()


def test_it_has_one_thread_for_all() -> None:
    """Results and errors come back to the thread that asked; the work has the thread's name."""

    async def fail() -> None:
        raise KeyError("x")

    async def name() -> str:
        task = asyncio.current_task()
        return "" if task is None else task.get_name()

    assert portal.run(where()) == portal.run(where()) != threading.get_ident()
    with pytest.raises(KeyError):
        portal.run(fail())
    assert portal.run(name()) == threading.current_thread().name


def test_an_interrupt_cancels_the_work(interrupted: Interrupt) -> None:
    """It is over when the thread goes on."""
    ended: list[str] = []

    async def work() -> None:
        interrupted.go.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            ended.append("cleaned up")
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    assert ended == ["cleaned up"]


def test_what_was_done_before_an_interrupt_is_undone(interrupted: Interrupt) -> None:
    """If the work does not let itself be cancelled, its result is handed to what undoes it."""
    undone: list[str] = []

    async def work() -> str:
        interrupted.go.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "a grant"
        return ""

    async def undo(result: str) -> None:
        undone.append(result)

    with pytest.raises(KeyboardInterrupt):
        portal.run(work(), undo)
    assert undone == ["a grant"]


async def test_what_is_called_off_as_it_is_done_is_over_when_it_is_undone() -> None:
    """It is undone once, and its thread goes on when that is done, and not before."""
    undone, go = list[str](), asyncio.Event()

    async def work() -> str:
        return "a grant"

    async def undo(result: str) -> None:
        await go.wait()
        undone.append(result)

    job = portal._Job(work(), undo, set(), to_the_end=False)
    job.begin()
    await asyncio.sleep(0)  # the work is done, and its callback is yet to come
    job.call_off()
    for _ in range(5):
        await asyncio.sleep(0)
    assert job.over.empty()
    go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert undone == ["a grant"]
    job.over.get_nowait()
    assert job.over.empty()


def test_an_interrupt_at_any_moment_undoes_what_was_done() -> None:
    """A handler may raise behind any call, also behind the last one: the result is returned, or there is none."""
    there: list[str] = []

    async def work() -> str:
        there.append("a grant")
        return "a grant"

    async def undo(result: str) -> None:
        there.remove(result)

    def interrupt() -> None:
        raise KeyboardInterrupt

    moments = 0
    for number in range(100):
        try:
            with handled_at(number, [portal.run.__code__], interrupt) as where:
                returned = [portal.run(work(), undo)]
        except KeyboardInterrupt:
            moments, returned = moments + 1, []
        assert there == returned, where
        there.clear()
        if not where:
            break
    assert moments >= 3


def test_an_interrupt_ends_no_release(interrupted: Interrupt) -> None:
    """Work that must be done to the end is, and the thread waits for that before it goes on."""
    done: list[str] = []

    async def work() -> None:
        interrupted.go.set()
        while not interrupted.heard.is_set():
            await asyncio.sleep(0.01)
        done.append("given back")

    with pytest.raises(KeyboardInterrupt):
        portal.run(work(), to_the_end=True)
    assert done == ["given back"]


@pytest.mark.parametrize(
    "late",
    [
        "atexit.register(backend.close)\nimport fencelock",  # comes after our own handler
        "import fencelock\nrows = under(); next(rows)",  # a generator that ends with the interpreter
    ],
)
def test_what_comes_after_the_end_is_refused(late: str) -> None:
    """A lock that is given back, or closed, when the interpreter has all but ended doesn't keep it from ending."""
    first, second = late.split("\n")
    text = f"""
import atexit
class Late:
    def close(self): locks.close()
backend = Late()
def under():
    with locks.lock("/late"):
        yield 1
{first}
from fencelock import connect
locks = connect("local://")
with locks.lock("/x"): pass
{second}
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "LockError: locks are over when the interpreter ends" in done.stderr


def test_a_callback_must_not_block() -> None:
    """It would wait for itself: it is told so."""

    async def callback() -> None:
        portal.run(where())

    with pytest.raises(LockError, match="must not block"):
        portal.run(callback())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_error_ends_the_loop() -> None:
    """Not even one that asyncio lets through."""

    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        portal.run(leave())
    eventually(lambda: portal.run(where()), "it goes on")


def test_a_forked_child_has_its_own() -> None:
    """Its parent's thread is not there."""
    mine = portal.run(where())
    assert Forked(lambda _: bool(portal.run(where()))).result()
    assert portal.run(where()) == mine

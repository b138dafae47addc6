"""One algorithm for threads and for tasks.

How a lock is taken, renewed and given back is written once, as coroutines. Where they would wait they await a `Step`: a
call to a server, a pause, the end of a key. A thread takes each step by blocking; a task awaits it on its event loop,
with a client that belongs to that loop. So a task that waits costs no thread.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

from . import fork

Result = TypeVar("Result")

# For clients that can only block. Threads are made when none is idle; the loop's own executor has few, and whoever
# waits in it starves everything else that uses it. Who waits for others has threads apart: a release that queues behind
# waiters would wait for itself.
_CALLS = fork.Threads(32, "fencelock-call")
_WAITS = fork.Threads(1024, "fencelock-wait")


class Step(ABC, Generic[Result]):
    """Something that takes time, in both ways in which one can wait for it."""

    @abstractmethod
    def in_thread(self) -> Result:
        """Block until it is done."""

    @abstractmethod
    async def on_loop(self) -> Result:
        """The same on the running loop, which goes on meanwhile."""

    def __await__(self) -> Generator["Step[Result]", Any, Result]:
        return cast(Result, (yield self))


def in_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that awaits nothing but steps; this thread blocks in them."""
    resume: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            step: Step[Any] = resume(value)
            value, resume = step.in_thread(), work.send
        except StopIteration as end:
            return cast(Result, end.value)
        except BaseException as error:
            # What comes between two steps (a Ctrl-C) is the coroutine's to clean up after, like what comes in one.
            if cast(Any, work).cr_frame is None:
                raise
            value, resume = error, work.throw


async def on_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run such a coroutine on the running loop."""
    resume: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            step: Step[Any] = resume(value)
        except StopIteration as end:
            return cast(Result, end.value)
        try:
            value, resume = await step.on_loop(), work.send
        except BaseException as error:
            value, resume = error, work.throw


class Pause(Step[None]):
    """Nothing happens for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = max(0.0, seconds)

    def in_thread(self) -> None:
        """Sleep."""
        time.sleep(self._seconds)

    async def on_loop(self) -> None:
        """Let others go on."""
        await asyncio.sleep(self._seconds)


class Blocking(Step[Result]):
    """A call that can only block, and so needs a thread on a loop; for what is rare, or has no other client.

    `waits`: for others, perhaps for long.
    """

    def __init__(self, call: Callable[[], Result], *, waits: bool = False) -> None:
        self._call = call
        self._threads = _WAITS if waits else _CALLS

    def in_thread(self) -> Result:
        """Call it here."""
        return self._call()

    async def on_loop(self) -> Result:
        """Call it in a thread; if the task is cancelled, what was begun is awaited all the same."""
        calling = asyncio.get_running_loop().run_in_executor(self._threads.pool, copy_context().run, self._call)
        return await settled(calling)


async def settled(future: "asyncio.Future[Result]") -> Result:
    """The result of what can't be called off: whoever is cancelled meanwhile hears of that afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if not future.cancelled():  # it is us who are cancelled, even if it was done in the same moment
                cancelled = error
        except BaseException:  # noqa: S110 - raised below
            pass
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()

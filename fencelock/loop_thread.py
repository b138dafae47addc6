"""An event loop of its own for threads: what lives on a loop can be used by them, too."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import finalize

from . import fork

Result = TypeVar("Result")

_END_S = 5.0


class LoopEnded(Exception):
    """What was to be done will not be: the loop has been closed, or was while it was at it."""


class LoopThread:
    """A daemon thread with a loop, made at first use; `close` ends it. A forked child has one of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Result], within_s: float | None = None) -> Result:
        """Have it done there, while this thread blocks. Whatever interrupts the thread calls the work off.

        Raises `LoopEnded`, or `TimeoutError` after so many seconds.
        """
        job = _Job(work)
        loop: asyncio.AbstractEventLoop | None = None
        try:
            with self._mutex:
                loop = self._running()
                loop.call_soon_threadsafe(job.begin)
            return job.result.result(within_s)
        except BaseException:
            if loop is None:
                work.close()
            elif not job.result.done():
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(job.call_off)
            raise

    @property
    def begun(self) -> bool:
        """Whether it was used."""
        return self._loop is not None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise LoopEnded
        if self._loop is None:
            # Asyncio's own, whatever the policy: uvloop's are not made for threads of a process that forks.
            loop = self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
            finalize(self, _stop, loop).atexit = False  # it is not kept for a forgotten one
        return self._loop

    def close(self) -> None:
        """End it, and what is being done on it."""
        with self._mutex:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            _stop(loop)
            if thread is not threading.current_thread():
                thread.join(_END_S)


class _Job(Generic[Result]):
    """Something to be done on the loop, where its methods are called: an interrupt may come before it was begun."""

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.result: Future[Result] = Future()
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        self._off = False

    def begin(self) -> None:
        if not self._off:
            self._task = asyncio.get_running_loop().create_task(self._work)
            self._task.add_done_callback(self._done)

    def call_off(self) -> None:
        self._off = True
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def _done(self, task: "asyncio.Task[Result]") -> None:
        if task.cancelled():
            self.result.set_exception(LoopEnded())
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S))
        loop.run_until_complete(asyncio.sleep(0))  # transports that were closed just now
    finally:
        asyncio.set_event_loop(None)
        loop.close()

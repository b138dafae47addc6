"""The blocking face: a daemon thread with an event loop, one for each process, on which threads have things done."""

import asyncio
import atexit
import logging
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from . import fork
from .errors import LockError

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_END_S: Final = 2.0
# Not epoll: a forked child would share that object of the kernel's. Windows has only `select`.
_selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class _Portal:
    """The thread, and its loop."""

    def __init__(self) -> None:
        # Asyncio's own, whatever the policy: uvloop's can't be forgotten by a forked child.
        self.loop = asyncio.SelectorEventLoop(_selector())
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fencelock-threads", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the interpreter ends
            self.loop.close()
            raise LockError(f"no thread can be started: {error}") from error

    @property
    def entered(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except BaseException:
                # A hook's SystemExit, perhaps: asyncio lets that through, and all threads would wait for ever.
                _log.exception("unexpected error in a callback")
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S / 2))

    def stop(self) -> None:
        """End it with the interpreter, which would otherwise take the loop apart while it turns."""
        self._stopping = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_END_S)


_portal: _Portal | None = None
_mutex = threading.Lock()


def _forget() -> None:
    global _portal, _mutex
    fork.keep(_portal)
    _portal, _mutex = None, threading.Lock()


fork.in_child(_forget)


@atexit.register
def _stop() -> None:
    if _portal is not None:
        _portal.stop()


def _entered() -> _Portal:
    global _portal  # noqa: PLW0603
    portal = _portal
    if portal is None:
        with _mutex:
            portal = _portal = _portal or _Portal()
    return portal


def loop() -> asyncio.AbstractEventLoop:
    """The loop that threads share."""
    return _entered().loop


def run(work: Coroutine[Any, Any, Result], undo: Callable[[Result], Coroutine[Any, Any, None]] | None = None) -> Result:
    """Have it done on that loop while this thread blocks.

    An exception that is raised in this thread meanwhile, such as KeyboardInterrupt, cancels the work; if it was done
    already, `undo` is called with its result. Nothing is under way any more when this raises, for at most two seconds.
    """
    job = _Job(work, undo)
    try:
        portal = _entered()
        if portal.entered:
            raise LockError("a callback must not block: it is called by what it would wait for")
    except BaseException:
        work.close()
        raise
    try:
        portal.loop.call_soon_threadsafe(job.begin)
        return job.result.result()
    except BaseException as error:
        if not job.failed_with(error):
            portal.loop.call_soon_threadsafe(job.call_off)
            job.over.wait(_END_S)
        raise


class _Job(Generic[Result]):
    """Something to be done on the loop, where its methods are called: an interrupt may come before it was begun."""

    def __init__(
        self, work: Coroutine[Any, Any, Result], undo: Callable[[Result], Coroutine[Any, Any, None]] | None
    ) -> None:
        self.result: Future[Result] = Future()
        self.over = threading.Event()  # after an interrupt
        self._name = threading.current_thread().name  # which the lock's queue shows
        self._work = work
        self._undo = undo
        self._task: asyncio.Task[Any] | None = None
        self._off = False

    def failed_with(self, error: BaseException) -> bool:
        """Whether that is what the work has raised."""
        return self.result.done() and self.result.exception() is error

    def begin(self) -> None:
        if not self._off:
            self._task = asyncio.get_running_loop().create_task(self._work, name=self._name)
            self._task.add_done_callback(self._done)

    def call_off(self) -> None:
        self._off = True
        if self._task is None:
            self._work.close()
            self.over.set()
        elif self._task.done():
            self._done(self._task)
        else:
            self._task.cancel()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._off:
            if isinstance(error, asyncio.CancelledError):
                self.result.set_exception(LockError("it was called off, as the interpreter ends"))
            elif error is not None:
                self.result.set_exception(error)
            else:
                self.result.set_result(task.result())
        elif error is None and self._undo is not None:
            undo, self._undo = self._undo, None
            self._task = asyncio.get_running_loop().create_task(undo(task.result()))
            self._task.add_done_callback(self._done)
        else:
            self.over.set()

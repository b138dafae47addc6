"""The portal: a daemon thread with an event loop, one in each process, on which other threads run coroutines."""

import asyncio
import atexit
import logging
import queue
import selectors
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from . import fork
from .errors import LockError

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_END_S: Final = 2.0
# Not epoll: a forked child would share that object of the kernel's. Windows has only `select`.
Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)


class _Portal:
    """The thread, and its loop."""

    def __init__(self) -> None:
        # Asyncio's own loop under any policy: a forked child can't drop uvloop's.
        self.loop = asyncio.SelectorEventLoop(Selector())
        self._stopping = False
        self.closed = False
        self.jobs: set[_Job[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="fencelock-threads", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the interpreter ends
            self.loop.close()
            raise LockError(f"no thread can be started: {error}") from error

    @property
    def entered(self) -> bool:
        """True on its own thread."""
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
        self.closed = True  # later jobs are refused, and here the earlier ones that were not begun
        for job in list(self.jobs):
            job.refuse()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it on the loop, unless the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """End with the interpreter, which would otherwise take the loop apart while it runs."""
        self._stopping = True
        self.call_soon(self.loop.stop)
        self._thread.join(_END_S)


_portal: _Portal | None = None
_mutex = threading.RLock()  # a signal's handler may enter it within the block


def _forget() -> None:
    global _portal, _mutex
    fork.keep(_portal)
    _portal, _mutex = None, threading.RLock()


fork.in_child(_forget)


@atexit.register
def _stop() -> None:
    if _portal is not None:
        _portal.stop()


def _entered() -> _Portal:
    global _portal  # noqa: PLW0603
    if _portal is None:
        with _mutex:
            if _portal is None:
                made = _Portal()
                if _portal is None:
                    _portal = made
                else:  # a signal's handler has made one meanwhile
                    made.stop()
    return _portal


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop that threads share."""
    return _entered().loop


def run(
    work: Coroutine[Any, Any, Result],
    undo: Callable[[Result], Coroutine[Any, Any, None]] | None = None,
    *,
    to_the_end: bool = False,
) -> Result:
    """Run `work` on that loop while this thread blocks.

    An exception that is raised in this thread meanwhile, such as KeyboardInterrupt, cancels the work; if it was done
    already, `undo` is called with its result. Work that goes `to_the_end` is done all the same. Before that exception
    goes on, this waits up to two seconds until nothing is under way any more.
    """
    job: _Job[Result] | None = None
    try:
        portal = _entered()
        if portal.entered:
            raise LockError("a callback must not block: it is called by what it would wait for")
        job = _Job(work, undo, portal.jobs, to_the_end=to_the_end)
        if portal.closed:
            raise LockError("locks are over when the interpreter ends")
    except BaseException:
        work.close()
        if job is not None:
            portal.jobs.discard(job)
        raise
    try:
        portal.call_soon(job.begin)
        error, found = job.answer.get()
        if error is None:
            return found  # type: ignore[return-value] # nothing comes behind this: an interrupt there could undo nothing
    except BaseException:
        portal.call_soon(job.begin if to_the_end else job.call_off)
        with suppress(queue.Empty):
            job.over.get(timeout=_END_S)
        raise
    raise error


class _Job(Generic[Result]):
    """Work for the loop, where its methods are called; an interrupt may come before it was begun.

    `jobs`: contains it until it is answered. `answer`: gets the error or the result; `over`: filled when the job is
    over. These queues are in C: a signal may come at any time, and would break the invariants of `threading.Condition`.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, Result],
        undo: Callable[[Result], Coroutine[Any, Any, None]] | None,
        jobs: "set[_Job[Any]]",
        *,
        to_the_end: bool,
    ) -> None:
        self.answer: queue.SimpleQueue[tuple[BaseException | None, Result | None]] = queue.SimpleQueue()
        self.over: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._name = threading.current_thread().name  # which the lock's queue shows
        self._work = work
        self._undo = undo
        self._to_the_end = to_the_end
        self._task: asyncio.Task[Any] | None = None
        self._off = self._answered = False
        self._jobs = jobs
        jobs.add(self)

    def begin(self) -> None:
        if self._task is None and not self._off:
            self._task = asyncio.get_running_loop().create_task(self._work, name=self._name)
            self._task.add_done_callback(self._done)

    def call_off(self) -> None:
        self._off = True
        if self._task is None:
            self._jobs.discard(self)
            self._work.close()
            self.over.put(None)
        elif not self._task.done():
            self._task.cancel()
        elif self._answered:  # else its callback will come, and do this
            self._done(self._task)

    def refuse(self) -> None:
        """Answer with an error, as the loop has stopped."""
        self._off = True
        self.answer.put((LockError("it was called off, as the interpreter ends"), None))
        self.over.put(None)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._jobs.discard(self)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._off:
            if isinstance(error, asyncio.CancelledError):
                error = LockError("it was called off, as the interpreter ends")
            self._answered = True
            self.answer.put((error, None if error is not None else task.result()))
            if self._to_the_end:
                self.over.put(None)
        elif error is None and self._undo is not None:
            undo, self._undo = self._undo, None
            self._task = asyncio.get_running_loop().create_task(undo(task.result()))
            self._task.add_done_callback(self._done)
        else:
            self.over.put(None)

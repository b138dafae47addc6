"""A caller's wait for a lock: how long it may last, how it is called off, and how a waiter is woken."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from .callbacks import Callbacks
from .errors import LockCancelled, LockTimeout

Result = TypeVar("Result")

_MIN_CALL_S: Final = 1.0  # a caller's last milliseconds are no deadline for a call
_LEAVE_S: Final = 2.0  # for so long at most a connection waits for its waiters to leave
_ALONE_MAX: Final = 50  # waiters on a connection, before they look more seldom


def seconds(name: str, value: Any, *, zero: bool = False) -> float:
    """Return a number of seconds above 0, or with `zero` from 0 to infinity. Raises `ValueError`, with its name."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (value >= 0 if zero else 0 < value < math.inf):  # nor NaN
        raise ValueError(f"{name} must be a number of seconds, {'0 or more' if zero else 'above 0'}, not {value!r}")
    return float(value)


class Cancel:
    """Calls off a wait from another thread, at once.

    >>> cancel = Cancel()
    >>> threading.Timer(0.01, cancel.set).start()
    >>> lock.acquire(cancel=cancel)  # raises LockCancelled after 10 ms, if somebody else has the lock
    """

    def __init__(self) -> None:
        self._callbacks = Callbacks()

    def is_set(self) -> bool:
        """Return whether the wait was called off."""
        return self._callbacks.fired

    def set(self) -> None:
        """Call the wait off. Calling it again does nothing."""
        self._callbacks.fire()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once on `set` (now, if it is set). The returned function unsubscribes."""
        return self._callbacks.subscribe(callback)


class Wait:
    """A caller's wait: up to `wait_s` seconds from now (None: for ever, 0: don't queue), or until `cancel` is set."""

    def __init__(
        self, wait_s: float | None = None, cancel: Cancel | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if wait_s is not None:
            seconds("wait_s", wait_s, zero=True)
        self._clock = clock
        self.deadline = math.inf if wait_s is None else clock() + wait_s  # on that clock
        self.wait_s = wait_s
        self.cancel = cancel
        self.wake: Wake | Cancel | None = None  # set when the wait is called off
        self._called_off = False

    @property
    def called_off(self) -> bool:
        """True once the caller waits no longer."""
        return self._called_off or (self.cancel is not None and self.cancel.is_set())

    def call_off(self) -> None:
        """End the wait, and wake the waiter so that it leaves."""
        self._called_off = True
        if self.wake is not None:
            self.wake.set()

    @property
    def left_s(self) -> float:
        """The seconds left: 0 when it is over, infinite when there is no limit."""
        return max(0.0, self.deadline - self._clock())

    def call_s(self, timeout_s: float) -> float:
        """Return a call's timeout: `timeout_s`, but not much longer than the caller still waits."""
        return min(timeout_s, max(_MIN_CALL_S, self.left_s))

    def check(self, what: str) -> None:
        """Raise `LockCancelled` or `LockTimeout` if the wait for `what` is over."""
        if self.called_off:
            raise LockCancelled(f"the wait for {what} was called off")
        if self._clock() >= self.deadline:
            raise LockTimeout(f"{what} was not free within {self.wait_s:g} s")


class Wake:
    """An event for one waiter on the loop where it is made; it is reset once the waiter has noticed it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter, or the next call of `wait`. Never blocks; any thread may call it."""
        if asyncio._get_running_loop() is self._loop:
            self._set()
        else:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, and return whether it was in time. Look for the lock *after* that."""
        if not self._is_set and timeout_s > 0:
            waiter = self._waiter = self._loop.create_future()
            timer = None if math.isinf(timeout_s) else self._loop.call_later(timeout_s, _expire, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _expire(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class Waiters:
    """The waiters of a connection, which must leave their queues before it is closed."""

    def __init__(self) -> None:
        self._wakes: set[Wake] = set()
        self.dismissed = False

    @property
    def crowd(self) -> float:
        """The factor, 1 or more, by which each waiter polls less often, so that many together don't poll too often."""
        return max(1.0, len(self._wakes) / _ALONE_MAX)

    @contextmanager
    def waiting(self, wake: Wake) -> Iterator[None]:
        """In this block `dismiss` sets `wake`, and then waits a little for the block to end."""
        self._wakes.add(wake)
        if self.dismissed:
            wake.set()
        try:
            yield
        finally:
            self._wakes.discard(wake)

    async def dismiss(self) -> None:
        """Send all waiters away, and wait for that, two seconds at most."""
        self.dismissed = True
        for wake in list(self._wakes):
            wake.set()
        deadline = time.monotonic() + _LEAVE_S
        while self._wakes and time.monotonic() < deadline:  # noqa: ASYNC110 - it ends in any case
            await asyncio.sleep(0.01)


_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


def keep_task(task: "asyncio.Task[None]") -> None:
    """Keep a reference to a task until it is done."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def apart(
    work: Coroutine[Any, Any, Result], name: str | None = None
) -> "tuple[asyncio.Task[Result], asyncio.Future[None]]":
    """Begin `work` in a task of its own, and return the task, and a future that is done when the task is.

    A caller that awaits this future can be cancelled without the task, as with `asyncio.shield`, and resumes one turn
    of the loop earlier.
    """
    over = asyncio.get_running_loop().create_future()
    told: Any = _told(work, over)
    told.__qualname__ = getattr(work, "__qualname__", "")  # for people who look at tasks
    task = asyncio.create_task(told, name=name)

    def end(_: object) -> None:  # a task that was cancelled before it began has done neither
        work.close()
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    return task, over


async def _told(work: Coroutine[Any, Any, Result], over: "asyncio.Future[None]") -> Result:
    try:
        return await work
    finally:
        if not over.done() and not over.get_loop().is_closed():
            over.set_result(None)


async def settled(future: "asyncio.Future[Result]", over: "asyncio.Future[None] | None" = None) -> Result:
    """Wait for a future that must not be cancelled; a cancellation of the caller is raised once it is done.

    `over`: see `apart`.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await (asyncio.shield(future) if over is None or over.done() else over)
        except asyncio.CancelledError as error:
            if not future.cancelled():  # we are cancelled, even if the work was done in the same moment
                cancelled = error
        except BaseException:  # noqa: S110 - raised below
            pass
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()


async def insisted(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` to its end even if the caller is cancelled meanwhile: a release must not stop half-way.

    If the work is cancelled, too, as all tasks are at the end of `asyncio.run`, it is done again.
    """
    task, over = apart(work())
    try:
        await settled(task, over)
    except asyncio.CancelledError:
        if task.cancelled():
            await settled(asyncio.ensure_future(work()))  # no cancellation reaches a task that began after it
        raise

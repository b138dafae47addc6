"""How long a caller is willing to queue, and what wakes it or calls it off."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from . import fork
from .callbacks import Callbacks
from .errors import LockCancelled, LockTimeout
from .steps import Pause, Step

if TYPE_CHECKING:
    from .grant import Grant

_MIN_CALL_S: Final = 1.0  # a caller's last milliseconds are no deadline for a call
_LEAVE_S: Final = 2.0
_ALONE_MAX: Final = 50  # waiters in a process, before they look more seldom


class Cancel:
    """Calls off a wait from another thread, at once.

    >>> cancel = Cancel()
    >>> threading.Timer(0.01, cancel.set).start()
    >>> lock.acquire(cancel=cancel)  # raises LockCancelled after 10 ms, if somebody else has the lock
    """

    def __init__(self) -> None:
        self._callbacks = Callbacks()

    def is_set(self) -> bool:
        """Whether the wait was called off."""
        return self._callbacks.fired

    def set(self) -> None:
        """Call the wait off. Calling it again does nothing."""
        self._callbacks.fire()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once on `set` (now, if it is set); the answer takes the subscription back."""
        return self._callbacks.subscribe(callback)


class Wait:
    """One caller's wait: `wait_s` seconds from now (None: for ever, 0: don't queue), unless `cancel` is set before."""

    def __init__(
        self, wait_s: float | None = None, cancel: Cancel | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if wait_s is not None and wait_s < 0:
            raise ValueError(f"wait_s must be 0 or more, not {wait_s}")
        self._clock = clock
        self._deadline = None if wait_s is None else clock() + wait_s
        self.wait_s = wait_s
        self.cancel = cancel or Cancel()
        self.granted: list[Grant] = []  # what came of it, for a caller who was interrupted as it came

    @property
    def left_s(self) -> float:
        """Seconds left, 0 when it is over, infinite when there is no limit."""
        return float("inf") if self._deadline is None else max(0.0, self._deadline - self._clock())

    def call_s(self, timeout_s: float) -> float:
        """The deadline of a call whose usual one is `timeout_s`: not much longer than the caller waits."""
        return min(timeout_s, max(_MIN_CALL_S, self.left_s))

    def check(self, what: str) -> None:
        """Raise `LockCancelled` or `LockTimeout` if there is no reason to wait any longer for `what`."""
        if self.cancel.is_set():
            raise LockCancelled(f"the wait for {what} was called off")
        if self._deadline is not None and self._clock() >= self._deadline:
            raise LockTimeout(f"{what} was not free within {self.wait_s:g} s")


class Wake:
    """An event that is over once it has been noticed, for one waiter: a thread or a task.

    Made of a bare lock that is free while there is something to notice: a signal handler may set it while its thread
    waits. An `Event` would deadlock then, and a `SimpleQueue` of Python 3.11 can wait for ever.
    """

    def __init__(self) -> None:
        self._nothing = threading.Lock()
        self._nothing.acquire()
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None  # that waits

    def set(self) -> None:
        """Wake the waiter, or the next one to wait. Never blocks; any thread may call it."""
        with suppress(RuntimeError):  # it is set already
            self._nothing.release()
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # its loop is closed
                task[0].call_soon_threadsafe(_wake, task[1])

    def set_on(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """The same, by what runs on `loop`: a task there needs nothing that wakes its loop."""
        task = self._task
        if task is None or task[0] is not loop:
            self.set()
            return
        with suppress(RuntimeError):
            self._nothing.release()
        _wake(task[1])

    def wait(self, timeout_s: float) -> "Woken":
        """A step: whether it was set within that time. The waiter looks at what it waits for *after* that."""
        return Woken(self, timeout_s)

    def block(self, timeout_s: float) -> bool:
        """The same for a thread, at once."""
        return self._nothing.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))

    async def sleep(self, timeout_s: float) -> bool:
        """The same for a task."""
        if self._nothing.acquire(blocking=False):
            return True
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._task = loop, woken
        timer = None if math.isinf(timeout_s) else loop.call_later(timeout_s, _wake, woken)
        try:
            # It may have been set before the task was known to wait.
            if not self._nothing.acquire(blocking=False):
                await woken
                return self._nothing.acquire(blocking=False)
            return True
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


class Woken(Step[bool]):
    """A wait for a `Wake`."""

    def __init__(self, wake: Wake, timeout_s: float) -> None:
        self._wake = wake
        self._timeout_s = timeout_s

    def in_thread(self) -> bool:
        """Block."""
        return self._wake.block(self._timeout_s)

    async def on_loop(self) -> bool:
        """Let others go on."""
        return await self._wake.sleep(self._timeout_s)


class Shutdown:
    """Those who wait on a connection, so that they can leave their queues before it is closed."""

    def __init__(self) -> None:
        self._callbacks = Callbacks()
        self._waiting: set[object] = set()
        fork.in_child(self._begin_in_child)

    def _begin_in_child(self) -> None:
        before, self._callbacks = self._callbacks, Callbacks()  # a thread of the parent's may have been in there
        self._callbacks.fired = before.fired
        self._waiting = set()

    @property
    def crowd(self) -> float:
        """By how much each of those who wait must look more seldom, so that all together do not look too often."""
        return max(1.0, len(self._waiting) / _ALONE_MAX)

    @property
    def begun(self) -> bool:
        """Whether it has begun: all waiters must leave."""
        return self._callbacks.fired

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when it begins (now, if it has); the answer takes that back."""
        return self._callbacks.subscribe(callback)

    @contextmanager
    def waiting(self, wake: Callable[[], None]) -> Iterator[None]:
        """In this block `wake` is called by `begin`, which then waits a little for the block to end."""
        one = object()
        self._waiting.add(one)
        forget = self.subscribe(wake)
        try:
            yield
        finally:
            forget()
            self._waiting.discard(one)

    async def begin(self) -> None:
        """Have all waiters leave, and wait for that for two seconds at most."""
        self._callbacks.fire()
        deadline = time.monotonic() + _LEAVE_S
        while self._waiting and time.monotonic() < deadline:
            await Pause(0.01)

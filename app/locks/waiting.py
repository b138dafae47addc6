"""How long a caller is willing to queue, and the means to call it off."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from app.errors import LockCancelled, LockTimeout

AWAY_PAUSE_S: Final = 0.1  # before a server that was away is asked again
_MIN_CALL_S: Final = 1.0  # a caller's last milliseconds are no deadline for a call


class Cancel:
    """Calls off a wait from another thread, at once: those who wait subscribe instead of polling.

    >>> cancel = Cancel()
    >>> threading.Timer(0.01, cancel.set).start()
    >>> lock.acquire(cancel=cancel)  # raises LockCancelled after 10 ms, if somebody else has the lock
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may call `set` while the main thread is in here
        self._set = False
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether the wait was called off."""
        return self._set

    def set(self) -> None:
        """Call the wait off. Calling it again does nothing."""
        with self._mutex:
            self._set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once on `set` (now, if it is set); the answer takes the subscription back."""
        with self._mutex:
            if not self._set:
                self._callbacks.append(callback)
                return lambda: self._unsubscribe(callback)
        callback()
        return lambda: None

    def _unsubscribe(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


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
    """An event that is over with being noticed. Made of a SimpleQueue, which can't be left locked by a Ctrl-C."""

    def __init__(self) -> None:
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake whoever waits, or the next one to wait. Never blocks."""
        if self._signals.empty():  # else whoever takes that one looks after us
            self._signals.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether it was set within that time; those that were set meanwhile are one."""
        try:
            self._signals.get(timeout=timeout_s)
        except queue.Empty:
            return False
        with contextlib.suppress(queue.Empty):
            while True:
                self._signals.get_nowait()
        return True

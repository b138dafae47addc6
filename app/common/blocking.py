"""What clients that block need: a Ctrl-C that waits until a call is over, and a way to send away those who wait."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_LEAVE_S: Final = 2.0  # for those who wait when the connections are closed


class Waiters:
    """Those who wait on a connection, so that they can leave their queues before it is closed."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a forgotten observer may be finalised, and leave, in here
        self._wakes: list[Callable[[], None]] = []
        self._inside = 0
        self.closing = False  # who waits must leave

    def on_close(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called by `send_away` (now, if that is over); the answer takes it back."""
        with self._mutex:
            self._wakes.append(wake)
        if self.closing:
            wake()

        def forget() -> None:
            with self._mutex, contextlib.suppress(ValueError):
                self._wakes.remove(wake)

        return forget

    @contextmanager
    def waiting(self, wake: Callable[[], None]) -> Iterator[None]:
        """In this block `wake` is called by `send_away`, which then waits a little for the block to end."""
        with self._mutex:
            self._inside += 1
        forget = self.on_close(wake)
        try:
            yield
        finally:
            forget()
            with self._mutex:
                self._inside -= 1

    def send_away(self) -> None:
        """Have them leave, and wait for it."""
        with self._mutex:
            self.closing = True
            wakes = list(self._wakes)
        for wake in wakes:
            wake()
        deadline = time.monotonic() + _LEAVE_S
        while self._inside and time.monotonic() < deadline:
            time.sleep(0.01)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Keep a Ctrl-C until a call is over, which is soon: each has a deadline.

    It interrupts the main thread wherever that is. Within a client's library it can leave a lock of the library's taken
    for ever, and then the renewal thread waits for that for ever, whatever its deadline.
    """
    handler = signal.getsignal(signal.SIGINT)
    on_loop = asyncio._get_running_loop() is not None  # its own handler of signals does not interrupt
    if threading.current_thread() is not threading.main_thread() or not callable(handler) or on_loop:
        yield
        return
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True

    try:
        signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)

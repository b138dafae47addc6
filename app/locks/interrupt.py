"""A Ctrl-C that waits until a call is over."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep a Ctrl-C back until the block is over, which must be soon: each of its calls has a deadline.

    Python raises KeyboardInterrupt in the main thread, wherever that is. In the middle of a call it can leave a lock of
    gRPC's taken, for which the renewal thread then waits for ever; and a node of ZooKeeper that nobody knows of.
    """
    on_loop = asyncio._get_running_loop() is not None  # asyncio's own handler interrupts nothing
    if on_loop or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
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

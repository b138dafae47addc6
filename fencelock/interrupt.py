"""A Ctrl-C that waits until a call is over."""

import asyncio
import signal
import threading
from typing import Any, Self


class _Handler:
    """What notes a Ctrl-C for later."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: object) -> None:
        self.came = True


class uninterrupted:  # noqa: N801 - a block
    """Keep a Ctrl-C back until the block is over, which must be soon: each of its calls has a deadline.

    Python raises KeyboardInterrupt in the main thread, wherever that is. In the middle of a call it can leave a lock of
    gRPC's taken, for which the renewal thread then waits for ever; and a node of ZooKeeper that nobody knows of.
    """

    __slots__ = ("_before", "_handler")

    def __enter__(self) -> Self:
        self._handler: _Handler | None = None
        # Asyncio's own handler interrupts nothing.
        if threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop() is not None:
            return self
        before: Any = signal.getsignal(signal.SIGINT)
        if callable(before) and not isinstance(before, _Handler):  # in a block within a block
            self._before, self._handler = before, _Handler()
            signal.signal(signal.SIGINT, self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        handler = self._handler
        if handler is not None:
            signal.signal(signal.SIGINT, self._before)
            if handler.came:
                signal.raise_signal(signal.SIGINT)

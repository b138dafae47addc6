"""Callbacks for something that happens once."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Callbacks:
    """Called when something happens, or at once if it has happened. Any thread may use all methods."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self.fired = False
        self._mutex = threading.RLock()  # a signal handler may fire while the main thread is in here

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once; the answer takes that back. One that fails is logged and stops no other."""
        with self._mutex:
            self._callbacks.append(callback)
        # Not before: a signal handler may fire at any moment.
        if self.fired:
            self._call_all()
        return lambda: self._unsubscribe(callback)

    def fire(self) -> None:
        """It happens. Only the first call counts."""
        self.fired = True
        self._call_all()

    def _call_all(self) -> None:
        while True:
            with self._mutex:
                if not self._callbacks:
                    return
                callback = self._callbacks.pop(0)
            try:
                callback()
            except Exception:
                _log.exception("unexpected error in a callback")

    def _unsubscribe(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

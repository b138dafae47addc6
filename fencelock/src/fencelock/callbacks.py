"""Callbacks for something that happens once."""

import logging
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger(__name__)


class Callbacks:
    """Called when something happens, or at once if it has happened.

    Any thread may use all methods, a signal handler too: the methods of a list are atomic.
    """

    __slots__ = ("_callbacks", "fired")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self.fired = False

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once. The returned function unsubscribes. Errors are logged, and stop no others."""
        self._callbacks.append(callback)
        if self.fired:  # checked only now, as it may happen at any moment
            self._call_all()
        return lambda: self._unsubscribe(callback)

    def __bool__(self) -> bool:
        """Whether there is anybody to call."""
        return bool(self._callbacks)

    def fire(self) -> None:
        """Call all callbacks. Each is called once."""
        self.fired = True
        self._call_all()

    def _call_all(self) -> None:
        while True:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:
                _log.exception("unexpected error in a callback")
            except BaseException:  # it may end the program, which helps nobody's lock
                self._call_all()
                raise

    def _unsubscribe(self, callback: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._callbacks.remove(callback)

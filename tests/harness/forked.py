"""Run a function in a forked child, with a deadline."""

import faulthandler
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, cast

from tests.harness.waiting import WITHIN_S


class Forked:
    """A function that runs in a forked child, which ends without any clean-up.

    The function gets the child's end of a pipe; `result()` returns or raises its outcome.
    """

    def __init__(self, function: Callable[[Connection], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._here, self._there = context.Pipe()
        self._function = function
        self._child = context.Process(target=self._run, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork beside threads
            self._child.start()
        self._there.close()

    def _run(self) -> None:
        answer: tuple[Any, BaseException | None]
        faulthandler.register(signal.SIGUSR1)
        try:
            answer = self._function(self._there), None
        except BaseException as error:
            answer = None, error
        self._there.send(answer)
        os._exit(0)

    def tell(self, what: Any) -> None:
        """Send a value to the function."""
        self._here.send(what)

    def answer(self) -> Any:
        """Return the function's next message."""
        if not self._here.poll(3 * WITHIN_S):
            os.kill(cast(int, self._child.pid), signal.SIGUSR1)
            self._end()
            raise AssertionError("the child does not answer; where it stands is in what it has printed")
        try:
            return self._here.recv()
        except EOFError:
            self._end()
            raise AssertionError(f"the child died: {self._child.exitcode}") from None

    def result(self) -> Any:
        value, error = self.answer()
        self._end()
        if error is not None:
            raise error
        return value

    def _end(self) -> None:
        self._child.join(WITHIN_S)
        self._child.kill()
        self._child.join()
        self._here.close()

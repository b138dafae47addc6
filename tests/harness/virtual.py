"""Run an event loop whose time passes only while nothing is ready: waits cost nothing, and histories repeat."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jump(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("everybody waits, and nothing will ever happen")
            self.now += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the seconds since the loop's beginning."""
        return self._jump.now

    def play(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the work to its end."""
        return self.run_until_complete(work)

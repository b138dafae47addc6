"""Run an event loop whose time passes only while nothing is ready: waits cost nothing, and histories repeat."""

import asyncio
import selectors
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fencelock import Grant, LockTimeout
from fencelock.lease import Lease

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

    def pass_s(self, seconds: float) -> None:
        """Let that time pass at once, as if somebody worked."""
        self._jump.now += seconds

    def play(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the work to its end."""
        return self.run_until_complete(work)


class NoHold:
    """A hold on no server."""

    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        pass


class VirtualLock:
    """A fair lock in memory, in no process but this one."""

    name = "/lock"
    ttl_s = 1000.0

    def __init__(self) -> None:
        self._queue: deque[tuple[object, asyncio.Event]] = deque()
        self.token = 0

    @asynccontextmanager
    async def holding(
        self, *, wait_s: float | None = None, owner: object = None, hold_max_s: float | None = None
    ) -> AsyncIterator[Grant]:
        place = (object(), asyncio.Event())
        self._queue.append(place)
        self._wake()
        try:
            try:
                await asyncio.wait_for(place[1].wait(), wait_s)
            except TimeoutError:
                raise LockTimeout("not free") from None
            self.token += 1
            yield Grant(self.name, self.token, "virtual", Lease(self.name, NoHold(), float("inf")))
        finally:
            if place in self._queue:
                self._queue.remove(place)
            self._wake()

    def _wake(self) -> None:
        if self._queue:
            self._queue[0][1].set()

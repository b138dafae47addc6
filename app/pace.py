"""Keeps the work of the offices to a share of their instance's time while buyers, who go first, wait there."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar

Answer = TypeVar("Answer")

_SHARE: Final = 0.1  # of one core. With two instances, of which one sends, a twentieth of the sale's
_BURST_S: Final = 0.01  # seconds of work without a rest, as some events together cost less than each alone
_DEBT_MAX_S: Final = 1.0
_REST: Final = 20  # rests this many times as long as a look at the store took, while buyers wait here: 5 % of the time
_IDLE_REST: Final = 2  # buyers may wait elsewhere
_REST_MAX_S: Final = 2.0  # a pause of the whole process looks like work


class Pace:
    """The pace of all offices of an instance. It lives on one event loop.

    Counted work has a share of the CPU, and looks at the store have a share of the time. `busy`: whether buyers wait.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self.busy = busy
        self._owed_until = 0.0
        self._turn = asyncio.Lock()

    async def counted(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do this, and count the CPU time that it takes."""
        return await self._stepped(work)

    @coroutine
    def _stepped(self, work: Coroutine[Any, Any, Answer]) -> Generator[Any, Any, Answer]:
        step, given = work.send, None
        while True:
            began = time.thread_time()
            try:
                awaited = step(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._count(time.thread_time() - began)
            try:
                step, given = work.send, (yield awaited)
            except BaseException as error:
                step, given = work.throw, error

    def _count(self, worked_s: float) -> None:
        now = time.monotonic()
        self._owed_until = min(now + _DEBT_MAX_S, max(now, self._owed_until) + worked_s / _SHARE)

    async def rest(self) -> None:
        """Let others have their turn, and while buyers wait, until our share allows more work: one after the other."""
        await asyncio.sleep(0)
        async with self._turn:
            if self._owed_s > _BURST_S / _SHARE:
                while self.busy() and self._owed_s > 0:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(self._owed_s)

    async def rest_since(self, began: float) -> None:
        """Rest after a look at the store that began then (monotonic clock), in proportion to its time."""
        worked_s = time.monotonic() - began
        await asyncio.sleep(min(_REST_MAX_S, worked_s * (_REST if self.busy() else _IDLE_REST)))

    @property
    def _owed_s(self) -> float:
        return self._owed_until - time.monotonic()

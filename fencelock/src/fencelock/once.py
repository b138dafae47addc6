"""This job once: at most one start for each slot of time, or for each slot that a caller names, in the whole cluster.

    read what was started -> stand for election -> read again -> write the slot down -> the body -> resign

The slot is written down before the body begins, only by the leader, and for good. So it is started once at most: when
clocks differ, when a run outlasts its slot, and when its process dies; then that slot is not started again.
"""

import functools
import inspect
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, ParamSpec, TypedDict, TypeVar

from . import portal
from .block import AsyncBlock, Block
from .election import AsyncElection, AsyncLeadership
from .errors import LockError, LockTimeout
from .waiting import Cancel, seconds

P = ParamSpec("P")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_NAMED_MAX: Final = 500  # slots with names that are remembered
_SLOT_MAX: Final = 255  # characters
_DEAD_RATIO, _DEAD_S = 1.2, 2.0  # for so many TTLs, and so many seconds more, a dead run blocks the next one


@dataclass(frozen=True, slots=True)
class Start:
    """The one start of a slot. `grant`: keeps the starts of other slots away while the body runs, and can be lost."""

    slot: str
    grant: AsyncLeadership

    @property
    def token(self) -> int:
        """The fencing token of this start: greater than that of any start before it."""
        return self.grant.token


@dataclass(frozen=True, slots=True)
class _Record:
    """The starts that were written down. `last`: the latest slot of time; `named`: the latest slots with names."""

    last: str = ""
    named: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | None, name: str) -> "_Record":
        if text is None:
            return cls()
        try:
            found = json.loads(text)
            return cls(str(found["last"]), tuple(map(str, found["named"])))
        except (ValueError, TypeError, KeyError):
            raise LockError(f"{name}: a leader wrote down something else than slots: use another name") from None


class Slots(TypedDict, total=False):
    """The options of `once`: see `LockBackend.once`."""

    every_s: float | None
    slot: str | None
    wait_s: float | Literal["ttl"] | None
    again: bool
    cancel: Cancel | None


class AsyncOnce(AsyncBlock[Start | None]):
    """For tasks: at most one start for each slot. See `AsyncLocks.once`, which makes it.

    >>> async with locks.once("/jobs/nightly", every_s=3600) as start:
    ...     if start is not None:          # else it was started, or an earlier slot's run still goes on
    ...         await run(token=start.token)
    >>> @locks.once("/jobs/nightly", every_s=3600)
    ... async def nightly() -> str: ...    # a call returns None where it starts nothing

    `reason`: the reason why the last call has started nothing; it is logged, too.
    """

    def __init__(
        self,
        election: AsyncElection,
        name: str,
        every_s: float | None = None,
        slot: str | None = None,
        wait_s: float | Literal["ttl"] | None = "ttl",
        *,
        ttl_s: float = 0.0,
        again: bool = False,
        cancel: Cancel | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if (every_s is None) == (slot is None):
            raise ValueError("once() takes either every_s or slot")
        if every_s is not None and seconds("every_s", every_s) < 1:
            raise ValueError(f"every_s must be 1 or more seconds, not {every_s!r}")
        if slot is not None and not (isinstance(slot, str) and 0 < len(slot) <= _SLOT_MAX):
            raise ValueError(f"slot must be a text of 1 to {_SLOT_MAX} characters, not {slot!r:.60}")
        if wait_s == "ttl":
            wait_s = ttl_s * _DEAD_RATIO + _DEAD_S
        elif wait_s is not None:
            seconds("wait_s", wait_s, zero=True)
        super().__init__()
        self.reason = ""
        self._election = election
        self._name = name
        self._every_s = every_s
        self._slot = slot
        self._wait_s = wait_s
        self._again = again
        self._cancel = cancel
        self._clock = clock

    async def _begin(self) -> Start | None:
        """Start the present slot, and return the start; None, with a `reason`, if it is not ours to start.

        Raises `LockUnavailable`, `LockCancelled` and `LockLost`, and then starts nothing; but the slot may count as
        started, except after `LockCancelled`.
        """
        slot = self._slot or self._now()
        if self._was_started(await self._recorded(), slot):
            return None
        try:
            leadership = await self._election.campaign(slot, wait_s=self._wait_s, cancel=self._cancel)
        except LockTimeout:
            if not self._was_started(await self._recorded(), slot):
                self._refuse(slot, "another run goes on, or another process is about to start this one")
            return None
        try:
            return await self._write_down(slot, leadership)
        except BaseException:
            await leadership.resign()
            raise

    async def _write_down(self, slot: str, leadership: AsyncLeadership) -> Start | None:
        # Nothing comes between this look and our write: an earlier leader's write is refused by now.
        record = await self._recorded()
        if self._was_started(record, slot):
            await leadership.resign()
            return None
        named = (*(one for one in record.named if one != slot), slot)[-_NAMED_MAX:]
        record = replace(record, last=slot) if self._slot is None else replace(record, named=named)
        await leadership.record(json.dumps({"last": record.last, "named": record.named}, ensure_ascii=False))
        leadership.ensure_held()
        self.reason = ""
        return Start(slot, leadership)

    async def _end(self, start: Start | None) -> None:
        """Let the next slot's run begin. Never raises."""
        if start is not None:
            if start.grant.lost:
                _log.warning("%s: the run of %s went on when another one could begin", self._name, start.slot)
            await start.grant.resign()

    def _now(self) -> str:
        # As text that sorts by time; its length of time is not in it, so that `every_s` may change.
        began = self._clock() // (self._every_s or 1) * (self._every_s or 1)
        return datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds")

    async def _recorded(self) -> _Record:
        return _Record.parse(await self._election.recorded(), self._name)

    def _was_started(self, record: _Record, slot: str) -> bool:
        if slot == record.last or slot in record.named:
            return not self._again and self._refuse(slot, "it was started")
        if self._slot is None and slot < record.last:
            why = f"a later one, {record.last}, was started: a clock is wrong, or the slots were shorter"
            return self._refuse(slot, why, logging.WARNING)
        return False

    def _refuse(self, slot: str, why: str, level: int = logging.INFO) -> bool:
        self.reason = f"{self._name}: {slot} is not started here: {why}"
        _log.log(level, "%s", self.reason)
        return True

    @asynccontextmanager
    async def _block(self) -> AsyncIterator[Start | None]:
        start = await self._begin()
        try:
            yield start
        finally:
            await self._end(start)

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Result]]
    ) -> Callable[P, Coroutine[Any, Any, Result | None]]:
        """Have each call of a coroutine function start a slot's run, or return None."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is no coroutine function: functions have LockBackend.once")

        @functools.wraps(function)
        async def started(*args: P.args, **kwargs: P.kwargs) -> Result | None:
            async with self._block() as start:
                return None if start is None else await function(*args, **kwargs)

        return started


class Once(Block[Start | None]):
    """As `AsyncOnce`, for threads.

    >>> with locks.once("/jobs/nightly", every_s=3600) as start:
    ...     if start is not None:
    ...         run(token=start.token)
    >>> @locks.once("/jobs/nightly", every_s=3600)
    ... def nightly() -> str: ...
    """

    def __init__(self, once: AsyncOnce) -> None:
        super().__init__()
        self._once = once

    @property
    def reason(self) -> str:
        """See `AsyncOnce`."""
        return self._once.reason

    @contextmanager
    def _block(self) -> Iterator[Start | None]:
        start = portal.run(self._once._begin(), self._once._end)
        try:
            yield start
        finally:
            portal.run(self._once._end(start), to_the_end=True)

    def __call__(self, function: Callable[P, Result]) -> Callable[P, Result | None]:
        """Have each call of a function start a slot's run, or return None."""
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is a coroutine function: these have AsyncLocks.once")

        @functools.wraps(function)
        def started(*args: P.args, **kwargs: P.kwargs) -> Result | None:
            with self._block() as start:
                return None if start is None else function(*args, **kwargs)

        return started

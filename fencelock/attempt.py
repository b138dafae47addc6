"""One caller's attempt to get a lock, and the wait loop that all locks share."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Final, Generic, TypeVar

from .common import Common
from .errors import LockUnavailable
from .grant import Grant
from .interrupt import uninterrupted
from .lease import Lease, Leased
from .per_loop import PerLoop
from .renewer import Renewer
from .steps import Step
from .waiting import Wait, Wake

_AWAY_PAUSE_S: Final = 0.1  # before a server that was away is asked again

Backend = TypeVar("Backend", bound=Common)


class Attempt(ABC, Generic[Backend]):
    """What a lock is made of: how it is taken, what wakes a waiter, and how it is given back.

    `ttl_s`: of the lease to be had, in seconds; `renewer`: who renews it, for a thread or on a task's loop. `lease`:
    what the attempt has, or may have, on the server; None while there is nothing. `wake`: to be set by whatever tells
    that it is worth to look again. `answered`: whether the server has been there. `cleanup`: closed when the waiting is
    over, however it ends. `brief`: `take` never waits for others, so that many can take turns in it.
    """

    brief = True

    def __init__(self, backend: Backend, name: str, ttl_s: float | None = None) -> None:
        self.backend = backend
        self.name = name
        self.ttl_s = backend.ttl_s if ttl_s is None else ttl_s
        self.renewer: Renewer = backend.renewer
        self.lease: Lease | None = None
        self.answered = False
        self.wake = Wake()
        self.cleanup = ExitStack()

    @abstractmethod
    async def take(self, wait: Wait) -> Grant | float:
        """Try, or look whether it is our turn: the grant, or for how many seconds to sleep unless woken.

        Raises `LockUnavailable`, or `PlaceLost` if what we had on the server is gone. Each call to the server has the
        deadline `wait.call_s(backend.timeout_s)`. It awaits nothing but steps, see `steps`.
        """

    async def until_granted(self, wait: Wait) -> Grant:
        """Try, sleep, try again: until the lock is ours or there is no reason to wait any longer.

        Raises `LockTimeout`, `LockCancelled` or `LockUnavailable`. The first try must be answered; after that a server
        that is away is waited for, up to a TTL. Whatever it raises, what the attempt has on the server is given back.
        """
        backend = self.backend
        with backend.shutdown.waiting(self.wake.set):
            try:
                with self.cleanup:
                    self.cleanup.callback(wait.cancel.subscribe(self.wake.set))
                    return await self._until_granted(wait)
            except BaseException as error:
                wait.granted.clear()
                # In the background if the server is away; but one that closes has no background any more.
                await self.leave(in_background=isinstance(error, LockUnavailable) and not backend.shutdown.begun)
                raise

    async def _until_granted(self, wait: Wait) -> Grant:  # noqa: PLR0912 - one loop, to be read as one
        backend, away_since, woken, again = self.backend, 0.0, False, False
        while True:
            backend.ensure_open()
            if wait.cancel.is_set():
                wait.check(self.name)
            try:
                if self.lease is not None:
                    self._ensure_place(self.lease)
                # Who was woken goes first: it is probably their turn for the lock.
                in_line = self.brief and not woken
                turn = await Turn(backend.turns, max(wait.left_s, backend.timeout_s)) if in_line else None
                try:
                    if wait.cancel.is_set():
                        wait.check(self.name)
                    with uninterrupted():
                        found = await self.take(wait)
                        if isinstance(found, Grant):
                            wait.granted.append(found)
                finally:
                    if turn is not None:
                        turn.release()
                away_since, self.answered = 0.0, True
                if isinstance(found, Grant):
                    self._ensure_place(found)
            except PlaceLost:
                wait.granted.clear()
                await self.leave()
                if not again:  # once without a look at the time: what we began with may have been over before
                    again = True
                    continue
                found = 0.0  # begin anew, at the end of the queue, while time is left
            except LockUnavailable:
                away_since = away_since or time.monotonic()
                if not self.answered or time.monotonic() - away_since > self.ttl_s:
                    raise
                found = _AWAY_PAUSE_S
            if isinstance(found, Grant):
                backend.ensure_open()
                return found
            wait.check(self.name)
            woken = await self.wake.wait(min(found, wait.left_s))

    def _ensure_place(self, leased: Lease | Leased) -> None:
        if leased.lost:
            raise PlaceLost

    async def leave(self, *, in_background: bool = False) -> None:
        """Give up what the attempt has on the server. Never raises."""
        lease, self.lease = self.lease, None
        if lease is not None and in_background:
            self.renewer.end(lease)
        elif lease is not None:
            await self.renewer.hand_back(lease, self.backend.timeout_s)


class Turn(Step[asyncio.Semaphore | None]):
    """A thousand tasks that come at once make their calls a few at a time: else all of them would be late.

    Given back by `release`; None for threads, and for a task that has waited for `timeout_s`.
    """

    def __init__(self, turns: PerLoop[asyncio.Semaphore], timeout_s: float) -> None:
        self._turns = turns
        self._timeout_s = timeout_s

    def in_thread(self) -> None:
        """Threads are few."""

    async def on_loop(self) -> asyncio.Semaphore | None:
        """Wait for it."""
        turns = self._turns.here()
        if not turns.locked():
            await turns.acquire()
            return turns
        try:
            async with asyncio.timeout(None if math.isinf(self._timeout_s) else self._timeout_s):
                await turns.acquire()
        except TimeoutError:
            return None
        return turns


class PlaceLost(Exception):
    """Our place in a queue is gone: its key, its node or its lease. Not a failure, but a reason to queue again."""

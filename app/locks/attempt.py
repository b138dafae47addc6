"""One caller's attempt to get a lock, and the wait loop that all locks share."""

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from app.common.interrupt import uninterrupted
from app.errors import LockUnavailable
from app.locks.grant import Grant
from app.locks.lease import Lease, Leased
from app.locks.waiting import Wait, Wake

if TYPE_CHECKING:
    from app.locks.backend import LockBackend

_AWAY_PAUSE_S: Final = 0.1  # before a server that was away is asked again

Backend = TypeVar("Backend", bound="LockBackend")


class Attempt(ABC, Generic[Backend]):
    """What a lock is made of: how it is taken, what wakes a waiter, and how it is given back.

    `lease`: what the attempt has, or may have, on the server; None while there is nothing. `wake`: to be set by
    whatever tells that it is worth to look again. `answered`: whether the server has been there. `cleanup`: closed when
    the waiting is over, however it ends.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.lease: Lease | None = None
        self.answered = False
        self.wake = Wake()
        self.cleanup = ExitStack()

    @abstractmethod
    def take(self, wait: Wait) -> Grant | float:
        """Try, or look whether it is our turn: the grant, or for how many seconds to sleep unless woken.

        Raises `LockUnavailable`, or `PlaceLost` if what we had on the server is gone. Each call to the server has the
        deadline `wait.call_s(backend.timeout_s)`.
        """

    def until_granted(self, wait: Wait) -> Grant:
        """Try, sleep, try again: until the lock is ours or there is no reason to wait any longer.

        Raises `LockTimeout`, `LockCancelled` or `LockUnavailable`. The first try must be answered; after that a server
        that is away is waited for, up to a TTL. Whatever it raises, what the attempt has on the server is given back.
        """
        backend = self.backend
        with backend.shutdown.waiting(self.wake.set):
            try:
                with self.cleanup:
                    self.cleanup.callback(wait.cancel.subscribe(self.wake.set))
                    return self._until_granted(wait)
            except BaseException as error:
                # In the background if the server is away; but one that closes has no background any more.
                self.leave(in_background=isinstance(error, LockUnavailable) and not backend.shutdown.begun)
                raise

    def _until_granted(self, wait: Wait) -> Grant:
        backend, away_since = self.backend, 0.0
        while True:
            backend.ensure_open()
            if wait.cancel.is_set():
                wait.check(self.name)
            try:
                if self.lease is not None:
                    self._ensure_place(self.lease)
                with uninterrupted():
                    found = self.take(wait)
                away_since, self.answered = 0.0, True
                if isinstance(found, Grant):
                    self._ensure_place(found)
            except PlaceLost:
                self.leave()
                found = 0.0  # begin anew, at the end of the queue, while time is left
            except LockUnavailable:
                away_since = away_since or time.monotonic()
                if not self.answered or time.monotonic() - away_since > backend.ttl_s:
                    raise
                found = _AWAY_PAUSE_S
            if isinstance(found, Grant):
                backend.ensure_open()
                return found
            wait.check(self.name)
            self.wake.wait(min(found, wait.left_s))

    def _ensure_place(self, leased: Lease | Leased) -> None:
        if leased.lost:
            raise PlaceLost

    def leave(self, *, in_background: bool = False) -> None:
        """Give up what the attempt has on the server. Never raises."""
        lease, self.lease = self.lease, None
        if lease is not None and in_background:
            self.backend.renewer.end(lease)
        elif lease is not None:
            self.backend.renewer.hand_back(lease, self.backend.timeout_s)


class PlaceLost(Exception):
    """Our place in a queue is gone: its key, its node or its lease. Not a failure, but a reason to queue again."""

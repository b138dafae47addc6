"""A lease: a grant on a server that expires unless it is renewed, and when one must stop believing in it."""

import logging
import threading
import time
import weakref
from collections.abc import Callable

from app.errors import LockLost

_log = logging.getLogger(__name__)


class Leased:
    """What is worth as much as the lease that it rests on: a grant, a session."""

    __slots__ = ("__weakref__", "_lease")

    def __init__(self, lease: "Lease") -> None:
        self._lease = lease
        lease.held_by(self)

    @property
    def deadline(self) -> float:
        """When it ends if it is not renewed, on the monotonic clock."""
        return self._lease.deadline

    @property
    def lost(self) -> bool:
        """Whether one must stop believing in it."""
        return self._lease.lost

    def ensure_held(self) -> None:
        """Raise `LockLost` if the deadline has passed or a renewal was refused. To be called before every write."""
        self._lease.ensure_held()

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when it is lost; at once if it is. It must not block."""
        self._lease.on_lost(callback)


class Lease:
    """Ours until `deadline`, a moment on the monotonic clock, unless it is renewed before or lost.

    `renew(timeout_s)` asks the server for another `ttl_s`: True when it was given, False when there is nothing left to
    renew; it raises `LockUnavailable` when the server could not be asked. `end(timeout_s)` gives the lease back.
    `abandoned()` says whether the owner is gone for good. A lease `under` another one lasts as long as that,
    unless there is nothing left to renew.

    The deadline counts from *before* the request was sent: the server starts to count later than we do, so we stop
    believing in the lease before the server gives it to somebody else, as long as both clocks run at the same rate.
    """

    def __init__(
        self,
        name: str,
        ttl_s: float,
        *,
        asked_at: float,
        renew: Callable[[float], bool],
        end: Callable[[float], None],
        abandoned: Callable[[], bool] = lambda: False,
        under: "Lease | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.ttl_s = ttl_s
        self.renew = renew
        self.end = end
        self._owner_is_gone = abandoned
        self._holder: weakref.ref[object] | None = None
        self._clock = clock
        self._mutex = threading.Lock()
        self._deadline = asked_at + ttl_s
        self._reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._under = under

    @property
    def deadline(self) -> float:
        """When the lease ends if nobody renews it, on the monotonic clock."""
        return self._deadline if self._under is None else self._under.deadline

    def held_by(self, holder: object) -> None:
        """From now on the lease serves `holder` (a grant): nobody can give it back any more once that is garbage."""
        self._holder = weakref.ref(holder)

    @property
    def abandoned(self) -> bool:
        """Whether there is nobody left who could give it back: it must not be renewed for ever."""
        return self._owner_is_gone() or (self._holder is not None and self._holder() is None)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 when lost."""
        return 0.0 if self._reason is not None else max(0.0, self.deadline - self._clock())

    @property
    def lost(self) -> bool:
        """Whether one must stop believing in it. Never turns back to False."""
        if self._reason is None and self._under is not None:
            if self._under.lost:
                self.lose(self._under.reason)
        elif self._reason is None and self._clock() >= self._deadline:
            self.lose(f"not renewed within its {self.ttl_s:g} s")
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Why it is lost; empty while that was not noticed."""
        return self._reason or ""

    def ensure_held(self) -> None:
        """Raise `LockLost`, with the reason, if the lease is lost."""
        if self.lost:
            raise LockLost(f"{self.name} is lost: {self._reason}")

    def renewed(self, asked_at: float) -> None:
        """The server gave another TTL to a request sent at `asked_at`. Too late for a lease that is lost already."""
        if not self.lost:
            self._deadline = max(self._deadline, asked_at + self.ttl_s)

    def lose(self, reason: str) -> None:
        """Stop believing in it and tell everybody who asked to be told. Only the first reason counts."""
        with self._mutex:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("an on_lost callback of %s failed", self.name)

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once when the lease is lost (now, if it is); the answer takes that back.

        It is called on whatever thread finds out, mostly the renewal thread: it must be quick and must not block.
        """
        with self._mutex:
            if self._reason is None:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

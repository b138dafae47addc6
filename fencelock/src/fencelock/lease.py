"""A lease: a grant that expires on its server unless it is renewed, and the moment from which nobody may trust it.

    asked ---- trusted ---- deadline passed, a renewal refused, the session above lost, a fork ----> lost
                 | ^                                                                              (subscribers are told)
         renewed |_|
                 +----- given back -----> ended (nobody is told)

                     asked      renewed             deadline      the server forgets it
    this process:      |===========|====================|
    the server:           |===========|=====================|
                                                        |<->| nobody owns it: the trust window

A deadline counts from before a request was sent, and the server counts from when it came: so we stop trusting a lease
before the server can give it to somebody else, as long as both clocks run at the same rate. Lost and ended are for
good: a renewal that comes later changes nothing. The owner of a lease asks before each write; a pause between the
question and the write is the case that the fence is for. `renewer` keeps leases alive, and alone gives them back.
"""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Protocol

from . import clock, fork
from .callbacks import Callbacks
from .errors import LockLost


class Hold(Protocol):
    """A contender's hold on the lock's server: a key, a row, a node, an open transaction."""

    async def renew(self, timeout_s: float) -> bool:
        """Ask for another TTL; False if the hold is gone. Raises `LockUnavailable` if that can't be known."""

    async def end(self, timeout_s: float) -> None:
        """Give the hold back, and nothing else; nothing happens if it is gone. Raises `LockUnavailable`."""


class Keeper(Protocol):
    """Renews leases and gives them back: a `Renewer`."""

    def keep(self, lease: "Lease") -> None:
        """See `Renewer.keep`."""

    async def hand_back(self, lease: "Lease", timeout_s: float) -> None:
        """See `Renewer.hand_back`."""


class Leased:
    """The base of a grant and of a session, which end with their lease."""

    __slots__ = ("lease",)

    def __init__(self, lease: "Lease") -> None:
        self.lease = lease

    @property
    def deadline(self) -> float:
        """The moment at which it ends if it is not renewed, on the clock of `fencelock.now`."""
        return self.lease.deadline

    @property
    def trusted_s(self) -> float:
        """The seconds for which it can still be trusted; 0 when it is lost.

        By our own clock: its TTL, less the time since the last renewal was requested.
        """
        return self.lease.left_s

    @property
    def lost(self) -> bool:
        """True once it must not be trusted any more."""
        return self.lease.lost

    def ensure_held(self) -> None:
        """Raise `LockLost` if the deadline has passed or a renewal was refused. Call it before every write."""
        self.lease.ensure_held()

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback`, which must not block, called when it is lost (now, if it is). Returns an unsubscriber."""
        return self.lease.on_lost(callback)


class Lease:
    """A claim that is ours until `deadline`, a moment on the clock `now`, unless it is renewed before or lost.

    `name`: for people; `hold`: on the server, which it keeps alive; `ttl_s`: seconds from a renewal to its end;
    `asked_at`: when the server was asked for it. A lease `under` another one ends with that one at the latest.

    The deadline counts from *before* the request was sent: the server starts to count later than we do, so we stop
    believing in the lease before the server gives it to somebody else, as long as both clocks run at the same rate.
    """

    def __init__(
        self,
        name: str,
        hold: Hold,
        ttl_s: float,
        *,
        asked_at: float | None = None,
        under: "Lease | None" = None,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self.name = name
        self.hold = hold
        self.ttl_s = ttl_s
        self.idle = False  # nobody uses the lease, so its end is no loss
        self.shared = False  # others may renew it, too, and keep it alive without us
        self.granted = False  # a waiter, or its attempt, gives its hold back by itself
        self.owner: object = None  # set by the lock, once somebody owns it
        self.keeper: Keeper | None = None  # its renewer
        self.renew_until = math.inf  # on the same clock: it ends a TTL after that, even if its owner goes on
        self._generation = fork.generation
        self._clock = clock
        self._deadline = (clock() if asked_at is None else asked_at) + ttl_s
        self._under = under
        self._reason: str | None = None
        # Its first reason, kept by a method that is atomic: a mutex would be held by a thread whose signal handler may
        # have the same lease given back.
        self._first: dict[None, list[str]] = {}
        self._on_lost = Callbacks()

    @property
    def deadline(self) -> float:
        """The moment at which the lease ends if nobody renews it, on the clock `now`."""
        return self._deadline if self._under is None else min(self._deadline, self._under.deadline)

    @property
    def runs_out_at(self) -> float:
        """The moment by which the server has surely forgotten it, if it (or the lease above) is not renewed.

        For an overdue lease it is a TTL later, as its session lives, and the server may not know of the lease's end.
        Never, if others may renew it.
        """
        if self.shared or (self._under is not None and self._under.shared):
            return math.inf
        if self._under is None:
            return self._deadline + (self.ttl_s if self.overdue else 0)
        return self._under.deadline

    @property
    def inherited(self) -> bool:
        """True if it was made before a fork: then it belongs to the parent, and this process must leave it alone."""
        return self._generation != fork.generation

    @property
    def abandoned(self) -> bool:
        """True if its owner was a thread or a task that has ended: nobody can release it any more."""
        match self.owner:
            case threading.Thread() as thread:
                return not thread.is_alive()
            case asyncio.Task() as task:
                return task.done()
        return False

    @property
    def overdue(self) -> bool:
        """True if its owner has reached `hold_max_s`, so that it must not be renewed any more."""
        return self._clock() > self.renew_until

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; 0 when lost."""
        return 0.0 if self._reason is not None else max(0.0, self.deadline - self._clock())

    @property
    def lost(self) -> bool:
        """True once it must not be trusted any more. Never turns back to False."""
        if self._generation != fork.generation:
            self._reason = "it is the parent process's, from before a fork"  # no subscriber is called: see `on_lost`
        elif self._reason is None:
            if self._under is not None and self._under.lost:
                self.lose(self._under.reason)
            elif self._clock() >= self._deadline:
                self.lose(
                    "it was held for as long as it may be"
                    if self.overdue
                    else f"not renewed within its {self.ttl_s:g} s"
                )
        return self._reason is not None

    @property
    def reason(self) -> str:
        """The reason why it is lost; empty while no loss was noticed."""
        return self._reason or ""

    def ensure_held(self) -> None:
        """Raise `LockLost`, with the reason, if the lease is lost."""
        if self.lost:
            raise LockLost(f"{self.name} is lost: {self._reason}")

    def renewed(self, asked_at: float) -> None:
        """Note that the server gave another TTL to a request sent at `asked_at`; a lost lease stays lost."""
        if not self.lost:
            self._deadline = max(self._deadline, asked_at + self.ttl_s)

    def lose(self, reason: str) -> None:
        """Mark it as lost, and tell all subscribers. Only the first reason counts."""
        if self.inherited:
            return
        if self._end(own := [reason]) is own:
            self._on_lost.fire()

    def give_up(self) -> None:
        """End it as its owner wishes: `lost` is true from now on, and no subscriber is called."""
        self._end(["it was given back"])

    def _end(self, reason: list[str]) -> list[str]:
        first = self._first.setdefault(None, reason)
        self._reason = first[0]
        return first

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once when the lease is lost (now, if it is). The returned function unsubscribes.

        The thread that finds out calls it, mostly the loop's, so it must be quick and must not block. It is not called
        in a child that is forked afterwards: losing the lease there is no loss for the parent.
        """
        if self.inherited:
            callback()
            return lambda: None
        return self._on_lost.subscribe(callback)

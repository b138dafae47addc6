"""The base classes of a lock system: `Connection`, which belongs to one event loop, and `Attempt`, to get a lock."""

import asyncio
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, Generic, TypedDict, TypeVar

from . import clock
from .contender import Contender
from .errors import ConfigurationError, LockError, LockUnavailable
from .grant import Grant
from .hook import Hook, Hooks, told
from .lease import Lease
from .renewer import Renewer
from .waiting import Wait, Waiters, Wake, insisted, seconds

_AWAY_PAUSE_S: Final = 0.1  # the pause before a server that was away is asked again
_CALLS_MAX: Final = 64  # attempts that make their calls at once


class Options(TypedDict, total=False):
    """The options that all backends take.

    - `ttl_s` (5): TTL of a lease in seconds; for so long a dead holder blocks the others.
    - `renew_ratio` (1/3): a lease is renewed each time this part of its TTL has passed.
    - `timeout_s` (2): deadline of a call in seconds.
    - `instance` (the host's name): our name in the queue.
    - `hook`: a `Hook`, which hears of grants, releases, losses and renewals.
    - `instrument`: "prometheus", "opentelemetry", "structlog", or several; each needs the extra of its name.
    - `raise_on_lost_release` (True): a release of a lost lock raises `LockLost`; False: that is only logged.
    """

    ttl_s: float
    renew_ratio: float
    timeout_s: float
    instance: str
    hook: Hook
    instrument: str | Sequence[str]
    raise_on_lost_release: bool


class Terms:
    """The options of a backend, checked. `name`: of the lock system, for people. Raises `ConfigurationError`.

    `clock`: of its leases and waits.
    """

    def __init__(self, name: str, options: Options) -> None:
        for unknown in options.keys() - Options.__annotations__.keys():
            raise ConfigurationError(f"{name} has no option {unknown}; all have {', '.join(Options.__annotations__)}")
        self.name = name
        self.clock = clock.now
        self.ttl_s = _seconds("ttl_s", options.get("ttl_s", 5.0))
        self.timeout_s = _seconds("timeout_s", options.get("timeout_s", 2.0))
        self.renew_ratio = options.get("renew_ratio", 1 / 3)
        if not isinstance(self.renew_ratio, (int, float)) or not 0 < self.renew_ratio < 1:
            raise ConfigurationError(f"renew_ratio must be between 0 and 1, not {self.renew_ratio!r}")
        self.instance = options.get("instance") or socket.gethostname()
        self.raise_on_lost_release = options.get("raise_on_lost_release", True)
        if not isinstance(self.raise_on_lost_release, bool):
            raise ConfigurationError(f"raise_on_lost_release must be True or False, not {self.raise_on_lost_release!r}")
        self._instruments: Sequence[Hook] = ()
        if names := options.get("instrument"):
            from .instruments import instruments

            self._instruments = instruments(names, name)
        self.hook = options.get("hook") or Hook()

    @property
    def hook(self) -> Hook:
        """The hook of all locks: the program's own, and the instruments."""
        return self._hook

    @hook.setter
    def hook(self, hook: Hook) -> None:
        self._hook = Hooks([hook, *self._instruments]) if self._instruments else hook

    def tell_of(self, name: str, grant: Grant, waited_s: float) -> None:
        """Report a grant, and its loss, to the hook."""
        hook = self.hook
        told(hook.granted, name, grant.token, waited_s)
        if isinstance(hook, Hooks) or type(hook).lost is not Hook.lost:
            grant.on_lost(lambda: hook.lost(name, grant.token, grant.lease.reason))


def _seconds(name: str, value: Any) -> float:
    try:
        return seconds(name, value)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs here. Raises `LockError` if that is none of asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise LockError("no event loop of asyncio runs here; others, such as trio's, have no locks") from None


class Connection(ABC):
    """A backend's part on one event loop, where all its methods are called: its client, renewer and waiters.

    `terms`: the backend's options; `renewer`: renews the leases; `waiters`: the callers that queue.
    """

    calls_max = _CALLS_MAX

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.timeout_s = terms.timeout_s
        loop = asyncio.get_running_loop()
        self.renewer = Renewer(
            loop,
            ratio=terms.renew_ratio,
            clock=terms.clock,
            on_event=lambda event: told(terms.hook.renewal, event),
            calls_max=self.calls_max,
        )
        self.waiters = Waiters()
        # A thousand tasks that come at once make their calls a few at a time: otherwise all of them would be late.
        self.turns = asyncio.Semaphore(self.calls_max)

    @abstractmethod
    def attempt(self, name: str, ttl_s: float) -> "Attempt[Any]":
        """Return a new attempt to get the lock of that name."""

    @abstractmethod
    async def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues of all locks whose names begin with `prefix`, the holder of each before its waiters."""

    async def queue(self, name: str) -> list[Contender]:
        """Return the queue of one lock."""
        return [one for one in await self.contenders(f"{name}/") if one.key.rpartition("/")[0] == name]

    async def ping(self, timeout_s: float) -> None:  # noqa: B027 - some have no server
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds."""

    async def force_release(self, name: str) -> Contender | None:
        """Take a lock from its holder, and return the holder; None if nobody has it."""
        raise LockError(f"{self.terms.name} can't force a release: only etcd, redis and postgres can")

    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        """Get the lock: see `Attempt.until_granted`."""
        return await self.attempt(name, ttl_s).until_granted(wait)

    async def close(self) -> None:
        """Send the waiters away, stop renewing, and close the client. Locks still held run out."""
        await self.waiters.dismiss()
        await self.renewer.close()
        await self.disconnect()

    async def disconnect(self) -> None:  # noqa: B027 - some have none
        """Close the client."""

    def ensure_open(self) -> None:
        """Raise `LockUnavailable` once it is being closed."""
        if self.waiters.dismissed:
            raise closed(self.terms.name)


def closed(name: str) -> LockUnavailable:
    """Return the error that every call raises once the connection is closed."""
    return LockUnavailable(f"the connection to {name} is closed")


AConnection = TypeVar("AConnection", bound=Connection)


class Attempt(ABC, Generic[AConnection]):
    """A caller's attempt to get a lock: how it is taken, what wakes a waiter, and how it is given back.

    `lease`: keeps the attempt's key, row or node alive; None: the server surely has none. `wake`: set it to have the
    waiter look again. `answered`: the server has answered once. `cleanup`: closed when the waiting is over, however it
    ends. `brief`: `take` never waits for other contenders, so that many attempts can take turns in it.
    """

    brief = True

    def __init__(self, connection: AConnection, name: str, ttl_s: float) -> None:
        self.connection = connection
        self.name = name
        self.ttl_s = ttl_s
        self.renewer = connection.renewer
        self.timeout_s = connection.timeout_s
        self.lease: Lease | None = None
        self.answered = False
        self.wake = Wake()
        self.cleanup = ExitStack()

    @abstractmethod
    async def take(self, wait: Wait) -> Grant | float:
        """Try, or look whether it is our turn; return the grant, or for how many seconds to sleep unless woken.

        Raises `LockUnavailable`, or `PlaceLost` if our place on the server is gone. Each call to the server has the
        timeout `wait.call_s(self.timeout_s)`. It may be cancelled at any await, by a program that cancels all tasks.
        """

    async def until_granted(self, wait: Wait) -> Grant:
        """Try, sleep, and try again, until the lock is ours or the wait is over.

        Raises `LockTimeout`, `LockCancelled` or `LockUnavailable`. The first try must be answered; after that it waits
        up to a TTL for a server that is away. If it raises, it gives back the attempt's hold on the server.
        """
        waiters = self.connection.waiters
        with waiters.waiting(self.wake):
            try:
                with self.cleanup:
                    wait.wake = self.wake
                    if wait.cancel is not None:
                        self.cleanup.callback(wait.cancel.subscribe(self.wake.set))
                    return await self._until_granted(wait)
            except GeneratorExit:
                raise  # the loop is closed, so nothing can be awaited on it any more
            except BaseException as error:
                # In the background if the server is away; but one that closes has no background any more.
                await self.leave(in_background=isinstance(error, LockUnavailable) and not waiters.dismissed)
                raise

    async def _until_granted(self, wait: Wait) -> Grant:
        away_since: float | None = None
        woken, again, now = False, False, self.connection.terms.clock
        while True:
            self.connection.ensure_open()
            if wait.called_off:
                wait.check(self.name)
            try:
                if self.lease is not None and self.lease.lost:
                    raise PlaceLost
                # A waiter that was woken skips the turns: it is probably next for the lock.
                if not self.brief or woken:
                    found = await self.take(wait)
                else:
                    found = await self._take_in_turn(wait)
                away_since, self.answered = None, True
                if isinstance(found, Grant) and found.lease.lost:
                    raise PlaceLost
            except PlaceLost:
                await self.leave()
                if not again:  # once without a look at the time, as the wait may have been over when it began
                    again = True
                    continue
                found = 0.0  # begin anew, at the end of the queue, while time is left
            except LockUnavailable:
                away_since = now() if away_since is None else away_since
                if not self.answered or now() - away_since > self.ttl_s:
                    raise
                found = _AWAY_PAUSE_S
            if isinstance(found, Grant):
                self.connection.ensure_open()
                return found
            wait.check(self.name)
            woken = await self.wake.wait(min(found, wait.left_s))

    async def _take_in_turn(self, wait: Wait) -> Grant | float:
        turns = self.connection.turns
        if turns.locked():
            left_s = max(wait.left_s, self.timeout_s)
            try:
                async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                    await turns.acquire()
            except TimeoutError:
                return await self.take(wait)
        else:
            await turns.acquire()
        try:
            if wait.called_off:
                wait.check(self.name)
            return await self.take(wait)
        finally:
            turns.release()

    async def leave(self, *, in_background: bool = False) -> None:
        """Give up the attempt's hold on the server, now or in the background."""
        lease, self.lease = self.lease, None
        if lease is not None and in_background:
            self.renewer.end(lease)
        elif lease is not None:
            await insisted(lambda: self.renewer.hand_back(lease, self.timeout_s))


class PlaceLost(Exception):
    """Our place in a queue is gone: its key, its node or its lease. Not a failure, but a reason to queue again."""

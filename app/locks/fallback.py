"""A lock that may be done without: while its server is away, a few go on unlocked, and the store alone decides.

The articles' upgrade and downgrade: a lock in Redis as long as Redis is there, else the optimistic commit of MySQL, for
a bounded number at once so that MySQL survives it. It is only as good as the store: each of its commits must find out
by itself that somebody was faster (`VersionedStockStore`). Then the lock prevents conflicts, not errors, and it does no
harm that, for a moment, some go one way and some the other.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from app.errors import LockCancelled, LockUnavailable
from app.locks.backend import LockBackend, Reach
from app.locks.etcd.election import Election
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant
from app.locks.renewer import Renewer
from app.locks.waiting import Cancel, Wait, Wake

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # so often the lock system is asked whether it is there
_LONGEST_WARY_S: Final = 10.0
_PING_S: Final = 1.0
_TTL_S: Final = 5.0  # of a grant without a lock: the renewer then looks whether anybody has it still
_WITHOUT: Final = "no lock"  # the source of such grants


class Slots:
    """A semaphore whose waiters can be called off; first come, first served."""

    def __init__(self, most: int) -> None:
        self._mutex = threading.Lock()
        self._free = most
        self._queue: deque[Wake] = deque()

    def take(self, wait: Wait, what: str, unwanted: Callable[[], bool]) -> Callable[[], None] | None:
        """Have one of the slots; the answer gives it back, once. None: it is `unwanted` by now.

        Raises `LockTimeout` or `LockCancelled`.
        """
        own = Wake()
        with self._mutex:
            self._queue.append(own)
        forget = wait.cancel.subscribe(own.set)
        try:
            while not unwanted():
                with self._mutex:
                    if self._free and self._queue[0] is own:
                        self._free -= 1
                        return self._giver()
                wait.check(what)
                own.wait(min(wait.left_s, _LOOK_S))
            return None
        finally:
            forget()
            with self._mutex:
                self._queue.remove(own)
                self._wake_next()

    def _giver(self) -> Callable[[], None]:
        given = False

        def give() -> None:
            nonlocal given
            with self._mutex:
                if not given:
                    given = True
                    self._free += 1
                    self._wake_next()

        return give

    def wake_all(self) -> None:
        """Have all who wait look whether they still want one."""
        with self._mutex:
            for wake in self._queue:
                wake.set()

    def _wake_next(self) -> None:
        if self._free and self._queue:
            self._queue[0].set()


class FallbackLock(DistributedLock):
    """The lock while it can be had; else a grant with no lock behind it, whose token is 0."""

    def __init__(self, backend: "FallbackBackend", lock: DistributedLock) -> None:
        super().__init__(lock.name)
        self._backend = backend
        self._lock = lock

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        backend = self._backend
        while True:
            backend.ensure_open()
            grant = self._without(wait, abandoned) if backend.away else self._with(wait, abandoned)
            if grant is not None:
                return grant

    def _with(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant | None:
        """The lock; None if its system is away, or goes away while we wait."""
        backend, call_off = self._backend, Cancel()
        forgets = [wait.cancel.subscribe(call_off.set), backend.on_away(call_off.set)]
        left_s = None if wait.wait_s is None else wait.left_s
        try:
            return self._lock._take(Wait(left_s, call_off), abandoned)
        except LockCancelled:
            if wait.cancel.is_set():
                raise
            return None
        except LockUnavailable as error:
            backend.ensure_open()
            backend.went_away(error)
            return None
        finally:
            for forget in forgets:
                forget()

    def _without(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant | None:
        """No lock, as one of few; None if its system is back."""
        backend = self._backend
        give = backend.slots.take(wait, self.name, lambda: backend.closed or not backend.away)
        if give is None:
            return None
        lease = Lease(
            f"{self.name}, unlocked",
            _TTL_S,
            asked_at=time.monotonic(),
            renew=lambda _: True,
            end=lambda _: give(),
            abandoned=abandoned,
        )
        lease.on_lost(give)
        grant = Grant(self.name, 0, _WITHOUT, lease)
        backend.watcher.keep(lease)
        return grant

    def _give_back(self, grant: Grant) -> None:
        if grant.source == _WITHOUT:
            self._backend.watcher.hand_back(grant.lease, 0)
        else:
            self._lock._give_back(grant)

    def contenders(self) -> list[Contender]:
        """The lock's queue; nobody queues for no lock."""
        return [] if self._backend.away else self._lock.contenders()


class FallbackBackend(LockBackend):
    """Another backend, which may be away.

    `most`: how many may have a grant without a lock at once, in this process; `told(event)` hears "away" and "back".
    The lock system is asked twice a second whether it is there; a call that fails says so, too.
    """

    def __init__(
        self, backend: LockBackend, *, most: int = 10, told: Callable[[str], None] = lambda event: None
    ) -> None:
        super().__init__(backend.renewer)
        self.watcher = Renewer()  # of grants without a lock; the other one may hang on a server that is silent
        self.name = backend.name
        self._backend = backend
        self._told = told
        self.guarantees = replace(backend.guarantees, reach=Reach.NOBODY, leases=False, fair=False, fencing=False)
        self.portrait = backend.portrait
        self.slots = Slots(most)
        self.away = False  # grants are given without a lock now
        self._failures = 0
        self._wary_s = _LOOK_S  # how long to stay away, at least
        self._mutex = threading.Lock()
        self._told_of_away: list[Callable[[], None]] = []
        self._closed = threading.Event()
        self._looking = threading.Thread(target=self._look_for_ever, name="seckill-fallback", daemon=True)

    @property
    def way(self) -> str:
        """See `LockBackend.way`."""
        return "optimistic" if self.away else "lock"

    def lock(self, name: str) -> FallbackLock:
        """The lock of that name, or none."""
        with self._mutex:
            if self._looking.ident is None:
                self._looking.start()
        return FallbackLock(self, self._backend.lock(name))

    def on_away(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when the lock system goes away (now, if it is); the answer takes that back."""
        with self._mutex:
            self._told_of_away.append(callback)
        if self.away:
            callback()

        def forget() -> None:
            with self._mutex:
                self._told_of_away.remove(callback)

        return forget

    def went_away(self, error: LockUnavailable) -> None:
        """The lock system can't be reached: go on without."""
        with self._mutex:
            self._failures += 1
            if self.away or self.closed:
                return
            self.away = True
            callbacks = list(self._told_of_away)
        _log.warning("%s is away, going on without locks: %s", self._backend.name, error)
        self._told("away")
        for callback in callbacks:
            callback()

    @property
    def closed(self) -> bool:
        """Whether all is over."""
        return self._closed.is_set()

    def ensure_open(self) -> None:
        """Raise `LockUnavailable` when the backend was closed: that is not "away"."""
        if self.closed:
            raise LockUnavailable(f"the connection to {self._backend.name} is closed")

    def _look_for_ever(self) -> None:
        back_at = float("-inf")
        while not self._closed.wait(self._wary_s if self.away else _LOOK_S):
            failures = self._failures
            try:
                self._backend.ping(_PING_S)
            except LockUnavailable as error:
                self.went_away(error)
                continue
            except Exception:
                _log.exception("to look for the lock system failed in a way that it must not")
                continue
            with self._mutex:
                back = self.away and failures == self._failures
                if back:
                    self.away = False
            if back:
                # One that answers and yet gives no locks would be back twice a second.
                held = time.monotonic() - back_at > _LONGEST_WARY_S
                self._wary_s = _LOOK_S if held else min(_LONGEST_WARY_S, 2 * self._wary_s)
                back_at = time.monotonic()
                _log.warning("%s is back, and so are the locks", self._backend.name)
                self._told("back")

    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of the lock system; empty while it is away."""
        return self._unless_away(lambda: self._backend.contenders(prefix), [])

    def ping(self, timeout_s: float) -> None:
        """Nobody needs the lock system to be there; `way` says whether it is."""

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """As the lock system does it; nothing while it is away."""
        return self._unless_away(lambda: self._backend.remember(marks, instead_of=instead_of), set())

    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """As the lock system does it; nothing while it is away."""
        return self._unless_away(lambda: self._backend.recall(names), {})

    def _unless_away(self, call: Callable[[], Result], otherwise: Result) -> Result:
        if self.away:
            return otherwise
        try:
            return call()
        except LockUnavailable as error:
            self.ensure_open()
            self.went_away(error)
            return otherwise

    def election(self, name: str) -> Election:
        """As the lock system does it."""
        return self._backend.election(name)

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        self.slots.wake_all()
        self._backend.close()
        self.watcher.close()
        if self._looking.ident is not None:
            self._looking.join()

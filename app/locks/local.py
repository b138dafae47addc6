"""A lock of one process: right for one instance, wrong for two."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.common.blocking import Waiters
from app.errors import LockUnavailable
from app.locks.backend import Guarantees, LockBackend, Portrait, Reach
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant, who
from app.locks.renewer import Renewer
from app.locks.waiting import Wait, Wake


@dataclass(eq=False)
class _Place:
    """A contender's place in a queue; the first owns the lock."""

    key: str
    owner: dict[str, Any]
    wake: Wake = field(default_factory=Wake)
    token: int = 0


_mutex = threading.Lock()
_queues: dict[str, deque[_Place]] = {}  # of the whole process: a lock's name is what makes two objects one lock
_last_token = 0


class LocalLock(DistributedLock):
    """Fair, re-entrant, and blind to other processes."""

    def __init__(self, renewer: Renewer, waiters: Waiters, name: str, *, ttl_s: float, instance: str) -> None:
        super().__init__(name)
        self._renewer = renewer
        self._waiters = waiters
        self._ttl_s = ttl_s
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        place = _Place("", who(self._instance))
        place.key = f"{self.name}/{id(place):x}"
        with self._waiters.waiting(place.wake.set):
            forget = wait.cancel.subscribe(place.wake.set)
            try:
                if wait.cancel.is_set():
                    wait.check(self.name)
                with _mutex:
                    _queues.setdefault(self.name, deque()).append(place)
                while not _first(self.name, place):
                    if self._waiters.closing:
                        raise LockUnavailable("the locks of this process are closed")
                    wait.check(self.name)
                    place.wake.wait(min(wait.left_s, self._ttl_s))
                return self._grant(place, abandoned)
            except BaseException:
                _leave(self.name, place)
                raise
            finally:
                forget()

    def _grant(self, place: _Place, abandoned: Callable[[], bool]) -> Grant:
        if self._waiters.closing:
            raise LockUnavailable("the locks of this process are closed")
        name = self.name
        # Nothing runs out here by itself. The renewer finds what nobody can release any more.
        lease = Lease(
            place.key,
            self._ttl_s,
            asked_at=time.monotonic(),
            renew=lambda _: _first(name, place),
            end=lambda _: _leave(name, place),
            abandoned=abandoned,
        )
        lease.on_lost(lambda: _leave(name, place))
        place.token = _next_token()
        grant = Grant(place.key, place.token, _SOURCE, lease)
        self._renewer.keep(lease)
        return grant

    def _give_back(self, grant: Grant) -> None:
        self._renewer.hand_back(grant.lease, 0)

    def contenders(self) -> list[Contender]:
        """The queue."""
        return _contenders(self.name)


# The tokens go on after a restart of the process, and can be compared with those of another one on this machine: so a
# store that checks them refuses what a second instance would spoil.
_SOURCE = f"local:{socket.gethostname()}"


def _next_token() -> int:
    global _last_token  # noqa: PLW0603
    with _mutex:
        _last_token = max(_last_token + 1, time.time_ns() // 1000)
        return _last_token


def _first(name: str, place: _Place) -> bool:
    with _mutex:
        queue = _queues.get(name)
        return queue is not None and queue[0] is place


def _leave(name: str, place: _Place) -> None:
    with _mutex:
        queue = _queues.get(name, deque())
        if place in queue:
            queue.remove(place)
        if queue:
            queue[0].wake.set()
        else:
            _queues.pop(name, None)


def _contenders(name: str) -> list[Contender]:
    with _mutex:
        places = list(_queues.get(name, ()))
    now = time.time()
    return [
        Contender(place.key, place.token, place.owner, max(0.0, now - place.owner["since"]), None, number == 0)
        for number, place in enumerate(places)
    ]


class LocalBackend(LockBackend):
    """The locks of this process."""

    name = "local"
    guarantees = Guarantees(reach=Reach.PROCESS, leases=False, fair=True, fencing=True, shows_queue=True)
    portrait = Portrait(
        works=(
            "A queue in the memory of the process. The token is the time in microseconds, or one more than the last, "
            "so that it goes on after a restart."
        ),
        costs="nothing",
        fails=(
            "with a second instance: each of the two has a lock of its own, and without a guard they sell the same "
            "units; with the fence they refuse each other's writes, and sell slowly but rightly"
        ),
        choose="for one instance that will stay alone, and for tests of your own code",
    )

    def __init__(
        self,
        *,
        ttl_s: float = 5.0,
        instance: str | None = None,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(Renewer(told=told))
        self._waiters = Waiters()
        self._ttl_s = ttl_s
        self._instance = instance or socket.gethostname()

    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; objects of one name are one lock."""
        return LocalLock(self.renewer, self._waiters, name, ttl_s=self._ttl_s, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of this process."""
        with _mutex:
            names = sorted(name for name in _queues if name.startswith(prefix))
        return [one for name in names for one in _contenders(name)]

    def ping(self, timeout_s: float) -> None:
        """There is nobody to ask."""

    def newest(self, name: str, timeout_s: float) -> tuple[str, int]:
        """This machine, and its time."""
        return _SOURCE, _next_token()

    def close(self) -> None:
        """Those who wait are told that it is over."""
        self._waiters.send_away()
        self.renewer.close()

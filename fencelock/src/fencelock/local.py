"""A lock of one process: right for one instance, wrong for two."""

import asyncio
import json
import socket
import threading
import time
from collections import deque
from typing import Any

from typing_extensions import override

from . import clock, fork
from .backend import Guarantees, LockBackend, Scope
from .connection import Attempt, Connection
from .contender import Contender, describe
from .grant import Grant
from .lease import Lease
from .waiting import Wait

_mutex = threading.Lock()
_queues: "dict[str, deque[_LocalPlace]]" = {}  # of the whole process: two objects with one name are the same lock
_last_token = 0
# The tokens go on after a restart of the process, and can be compared with those of another one on this machine: so a
# store that checks them refuses the writes of a second instance.
_SOURCE = f"local:{socket.gethostname()}"


def _forget_all() -> None:
    global _mutex  # noqa: PLW0603
    _mutex = threading.Lock()
    _queues.clear()


fork.in_child(_forget_all)  # the contenders in it are the parent's


class _LocalPlace(Attempt[Connection]):
    """A contender's place in a queue; the first owns the lock."""

    def __init__(self, connection: Connection, name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self.key = f"{name}/{id(self):x}"
        self.over = asyncio.get_running_loop().is_closed  # then nobody will ever release it, or wait
        self.token = 0
        self.owner: dict[str, Any] = json.loads(describe(connection.terms.instance))

    @override
    async def take(self, wait: Wait) -> Grant | float:
        if self.lease is None:
            # Nothing runs out here by itself; the renewer finds a lock whose owner has ended.
            self.lease = Lease(self.key, self, self.ttl_s)
            self.lease.on_lost(self._leave)
            with _mutex:
                _queues.setdefault(self.name, deque()).append(self)
        if not self._is_first():
            self.lease.renewed(clock.now())  # a waiter keeps its place
            return self.ttl_s / 3
        self.token = _next_token()
        self.lease.renewed(clock.now())
        self.renewer.keep(self.lease)
        return Grant(self.key, self.token, _SOURCE, self.lease)

    async def renew(self, timeout_s: float) -> bool:
        """Return whether the lock is still ours."""
        return self._is_first()

    def _is_first(self) -> bool:
        while True:
            with _mutex:
                first = next(iter(_queues.get(self.name, ())), None)
            if first is None or first is self or not first.over():
                return first is self
            if first.lease is not None:
                first.lease.lose("its event loop is closed")
            first._leave()

    async def end(self, timeout_s: float) -> None:
        """Leave the queue."""
        self._leave()

    def _leave(self) -> None:
        with _mutex:
            queue = _queues.get(self.name, deque())
            if self in queue:
                queue.remove(self)
            for place in queue:
                if not place.over():
                    place.wake.set()
                    return
            if not queue:
                _queues.pop(self.name, None)


def _next_token() -> int:
    global _last_token  # noqa: PLW0603
    with _mutex:
        _last_token = max(_last_token + 1, time.time_ns() // 1000)
        return _last_token


class _LocalConnection(Connection):
    @override
    def attempt(self, name: str, ttl_s: float) -> _LocalPlace:
        return _LocalPlace(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        with _mutex:
            names = sorted(name for name in _queues if f"{name}/".startswith(prefix))
            places = [(place, number == 0) for name in names for number, place in enumerate(_queues[name])]
        now = time.time()
        return [
            Contender(place.key, place.token, place.owner, max(0.0, now - place.owner["since"]), None, first)
            for place, first in places
        ]


class LocalBackend(LockBackend):
    """The locks of this process."""

    name = "local"
    guarantees = Guarantees(scope=Scope.PROCESS, leases=False, fair=True, fencing=True, shows_queue=True)

    @override
    def connect(self) -> Connection:
        return _LocalConnection(self.terms)

"""Simulate a lock system in memory, for more schedules than a real server allows: fair, fenced, with notification."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from typing_extensions import override

from fencelock import clock
from fencelock.attempt import Attempt
from fencelock.backend import Guarantees, LockBackend
from fencelock.contender import Contender
from fencelock.grant import Grant
from fencelock.lease import Lease
from fencelock.lock import DistributedLock
from fencelock.steps import Step
from fencelock.waiting import Wait

Result = TypeVar("Result")


class Wire:
    """The way of a call to the server and back. This one takes no time."""

    def in_thread(self, name: str, call: Callable[[], Result]) -> Result:
        """Have the server carry out a call while this thread waits."""
        return call()

    async def on_loop(self, name: str, call: Callable[[], Result]) -> Result:
        """Have the server carry out a task's call."""
        return call()

    def tell(self, name: str, push: Callable[[], None]) -> None:
        """Have the server send a notification."""
        push()


class _Call(Step[Result]):
    def __init__(self, wire: Wire, name: str, call: Callable[[], Result]) -> None:
        self._wire = wire
        self._name = name
        self._call = call

    @override
    def in_thread(self) -> Result:
        return self._wire.in_thread(self._name, self._call)

    @override
    async def on_loop(self) -> Result:
        return await self._wire.on_loop(self._name, self._call)


class MemoryLockServer:
    """The server that several backends share: a queue for each lock; the first in the queue is the holder."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Place]] = {}
        self.token = 0

    def ask(self, place: "Place") -> int | None:
        """Return a token to the first in the queue; enqueue any other."""
        queue = self.queues.setdefault(place.name, [])
        if place not in queue:
            queue.append(place)
        if queue[0] is not place:
            return None
        self.token += 1
        return self.token

    def knows(self, place: "Place") -> bool:
        """Whether the queue has this entry."""
        return place in self.queues.get(place.name, [])

    def leave(self, place: "Place") -> None:
        """Remove an entry from the queue and notify the next one."""
        queue = self.queues.get(place.name, [])
        if place in queue:
            queue.remove(place)
        if queue:
            queue[0].backend.wire.tell("its turn", queue[0].wake.set)

    def forget_holder(self, name: str) -> None:
        """Drop the holder's entry without a notification to the holder."""
        if queue := self.queues.get(name):
            self.leave(queue[0])


class Place(Attempt["MemoryLocks"]):
    """A queue entry, and the attempt that keeps it."""

    @override
    async def take(self, wait: Wait) -> Grant | float:
        asked_at = clock.now()
        if self.lease is None:
            self.lease = Lease(self.name, self, self.ttl_s, asked_at=asked_at)
        token = await self._call("ask", lambda: self.backend.server.ask(self))
        self.lease.renewed(asked_at)
        if token is None:
            return self.ttl_s / 2
        self.renewer.keep(self.lease)
        return Grant(self.name, token, "memory", self.lease)

    async def renew(self, timeout_s: float) -> bool:
        """Whether the entry still exists."""
        return await self._call("renew", lambda: self.backend.server.knows(self))

    async def end(self, timeout_s: float) -> None:
        """Leave the queue."""
        await self._call("leave", lambda: self.backend.server.leave(self))

    def _call(self, name: str, call: Callable[[], Result]) -> Awaitable[Result]:
        return _Call(self.backend.wire, name, call)


class MemoryLock(DistributedLock["MemoryLocks"]):
    """A lock in memory."""

    @override
    def _attempt(self) -> Place:
        return Place(self._backend, self.name, self.ttl_s)

    @override
    async def _queue(self) -> list[Contender]:
        return []


class MemoryLocks(LockBackend):
    """The lock backend of one instance."""

    name = "memory"
    guarantees = Guarantees(fair=True, fencing=True)

    def __init__(self, server: MemoryLockServer, wire: Wire, **options: Any) -> None:
        super().__init__(instance="memory", **options)
        self.server = server
        self.wire = wire

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> MemoryLock:
        return MemoryLock(self, name, ttl_s)

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        return []

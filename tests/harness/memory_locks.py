"""A lock system in memory, for schedules that are too many for a real server: fair, fenced, and it wakes waiters."""

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
    """How a call gets to the server and back. This one takes no time."""

    def in_thread(self, name: str, call: Callable[[], Result]) -> Result:
        """Have the server do it, while this thread waits."""
        return call()

    async def on_loop(self, name: str, call: Callable[[], Result]) -> Result:
        """The same for a task."""
        return call()

    def tell(self, name: str, push: Callable[[], None]) -> None:
        """Have the server say something unasked."""
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
    """What several backends share: of each lock those who queue, the first of whom has it."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Place]] = {}
        self.token = 0

    def ask(self, place: "Place") -> int | None:
        """A token if it is that one's turn; else it queues."""
        queue = self.queues.setdefault(place.name, [])
        if place not in queue:
            queue.append(place)
        if queue[0] is not place:
            return None
        self.token += 1
        return self.token

    def knows(self, place: "Place") -> bool:
        """Whether it stands in the queue."""
        return place in self.queues.get(place.name, [])

    def leave(self, place: "Place") -> None:
        """Out of the queue; the next one is told."""
        queue = self.queues.get(place.name, [])
        if place in queue:
            queue.remove(place)
        if queue:
            queue[0].backend.wire.tell("its turn", queue[0].wake.set)

    def forget_holder(self, name: str) -> None:
        """Who has the lock has it no longer, and is not told."""
        if queue := self.queues.get(name):
            self.leave(queue[0])


class Place(Attempt["MemoryLocks"]):
    """A place in a queue, and what keeps it."""

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
        """Whether it stands there still."""
        return await self._call("renew", lambda: self.backend.server.knows(self))

    async def end(self, timeout_s: float) -> None:
        """Leave."""
        await self._call("leave", lambda: self.backend.server.leave(self))

    def _call(self, name: str, call: Callable[[], Result]) -> Awaitable[Result]:
        return _Call(self.backend.wire, name, call)


class MemoryLock(DistributedLock["MemoryLocks"]):
    """One of its locks."""

    @override
    def _attempt(self) -> Place:
        return Place(self._backend, self.name, self.ttl_s)

    @override
    async def _queue(self) -> list[Contender]:
        return []


class MemoryLocks(LockBackend):
    """The locks of one instance."""

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

"""Simulate a lock system in memory, for more schedules than a real server allows: fair, fenced, with notification."""

from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import override

from fencelock import clock
from fencelock.backend import Guarantees, LockBackend
from fencelock.connection import Attempt, Connection
from fencelock.contender import Contender
from fencelock.grant import Grant
from fencelock.lease import Lease
from fencelock.waiting import Wait

Result = TypeVar("Result")


class Wire:
    """The way of a call to the server and back. This one takes no time."""

    async def ask(self, name: str, call: Callable[[], Result]) -> Result:
        """Have the server do it."""
        return call()

    def tell(self, name: str, push: Callable[[], None]) -> None:
        """Have the server send a notification."""
        push()


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
        """Return whether the queue has this entry."""
        return place in self.queues.get(place.name, [])

    def leave(self, place: "Place") -> None:
        """Remove an entry from the queue and notify the next one."""
        queue = self.queues.get(place.name, [])
        if place in queue:
            queue.remove(place)
        if queue:
            queue[0].connection.wire.tell("its turn", queue[0].wake.set)

    def forget_holder(self, name: str) -> None:
        """Drop the holder's entry without a notification to the holder."""
        if queue := self.queues.get(name):
            self.leave(queue[0])


class Place(Attempt["MemoryConnection"]):
    """A place in a queue, and what keeps it."""

    @override
    async def take(self, wait: Wait) -> Grant | float:
        asked_at, server = clock.now(), self.connection.server
        if self.lease is None:
            self.lease = Lease(self.name, self, self.ttl_s, asked_at=asked_at)
        token = await self.connection.wire.ask("ask", lambda: server.ask(self))
        self.lease.renewed(asked_at)
        if token is None:
            return self.ttl_s / 2
        self.renewer.keep(self.lease)
        return Grant(self.name, token, "memory", self.lease)

    async def renew(self, timeout_s: float) -> bool:
        """Return whether it stands there still."""
        return await self.connection.wire.ask("renew", lambda: self.connection.server.knows(self))

    async def end(self, timeout_s: float) -> None:
        """Leave."""
        await self.connection.wire.ask("leave", lambda: self.connection.server.leave(self))


class MemoryConnection(Connection):
    """To a server in memory."""

    server: MemoryLockServer
    wire: Wire

    @override
    def attempt(self, name: str, ttl_s: float) -> Place:
        return Place(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
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
    def connect(self) -> Connection:
        connection = MemoryConnection(self.terms)
        connection.server, connection.wire = self.server, self.wire
        return connection

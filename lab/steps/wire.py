"""The wire between an actor and the servers: a proxy that counts messages, and strikes at one of them.

It lives on an event loop of its own, in a thread of its own, so that it goes on when the actor's loop is over.
The proxy of `lab.torture` is another thing: it passes bytes on that it need not understand, TLS among them, and is told
what to do by tests and nemeses that have no loop to wait on. Here each message is named, and a strike waits for others.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

from lab.steps.protocols import WireProtocol

NEXT: Final = "the next"  # whichever message comes after a fault: a calm run may not have it
_EFFECT_S: Final = 0.1
_RESET: Final = struct.pack("ii", 1, 0)


class Side(Enum):
    """The direction of a message."""

    ASKED = "asked"
    ANSWERED = "answered"


class WireStep(NamedTuple):
    """A point at which something can come in between: the `number`-th message of that name, or the n-th await."""

    name: str
    number: int
    side: str

    def __str__(self) -> str:
        return f"{self.name} {self.number} {self.side}".strip()


class Do(Enum):
    """What becomes of a message."""

    PASS = "is passed on"  # noqa: S105 - no password
    ARRIVE = "is passed on, and what follows only when it has had an effect"
    SWALLOW = "is lost, and so is all that follows on its connection"
    CUT = "is lost, and its connection is cut"


Strike = Callable[["ActorConnection"], Awaitable[Do]]


class ActorConnection:
    """A connection of the actor's to a server."""

    def __init__(self, writer: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.server = server
        self.swallowed = False

    def cut(self) -> None:
        """Reset it, at both ends."""
        for writer in (self.writer, self.server):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Wire:
    """All connections of an actor. `steps`: the messages in the order in which they have come so far.

    `aims`: what happens at some of them. `struck`: whether one of these has come.
    """

    def __init__(self) -> None:
        self.steps: list[WireStep] = []
        self.aims: dict[WireStep, Strike] = {}
        self.struck = False
        self.struck_at = 0.0
        self.failed = ""
        self.counting = True
        self.healed = False
        self.away = False  # nothing is passed on any more, on whichever connection
        self.heard_at = 0.0  # the moment of the last step, by the loop's clock
        self.open: set[ActorConnection] = set()
        self.given: list[Any] = []  # etcd's leases, ZooKeeper's sessions
        self._counts: Counter[tuple[str, str]] = Counter()
        self._taps: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def tap(self, role: str, protocol: type[WireProtocol], target: int) -> int:
        """Listen in front of a server; return the port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - for the type checker
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await self._serve(role, protocol(), target, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._taps.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """End all connections."""
        for server in self._taps:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        """Cut what is silent, as a machine that comes back does; new connections are as good as ever."""
        self.healed, self.away = True, False
        for connection in list(self.open):
            if connection.swallowed:
                connection.cut()

    async def _serve(
        self, role: str, protocol: WireProtocol, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.transport.abort()
            return
        connection = ActorConnection(writer, server)
        self.open.add(connection)

        async def up() -> None:
            await self._pass(role, connection, reader, server, protocol.asked, Side.ASKED)

        async def down() -> None:
            await self._pass(role, connection, server_reader, writer, protocol.answered, Side.ANSWERED)

        protocol.given = self.given
        try:
            await asyncio.gather(up(), down())
        finally:
            self.open.discard(connection)
            writer.transport.abort()
            server.transport.abort()

    async def _pass(
        self,
        role: str,
        connection: ActorConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut: Callable[[bytes], Any],
        side: Side,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                for message in cut(data):
                    if self.away:
                        connection.swallowed = True
                    do = await self._reach(f"{role} {message.name}", side, connection) if message.name else Do.PASS
                    # A strike may end after the wire was healed: nobody would come by to cut what falls silent then.
                    if do is Do.CUT or (do is Do.SWALLOW and self.healed):
                        connection.cut()
                        return
                    connection.swallowed = connection.swallowed or do is Do.SWALLOW
                    if not connection.swallowed:
                        with suppress(OSError):  # whoever asked may be gone; what was held arrives all the same
                            writer.write(message.raw)
                            await writer.drain()
                    if do is Do.ARRIVE:  # else the cancellation behind it would take it back
                        await asyncio.sleep(_EFFECT_S)
        if not connection.swallowed:
            with suppress(OSError):
                writer.write_eof()

    async def _reach(self, name: str, side: Side, connection: ActorConnection) -> Do:
        self.heard_at = asyncio.get_running_loop().time()
        if not self.counting or connection.swallowed:
            return Do.PASS
        self._counts[name, side.value] += 1
        step = WireStep(name, self._counts[name, side.value], side.value)
        self.steps.append(step)
        strike = self.aims.pop(step, None)
        if strike is None and self.struck:
            strike = self.aims.pop(WireStep(f"{name.partition(' ')[0]} {NEXT}", 1, side.value), None)
        if strike is None:
            return Do.PASS
        self.struck, self.struck_at = True, self.heard_at
        try:
            return await strike(connection)
        except Exception as error:
            self.failed = f"the harness: {error!r}"  # else a fault that never was would look like one that was borne
            return Do.CUT

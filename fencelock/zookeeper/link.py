"""A session's connection, on an event loop. It tries the servers until one answers.

What is said over it is the session's affair (`Talk`). A link sees to the bytes and to the clock, and lives as long as
its session: that is over when the connection is.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Final, Protocol
from urllib.parse import urlsplit

from ..errors import ConfigurationError

PORT: Final = 2181
_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Servers:
    """Where they are, which part of their tree is ours ("" or "/folder"), and how long they may take to answer."""

    addresses: tuple[tuple[str, int], ...]
    folder: str
    timeout_s: float

    @classmethod
    def parse(cls, hosts: str, timeout_s: float) -> "Servers":
        """Of "host:port,host:port/folder". Raises `ConfigurationError`."""
        text, _, folder = hosts.partition("/")
        try:
            addresses = tuple(_address(one) for one in text.split(","))
        except ValueError:
            # Never quoted: somebody may have put a password there.
            raise ConfigurationError(
                "not ZooKeeper's hosts: say host:port,host:port and, for a part of its tree, /folder after that"
            ) from None
        folder = folder.strip("/")
        return cls(addresses, f"/{folder}" if folder else "", timeout_s)

    def in_turn(self) -> Iterator[tuple[str, int]]:
        """Their addresses for ever, in an order of chance."""
        return cycle(random.sample(self.addresses, len(self.addresses)))


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text.strip()}")
    (parts.hostname or "").encode("idna")
    if not parts.hostname or parts.username is not None or parts.port == 0:
        raise ValueError
    return parts.hostname, PORT if parts.port is None else parts.port


class Talk(Protocol):
    """What a link tells a session, on its loop."""

    @property
    def ready(self) -> bool:
        """Whether a server has answered, and the session is not over."""

    @property
    def over(self) -> str | None:
        """Why it is over."""

    def begin(self) -> bytes:
        """There is a connection: what to say first."""

    def heard(self, data: bytes) -> None:
        """What came."""

    def look(self) -> float:
        """Do what is due by the clock; seconds until the next look."""

    def broken(self) -> None:
        """There is no connection any more. That ends it, if it was ready."""

    def end(self, why: str) -> None:
        """It is over."""


class Link(asyncio.Protocol):
    """One session's connection. It has no task once it is connected: a cancelled loop ends no session by that."""

    def __init__(self, talk: Talk, servers: Servers) -> None:
        self._talk = talk
        self._servers = servers
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._welcome: asyncio.Future[None] = self.loop.create_future()
        self._connecting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In a task, which ends when it is connected."""
        self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        for host, port in self._servers.in_turn():
            self._welcome = self.loop.create_future()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._servers.timeout_s):
                    await self.loop.create_connection(lambda: self, host, port)
                    await self._welcome
                if self._talk.ready:
                    return
            if self._transport is not None:
                self._transport.abort()
            if self._talk.over is not None:
                return
            await asyncio.sleep(_AGAIN_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = transport  # type: ignore[assignment]
        if self._closed:
            transport.abort()  # type: ignore[attr-defined]
            return
        self._transport.write(self._talk.begin())  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        """The session hears it."""
        self._talk.heard(data)
        if not self._welcome.done() and (self._talk.ready or self._talk.over is not None):
            self._welcome.set_result(None)
            self._look()

    def _look(self) -> None:
        if self._talk.ready:
            self._timer = self.loop.call_later(self._talk.look(), self._look)

    def connection_lost(self, error: Exception | None) -> None:
        """The session hears of that, too."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._talk.broken()
        if not self._welcome.done():
            self._welcome.set_result(None)

    def send(self, data: bytes) -> None:
        """Send it, if there is a connection."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Have no connection any more."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

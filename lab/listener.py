"""An HTTP server as small as can be, which takes what a webhook sends: whoever it is made for answers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any


class Listener(ABC):
    """Serves connections until it is closed. `away`: whether each is cut, as nobody is there."""

    def __init__(self) -> None:
        self.away = False
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str]]:
        """Return the status of a request, 0 to cut its connection, and what else the answer's head says."""

    async def open(self, hosts: Sequence[str], port: int = 0) -> int:
        """Begin to listen, and return the port."""
        self._server = await asyncio.start_server(self._serve, list(hosts), port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """End all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._busy.add(task)
        try:
            while not self.away and await self._take(reader, writer):
                pass
        except (OSError, EOFError, ValueError, asyncio.CancelledError):
            pass  # the sender was killed, or the run is over
        finally:
            self._busy.discard(task)
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take a request and answer it; False if the connection is to be cut."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        if self.away:
            return False
        status, more = await self.answer(first.split()[1], headers, body)
        if not status:
            return False
        said = "".join(f"{name}: {value}\r\n" for name, value in ({**more} | {"content-length": "0"}).items())
        writer.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{said}\r\n".encode())
        await writer.drain()
        return True

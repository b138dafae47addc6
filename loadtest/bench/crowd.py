"""A crowd that looks and does not buy: so many requests a second, and so many listeners.

    python -m loadtest.bench.crowd --urls http://127.0.0.1:8080 --get /stock:1000 /metrics:100 --listeners 900 --items 9

It asks at its pace whether it is answered or not, on as many connections as that takes; a request that finds 2,000 of
its kind waiting for an answer is dropped and counted. Says "looking" when all listen, and on SIGTERM its answers,
as JSON.
"""

import asyncio
import json
import signal
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import uvloop

from app.server import raise_file_limit

_CONNECTIONS_MAX: Final = 2000  # for each kind of request
_EVERY_S: Final = 0.01
_CONNECTING: Final = 100  # at once


class _Reader(asyncio.Protocol):
    """A connection: it asks when it is established, and is free for the next request when the answer is complete."""

    def __init__(self, request: bytes, free: list["_Reader"], told: Counter[str], kind: str) -> None:
        self._request = request
        self._free = free
        self._told = told
        self._kind = kind
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.ask()

    def ask(self) -> None:
        """Send the request."""
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        head = data.find(b"\r\n\r\n")
        at = data.lower().find(b"content-length: ", 0, head)
        if head < 0 or len(data) < head + 4 + int(data[at + 16 : data.find(b"\r\n", at)]):
            self._rest = data
            return
        self._rest = b""
        self._told[f"{self._kind} {data[9:12].decode()}"] += 1
        self._free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._told[f"{self._kind} lost"] += 1


class _Listener(asyncio.Protocol):
    """A client that reads everything it is sent."""

    def __init__(self, request: bytes, heard: asyncio.Future[str]) -> None:
        self._request = request
        self._heard = heard

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._heard.done():
            self._heard.set_result(data[9:12].decode())


async def _ask(servers: Sequence[SplitResult], path: str, per_s: float, told: Counter[str]) -> None:
    loop = asyncio.get_running_loop()
    free: list[list[_Reader]] = [[] for _ in servers]
    requests = [f"GET {path} HTTP/1.1\r\nHost: {server.netloc}\r\n\r\n".encode() for server in servers]
    began, asked, connections = loop.time(), 0, 0
    connecting: set[asyncio.Task[Any]] = set()
    while True:
        await asyncio.sleep(_EVERY_S)
        while asked < (loop.time() - began) * per_s:
            at = asked % len(servers)
            asked += 1
            if free[at]:
                free[at].pop().ask()
            elif connections < _CONNECTIONS_MAX and len(connecting) < _CONNECTING:
                # Not before it is needed, nor so many at once that asking is slow: the server gives a connection that
                # sends nothing ten seconds.
                connections += 1
                reader = _Reader(requests[at], free[at], told, path)
                host, port = servers[at].hostname, servers[at].port
                task = loop.create_task(loop.create_connection(lambda reader=reader: reader, host, port))  # type: ignore[misc, arg-type]
                connecting.add(task)
                task.add_done_callback(connecting.discard)
            else:
                told[f"{path} dropped"] += 1


async def _listen(servers: Sequence[SplitResult], listeners: int, items: int, told: Counter[str]) -> list[Any]:
    loop, places = asyncio.get_running_loop(), asyncio.Semaphore(_CONNECTING)

    async def one(number: int) -> Any:
        server = servers[number % len(servers)]
        path = f"/stock/live?sku=item-{number // len(servers) % items}"
        heard: asyncio.Future[str] = loop.create_future()
        request = f"GET {path} HTTP/1.1\r\nHost: {server.netloc}\r\n\r\n".encode()
        async with places:
            host, port = str(server.hostname), server.port or 80
            transport, _ = await loop.create_connection(lambda: _Listener(request, heard), host, port)
            told[f"/stock/live {await heard}"] += 1
        return transport

    return await asyncio.gather(*(one(number) for number in range(listeners)))


async def _look(urls: Sequence[str], gets: Sequence[str], listeners: int, items: int) -> Counter[str]:
    servers, told, over = [urlsplit(url) for url in urls], Counter[str](), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    _transports = await _listen(servers, listeners, items, told)
    asking = [
        asyncio.create_task(_ask(servers, path, float(per_s), told))
        for path, _, per_s in (get.partition(":") for get in gets)
    ]
    print("looking", flush=True)
    await over.wait()
    for task in asking:
        task.cancel()
    return told


def main() -> None:
    """Run the crowd."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--urls", nargs="+", required=True)
    parser.add_argument("--get", nargs="*", default=[])
    parser.add_argument("--listeners", type=int, default=0)
    parser.add_argument("--items", type=int, default=1)
    options = parser.parse_args()
    raise_file_limit()
    print(json.dumps(uvloop.run(_look(options.urls, options.get, options.listeners, options.items))), flush=True)


if __name__ == "__main__":
    main()

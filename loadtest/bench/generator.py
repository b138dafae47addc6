"""The load: keep-alive connections, each asking again as soon as it is answered.

    python -m loadtest.bench.generator --connections 500 --seconds 5 --urls http://127.0.0.1:8080 http://127.0.0.1:8090

Each server gets the same number. wrk makes the load if it is on PATH; otherwise this program does, with as little work
per request as possible. Prints one JSON object.
"""

import argparse
import asyncio
import gc
import itertools
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from app.server import raise_file_limit

# The request that Chromium sends when the shop's page buys, verbatim except for the host; each has its own key.
_AS_A_BROWSER: Final = (
    "Connection: keep-alive",
    "Content-Length: 0",
    'sec-ch-ua-platform: "Linux"',
    "Idempotency-Key: {key}",
    "Accept: application/json",
    'sec-ch-ua: "Not:A-Brand";v="8", "Chromium";v="156"',
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36",
    "sec-ch-ua-mobile: ?0",
    "Origin: http://{host}",
    "Sec-Fetch-Site: same-origin",
    "Sec-Fetch-Mode: cors",
    "Sec-Fetch-Dest: empty",
    "Referer: http://{host}/",
    "Accept-Encoding: gzip, deflate, br, zstd",
    "Accept-Language: en-US,en;q=0.9",
)
_WRK_CONNECTIONS_MAX: Final = 1000
_CONNECTIONS_MAX: Final = 10_000
_ANSWERED_WITHIN_S: Final = 120.0
# A thread is its process's only one, so a number is enough to distinguish its keys.
_WRK_SCRIPT: Final = """
local number = 0
wrk.headers = {{ {headers} }}
function request()
  number = number + 1
  wrk.headers["Idempotency-Key"] = "{key}-" .. number
  return wrk.format("POST", "{path}")
end
"""
_WRK_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


class Request(StrEnum):
    """A buyer's request."""

    GET = "get"  # as in the articles, with no header but the host
    POST = "post"  # as the shop's page in a browser

    def heads(self, host: str, path: str) -> Iterator[bytes]:
        """Yield requests to a host, one after the other."""
        if self is Request.GET:
            head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            while True:
                yield head
        lines = "\r\n".join((f"POST {path} HTTP/1.1", f"Host: {host}", *_AS_A_BROWSER)).format(key="\0", host=host)
        before, after = lines.encode().split(b"\0")
        keys = uuid.uuid4().hex.encode()
        for number in itertools.count():
            yield b"%s%s-%d%s\r\n\r\n" % (before, keys, number, after)

    def wrk_script(self, host: str, path: str) -> str | None:
        """Return the same for wrk, if it needs a script for that."""
        if self is Request.GET:
            return None
        pairs = [line.format(key="", host=host).partition(": ") for line in _AS_A_BROWSER]
        headers = ", ".join(f"[{json.dumps(name)}] = {json.dumps(value)}" for name, _, value in pairs)
        return _WRK_SCRIPT.format(headers=headers, key=uuid.uuid4().hex, path=path)


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load. `statuses`: answers by status; `lost`: connections that broke."""

    program: str
    seconds: float
    requests: int
    statuses: dict[str, int]
    lost: int
    p50_ms: float
    p99_ms: float
    longest_ms: float = 0.0  # not of wrk

    @property
    def per_s(self) -> float:
        """Return the requests answered a second."""
        return self.requests / self.seconds


class _Buyer(asyncio.Protocol):
    """A connection. It understands no more of an answer than its status and its end."""

    def __init__(self, requests: Iterator[bytes], latencies_s: list[float], statuses: Counter[bytes]) -> None:
        self._requests = requests
        self.until = 0.0
        self._latencies_s = latencies_s
        self._statuses = statuses
        self._rest = b""
        self._sent_at = 0.0
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self) -> None:
        """Send the next request."""
        self._sent_at = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        head = data.find(b"\r\n\r\n")
        at = data.find(b"content-length: ")
        if head < 0 or len(data) < head + 4 + int(data[at + 16 : data.find(b"\r\n", at)]):
            self._rest = data
            return
        self._rest = b""
        now = time.perf_counter()
        self._latencies_s.append(now - self._sent_at)
        self._statuses[data[9:12]] += 1
        if now < self.until:
            self.ask()
        else:
            self._end(True)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(False)

    def _end(self, well: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(well)
            self._transport.close()


async def _drive(urls: list[str], connections: int, seconds: float, paths: Sequence[str], request: Request) -> Load:
    loop = asyncio.get_running_loop()
    latencies_s: list[float] = []
    statuses: Counter[bytes] = Counter()
    buyers = []
    servers = [urlsplit(url) for url in urls]
    requests = [[request.heads(url.netloc, path) for path in paths] for url in servers]
    for number in range(connections):
        url = servers[number % len(urls)]
        # Each begins with another path, as far from the others as can be.
        begin = number // len(urls) * max(1, len(paths) * len(urls) // connections) % len(paths)
        own = requests[number % len(urls)]
        turns = (next(one) for one in itertools.cycle(own[begin:] + own[:begin]))
        buyer = _Buyer(turns, latencies_s, statuses)
        await loop.create_connection(lambda buyer=buyer: buyer, url.hostname, url.port)  # type: ignore[misc, arg-type]
        buyers.append(buyer)
    began = time.perf_counter()
    for buyer in buyers:
        buyer.until = began + seconds
        buyer.ask()
    async with asyncio.timeout(seconds + _ANSWERED_WITHIN_S):
        well = await asyncio.gather(*(buyer.ended for buyer in buyers))
    took_s = time.perf_counter() - began
    latencies_s.sort()
    middle, late = (latencies_s[len(latencies_s) * part // 100] if latencies_s else 0.0 for part in (50, 99))
    return Load(
        "asyncio and uvloop",
        took_s,
        len(latencies_s),
        {status.decode(): count for status, count in statuses.items()},
        well.count(False),
        middle * 1000,
        late * 1000,
        max(latencies_s, default=0.0) * 1000,
    )


def _wrk(program: str, urls: list[str], connections: int, seconds: float, request: Request) -> Load:
    share = connections // len(urls)
    argv = [program, "--latency", "-t1", f"-c{share}", f"-d{math.ceil(seconds)}s", "--timeout", "30s"]
    with TemporaryDirectory() as folder:
        running = []
        for number, url in enumerate(urls):
            parts, own = urlsplit(url), Path(folder, f"{number}.lua")
            script = request.wrk_script(parts.netloc, parts.path)
            if script:
                own.write_text(script)
            given = [*argv, *(["-s", str(own)] if script else []), url]
            running.append(subprocess.Popen(given, stdout=subprocess.PIPE, text=True))
        said = [one.communicate()[0] for one in running]
    requests, took_s, failed, lost = 0, 0.0, 0, 0
    p50_s: list[float] = []
    p99_s: list[float] = []
    for text in said:
        found = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m)", text)
        if found is None:
            raise RuntimeError(f"wrk said: {text}")
        requests += int(found[1])
        took_s = max(took_s, float(found[2]) * _WRK_UNITS_S[found[3]])
        failed += sum(int(count) for count in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
        lost += sum(int(count) for row in re.findall(r"Socket errors: (.*)", text) for count in re.findall(r"\d+", row))
        for into, percent in ((p50_s, "50%"), (p99_s, "99%")):
            at = re.search(rf"{percent}\s+([\d.]+)(us|ms|s|m)", text)
            into.append(float(at[1]) * _WRK_UNITS_S[at[2]] if at else 0.0)
    statuses = {"200": requests - failed} | ({"other": failed} if failed else {})
    return Load("wrk", took_s, requests, statuses, lost, max(p50_s) * 1000, max(p99_s) * 1000)


def drive(
    urls: list[str],
    connections: int,
    seconds: float,
    paths: Sequence[str] = ("/stock/reduce",),
    request: Request = Request.GET,
    *,
    never_wrk: bool = False,
) -> Load:
    """Load these servers; each buyer asks for the paths in turn. wrk can do only one path, and few connections."""
    program = None if never_wrk else shutil.which("wrk")
    if program and len(paths) == 1 and connections <= _WRK_CONNECTIONS_MAX:
        load = _wrk(program, [url + paths[0] for url in urls], connections, seconds, request)
        rush(urls, len(urls), paths[0])  # wrk leaves without its last answers: wait, or they disturb the next load
        return load
    if connections > _CONNECTIONS_MAX:
        return _in_parts(urls, connections, seconds, paths, request)
    gc.disable()  # with 20,000 connections the load generator's cost would be measured
    try:
        return uvloop.run(_drive(urls, connections, seconds, paths, request))
    finally:
        gc.enable()


def rush(urls: Sequence[str], buyers: int, path: str = "/stock/reduce") -> float:
    """Connect all buyers, let all ask in the same instant, and return the seconds until the last one is answered."""
    return uvloop.run(_rush(urls, buyers, path))


async def _rush(urls: Sequence[str], buyers: int, path: str) -> float:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {head[:60]!r}")

    connections = []
    for number in range(buyers):
        url = urlsplit(urls[number % len(urls)])
        connections.append(await asyncio.open_connection(url.hostname, url.port))
    began = time.perf_counter()
    async with asyncio.timeout(_ANSWERED_WITHIN_S):
        await asyncio.gather(*(ask(*connection) for connection in connections))
    took_s = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return took_s


def _in_parts(urls: Sequence[str], connections: int, seconds: float, paths: Sequence[str], request: Request) -> Load:
    """Load with several processes, as one can't have so many open files."""
    parts = -(-connections // _CONNECTIONS_MAX)
    argv = [sys.executable, "-m", "loadtest.bench.generator", "--connections", str(connections // parts)]
    argv += ["--seconds", str(seconds), "--paths", *paths, "--request", request, "--urls", *urls]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(parts)]
    loads = [Load(**json.loads(one.communicate()[0])) for one in running]
    statuses: Counter[str] = Counter()
    for load in loads:
        statuses.update(load.statuses)
    return Load(
        loads[0].program,
        max(load.seconds for load in loads),
        sum(load.requests for load in loads),
        dict(statuses),
        sum(load.lost for load in loads),
        max(load.p50_ms for load in loads),
        max(load.p99_ms for load in loads),
        max(load.longest_ms for load in loads),
    )


@contextmanager
def holding(url: str, connections: int) -> Iterator[None]:
    """Keep so many buyers waiting who have asked; whether they are answered is not checked."""
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(connections):
            one = stack.enter_context(socket.create_connection((parts.hostname or "", parts.port or 80)))
            one.sendall(request)
        time.sleep(1)  # until the last of them has been read
        yield


def main() -> None:
    """Run the load, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--request", type=Request, choices=list(Request), default=Request.GET)
    parser.add_argument("--paths", nargs="+", default=["/stock/reduce"])
    parser.add_argument("--urls", nargs="+", required=True)
    options = parser.parse_args()
    raise_file_limit()
    print(json.dumps(asdict(drive(options.urls, options.connections, options.seconds, options.paths, options.request))))


if __name__ == "__main__":
    main()

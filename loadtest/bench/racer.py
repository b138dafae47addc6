"""A process of a race: `python -m loadtest.bench.racer CONTESTANT URL NAME` takes a lock and gives it back.

It speaks the protocol of `loadtest.bench.race`, with a lock of ours or of another Python package.
"""

import asyncio
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fencelock.registry import connect

_TTL_S: Final = 5
_TIMEOUT_S: Final = 30.0  # contention on a small machine is no outage
_TAKE_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.01  # of peers that wait by polling
_CLOSE_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Handle:
    """A lock as one process uses it: blocks until it is taken; gives it back; ends the connection."""

    take: Callable[[], object]
    give: Callable[[], object]
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class AsyncHandle:
    """A lock for tasks, used in the same way."""

    take: Callable[[], Awaitable[object]]
    give: Callable[[], Awaitable[object]]
    close: Callable[[], Awaitable[object]]


# -- the contestants ---------------------------------------------------------------------------------------------------


def _threads(url: str, name: str) -> Handle:
    backend = connect(url, ttl_s=_TTL_S, timeout_s=_TIMEOUT_S)
    lock = backend.lock(name)
    return Handle(lock.acquire, lock.release, backend.close)


def _asyncio(url: str, name: str) -> AsyncHandle:
    backend = connect(url, ttl_s=_TTL_S, timeout_s=_TIMEOUT_S)
    lock = backend.aio.lock(name)

    async def close() -> None:
        await backend.leave_loop()
        await asyncio.to_thread(backend.close)

    return AsyncHandle(lock.acquire, lock.release, close)


def _python_etcd3(url: str, name: str) -> Handle:
    import etcd3

    host, port = _host_and_port(url)
    client = etcd3.client(host=host, port=port)
    lock: Any = etcd3.Lock(name, ttl=_TTL_S, etcd_client=client)
    return Handle(lambda: lock.acquire(timeout=None), lock.release, client.close)


def _aetcd(url: str, name: str) -> AsyncHandle:
    import aetcd

    host, port = _host_and_port(url)
    client: Any = aetcd.Client(host=host, port=port)
    lock: Any = client.lock(name.encode(), ttl=_TTL_S)
    return AsyncHandle(lambda: lock.acquire(timeout=_TAKE_WITHIN_S), lock.release, client.close)


def _etcd3aio(url: str, name: str) -> AsyncHandle:
    import etcd3aio

    client: Any = etcd3aio.Etcd3Client([url.partition("://")[2]])
    found: list[Any] = []

    async def take() -> None:
        if not found:
            await client.connect()
            found.append(client.lock(name, ttl=_TTL_S))
        await found[0].acquire()

    async def give() -> None:
        await found[0].release()

    return AsyncHandle(take, give, client.close)


def _redis_py(url: str, name: str) -> Handle:
    import redis

    client = redis.Redis.from_url(url)
    lock = client.lock(name, timeout=_TTL_S, sleep=_POLL_S)
    return Handle(lock.acquire, lock.release, client.close)


def _redis_py_asyncio(url: str, name: str) -> AsyncHandle:
    import redis.asyncio

    client: Any = redis.asyncio.Redis.from_url(url)
    lock = client.lock(name, timeout=_TTL_S, sleep=_POLL_S)
    return AsyncHandle(lock.acquire, lock.release, client.aclose)


def _python_redis_lock(url: str, name: str) -> Handle:
    import redis
    import redis_lock

    client = redis.Redis.from_url(url)
    lock: Any = redis_lock.Lock(client, name, expire=_TTL_S)
    return Handle(lock.acquire, lock.release, client.close)


def _kazoo(url: str, name: str) -> Handle:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.partition("://")[2], timeout=_TTL_S)
    client.start()
    lock: Any = client.Lock(name)
    return Handle(lock.acquire, lock.release, client.stop)


def _pg_advisory_lock(url: str, name: str) -> Handle:
    import psycopg

    session = psycopg.connect(url, autocommit=True)
    take, give = (f"SELECT pg_advisory_{word}lock(hashtextextended(%s, 0))".encode() for word in ("", "un"))
    return Handle(lambda: session.execute(take, [name]), lambda: session.execute(give, [name]), session.close)


def _host_and_port(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].partition(",")[0].rpartition(":")
    return host, int(port)


IN_THREAD: Final[dict[str, Callable[[str, str], Handle]]] = {
    "threads": _threads,
    "python-etcd3": _python_etcd3,
    "redis-py": _redis_py,
    "python-redis-lock": _python_redis_lock,
    "kazoo": _kazoo,
    "pg_advisory_lock": _pg_advisory_lock,
}
ON_LOOP: Final[dict[str, Callable[[str, str], AsyncHandle]]] = {
    "asyncio": _asyncio,
    "aetcd": _aetcd,
    "etcd3aio": _etcd3aio,
    "redis-py on asyncio": _redis_py_asyncio,
}


# -- the protocol ------------------------------------------------------------------------------------------------------

_Told = queue.SimpleQueue[list[str]]


def main() -> None:
    """Obey the lines of the standard input, and end with it."""
    contestant, url, name = sys.argv[1:]
    told: _Told = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    try:
        if contestant in ON_LOOP:
            asyncio.run(_serve_on_loop(ON_LOOP[contestant], url, name, told))
        else:
            _serve(IN_THREAD[contestant](url, name), told)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of a failed client may go on


def _listen(told: _Told) -> None:
    for line in sys.stdin:
        told.put(line.split())
    told.put([])
    time.sleep(_CLOSE_WITHIN_S)
    os._exit(1)  # the process still waits for the lock


def _serve(handle: Handle, told: _Told) -> None:
    _say("ready")
    while words := told.get():
        end, hold_s, file = _race(words)
        lines = []
        while (asked_at := _micros()) < end:
            handle.take()
            got_at = _micros()
            if hold_s:
                time.sleep(hold_s)
            lines.append(f"{asked_at} {got_at} {_micros()}\n")
            handle.give()
        _raced(lines, file)
    handle.close()


async def _serve_on_loop(open_it: Callable[[str, str], AsyncHandle], url: str, name: str, told: _Told) -> None:
    handle = open_it(url, name)
    _say("ready")
    while words := await asyncio.to_thread(told.get):
        end, hold_s, file = _race(words)
        lines = []
        while (asked_at := _micros()) < end:
            await handle.take()
            got_at = _micros()
            if hold_s:
                await asyncio.sleep(hold_s)
            lines.append(f"{asked_at} {got_at} {_micros()}\n")
            await handle.give()
        _raced(lines, file)
    await handle.close()


def _race(words: list[str]) -> tuple[int, float, Path]:
    """Return when the race ends, how long each has the lock, and the file for the turns."""
    _, length_micros, hold_micros, file = words
    return _micros() + int(length_micros), int(hold_micros) / 1e6, Path(file)


def _raced(lines: list[str], file: Path) -> None:
    file.write_text("".join(lines))
    _say(f"raced {len(lines)}")


def _micros() -> int:
    return time.time_ns() // 1000


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()

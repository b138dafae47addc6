"""Run a contender with one of our locks: `python -m tests.interop.ours URL NAME TTL_S FACE`, see client.py.

The face is "threads" or "tasks".
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fencelock import LockTimeout, connect
from tests.interop.contender import micros, obey, step

OWNER = "contender"  # each command is a task of its own


def main() -> None:
    url, name, ttl_s, face = sys.argv[1:]
    obey((threads if face == "threads" else tasks)(url, name, float(ttl_s)))


def wait_s(wait_ms: str) -> float | None:
    return None if int(wait_ms) < 0 else int(wait_ms) / 1000


def threads(url: str, name: str, ttl_s: float) -> Callable[[list[str]], str]:
    locks = connect(url, ttl_s=ttl_s)
    lock = locks.lock(name)
    leaderships: list[Any] = []

    def do(told: list[str]) -> str:
        match told:
            case ["acquire", wait_ms]:
                try:
                    grant = lock.acquire(wait_s=wait_s(wait_ms))
                except LockTimeout:
                    return "timeout"
                return f"granted {grant.token} {micros()}"
            case ["release"]:
                at = micros()
                lock.release()
                return f"released {at}"
            case ["loop", rounds, rest_ms, *rest]:
                for _ in range(int(rounds)):
                    with lock:
                        step(*rest)
                    time.sleep(int(rest_ms) / 1000)
                return f"looped {rounds}"
            case ["campaign", value]:
                leaderships.append(locks.election(name).campaign(value))
                return "elected"
            case ["resign"]:
                leaderships.pop().resign()
                return "resigned"
            case _:
                raise ValueError(told)

    return do


def tasks(url: str, name: str, ttl_s: float) -> Callable[[list[str]], str]:
    locks = connect(url, ttl_s=ttl_s).aio
    lock = locks.lock(name)
    leaderships: list[Any] = []
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def do(told: list[str]) -> str:
        match told:
            case ["acquire", wait_ms]:
                try:
                    grant = await lock.acquire(wait_s=wait_s(wait_ms), owner=OWNER)
                except LockTimeout:
                    return "timeout"
                return f"granted {grant.token} {micros()}"
            case ["release"]:
                at = micros()
                await lock.release(owner=OWNER)
                return f"released {at}"
            case ["loop", rounds, rest_ms, *rest]:
                for _ in range(int(rounds)):
                    async with lock:
                        step(*rest)
                    await asyncio.sleep(int(rest_ms) / 1000)
                return f"looped {rounds}"
            case ["campaign", value]:
                leaderships.append(await locks.election(name).campaign(value))
                return "elected"
            case ["resign"]:
                await leaderships.pop().resign()
                return "resigned"
            case _:
                raise ValueError(told)

    return lambda told: asyncio.run_coroutine_threadsafe(do(told), loop).result()


if __name__ == "__main__":
    main()

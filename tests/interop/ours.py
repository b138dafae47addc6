"""One of ours: `python -m tests.interop.ours URL NAME TTL_S`. The protocol is in client.py."""

import asyncio
import sys
import time
from pathlib import Path

from app.locks import LockBackend, LockTimeout, connect
from tests.interop.contender import micros, obey, step


def main() -> None:
    url, name, ttl_s = sys.argv[1:]
    locks = connect(url, ttl_s=float(ttl_s))
    lock = locks.lock(name)
    leaderships = []

    def do(told: list[str]) -> str:  # noqa: PLR0911 - one for each command
        match told:
            case ["acquire", wait_ms]:
                try:
                    grant = lock.acquire(wait_s=None if int(wait_ms) < 0 else int(wait_ms) / 1000)
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
            case ["race", ms, file]:
                turns = []
                end = time.monotonic() + int(ms) / 1000
                while time.monotonic() < end:
                    lock.acquire()
                    turns.append((micros(), micros()))
                    lock.release()
                return _raced(turns, file)
            case ["race-on-loop", ms, file]:
                return _raced(asyncio.run(_race(locks, name, int(ms) / 1000)), file)
            case ["campaign", value]:
                leaderships.append(locks.election(name).campaign(value))
                return "elected"
            case ["resign"]:
                leaderships.pop().resign()
                return "resigned"
            case _:
                raise ValueError(told)

    obey(do)


async def _race(locks: LockBackend, name: str, length_s: float) -> list[tuple[int, int]]:
    lock, turns = locks.aio.lock(name), []
    end = time.monotonic() + length_s
    while time.monotonic() < end:
        async with lock:
            turns.append((micros(), micros()))
    await locks.leave_loop()
    return turns


def _raced(turns: list[tuple[int, int]], file: str) -> str:
    Path(file).write_text("".join(f"{got} {gave}\n" for got, gave in turns))
    return f"raced {len(turns)}"


if __name__ == "__main__":
    main()

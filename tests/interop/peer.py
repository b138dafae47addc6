"""A lock of another Python package: `python -m tests.interop.peer CONTESTANT URL NAME TTL_S`; see client.py."""

import asyncio
import sys
import time
from pathlib import Path

from app.locks.bench import PEERS, AsyncHandle, Handle
from tests.interop.contender import micros, obey


def race(handle: Handle, length_s: float) -> list[str]:
    turns = []
    end = time.monotonic() + length_s
    while time.monotonic() < end:
        handle.take()
        turns.append(f"{micros()} {micros()}\n")
        handle.give()
    return turns


def main() -> None:
    contestant, url, name, _ = sys.argv[1:]
    peer = next(one for one in PEERS if one.name == contestant)
    plain = name.strip("/").replace("/", "-")
    in_thread = peer.in_thread(url, plain) if peer.in_thread else None

    def do(told: list[str]) -> str:
        match told:
            case ["race", ms, file]:
                if in_thread is not None:
                    turns = race(in_thread, int(ms) / 1000)
                else:
                    turns = asyncio.run(race_on_loop(url, plain, int(ms) / 1000))
                Path(file).write_text("".join(turns))
                return f"raced {len(turns)}"
            case _:
                raise ValueError(told)

    async def race_on_loop(url: str, name: str, length_s: float) -> list[str]:
        assert peer.on_loop is not None
        handle: AsyncHandle = peer.on_loop(url, name)
        turns = []
        end = time.monotonic() + length_s
        while time.monotonic() < end:
            await handle.take()
            turns.append(f"{micros()} {micros()}\n")
            await handle.give()
        await handle.close()
        return turns

    obey(do)


if __name__ == "__main__":
    main()

"""Let very many tasks wait for one lock, in a separate process: `python -m tests.harness.waiters URL NAME COUNT`.

The process prints its cost with one waiting task and with all of them; then each task gets the lock for a moment.
"""

import asyncio
import gc
import json
import subprocess
import sys
from dataclasses import dataclass

import psutil

from fencelock import aio
from tests.harness.waiting import eventually_async

WITHIN_S = 120.0


@dataclass(frozen=True)
class Cost:
    """The cost of the process: its memory, in MB, and its threads, including those of libraries."""

    rss_mb: float
    threads: int


@dataclass(frozen=True)
class Crowd:
    """The cost of a crowd; `served`: the numbers of the tasks that got the lock, in their order."""

    of_one: Cost
    of_all: Cost
    served: list[int]


def crowd(url: str, name: str, count: int) -> Crowd:
    """Have so many tasks wait for a lock, which is held until all of them do."""
    argv = [sys.executable, "-m", "tests.harness.waiters", url, name, str(count)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=2 * WITHIN_S, check=True)
    of_one, of_all, served = json.loads(done.stdout)
    return Crowd(Cost(*of_one), Cost(*of_all), served)


def _cost() -> tuple[float, int]:
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss / 1e6, process.num_threads()


async def _main(url: str, name: str, count: int) -> None:
    served: list[int] = []
    async with aio.connect(url, ttl_s=10, timeout_s=30) as locks:

        async def wait(number: int) -> None:
            async with locks.lock(name):
                served.append(number)

        async def in_line(number: int) -> None:
            await eventually_async(
                lambda: locks.contenders(name), f"{number} in line", WITHIN_S, until=lambda line: len(line) == number
            )

        async with locks.lock(name):
            waiting = [asyncio.create_task(wait(0))]
            await in_line(2)
            of_one = _cost()
            waiting += [asyncio.create_task(wait(number)) for number in range(1, count)]
            await in_line(count + 1)
            of_all = _cost()
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*waiting)
    print(json.dumps([of_one, of_all, served]))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

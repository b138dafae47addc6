"""APScheduler 4 in each of several processes: each run of the job starts in one of them.

    LOCKS=redis://127.0.0.1:6379 python apscheduler_4.py     # as often as you like

Version 4 shares schedules over a data store of its own (PostgreSQL, MySQL); this is for the one in memory.
"""

import asyncio
import os

from apscheduler import AsyncScheduler
from apscheduler.triggers.interval import IntervalTrigger

from fencelock import aio

EVERY_S = int(os.environ.get("EVERY_S", "60"))
locks = aio.connect(os.environ["LOCKS"], ttl_s=5)


@locks.once("/jobs/report", every_s=EVERY_S)
async def report() -> None:
    """Do the job."""
    print(f"process {os.getpid()} reports", flush=True)


async def main() -> None:
    """Schedule it, for ever."""
    async with locks, AsyncScheduler() as scheduler:
        # Asked for more often than it starts, so that the process that is first in a slot starts it soon.
        await scheduler.add_schedule(report, IntervalTrigger(seconds=EVERY_S / 2))
        await scheduler.run_until_stopped()


if __name__ == "__main__":
    asyncio.run(main())

"""APScheduler 3 in each of several processes: each run of the job starts in one of them.

    LOCKS=redis://127.0.0.1:6379 python apscheduler_3.py     # as often as you like

The slot is the time by the clock, and not the moment at which a scheduler wakes: schedulers that were started at
different moments, or whose clocks differ, agree about it.
"""

import os

from apscheduler.schedulers.blocking import BlockingScheduler

from fencelock import connect

EVERY_S = int(os.environ.get("EVERY_S", "60"))
locks = connect(os.environ["LOCKS"], ttl_s=5)


@locks.once("/jobs/report", every_s=EVERY_S)
def report() -> None:
    """Do the job."""
    print(f"process {os.getpid()} reports", flush=True)


if __name__ == "__main__":
    scheduler = BlockingScheduler()
    # Asked for more often than it starts, so that the process that is first in a slot starts it soon.
    scheduler.add_job(report, "interval", seconds=EVERY_S / 2, coalesce=True, max_instances=1)
    scheduler.start()

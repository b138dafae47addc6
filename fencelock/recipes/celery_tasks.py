"""Celery, whose beat must run once: or else each task is sent as often as there are beats.

    LOCKS=redis://127.0.0.1:6379
    fencelock run --leader --url $LOCKS /celery/beat -- celery -A celery_tasks beat   # on each machine: one runs
    celery -A celery_tasks worker

`report` is safe against two beats all the same: of the tasks of one slot, one does the work. `sync` runs one at a time:
a second one that comes meanwhile is not needed, and ends at once.
"""

import os

from celery import Celery

from fencelock import LockTimeout, connect

EVERY_S = int(os.environ.get("EVERY_S", "60"))
app = Celery("celery_tasks", broker=os.environ.get("BROKER", os.environ["LOCKS"]))
app.conf.beat_schedule = {"report": {"task": "celery_tasks.report", "schedule": EVERY_S}}
app.conf.broker_connection_retry_on_startup = True
locks = connect(os.environ["LOCKS"], ttl_s=5)


@app.task
@locks.once("/jobs/report", every_s=EVERY_S)
def report() -> None:
    """Do the job of this slot."""
    print(f"process {os.getpid()} reports", flush=True)


@app.task
def sync(name: str) -> bool:
    """Do what two must not do at once; return whether this one did it."""
    try:
        with locks.lock(f"/sync/{name}").holding(wait_s=0) as grant:
            print(f"process {os.getpid()} syncs {name} under token {grant.token}", flush=True)
            return True
    except LockTimeout:
        return False

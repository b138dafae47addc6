"""The locks for tasks, on the event loop itself.

A waiting task costs no thread. A task's locks are renewed by its loop: if the loop hangs, they are lost a TTL later, as
nothing on that loop could react to a loss.

>>> from fencelock import aio
>>> async with aio.connect("etcd://127.0.0.1:2379", ttl_s=5) as locks:
...     async with locks.lock("/jobs/nightly") as grant:
...         await store.write(..., token=grant.token)
"""

from typing import Unpack

from .backend import AsyncLocks
from .connection import Options
from .lock import AsyncLock
from .registry import connect as connect_for_threads

__all__ = ["AsyncLock", "AsyncLocks", "connect"]


def connect(url: str, **options: Unpack[Options]) -> AsyncLocks:
    """Open a lock system for tasks: see `fencelock.connect`."""
    return AsyncLocks(connect_for_threads(url, **options))

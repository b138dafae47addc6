"""Distributed locks: usable without the rest of the service.

>>> from app.locks import connect
>>> locks = connect("etcd://127.0.0.1:2379", ttl_s=5)
>>> with locks.lock("/jobs/nightly") as grant:
...     store.write(..., token=grant.token)
>>> locks.close()
"""

from app.common.clock import now
from app.errors import LockCancelled, LockError, LockLost, LockNotHeld, LockTimeout, LockUnavailable
from app.locks.backend import Guarantees, LockBackend, Scope
from app.locks.contender import Contender
from app.locks.grant import Grant
from app.locks.lock import DistributedLock
from app.locks.pulse import Pulse, pulse_of_loop
from app.locks.registry import connect, name_of
from app.locks.waiting import Cancel

__all__ = [
    "Cancel",
    "Contender",
    "DistributedLock",
    "Grant",
    "Guarantees",
    "LockBackend",
    "LockCancelled",
    "LockError",
    "LockLost",
    "LockNotHeld",
    "LockTimeout",
    "LockUnavailable",
    "Pulse",
    "Scope",
    "connect",
    "name_of",
    "now",
    "pulse_of_loop",
]

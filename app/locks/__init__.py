"""Distributed locks: usable without the rest of the service.

>>> from app.locks import EtcdBackend
>>> backend = EtcdBackend(["http://127.0.0.1:2379"], ttl_s=5)
>>> with backend.lock("/jobs/nightly") as grant:
...     store.write(..., token=grant.token)
>>> backend.close()
"""

from app.locks.backend import Guarantees, LockBackend, Portrait, Reach
from app.locks.etcd.backend import EtcdBackend
from app.locks.etcd.election import Election, Leader, Leadership
from app.locks.etcd.lock import EtcdLock
from app.locks.etcd.session import Session
from app.locks.lock import Contender, DistributedLock, Grant
from app.locks.none import NoBackend
from app.locks.waiting import Cancel

__all__ = [
    "Cancel",
    "Contender",
    "DistributedLock",
    "Election",
    "EtcdBackend",
    "EtcdLock",
    "Grant",
    "Guarantees",
    "Leader",
    "Leadership",
    "LockBackend",
    "NoBackend",
    "Portrait",
    "Reach",
    "Session",
]

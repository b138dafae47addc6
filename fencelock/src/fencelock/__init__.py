"""Distributed locks that are fenced, re-entrant and renewed: for threads, and natively for asyncio.

>>> from fencelock import connect
>>> locks = connect("etcd://127.0.0.1:2379", ttl_s=5)
>>> with locks.lock("/jobs/nightly") as grant:
...     store.write(..., token=grant.token)
>>> locks.close()

For tasks see `fencelock.aio`; for a store that checks the token, `fencelock.fence`; for a lock of one's own,
`fencelock.kit`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .backend import AsyncLocks, Guarantees, LockBackend, Scope
    from .clock import now
    from .contender import Contender
    from .election import AsyncElection, AsyncLeadership, Election, Leader, Leadership
    from .errors import (
        ConfigurationError,
        FencelockError,
        LockCancelled,
        LockError,
        LockLost,
        LockNotHeld,
        LockTimeout,
        LockUnavailable,
        NoLock,
    )
    from .grant import Grant
    from .hook import Hook
    from .leading import AsyncLeading, Leading
    from .lock import AsyncLock, DistributedLock
    from .once import AsyncOnce, Once, Start
    from .registry import connect, name_of, register
    from .session import AsyncSession, Session
    from .waiting import Cancel

__all__ = [
    "AsyncElection",
    "AsyncLeadership",
    "AsyncLeading",
    "AsyncLock",
    "AsyncLocks",
    "AsyncOnce",
    "AsyncSession",
    "Cancel",
    "ConfigurationError",
    "Contender",
    "DistributedLock",
    "Election",
    "FencelockError",
    "Grant",
    "Guarantees",
    "Hook",
    "Leader",
    "Leadership",
    "Leading",
    "LockBackend",
    "LockCancelled",
    "LockError",
    "LockLost",
    "LockNotHeld",
    "LockTimeout",
    "LockUnavailable",
    "NoLock",
    "Once",
    "Scope",
    "Session",
    "Start",
    "connect",
    "name_of",
    "now",
    "register",
]

# Imported when they are asked for: code that only catches an error needs no lock.
_MODULES: Final = {
    ".backend": ("AsyncLocks", "Guarantees", "LockBackend", "Scope"),
    ".clock": ("now",),
    ".contender": ("Contender",),
    ".election": ("AsyncElection", "AsyncLeadership", "Election", "Leader", "Leadership"),
    ".errors": (
        *("ConfigurationError", "FencelockError", "LockCancelled", "LockError"),
        *("LockLost", "LockNotHeld", "LockTimeout", "LockUnavailable", "NoLock"),
    ),
    ".grant": ("Grant",),
    ".hook": ("Hook",),
    ".leading": ("AsyncLeading", "Leading"),
    ".lock": ("AsyncLock", "DistributedLock"),
    ".once": ("AsyncOnce", "Once", "Start"),
    ".registry": ("connect", "name_of", "register"),
    ".session": ("AsyncSession", "Session"),
    ".waiting": ("Cancel",),
}
_HOME: Final = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # which would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""The errors of locks, in one tree.

FencelockError
├── ConfigurationError          a URL or a setting is wrong, or two of them don't go together
└── LockError
    ├── LockTimeout             the wait was over before the lock was ours
    ├── LockCancelled           the caller called the wait off
    ├── LockLost                the lease ended while we believed that we owned the lock
    ├── LockNotHeld             a release by somebody who doesn't own the lock
    ├── LockUnavailable         the lock's server can't be reached, or refuses us
    └── NoLock                  something else uses the lock's name
"""


class FencelockError(Exception):
    """Every error of this package; its text is written for a person."""


class ConfigurationError(FencelockError):
    """A setting is wrong, or two settings don't go together."""


class LockError(FencelockError):
    """Any error of a lock, its server or its lease."""


class LockTimeout(LockError):
    """The wait was over before the lock was ours. Our place in the queue is given back, at the latest by its TTL."""


class LockCancelled(LockError):
    """The caller called the wait off. Our place in the queue is given back, at the latest by its TTL."""


class LockLost(LockError):
    """The lease ended, or the lock's key vanished, while we believed that we owned the lock."""


class LockNotHeld(LockError):
    """The lock was released by a thread, a task or an owner that doesn't own it."""


class LockUnavailable(LockError):
    """The lock's server can't be reached within the call's deadline, or refuses us."""


class NoLock(LockError):
    """Something else uses a lock's name."""

"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

from abc import ABC, abstractmethod

from app.locks.lock import Contender, DistributedLock


class LockBackend(ABC):
    """What a process opens once and closes at its end.

    `name`: of the lock system, for people. `exclusive`: whether its locks exclude at all (only `none` doesn't).
    """

    name: str
    exclusive: bool = True

    @abstractmethod
    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; each call makes an object of its own."""

    @abstractmethod
    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of all locks whose names begin with `prefix`."""

    @abstractmethod
    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within that time. Blocks."""

    @property
    @abstractmethod
    def renewing(self) -> bool:
        """Whether leases are being renewed."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections. Locks still held run out by themselves."""

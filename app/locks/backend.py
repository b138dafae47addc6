"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

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

    @abstractmethod
    def newest(self, name: str, timeout_s: float) -> tuple[str, int] | None:
        """The source of its tokens, and a number that none given until now exceeds; None if it gives none. Blocks.

        `name` is one that we may ask about. Raises `LockUnavailable`.
        """

    @abstractmethod
    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """Keep texts under names, each if what is kept there is still what `instead_of` says (nothing, without it).

        For what instances want to know of each other across their ends. The names of those that are kept now, in one
        call if that can be. Blocks; raises `LockUnavailable`.
        """

    @abstractmethod
    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """What is kept under these names, as far as anything is. Blocks; raises `LockUnavailable`."""

    @property
    @abstractmethod
    def renewing(self) -> bool:
        """Whether leases are being renewed."""

    @abstractmethod
    def pause_renewal(self, for_s: float) -> None:
        """Renew nothing for so long: to see what happens then."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections. Locks still held run out by themselves."""

"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from app.errors import LockError
from app.locks.lock import Contender, DistributedLock
from app.locks.renewer import Renewer

if TYPE_CHECKING:
    from app.locks.etcd.election import Election


class Reach(StrEnum):
    """Whom a lock keeps apart."""

    EVERYBODY = "all processes"
    PROCESS = "the threads of one process"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a backend's locks promise. The contract suite holds them to it, and docs/locks.md is made of it.

    `reach`: whom they keep apart; `leases`: who holds a lock and is gone, or can't be reached, has it for a TTL at
    most, and is told; `fair`: contenders are served in the order of their arrival; `fencing`: each grant has a token
    greater than all before it, of whichever lock, for a store to check; `survives_silence`: a server that doesn't
    answer for less than a TTL costs nobody the lock; `survives_restart`: nor does one that is killed and comes back
    within it, with what it had on disk; `shows_queue`: `contenders` shows those who wait, not only who holds;
    `remembers`: texts can be kept beside the locks; `elects`: one of several candidates can be elected, and be heard.
    """

    reach: Reach = Reach.EVERYBODY
    leases: bool = True
    fair: bool = False
    fencing: bool = False
    survives_silence: bool = False
    survives_restart: bool = False
    shows_queue: bool = False
    remembers: bool = False
    elects: bool = False


@dataclass(frozen=True, slots=True)
class Portrait:
    """What people should know who choose among backends. Texts for docs/locks.md.

    `works`: how, in a few lines; `costs`: calls to its server for an acquire and a release that nobody disputes, and
    for a wait; `fails`: how; `choose`: when to take it.
    """

    works: str
    costs: str
    fails: str
    choose: str


class LockBackend(ABC):
    """What a process opens once and closes at its end. `name`: of the lock system, for people.

    `renewer`: the thread that keeps the leases of all its locks.
    """

    name: str
    guarantees: Guarantees
    portrait: Portrait

    def __init__(self, renewer: Renewer) -> None:
        self.renewer = renewer

    @abstractmethod
    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; each call makes an object of its own."""

    @abstractmethod
    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of all locks whose names begin with `prefix`."""

    @abstractmethod
    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` if the lock system doesn't answer within that time. Blocks."""

    def newest(self, name: str, timeout_s: float) -> tuple[str, int] | None:
        """The source of its tokens, and a number that none given until now exceeds; None if it gives none. Blocks.

        `name` is one that we may ask about. Raises `LockUnavailable`.
        """
        return None

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """Keep texts under names, each if what is kept there is still what `instead_of` says (nothing, without it).

        For what instances want to know of each other across their ends. The names of those that are kept now, in one
        call if that can be; none, where nothing is kept. Blocks; raises `LockUnavailable`.
        """
        return set()

    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """What is kept under these names, as far as anything is. Blocks; raises `LockUnavailable`."""
        return {}

    def election(self, name: str) -> "Election":
        """The election of that name. Raises `LockError` where there are none."""
        raise LockError(f"{self.name} has no elections")

    @property
    def way(self) -> str:
        """What sales happen by now: "lock", or "optimistic" where one can go on without (see `FallbackBackend`)."""
        return "lock"

    @property
    def renewing(self) -> bool:
        """Whether leases are being renewed."""
        return self.renewer.alive

    def pause_renewal(self, for_s: float) -> None:
        """Renew nothing for so long: to see what happens then."""
        self.renewer.pause(for_s)

    @abstractmethod
    def close(self) -> None:
        """Close the connections. Locks still held run out by themselves."""

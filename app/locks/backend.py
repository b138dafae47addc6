"""A lock backend: one connection to a lock system, from which a process takes all its locks."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypedDict

from typing_extensions import Unpack

from app.errors import LockError, LockUnavailable
from app.locks.contender import Contender
from app.locks.renewer import Renewer
from app.locks.url import LockUrl
from app.locks.waiting import Shutdown

if TYPE_CHECKING:
    from app.locks.etcd.election import Election
    from app.locks.lock import DistributedLock


class Scope(StrEnum):
    """Whom a lock keeps apart."""

    EVERYBODY = "all processes"
    PROCESS = "the threads of one process"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a backend's locks promise. The contract suite holds them to it, and docs/locks.md has a table of it.

    `scope`: whom they keep apart; `leases`: a holder that is gone, or can't be reached, has the lock for a TTL at most,
    and is told; `fair`: contenders are served in the order of their arrival; `fencing`: each grant has a token greater
    than all before it, of whichever lock, for a store to check; `survives_silence`: a server pause shorter than the TTL
    does not lose the lock; `survives_restart`: neither does a crash and restart (from disk) within the TTL;
    `shows_queue`: `contenders` shows the waiters, not only the holder; `elects`: there are elections.
    """

    scope: Scope = Scope.EVERYBODY
    leases: bool = True
    fair: bool = False
    fencing: bool = False
    survives_silence: bool = False
    survives_restart: bool = False
    shows_queue: bool = False
    elects: bool = False


class Options(TypedDict, total=False):
    """What all backends take.

    `ttl_s`: TTL of a lease in seconds (5): what a dead holder costs at most. `renew_ratio`: a lease is renewed each
    time this part of its TTL has passed (1/3). `timeout_s`: deadline of a call in seconds (2). `instance`: who we are
    in the queue (the host's name). `on_renewal`: hears of each renewal, see `Renewer`.
    """

    ttl_s: float
    renew_ratio: float
    timeout_s: float
    instance: str
    on_renewal: Callable[[str], None]


class LockBackend(ABC):
    """What a process opens once and closes at its end.

    `name`: of the lock system, for people; `renewer`: the thread that keeps the leases of all its locks.
    """

    name: str
    guarantees: Guarantees

    def __init__(self, **options: Unpack[Options]) -> None:
        self.ttl_s = options.get("ttl_s", 5.0)
        self.timeout_s = options.get("timeout_s", 2.0)
        self.instance = options.get("instance") or socket.gethostname()
        self.renewer = Renewer(
            ratio=options.get("renew_ratio", 1 / 3), on_event=options.get("on_renewal", lambda event: None)
        )
        self.shutdown = Shutdown()

    @classmethod
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        """The backend that a URL names. Doesn't connect yet. Raises `ConfigurationError`, which quotes no secret."""
        url.refuse_rest()  # for those that have no server
        return cls(**options)

    @abstractmethod
    def lock(self, name: str) -> "DistributedLock[Any]":
        """The lock of that name; each call makes an object of its own."""

    @abstractmethod
    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of all locks whose names begin with `prefix`. Raises `LockUnavailable`."""

    def ping(self, timeout_s: float) -> None:  # noqa: B027 - some have no server
        """Raise `LockUnavailable` if the lock system doesn't answer within `timeout_s` seconds. Blocks."""

    def election(self, name: str) -> "Election":
        """The election of that name. Raises `LockError` where there are none."""
        raise LockError(f"{self.name} has no elections")

    @property
    def degraded(self) -> bool:
        """Whether grants are given without a lock for now (see `FallbackBackend`)."""
        return False

    @property
    def renewing(self) -> bool:
        """Whether leases are being renewed."""
        return self.renewer.alive

    def pause_renewal(self, for_s: float) -> None:
        """Renew nothing for some seconds, as if the renewal thread hung."""
        self.renewer.pause(for_s)

    def ensure_open(self) -> None:
        """Raise `LockUnavailable` once it is being closed."""
        if self.shutdown.begun:
            raise LockUnavailable(f"the connection to {self.name} is closed")

    def close(self) -> None:
        """Have the waiters leave their queues, close the connections, stop renewing. Locks still held run out."""
        self.shutdown.begin()
        self._disconnect()
        self.renewer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disconnect(self) -> None:  # noqa: B027 - some have none
        """Close the connections."""

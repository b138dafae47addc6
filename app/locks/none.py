"""No lock at all: what the articles start from, and what the demo shows to go wrong."""

import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from app.locks.backend import Guarantees, LockBackend, Portrait, Reach
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant
from app.locks.renewer import Renewer
from app.locks.waiting import Wait


class NoLock(DistributedLock):
    """Says yes to everybody."""

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        lease = Lease(
            self.name,
            float("inf"),
            asked_at=time.monotonic(),
            renew=lambda _: True,
            end=lambda _: None,
            abandoned=abandoned,
        )
        return Grant(self.name, 0, "none", lease)  # no token: numbers of one process mean nothing to another

    def _give_back(self, grant: Grant) -> None:
        pass

    def contenders(self) -> list[Contender]:
        """Nobody queues for it."""
        return []

    @asynccontextmanager
    async def on_loop(self, *, wait_s: float | None = None, owner: Hashable | None = None) -> AsyncIterator[Grant]:
        """The same; there is nothing to wait for, so no thread is needed."""
        yield self._take(Wait(wait_s), lambda: False)


class NoBackend(LockBackend):
    """Hands out locks that don't lock."""

    name = "none"
    guarantees = Guarantees(reach=Reach.NOBODY, leases=False)
    portrait = Portrait(
        works="Says yes to everybody.",
        costs="nothing",
        fails="always: two who read 5 both write 4, and a unit is sold twice",
        choose="to see what locks are for",
    )

    def __init__(self) -> None:
        super().__init__(Renewer())  # which has nothing to renew

    def lock(self, name: str) -> NoLock:
        """A lock that doesn't lock."""
        return NoLock(name)

    def contenders(self, prefix: str) -> list[Contender]:
        """Nobody queues."""
        return []

    def ping(self, timeout_s: float) -> None:
        """There is nothing to ask."""

    def close(self) -> None:
        """There is nothing to close."""

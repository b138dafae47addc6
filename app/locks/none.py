"""No lock at all: what the articles start from, and what the demo shows to go wrong."""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from typing_extensions import override

from app.locks.attempt import Attempt
from app.locks.backend import Guarantees, LockBackend, Scope
from app.locks.contender import Contender
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.waiting import Wait


class NoLock(DistributedLock["NoBackend"]):
    """Says yes to everybody."""

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        return []

    @override
    @asynccontextmanager
    async def on_loop(
        self, *, wait_s: float | None = None, owner: Hashable | None = None, hold_max_s: float | None = None
    ) -> AsyncIterator[Grant]:
        yield self._take(Wait(wait_s))  # there is nothing to wait for, so no thread is needed


class _Attempt(Attempt["NoBackend"]):
    @override
    def take(self, wait: Wait) -> Grant:
        # No token: numbers of one process mean nothing to another.
        return Grant(self.name, 0, "none", Lease(self.name, _Nothing(), float("inf")))


class _Nothing:
    def renew(self, timeout_s: float) -> bool:
        return True

    def end(self, timeout_s: float) -> None:
        pass


class NoBackend(LockBackend):
    """Hands out locks that don't lock."""

    name = "none"
    guarantees = Guarantees(scope=Scope.NOBODY, leases=False)

    @override
    def lock(self, name: str) -> NoLock:
        return NoLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        return []

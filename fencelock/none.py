"""No lock at all: what the articles start from, and what the demo shows to go wrong."""

from typing_extensions import override

from .attempt import Attempt
from .backend import Guarantees, LockBackend, Scope
from .contender import Contender
from .grant import Grant
from .lease import Lease
from .lock import DistributedLock
from .waiting import Wait


class NoLock(DistributedLock["NoBackend"]):
    """Says yes to everybody."""

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name)

    @override
    async def _queue(self) -> list[Contender]:
        return []


class _Attempt(Attempt["NoBackend"]):
    @override
    async def take(self, wait: Wait) -> Grant:
        # No token: numbers of one process mean nothing to another.
        return Grant(self.name, 0, "none", Lease(self.name, _Nothing(), float("inf")))


class _Nothing:
    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        pass


class NoBackend(LockBackend):
    """Hands out locks that don't lock."""

    name = "none"
    guarantees = Guarantees(scope=Scope.NOBODY, leases=False)

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> NoLock:
        return NoLock(self, name, ttl_s)

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        return []

"""No lock at all: the articles start from it, and the demo shows how it goes wrong."""

from typing_extensions import override

from fencelock import Contender, Grant, Guarantees, LockBackend, Scope
from fencelock.kit import Attempt, Connection, Lease, Wait


class _Attempt(Attempt[Connection]):
    """Grants at once, to everybody."""

    @override
    async def take(self, wait: Wait) -> Grant:
        # No token: numbers of one process mean nothing to another.
        return Grant(self.name, 0, "none", Lease(self.name, self, float("inf")))

    async def renew(self, timeout_s: float) -> bool:
        """Return True: nothing ends."""
        return True

    async def end(self, timeout_s: float) -> None:
        """Do nothing: there is nothing to give back."""


class _Connection(Connection):
    @override
    def attempt(self, name: str, ttl_s: float) -> _Attempt:
        return _Attempt(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        return []


class NoBackend(LockBackend):
    """Hands out locks that don't lock."""

    name = "none"
    guarantees = Guarantees(scope=Scope.NOBODY, leases=False)

    @override
    def connect(self) -> Connection:
        return _Connection(self.terms)

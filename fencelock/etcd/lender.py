"""Leases that this process has from etcd and uses for nothing now: they are lent to whoever acquires next.

A lease of its own for each acquire costs three commits of etcd's a cycle: grant, put, revoke. With a lent one there are
two, put and delete, and one round trip less before the lock is had. Only a lease whose calls were all answered is lent
again: a put that is still on its way would make a key that nobody knows of. Any other is revoked.
"""

from typing import Final

from .. import clock
from ..errors import LockError
from ..lease import Lease
from ..renewer import Renewer
from .client import EtcdClient

_IDLE_MAX: Final = 16  # for each that renews
_IDLE_S: Final = 2.0  # what was not used for longer is given back


class Lender:
    """All leases of a backend that are not in use, each renewed by who renewed it before."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._idle: dict[tuple[Renewer, int], list[Idle]] = {}  # its own methods are atomic
        self._closed = False

    def take(self, keeper: Renewer, ttl_s: int) -> "Idle | None":
        """One that was granted for so many seconds, which nobody renews any more now; None if there is none."""
        idle = self._idle.get((keeper, ttl_s), [])
        while idle:
            try:
                found = idle.pop()  # the one that was used last
            except IndexError:  # another thread has it
                return None
            keeper.drop(found.lease)
            if found.era != self._client.era:
                keeper.end(found.lease)
            elif not found.lease.lost:
                return found
        return None

    def give(self, keeper: Renewer, lease_id: int, asked_s: int, lease: Lease) -> bool:
        """Keep it for the next one; False: there are enough. `asked_s`: what it was granted for."""
        for key in [key for key in list(self._idle) if key[0].over]:
            self._idle.pop(key, None)
        idle = self._idle.setdefault((keeper, asked_s), [])
        if len(idle) >= _IDLE_MAX or self._closed or lease.lost:
            return False
        one = Idle(self, keeper, lease_id, asked_s, lease, self._client.era)
        keeper.keep(one.lease)
        idle.append(one)
        return True

    async def renew(self, idle: "Idle", timeout_s: float) -> bool:
        """Another TTL, or its end if nobody has wanted it for long."""
        if clock.now() - idle.since > _IDLE_S or idle.era != self._client.era:
            if self._remove(idle):
                idle.keeper.end(idle.lease)
            return True
        alive = await self._client.keep_alive(idle.lease_id, timeout_s)
        if not alive:
            self._remove(idle)
        return alive

    async def end(self, idle: "Idle", timeout_s: float) -> None:
        """Give it back to etcd."""
        await self._client.revoke(idle.lease_id, timeout_s)

    def _remove(self, idle: "Idle") -> bool:
        try:
            self._idle[idle.keeper, idle.asked_s].remove(idle)
        except (KeyError, ValueError):  # somebody has it
            return False
        return True

    async def give_up(self, keeper: Renewer | None, timeout_s: float) -> None:
        """Give back all that are renewed by that one (None: by anybody, for good), as far as etcd answers."""
        self._closed = self._closed or keeper is None
        keys = [key for key in list(self._idle) if keeper is None or key[0] is keeper]
        for idle in [one for key in keys for one in self._idle.pop(key)]:
            idle.keeper.drop(idle.lease)
            try:
                await self.end(idle, timeout_s)
            except LockError:
                return  # they run out, or are the parent's


class Idle:
    """A lease in nobody's use."""

    def __init__(self, lender: Lender, keeper: Renewer, lease_id: int, asked_s: int, before: Lease, era: int) -> None:
        self._lender = lender
        self.keeper = keeper
        self.lease_id = lease_id
        self.asked_s = asked_s
        self.era = era
        self.since = clock.now()
        self.lease = Lease(f"lease {lease_id:x}", self, before.ttl_s, asked_at=before.deadline - before.ttl_s)
        self.lease.idle = True

    async def renew(self, timeout_s: float) -> bool:
        """See `Lender.renew`."""
        return await self._lender.renew(self, timeout_s)

    async def end(self, timeout_s: float) -> None:
        """See `Lender.end`."""
        await self._lender.end(self, timeout_s)

"""A session: one lease for several locks and elections, which live and end together."""

import math
import secrets
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from .. import clock
from ..errors import LockLost, LockUnavailable
from ..lease import Keeper, Lease
from ..renewer import Renewer
from ..steps import in_thread
from .election import Election
from .lock import EtcdCommon, EtcdLock, SharedLease

_DELETES_MAX: Final = 16  # at a renewal, which must not be late for them


class Session(SharedLease):
    """A lease that is kept renewed, and all that is locked under it, like etcd's Go `concurrency.Session`.

    Locks without a session share no lease while they are held, which is the safer choice: one that ends loses that lock
    only. A session is for those who hold many locks for long, or locks that are worth nothing without each other. Two
    threads of a session are two contenders, other than in Go.

    >>> with backend.session(ttl_s=10) as session:
    ...     with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()

    `ttl_s`: seconds, the backend's by default; or `lease_id`: a lease that another program has granted, whose TTL
    counts; `LockLost` is raised if there is no such lease. A session is no thread's and no task's: it lasts until
    `close` or the connection's end.
    """

    __slots__ = ("_backend", "_deleted", "_era", "client", "lease_id")

    def __init__(self, backend: EtcdCommon, lease_id: int, ttl_s: int, asked_at: float) -> None:
        self._backend = backend
        self.client = backend.client
        self._deleted: set[str] = set()
        self.lease_id = lease_id
        self._era = backend.client.era
        super().__init__(Lease(f"session {lease_id:x}", self, ttl_s, asked_at=asked_at))

    @classmethod
    async def begin(
        cls, backend: EtcdCommon, renewer: Renewer, *, ttl_s: float | None = None, lease_id: int | None = None
    ) -> Self:
        """Have a session, in steps; `renewer`: who keeps it."""
        client, asked_at, granted_s = backend.client, clock.now(), math.ceil(ttl_s or backend.ttl_s)
        if lease_id is not None:
            found_s = await client.ttl_granted(lease_id)
            if found_s is None or not await client.keep_alive(lease_id):
                raise LockLost(f"etcd has no lease {lease_id:x}")
            granted_s = found_s
        session = cls(backend, secrets.randbits(62) + 1 if lease_id is None else lease_id, granted_s, asked_at)
        if lease_id is None:
            try:
                session.lease.ttl_s = await client.grant(session.lease_id, granted_s)
                session.lease.renewed(asked_at)
            except BaseException:
                renewer.end(session.lease)
                raise
        renewer.keep(session.lease)
        return session

    def lock(self, name: str) -> EtcdLock:
        """Return a lock under the session's lease."""
        return EtcdLock(self._backend, name, session=self)

    def election(self, name: str) -> Election:
        """Return an election under the session's lease."""
        return Election(self._backend, name, self)

    @property
    def ttl_s(self) -> float:
        """The TTL that the server gave, in seconds: the session outlives its process by so much."""
        return self.lease.ttl_s

    def orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself: what is locked stays so until then."""
        self._keeper.drop(self.lease)

    def close(self) -> None:
        """End the session: all that is locked under it is free at once. Never raises, and may be called again."""
        in_thread(self.ended())

    async def ended(self) -> None:
        """What `close` does, in steps."""
        self.lease.lose("the session was closed")  # before another one can have what was locked
        await self._keeper.hand_back(self.lease, self._backend.timeout_s)

    @property
    def _keeper(self) -> Keeper:
        return self.lease.keeper or self._backend.renewer

    # -- what its lease and its keys rest on -------------------------------------------------------------------------

    async def renew(self, timeout_s: float) -> bool:
        """Another TTL."""
        if self._era != self.client.era:
            return False  # etcd was set back since
        alive = await self.client.keep_alive(self.lease_id, timeout_s / 2)
        with suppress(LockUnavailable):
            # A key may have been created after it was deleted, by a call that we gave up; the session would keep it.
            for key in list(self._deleted)[:_DELETES_MAX]:
                await self.client.delete(key, timeout_s / 2)
                self._deleted.discard(key)
        return alive

    async def end(self, timeout_s: float) -> None:
        """Revoke the lease."""
        await self.client.revoke(self.lease_id, timeout_s)

    async def delete(self, key: str, timeout_s: float, *, again: bool) -> None:
        """See `SharedLease`."""
        if again:
            self._deleted.add(key)
        await self.client.delete(key, timeout_s)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

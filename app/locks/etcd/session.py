"""A session: one lease for several locks and elections, which live and end together."""

import secrets
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final

from app.common import clock
from app.errors import LockLost, LockUnavailable
from app.locks.etcd.election import Election
from app.locks.etcd.lock import EtcdLock
from app.locks.lease import Lease, Leased

if TYPE_CHECKING:
    from app.locks.etcd.backend import EtcdBackend

_DELETES_MAX: Final = 16  # at a renewal, which must not be late for them


class Session(Leased):
    """As etcd's Go `concurrency.Session`: a lease that is kept renewed, and all that is locked under it.

    Locks without a session have a lease each, which is the safer choice: a deleted key loses that lock only. A session
    is for those who hold many locks for long, or locks that are worth nothing without each other. Two threads of a
    session are two contenders, other than in Go.

    >>> with backend.session(ttl_s=10) as session:
    ...     with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()

    `ttl_s`: seconds; or `lease_id`: a lease that another program has granted, whose TTL counts. Raises
    `LockUnavailable`, and `LockLost` if there is no such lease. It is no thread's: it lasts until `close` or the
    connection's end.
    """

    __slots__ = ("_backend", "_deleted", "client", "lease_id")

    def __init__(self, backend: "EtcdBackend", *, ttl_s: int, lease_id: int | None = None) -> None:
        self._backend = backend
        self.client = client = backend.client
        self._deleted: set[str] = set()
        asked_at = clock.now()
        if lease_id is not None:
            granted_s = client.ttl_granted(lease_id)
            if granted_s is None or not client.keep_alive(lease_id):
                raise LockLost(f"etcd has no lease {lease_id:x}")
            ttl_s = granted_s
        self.lease_id = secrets.randbits(62) + 1 if lease_id is None else lease_id
        super().__init__(Lease(f"session {self.lease_id:x}", self, ttl_s, asked_at=asked_at))
        if lease_id is None:
            try:
                self.lease.ttl_s = client.grant(self.lease_id, ttl_s)
                self.lease.renewed(asked_at)
            except BaseException:
                backend.renewer.end(self.lease)
                raise
        backend.renewer.keep(self.lease)

    def lock(self, name: str) -> EtcdLock:
        """A lock under the session's lease."""
        return EtcdLock(self._backend, name, self)

    def election(self, name: str) -> Election:
        """An election under the session's lease."""
        return Election(self._backend, name, self)

    @property
    def ttl_s(self) -> float:
        """What the server gave: how long the session outlives its process."""
        return self.lease.ttl_s

    def orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself: what is locked stays so until then."""
        self._backend.renewer.drop(self.lease)

    def close(self) -> None:
        """End the session: all that is locked under it is free at once. Never raises, and may be called again."""
        self.lease.lose("the session was closed")  # before another one can have what was locked
        self._backend.renewer.hand_back(self.lease, self._backend.timeout_s)

    # -- what its lease and its keys rest on -------------------------------------------------------------------------

    def renew(self, timeout_s: float) -> bool:
        """Another TTL."""
        alive = self.client.keep_alive(self.lease_id, timeout_s / 2)
        with suppress(LockUnavailable):
            # A key may have been created after it was deleted, by a call that we gave up; the session would keep it.
            for key in list(self._deleted)[:_DELETES_MAX]:
                self.client.delete(key, timeout_s / 2)
                self._deleted.discard(key)
        return alive

    def end(self, timeout_s: float) -> None:
        """Revoke the lease."""
        self.client.revoke(self.lease_id, timeout_s)

    def delete(self, key: str, timeout_s: float, *, again: bool) -> None:
        """Delete one of its keys; `again`: once more at the next renewal."""
        if again:
            self._deleted.add(key)
        self.client.delete(key, timeout_s)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

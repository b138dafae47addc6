"""A session: one lease for several locks and elections, which live and end together."""

import secrets
import time
from contextlib import suppress
from types import TracebackType

from app.errors import LockLost, LockUnavailable
from app.locks.etcd.client import EtcdClient
from app.locks.etcd.election import Election
from app.locks.etcd.lock import EtcdLock
from app.locks.etcd.queue import SharedLease
from app.locks.lease import Lease, Leased
from app.locks.renewer import Renewer


class Session(Leased):
    """As etcd's Go `concurrency.Session`: a lease that is kept renewed, and all that is locked under it.

    Locks without a session have a lease each, which is the safer choice: whose key is deleted loses that lock only, and
    nothing is left if its creation was not answered. A session is for those who hold many locks for long, or none of
    whose locks is worth anything without the others. Two threads of a session are two contenders, other than in Go.

    >>> with backend.session(ttl_s=10) as session:
    ...     with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()

    `ttl_s`: whole seconds, rounded up; or `lease_id`: a lease that somebody else has granted, whose TTL counts. Raises
    `LockUnavailable`, and `LockLost` if there is no such lease. Keep the object while you need the session: when it is
    garbage, the session is closed.
    """

    def __init__(
        self, client: EtcdClient, renewer: Renewer, *, ttl_s: int, instance: str, lease_id: int | None = None
    ) -> None:
        self._client = client
        self._renewer = renewer
        self._instance = instance
        own_id = secrets.randbits(62) + 1
        asked_at = time.monotonic()
        if lease_id is not None:
            granted_s = client.ttl_granted(lease_id)
            if granted_s is None or not client.keep_alive(lease_id):
                raise LockLost(f"etcd has no lease {lease_id:x}")
            own_id, ttl_s = lease_id, granted_s
        self.lease_id = own_id
        late: set[str] = set()
        lease = Lease(
            f"session {own_id:x}",
            ttl_s,
            asked_at=asked_at,
            renew=lambda timeout_s: _renew(client, own_id, late, timeout_s),
            end=lambda timeout_s: client.revoke(own_id, timeout_s),
        )
        super().__init__(lease)
        self._shared = SharedLease(own_id, lease, late)
        try:
            if lease_id is None:
                lease.ttl_s = client.grant(own_id, ttl_s)
                lease.renewed(asked_at)
            renewer.keep(lease)
        except BaseException:
            if lease_id is None:
                renewer.end(lease)
            raise

    def lock(self, name: str) -> EtcdLock:
        """A lock under the session's lease."""
        return EtcdLock(
            self._client, self._renewer, name, ttl_s=self.ttl_s, instance=self._instance, shared=self._shared
        )

    def election(self, name: str) -> Election:
        """An election under the session's lease."""
        return Election(self._client, self._renewer, name, ttl_s=self.ttl_s, shared=self._shared)

    @property
    def ttl_s(self) -> float:
        """What the server gave: so long the session outlives its process."""
        return self._lease.ttl_s

    def orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself: what is locked stays so until then."""
        self._renewer.drop(self._lease)

    def close(self) -> None:
        """End the session: all that is locked under it is free at once. Never raises, and may be called again."""
        self._lease.lose("the session was closed")  # before somebody else can have what was locked
        self._renewer.hand_back(self._lease, self._client.timeout_s)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _renew(client: EtcdClient, lease_id: int, late: set[str], timeout_s: float) -> bool:
    """Another TTL; and what was given back before it came into being is given back again, as it may have come since."""
    alive = client.keep_alive(lease_id, timeout_s / 2)
    with suppress(LockUnavailable):
        for key in list(late):
            client.delete(key, timeout_s / 2)
    return alive

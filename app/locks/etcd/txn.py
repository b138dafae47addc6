"""The simplest etcd lock: one key, created in a transaction if it isn't there; the others wait for its deletion.

It is the articles' single-key lock, which gives up at once, with the improvement that its article leaves to the reader:
to wait, by a watch, for the deletion of the key.
"""

import math
import secrets

from typing_extensions import override

from app.common import clock
from app.locks.attempt import Attempt, PlaceLost
from app.locks.backend import Guarantees
from app.locks.contender import Contender, describe
from app.locks.etcd.backend import EtcdBackend
from app.locks.etcd.client import KeyValue
from app.locks.etcd.lock import EtcdKey, contenders
from app.locks.etcd.lookout import Lookout
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.waiting import Wait


class EtcdTxnLock(DistributedLock[EtcdBackend]):
    """Re-entrant, fenced by the create revision of its key, not fair: at its deletion all waiters try at once.

    >>> with connect("etcd+txn://127.0.0.1:2379").lock("/jobs/nightly") as grant:
    ...     store.write(..., token=grant.token)
    """

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        """The holder; the waiters can't be seen."""
        return [one for one in contenders(self._backend.client, self.name) if one.key == self.name]


class _Attempt(Attempt[EtcdBackend]):
    def __init__(self, backend: EtcdBackend, name: str) -> None:
        super().__init__(backend, name)
        self._client = backend.client
        self._value = describe(backend.instance).encode()
        self._key: EtcdKey
        self._holder: KeyValue | None = None  # the other one's key, as we found it
        self._lookout = Lookout(backend.client, self.wake)  # for its end
        self.cleanup.callback(self._lookout.close)

    @override
    def take(self, wait: Wait) -> Grant | float:
        if self._holder is None or not self._is_there(self._holder, wait):
            lease = self._leased(wait.call_s(self.backend.timeout_s))
            timeout_s = wait.call_s(self.backend.timeout_s)
            found = self._client.create(self.name, self._value, self._key.lease_id, timeout_s)
            if found is None:
                raise PlaceLost  # our lease ended before we came to use it
            if found.lease_id == self._key.lease_id:
                self._key.revision = found.create_revision
                return Grant(self.name, found.create_revision, self._client.source, lease)
            self._holder = found
        return self._lookout.pause_s(self.name, wait.call_s(self.backend.timeout_s)) if wait.left_s else 0.0

    def _is_there(self, holder: KeyValue, wait: Wait) -> bool:
        return self._client.exists(self.name, holder.create_revision, wait.call_s(self.backend.timeout_s))

    def _leased(self, timeout_s: float) -> Lease:
        """The lease of our key."""
        if self.lease is not None:
            return self.lease
        lease_id, asked_at = secrets.randbits(62) + 1, clock.now()
        ttl_s = math.ceil(self.backend.ttl_s)
        self._key = EtcdKey(self._client, self.name, lease_id)
        lease = self.lease = Lease(self.name, self._key, ttl_s, asked_at=asked_at)
        lease.ttl_s = self._client.grant(lease_id, ttl_s, timeout_s)
        lease.renewed(asked_at)
        self.backend.renewer.keep(lease)
        return lease


class EtcdTxnBackend(EtcdBackend):
    """As `EtcdBackend`; another lock."""

    name = "etcd-txn"
    guarantees = Guarantees(fencing=True, survives_silence=True, survives_restart=True, elects=True)

    @override
    def lock(self, name: str) -> DistributedLock[EtcdBackend]:
        return EtcdTxnLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        return [one for one in contenders(self.client, prefix) if one.ttl_left_s is not None]

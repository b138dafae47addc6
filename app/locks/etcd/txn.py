"""The simplest etcd lock: one key, created in a transaction if it isn't there. Who comes too late waits for its end.

It is the articles' single-key lock, which gives up at once, with the improvement that its article leaves to the reader:
to wait, by a watch, for the deletion of the key.
"""

import json
import math
import secrets
import time
from collections.abc import Callable

from app.errors import LockUnavailable
from app.locks.backend import Guarantees, Portrait
from app.locks.etcd.backend import EtcdBackend
from app.locks.etcd.client import EtcdClient, KeyValue
from app.locks.etcd.queue import contenders, looks, source
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant, who
from app.locks.renewer import Renewer
from app.locks.waiting import AWAY_PAUSE_S, Wait, Wake


class EtcdTxnLock(DistributedLock):
    """Re-entrant, fenced by the create revision of its key, not fair: at its deletion all who wait try at once.

    >>> with EtcdTxnBackend(["http://127.0.0.1:2379"]).lock("/jobs/nightly") as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(self, client: EtcdClient, renewer: Renewer, name: str, *, ttl_s: float, instance: str) -> None:
        super().__init__(name)
        self._client = client
        self._renewer = renewer
        self._ttl_s = math.ceil(ttl_s)
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        wake = Wake()
        with self._client.waiters.waiting(wake.set):
            claim = _Claim(self._client, self._renewer, self.name, self._ttl_s, abandoned)
            try:
                forget = wait.cancel.subscribe(wake.set)
                try:
                    return self._wait_for(claim, wait, wake)
                finally:
                    forget()
            except BaseException:
                claim.drop()
                raise

    def _wait_for(self, claim: "_Claim", wait: Wait, wake: Wake) -> Grant:
        value = json.dumps(who(self._instance), separators=(",", ":")).encode()
        waited = False
        while True:
            if wait.cancel.is_set():
                wait.check(self.name)
            self._ensure_open()
            try:
                claim.ensure_lease(wait.call_s(self._client.timeout_s))
                found = self._client.create(self.name, value, claim.lease_id, wait.call_s(self._client.timeout_s))
                if found is None:
                    continue  # our lease ended before we came to use it
                if found.lease_id == claim.lease_id and not claim.lease.lost:
                    claim.revision = found.create_revision
                    return Grant(self.name, found.create_revision, source(self._client), claim.lease)
                wait.check(self.name)
                waited = True
                self._wait_for_deletion(found, wait, wake)
            except LockUnavailable:
                if not waited or self._client.waiters.closing or claim.lease.lost:
                    raise
                wake.wait(min(AWAY_PAUSE_S, wait.left_s))

    def _wait_for_deletion(self, holder: KeyValue, wait: Wait, wake: Wake) -> None:
        with self._client.watching(self.name, wake.set, wait.call_s(self._client.timeout_s)) as watching:
            for pause_s in looks():
                if not watching() or not self._client.exists(
                    self.name, holder.create_revision, wait.call_s(self._client.timeout_s)
                ):
                    return
                self._ensure_open()
                wait.check(self.name)
                wake.wait(min(pause_s, wait.left_s))

    def _ensure_open(self) -> None:
        if self._client.waiters.closing:
            raise LockUnavailable("the connection to etcd is closed")

    def _give_back(self, grant: Grant) -> None:
        self._renewer.hand_back(grant.lease, self._client.timeout_s)

    def contenders(self) -> list[Contender]:
        """Who holds it. Those who wait are not to be seen."""
        return [one for one in contenders(self._client, self.name) if one.key == self.name]


class _Claim:
    """The lease that our key is to be bound to. It doesn't know the lock, so that that can become garbage."""

    def __init__(
        self, client: EtcdClient, renewer: Renewer, name: str, ttl_s: int, abandoned: Callable[[], bool]
    ) -> None:
        self._client = client
        self._renewer = renewer
        self._name = name
        self._ttl_s = ttl_s
        self._abandoned = abandoned
        self.lease_id = 0
        self.revision: int | None = None
        self.lease: Lease

    def ensure_lease(self, timeout_s: float) -> None:
        """Have one that lives."""
        if self.lease_id and not self.lease.lost:
            return
        self.lease_id = lease_id = secrets.randbits(62) + 1
        asked_at = time.monotonic()
        self.lease = Lease(
            self._name,
            self._ttl_s,
            asked_at=asked_at,
            renew=self._renew,
            end=lambda within_s: self._client.revoke(lease_id, within_s),
            abandoned=self._abandoned,
        )
        self.lease.ttl_s = self._client.grant(lease_id, self._ttl_s, timeout_s)
        self.lease.renewed(asked_at)
        self._renewer.keep(self.lease)

    def _renew(self, timeout_s: float) -> bool:
        if not self._client.keep_alive(self.lease_id, timeout_s / 2):
            return False
        return self.revision is None or self._client.exists(self._name, self.revision, timeout_s / 2)

    def drop(self) -> None:
        """Nothing of ours may stay."""
        if self.lease_id:
            self._renewer.hand_back(self.lease, self._client.timeout_s)


class EtcdTxnBackend(EtcdBackend):
    """As `EtcdBackend`; another lock."""

    name = "etcd-txn"
    guarantees = Guarantees(fencing=True, survives_silence=True, survives_restart=True, remembers=True, elects=True)
    portrait = Portrait(
        works=(
            "One key, the lock's name, bound to a lease. A transaction creates it if its create revision is 0, that "
            "is: if it isn't there. Who finds it there watches it and tries again when it is deleted."
        ),
        costs="2 calls to acquire, 1 to release; for a wait 1 watch, a look now and then, and 1 for each attempt",
        fails="as the etcd lock; besides, all who wait wake at once, and one of them may wait for long",
        choose="to learn from, or for a lock that few ask for; nothing is simpler",
    )

    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; each call makes an object of its own."""
        return EtcdTxnLock(self._client, self.renewer, name, ttl_s=self._ttl_s, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """Who holds the locks whose names begin with `prefix`."""
        return [one for one in contenders(self._client, prefix) if one.ttl_left_s is not None]

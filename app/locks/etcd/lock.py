"""The etcd lock: a key under the lock's prefix, bound to a lease; the lowest create revision owns the lock."""

import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from app.common import clock
from app.locks.attempt import Attempt, PlaceLost
from app.locks.contender import Contender, describe, parse_owner
from app.locks.etcd.client import EtcdClient, KeyValue
from app.locks.etcd.lookout import Lookout
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.waiting import Wait

if TYPE_CHECKING:
    from app.locks.etcd.backend import EtcdBackend
    from app.locks.etcd.session import Session


class EtcdLock(DistributedLock["EtcdBackend"]):
    """Fair (in the order of create revisions), re-entrant, fenced by the create revision of the lock's key.

    Follows etcd's Go `concurrency.Mutex`. The layout is its own and that of etcd's Lock service, `<name>/<lease id in
    hex>`, so that `etcdctl lock <name>`, Go's Mutex and jetcd stand in the same line with us; as there, a name must not
    be a folder of another one ("/jobs" beside "/jobs/nightly"). Differs where Go's has been hurt: a lease of its own
    for each acquire (two threads are two contenders; a release can't delete another one's key), no watch from a past
    revision (which can be told 100 ms late), and a waiter whose own key vanished queues again instead of waiting for
    ever.

    >>> with connect("etcd://127.0.0.1:2379").lock("/seckill/lock/phone") as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(self, backend: "EtcdBackend", name: str, session: "Session | None" = None) -> None:
        super().__init__(backend, name)
        self._session = session

    @override
    def _attempt(self) -> "Place":
        return Place(self._backend, self.name, describe(self._backend.instance).encode(), self._session)

    @override
    def contenders(self) -> list[Contender]:
        """The queue in order of create revisions; the first owns the lock."""
        return contenders(self._backend.client, f"{self.name}/")


class Place(Attempt["EtcdBackend"]):
    """A contender's place in the queue of a name. Locks and elections are made of it.

    `value`: of its key; `session`: whose lease the key is bound to, in the place of a lease of its own.
    """

    def __init__(self, backend: "EtcdBackend", name: str, value: bytes, session: "Session | None" = None) -> None:
        super().__init__(backend, name)
        self._client = backend.client
        self._prefix = f"{name}/"  # ends in "/", else "item/1" would queue with "item/10"
        self._value = value
        self._session = session
        self._key: EtcdKey | _SessionKey
        self._ahead: KeyValue | None = None  # the contender just ahead of us
        self._lookout = Lookout(backend.client, self.wake)  # for its end
        self.cleanup.callback(self._lookout.close)

    @override
    def take(self, wait: Wait) -> Grant | float:
        """Queue; when everybody who came before is gone the lock is ours. Wait for the contender just ahead only."""
        if self._session is not None:
            self._session.ensure_held()
        lease = self.lease
        if lease is None:
            lease = self._enter(wait)
        else:
            self._ahead = self._look(wait)
        if self._ahead is None:
            return Grant(self._key.name, self._key.revision, self._client.source, lease)
        if not wait.left_s:
            return 0.0
        return self._lookout.pause_s(self._ahead.key, wait.call_s(self.backend.timeout_s))

    def _enter(self, wait: Wait) -> Lease:
        """Have a lease, keep it renewed, and create our key: two calls, of which the second tells who is ahead."""
        client, renewer, timeout_s = self._client, self.backend.renewer, wait.call_s(self.backend.timeout_s)
        asked_at, ttl_s = clock.now(), float(math.ceil(self.backend.ttl_s))  # etcd counts whole seconds
        if self._session is None:
            lease_id = secrets.randbits(62) + 1
            self._key = EtcdKey(client, f"{self._prefix}{lease_id:x}", lease_id)
            lease = self.lease = Lease(self._key.name, self._key, ttl_s, asked_at=asked_at)
            lease.ttl_s = client.grant(lease_id, math.ceil(ttl_s), timeout_s)
            lease.renewed(asked_at)
        else:
            name = f"{self._prefix}{self._session.lease_id:x}-{secrets.token_hex(4)}"
            key = self._key = _SessionKey(self._session, name)
            under = self._session.lease
            lease = self.lease = Lease(name, key, under.ttl_s, asked_at=asked_at, under=under)
            key.forget = under.on_lost(lambda: lease.lose(under.reason))
        self.cleanup.callback(lease.on_lost(self.wake.set))
        renewer.keep(lease)
        new, timeout_s = self._key, wait.call_s(self.backend.timeout_s)
        unsure = partial(setattr, new, "unsure", True)
        own, self._ahead = client.put_and_see(new.name, self._value, new.lease_id, self._prefix, timeout_s, unsure)
        if own is None:
            raise PlaceLost  # the lease ended before we came to use it, or the key is gone again
        self._key.revision = own.create_revision
        self.answered = True  # an outage from here on is waited for
        return lease

    def _look(self, wait: Wait) -> KeyValue | None:
        """The contender just ahead of us now. Raises `PlaceLost` if we are not in the queue any more."""
        timeout_s = wait.call_s(self.backend.timeout_s)
        present, ahead = self._client.see(self._key.name, self._key.revision, self._prefix, timeout_s)
        if not present:
            raise PlaceLost
        return ahead


class EtcdKey:
    """A key with a lease of its own."""

    def __init__(self, client: EtcdClient, name: str, lease_id: int) -> None:
        self._client = client
        self.name = name
        self.lease_id = lease_id
        self.revision = 0  # not known yet
        self.unsure = False

    def renew(self, timeout_s: float) -> bool:
        """Another TTL, if lease and key are still there."""
        if not self._client.keep_alive(self.lease_id, timeout_s / 2):
            return False
        # A key that was deleted by hand leaves its lease alive, and the lock with another contender.
        return not self.revision or self._client.exists(self.name, self.revision, timeout_s / 2)

    def end(self, timeout_s: float) -> None:
        """Give the lease back: the key goes with it, even one whose creation is still on its way."""
        self._client.revoke(self.lease_id, timeout_s)


class _SessionKey:
    """One of the keys of a session, which renews the lease."""

    def __init__(self, session: "Session", name: str) -> None:
        self._session = session
        self.name = name
        self.lease_id = session.lease_id
        self.revision = 0
        self.unsure = False  # whether a try to create it was not answered, and may still arrive
        self.forget: Callable[[], None] = lambda: None  # the end of the session

    def renew(self, timeout_s: float) -> bool:
        """Whether the key is there, which the session's lease doesn't tell."""
        return not self.revision or self._session.client.exists(self.name, self.revision, timeout_s)

    def end(self, timeout_s: float) -> None:
        """Delete the key, and nothing else."""
        self.forget()
        self._session.delete(self.name, timeout_s, again=self.unsure or not self.revision)


def contenders(client: EtcdClient, prefix: str) -> list[Contender]:
    """The queues under a prefix: of each the holder first, then the waiters in order."""
    holders: set[str] = set()
    queue = []
    for kv in client.list(prefix):
        name = kv.key.rpartition("/")[0]
        owner, waited_s = parse_owner(kv.value)
        queue.append(
            Contender(
                key=kv.key,
                token=kv.create_revision,
                owner=owner,
                waited_s=waited_s,
                ttl_left_s=client.ttl_left(kv.lease_id) if kv.lease_id else None,
                holds=name not in holders,
            )
        )
        holders.add(name)
    return sorted(queue, key=lambda contender: (contender.key.rpartition("/")[0], contender.token))

"""The etcd lock: a key under the lock's prefix, bound to a lease; the lowest create revision owns the lock."""

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from typing_extensions import override

from .. import clock
from ..attempt import Attempt, PlaceLost
from ..common import Common
from ..contender import Contender, describe, parse_owner
from ..grant import Grant
from ..lease import Lease, Leased
from ..lock import DistributedLock
from ..renewer import Renewer
from ..waiting import Wait
from .client import EtcdClient, KeyValue
from .lender import Lender
from .lookout import Lookout

# Of what an election's leader has written down, beside its queue.
RECORD: Final = "!record"


class EtcdCommon(Common):
    """What locks, elections and sessions share of an `EtcdBackend`."""

    client: EtcdClient
    lender: Lender


class SharedLease(Leased, ABC):
    """The lease of several keys: a session's."""

    __slots__ = ()
    client: EtcdClient
    lease_id: int

    @abstractmethod
    async def delete(self, key: str, timeout_s: float, *, again: bool) -> None:
        """Delete one of its keys; `again`: once more at the next renewal."""


class EtcdLock(DistributedLock[EtcdCommon]):
    """Fair (in the order of create revisions), re-entrant, fenced by the create revision of the lock's key.

    Follows etcd's Go `concurrency.Mutex`. The layout is its own and that of etcd's Lock service, `<name>/<lease id in
    hex>`, so that `etcdctl lock <name>`, Go's Mutex and jetcd stand in the same line with us; as there, a name must not
    be a folder of another one ("/jobs" beside "/jobs/nightly"). Differs where Go's has been hurt: a lease that no other
    acquire has at the same time (two threads are two contenders; a release can't delete another one's key), no watch
    from a past revision (which can be told 100 ms late), and a waiter whose own key vanished queues again instead of
    waiting for ever.

    >>> with connect("etcd://127.0.0.1:2379").lock("/locks/phone") as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(
        self, backend: EtcdCommon, name: str, ttl_s: float | None = None, session: SharedLease | None = None
    ) -> None:
        super().__init__(backend, name, ttl_s)
        self._session = session

    @override
    def _attempt(self) -> "Place":
        value = describe(self._backend.instance).encode()
        return Place(self._backend, self.name, value, ttl_s=self.ttl_s, session=self._session)

    @override
    async def _queue(self) -> list[Contender]:
        return await contenders(self._backend.client, f"{self.name}/")


class Place(Attempt[EtcdCommon]):
    """A contender's place in the queue of a name. Locks and elections are made of it.

    `value`: of its key; `session`: whose lease the key is bound to, in the place of a lease of its own.
    """

    def __init__(
        self,
        backend: EtcdCommon,
        name: str,
        value: bytes,
        *,
        ttl_s: float | None = None,
        session: SharedLease | None = None,
    ) -> None:
        super().__init__(backend, name, ttl_s)
        self._client = backend.client
        self._prefix = f"{name}/"  # ends in "/", else "item/1" would queue with "item/10"
        self._value = value
        self._session = session
        self._key: EtcdKey | _SessionKey
        self._ahead: KeyValue | None = None  # the contender just ahead of us
        self._era = 0  # of etcd, when we came
        self._lookout = Lookout(backend.client, self.wake, backend.shutdown)  # for its end
        self.cleanup.callback(self._lookout.close)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        """Queue; when everybody who came before is gone the lock is ours. Wait for the contender just ahead only."""
        if self._session is not None:
            self._session.ensure_held()
        lease = self.lease
        if lease is None:
            lease = await self._enter(wait)
        else:
            self._ahead = await self._look(wait)
        self._ensure_same_era()
        if self._ahead is None:
            self._key.granted = True
            return Grant(self._key.name, self._key.revision, self._client.source, lease)
        if not wait.left_s:
            return 0.0
        return await self._lookout.pause_s(self._ahead.key, wait.call_s(self.backend.timeout_s))

    def _ensure_same_era(self) -> None:
        if self._era != self._client.era:
            raise PlaceLost

    async def _enter(self, wait: Wait) -> Lease:
        """Have a lease, keep it renewed, and create our key: one or two calls. The last one tells who is ahead."""
        client, timeout_s = self._client, wait.call_s(self.backend.timeout_s)
        self._era = client.era
        key: EtcdKey | _SessionKey
        if self._session is None:
            key = EtcdKey(self.backend, self._prefix, self.renewer, self.ttl_s)
            lease = self.lease = key.lease
            await key.begin(timeout_s)
            timeout_s = wait.call_s(self.backend.timeout_s)
        else:
            key = _SessionKey(self._session, f"{self._prefix}{self._session.lease_id:x}-{secrets.token_hex(4)}")
            under = self._session.lease
            lease = self.lease = Lease(key.name, key, under.ttl_s, under=under)
            key.forget = under.on_lost(lambda: lease.lose(under.reason))
        self._key = key
        self.cleanup.callback(lease.on_lost(self.wake.set))
        self.renewer.keep(lease)
        unsure = partial(setattr, key, "unsure", True)
        key.asked = True
        own, self._ahead = await client.put_and_see(
            key.name, self._value, key.lease_id, self._prefix, timeout_s, unsure
        )
        if own is None:
            raise PlaceLost  # the lease ended before we came to use it, or the key is gone again
        key.revision = own.create_revision
        self.answered = True  # an outage from here on is waited for
        return lease

    async def _look(self, wait: Wait) -> KeyValue | None:
        """The contender just ahead of us now. Raises `PlaceLost` if we are not in the queue any more."""
        timeout_s = wait.call_s(self.backend.timeout_s)
        present, ahead = await self._client.see(self._key.name, self._key.revision, self._prefix, timeout_s)
        if not present:
            raise PlaceLost
        return ahead


class EtcdKey:
    """A key with a lease of its own, lent or new. `asked`: etcd was asked to create it; `unsure`: in vain, so far."""

    def __init__(
        self, backend: EtcdCommon, prefix: str, keeper: Renewer, ttl_s: float, *, single: bool = False
    ) -> None:
        self._client = backend.client
        self._lender = backend.lender
        self._keeper = keeper
        self._ttl_s = math.ceil(ttl_s)  # etcd counts whole seconds
        self._era = backend.client.era
        lent = backend.lender.take(keeper, self._ttl_s)
        self.lease_id = secrets.randbits(62) + 1 if lent is None else lent.lease_id
        self.name = prefix if single else f"{prefix}{self.lease_id:x}"
        self.revision = 0  # not known yet
        self.granted = False
        self.asked = False
        self.unsure = lent is None  # whether etcd has given us this lease
        self.late = False  # whether an earlier try to create the key may still arrive
        if lent is None:
            self.lease = Lease(self.name, self, self._ttl_s)
        else:
            before = lent.lease
            self.lease = Lease(self.name, self, before.ttl_s, asked_at=before.deadline - before.ttl_s)

    async def begin(self, timeout_s: float) -> None:
        """Have the lease, if it is not a lent one."""
        if not self.unsure:
            return
        asked_at = clock.now()
        self.lease.ttl_s = await self._client.grant(self.lease_id, self._ttl_s, timeout_s)
        self.lease.renewed(asked_at)
        self.unsure = False

    @property
    def of_before(self) -> bool:
        """Whether etcd was set back since."""
        return self._era != self._client.era

    async def renew(self, timeout_s: float) -> bool:
        """Another TTL, if lease and key are still there."""
        if self.of_before or not await self._client.keep_alive(self.lease_id, timeout_s / 2):
            return False
        # A key that was deleted by hand leaves its lease alive, and the lock with another contender. (Who waits looks.)
        return not self.granted or await self._client.exists(self.name, self.revision, self.lease_id, timeout_s / 2)

    async def end(self, timeout_s: float) -> None:
        """Delete the key and keep the lease for the next one; or give the lease back, if anything is uncertain.

        The key goes with its lease, even one whose creation is still on its way.
        """
        doubtful = self.unsure or self.late or self.of_before or self.lease.lost
        certain = not doubtful and bool(self.revision) == self.asked
        if certain and self.revision:
            self.unsure = True  # until this is answered
            await self._client.delete_own(self.name, self.revision, timeout_s)
        if not (certain and self._lender.give(self._keeper, self.lease_id, self._ttl_s, self.lease)):
            await self._client.revoke(self.lease_id, timeout_s)


class _SessionKey:
    """One of the keys of a session, which renews the lease."""

    def __init__(self, session: SharedLease, name: str) -> None:
        self._session = session
        self.name = name
        self.lease_id = session.lease_id
        self.revision = 0
        self.granted = False
        self.asked = False
        self.unsure = False  # whether a try to create it was not answered, and may still arrive
        self.forget: Callable[[], None] = lambda: None  # the end of the session

    async def renew(self, timeout_s: float) -> bool:
        """Whether the key is there, which the session's lease doesn't tell."""
        return not self.revision or await self._session.client.exists(
            self.name, self.revision, self.lease_id, timeout_s
        )

    async def end(self, timeout_s: float) -> None:
        """Delete the key, and nothing else."""
        self.forget()
        await self._session.delete(self.name, timeout_s, again=self.unsure or not self.revision)


async def contenders(client: EtcdClient, prefix: str) -> list[Contender]:
    """The queues under a prefix: of each the holder first, then the waiters in order."""
    holders: set[str] = set()
    queue = []
    for kv in await client.under(prefix):
        if kv.key.endswith(RECORD):
            continue
        name = kv.key.rpartition("/")[0]
        owner, waited_s = parse_owner(kv.value)
        queue.append(
            Contender(
                key=kv.key,
                token=kv.create_revision,
                owner=owner,
                waited_s=waited_s,
                ttl_left_s=await client.ttl_left(kv.lease_id) if kv.lease_id else None,
                holds=name not in holders,
            )
        )
        holders.add(name)
    return sorted(queue, key=lambda contender: (contender.key.rpartition("/")[0], contender.token))

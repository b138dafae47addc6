"""The simplest etcd lock: one key, created in a transaction if it isn't there; the others wait for its deletion.

It is the articles' single-key lock, which gives up at once, with the improvement that its article leaves to the reader:
to wait, by a watch, for the deletion of the key.
"""

from functools import partial

from typing_extensions import override

from ..attempt import Attempt, PlaceLost
from ..backend import Guarantees
from ..contender import Contender, describe
from ..grant import Grant
from ..lease import Lease
from ..lock import DistributedLock
from ..waiting import Wait
from .backend import EtcdBackend
from .client import KeyValue
from .lock import EtcdKey, contenders
from .lookout import Lookout


class EtcdTxnLock(DistributedLock[EtcdBackend]):
    """Re-entrant, fenced by the create revision of its key, not fair: at its deletion all waiters try at once.

    >>> with connect("etcd+txn://127.0.0.1:2379").lock("/jobs/nightly") as grant:
    ...     store.write(..., token=grant.token)
    """

    @override
    def _attempt(self) -> "_Attempt":
        return _Attempt(self._backend, self.name, self.ttl_s)

    @override
    async def _queue(self) -> list[Contender]:
        """The holder; the waiters can't be seen."""
        return [one for one in await contenders(self._backend.client, self.name) if one.key == self.name]


class _Attempt(Attempt[EtcdBackend]):
    def __init__(self, backend: EtcdBackend, name: str, ttl_s: float) -> None:
        super().__init__(backend, name, ttl_s)
        self._client = backend.client
        self._value = describe(backend.instance).encode()
        self._key: EtcdKey
        self._holder: KeyValue | None = None  # the other one's key, as we found it
        self._lookout = Lookout(backend.client, self.wake, backend.shutdown)  # for its end
        self.cleanup.callback(self._lookout.close)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        if self._holder is None or not await self._is_there(self._holder, wait):
            lease = await self._leased(wait.call_s(self.backend.timeout_s))
            timeout_s, key = wait.call_s(self.backend.timeout_s), self._key
            key.asked = key.unsure = True
            late = partial(setattr, key, "late", True)
            found = await self._client.create(self.name, self._value, key.lease_id, timeout_s, late)
            key.unsure = found is None
            if found is None or key.of_before:
                raise PlaceLost  # our lease ended before we came to use it, or etcd was set back
            if found.lease_id == key.lease_id:
                key.revision = found.create_revision
                key.granted = True
                return Grant(self.name, found.create_revision, self._client.source, lease)
            key.asked = False
            self._holder = found
        return await self._lookout.pause_s(self.name, wait.call_s(self.backend.timeout_s)) if wait.left_s else 0.0

    async def _is_there(self, holder: KeyValue, wait: Wait) -> bool:
        timeout_s = wait.call_s(self.backend.timeout_s)
        return await self._client.exists(self.name, holder.create_revision, holder.lease_id, timeout_s)

    async def _leased(self, timeout_s: float) -> Lease:
        """The lease of our key."""
        if self.lease is None:
            self._key = EtcdKey(self.backend, self.name, self.renewer, self.ttl_s, single=True)
            self.lease = self._key.lease
        lease = self.lease
        if lease.keeper is not None:
            return lease
        await self._key.begin(timeout_s)  # perhaps once more: its answer was lost
        self.renewer.keep(lease)
        return lease


class EtcdTxnBackend(EtcdBackend):
    """As `EtcdBackend`; another lock."""

    name = "etcd-txn"
    guarantees = Guarantees(
        fencing=True,
        survives_silence=True,
        survives_restart=True,
        survives_cut=True,
        elects=True,
        forces_release=True,
    )

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> EtcdTxnLock:
        return EtcdTxnLock(self, name, ttl_s)

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        return [one for one in await contenders(self.client, prefix) if one.ttl_left_s is not None]

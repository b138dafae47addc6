"""The etcd lock: a lease per outermost acquire, a key under the lock's prefix, the lowest create revision owns."""

import json
from collections.abc import Callable

from app.locks.etcd.client import EtcdClient
from app.locks.etcd.queue import PrefixQueue, SharedLease, source
from app.locks.lock import Contender, DistributedLock, Grant, who
from app.locks.renewer import Renewer
from app.locks.waiting import Wait


class EtcdLock(DistributedLock):
    """Fair (in the order of create revisions), re-entrant, fenced by the create revision of the lock's key.

    Follows etcd's Go `concurrency.Mutex` and shares its queue. Differs where that one has been hurt: a lease of its own
    for each acquire (two threads are two contenders; a release can't delete anybody else's key), no watch from a past
    revision (it can be told 100 ms late), and a waiter whose own key vanished starts again instead of waiting for ever.

    >>> lock = EtcdLock(client, renewer, "/seckill/lock/phone", ttl_s=5)
    >>> with lock as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(
        self,
        client: EtcdClient,
        renewer: Renewer,
        name: str,
        *,
        ttl_s: float = 5.0,
        instance: str = "python",
        shared: SharedLease | None = None,
    ) -> None:
        super().__init__(name)
        self._client = client
        self._queue = PrefixQueue(client, renewer, name, ttl_s=ttl_s, shared=shared)
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        value = json.dumps(who(self._instance), separators=(",", ":")).encode()
        place = self._queue.take(value, wait, abandoned)
        return Grant(place.key, place.revision, source(self._client), place.lease)

    def _give_back(self, grant: Grant) -> None:
        self._queue.leave(grant.lease)

    def contenders(self) -> list[Contender]:
        """The queue in order of create revisions; the first owns the lock."""
        return self._queue.contenders()

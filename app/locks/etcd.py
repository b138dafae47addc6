"""The etcd lock: a lease per outermost acquire, a key under the lock's prefix, the lowest create revision owns."""

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from app.errors import LockUnavailable
from app.locks.backend import Guarantees, LockBackend, Portrait
from app.locks.etcd_client import EtcdClient
from app.locks.etcd_queue import LockClosed, PlaceLost, PrefixQueue, contenders
from app.locks.lock import Contender, DistributedLock, Grant, who
from app.locks.renewer import Renewer
from app.locks.wait import Wait, Wake


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
        self, client: EtcdClient, renewer: Renewer, name: str, *, ttl_s: float = 5.0, instance: str = "python"
    ) -> None:
        super().__init__(name)
        self._client = client
        self._queue = PrefixQueue(client, renewer, name, ttl_s=ttl_s)
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        wake = Wake()
        with self._client.waiters.waiting(wake.set):
            while True:
                if wait.cancel.is_set():
                    wait.check(self.name)
                place = None
                try:
                    place = self._queue.enter(who(self._instance), wait, abandoned)
                    if place.predecessor is not None:
                        self._queue.wait_turn(place, wait, wake)
                    return Grant(place.key, place.revision, source(self._client), place.lease)
                except BaseException as error:
                    if place is not None:
                        self._queue.leave(place.lease)
                    if isinstance(error, LockClosed):
                        raise LockUnavailable(str(error)) from None
                    if not isinstance(error, PlaceLost):
                        raise
                    # Go's mutex waits on. Our place is gone: to the end of the queue, while time is left.
                    wait.check(self.name)

    def _give_back(self, grant: Grant) -> None:
        self._queue.leave(grant.lease)

    def contenders(self) -> list[Contender]:
        """The queue in order of create revisions; the first owns the lock."""
        return self._queue.contenders()


def source(client: EtcdClient) -> str:
    """Whose tokens the revisions of this cluster are."""
    return f"etcd:{client.cluster_id:x}"


class EtcdBackend(LockBackend):
    """One connection to etcd and one renewal thread, for all locks of a process.

    `ttl_s`: whole seconds, rounded up, at least what etcd allows (2 by its defaults); `timeout_s`: deadline of a
    call; `instance`: who we are in the queue, the host's name by default; `told`: hears of renewals (see `Renewer`).
    """

    name = "etcd"
    guarantees = Guarantees(
        fair=True, fencing=True, survives_silence=True, survives_restart=True, shows_queue=True, remembers=True
    )
    portrait = Portrait(
        works=(
            "Each acquire grants a lease and creates a key under the lock's prefix that is bound to it. The lowest "
            "create revision owns; everybody else watches the key just ahead of their own, and that one only. A lease "
            "that is not renewed ends, and its key with it. Go's concurrency.Mutex, jetcd and `etcdctl lock` stand in "
            "the same queue."
        ),
        costs="2 calls to acquire, 1 to release; 1 watch and a look for a wait",
        fails=(
            "without a quorum nobody gets the lock, and who has it loses it at its deadline; a dead holder stands in "
            "the way for a TTL"
        ),
        choose="if etcd is there, or if it must be right: consensus, fair, fenced",
    )

    def __init__(
        self,
        endpoints: Sequence[str] | str,
        *,
        ttl_s: float = 5.0,
        renew_ratio: float = 1 / 3,
        instance: str | None = None,
        timeout_s: float = 2.0,
        user: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        self._client = EtcdClient(
            endpoints,
            timeout_s=timeout_s,
            user=user,
            password=password,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._renewer = Renewer(ratio=renew_ratio, told=told)
        self._ttl_s = ttl_s
        self._instance = instance or socket.gethostname()

    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; each call makes an object of its own."""
        return EtcdLock(self._client, self._renewer, name, ttl_s=self._ttl_s, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of all locks whose names begin with `prefix`, which ends in "/"."""
        return contenders(self._client, prefix)

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless a quorum of etcd answers."""
        self._client.ping(timeout_s)

    def newest(self, name: str, timeout_s: float) -> tuple[str, int]:
        """This cluster, and its revision: no key was created after that. Raises `LockUnavailable` without a quorum."""
        revision = self._client.revision(name, timeout_s)
        return source(self._client), revision

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """Keep texts as the values of the keys that are named so."""
        return self._client.replace(marks, instead_of)

    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """What is kept under these keys."""
        return self._client.get(names)

    @property
    def renewing(self) -> bool:
        """Whether the renewal thread is well."""
        return self._renewer.alive

    def pause_renewal(self, for_s: float) -> None:
        """Renew no lease for so long: to see what happens then."""
        self._renewer.pause(for_s)

    def close(self) -> None:
        """Close the connections and stop renewing. Those who wait leave their queues first."""
        self._client.close()
        self._renewer.close()

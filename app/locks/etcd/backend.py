"""The etcd backend: one connection for the locks, the elections and the sessions of a process."""

import math
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from app.locks.backend import Guarantees, LockBackend, Portrait
from app.locks.etcd.client import EtcdClient
from app.locks.etcd.election import Election
from app.locks.etcd.lock import EtcdLock
from app.locks.etcd.queue import contenders, source
from app.locks.etcd.session import Session
from app.locks.lock import Contender, DistributedLock
from app.locks.renewer import Renewer


class EtcdBackend(LockBackend):
    """One connection to etcd and one renewal thread, for all locks of a process.

    `ttl_s`: whole seconds, rounded up, at least what etcd allows (2 by its defaults); `timeout_s`: deadline of a
    call; `instance`: who we are in the queue, the host's name by default; `told`: hears of renewals (see `Renewer`).
    """

    name = "etcd"
    guarantees = Guarantees(
        fair=True,
        fencing=True,
        survives_silence=True,
        survives_restart=True,
        shows_queue=True,
        remembers=True,
        elects=True,
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
        super().__init__(Renewer(ratio=renew_ratio, told=told))
        self._client = EtcdClient(
            endpoints,
            timeout_s=timeout_s,
            user=user,
            password=password,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._ttl_s = ttl_s
        self._instance = instance or socket.gethostname()

    def lock(self, name: str) -> DistributedLock:
        """The lock of that name; each call makes an object of its own."""
        return EtcdLock(self._client, self.renewer, name, ttl_s=self._ttl_s, instance=self._instance)

    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> Session:
        """One lease for several locks: of `ttl_s` (the backend's, if None), or the one with that id. See `Session`."""
        ttl = math.ceil(self._ttl_s if ttl_s is None else ttl_s)
        return Session(self._client, self.renewer, ttl_s=ttl, instance=self._instance, lease_id=lease_id)

    def election(self, name: str) -> Election:
        """The election of that name."""
        return Election(self._client, self.renewer, name, ttl_s=self._ttl_s)

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

    def close(self) -> None:
        """Close the connections and stop renewing. Those who wait leave their queues first."""
        self._client.close()
        self.renewer.close()

"""The etcd backend: one connection for the locks, the elections and the sessions of a process."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from typing_extensions import Unpack, override

from app.errors import ConfigurationError
from app.locks.backend import Guarantees, LockBackend, Options
from app.locks.contender import Contender
from app.locks.etcd.client import EtcdClient
from app.locks.etcd.election import Election
from app.locks.etcd.lock import EtcdLock, contenders
from app.locks.etcd.session import Session
from app.locks.lock import DistributedLock
from app.locks.url import LockUrl


class EtcdBackend(LockBackend):
    """One connection to etcd and one renewal thread, for all locks of a process.

    `endpoints`: URLs of the members (`http://host:port`, `https://` with TLS), in a list or separated by commas. `user`
    and `password`: etcd's log-in. `ca_file`: PEM of the CA that signed the members' certificates; `cert_file`,
    `key_file`: our own certificate, if etcd asks for one. For the rest see `Options`; `ttl_s` is rounded up to whole
    seconds, and etcd has a minimum (2 by its defaults).
    """

    name = "etcd"
    guarantees = Guarantees(
        fair=True, fencing=True, survives_silence=True, survives_restart=True, shows_queue=True, elects=True
    )

    def __init__(
        self,
        endpoints: Sequence[str] | str,
        *,
        user: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.client = EtcdClient(
            endpoints,
            timeout_s=self.timeout_s,
            user=user,
            password=password,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options("ca_file", "cert_file", "key_file")
        if url.path.strip("/"):
            raise ConfigurationError("etcd's URL has no path: etcd://host:2379,host:2379")
        files = {name: Path(file) for name, file in url.options.items()}
        scheme = "https" if url.secure else "http"
        return cls(
            [f"{scheme}://{host}" for host in url.hosts],
            user=url.user,
            password=url.password,
            ca_file=files.get("ca_file"),
            cert_file=files.get("cert_file"),
            key_file=files.get("key_file"),
            **options,
        )

    @override
    def lock(self, name: str) -> DistributedLock["EtcdBackend"]:
        return EtcdLock(self, name)

    @override
    def election(self, name: str) -> Election:
        return Election(self, name)

    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> Session:
        """A lease for several locks and elections; see `Session`. Raises `LockUnavailable`, `LockLost`."""
        return Session(self, ttl_s=math.ceil(ttl_s or self.ttl_s), lease_id=lease_id)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        return contenders(self.client, prefix)

    @override
    def ping(self, timeout_s: float) -> None:
        self.client.ping(timeout_s)

    @override
    def _disconnect(self) -> None:
        self.client.close()

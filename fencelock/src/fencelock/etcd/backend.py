"""The etcd backend: one connection for the locks, the elections and the sessions of a process."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack, cast

from typing_extensions import override

from ..backend import LASTING, LockBackend
from ..connection import Options
from ..errors import ConfigurationError
from ..grant import Grant
from ..session import AsyncSession
from ..url import LockUrl
from ..waiting import Wait
from .election import EtcdBallot
from .endpoint import Access, parse, use_grpc
from .lock import EtcdConnection
from .shared_lease import TTL_MAX_S, SharedLease


class EtcdSession(AsyncSession):
    """A lease of etcd, and the locks and elections under it."""

    __slots__ = ("_connection", "_session")

    def __init__(self, connection: EtcdConnection, session: SharedLease, *, joined: bool) -> None:
        super().__init__(session.lease, connection.terms, joined=joined)
        self._connection = connection
        self._session = session

    @property
    @override
    def lease_id(self) -> int:
        return self._session.lease_id

    @override
    def here(self) -> EtcdConnection:
        return self._connection

    @override
    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        grant: Grant = await self._connection.attempt(name, ttl_s, self._session).until_granted(wait)
        return grant

    @override
    def ballot(self, name: str) -> EtcdBallot:
        return EtcdBallot(self._connection, name, self._session)


class EtcdBackend(LockBackend):
    """The locks, elections and sessions of an etcd cluster.

    `endpoints`: URLs of the members (`http://host:port`, `https://` with TLS), in a list or separated by commas. `user`
    and `password`: etcd's log-in. `ca_file`: PEM of the CA that signed the members' certificates; `cert_file`,
    `key_file`: our own certificate, if etcd asks for one. For the rest see `Options`; `ttl_s` is rounded up to whole
    seconds, and etcd has a minimum (2 by its defaults).
    """

    name = "etcd"
    guarantees = replace(LASTING, fair=True, shows_queue=True, forces_release=True)

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
        endpoints = endpoints.split(",") if isinstance(endpoints, str) else endpoints
        if self.ttl_s > TTL_MAX_S:
            raise ConfigurationError(f"etcd's ttl_s must be {TTL_MAX_S} at most, not {self.ttl_s:g}")
        if not endpoints:
            raise ConfigurationError("at least one etcd endpoint is needed")
        if bool(user) != bool(password):
            raise ConfigurationError("etcd needs both a user and a password, or neither")
        if bool(cert_file) != bool(key_file):
            raise ConfigurationError("etcd's client certificate needs both a cert file and a key file")
        self._members = [parse(one) for one in endpoints]
        login = (user, password) if user and password else None
        self._access = Access(login, (ca_file, key_file, cert_file))
        try:
            self._access.credentials()
        except OSError as error:
            raise ConfigurationError(f"etcd's TLS file can't be read: {error}") from error

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options("ca_file", "cert_file", "key_file")
        if url.path.strip("/"):
            raise ConfigurationError("etcd's URL has no path: etcd://host:2379,host:2379")
        more: dict[str, Any] = {name: Path(file) for name, file in url.options.items()} | {**options}
        members = [f"{'https' if url.secure else 'http'}://{host}" for host in url.hosts]
        return cls(members, user=url.user, password=url.password, **more)

    @override
    def check_name(self, name: str) -> None:
        name.encode()  # raises ValueError if it has half a character

    @override
    def connect(self) -> EtcdConnection:
        use_grpc()
        return EtcdConnection(self.terms, self._members, self._access)

    @override
    def here(self) -> EtcdConnection:
        return cast(EtcdConnection, super().here())

    @override
    def ballot(self, name: str) -> EtcdBallot:
        return EtcdBallot(self.here(), name)

    @override
    async def open_session(self, ttl_s: float, lease_id: int | None, end_lease: bool) -> EtcdSession:
        here = self.here()
        if lease_id is not None:
            joined = await SharedLease.join(here.client, here.renewer, lease_id, ends_lease=end_lease)
            return EtcdSession(here, joined, joined=True)
        begun = await SharedLease.begin(here.client, here.renewer, math.ceil(ttl_s), here.timeout_s)
        return EtcdSession(here, begun, joined=False)

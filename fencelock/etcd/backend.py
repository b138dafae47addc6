"""The etcd backend: one connection for the locks, the elections and the sessions of a process."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, cast

from typing_extensions import override

from .. import portal
from ..backend import Guarantees, LockBackend
from ..connection import Options
from ..contender import describe
from ..election import AsyncElection, Election
from ..errors import ConfigurationError
from ..grant import Grant
from ..lease import Leased
from ..lock import AsyncLock, DistributedLock, checked_name, interruptible
from ..url import LockUrl
from ..waiting import Wait, insisted
from .election import EtcdBallot
from .endpoint import Access, parse, use_grpc
from .lock import EtcdConnection, Place
from .session import TTL_MAX_S
from .session import Session as SharedLease


class AsyncSession(Leased):
    """A lease for several locks and elections, kept renewed until `close`, or the end of the connection or the loop.

    Locks that are given no session share the lease of a default one. A session of one's own is for locks that are worth
    nothing without each other, or for a lease that another program has granted, and which does not end with this
    session (but see `end_lease` of `LockBackend.session`). Unlike in Go, two tasks of a session are two contenders.

    >>> async with locks.session(ttl_s=10) as session:
    ...     async with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()
    """

    __slots__ = ("_connection", "_session", "terms")

    def __init__(self, connection: EtcdConnection, session: SharedLease) -> None:
        super().__init__(session.lease)
        self.terms = connection.terms
        self._connection = connection
        self._session = session

    @classmethod
    async def open(
        cls, connection: EtcdConnection, *, ttl_s: float | None, lease_id: int | None, end_lease: bool
    ) -> Self:
        """Begin a session, or join a lease's. Raises `LockUnavailable`, and `LockLost` if there is no such lease."""
        client, renewer = connection.client, connection.renewer

        async def begin() -> Self:
            if lease_id is not None:
                return cls(connection, await SharedLease.join(client, renewer, lease_id, ends_lease=end_lease))
            whole_s = math.ceil(connection.terms.ttl_s if ttl_s is None else ttl_s)
            return cls(connection, await SharedLease.begin(client, renewer, whole_s, connection.timeout_s))

        return await interruptible(begin(), Wait(), cls.undo if lease_id is None else cls.leave_alone)

    async def undo(self) -> None:
        """End a session that nobody wants any more."""
        await self.close()

    async def leave_alone(self) -> None:
        """Drop a session that nobody wants here, but not its lease, which is another program's."""
        self.orphan()

    @property
    def lease_id(self) -> int:
        """The id of its lease in etcd."""
        return self._session.lease_id

    @property
    def ttl_s(self) -> float:
        """The TTL that the server gave: the seconds by which the session outlives its process."""
        return self.lease.ttl_s

    def here(self) -> EtcdConnection:
        """Return the connection that renews it."""
        return self._connection

    async def take(self, name: str, ttl_s: float, wait: Wait) -> Grant:
        """See `Connection.take`."""
        value = describe(self.terms.instance).encode()
        return await Place(self._connection, name, value, ttl_s=ttl_s, session=self._session).until_granted(wait)

    def lock(self, name: str) -> AsyncLock:
        """Return a lock under the session's lease."""
        return AsyncLock(self, name)

    def election(self, name: str) -> AsyncElection:
        """Return an election under the session's lease."""
        name = checked_name(name)
        return AsyncElection(lambda: EtcdBallot(self._connection, name, self._session))

    def orphan(self) -> None:
        """Renew no more, and leave the lease to end by itself; its locks stay held until then."""
        self._connection.renewer.drop(self.lease)

    async def close(self) -> None:
        """End the session, with its lease unless that is another program's: its locks are free at once.

        Never raises, and may be called again.
        """
        self.lease.lose("the session was closed")  # before another one can have what was locked
        await insisted(lambda: self._connection.renewer.hand_back(self.lease, self._connection.timeout_s))


class Session(Leased):
    """As `AsyncSession`, for threads.

    >>> with backend.session(ttl_s=10) as session:
    ...     with session.lock("/jobs/nightly"), session.lock("/jobs/weekly"):
    ...         session.ensure_held()
    """

    __slots__ = ("_session",)

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session.lease)
        self._session = session

    @property
    def lease_id(self) -> int:
        """The id of its lease in etcd."""
        return self._session.lease_id

    @property
    def ttl_s(self) -> float:
        """The TTL that the server gave: the seconds by which the session outlives its process."""
        return self.lease.ttl_s

    def lock(self, name: str) -> DistributedLock:
        """Return a lock under the session's lease."""
        return DistributedLock(self._session.lock(name))

    def election(self, name: str) -> Election:
        """Return an election under the session's lease."""
        return Election(self._session.election(name))

    def orphan(self) -> None:
        """See `AsyncSession.orphan`."""
        self._session.orphan()

    def close(self) -> None:
        """See `AsyncSession.close`."""
        portal.run(self._session.close(), to_the_end=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EtcdBackend(LockBackend):
    """The locks, elections and sessions of an etcd cluster.

    `endpoints`: URLs of the members (`http://host:port`, `https://` with TLS), in a list or separated by commas. `user`
    and `password`: etcd's log-in. `ca_file`: PEM of the CA that signed the members' certificates; `cert_file`,
    `key_file`: our own certificate, if etcd asks for one. For the rest see `Options`; `ttl_s` is rounded up to whole
    seconds, and etcd has a minimum (2 by its defaults).
    """

    name = "etcd"
    guarantees = Guarantees(
        fair=True,
        fencing=True,
        survives_silence=True,
        survives_restart=True,
        survives_cut=True,
        shows_queue=True,
        elects=True,
        forces_release=True,
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
    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None, end_lease: bool = False) -> Session:
        undo = AsyncSession.undo if lease_id is None else AsyncSession.leave_alone
        return Session(portal.run(self._session(ttl_s, lease_id, end_lease), undo))

    async def _session(self, ttl_s: float | None, lease_id: int | None, end_lease: bool) -> AsyncSession:
        return await AsyncSession.open(self.here(), ttl_s=ttl_s, lease_id=lease_id, end_lease=end_lease)

    @override
    @asynccontextmanager
    async def session_for_tasks(
        self, *, ttl_s: float | None = None, lease_id: int | None = None, end_lease: bool = False
    ) -> AsyncIterator[AsyncSession]:
        session = await self._session(ttl_s, lease_id, end_lease)
        try:
            yield session
        finally:
            await session.close()

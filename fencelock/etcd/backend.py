"""The etcd backend: one connection for the locks, the elections and the sessions of a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, Unpack

from typing_extensions import override

from ..backend import Guarantees, LockBackend
from ..common import Options
from ..contender import Contender
from ..errors import ConfigurationError
from ..lock import DistributedLock
from ..renewer import Renewer
from ..steps import in_thread
from ..url import LockUrl
from .aio import AsyncElection, AsyncSession
from .client import EtcdClient
from .election import Election
from .lender import Lender
from .lock import EtcdCommon, EtcdLock, contenders
from .session import Session


class EtcdBackend(EtcdCommon, LockBackend):
    """One connection to etcd and one renewal thread, for all locks of a process.

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
        self.client = EtcdClient(
            endpoints,
            timeout_s=self.timeout_s,
            user=user,
            password=password,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self.lender = Lender(self.client)

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
    def lock(self, name: str, *, ttl_s: float | None = None) -> DistributedLock[Any]:
        return EtcdLock(self, name, ttl_s)

    @override
    async def force_released(self, name: str) -> Contender | None:
        while queue := await self.lock(name)._queue():
            if await self.client.delete_own(queue[0].key, queue[0].token):
                return queue[0]
        return None

    @override
    def election(self, name: str) -> Election:
        return Election(self, name)

    @override
    def session(self, *, ttl_s: float | None = None, lease_id: int | None = None) -> Session:
        return in_thread(Session.begin(self, self.renewer, ttl_s=ttl_s, lease_id=lease_id))

    @override
    def election_for_tasks(self, name: str) -> AsyncElection:
        return AsyncElection(self.election(name))

    @override
    @asynccontextmanager
    async def session_for_tasks(self, *, ttl_s: float | None, lease_id: int | None) -> AsyncIterator[AsyncSession]:
        beginning = Session.begin(self, self.loop_renewers.here(), ttl_s=ttl_s, lease_id=lease_id)
        session = await AsyncSession.open(self, beginning, borrowed=lease_id is not None)
        try:
            yield session
        finally:
            await session.close()

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        return await contenders(self.client, prefix)

    @override
    async def pinged(self, timeout_s: float) -> None:
        await self.client.ping(timeout_s)

    @override
    async def _give_up_idle(self, renewer: Renewer | None) -> None:
        await self.lender.give_up(renewer, self.timeout_s / 2)

    @override
    def _disconnect(self) -> None:
        self.client.close()

    @override
    async def _disconnect_loop(self) -> None:
        await self.client.close_on_loop()

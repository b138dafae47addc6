"""The ZooKeeper lock: an ephemeral sequential node per outermost acquire, the lowest number owns. Curator's queue."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self, Unpack
from uuid import uuid4

from typing_extensions import override

from .. import clock
from ..backend import Guarantees, LockBackend
from ..connection import Attempt, Connection, Options, PlaceLost, Terms
from ..contender import Contender, describe, parse_owner
from ..errors import ConfigurationError, LockUnavailable
from ..grant import Grant
from ..lease import Lease
from ..url import LockUrl
from ..waiting import Wait
from .client import Found, ZooKeeperClient
from .link import Servers
from .session import Created, Session, Watch, sequence

_BOTH: Final = 2  # the node ahead, and our own
_LOOK_AGAIN_S: Final = 5.0  # at the latest, whatever a watch tells


class _Place(Attempt["ZooKeeperConnection"]):
    """A contender's place in the queue: a node of our session's.

    Follows Curator's `InterProcessMutex` and shares its queue. Differs in what that one leaves to its user: a holder
    whose connection breaks, or whose server is silent, has lost the lock and is told. kazoo's own recipe is not used:
    its names sort into no order with Curator's, and it believes in a lock whose session is gone.
    """

    def __init__(self, connection: "ZooKeeperConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._client = connection.client_for(ttl_s)
        self._node: _Node
        self._source = ""
        self._watch: Watch | None = None
        self.cleanup.callback(self._unwatch)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        timeout_s = wait.call_s(self.timeout_s)
        lease = self.lease
        if lease is None:
            self._unwatch()
            lease, names = await self._enter(wait)
        elif self._only_one_was_ahead():
            return Grant(self._node.path, self._node.czxid, self._source, lease)
        else:
            names = await self._node.session.children(self.name, timeout_s)
        ahead = self._node.ahead(names)
        if not ahead:
            return Grant(self._node.path, self._node.czxid, self._source, lease)
        if not wait.left_s:
            return 0.0
        self._unwatch()
        watched = [f"{self.name}/{ahead[-1]}"] if len(ahead) > 1 else [f"{self.name}/{ahead[0]}", self._node.path]
        watch = self._watch = await self._node.session.watch(self.wake.set, timeout_s, *watched)
        if self._only_one_was_ahead():  # who has gone meanwhile
            return Grant(self._node.path, self._node.czxid, self._source, lease)
        return self._look_again_s if watch.there else 0.0

    def _only_one_was_ahead(self) -> bool:
        """Whether that one has gone and our node has not: then it is our turn, and there is nothing to ask.

        Who comes later has a higher number. Our own node is looked at and watched as well, after the other one: it may
        be deleted by hand, and what is deleted before is told before.
        """
        watch = self._watch
        if watch is None or len(watch.paths) != _BOTH:
            return False
        ahead, own = watch.paths
        return watch.has_gone(ahead) and not watch.has_gone(own)

    @property
    def _look_again_s(self) -> float:
        return _LOOK_AGAIN_S * self.connection.waiters.crowd

    async def _enter(self, wait: Wait) -> tuple[Lease, list[str]]:
        """Create our node, and list the queue. Raises `PlaceLost` if the session ended meanwhile."""
        client, timeout_s = self._client, wait.call_s(self.timeout_s)
        session = await client.session(timeout_s)
        try:
            self._source = f"zookeeper:{await client.source(session, self.name, timeout_s)}"
            asked_at = clock.now()
            # Curator's form; there the first part tells whose node it is that was created without an answer.
            created = await session.create(
                self.name, f"_c_{uuid4()}-lock-", describe(self.connection.terms.instance).encode(), timeout_s
            )
        except LockUnavailable:
            if session.over is not None:
                raise PlaceLost from None
            raise
        node = self._node = _Node(session, created)
        lease = self.lease = Lease(node.path, node, session.ttl_s, asked_at=asked_at)
        node.forget = session.on_over(lambda: lease.lose(session.over or ""))
        lease.on_lost(node.lost)
        lease.on_lost(self.wake.set)
        self.renewer.keep(lease)
        self.answered = True  # an outage from here on is waited for
        return lease, created.names

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.forget()
            self._watch = None


class _Node:
    """A contender's node."""

    def __init__(self, session: Session, created: Created) -> None:
        self._loop = asyncio.get_running_loop()
        self.session = session
        self.path = created.path
        self.czxid = created.czxid
        self.forget: Callable[[], None] = lambda: None  # the end of the session

    def ahead(self, names: Sequence[str]) -> list[str]:
        """The names of the nodes ahead of ours, in order; `PlaceLost` if ours is not there any more."""
        own = self.path.rpartition("/")[2]
        queue = sorted((name for name in names if sequence(name) is not None), key=_order)
        if own not in queue:
            raise PlaceLost
        return queue[: queue.index(own)]

    async def renew(self, timeout_s: float) -> bool:
        """Whether it is there, which proves that the session lived."""
        return await self.session.present(self.path, self.czxid, timeout_s)

    async def end(self, timeout_s: float) -> None:
        """Delete it."""
        self.forget()
        await self.session.delete(self.path, timeout_s)

    def lost(self) -> None:
        """We don't believe in it any more: it would only be in others' way."""
        self.forget()
        # Whichever thread has found out.
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.session.delete_soon, self.path)


def _order(name: str) -> str:
    return sequence(name) or ""


def _contenders(nodes: Sequence[Found]) -> list[Contender]:
    """For each queue the holder first, then the waiters in order."""
    holders: set[str] = set()
    queue = []
    for node in sorted(nodes, key=lambda node: (node.path.rpartition("/")[0], _order(node.path))):
        name = node.path.rpartition("/")[0]
        owner, waited_s = parse_owner(node.data)  # Curator writes its address
        queue.append(
            Contender(
                key=node.path,
                token=node.czxid,
                owner=owner,
                waited_s=waited_s,
                ttl_left_s=None,
                holds=name not in holders,
            )
        )
        holders.add(name)
    return queue


class ZooKeeperConnection(Connection):
    """A session for each TTL: all that is bound to one session ends with it."""

    def __init__(self, terms: Terms, servers: Servers, auth: str | None) -> None:
        super().__init__(terms)
        self._where = servers, auth
        self._clients: dict[float, ZooKeeperClient] = {}

    @property
    def client(self) -> ZooKeeperClient:
        """That of most locks."""
        return self.client_for(self.terms.ttl_s)

    def client_for(self, ttl_s: float) -> ZooKeeperClient:
        """Its session has that timeout."""
        client = self._clients.get(ttl_s)
        if client is None:
            servers, auth = self._where
            client = ZooKeeperClient(servers, session_s=ttl_s, timeout_s=self.timeout_s, auth=auth)
            self._clients[ttl_s] = client
        return client

    @override
    def attempt(self, name: str, ttl_s: float) -> _Place:
        return _Place(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        return _contenders(await self.client.under(prefix, deep=True))

    @override
    async def queue(self, name: str) -> list[Contender]:
        return _contenders(await self.client.under(f"{name}/", deep=False))

    @override
    async def ping(self, timeout_s: float) -> None:
        await self.client.ping(timeout_s)

    @override
    async def disconnect(self) -> None:
        for client in self._clients.values():
            await client.close()


class ZooKeeperBackend(LockBackend):
    """A session with ZooKeeper for all threads of a process and one for each loop. Its locks are fair, fenced by czxid.

    `hosts`: "host:port,host:port", and "/folder" after that for a part of the tree, which must be there. `auth`:
    "user:password" for ZooKeeper's digest scheme, for which alone our nodes are then. For the rest see `Options`;
    `ttl_s` is the timeout of the session, as far as the server allows it, and a lease is two thirds of it.
    """

    name = "zookeeper"
    # Not a restart: a connection that breaks ends every lock that is held through it, however soon it is back.
    guarantees = Guarantees(fair=True, fencing=True, survives_silence=True, shows_queue=True)

    def __init__(self, hosts: Sequence[str] | str, *, auth: str | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if auth is not None and not all(auth.partition(":")):
            raise ConfigurationError("ZooKeeper's log-in must be user:password")
        self._servers = Servers.parse(hosts if isinstance(hosts, str) else ",".join(hosts), self.timeout_s)
        self._auth = auth

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options()
        if not url.hosts:
            raise ConfigurationError("ZooKeeper's URL needs a host: zookeeper://host:2181,host:2181/folder")
        auth = f"{url.user}:{url.password or ''}" if url.user else None
        return cls(",".join(url.hosts) + url.path.rstrip("/"), auth=auth, **options)

    @override
    def check_name(self, name: str) -> None:
        _, *parts = name.split("/")
        if not name.startswith("/") or not all(parts) or {".", ".."} & set(parts):
            raise ValueError(f"a lock's name must be a path in ZooKeeper, like /locks/phone, not {name!r}")

    @override
    def connect(self) -> Connection:
        return ZooKeeperConnection(self.terms, self._servers, self._auth)

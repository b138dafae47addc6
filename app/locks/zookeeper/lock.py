"""The ZooKeeper lock: an ephemeral sequential node per outermost acquire, the lowest number owns. Curator's queue."""

from collections.abc import Callable, Sequence
from typing import Final, Self
from uuid import uuid4

from typing_extensions import Unpack, override

from app.common import clock
from app.errors import ConfigurationError, LockUnavailable
from app.locks.attempt import Attempt, PlaceLost
from app.locks.backend import Guarantees, LockBackend, Options
from app.locks.contender import Contender, describe, parse_owner
from app.locks.grant import Grant
from app.locks.lease import Lease
from app.locks.lock import DistributedLock
from app.locks.url import LockUrl
from app.locks.waiting import Wait
from app.locks.zookeeper.client import Created, Found, Session, ZooKeeperClient, sequence

_LOOK_AGAIN_S: Final = 5.0  # at the latest, whatever a watch tells


class ZooKeeperLock(DistributedLock["ZooKeeperBackend"]):
    """Fair (in the order of sequence numbers), re-entrant, fenced by the czxid of the lock's node.

    Follows Curator's `InterProcessMutex` and shares its queue. Differs in what that one leaves to its user: a holder
    whose connection breaks, or whose server is silent, has lost the lock and is told. kazoo's own recipe is not used:
    its names sort into no order with Curator's, and it believes in a lock whose session is gone.

    >>> with connect("zookeeper://127.0.0.1:2181").lock("/seckill/lock/phone") as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(self, backend: "ZooKeeperBackend", name: str) -> None:
        super().__init__(backend, name)
        _, *parts = name.split("/")
        if not name.startswith("/") or not all(parts) or {".", ".."} & set(parts):
            raise ValueError(f"a lock's name must be a path in ZooKeeper, like /seckill/lock/phone, not {name!r}")

    @override
    def _attempt(self) -> "_Place":
        return _Place(self._backend, self.name)

    @override
    def contenders(self) -> list[Contender]:
        """The queue in order of sequence numbers; the first owns the lock."""
        return _contenders(self._backend.client.list(f"{self.name}/", deep=False))


class _Place(Attempt["ZooKeeperBackend"]):
    """A contender's place in the queue: a node of our session's."""

    def __init__(self, backend: "ZooKeeperBackend", name: str) -> None:
        super().__init__(backend, name)
        self._client = backend.client
        self._node: _Node
        self._source = ""
        self._forget: Callable[[], None] = lambda: None
        self.cleanup.callback(self._unwatch)

    @override
    def take(self, wait: Wait) -> Grant | float:
        timeout_s = wait.call_s(self.backend.timeout_s)
        lease = self.lease
        if lease is None:
            lease, names = self._enter(wait)
        else:
            names = self._node.session.children(self.name, timeout_s)
        ahead = self._node.ahead(names)
        if ahead is None:
            return Grant(self._node.path, self._node.czxid, self._source, lease)
        if not wait.left_s:
            return 0.0
        self._unwatch()
        there, self._forget = self._node.session.watch(ahead, self.wake.set, timeout_s)
        return _LOOK_AGAIN_S if there else 0.0

    def _enter(self, wait: Wait) -> tuple[Lease, list[str]]:
        """Create our node, and list the queue. Raises `PlaceLost` if the session ended meanwhile."""
        client, timeout_s = self._client, wait.call_s(self.backend.timeout_s)
        session = client.session(timeout_s)
        try:
            self._source = f"zookeeper:{client.source(session, self.name, timeout_s)}"
            asked_at = clock.now()
            # Curator's form; there the first part tells whose node it is that was created without an answer.
            created = session.create(
                self.name, f"_c_{uuid4()}-lock-", describe(self.backend.instance).encode(), timeout_s
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
        self.backend.renewer.keep(lease)
        self.answered = True  # an outage from here on is waited for
        return lease, created.names

    def _unwatch(self) -> None:
        self._forget()


class _Node:
    """A contender's node."""

    def __init__(self, session: Session, created: Created) -> None:
        self.session = session
        self.path = created.path
        self.czxid = created.czxid
        self.forget: Callable[[], None] = lambda: None  # the end of the session

    def ahead(self, names: Sequence[str]) -> str | None:
        """The path of the node just ahead of ours; `PlaceLost` if ours is not there any more."""
        parent, _, own = self.path.rpartition("/")
        queue = sorted((name for name in names if sequence(name) is not None), key=_order)
        if own not in queue:
            raise PlaceLost
        position = queue.index(own)
        return f"{parent}/{queue[position - 1]}" if position else None

    def renew(self, timeout_s: float) -> bool:
        """Whether it is there, which proves that the session lived."""
        return self.session.present(self.path, self.czxid, timeout_s)

    def end(self, timeout_s: float) -> None:
        """Delete it."""
        self.forget()
        self.session.delete(self.path, timeout_s)

    def lost(self) -> None:
        """We don't believe in it any more: it would only be in others' way."""
        self.forget()
        self.session.delete_soon(self.path)


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


class ZooKeeperBackend(LockBackend):
    """One session with ZooKeeper, made at first use, and one renewal thread, for all locks of a process.

    `hosts`: "host:port,host:port", and "/folder" after that for a part of the tree, which must be there. `auth`:
    "user:password" for ZooKeeper's digest scheme, for which alone our nodes are then. For the rest see `Options`;
    `ttl_s` is the timeout of the session, as far as the server allows it, and a lease is two thirds of it.
    """

    name = "zookeeper"
    # Not a restart: a connection that breaks ends every lock that is held through it, however soon it is back.
    guarantees = Guarantees(fair=True, fencing=True, survives_silence=True, shows_queue=True)

    def __init__(self, hosts: Sequence[str] | str, *, auth: str | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.client = ZooKeeperClient(hosts, session_s=self.ttl_s, timeout_s=self.timeout_s, auth=auth)

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options()
        if not url.hosts:
            raise ConfigurationError("ZooKeeper's URL needs a host: zookeeper://host:2181,host:2181/folder")
        auth = f"{url.user}:{url.password or ''}" if url.user else None
        return cls(",".join(url.hosts) + url.path.rstrip("/"), auth=auth, **options)

    @override
    def lock(self, name: str) -> ZooKeeperLock:
        return ZooKeeperLock(self, name)

    @override
    def contenders(self, prefix: str) -> list[Contender]:
        return _contenders(self.client.list(prefix, deep=True))

    @override
    def ping(self, timeout_s: float) -> None:
        self.client.ping(timeout_s)

    @override
    def _disconnect(self) -> None:
        self.client.close()

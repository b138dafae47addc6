"""The ZooKeeper lock, in Curator's queue: contenders have ephemeral sequential nodes; the lowest number owns it."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self, Unpack, cast
from uuid import uuid4

from typing_extensions import override

from .. import clock
from ..backend import LASTING, LockBackend
from ..connection import Attempt, Connection, Options, PlaceLost, Terms
from ..contender import Contender, describe, parse_owner
from ..errors import ConfigurationError, LockUnavailable
from ..grant import Grant
from ..lease import Lease
from ..url import LockUrl
from ..waiting import Wait
from .client import FoundNode, ZooKeeperClient, sequence
from .election import ZooKeeperBallot
from .session import Created, Login, Missing, ZooKeeperSession, parse

_LOOK_AGAIN_S: Final = 5.0  # at the latest, even without a watch's event
_IDLE_S: Final = 5.0  # a session with another TTL than the default one that has had no node for longer is ended
_IDLE_MAX: Final = 4  # for so long such sessions are kept


class _ZooKeeperPlace(Attempt["ZooKeeperConnection"]):
    """A contender's place in the queue: a node of our session.

    It follows Curator's `InterProcessMutex` and shares its queue, with one difference: Curator leaves it to its user to
    notice that the servers have been silent for too long; our holder's grant is lost then. kazoo's own
    recipe is not used: its names sort into no order with Curator's, and it trusts a lock whose session is gone.
    """

    def __init__(self, connection: "ZooKeeperConnection", name: str, ttl_s: float, value: bytes | None = None) -> None:
        super().__init__(connection, name, ttl_s)
        self._value = describe(connection.terms.instance).encode() if value is None else value
        client = self._client = connection.client_for(ttl_s)
        client.attempts += 1
        self._node: _Node
        self._source = ""
        self.cleanup.callback(self._leave_client)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        timeout_s = wait.call_s(self.timeout_s)
        lease = self.lease
        if lease is None:
            lease, names = await self._enter(wait)
        else:
            (names,) = await self._node.session.lists(timeout_s, self.name)
        ahead = await self._node.ahead(names, timeout_s)
        if not ahead:
            return Grant(self._node.path, self._node.czxid, self._source, lease)
        if not wait.left_s:
            return 0.0
        # Not `exists`, whose watch on a node that is gone would stay for ever.
        (there,) = await self._node.session.get(timeout_s, f"{self.name}/{ahead[-1]}", watch=self._told)
        return 0.0 if isinstance(there, Missing) else _LOOK_AGAIN_S * self.connection.waiters.crowd

    def _told(self, _: object) -> None:
        self.wake.set()

    async def _enter(self, wait: Wait) -> tuple[Lease, list[str]]:
        """Create our node, and list the queue. Raises `PlaceLost` if the session ended meanwhile."""
        client, timeout_s = self._client, wait.call_s(self.timeout_s)
        session = await client.session(timeout_s)
        try:
            self._source = f"zookeeper:{await client.source(session, self.name, timeout_s)}"
            asked_at = clock.now()
            # Curator's form; there the first part identifies a node whose creation was not answered.
            created = await session.create(self.name, f"_c_{uuid4()}-lock-", self._value, timeout_s)
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

    def _leave_client(self) -> None:
        self._client.attempts -= 1


class _Node:
    """A contender's node."""

    def __init__(self, session: ZooKeeperSession, created: Created) -> None:
        self._loop = asyncio.get_running_loop()
        self.session = session
        self.path = created.path
        self.czxid = created.czxid
        self.forget: Callable[[], None] = lambda: None  # unsubscribes from the end of the session

    async def ahead(self, names: Any, timeout_s: float) -> list[str]:
        """Return the names of the nodes ahead of ours, in order. Raises `PlaceLost` if ours is not there any more."""
        folder, _, own = self.path.rpartition("/")
        if isinstance(names, Missing) or own not in names:
            raise PlaceLost
        mine = sequence(own) or 0
        numbers = {name: number for name in names if (number := sequence(name)) is not None and name != own}
        queue = sorted((name for name, number in numbers.items() if number < mine), key=lambda name: numbers[name])
        if tied := [name for name, number in numbers.items() if number == mine]:  # see `sequence`
            nodes = zip(tied, await self.session.get(timeout_s, *(f"{folder}/{name}" for name in tied)), strict=True)
            created = {name: node[1].czxid for name, node in nodes if not isinstance(node, Missing)}
            queue += sorted(
                (name for name, czxid in created.items() if czxid < self.czxid), key=lambda name: created[name]
            )
        return queue

    async def renew(self, timeout_s: float) -> bool:
        """Return whether the node is there, which proves that the session lived."""
        if self.session.over is not None:
            return False
        (node,) = await self.session.get(timeout_s, self.path, synced=True)
        return not isinstance(node, Missing) and node[1].czxid == self.czxid

    async def end(self, timeout_s: float) -> None:
        """Delete it."""
        self.forget()
        await self.session.delete(self.path, timeout_s)

    def lost(self) -> None:
        """Delete the node of a lost lease, which would only be in others' way. Any thread may call it."""
        self.forget()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.session.delete_soon, self.path)


def _contenders(nodes: Sequence[FoundNode]) -> list[Contender]:
    """Order each queue's nodes, and describe them: the holder first, then the waiters."""
    holders: set[str] = set()
    queue = []
    for node in sorted(nodes, key=lambda node: (node.path.rpartition("/")[0], sequence(node.path), node.czxid)):
        name = node.path.rpartition("/")[0]
        owner, waited_s = parse_owner(node.data)  # Curator writes its address
        queue.append(Contender(node.path, node.czxid, owner, waited_s, ttl_left_s=None, holds=name not in holders))
        holders.add(name)
    return queue


class ZooKeeperConnection(Connection):
    """ZooKeeper on one event loop: a session for each TTL, as a lease can't outlast its session's timeout.

    A session costs a thread, some sockets, and a place among those that a server allows each host (60 by its defaults):
    so other TTLs than the default one are rounded up to whole seconds, and few of their sessions outlive their use.
    """

    def __init__(self, terms: Terms, access: Login) -> None:
        super().__init__(terms)
        self._access = access
        self.client = ZooKeeperClient(access, session_s=terms.ttl_s)
        self._others: dict[int, ZooKeeperClient] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def client_for(self, ttl_s: float) -> ZooKeeperClient:
        """Return the client whose session has that timeout."""
        if ttl_s == self.terms.ttl_s:
            return self.client
        whole_s = math.ceil(ttl_s)
        client = self._others.get(whole_s)
        if client is None:
            self._end_idle(_IDLE_MAX - 1)
            client = self._others[whole_s] = ZooKeeperClient(self._access, session_s=whole_s)
            if self._timer is None:
                self._look_later()
        return client

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_IDLE_S / 2, self._look)

    def _look(self) -> None:
        self._timer = None
        self._end_idle(_IDLE_MAX, time.monotonic() - _IDLE_S)
        if self._others:
            self._look_later()

    def _end_idle(self, keep: int, until: float = -math.inf) -> None:
        """End the sessions that nobody has used since `until`, and the longest idle ones of more than `keep`."""
        found = [(client.idle_since, whole_s) for whole_s, client in self._others.items()]
        idle = sorted((since, whole_s) for since, whole_s in found if since is not None)
        for number, (since, whole_s) in enumerate(idle):
            if since < until or number < len(idle) - keep:
                task = asyncio.get_running_loop().create_task(self._others.pop(whole_s).close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    @override
    def attempt(self, name: str, ttl_s: float) -> _ZooKeeperPlace:
        return _ZooKeeperPlace(self, name, ttl_s)

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
        if self._timer is not None:
            self._timer.cancel()
        for client in (self.client, *self._others.values()):
            await client.close()
        await asyncio.gather(*self._closing)


class ZooKeeperBackend(LockBackend):
    """ZooKeeper's locks: fair, and fenced by czxid. All threads share a session, and each event loop has its own.

    `hosts`: "host:port,host:port", and "/folder" after that for a part of the tree, which must be there. `auth`:
    "user:password" for ZooKeeper's digest scheme, or for `sasl`, a mechanism such as "DIGEST-MD5" or "GSSAPI" (which
    needs no user); our nodes are for that user alone then. `tls`: speak TLS, and check the host's name against a
    certificate of `ca_file`, or of the system; `cert_file` and `key_file`: our own. They are read at each connection.
    For the rest see `Options`; `ttl_s` is the timeout of the session, as far as the server allows it, and a lease
    lasts two thirds of it; a lock's own `ttl_s` is rounded up to whole seconds.
    """

    name = "zookeeper"
    guarantees = replace(LASTING, fair=True, shows_queue=True)

    def __init__(
        self,
        hosts: Sequence[str] | str,
        *,
        auth: str | None = None,
        sasl: str = "",
        tls: bool = False,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        ZooKeeperClient.check(self.ttl_s)
        user, _, password = (auth or "").partition(":")
        if auth is not None and not (user and password):
            raise ConfigurationError("ZooKeeper's log-in must be user:password")
        files = ca_file, cert_file, key_file
        if bool(cert_file) != bool(key_file):
            raise ConfigurationError("ZooKeeper's client certificate needs both a cert file and a key file")
        if any(files) and not tls:
            raise ConfigurationError("files of certificates are for TLS: zookeepers://")
        for file in files:
            if file is not None and not Path(file).is_file():
                raise ConfigurationError(f"ZooKeeper's TLS file can't be read: {file}")
        text = parse(hosts if isinstance(hosts, str) else ",".join(hosts))
        self._access = Login(text, self.timeout_s, user, password, sasl.upper(), tls, files)
        if sasl and find_spec("puresasl") is None:
            raise ConfigurationError("SASL needs pure-sasl: pip install pure-sasl")

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options("sasl", "ca_file", "cert_file", "key_file")
        if not url.hosts:
            raise ConfigurationError("ZooKeeper's URL needs a host: zookeeper://host:2181,host:2181/folder")
        auth = f"{url.user}:{url.password or ''}" if url.user else None
        more: dict[str, Any] = {**url.options, **options}
        return cls(",".join(url.hosts) + url.path.rstrip("/"), auth=auth, tls=url.secure, **more)

    @override
    def check_name(self, name: str) -> None:
        _, *parts = name.split("/")
        if not name.startswith("/") or not all(parts) or {".", "..", "~record"} & set(parts):
            raise ValueError(f"a lock's name must be a path in ZooKeeper, like /locks/phone, not {name!r}")

    @override
    def connect(self) -> Connection:
        return ZooKeeperConnection(self.terms, self._access)

    @override
    def ballot(self, name: str) -> ZooKeeperBallot:
        self.check_name(name)
        here = cast(ZooKeeperConnection, self.here())
        return ZooKeeperBallot(here, here.client, name, lambda value: _ZooKeeperPlace(here, name, self.ttl_s, value))

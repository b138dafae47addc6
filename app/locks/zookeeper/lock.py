"""The ZooKeeper lock: an ephemeral sequential node per outermost acquire, the lowest number owns. Curator's queue."""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from app.common.blocking import ctrl_c_waits
from app.errors import LockError, LockUnavailable
from app.locks.backend import Guarantees, LockBackend, Portrait
from app.locks.lease import Lease
from app.locks.lock import Contender, DistributedLock, Grant, read_who, who
from app.locks.renewer import Renewer
from app.locks.waiting import AWAY_PAUSE_S, Wait, Wake
from app.locks.zookeeper.client import Created, Found, Session, ZooKeeperClient, sequence

_LOOK_AGAIN_S: Final = 5.0  # at the latest, whatever a watch tells


class PlaceLost(Exception):
    """Our node or its session is gone, and the place in the queue with it: a reason to start again."""


class LockClosed(LockError):
    """The connection is being closed. Not "away": that is waited for."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Place:
    """A contender's place in the queue. When nobody has it any more its lease is not renewed but given back."""

    session: Session
    source: str
    created: Created
    lease: Lease


class ZooKeeperLock(DistributedLock):
    """Fair (in the order of sequence numbers), re-entrant, fenced by the czxid of the lock's node.

    Follows Curator's `InterProcessMutex` and shares its queue. Differs in what that one leaves to its user: a holder
    whose connection breaks, or whose server is silent, has lost the lock and is told. kazoo's own recipe is not used:
    its names sort into no order with Curator's, and it believes in a lock whose session is gone.

    >>> lock = ZooKeeperLock(client, renewer, "/seckill/lock/phone")
    >>> with lock as grant:
    ...     store.write(..., token=grant.token)
    """

    def __init__(self, client: ZooKeeperClient, renewer: Renewer, name: str, *, instance: str = "python") -> None:
        super().__init__(name)
        _, *parts = name.split("/")
        if not name.startswith("/") or not all(parts) or {".", ".."} & set(parts):
            raise ValueError(f"a lock's name must be a path in ZooKeeper, like /seckill/lock/phone, not {name!r}")
        self._client = client
        self._renewer = renewer
        self._instance = instance

    def _take(self, wait: Wait, abandoned: Callable[[], bool]) -> Grant:
        wake = Wake()
        lost_at = float("-inf")
        with self._client.waiters.waiting(wake.set):
            while True:
                if wait.cancel.is_set():
                    wait.check(self.name)
                place = None
                try:
                    with ctrl_c_waits():
                        place = self._enter(wait, abandoned)
                    self._wait_turn(place, wait, wake)
                    return Grant(place.created.path, place.created.czxid, place.source, place.lease)
                except BaseException as error:
                    if place is not None:
                        self._leave(place.lease)
                    if isinstance(error, LockClosed):
                        raise LockUnavailable(str(error)) from None
                    if isinstance(error, PlaceLost):
                        # To the end of the queue, while time is left; Curator's mutex does so, too.
                        lost_at = lost_at if place is None else time.monotonic()
                    elif isinstance(error, LockUnavailable) and time.monotonic() - lost_at < self._client.session_s:
                        # A server that is away for a moment costs those who wait their place, but not their wait.
                        wake.wait(min(AWAY_PAUSE_S, wait.left_s))
                    else:
                        raise
                    wait.check(self.name)

    def _enter(self, wait: Wait, abandoned: Callable[[], bool]) -> Place:
        """Take the next place: create our node, and look who is there.

        Raises `LockUnavailable`, or `PlaceLost` if the session ended meanwhile; nothing is left then.
        """
        if self._client.waiters.closing:
            raise LockClosed("the connection to ZooKeeper is closed")
        session = self._client.session(wait.call_s(self._client.timeout_s))
        try:
            source = _source(self._client.source(session, self.name, wait.call_s(self._client.timeout_s)))
            asked_at = time.monotonic()
            owner = json.dumps(who(self._instance), separators=(",", ":")).encode()
            # Curator's form; there the first part tells whose node it is that was created without an answer.
            created = session.create(self.name, f"_c_{uuid4()}-lock-", owner, wait.call_s(self._client.timeout_s))
        except LockUnavailable:
            if session.over is not None:
                raise PlaceLost from None
            raise
        path = created.path

        # These know nothing of `self`, by which the lease would keep its own owner alive.
        def renew(timeout_s: float) -> bool:
            return session.present(path, created.czxid, timeout_s)

        def end(timeout_s: float) -> None:
            forget()
            session.delete(path, timeout_s)

        def lost() -> None:
            forget()
            session.delete_soon(path)  # what we don't believe in any more is in others' way

        lease = Lease(path, session.ttl_s, asked_at=asked_at, renew=renew, end=end, abandoned=abandoned)
        place = Place(session, source, created, lease)
        lease.held_by(place)
        forget = session.on_over(lambda: lease.lose(session.over or ""))
        lease.on_lost(lost)
        self._renewer.keep(lease)
        return place

    def _wait_turn(self, place: Place, wait: Wait, wake: Wake) -> None:
        """Return when everybody who came before is gone.

        Raises `LockTimeout`, `LockCancelled`, or `PlaceLost` when our own node or session is gone. A server that is
        silent is waited for, as long as our lease may still be alive.
        """
        forget_lease = place.lease.on_lost(wake.set)
        forget_cancel = wait.cancel.subscribe(wake.set)
        try:
            ahead = _ahead(place, place.created.names)
            while ahead is not None:
                self._check(place, wait)
                try:
                    with place.session.watching(ahead, wake.set, wait.call_s(self._client.timeout_s)) as there:
                        if there and wake.wait(min(_LOOK_AGAIN_S, wait.left_s)):
                            self._check(place, wait)
                    ahead = _ahead(place, place.session.children(self.name, wait.call_s(self._client.timeout_s)))
                except LockUnavailable:
                    wake.wait(min(AWAY_PAUSE_S, wait.left_s))
            self._check(place, None)
        finally:
            forget_cancel()
            forget_lease()

    def _check(self, place: Place, wait: Wait | None) -> None:
        if self._client.waiters.closing:
            raise LockClosed("the connection to ZooKeeper is closed")
        if place.lease.lost:
            raise PlaceLost
        if wait is not None:
            wait.check(self.name)

    def _leave(self, lease: Lease) -> None:
        self._renewer.hand_back(lease, self._client.timeout_s)

    def _give_back(self, grant: Grant) -> None:
        self._leave(grant.lease)

    def contenders(self) -> list[Contender]:
        """The queue in order of sequence numbers; the first owns the lock."""
        return _contenders(self._client.list(f"{self.name}/", deep=False))


def _ahead(place: Place, names: Sequence[str]) -> str | None:
    """The path of the node just ahead of ours; `PlaceLost` if ours is not there any more."""
    parent, _, own = place.created.path.rpartition("/")
    queue = sorted((name for name in names if sequence(name) is not None), key=_order)
    if own not in queue:
        raise PlaceLost
    position = queue.index(own)
    return f"{parent}/{queue[position - 1]}" if position else None


def _order(name: str) -> str:
    return sequence(name) or ""


def _source(ensemble: str) -> str:
    """Whose tokens the transaction numbers of this ensemble are."""
    return f"zookeeper:{ensemble}"


def _contenders(nodes: Sequence[Found]) -> list[Contender]:
    """For each queue the holder first, then the waiters in order."""
    holders: set[str] = set()
    queue = []
    for node in sorted(nodes, key=lambda node: (node.path.rpartition("/")[0], _order(node.path))):
        name = node.path.rpartition("/")[0]
        owner, waited_s = read_who(node.data)  # Curator writes its address
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

    `hosts`: "host:port,host:port", and "/folder" after that for a part of the tree, which must be there; `ttl_s`:
    timeout of the session, as far as the server allows it; a lease is two thirds of it. `timeout_s`: deadline of a
    call; `instance`: who we are in the queue, the host's name by default; `auth`: "user:password" for ZooKeeper's
    digest scheme, for which alone our nodes are then; `told`: hears of renewals (see `Renewer`).
    """

    name = "zookeeper"
    # Not a restart: a connection that breaks ends every lock that is held through it, however soon it is back.
    guarantees = Guarantees(fair=True, fencing=True, survives_silence=True, shows_queue=True, remembers=True)
    portrait = Portrait(
        works=(
            "Each acquire creates an ephemeral node with the next number under the lock's path. The lowest number "
            "owns; everybody else watches the node just ahead of their own, and that one only. The nodes of a process "
            "go with its session. Curator's InterProcessMutex stands in the same queue."
        ),
        costs="2 requests in one round trip to acquire, 1 to release; 1 watch and 1 look for a wait",
        fails=(
            "without a quorum nobody gets the lock; whose connection breaks loses it at once, even if the server is "
            "back in a moment; a server that is silent costs it after two thirds of the session's timeout; a dead "
            "holder stands in the way for the whole of that"
        ),
        choose="if ZooKeeper is there, or Java programs queue for the same locks through Curator",
    )

    def __init__(
        self,
        hosts: Sequence[str] | str,
        *,
        ttl_s: float = 5.0,
        renew_ratio: float = 1 / 3,
        instance: str | None = None,
        timeout_s: float = 2.0,
        auth: str | None = None,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(Renewer(ratio=renew_ratio, told=told))
        self._client = ZooKeeperClient(hosts, session_s=ttl_s, timeout_s=timeout_s, auth=auth)
        self._instance = instance or socket.gethostname()

    def lock(self, name: str) -> ZooKeeperLock:
        """The lock of that name; each call makes an object of its own."""
        return ZooKeeperLock(self._client, self.renewer, name, instance=self._instance)

    def contenders(self, prefix: str) -> list[Contender]:
        """The queues of all locks whose names begin with `prefix`, which ends in "/"."""
        return _contenders(self._client.list(prefix, deep=True))

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless ZooKeeper's leader answers."""
        self._client.ping(timeout_s)

    def newest(self, name: str, timeout_s: float) -> tuple[str, int]:
        """This ensemble, and the number of a write made now. Raises `LockUnavailable` without a quorum."""
        ensemble, number = self._client.newest(name, timeout_s)
        return _source(ensemble), number

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """Keep texts in the nodes that are named so."""
        return self._client.replace(marks, instead_of)

    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """What is kept in these nodes."""
        return self._client.get(names)

    def close(self) -> None:
        """End the session, and with it all that is held, which its holders are told. Those who wait leave first."""
        self._client.close()
        self.renewer.close()

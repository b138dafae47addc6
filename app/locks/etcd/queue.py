"""A fair queue under an etcd prefix: each contender a key bound to a lease, served in the order of create revisions.

The layout is that of etcd's Go recipe and of its own Lock service, `<name>/<lease id in hex>`, so that
`etcdctl lock <name>`, Go's concurrency.Mutex and jetcd stand in the same line with us.
"""

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from app.errors import LockError, LockUnavailable
from app.locks.etcd.client import EtcdClient, KeyValue
from app.locks.lease import Lease
from app.locks.lock import Contender, read_who
from app.locks.renewer import Renewer
from app.locks.waiting import AWAY_PAUSE_S, Wait, Wake

# A deletion that races with the creation of its watch can still be told only after 100 ms. So look again after 3, 6,
# 12, ... ms until this much time has passed since the watch was made; after that its events are prompt.
_WATCH_SETTLES_S: Final = 0.2
_FIRST_LOOK_S: Final = 0.003
# Then look this often, for what no watch tells: our own key deleted by hand, or a member frozen with our watch.
_LOOK_AGAIN_S: Final = 1.0


class PlaceLost(Exception):
    """Our key or its lease is gone, and the place in the queue with it: not a failure, but a reason to start again."""


class LockClosed(LockError):
    """The connections are being closed. Not "away": that is waited for."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Place:
    """A contender's place in the queue. When nobody has it any more its lease is not renewed but given back."""

    key: str
    lease: Lease
    revision: int = 0
    predecessor: KeyValue | None = None


@dataclass(frozen=True, slots=True)
class SharedLease:
    """A session's lease in etcd, to which the keys of several places are bound.

    `late`: keys that were given back before it was sure that they had come into being, or would not do so again.
    """

    id: int
    lease: Lease
    late: set[str]


class _Key:
    """A key with a lease of its own. The place's lease knows it, and not the place: that may become garbage."""

    def __init__(self, client: EtcdClient, name: str, lease_id: int) -> None:
        self._client = client
        self.name = name
        self.lease_id = lease_id
        self.revision: int | None = None  # None: not known yet
        self.unsure = False  # a try to create it was not answered
        self.forget: Callable[[], None] = lambda: None  # when it has ended

    def not_answered(self) -> None:
        """A try to create it was not answered."""
        self.unsure = True

    def renew(self, timeout_s: float) -> bool:
        """Another TTL, if lease and key are still there."""
        if not self._client.keep_alive(self.lease_id, timeout_s / 2):
            return False
        # A key that was deleted by hand leaves its lease alive, and somebody else with the lock.
        return self.revision is None or self._client.exists(self.name, self.revision, timeout_s / 2)

    def end(self, timeout_s: float) -> None:
        """Give the lease back: the key goes with it, even one whose creation is still on its way."""
        self._client.revoke(self.lease_id, timeout_s)


class _KeyOfSession(_Key):
    """One of the keys of a session, whose lease is kept by the session."""

    def __init__(self, client: EtcdClient, name: str, shared: SharedLease) -> None:
        super().__init__(client, name, shared.id)
        self._shared = shared

    def renew(self, timeout_s: float) -> bool:
        """Whether the key is there, which the session's lease doesn't tell."""
        return self.revision is None or self._client.exists(self.name, self.revision, timeout_s)

    def end(self, timeout_s: float) -> None:
        """Delete the key, and nothing else."""
        self.forget()
        if self.unsure:
            # A try to create it may still be on its way, and the session would keep it alive.
            self._shared.late.add(self.name)
        self._client.delete(self.name, timeout_s)


class PrefixQueue:
    """The queue of one name. Locks and elections are made of it.

    Each place has a lease of its own, unless there is a `shared` one.
    """

    def __init__(
        self, client: EtcdClient, renewer: Renewer, name: str, *, ttl_s: float, shared: SharedLease | None = None
    ) -> None:
        self._client = client
        self._renewer = renewer
        self._name = name
        # The prefix ends in "/", else "item/1" would queue with "item/10".
        self.prefix = f"{name}/"
        self._ttl_s = math.ceil(ttl_s)  # etcd counts whole seconds
        self._shared = shared

    def take(self, value: bytes, wait: Wait, abandoned: Callable[[], bool] = lambda: False) -> Place:
        """Queue under a key with that value until everybody who came before is gone; the place is then the first.

        Raises `LockTimeout`, `LockCancelled`, `LockUnavailable`, or `LockLost` if the shared lease is lost, and leaves
        nothing.
        """
        wake = Wake()
        with self._client.waiters.waiting(wake.set):
            while True:
                if wait.cancel.is_set():
                    wait.check(self._name)
                if self._shared is not None:
                    self._shared.lease.ensure_held()
                place = None
                try:
                    place = self._enter(value, wait, abandoned)
                    if place.predecessor is not None:
                        self._wait_turn(place, wait, wake)
                    return place
                except BaseException as error:
                    if place is not None:
                        self.leave(place.lease)
                    if isinstance(error, LockClosed):
                        raise LockUnavailable(str(error)) from None
                    if not isinstance(error, PlaceLost):
                        raise
                    # Go's mutex waits on. Our place is gone: to the end of the queue, while time is left.
                    wait.check(self._name)

    def _enter(self, value: bytes, wait: Wait, abandoned: Callable[[], bool]) -> Place:
        """Take the next place: have a lease, keep it renewed, and create our key. Two calls.

        Raises `LockUnavailable`, or `PlaceLost` if the key vanished at once; whatever reached etcd nevertheless is
        given back in the background.
        """
        shared = self._shared
        key = self._own_key() if shared is None else self._key_of_session(shared)
        asked_at = time.monotonic()
        lease = Lease(
            key.name,
            self._ttl_s,
            asked_at=asked_at,
            renew=key.renew,
            end=key.end,
            abandoned=abandoned,
            under=None if shared is None else shared.lease,
        )
        place = Place(key.name, lease)
        lease.held_by(place)
        if shared is not None:
            key.forget = shared.lease.on_lost(lambda: lease.lose(shared.lease.reason))
        try:
            if shared is None:
                lease.ttl_s = self._client.grant(key.lease_id, self._ttl_s, wait.call_s(self._client.timeout_s))
                lease.renewed(asked_at)
            self._renewer.keep(lease)
            own, place.predecessor = self._client.put_and_see(
                key.name,
                value,
                key.lease_id,
                self.prefix,
                wait.call_s(self._client.timeout_s),
                not_answered=key.not_answered,
            )
            if own is None or lease.lost:
                raise PlaceLost
        except BaseException:
            self._renewer.end(lease)
            raise
        key.revision = place.revision = own.create_revision
        return place

    def _own_key(self) -> "_Key":
        lease_id = secrets.randbits(62) + 1
        return _Key(self._client, f"{self.prefix}{lease_id:x}", lease_id)

    def _key_of_session(self, shared: SharedLease) -> "_Key":
        # Of its own for each place: two threads of one session are two contenders.
        name = f"{self.prefix}{shared.id:x}-{secrets.token_hex(4)}"
        return _KeyOfSession(self._client, name, shared)

    def _wait_turn(self, place: Place, wait: Wait, wake: Wake) -> None:
        """Return when everybody who came before is gone.

        Raises `LockTimeout`, `LockCancelled`, or `PlaceLost` when our own key or lease is gone. An etcd that is away
        is waited for, as long as our lease may still be alive.
        """
        forget_lease = place.lease.on_lost(wake.set)
        forget_cancel = wait.cancel.subscribe(wake.set)
        try:
            predecessor = place.predecessor
            while predecessor is not None:
                self._check(place, wait)
                try:
                    predecessor = self._wait_for(predecessor, place, wait, wake)
                except LockUnavailable:
                    wake.wait(min(AWAY_PAUSE_S, wait.left_s))
                    # A watch is only there to be quick: without one, look.
                    with contextlib.suppress(LockUnavailable):
                        predecessor = self._ahead(place, wait)
            self._check(place, None)
        finally:
            forget_cancel()
            forget_lease()

    def _wait_for(self, predecessor: KeyValue, place: Place, wait: Wait, wake: Wake) -> KeyValue | None:
        """Wait until `predecessor` is gone; the one who is then just ahead of us, if any."""
        with self._client.watching(predecessor.key, wake.set, wait.call_s(self._client.timeout_s)) as watching:
            for pause_s in looks():
                ahead = self._ahead(place, wait)
                if ahead is None or ahead.key != predecessor.key or not watching():
                    return ahead
                self._check(place, wait)
                if wake.wait(min(pause_s, wait.left_s)):
                    self._check(place, wait)
        raise AssertionError("unreachable")

    def _ahead(self, place: Place, wait: Wait) -> KeyValue | None:
        """Who is just ahead of us now; `PlaceLost` if we are not in the queue any more."""
        present, ahead = self._client.see(place.key, place.revision, self.prefix, wait.call_s(self._client.timeout_s))
        if not present:
            raise PlaceLost
        return ahead

    def _check(self, place: Place, wait: Wait | None) -> None:
        if place.lease.lost:
            raise PlaceLost
        if self._client.waiters.closing:
            raise LockClosed("the connection to etcd is closed")
        if wait is not None:
            wait.check(self._name)

    def leave(self, lease: Lease) -> None:
        """Give the place up: its key is deleted, and nothing but that. Never raises."""
        self._renewer.hand_back(lease, self._client.timeout_s)

    def contenders(self) -> list[Contender]:
        """Who is in the queue, in order."""
        return [one for one in contenders(self._client, self.prefix) if "/" not in one.key[len(self.prefix) :]]


def looks() -> Iterator[float]:
    """How long to wait for a watch that was just made, in seconds, between looks at what it is to tell."""
    began = time.monotonic()
    pause_s = _FIRST_LOOK_S
    while True:
        yield pause_s if time.monotonic() - began <= _WATCH_SETTLES_S else _LOOK_AGAIN_S
        pause_s *= 2


def source(client: EtcdClient) -> str:
    """Whose tokens the revisions of this cluster are."""
    return f"etcd:{client.cluster_id:x}"


def contenders(client: EtcdClient, prefix: str) -> list[Contender]:
    """Who is in the queues under a prefix: for each queue the holder first, then the waiters in order."""
    holders: set[str] = set()
    queue = []
    for kv in client.list(prefix):
        name = kv.key.rpartition("/")[0]
        owner, waited_s = read_who(kv.value)
        queue.append(
            Contender(
                key=kv.key,
                token=kv.create_revision,
                owner=owner,
                waited_s=waited_s,
                ttl_left_s=client.ttl_left(kv.lease_id) if kv.lease_id else None,
                holds=name not in holders,
            )
        )
        holders.add(name)
    return sorted(queue, key=lambda contender: (contender.key.rpartition("/")[0], contender.token))

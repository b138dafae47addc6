"""A fair queue under an etcd prefix: each contender a key bound to a lease, served in the order of create revisions.

The layout is that of etcd's Go recipe and of its own Lock service, `<name>/<lease id in hex>`, so that
`etcdctl lock <name>`, Go's concurrency.Mutex and jetcd stand in the same line with us.
"""

import contextlib
import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from app.errors import LockError, LockUnavailable
from app.locks.etcd_client import EtcdClient, KeyValue
from app.locks.lease import Lease
from app.locks.lock import Contender
from app.locks.renewer import Renewer
from app.locks.wait import Wait, Wake

# A deletion that races with the creation of its watch can still be told only after 100 ms. So look again after 3, 6,
# 12, ... ms until this much time has passed since the watch was made; after that its events are prompt.
_WATCH_SETTLES_S: Final = 0.2
_FIRST_LOOK_S: Final = 0.003
# Then look this often, for what no watch tells: our own key deleted by hand, or a member frozen with our watch.
_LOOK_AGAIN_S: Final = 1.0
_MIN_CALL_S: Final = 1.0  # a caller's last milliseconds are no deadline for a call
_AWAY_PAUSE_S: Final = 0.1


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


class PrefixQueue:
    """The queue of one name. Locks and elections are made of it."""

    def __init__(self, client: EtcdClient, renewer: Renewer, name: str, *, ttl_s: float) -> None:
        self._client = client
        self._renewer = renewer
        # The prefix ends in "/", else "item/1" would queue with "item/10".
        self.prefix = f"{name}/"
        self._ttl_s = math.ceil(ttl_s)  # etcd counts whole seconds

    def enter(self, owner: dict[str, Any], wait: Wait, abandoned: Callable[[], bool] = lambda: False) -> Place:
        """Take the next place: grant a lease, keep it renewed, and create our key. Two calls.

        Raises `LockUnavailable`, or `PlaceLost` if the key vanished at once; whatever reached etcd nevertheless is
        given back in the background.
        """
        lease_id = secrets.randbits(62) + 1
        key = f"{self.prefix}{lease_id:x}"
        revision: int | None = None

        def renew(timeout_s: float) -> bool:
            if not self._client.keep_alive(lease_id, timeout_s / 2):
                return False
            # A key that was deleted by hand leaves its lease alive, and somebody else with the lock.
            return revision is None or self._client.exists(key, revision, timeout_s / 2)

        def end(timeout_s: float) -> None:
            self._client.revoke(lease_id, timeout_s)

        asked_at = time.monotonic()
        lease = Lease(key, self._ttl_s, asked_at=asked_at, renew=renew, end=end, abandoned=abandoned)
        place = Place(key, lease)
        lease.held_by(place)
        try:
            lease.ttl_s = self._client.grant(lease_id, self._ttl_s, self._call_s(wait))
            lease.renewed(asked_at)
            self._renewer.keep(lease)
            value = json.dumps(owner, separators=(",", ":")).encode()
            own, predecessor = self._client.put_and_see(key, value, lease_id, self.prefix, self._call_s(wait))
            if own is None or lease.lost:
                raise PlaceLost
        except BaseException:
            self._renewer.end(lease)
            raise
        revision = own.create_revision
        place.revision, place.predecessor = own.create_revision, predecessor
        return place

    def wait_turn(self, place: Place, wait: Wait, wake: Wake) -> None:
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
                    wake.wait(min(_AWAY_PAUSE_S, wait.left_s))
                    # A watch is only there to be quick: without one, look.
                    with contextlib.suppress(LockUnavailable):
                        predecessor = self._ahead(place, wait)
            self._check(place, None)
        finally:
            forget_cancel()
            forget_lease()

    def _wait_for(self, predecessor: KeyValue, place: Place, wait: Wait, wake: Wake) -> KeyValue | None:
        """Wait until `predecessor` is gone; the one who is then just ahead of us, if any."""
        with self._client.watching(predecessor.key, wake.set, self._call_s(wait)) as watching:
            began = time.monotonic()
            pause_s = _FIRST_LOOK_S
            while True:
                ahead = self._ahead(place, wait)
                if ahead is None or ahead.key != predecessor.key or not watching():
                    return ahead
                self._check(place, wait)
                if time.monotonic() - began > _WATCH_SETTLES_S:
                    pause_s = _LOOK_AGAIN_S
                if wake.wait(min(pause_s, wait.left_s)):
                    self._check(place, wait)
                pause_s *= 2

    def _ahead(self, place: Place, wait: Wait) -> KeyValue | None:
        """Who is just ahead of us now; `PlaceLost` if we are not in the queue any more."""
        present, ahead = self._client.see(place.key, place.revision, self.prefix, self._call_s(wait))
        if not present:
            raise PlaceLost
        return ahead

    def _check(self, place: Place, wait: Wait | None) -> None:
        if place.lease.lost:
            raise PlaceLost
        if self._client.waiters.closing:
            raise LockClosed("the connection to etcd is closed")
        if wait is not None:
            wait.check(self.prefix.rstrip("/"))

    def _call_s(self, wait: Wait) -> float:
        return min(self._client.timeout_s, max(_MIN_CALL_S, wait.left_s))

    def leave(self, lease: Lease) -> None:
        """Give the place up: revoke its lease, which deletes the key and can delete nothing but ours. Never raises."""
        self._renewer.drop(lease)
        try:
            lease.end(min(self._client.timeout_s, 1.0))
        except LockUnavailable:
            self._renewer.end(lease)

    def contenders(self) -> list[Contender]:
        """Who is in the queue, in order."""
        return [one for one in contenders(self._client, self.prefix) if "/" not in one.key[len(self.prefix) :]]


def contenders(client: EtcdClient, prefix: str) -> list[Contender]:
    """Who is in the queues under a prefix: for each queue the holder first, then the waiters in order."""
    holders: set[str] = set()
    queue = []
    now = time.time()
    for kv in client.list(prefix):
        name = kv.key.rpartition("/")[0]
        owner: Any = None
        with contextlib.suppress(ValueError):
            owner = json.loads(kv.value)  # other programs may write what they like, or nothing
        owner = owner if isinstance(owner, dict) else {}
        since = owner.get("since")
        queue.append(
            Contender(
                key=kv.key,
                token=kv.create_revision,
                owner=owner,
                waited_s=max(0.0, now - since) if isinstance(since, int | float) else None,
                ttl_left_s=client.ttl_left(kv.lease_id) if kv.lease_id else None,
                holds=name not in holders,
            )
        )
        holders.add(name)
    return sorted(queue, key=lambda contender: (contender.key.rpartition("/")[0], contender.token))

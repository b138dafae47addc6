"""The etcd lock: contenders put keys with leases under one prefix; the key with the lowest create revision owns it."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from ..connection import Attempt, Connection, PlaceLost, Terms
from ..contender import Contender, describe, parse_owner
from ..errors import LockUnavailable
from ..grant import Grant
from ..waiting import Wait
from .client import EtcdClient, KeyValue, NotFound, created, delete, get, newest, oldest, put
from .endpoint import Access
from .lookout import KeyLookout
from .shared_lease import Key, SharedLease

# The suffix of the key, beside an election's queue, that holds its leader's record.
RECORD = "!record"


class EtcdConnection(Connection):
    """An etcd client on one event loop, with a default session (one lease, shared by its locks) for each TTL."""

    def __init__(self, terms: Terms, members: Sequence[tuple[str, str]], access: Access) -> None:
        super().__init__(terms)
        self.client = EtcdClient(members, access, terms.timeout_s)
        self._sessions: dict[int, SharedLease] = {}
        self._granting = asyncio.Lock()

    @override
    def attempt(self, name: str, ttl_s: float, session: SharedLease | None = None) -> Attempt[Any]:
        """Return a new attempt to get the lock of that name, under that session's lease or the default one's."""
        return EtcdPlace(self, name, describe(self.terms.instance).encode(), ttl_s=ttl_s, session=session)

    async def session(self, ttl_s: float, timeout_s: float) -> SharedLease:
        """Return the default session for that TTL, rounded up to whole seconds. Raises `LockUnavailable`."""
        whole_s = math.ceil(ttl_s)
        session = self._sessions.get(whole_s)
        if session is not None and session.usable:
            return session
        try:
            async with asyncio.timeout(timeout_s):
                await self._granting.acquire()
        except TimeoutError:
            raise LockUnavailable("etcd grants no lease") from None
        try:
            session = self._sessions.get(whole_s)
            if session is None or not session.usable:
                session = await SharedLease.begin(self.client, self.renewer, whole_s, timeout_s, default=True)
                self._sessions[whole_s] = session
            return session
        finally:
            self._granting.release()

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        """Return the queues under a prefix: of each the holder first, then the waiters in order."""
        holders: set[str] = set()
        left_s: dict[int, int | None] = {}
        queue = []
        for kv in await self.client.range(oldest(prefix)):
            if kv.key.endswith(RECORD):
                continue
            if kv.lease_id and kv.lease_id not in left_s:
                found = await self.client.time_to_live(kv.lease_id)
                left_s[kv.lease_id] = None if found is None else found[0]
            name = kv.key.rpartition("/")[0]
            queue.append(contender(kv, left_s.get(kv.lease_id), holds=name not in holders))
            holders.add(name)
        return sorted(queue, key=lambda one: (one.key.rpartition("/")[0], one.token))

    @override
    async def force_release(self, name: str) -> Contender | None:
        while queue := await self.queue(name):
            key, revision = queue[0].key, queue[0].token
            answer = await self.client.txn(created(key, revision), [delete(key)])
            if answer.succeeded or answer.again:  # it may have been the try whose answer was lost: take no second one
                return queue[0]
        return None

    @override
    async def ping(self, timeout_s: float) -> None:
        await self.client.ping(timeout_s)

    @override
    async def disconnect(self) -> None:
        sessions = [one for one in self._sessions.values() if one.usable and not any(key.granted for key in one.keys)]
        for lease_id in (*self.client.granting, *(one.lease_id for one in sessions)):
            try:
                await self.client.revoke(lease_id, self.timeout_s / 2)
            except LockUnavailable:
                break  # they run out
        await self.client.close()


class EtcdPlace(Attempt[EtcdConnection]):
    """A contender's place in the queue of a name, as in etcd's Go `concurrency.Mutex`.

    The layout is Go's and that of etcd's Lock service, so that `etcdctl lock <name>`, Go's Mutex and jetcd stand in the
    same line as us; as there, a name must not be a folder of another one ("/jobs" beside "/jobs/nightly"), and all
    locks of a session end with its lease. It differs where Go's has had bugs: each acquire has a key of its own (two
    threads are two contenders), no watch starts at a past revision (its events can come 100 ms late), and a waiter
    whose own key has vanished queues again instead of waiting for ever.

    `value`: of its key; `session`: whose lease the key is bound to, in the place of the default session.
    """

    def __init__(
        self, connection: EtcdConnection, name: str, value: bytes, *, ttl_s: float, session: SharedLease | None = None
    ) -> None:
        super().__init__(connection, name, ttl_s)
        self._client = connection.client
        self._prefix = f"{name}/"  # ends in "/", else "item/1" would queue with "item/10"
        self._value = value
        self._session = session
        self._key: Key
        self._ahead: KeyValue | None = None  # the contender just ahead of us
        self._lookout = KeyLookout(connection.client, self.wake, connection.waiters)  # for its end
        self.cleanup.callback(self._lookout.close)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        """Queue, and return the grant once nobody is ahead; until then, watch only the contender just ahead."""
        if self._session is not None:
            self._session.ensure_held()
        if self.lease is None:
            await self._enter(wait)
        else:
            await self._look(wait.call_s(self.timeout_s))
        if self._key.session.predates_restore:
            raise PlaceLost
        if self._ahead is None and self.lease is not None:
            self._key.granted = True
            return Grant(self._key.name, self._key.revision, self._client.source, self.lease)
        if self._ahead is None or not wait.left_s:
            return 0.0
        return await self._lookout.pause_s(self._ahead.key, wait.call_s(self.timeout_s))

    async def _enter(self, wait: Wait) -> None:
        """Create our key, and read which contender is just ahead, in one transaction.

        There our key is the newest under its prefix, so the newest two are the key and its predecessor.
        """
        session = self._session or await self.connection.session(self.ttl_s, wait.call_s(self.timeout_s))
        key = self._key = session.key(self._prefix)
        self.lease = key.lease()
        self.cleanup.callback(self.lease.on_lost(self.wake.set))
        self.renewer.keep(self.lease)
        try:
            answer = await self._client.txn(
                created(key.name, 0),
                [put(key.name, self._value, session.lease_id), newest(self._prefix)],
                [get(key.name)],
                timeout_s=wait.call_s(self.timeout_s),
                unanswered=key.not_answered,
            )
        except NotFound:  # the lease ran out before we came to use it
            session.gone()
            raise PlaceLost from None
        if not answer.succeeded and not answer.again:
            key.unacknowledged = True  # the key was there before, though its name is ours alone, so etcd was set back
            raise PlaceLost
        self.answered = True  # from here on we wait out an outage
        key.revision = answer.found[0].create_revision
        if answer.succeeded:
            self._ahead = answer.found[1] if len(answer.found) > 1 else None
        else:  # the answer of an earlier try was lost, and others may have come since
            await self._look(wait.call_s(self.timeout_s))

    async def _look(self, timeout_s: float) -> None:
        """Read which contender is just ahead of us now. Raises `PlaceLost` if we are no longer in the queue."""
        key = self._key
        found = await self._client.range(newest(self._prefix, until=key.revision), timeout_s)
        if not found or (found[0].key, found[0].create_revision) != (key.name, key.revision):
            raise PlaceLost
        self._ahead = found[1] if len(found) > 1 else None


def contender(kv: KeyValue, ttl_left_s: float | None, *, holds: bool) -> Contender:
    """Describe the contender that wrote a key, be it ours or another program's."""
    owner, waited_s = parse_owner(kv.value)
    owner.pop("id", None)
    return Contender(kv.key, kv.create_revision, owner, waited_s, ttl_left_s, holds)

"""A shared lease: one etcd lease for several keys, which live and end together, as in Go's `concurrency.Session`."""

import asyncio
import heapq
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Self

from .. import clock
from ..errors import LockLost, LockUnavailable
from ..lease import Lease, Leased
from ..renewer import Renewer
from .client import EtcdClient, created, delete, new_lease_id, valued

_DELETES_MAX: Final = 100  # etcd takes 128 in one transaction
_LATE_S: Final = 60.0  # a call that was given up does not arrive later than that
TTL_MAX_S: Final = 9_000_000_000  # etcd's
_IDLE_S: Final = 2.0  # a default session that has had no key for longer is ended


class SharedLease(Leased):
    """An etcd lease that is kept renewed, with the keys of locks and elections that are bound to it.

    `default`: all locks with one TTL that were given no session share it, and it ends when it is idle. A `retired`
    session takes no new locks, and ends with its last key: a late call may still create a key under its lease that
    nobody knows of. `ends_lease`: the lease ends with the session; else it goes on as another program's.
    """

    __slots__ = (
        "_deleted",
        "_era",
        "_free",
        "_idle_since",
        "_numbers",
        "_unanswered",
        "client",
        "default",
        "ends_lease",
        "keys",
        "lease_id",
        "renewer",
        "retired",
    )

    def __init__(
        self,
        client: EtcdClient,
        renewer: Renewer,
        lease_id: int,
        ttl_s: int,
        *,
        default: bool = False,
        ends_lease: bool = True,
    ) -> None:
        self.client = client
        self.renewer = renewer
        self.lease_id = lease_id
        self.default = default
        self.ends_lease = ends_lease
        self.retired = False
        self.keys: set[Key] = set()
        # Others may have the lease of a session of one's own: they count by themselves, and Go's key has no number.
        self._numbers = count(0 if default else secrets.randbits(48))
        self._free: list[int] = []  # numbers of keys that were deleted for certain
        # Keys that may be created after they were deleted, each with its value if it is shared, and until when.
        self._deleted: dict[tuple[str, bytes | None], float] = {}
        self._era = client.era
        self._unanswered = False  # the session's lease may still be granted
        self._idle_since = clock.now()
        super().__init__(Lease(f"session {lease_id:x}", self, ttl_s))
        self.lease.idle = default  # its locks report its end
        self.lease.shared = not default

    @classmethod
    async def begin(
        cls, client: EtcdClient, renewer: Renewer, ttl_s: int, timeout_s: float, *, default: bool = False
    ) -> Self:
        """Begin a session with a new lease of `ttl_s` seconds. Raises `LockUnavailable` and `ValueError`."""
        if not 0 < ttl_s <= TTL_MAX_S:
            raise ValueError(f"in etcd ttl_s must be above 0 and {TTL_MAX_S} at most, not {ttl_s}")
        session = cls(client, renewer, new_lease_id(), ttl_s, default=default)
        sent_at = clock.now()
        try:
            session.lease.ttl_s = await client.grant(session.lease_id, ttl_s, timeout_s)
        except BaseException:
            session._unanswered = True
            renewer.end(session.lease)
            raise
        session.lease.renewed(sent_at)
        renewer.keep(session.lease)
        return session

    @classmethod
    async def join(cls, client: EtcdClient, renewer: Renewer, lease_id: int, *, ends_lease: bool) -> Self:
        """Begin a session on a lease that another program has granted. Raises `LockLost` and `LockUnavailable`."""
        found = await client.time_to_live(lease_id)
        # Its time begins here, before the lease is renewed.
        session = None if found is None else cls(client, renewer, lease_id, found[1], ends_lease=ends_lease)
        if session is None or not await client.keep_alive(lease_id):
            raise LockLost(f"etcd has no lease {lease_id:x}")
        renewer.keep(session.lease)
        return session

    @property
    def predates_restore(self) -> bool:
        """True if etcd has been set back to an older state since the session began."""
        return self._era != self.client.era

    @property
    def usable(self) -> bool:
        """True while new keys may be bound to it."""
        return not (self.retired or self.predates_restore or self.lost)

    def gone(self) -> None:
        """Note that etcd no longer knows the lease. A program's own session is never replaced."""
        self.retired = True
        if not self.default:
            self.lease.lose("etcd no longer knows it")

    def key(self, prefix: str) -> "Key":
        """Return a contender's key, not created in etcd yet: `<prefix><lease id in hex>`, as in Go, and a number.

        The first one of a default session has no number. Numbers are used again, so that a watch that another process
        keeps on that key is useful the next time.
        """
        number = heapq.heappop(self._free) if self._free else next(self._numbers)
        return self._with(Key(self, f"{prefix}{self.lease_id:x}{f'-{number}' if number else ''}", number=number))

    def shared_key(self, name: str, value: bytes) -> "Key":
        """Return a key whose name all contenders share; its value, which nobody else writes, tells whose it is."""
        return self._with(Key(self, name, value=value))

    def _with(self, key: "Key") -> "Key":
        key.name.encode()  # as in `EtcdBackend.check_name`, and before it is noted
        self.keys.add(key)
        return key

    async def renew(self, timeout_s: float) -> bool:
        """Renew the lease; or revoke it, if it is a default session that has been idle for long."""
        if self.predates_restore:
            return False
        if self.default and not self.keys and clock.now() - self._idle_since > _IDLE_S:
            self.retired = True
            self.lease.give_up()
            self.renewer.end(self.lease)
            return False
        sent_at = clock.now()
        if not await self.client.keep_alive(self.lease_id, timeout_s):
            return False
        self.lease.renewed(sent_at)  # now, before the next requests
        with suppress(LockUnavailable, TimeoutError):
            async with asyncio.timeout(timeout_s / 2):  # for all of them
                await self._delete_again(timeout_s / 2)
        return True

    async def _delete_again(self, timeout_s: float) -> None:
        """Delete the keys that a late call may have created meanwhile.

        A call that we gave up on may arrive at any time, through another member than the deletion of its key, and the
        key would then live as long as the lease does.
        """
        now = clock.now()
        self._deleted = {key: until for key, until in self._deleted.items() if now < until}
        names = [name for name, value in self._deleted if value is None][:_DELETES_MAX]
        if names:
            deletes = [delete(name) for name in names]
            await self.client.txn(created(names[0], 0), deletes, deletes, timeout_s=timeout_s)
        for name, value in list(self._deleted):
            if value is not None:
                await self.client.txn(valued(name, value), [delete(name)], timeout_s=timeout_s)

    async def end(self, timeout_s: float) -> None:
        """Revoke the lease, or, if it is another program's, delete our keys."""
        if self.ends_lease:
            if not await self.client.revoke(self.lease_id, timeout_s) and self._unanswered:
                raise LockUnavailable("a lease that was asked for may still be granted")
            return
        for key in list(self.keys):
            await key.end(timeout_s)
        await self._delete_again(timeout_s)
        if self._deleted:
            raise LockUnavailable("a key that was deleted may still be created")

    async def forget(self, key: "Key", timeout_s: float) -> None:
        """Note that a key was deleted; a default session that takes no more keys ends with its last one."""
        if key in self.keys:
            self.keys.remove(key)
            self._idle_since = clock.now()
            if key.unacknowledged:
                self.retired = True
                self._deleted[key.name, key.value] = clock.now() + _LATE_S
            elif key.number is not None and not self.predates_restore:
                heapq.heappush(self._free, key.number)
        if self.default and not self.keys and not self.usable:
            self.renewer.drop(self.lease)
            await self.client.revoke(self.lease_id, timeout_s)


class Key:
    """A contender's key, bound to the lease of a session.

    `number`: of a key with a name of its own; `value`: of a shared key; `unacknowledged`: a try to create it was
    not answered, and may still arrive.
    """

    def __init__(
        self, session: SharedLease, name: str, *, number: int | None = None, value: bytes | None = None
    ) -> None:
        self.session = session
        self.name = name
        self.number = number
        self.value = value
        self.revision = 0  # the revision of its creation; not known yet
        self.unacknowledged = False
        self.granted = False
        self.forget: Callable[[], None] = lambda: None  # unsubscribes from the end of the session

    def lease(self) -> Lease:
        """Return the key's lease, which lasts no longer than the session's."""
        under = self.session.lease
        lease = Lease(self.name, self, under.ttl_s, under=under)
        self.forget = under.on_lost(lambda: lease.lose(under.reason))
        return lease

    def not_answered(self) -> None:
        """Note that a try to create it may still arrive."""
        self.unacknowledged = True

    async def exists(self, timeout_s: float) -> bool:
        """Return whether etcd still has the key that we created, with our lease.

        In an etcd that was set back, another key may have been created at the same revision. This is a plain read:
        etcd 3.5.1 panics if the deadline of a read-only transaction passes while it is read (etcd issue 14110).
        """
        found = await self.session.client.read(self.name, timeout_s)
        return found is not None and (found.create_revision, found.lease_id) == (self.revision, self.session.lease_id)

    async def renew(self, timeout_s: float) -> bool:
        """Return whether the key is there, as its session's lease doesn't tell. (A waiter looks by itself.)"""
        return not self.granted or await self.exists(timeout_s)

    async def end(self, timeout_s: float) -> None:
        """Delete it, and nothing else. It is off our lease if somebody has written over it.

        A deletion may be late, too, and meet the next key of that name: so it says which key it means, unless there
        will be no next one. After a create that was refused there is nothing to delete.
        """
        self.forget()
        client = self.session.client
        if self.revision and not self.session.predates_restore:
            await client.txn(created(self.name, self.revision), [delete(self.name)], timeout_s=timeout_s)
        elif self.revision or self.unacknowledged:
            if self.value is not None:
                await client.txn(valued(self.name, self.value), [delete(self.name)], timeout_s=timeout_s)
            else:
                await client.delete(self.name, timeout_s)  # and the name is not used again: see `SharedLease.forget`
        await self.session.forget(self, timeout_s)

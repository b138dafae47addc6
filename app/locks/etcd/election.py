"""Elections: of several candidates one leads, and says something that all can hear. Made of the lock's own queue."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from app.errors import LockLost, LockUnavailable
from app.locks.etcd.client import EtcdClient, KeyValue
from app.locks.etcd.queue import Place, PrefixQueue, SharedLease, looks, source
from app.locks.lock import Grant
from app.locks.renewer import Renewer
from app.locks.waiting import AWAY_PAUSE_S, Cancel, Wait, Wake


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as everybody can see it. `value`: what it has proclaimed; `token`: of its leadership.

    `revision` grows with each proclamation.
    """

    key: str
    value: str
    token: int
    revision: int


class Leadership(Grant):
    """Proof that one was elected. A grant: it is renewed, it can be lost, and its token fences.

    When nobody has this object any more, the leadership is given up.
    """

    __slots__ = ("_client", "_known", "_mutex", "_queue")

    def __init__(self, client: EtcdClient, queue: PrefixQueue, place: Place, value: str) -> None:
        super().__init__(place.key, place.revision, source(client), place.lease)
        self._client = client
        self._queue = queue
        self._mutex = threading.Lock()
        # As it was created: nobody but us changes it.
        self._known = KeyValue(place.key, value.encode(), place.revision, place.revision, 0)

    def proclaim(self, value: str) -> None:
        """Say something else. Raises `LockLost` if one leads no more, `LockUnavailable` if that can't be known."""
        self.ensure_held()
        with self._mutex:
            while (now := self._client.put_over(self._known, value.encode())) is not None:
                self._known = now
                # Else it was not as we knew it: an earlier call came through although we did not hear of it.
                if now.value == value.encode():
                    return
        # Outside the mutex: whoever asked to be told may proclaim, too.
        self._lease.lose("its key is gone")
        raise LockLost(f"{self.key} leads no more: its key is gone")

    def resign(self) -> None:
        """Give the leadership up; the next in line has it at once. Never raises, and may be called again."""
        self._lease.lose("its holder has resigned")  # before somebody else can lead
        self._queue.leave(self._lease)

    def __enter__(self) -> "Leadership":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resign()


class Election:
    """As etcd's Go `concurrency.Election`, whose candidates stand in the same line: first come, first elected.

    >>> election = backend.election("/jobs/auditor")
    >>> with election.campaign("me") as leadership:      # waits until it is elected
    ...     leadership.proclaim("me, and all is well")
    >>> election.leader()                                # None while nobody leads
    >>> for leader in election.observe(cancel=cancel):   # now, and each time that somebody else leads or says more
    ...     print(leader.value if leader else "nobody")
    """

    def __init__(
        self, client: EtcdClient, renewer: Renewer, name: str, *, ttl_s: float, shared: SharedLease | None = None
    ) -> None:
        if not name or name.endswith("/"):
            raise ValueError(f"an election's name must not be empty or end in '/': {name!r}")
        self.name = name
        self._client = client
        self._queue = PrefixQueue(client, renewer, name, ttl_s=ttl_s, shared=shared)

    def campaign(self, value: str, *, wait_s: float | None = None, cancel: Cancel | None = None) -> Leadership:
        """Stand for election, and wait until one is elected, at most `wait_s` seconds (None: as long as it takes).

        `value` is what one proclaims from the first moment. Raises `LockTimeout`, `LockCancelled`, `LockUnavailable`,
        and `LockLost` if the session is lost; nothing of this call is then left in the queue for longer than a TTL.
        """
        place = self._queue.take(value.encode(), Wait(wait_s, cancel))
        return Leadership(self._client, self._queue, place, value)

    def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """Who leads now, if anybody. Raises `LockUnavailable`."""
        first = self._client.first(self._queue.prefix, timeout_s)
        if first is None:
            return None
        return Leader(first.key, first.value.decode(errors="replace"), first.create_revision, first.mod_revision)

    def observe(self, *, cancel: Cancel | None = None) -> Iterator[Leader | None]:
        """Who leads now, and then each change of that or of what is proclaimed; None: nobody does. Blocks in between.

        What is true when one looks is told; what was true only while one was busy with the last answer is not. An etcd
        that is away is waited for. Ends with `cancel`, and when the connection is closed.
        """
        cancel = cancel or Cancel()
        wake = Wake()
        last: Leader | type[Leader] | None = Leader  # no answer yet
        forgets = [cancel.subscribe(wake.set), self._client.waiters.on_close(wake.set)]
        try:
            while not (cancel.is_set() or self._client.waiters.closing):
                try:
                    with self._client.watching(self._queue.prefix, wake.set, below=True) as watching:
                        for pause_s in looks():
                            now = self.leader()
                            if now != last:
                                last = now
                                yield now
                            if not watching() or cancel.is_set() or self._client.waiters.closing:
                                break
                            wake.wait(pause_s)
                except LockUnavailable:
                    wake.wait(AWAY_PAUSE_S)
        finally:
            for forget in forgets:
                forget()

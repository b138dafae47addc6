"""Elections: of several candidates one leads, and says something that all can hear. Made of the lock's own queue."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final

from app.errors import LockLost, LockUnavailable
from app.locks.contender import Contender
from app.locks.etcd.client import EtcdClient, KeyValue
from app.locks.etcd.lock import Place, contenders
from app.locks.etcd.lookout import Lookout
from app.locks.grant import Grant
from app.locks.lock import checked_name
from app.locks.pulse import Pulse
from app.locks.waiting import Cancel, Wait, Wake

if TYPE_CHECKING:
    from app.locks.etcd.backend import EtcdBackend
    from app.locks.etcd.session import Session

_AWAY_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader, as everybody can see it.

    `key`: its key in etcd; `value`: what it has proclaimed; `token`: the fencing token of its leadership; `revision`
    grows with each proclamation.
    """

    key: str
    value: str
    token: int
    revision: int


class Leadership(Grant):
    """Proof that one was elected. A grant: it is renewed, it can be lost, and its token fences."""

    __slots__ = ("_backend", "_client", "_known", "_mutex", "_record")

    def __init__(self, backend: "EtcdBackend", grant: Grant, value: str, record: str) -> None:
        super().__init__(grant.key, grant.token, grant.source, grant.lease)
        self._backend = backend
        self._client: EtcdClient = backend.client
        self._record = record
        self._mutex = threading.Lock()
        # As it was created: nobody but us changes it.
        self._known = KeyValue(grant.key, value.encode(), grant.token, grant.token, 0)

    def proclaim(self, value: str) -> None:
        """Say something else. Raises `LockLost` if one leads no more, `LockUnavailable` if that can't be known."""
        self.ensure_held()
        with self._mutex:
            while (now := self._client.put_over(self._known, value.encode())) is not None:
                self._known = now
                # Else it was not as we knew it: an earlier call came through although we did not hear of it.
                if now.value == value.encode():
                    return
        self._give_up_hope()

    def record(self, value: str) -> None:
        """Write down what shall outlast the leadership: see `Election.recorded`. Only the leader's word is taken.

        Raises `LockLost` and `LockUnavailable`; and the latter for more than etcd takes in one value (1.5 MiB).
        """
        self.ensure_held()
        if not self._client.put_while(self._record, value.encode(), self.key, self.token):
            self._give_up_hope()

    def _give_up_hope(self) -> None:
        # Outside the mutex: a subscriber may proclaim, too.
        self.lease.lose("its key is gone")
        raise LockLost(f"{self.key} leads no more: its key is gone")

    def resign(self) -> None:
        """Give the leadership up; the next in line has it at once. Never raises, and may be called again."""
        self.lease.lose("its holder has resigned")  # before another one can lead
        self._backend.renewer.hand_back(self.lease, self._backend.timeout_s)

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
    >>> for leader in election.observe(cancel=cancel):   # now, and each time that another one leads or says more
    ...     print(leader.value if leader else "nobody")
    """

    def __init__(self, backend: "EtcdBackend", name: str, session: "Session | None" = None) -> None:
        self._backend = backend
        self._client = backend.client
        self._session = session
        self._name = checked_name(name)
        self._record = f"{name}!record"  # beside the candidates' prefix, so that it is none of them

    def campaign(
        self, value: str, *, wait_s: float | None = None, cancel: Cancel | None = None, pulse: Pulse | None = None
    ) -> Leadership:
        """Stand for election with something to say, and wait until one is elected, at most `wait_s` seconds.

        Raises `LockTimeout`, `LockCancelled`, or `LockUnavailable`; nothing of this call is then left in the queue for
        longer than a TTL. The leadership is no thread's: it lasts until `resign` or the connection's end; or, with the
        `pulse` of an event loop, until that has stood still for a TTL.
        """
        place = Place(self._backend, self._name, value.encode(), self._session)
        grant = place.until_granted(Wait(wait_s, cancel))
        grant.lease.pulse = pulse
        return Leadership(self._backend, grant, value, self._record)

    def candidates(self) -> list[Contender]:
        """The leader and those who stand behind it, in their order. Raises `LockUnavailable`."""
        return contenders(self._client, f"{self._name}/")

    def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """Who leads now, if anybody. Raises `LockUnavailable`."""
        first = self._client.first(f"{self._name}/", timeout_s)
        if first is None:
            return None
        return Leader(first.key, first.value.decode(errors="replace"), first.create_revision, first.mod_revision)

    def recorded(self) -> str | None:
        """What a leader has written down last, whoever leads now; None if none has. Raises `LockUnavailable`."""
        return self._client.get(self._record)

    def observe(self, *, cancel: Cancel | None = None) -> Iterator[Leader | None]:
        """The leader now, and then each change of that or of what is proclaimed; None: nobody leads. Blocks in between.

        What is true when one looks is told; what was true only while one was busy with the last answer is not. An etcd
        that is away is waited for. Ends with `cancel`, and when the connection is closed.
        """
        cancel, shutdown = cancel or Cancel(), self._backend.shutdown
        wake = Wake()
        lookout = Lookout(self._client, wake)
        last: Leader | type[Leader] | None = Leader  # no answer yet
        forgets = [cancel.subscribe(wake.set), shutdown.subscribe(wake.set), lookout.close]
        try:
            while not (cancel.is_set() or shutdown.begun):
                try:
                    pause_s = lookout.pause_s(f"{self._name}/", self._backend.timeout_s, below=True)
                    if (now := self.leader()) != last:
                        last = now
                        yield now
                        continue  # time has passed
                except LockUnavailable:
                    pause_s = _AWAY_PAUSE_S
                wake.wait(pause_s)
        finally:
            for forget in forgets:
                forget()

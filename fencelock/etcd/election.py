"""Elections: of several candidates one leads, and says something that all can hear. Made of the lock's own queue."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, cast

from ..contender import Contender
from ..errors import LockLost, LockUnavailable
from ..grant import Grant
from ..lock import checked_name
from ..renewer import Renewer
from ..steps import in_thread
from ..waiting import Cancel, Wait, Wake
from .client import EtcdClient, KeyValue
from .lock import RECORD, EtcdCommon, Place, SharedLease, contenders
from .lookout import Lookout

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
    """Proof that a candidate was elected. It is a grant: it is renewed, it can be lost, and its token fences."""

    __slots__ = ("_backend", "_client", "_known", "_record")

    def __init__(self, backend: EtcdCommon, grant: Grant, value: str, record: str) -> None:
        super().__init__(grant.key, grant.token, grant.source, grant.lease)
        self._backend = backend
        self._client: EtcdClient = backend.client
        self._record = record
        # As it was created: nobody but us changes it.
        self._known = KeyValue(grant.key, value.encode(), grant.token, grant.token, 0)

    def proclaim(self, value: str) -> None:
        """Proclaim another value. Raises `LockLost` if another one leads, `LockUnavailable` if that can't be known."""
        in_thread(self.proclaimed(value))

    async def proclaimed(self, value: str) -> None:
        """What `proclaim` does, in steps."""
        self.ensure_held()
        while (now := await self._client.put_over(self._known, value.encode())) is not None:
            self._known = now
            # Else it was not as we knew it: an earlier call came through although we did not hear of it.
            if now.value == value.encode():
                return
        self._give_up_hope()

    def record(self, value: str) -> None:
        """Write a record that outlasts the leadership: see `Election.recorded`. Only the leader can.

        Raises `LockLost` and `LockUnavailable`; and the latter for more than etcd takes in one value (1.5 MiB).
        """
        in_thread(self.written(value))

    async def written(self, value: str) -> None:
        """What `record` does, in steps."""
        self.ensure_held()
        if not await self._client.put_while(self._record, value.encode(), self.key, self.token):
            self._give_up_hope()

    def _give_up_hope(self) -> None:
        self.lease.lose("its key is gone")
        raise LockLost(f"{self.key} leads no more: its key is gone")

    def resign(self) -> None:
        """Give the leadership up; the next in line has it at once. Never raises, and may be called again."""
        in_thread(self.resigned())

    async def resigned(self) -> None:
        """What `resign` does, in steps."""
        self.lease.lose("its holder has resigned")  # before another one can lead
        await (self.lease.keeper or self._backend.renewer).hand_back(self.lease, self._backend.timeout_s)

    def __enter__(self) -> "Leadership":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resign()


class Election:
    """An election like etcd's Go `concurrency.Election`, in the same queue: first come, first elected.

    >>> election = backend.election("/jobs/auditor")
    >>> with election.campaign("me") as leadership:      # waits until it is elected
    ...     leadership.proclaim("me, and all is well")
    >>> election.leader()                                # None while nobody leads
    >>> for leader in election.observe(cancel=cancel):   # now, and each time that another one leads or says more
    ...     print(leader.value if leader else "nobody")
    """

    def __init__(self, backend: EtcdCommon, name: str, session: SharedLease | None = None) -> None:
        self.backend = backend
        self.prefix = f"{name}/"
        self._client = backend.client
        self._session = session
        self._name = checked_name(name)
        self._record = f"{name}{RECORD}"  # beside the candidates' prefix, so that it is none of them

    def campaign(self, value: str, *, wait_s: float | None = None, cancel: Cancel | None = None) -> Leadership:
        """Stand for election with something to say, and wait until one is elected, at most `wait_s` seconds.

        Raises `LockTimeout`, `LockCancelled`, or `LockUnavailable`; nothing of this call is then left in the queue for
        longer than a TTL. The leadership is no thread's: it lasts until `resign` or the connection's end.
        """
        return in_thread(self.elected(value, Wait(wait_s, cancel), self.backend.renewer))

    async def elected(self, value: str, wait: Wait, renewer: Renewer) -> Leadership:
        """What `campaign` does, in steps."""
        place = Place(self.backend, self._name, value.encode(), session=self._session)
        place.renewer = renewer
        grant = await place.until_granted(wait)
        return Leadership(self.backend, grant, value, self._record)

    def candidates(self) -> list[Contender]:
        """Return the leader and the candidates behind it, in their order. Raises `LockUnavailable`."""
        return in_thread(self.queue())

    async def queue(self) -> list[Contender]:
        """What `candidates` answers, in steps."""
        return await contenders(self._client, f"{self._name}/")

    def leader(self, *, timeout_s: float | None = None) -> Leader | None:
        """Return the leader, if there is one. Raises `LockUnavailable`."""
        return in_thread(self.first(timeout_s))

    async def first(self, timeout_s: float | None = None) -> Leader | None:
        """What `leader` answers, in steps."""
        first = await self._client.first(f"{self._name}/", timeout_s)
        if first is None:
            return None
        return Leader(first.key, first.value.decode(errors="replace"), first.create_revision, first.mod_revision)

    def recorded(self) -> str | None:
        """Return the last record of a leader, past or present; None if there is none. Raises `LockUnavailable`."""
        return in_thread(self.read())

    async def read(self) -> str | None:
        """What `recorded` answers, in steps."""
        return await self._client.get(self._record)

    def observe(self, *, cancel: Cancel | None = None) -> Iterator[Leader | None]:
        """Yield the leader, and then each change of leader or proclamation; None: nobody leads. Blocks in between.

        A state that ended while the caller was busy with the last one is left out. It waits for an etcd that is away,
        and ends with `cancel`, and when the connection is closed.
        """
        watching = Observation(self, cancel or Cancel())
        try:
            while (found := in_thread(watching.next())) is not END:
                yield cast(Leader | None, found)
        finally:
            watching.close()


class _End:
    """Nothing more is told."""


END: Final = _End()


class Observation:
    """Who watches an election; made of steps."""

    def __init__(self, election: Election, cancel: Cancel) -> None:
        self._election = election
        self._cancel = cancel
        self._shutdown = election.backend.shutdown
        self._wake = Wake()
        self._lookout = Lookout(election.backend.client, self._wake, self._shutdown)
        self._last: Leader | _End | None = END  # no answer yet
        forget, forget_too = cancel.subscribe(self._wake.set), self._shutdown.subscribe(self._wake.set)
        self._forgets = [forget, forget_too, self._lookout.close]

    async def next(self) -> Leader | _End | None:
        """The leader, as soon as that is another answer than the last one; or `END`."""
        while not (self._cancel.is_set() or self._shutdown.begun):
            try:
                # At the beginning, and after each answer, for which time has passed: look.
                timeout_s = self._election.backend.timeout_s
                pause_s = await self._lookout.pause_s(self._election.prefix, timeout_s, below=True)
                if (now := await self._election.first()) != self._last:
                    self._last = now
                    return now
            except LockUnavailable:
                pause_s = _AWAY_PAUSE_S
            await self._wake.wait(pause_s)
        return END

    def close(self) -> None:
        """Watch no longer."""
        for forget in self._forgets:
            forget()

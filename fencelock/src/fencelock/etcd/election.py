"""An election in etcd, like Go's `concurrency.Election`: the value of a candidate's key is its proclamation."""

from functools import partial

from typing_extensions import override

from ..contender import Contender
from ..election import Ballot, Leader, Lookout
from ..grant import Grant
from ..waiting import Wait, Wake
from .client import KeyValue, created, get, modified, oldest, put
from .lock import RECORD, EtcdConnection, EtcdPlace
from .lookout import KeyLookout
from .shared_lease import SharedLease


class EtcdBallot(Ballot):
    """An election in etcd. `session`: candidates' keys are bound to its lease, instead of the default session's."""

    connection: EtcdConnection

    def __init__(self, connection: EtcdConnection, name: str, session: SharedLease | None = None) -> None:
        super().__init__(connection, name)
        self._client = connection.client
        self._session = session
        self._prefix = f"{name}/"
        self._record = f"{name}{RECORD}"  # beside the candidates' prefix, so that it is none of them
        self._recorded = 0  # the revision of the record, as we know it
        self._known: dict[str, KeyValue] = {}  # the last proclamations of the leaders in this process, by their keys

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        connection = self.connection
        place = EtcdPlace(connection, self.name, value.encode(), ttl_s=connection.terms.ttl_s, session=self._session)
        grant = await place.until_granted(wait)
        # As it was created: nobody but us changes it.
        self._known[grant.key] = KeyValue(grant.key, value.encode(), grant.token, grant.token, 0)
        return grant

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        key, known = grant.key, self._known.get(grant.key)
        while known is not None:
            change = [put(key, value.encode(), keep_lease=True), get(key)]
            answer = await self._client.txn(modified(key, known.mod_revision), change, [get(key)])
            if not answer.found or answer.found[0].create_revision != grant.token:
                return False
            known = self._known[key] = answer.found[0]
            # Else it was not as we knew it: an earlier call came through although we did not hear of it.
            if known.value == value.encode():
                return True
        return False

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        name, ours = self._record, created(grant.key, grant.token)
        while True:
            change = [put(name, value.encode()), get(name)]
            answer = await self._client.txn([ours, modified(name, self._recorded)], change, [get(name)])
            before, self._recorded = self._recorded, answer.found[0].mod_revision if answer.found else 0
            if answer.succeeded or before == self._recorded:  # if that was not the reason, our key is gone
                return answer.succeeded

    @override
    async def recorded(self) -> str | None:
        found = await self._client.read(self._record)
        return None if found is None else found.value.decode(errors="replace")

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        found = await self._client.range(oldest(self._prefix, limit=1), timeout_s)
        if not found:
            return None
        first = found[0]
        return Leader(first.key, first.value.decode(errors="replace"), first.create_revision, first.mod_revision)

    @override
    async def candidates(self) -> list[Contender]:
        return await EtcdConnection.contenders(self.connection, self._prefix)

    @override
    def lookout(self, wake: Wake) -> Lookout:
        return _EtcdLookout(self, wake)


class _EtcdLookout:
    """A watch on all that happens to the candidates."""

    def __init__(self, ballot: EtcdBallot, wake: Wake) -> None:
        connection = ballot.connection
        self._lookout = KeyLookout(connection.client, wake, connection.waiters)
        self.pause_s = partial(self._lookout.pause_s, ballot._prefix, connection.timeout_s, below=True)
        self.close = self._lookout.close

"""The simplest etcd lock: one key, created in a transaction if it isn't there; the others wait for its deletion.

It is the articles' single-key lock, which gives up at once, with the improvement that its article leaves to the reader:
to wait, by a watch, for the deletion of the key. Not fair: at its deletion all waiters try at once.
"""

import json
import secrets
from dataclasses import replace
from typing import Any

from typing_extensions import override

from ..backend import LASTING
from ..connection import Attempt, PlaceLost
from ..contender import Contender, describe
from ..grant import Grant
from ..waiting import Wait
from .backend import EtcdBackend
from .client import KeyValue, NotFound, created, get, put
from .endpoint import use_grpc
from .lock import RECORD, EtcdConnection
from .lookout import KeyLookout
from .shared_lease import Key, SharedLease


class _EtcdTxnAttempt(Attempt["EtcdTxnConnection"]):
    def __init__(self, connection: "EtcdTxnConnection", name: str, ttl_s: float, session: SharedLease | None) -> None:
        super().__init__(connection, name, ttl_s)
        self._client = connection.client
        self._session = session
        self._key: Key
        self._value: bytes
        self._holder: KeyValue | None = None  # the holder's key, as we found it
        self._lookout = KeyLookout(connection.client, self.wake, connection.waiters)  # for its end
        self.cleanup.callback(self._lookout.close)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        timeout_s = wait.call_s(self.timeout_s)
        if self._session is not None:
            self._session.ensure_held()
        if self._holder is None or not await self._is_there(self._holder, timeout_s):
            if self.lease is None:
                session = self._session or await self.connection.session(self.ttl_s, timeout_s)
                # Only the value tells whose key it is: all keys of a session have one lease. A session deletes its late
                # keys by their values, so another session needs another value.
                who = json.loads(describe(self.connection.terms.instance)) | {"id": secrets.token_hex(8)}
                self._value = json.dumps(who, separators=(",", ":")).encode()
                self._key = session.shared_key(self.name, self._value)
                self.lease = self._key.lease()
                self.renewer.keep(self.lease)
            key = self._key
            try:
                answer = await self._client.txn(
                    created(self.name, 0),
                    [put(self.name, self._value, key.session.lease_id), get(self.name)],
                    [get(self.name)],
                    timeout_s=wait.call_s(self.timeout_s),
                    unanswered=key.not_answered,
                )
            except NotFound:  # the lease ran out before we came to use it
                key.session.gone()
                raise PlaceLost from None
            found = answer.found[0]
            if key.session.predates_restore:
                raise PlaceLost  # etcd was set back
            if (found.value, found.lease_id) == (self._value, key.session.lease_id):  # perhaps by an earlier try
                key.revision = found.create_revision
                key.granted = True
                return Grant(self.name, found.create_revision, self._client.source, self.lease)
            self._holder = found
        return await self._lookout.pause_s(self.name, wait.call_s(self.timeout_s)) if wait.left_s else 0.0

    async def _is_there(self, holder: KeyValue, timeout_s: float) -> bool:
        found = await self._client.read(self.name, timeout_s)
        return found is not None and (found.create_revision, found.lease_id) == (
            holder.create_revision,
            holder.lease_id,
        )


class EtcdTxnConnection(EtcdConnection):
    """As `EtcdConnection`, for the single-key lock."""

    @override
    def attempt(self, name: str, ttl_s: float, session: SharedLease | None = None) -> Attempt[Any]:
        return _EtcdTxnAttempt(self, name, ttl_s, session)

    @override
    async def queue(self, name: str) -> list[Contender]:
        """Return the holder; the waiters can't be seen."""
        return [one for one in await self.contenders(name) if one.key == name]

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        return [one for one in await super().contenders(prefix) if one.ttl_left_s is not None]


class EtcdTxnBackend(EtcdBackend):
    """As `EtcdBackend`, with the single-key lock: re-entrant, fenced by its key's create revision, not fair."""

    name = "etcd-txn"
    guarantees = replace(LASTING, forces_release=True)

    @override
    def check_name(self, name: str) -> None:
        super().check_name(name)
        if name.endswith(RECORD):
            raise ValueError(f"a lock's name in etcd+txn can't end with {RECORD}, where elections write down: {name!r}")

    @override
    def connect(self) -> EtcdConnection:
        use_grpc()
        return EtcdTxnConnection(self.terms, self._members, self._access)

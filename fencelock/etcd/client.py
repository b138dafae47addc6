"""Calls to etcd: each with a deadline, repeated on the next endpoint, with errors of ours.

Only this file, `endpoint` and `watch` import etcd3. Its own client is not used: a failed endpoint is banned
there for 300 s, a failed call is not repeated, and calls without a time-out hang for ever. Its messages and stubs are.
"""

import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from etcd3 import etcdrpc

from ..errors import ConfigurationError, LockUnavailable
from ..interrupt import uninterrupted
from ..steps import Pause
from .endpoint import Call, Endpoint, metadata_of, tls_credentials, use_grpc

_ELSEWHERE: Final = {
    # Another member may do better, or this one a moment later. UNAVAILABLE is also "no leader" and "leader changed".
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,  # what a follower says that could not reach a frozen leader
}
_OUTDATED: Final = ("revision in header is old", "revision of auth store is old")
_IN_ORDER: Final = {"Range", "Txn", "DeleteRange"}  # whose answers are no older than what was answered before
_ROUND_PAUSE_S: Final = 0.05  # after all endpoints have failed once
_MIN_TRY_S: Final = 0.05
_GRANTS_S: Final = 1.0  # for so long a lease that was granted says that the next one will be
_PING_TTL_S: Final = 5


@dataclass(frozen=True, slots=True)
class KeyWatch:
    """A watch. `will_tell`: whether it will still be told; `close`: watch no longer; `made_at`: see `Watch`.

    `kept`: it was there before it was asked for, so nothing can have happened between.
    """

    will_tell: Callable[[], bool]
    close: Callable[[], None]
    made_at: float
    kept: bool


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd keeps it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int


class _Tries:
    """The tries of a call. `may_have_arrived`: one that was not answered."""

    def __init__(self, not_answered: Callable[[], object]) -> None:
        self.may_have_arrived = False
        self._not_answered = not_answered

    def not_answered(self) -> None:
        """One more."""
        self.may_have_arrived = True
        self._not_answered()


class EtcdClient:
    """A connection to an etcd cluster. All methods may be called from any thread and on any loop; they are steps.

    `endpoints`: URLs (`http://host:port`, or `https://` with TLS; a bare `host:port` is the former). A call is tried
    on one after the other until one answers or `timeout_s` is over; then it raises `LockUnavailable`. Calls must
    therefore be safe to repeat: each of the methods here is.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | str,
        *,
        timeout_s: float = 2.0,
        user: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> None:
        endpoints = endpoints.split(",") if isinstance(endpoints, str) else endpoints
        if not endpoints:
            raise ConfigurationError("at least one etcd endpoint is needed")
        if bool(user) != bool(password):
            raise ConfigurationError("etcd needs both a user and a password, or neither")
        self.timeout_s = timeout_s
        credentials = tls_credentials(ca_file, cert_file, key_file)
        self._endpoints = [Endpoint(url, credentials, user, password) for url in endpoints]
        # Instances begin at different members, so that the members share the work.
        self._current = random.randrange(len(self._endpoints))  # noqa: S311 - not a secret
        self._mutex = threading.Lock()
        self._closed = False
        self._granted_at = -math.inf  # when etcd last granted a lease
        self.cluster_id: int | None = None
        self.era = 0  # grows when etcd comes back older than it was: what we had there before is not ours any more
        self._revision = 0  # the highest that was answered in this era

    async def grant(self, lease_id: int, ttl_s: int, timeout_s: float | None = None) -> int:
        """Grant a lease with an id of the caller's choice; the TTL that etcd gives (it has a minimum) in seconds.

        With an id of our own a grant whose answer was lost can be asked for again, and revoked.
        """
        request = etcdrpc.LeaseGrantRequest(ID=lease_id, TTL=ttl_s)
        try:
            answer = await self._call("LeaseGrant", request, timeout_s)
        except _Refused as refusal:
            if "lease already exists" in refusal.details:  # our own earlier try, whose answer was lost
                return ttl_s
            raise
        self._granted_at = time.monotonic()
        return int(answer.TTL)

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> bool:
        """Renew a lease; False if there is no such lease any more."""
        request = etcdrpc.LeaseKeepAliveRequest(ID=lease_id)
        answer = await self._call("LeaseKeepAlive", request, timeout_s)
        return bool(answer.TTL > 0)

    async def revoke(self, lease_id: int, timeout_s: float | None = None) -> None:
        """Give a lease back; its keys vanish with it. A lease that is gone already is fine."""
        try:
            await self._call("LeaseRevoke", etcdrpc.LeaseRevokeRequest(ID=lease_id), timeout_s)
        except _Refused as refusal:
            if refusal.code is not grpc.StatusCode.NOT_FOUND:
                raise

    async def delete_own(self, key: str, create_revision: int, timeout_s: float | None = None) -> bool:
        """Delete `key` if it is still the one created at that revision; False if it was not."""
        request = etcdrpc.TxnRequest(
            compare=[_created(key, create_revision)],
            success=[etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=key.encode()))],
        )
        return bool((await self._call("Txn", request, timeout_s)).succeeded)

    async def delete(self, key: str, timeout_s: float | None = None) -> None:
        """Delete a key. One that is gone already is fine."""
        await self._call("DeleteRange", etcdrpc.DeleteRangeRequest(key=key.encode()), timeout_s)

    async def put_over(self, old: KeyValue, value: bytes, timeout_s: float | None = None) -> KeyValue | None:
        """Change a key that is as we know it, and leave its lease; the key as it is now, None if it is gone.

        Somebody else's change since is not overwritten, but answered.
        """
        key = old.key.encode()
        request = etcdrpc.TxnRequest(
            compare=[
                etcdrpc.Compare(
                    key=key,
                    target=etcdrpc.Compare.MOD,
                    result=etcdrpc.Compare.EQUAL,
                    mod_revision=old.mod_revision,
                )
            ],
            success=[
                etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=key, value=value, ignore_lease=True)),
                _op(etcdrpc.RangeRequest(key=key)),
            ],
            failure=[_op(etcdrpc.RangeRequest(key=key))],
        )
        answer = await self._call("Txn", request, timeout_s)
        found = answer.responses[-1].response_range.kvs
        now = _key_value(found[0]) if found else None
        return now if now is not None and now.create_revision == old.create_revision else None

    async def ttl_left(self, lease_id: int, timeout_s: float | None = None) -> int | None:
        """Seconds that a lease has left, None if there is no such lease."""
        request = etcdrpc.LeaseTimeToLiveRequest(ID=lease_id)
        answer = await self._call("LeaseTimeToLive", request, timeout_s)
        return int(answer.TTL) if answer.TTL >= 0 else None

    async def ttl_granted(self, lease_id: int, timeout_s: float | None = None) -> int | None:
        """Seconds for which a lease was granted, None if there is no such lease."""
        request = etcdrpc.LeaseTimeToLiveRequest(ID=lease_id)
        answer = await self._call("LeaseTimeToLive", request, timeout_s)
        return int(answer.grantedTTL) if answer.TTL >= 0 else None

    async def put_and_see(
        self,
        key: str,
        value: bytes,
        lease_id: int,
        prefix: str,
        timeout_s: float,
        not_answered: Callable[[], object],
    ) -> tuple[KeyValue | None, KeyValue | None]:
        """Create `key` unless it exists; answer it with the key under `prefix` that was created just before it.

        One transaction. In it the key is the newest under its prefix, so the newest two are the key and its
        predecessor: no second call is needed to know whom to wait for. (None, None): the key was there and is gone, or
        its lease is; or it was there before we came, in an etcd that was set back. `not_answered` is called for each
        try that may still arrive.
        """
        tries = _Tries(not_answered)
        put = etcdrpc.PutRequest(key=key.encode(), value=value, lease=lease_id)
        request = etcdrpc.TxnRequest(
            compare=[_created(key, 0)],
            success=[etcdrpc.RequestOp(request_put=put), _op(_newest(prefix))],
            failure=[_op(etcdrpc.RangeRequest(key=key.encode()))],
        )
        try:
            answer = await self._call("Txn", request, timeout_s, tries.not_answered)
        except _Refused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:  # the lease ran out before we came to use it
                return None, None
            raise
        if answer.succeeded:
            own, *before = map(_key_value, answer.responses[1].response_range.kvs)
            return own, before[0] if before else None
        if not tries.may_have_arrived:
            return None, None
        # The answer of an earlier try was lost: the key is there, and others may have come since.
        own = _key_value(answer.responses[0].response_range.kvs[0])
        present, ahead = await self.see(key, own.create_revision, prefix, timeout_s)
        return (own, ahead) if present else (None, None)

    async def create(
        self, key: str, value: bytes, lease_id: int, timeout_s: float, not_answered: Callable[[], object]
    ) -> KeyValue | None:
        """Create `key` unless it exists; the key as it is then: its lease tells whose.

        None: our lease is gone; or it had the key before we came, in an etcd that was set back. `not_answered` is
        called for each try that may still arrive.
        """
        tries = _Tries(not_answered)
        look = _op(etcdrpc.RangeRequest(key=key.encode()))
        put = etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=key.encode(), value=value, lease=lease_id))
        request = etcdrpc.TxnRequest(compare=[_created(key, 0)], success=[put, look], failure=[look])
        try:
            answer = await self._call("Txn", request, timeout_s, tries.not_answered)
        except _Refused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        found = _key_value(answer.responses[-1].response_range.kvs[0])
        of_before = found.lease_id == lease_id and not (answer.succeeded or tries.may_have_arrived)
        return None if of_before else found

    # `see` and `exists` are no read-only transactions with a comparison, although these would say the same: when the
    # deadline of one passes while it is being read, etcd 3.5.1 panics (etcd issue 14110).

    async def see(
        self, key: str, create_revision: int, prefix: str, timeout_s: float | None = None
    ) -> tuple[bool, KeyValue | None]:
        """Whether `key` is still the one created at that revision, and the key under `prefix` created just before."""
        request = _newest(prefix, until=create_revision)
        newest = await self._range(request, timeout_s)
        if not newest or (newest[0].key, newest[0].create_revision) != (key, create_revision):
            return False, None
        return True, newest[1] if len(newest) > 1 else None

    async def first(self, prefix: str, timeout_s: float | None = None) -> KeyValue | None:
        """The key under a prefix that was created before all others there, if there is any."""
        request = etcdrpc.RangeRequest(
            key=prefix.encode(),
            range_end=_end_of(prefix),
            limit=1,
            sort_order=etcdrpc.RangeRequest.ASCEND,
            sort_target=etcdrpc.RangeRequest.CREATE,
        )
        found = await self._range(request, timeout_s)
        return found[0] if found else None

    async def exists(self, key: str, create_revision: int, lease_id: int, timeout_s: float | None = None) -> bool:
        """Whether `key` is still the one created at that revision with that lease.

        In an etcd that was set back another one may have been created at the same revision.
        """
        found = await self._range(etcdrpc.RangeRequest(key=key.encode()), timeout_s)
        return bool(found) and (found[0].create_revision, found[0].lease_id) == (create_revision, lease_id)

    async def under(self, prefix: str, timeout_s: float | None = None) -> list[KeyValue]:
        """All keys under a prefix in the order in which they were created."""
        request = etcdrpc.RangeRequest(
            key=prefix.encode(),
            range_end=_end_of(prefix),
            sort_order=etcdrpc.RangeRequest.ASCEND,
            sort_target=etcdrpc.RangeRequest.CREATE,
        )
        return await self._range(request, timeout_s)

    async def get(self, key: str, timeout_s: float | None = None) -> str | None:
        """The value of a key as text, None if there is no such key."""
        found = await self._range(etcdrpc.RangeRequest(key=key.encode()), timeout_s)
        return found[0].value.decode(errors="replace") if found else None

    async def put_while(
        self, key: str, value: bytes, witness: str, create_revision: int, timeout_s: float | None = None
    ) -> bool:
        """Put a key for good while `witness` is the key created at that revision; False if it is not any more."""
        put = etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=key.encode(), value=value))
        request = etcdrpc.TxnRequest(compare=[_created(witness, create_revision)], success=[put])
        return bool((await self._call("Txn", request, timeout_s)).succeeded)

    async def ping(self, timeout_s: float | None = None) -> None:
        """Raise `LockUnavailable` unless a quorum answers (a linearizable read needs one) and grants leases.

        Over its quota etcd answers reads as if nothing was wrong, and grants none. One that was granted a moment ago,
        to whomever in this process, will do: pings may be many, and each grant is a write.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        try:
            await self._call("Range", etcdrpc.RangeRequest(key=b"\0", count_only=True), timeout_s)
        except _Refused as refusal:
            if refusal.code is not grpc.StatusCode.PERMISSION_DENIED:  # that is an answer, too
                raise
        if time.monotonic() - self._granted_at < _GRANTS_S:
            return
        lease_id = secrets.randbits(62) + 1
        await self.grant(lease_id, _PING_TTL_S, deadline - time.monotonic())
        with suppress(LockUnavailable):  # then it runs out
            await self.revoke(lease_id, deadline - time.monotonic())

    async def watch(
        self, key: str, wake: Callable[[], None], timeout_s: float | None = None, *, below: bool = False
    ) -> "KeyWatch":
        """Have `wake` called when `key` is deleted or the watch breaks.

        `below`: when anything happens to any key that begins so. What happened before the watch was there must be found
        by looking, *after* the watch was created. Raises `LockUnavailable`.
        """
        use_grpc()
        endpoint = self._endpoints[self._current]
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            stream = await endpoint.watches(timeout_s)
            found = None if below else stream.kept(key, wake)
            watch = found or await stream.add(key, wake, timeout_s, end=_end_of(key) if below else None)
        except (LockUnavailable, grpc.RpcError, ValueError) as error:
            self._next(endpoint)
            raise LockUnavailable(f"etcd at {endpoint.url} takes no watch: {_text(error)}") from error
        # A watch on a member that calls no longer go to may be one that is frozen, and would tell nothing.
        return KeyWatch(
            will_tell=lambda: watch.alive and self._endpoints[self._current] is endpoint,
            close=lambda: stream.keep(watch),
            made_at=watch.made_at,
            kept=found is not None,
        )

    @property
    def source(self) -> str:
        """Whose tokens the revisions of this cluster are."""
        return f"etcd:{self.cluster_id:x}"

    def close(self) -> None:
        """Close the connections. Calls under way end with `LockUnavailable`."""
        self._closed = True
        for endpoint in self._endpoints:
            endpoint.close()

    async def close_on_loop(self) -> None:
        """Close those of the running loop."""
        for endpoint in self._endpoints:
            await endpoint.close_on_loop()

    async def _range(self, request: Any, timeout_s: float | None) -> list[KeyValue]:
        return [_key_value(kv) for kv in (await self._call("Range", request, timeout_s)).kvs]

    async def _call(
        self, method: str, request: Any, timeout_s: float | None, not_answered: Callable[[], object] = lambda: None
    ) -> Any:
        """Try the endpoints in turn until one answers or the time is over."""
        use_grpc()
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        untried = len(self._endpoints)
        while True:
            endpoint = self._endpoints[self._current]
            # Enough for this try, and leaves something for the members that were not asked yet.
            try_s = max(_MIN_TRY_S, (deadline - time.monotonic()) / max(1, untried))
            token, asked_at, seen = None, time.monotonic(), self._revision
            try:
                with uninterrupted():
                    token = await endpoint.token(try_s)
                    answer = await Call(endpoint, method, request, try_s, metadata_of(token))
                endpoint.heard()
                self._ensure_ours(endpoint, answer.header.cluster_id)
                self._ensure_not_older(endpoint, method, answer.header.revision, seen)
                return answer
            except grpc.RpcError as error:
                code = error.code()
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    endpoint.not_heard(asked_at, self.timeout_s / 2)
                else:
                    endpoint.heard()
                if token is not None and (code is grpc.StatusCode.UNAUTHENTICATED or _outdated(error)):
                    endpoint.forget_token(token)  # expired, or from before a restart or a change: log in again
                elif code not in _ELSEWHERE:
                    raise _Refused(endpoint.url, code, error.details() or "") from error
                else:
                    self._next(endpoint)
                failure: Exception = error
            except (ValueError, LockUnavailable) as error:
                if self._closed:  # gRPC says ValueError of a closed channel
                    raise LockUnavailable("the connection to etcd is closed") from error
                if isinstance(error, ValueError):
                    raise
                self._next(endpoint)
                failure = error
            not_answered()
            untried -= 1
            if untried <= 0:
                await Pause(min(_ROUND_PAUSE_S, deadline - time.monotonic()))
            aside = [one.aside for one in self._endpoints if one.aside]
            if time.monotonic() >= deadline or len(aside) == len(self._endpoints):
                said = aside if endpoint.aside else [f"{endpoint.url}: {_text(failure)}", *aside]
                raise LockUnavailable(f"etcd does not answer ({'; '.join(said)})") from failure

    def _ensure_ours(self, endpoint: Endpoint, cluster_id: int) -> None:
        """Raise `LockUnavailable` if that is another cluster than the one that answered first.

        Its revisions can't be compared with ours, and it doesn't know who has our locks: of two clusters each would
        give the lock to somebody. So whoever replaces etcd must restart those who use it.
        """
        with self._mutex:
            ours = self.cluster_id = self.cluster_id or cluster_id or None
        if cluster_id and cluster_id != ours:
            endpoint.leave_aside(
                f"{endpoint.url} is of another cluster, {cluster_id:x}, than what answered first, {ours:x}: "
                "if etcd was replaced, restart this process"
            )
            raise LockUnavailable(endpoint.aside)

    def _ensure_not_older(self, endpoint: Endpoint, method: str, revision: int, seen: int) -> None:
        """Raise `LockUnavailable` if etcd was set back: it lacks what it had answered before we asked.

        It may take others for the holders of our locks. And a lease that we went on renewing might keep a key of before
        alive, of which nobody knows. So all that we had there is lost.
        """
        if method not in _IN_ORDER:
            return
        with self._mutex:
            if revision >= min(seen, self._revision):
                self._revision = max(revision, self._revision)
                return
            self.era += 1
            self._revision = revision
        raise LockUnavailable(f"etcd at {endpoint.url} is older than it was: revision {revision} comes after {seen}")

    def _next(self, failed: "Endpoint") -> None:
        # Another thread may have moved on already.
        if self._endpoints[self._current] is failed:
            count = len(self._endpoints)
            others = [(self._current + step) % count for step in range(1, count + 1)]
            self._current = next((other for other in others if not self._endpoints[other].aside), others[0])


class _Refused(LockUnavailable):
    """etcd answered, with a refusal that asking again will not change."""

    def __init__(self, url: str, code: Any, details: str) -> None:
        super().__init__(f"etcd at {url} refuses: {details or code.name}")
        self.code = code
        self.details = details


def _created(key: str, revision: int) -> Any:
    return etcdrpc.Compare(
        key=key.encode(), target=etcdrpc.Compare.CREATE, result=etcdrpc.Compare.EQUAL, create_revision=revision
    )


def _newest(prefix: str, *, until: int = 0) -> Any:
    """The newest key under a prefix, and the one before it; created at `until` at the latest (0: no bound)."""
    return etcdrpc.RangeRequest(
        key=prefix.encode(),
        range_end=_end_of(prefix),
        limit=2,
        sort_order=etcdrpc.RangeRequest.DESCEND,
        sort_target=etcdrpc.RangeRequest.CREATE,
        max_create_revision=until,
    )


def _op(request: Any) -> Any:
    return etcdrpc.RequestOp(request_range=request)


def _end_of(prefix: str) -> bytes:
    # The first key after all keys with the prefix. Our prefixes end in "/", so the last byte can always grow.
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(errors="replace"), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _outdated(refusal: Any) -> bool:
    """Whether etcd refuses a signed token because its users have changed since. The code depends on its version."""
    return any(text in (refusal.details() or "") for text in _OUTDATED)


def _text(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else str(error)) or type(error).__name__

"""Calls to etcd: each with a deadline, repeated on the next endpoint, with errors of ours.

Only this file, `etcd_endpoint` and `etcd_watch` import etcd3. Its own client is not used: a failed endpoint is banned
there for 300 s, a failed call is not repeated, and calls without a time-out hang for ever. Its messages and stubs are.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from etcd3 import etcdrpc

from app.common.blocking import Waiters, ctrl_c_waits
from app.errors import ConfigurationError, LockUnavailable
from app.locks.etcd.endpoint import Endpoint, metadata_of, tls_credentials

_ELSEWHERE: Final = {
    # Another member may do better, or this one a moment later. UNAVAILABLE is also "no leader" and "leader changed".
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,  # what a follower says that could not reach a frozen leader
}
_ROUND_PAUSE_S: Final = 0.05  # after all endpoints have failed once
_MIN_TRY_S: Final = 0.05
_OPS_MAX: Final = 100  # in a transaction; etcd allows 128 by its default


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd keeps it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int


class EtcdClient:
    """A connection to an etcd cluster. All methods may be called from any thread.

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
        self.waiters = Waiters()
        self._closed = False
        self.cluster_id: int | None = None

    def grant(self, lease_id: int, ttl_s: int, timeout_s: float | None = None) -> int:
        """Grant a lease with an id of the caller's choice; the TTL that etcd gives (it has a minimum) in seconds.

        With an id of our own a grant whose answer was lost can be asked for again, and revoked.
        """
        request = etcdrpc.LeaseGrantRequest(ID=lease_id, TTL=ttl_s)
        try:
            answer = self._call(lambda at: at.lease.LeaseGrant, request, timeout_s)
        except _Refused as refusal:
            if "lease already exists" in refusal.details:  # our own earlier try, whose answer was lost
                return ttl_s
            raise
        return int(answer.TTL)

    def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> bool:
        """Renew a lease; False if there is no such lease any more."""
        request = etcdrpc.LeaseKeepAliveRequest(ID=lease_id)
        answer = self._call(lambda at: at.keep_alive_once, request, timeout_s)
        return bool(answer.TTL > 0)

    def revoke(self, lease_id: int, timeout_s: float | None = None) -> None:
        """Give a lease back; its keys vanish with it. A lease that is gone already is fine."""
        try:
            self._call(lambda at: at.lease.LeaseRevoke, etcdrpc.LeaseRevokeRequest(ID=lease_id), timeout_s)
        except _Refused as refusal:
            if refusal.code is not grpc.StatusCode.NOT_FOUND:
                raise

    def delete(self, key: str, timeout_s: float | None = None) -> None:
        """Delete a key. One that is gone already is fine."""
        self._call(lambda at: at.kv.DeleteRange, etcdrpc.DeleteRangeRequest(key=key.encode()), timeout_s)

    def put_over(self, old: KeyValue, value: bytes, timeout_s: float | None = None) -> KeyValue | None:
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
        found = self._call(lambda at: at.kv.Txn, request, timeout_s).responses[-1].response_range.kvs
        now = _key_value(found[0]) if found else None
        return now if now is not None and now.create_revision == old.create_revision else None

    def ttl_left(self, lease_id: int, timeout_s: float | None = None) -> int | None:
        """Seconds that a lease has left, None if there is no such lease."""
        request = etcdrpc.LeaseTimeToLiveRequest(ID=lease_id)
        answer = self._call(lambda at: at.lease.LeaseTimeToLive, request, timeout_s)
        return int(answer.TTL) if answer.TTL >= 0 else None

    def ttl_granted(self, lease_id: int, timeout_s: float | None = None) -> int | None:
        """Seconds for which a lease was granted, None if there is no such lease."""
        request = etcdrpc.LeaseTimeToLiveRequest(ID=lease_id)
        answer = self._call(lambda at: at.lease.LeaseTimeToLive, request, timeout_s)
        return int(answer.grantedTTL) if answer.TTL >= 0 else None

    def put_and_see(
        self,
        key: str,
        value: bytes,
        lease_id: int,
        prefix: str,
        timeout_s: float | None = None,
        *,
        not_answered: Callable[[], None] = lambda: None,
    ) -> tuple[KeyValue | None, KeyValue | None]:
        """Create `key` unless it exists; answer it with the key under `prefix` that was created just before it.

        One transaction. In it the key is the newest under its prefix, so the newest two are the key and its
        predecessor: no second call is needed to know whom to wait for. (None, None): the
        key was there and is gone, or its lease is. `not_answered` is told of each try that may still arrive.
        """
        put = etcdrpc.PutRequest(key=key.encode(), value=value, lease=lease_id)
        request = etcdrpc.TxnRequest(
            compare=[_created(key, 0)],
            success=[etcdrpc.RequestOp(request_put=put), _op(_newest(prefix, limit=2))],
            failure=[_op(etcdrpc.RangeRequest(key=key.encode()))],
        )
        try:
            answer = self._call(lambda at: at.kv.Txn, request, timeout_s, not_answered)
        except _Refused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:  # the lease ran out before we came to use it
                return None, None
            raise
        if answer.succeeded:
            own, *before = map(_key_value, answer.responses[1].response_range.kvs)
            if not before or _is_direct(before[0], prefix):
                return own, before[0] if before else None
        else:
            # The answer of an earlier try was lost: the key is there, and others may have come since.
            own = _key_value(answer.responses[0].response_range.kvs[0])
        present, ahead = self.see(key, own.create_revision, prefix, timeout_s)
        return (own, ahead) if present else (None, None)

    def create(self, key: str, value: bytes, lease_id: int, timeout_s: float | None = None) -> KeyValue | None:
        """Create `key` unless it exists; the key as it is then: its lease tells whose. None: our lease is gone."""
        look = _op(etcdrpc.RangeRequest(key=key.encode()))
        put = etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=key.encode(), value=value, lease=lease_id))
        request = etcdrpc.TxnRequest(compare=[_created(key, 0)], success=[put, look], failure=[look])
        try:
            answer = self._call(lambda at: at.kv.Txn, request, timeout_s)
        except _Refused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return _key_value(answer.responses[-1].response_range.kvs[0])

    # Not a read-only transaction with a comparison, here and in `exists`, although it would say the same: when the
    # deadline of one passes while it is being read, etcd 3.5.1 panics (etcd issue 14110).

    def see(
        self, key: str, create_revision: int, prefix: str, timeout_s: float | None = None, *, limit: int = 2
    ) -> tuple[bool, KeyValue | None]:
        """Whether `key` is still the one created at that revision, and the key under `prefix` created just before."""
        request = _newest(prefix, limit=limit, until=create_revision)
        newest = [_key_value(kv) for kv in self._call(lambda at: at.kv.Range, request, timeout_s).kvs]
        if not newest or (newest[0].key, newest[0].create_revision) != (key, create_revision):
            return False, None
        ahead = next((kv for kv in newest[1:] if _is_direct(kv, prefix)), None)
        if ahead is None and limit and len(newest) == limit:
            # What is there is a longer name's: "/jobs/nightly/<id>" is no contender for "/jobs". Look at all of them.
            return self.see(key, create_revision, prefix, timeout_s, limit=0)
        return True, ahead

    def first(self, prefix: str, timeout_s: float | None = None) -> KeyValue | None:
        """The key under a prefix that was created before all others there, if there is any."""
        request = etcdrpc.RangeRequest(
            key=prefix.encode(),
            range_end=_end_of(prefix),
            limit=1,
            sort_order=etcdrpc.RangeRequest.ASCEND,
            sort_target=etcdrpc.RangeRequest.CREATE,
        )
        found = [_key_value(kv) for kv in self._call(lambda at: at.kv.Range, request, timeout_s).kvs]
        if found and not _is_direct(found[0], prefix):  # a longer name's: look at all of them
            found = [kv for kv in self.list(prefix, timeout_s) if _is_direct(kv, prefix)]
        return found[0] if found else None

    def exists(self, key: str, create_revision: int, timeout_s: float | None = None) -> bool:
        """Whether `key` is still the one created at that revision."""
        kvs = self._call(lambda at: at.kv.Range, etcdrpc.RangeRequest(key=key.encode()), timeout_s).kvs
        return bool(kvs) and bool(kvs[0].create_revision == create_revision)

    def list(self, prefix: str, timeout_s: float | None = None) -> "list[KeyValue]":
        """All keys under a prefix in the order in which they were created."""
        request = etcdrpc.RangeRequest(
            key=prefix.encode(),
            range_end=_end_of(prefix),
            sort_order=etcdrpc.RangeRequest.ASCEND,
            sort_target=etcdrpc.RangeRequest.CREATE,
        )
        return [_key_value(kv) for kv in self._call(lambda at: at.kv.Range, request, timeout_s).kvs]

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        """The values of those keys that are there, as text."""
        found: dict[str, str] = {}
        for some in _slices(keys):
            ops = [_op(etcdrpc.RangeRequest(key=key.encode())) for key in some]
            # Of a key that is never there: a transaction that only reads could make etcd 3.5.1 panic, see above.
            ops.append(etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=f"{some[0]}\0".encode())))
            for answer in self._call(lambda at: at.kv.Txn, etcdrpc.TxnRequest(success=ops), None).responses:
                found |= {kv.key.decode(): kv.value.decode(errors="replace") for kv in answer.response_range.kvs}
        return found

    def replace(self, values: Mapping[str, str], instead_of: Mapping[str, str]) -> set[str]:
        """Compare and set, each key by itself: put a value if the key has the old one, or is not there and had none.

        Those that were put.
        """
        done: set[str] = set()
        for some in _slices(list(values)):
            # A transaction for each key, within one that asks nothing: one call, and none hinders another.
            ops = [_put_if(key, instead_of.get(key), values[key]) for key in some]
            answers = self._call(lambda at: at.kv.Txn, etcdrpc.TxnRequest(success=ops), None).responses
            done |= {key for key, answer in zip(some, answers, strict=True) if answer.response_txn.succeeded}
        return done

    def revision(self, key: str, timeout_s: float | None = None) -> int:
        """The cluster's revision now: no key was created after it. Needs a quorum, and the right to read `key`."""
        request = etcdrpc.RangeRequest(key=key.encode(), count_only=True)
        return int(self._call(lambda at: at.kv.Range, request, timeout_s).header.revision)

    def ping(self, timeout_s: float | None = None) -> None:
        """Raise `LockUnavailable` unless a quorum answers (a linearizable read needs one)."""
        try:
            self._call(lambda at: at.kv.Range, etcdrpc.RangeRequest(key=b"\0", count_only=True), timeout_s)
        except _Refused as refusal:
            if refusal.code is not grpc.StatusCode.PERMISSION_DENIED:  # that is an answer, too
                raise

    @contextmanager
    def watching(
        self, key: str, wake: Callable[[], None], timeout_s: float | None = None, *, below: bool = False
    ) -> Iterator[Callable[[], bool]]:
        """Call `wake` when `key` is deleted or the watch breaks; yields "will this watch still tell me?".

        `below`: when anything happens to any key that begins so. What happened before the watch was there must be found
        by looking, *after* the watch was created.
        """
        endpoint = self._endpoints[self._current]
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            with ctrl_c_waits():
                stream = endpoint.watches(timeout_s)
            watch = stream.add(key, wake, timeout_s, end=_end_of(key) if below else None)
        except (LockUnavailable, grpc.RpcError, ValueError) as error:
            self._next(endpoint)
            raise LockUnavailable(f"etcd at {endpoint.url} takes no watch: {_text(error)}") from error
        try:
            # A watch on a member that calls no longer go to may be one that is frozen, and would tell nothing.
            yield lambda: watch.alive and self._endpoints[self._current] is endpoint
        finally:
            stream.remove(watch)

    def close(self) -> None:
        """Close the connections. Who waits leaves the queue first; calls under way end with `LockUnavailable`."""
        self.waiters.send_away()
        self._closed = True
        with ctrl_c_waits():
            for endpoint in self._endpoints:
                endpoint.close()

    def _call(
        self,
        method: "Callable[[Endpoint], Callable[..., Any]]",
        request: Any,
        timeout_s: float | None,
        not_answered: Callable[[], None] = lambda: None,
    ) -> Any:
        """Try the endpoints in turn until one answers or the time is over."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        with ctrl_c_waits():
            return self._try_all(method, request, timeout_s, not_answered)

    def _try_all(
        self,
        method: "Callable[[Endpoint], Callable[..., Any]]",
        request: Any,
        timeout_s: float,
        not_answered: Callable[[], None],
    ) -> Any:
        deadline = time.monotonic() + timeout_s
        untried = len(self._endpoints)
        while True:
            endpoint = self._endpoints[self._current]
            # Enough for this try, and leaves something for the members that were not asked yet.
            try_s = max(_MIN_TRY_S, (deadline - time.monotonic()) / max(1, untried))
            token = None
            try:
                token = endpoint.token(try_s)
                answer = method(endpoint)(request, timeout=try_s, metadata=metadata_of(token))
                self.cluster_id = answer.header.cluster_id or self.cluster_id
                return answer
            except grpc.RpcError as error:
                code = error.code()
                if code is grpc.StatusCode.UNAUTHENTICATED and token is not None:
                    endpoint.forget_token(token)  # expired, or from before a restart: log in again
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
                time.sleep(min(_ROUND_PAUSE_S, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                raise LockUnavailable(f"etcd does not answer ({endpoint.url}: {_text(failure)})") from failure

    def _next(self, failed: "Endpoint") -> None:
        # Another thread may have moved on already.
        if self._endpoints[self._current] is failed:
            self._current = (self._current + 1) % len(self._endpoints)


class _Refused(LockUnavailable):
    """etcd answered, with a refusal that asking again will not change."""

    def __init__(self, url: str, code: Any, details: str) -> None:
        super().__init__(f"etcd at {url} refuses: {details or code.name}")
        self.code = code
        self.details = details


def _is_direct(kv: KeyValue, prefix: str) -> bool:
    return "/" not in kv.key[len(prefix) :]


def _created(key: str, revision: int) -> Any:
    return etcdrpc.Compare(
        key=key.encode(), target=etcdrpc.Compare.CREATE, result=etcdrpc.Compare.EQUAL, create_revision=revision
    )


def _put_if(key: str, old: str | None, new: str) -> Any:
    same = _created(key, 0)
    if old is not None:
        same = etcdrpc.Compare(
            key=key.encode(), target=etcdrpc.Compare.VALUE, result=etcdrpc.Compare.EQUAL, value=old.encode()
        )
    put = etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=key.encode(), value=new.encode()))
    return etcdrpc.RequestOp(request_txn=etcdrpc.TxnRequest(compare=[same], success=[put]))


def _slices(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(keys), _OPS_MAX):
        yield keys[first : first + _OPS_MAX]


def _newest(prefix: str, *, limit: int, until: int = 0) -> Any:
    return etcdrpc.RangeRequest(
        key=prefix.encode(),
        range_end=_end_of(prefix),
        limit=limit,
        sort_order=etcdrpc.RangeRequest.DESCEND,
        sort_target=etcdrpc.RangeRequest.CREATE,
        max_create_revision=until,  # 0: no bound
    )


def _op(request: Any) -> Any:
    return etcdrpc.RequestOp(request_range=request)


def _end_of(prefix: str) -> bytes:
    # The first key after all keys with the prefix. Our prefixes end in "/", so the last byte can always grow.
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(errors="replace"), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _text(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else str(error)) or type(error).__name__

"""Calls to etcd: each with a deadline, repeated on the next endpoint, with errors of ours.

The only file that imports etcd3. Its own client is not used: a failed endpoint is banned there for 300 s, a failed
call is not repeated, and calls without a time-out hang for ever. Its messages, stubs and watcher are.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import etcd3
import etcd3.exceptions
import etcd3.watch
import grpc
from etcd3 import etcdrpc

from app.errors import ConfigurationError, LockUnavailable

_ELSEWHERE: Final = {
    # Another member may do better, or this one a moment later. UNAVAILABLE is also "no leader" and "leader changed".
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
}
_DELETIONS: Final = [etcdrpc.WatchCreateRequest.FilterType.Value("NOPUT")]
_ROUND_PAUSE_S: Final = 0.05  # after all endpoints have failed once
_MIN_TRY_S: Final = 0.05
_CHANNEL_OPTIONS: Final = [
    # gRPC's default waits up to two minutes before it connects again to a server that came back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Notices a path that was cut without a word. etcd refuses pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # Two clients of one process must not share a connection that one of them closes.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd keeps it."""

    key: str
    value: bytes
    create_revision: int
    lease_id: int


class EtcdClient:
    """A connection to an etcd cluster. All methods may be called from any thread.

    `endpoints`: URLs (`http://host:port`, or `https://` with TLS). A call is tried on one after the other until one
    answers or `timeout_s` is over; then it raises `LockUnavailable`. Calls must therefore be safe to repeat: each of
    the methods here is.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 2.0,
        user: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> None:
        if not endpoints:
            raise ConfigurationError("at least one etcd endpoint is needed")
        if bool(user) != bool(password):
            raise ConfigurationError("etcd needs both a user and a password, or neither")
        self.timeout_s = timeout_s
        credentials = _tls(ca_file, cert_file, key_file)
        self._endpoints = [_Endpoint(url, credentials, user, password, timeout_s) for url in endpoints]
        # Instances begin at different members, so that the members share the work.
        self._current = random.randrange(len(self._endpoints))  # noqa: S311 - not a secret
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

    def ttl_left(self, lease_id: int, timeout_s: float | None = None) -> int | None:
        """Seconds that a lease has left, None if there is no such lease."""
        request = etcdrpc.LeaseTimeToLiveRequest(ID=lease_id)
        answer = self._call(lambda at: at.lease.LeaseTimeToLive, request, timeout_s)
        return int(answer.TTL) if answer.TTL >= 0 else None

    def put_and_see(
        self, key: str, value: bytes, lease_id: int, prefix: str, timeout_s: float | None = None
    ) -> tuple[KeyValue, KeyValue | None]:
        """Create `key` unless it exists; answer it with the key under `prefix` that was created just before it.

        One transaction. In it the key is the newest under its prefix, so the newest two are the key and its
        predecessor: no second call is needed to know whom to wait for.
        """
        put = etcdrpc.PutRequest(key=key.encode(), value=value, lease=lease_id)
        answer = self._call(
            lambda at: at.kv.Txn,
            etcdrpc.TxnRequest(
                compare=[_created(key, 0)],
                success=[etcdrpc.RequestOp(request_put=put), _op(_newest(prefix, limit=2))],
                failure=[_op(etcdrpc.RangeRequest(key=key.encode()))],
            ),
            timeout_s,
        )
        if answer.succeeded:
            newest = [_key_value(kv) for kv in answer.responses[1].response_range.kvs]
            return newest[0], newest[1] if len(newest) > 1 else None
        # The answer of an earlier try was lost: the key is there, and others may have come since.
        own = _key_value(answer.responses[0].response_range.kvs[0])
        seen = self.see(key, own.create_revision, prefix, timeout_s)
        return own, seen[1]

    def see(
        self, key: str, create_revision: int, prefix: str, timeout_s: float | None = None
    ) -> tuple[bool, KeyValue | None]:
        """Whether `key` is still the one created at that revision, and the key under `prefix` created just before it."""
        answer = self._call(
            lambda at: at.kv.Txn,
            etcdrpc.TxnRequest(
                compare=[_created(key, create_revision)],
                success=[_op(_newest(prefix, limit=1, before=create_revision))],
            ),
            timeout_s,
        )
        if not answer.succeeded:
            return False, None
        kvs = answer.responses[0].response_range.kvs
        return True, _key_value(kvs[0]) if kvs else None

    def exists(self, key: str, create_revision: int, timeout_s: float | None = None) -> bool:
        """Whether `key` is still the one created at that revision."""
        request = etcdrpc.TxnRequest(compare=[_created(key, create_revision)])
        return bool(self._call(lambda at: at.kv.Txn, request, timeout_s).succeeded)

    def list(self, prefix: str, timeout_s: float | None = None) -> "list[KeyValue]":
        """All keys under a prefix in the order in which they were created."""
        request = etcdrpc.RangeRequest(
            key=prefix.encode(),
            range_end=_end_of(prefix),
            sort_order=etcdrpc.RangeRequest.ASCEND,
            sort_target=etcdrpc.RangeRequest.CREATE,
        )
        return [_key_value(kv) for kv in self._call(lambda at: at.kv.Range, request, timeout_s).kvs]

    def ping(self, timeout_s: float | None = None) -> None:
        """Raise `LockUnavailable` unless a quorum answers (a linearizable read needs one)."""
        try:
            self._call(lambda at: at.kv.Range, etcdrpc.RangeRequest(key=b"\0", count_only=True), timeout_s)
        except _Refused as refusal:
            if refusal.code is not grpc.StatusCode.PERMISSION_DENIED:  # that is an answer, too
                raise

    @contextmanager
    def watching(self, key: str, wake: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """Call `wake` when `key` is deleted or the watch breaks; yields "is this watch where calls go now?".

        The watch begins with the next revision, not with a past one: etcd puts a watch from the past into a group that
        it visits every 100 ms, and a deletion that follows closely would be told that late. So what was deleted
        before the watch was there must be found by looking, *after* the watch was created.
        """
        endpoint = self._endpoints[self._current]
        try:
            watcher, watch_id = endpoint.add_watch(key, wake)
        except (TimeoutError, etcd3.exceptions.Etcd3Exception, grpc.RpcError) as error:
            self._next(endpoint)
            raise LockUnavailable(f"etcd at {endpoint.url} takes no watch: {_text(error)}") from error
        try:
            yield lambda: self._endpoints[self._current] is endpoint
        finally:
            with contextlib.suppress(Exception):  # a broken stream has no watches to cancel
                watcher.cancel(watch_id)

    def close(self) -> None:
        """Close the connections."""
        for endpoint in self._endpoints:
            endpoint.close()

    def _call(self, method: "Callable[[_Endpoint], Callable[..., Any]]", request: Any, timeout_s: float | None) -> Any:
        """Try the endpoints in turn until one answers or the time is over."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        untried = len(self._endpoints)
        while True:
            endpoint = self._endpoints[self._current]
            # Enough for this try, and leaves something for the members that were not asked yet.
            try_s = max(_MIN_TRY_S, (deadline - time.monotonic()) / max(1, untried))
            try:
                answer = method(endpoint)(request, timeout=try_s, metadata=endpoint.metadata(try_s))
                self.cluster_id = answer.header.cluster_id or self.cluster_id
                return answer
            except grpc.RpcError as error:
                code = error.code()
                if code is grpc.StatusCode.UNAUTHENTICATED and endpoint.forget_token():
                    continue  # an expired token, or one from before a restart: log in again
                if code not in _ELSEWHERE:
                    raise _Refused(endpoint.url, code, error.details() or "") from error
                failure = error
            self._next(endpoint)
            untried -= 1
            if untried <= 0:
                time.sleep(min(_ROUND_PAUSE_S, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                raise LockUnavailable(f"etcd does not answer ({endpoint.url}: {_text(failure)})") from failure

    def _next(self, failed: "_Endpoint") -> None:
        # Another thread may have moved on already.
        if self._endpoints[self._current] is failed:
            self._current = (self._current + 1) % len(self._endpoints)


class _Refused(LockUnavailable):
    """etcd answered, with a refusal that asking again will not change."""

    def __init__(self, url: str, code: Any, details: str) -> None:
        super().__init__(f"etcd at {url} refuses: {details or code.name}")
        self.code = code
        self.details = details


class _Endpoint:
    """One etcd member: its channel, stubs, watch stream and login token."""

    def __init__(self, url: str, credentials: Any, user: str | None, password: str | None, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"not an etcd endpoint: {url!r} (say http://host:port)")
        target = f"{parts.hostname}:{parts.port or 2379}"
        self.url = f"{parts.scheme}://{target}"
        if parts.scheme == "https":
            self._channel = grpc.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self.kv = etcdrpc.KVStub(self._channel)
        self.lease = etcdrpc.LeaseStub(self._channel)
        self._login = (user, password) if user and password else None
        self._token: str | None = None
        self._timeout_s = timeout_s
        self._mutex = threading.Lock()
        self._adding = threading.Lock()
        self._watcher: Any = None

    def metadata(self, timeout_s: float) -> Sequence[tuple[str, str]]:
        """What goes with each call: the login token, got on first use (etcd may be away when we start)."""
        if self._login is None:
            return ()
        if self._token is None:
            request = etcdrpc.AuthenticateRequest(name=self._login[0], password=self._login[1])
            self._token = etcdrpc.AuthStub(self._channel).Authenticate(request, timeout=timeout_s).token
        return (("token", self._token),)

    def forget_token(self) -> bool:
        """True if there was a token, so that a new login may help."""
        had, self._token = self._token is not None, None
        self.drop_watcher(self._watcher)
        return had

    def keep_alive_once(self, request: Any, *, timeout: float, metadata: Sequence[tuple[str, str]]) -> Any:
        """One request and one answer on a stream of its own, so that it has a deadline like any other call."""
        answers = self.lease.LeaseKeepAlive(iter([request]), timeout=timeout, metadata=metadata)
        try:
            answer = next(answers, None)
        finally:
            answers.cancel()
        if answer is None:
            raise LockUnavailable(f"etcd at {self.url} closed the stream of a renewal")
        return answer

    def add_watch(self, key: str, wake: Callable[[], None]) -> tuple[Any, int]:
        """A watch for the deletion of `key`, on the stream that all watches on this member share."""
        # One at a time: etcd3 lets those behind the first wait without a limit.
        if not self._adding.acquire(timeout=self._timeout_s):
            raise TimeoutError("other watches are waiting")
        try:
            metadata = self.metadata(self._timeout_s)
            with self._mutex:
                if self._watcher is None:
                    stub = etcdrpc.WatchStub(self._channel)
                    self._watcher = etcd3.watch.Watcher(stub, timeout=self._timeout_s, metadata=metadata)
                watcher = self._watcher
            try:
                return watcher, watcher.add_callback(key.encode(), lambda _: wake(), filters=_DELETIONS)
            except Exception:
                # After a time-out the answer may still come, and etcd3 would take it for that of the next watch.
                self.drop_watcher(watcher)
                raise
        finally:
            self._adding.release()

    def drop_watcher(self, watcher: Any) -> None:
        """Close a watch stream that can't be trusted any more; the next watch gets a new one."""
        with self._mutex:
            if watcher is None or self._watcher is not watcher:
                return
            self._watcher = None
        watcher.close()

    def close(self) -> None:
        """Close the stream and the channel."""
        self.drop_watcher(self._watcher)
        self._channel.close()


def _tls(ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> Any:
    if bool(cert_file) != bool(key_file):
        raise ConfigurationError("etcd's client certificate needs both a cert file and a key file")
    try:
        contents = [None if file is None else file.read_bytes() for file in (ca_file, key_file, cert_file)]
    except OSError as error:
        raise ConfigurationError(f"etcd's TLS file can't be read: {error}") from error
    return grpc.ssl_channel_credentials(*contents)


def _created(key: str, revision: int) -> Any:
    return etcdrpc.Compare(
        key=key.encode(), target=etcdrpc.Compare.CREATE, result=etcdrpc.Compare.EQUAL, create_revision=revision
    )


def _newest(prefix: str, *, limit: int, before: int | None = None) -> Any:
    return etcdrpc.RangeRequest(
        key=prefix.encode(),
        range_end=_end_of(prefix),
        limit=limit,
        sort_order=etcdrpc.RangeRequest.DESCEND,
        sort_target=etcdrpc.RangeRequest.CREATE,
        max_create_revision=0 if before is None else before - 1,
    )


def _op(request: Any) -> Any:
    return etcdrpc.RequestOp(request_range=request)


def _end_of(prefix: str) -> bytes:
    # The first key after all keys with the prefix. Our prefixes end in "/", so the last byte can always grow.
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(errors="replace"), kv.value, kv.create_revision, kv.lease)


def _text(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else str(error)) or type(error).__name__

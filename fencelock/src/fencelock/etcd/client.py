"""The etcd client: each call has a deadline, is repeated on the next endpoint, and raises our own errors.

Only this file, `endpoint` and `watch` import etcd3, for its messages and stubs. Its own client is not used: it bans a
failed endpoint for 300 s, repeats no failed call, and lets calls without a time-out hang for ever.
"""

import asyncio
import math
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from etcd3 import etcdrpc

from ..errors import LockUnavailable
from .endpoint import Access, Endpoint, metadata_of
from .watch import Watch

_ELSEWHERE: Final = {
    # Another member may do better, or this one a moment later. UNAVAILABLE is also "no leader" and "leader changed".
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,  # the error of a follower that could not reach a frozen leader
}
# Refusals that a new log-in token may end: ours is from before a change of users, or we have none.
_OUTDATED: Final = ("revision in header is old", "revision of auth store is old", "user name is empty")
_IN_ORDER: Final = {"Range", "Txn", "DeleteRange"}  # requests whose answers are never older than earlier answers
_ROUND_PAUSE_S: Final = 0.05  # after all endpoints have failed once
_MIN_TRY_S: Final = 0.05
_GRANTS_S: Final = 1.0  # for this long after a grant, `ping` trusts that etcd grants leases
_PING_TTL_S: Final = 5
_MEET_S: Final = 0.5  # a member that takes longer is first heard of when a call goes to it


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd keeps it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """A transaction's answer: whether its comparison held, the keys that its last step found, and if it was repeated.

    `again`: an earlier try was not answered, and may have arrived.
    """

    succeeded: bool
    found: list[KeyValue]
    again: bool


class EtcdClient:
    """A connection to an etcd cluster, for one event loop.

    `members`: their URLs, as `endpoint.parse` returns them. A call is tried on one after the other until one answers
    or `timeout_s` is over; then it raises `LockUnavailable`. Calls must therefore be safe to repeat. `unanswered` is
    called for each try of a call that may still arrive.
    """

    def __init__(self, members: Sequence[tuple[str, str]], access: Access, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._endpoints = [Endpoint(*member, access) for member in members]
        # Instances begin at different members, so that the members share the work.
        self._current = random.randrange(len(self._endpoints))  # noqa: S311 - not a secret
        self._closed = False
        self._granted_at = -math.inf  # when etcd last granted a lease
        self._meeting: asyncio.Task[None] | None = None
        self._strange = ""  # why no member may be trusted
        self.granting: set[int] = set()  # the leases that are being asked for
        self.cluster_id: int | None = None
        self.era = 0  # grows when etcd comes back older than it was: our earlier keys are not ours any more
        self._revision = 0  # the highest that was answered in this era

    @property
    def source(self) -> str:
        """The source of our tokens, which are this cluster's revisions."""
        return f"etcd:{self.cluster_id:x}"

    # -- keys --------------------------------------------------------------------------------------------------------

    async def txn(
        self,
        compare: Any,
        then: Sequence[Any],
        otherwise: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        unanswered: Callable[[], object] = lambda: None,
    ) -> TxnAnswer:
        """If all of `compare` hold do `then`, else `otherwise`, in one commit. Raises `NotFound` if a lease is gone."""
        again = False

        def note() -> None:
            nonlocal again
            again = True
            unanswered()

        compares = compare if isinstance(compare, list) else [compare]
        request = etcdrpc.TxnRequest(compare=compares, success=then, failure=otherwise)
        answer = await self._call("Txn", request, timeout_s, note)
        last = answer.responses[-1] if answer.responses else None
        found = [] if last is None or not last.HasField("response_range") else last.response_range.kvs
        return TxnAnswer(answer.succeeded, [_key_value(kv) for kv in found], again)

    async def range(self, request: Any, timeout_s: float | None = None) -> list[KeyValue]:
        """Read keys: see `get`, `newest` and `oldest`."""
        return [_key_value(kv) for kv in (await self._call("Range", request.request_range, timeout_s)).kvs]

    async def read(self, key: str, timeout_s: float | None = None) -> KeyValue | None:
        """Return a key; None if there is no such key."""
        found = await self.range(get(key), timeout_s)
        return found[0] if found else None

    async def delete(self, key: str, timeout_s: float | None = None) -> None:
        """Delete a key; nothing happens if it is gone already."""
        await self._call("DeleteRange", etcdrpc.DeleteRangeRequest(key=key.encode()), timeout_s)

    # -- leases ------------------------------------------------------------------------------------------------------

    async def grant(self, lease_id: int, ttl_s: int, timeout_s: float | None = None) -> int:
        """Grant a lease with the caller's id, and return the TTL in seconds that etcd gives (it has a minimum).

        With an id of our own, a grant whose answer was lost can be repeated, and revoked.
        """
        request = etcdrpc.LeaseGrantRequest(ID=lease_id, TTL=ttl_s)
        self.granting.add(lease_id)
        try:
            answer = await self._call("LeaseGrant", request, timeout_s)
        except RequestRefused as refusal:
            if "lease already exists" in refusal.details:  # our own earlier try, whose answer was lost
                return ttl_s
            raise
        finally:
            self.granting.discard(lease_id)
        self._granted_at = time.monotonic()
        return int(answer.TTL)

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> bool:
        """Renew a lease; False if there is no such lease any more."""
        answer = await self._call("LeaseKeepAlive", etcdrpc.LeaseKeepAliveRequest(ID=lease_id), timeout_s)
        return bool(answer.TTL > 0)

    async def revoke(self, lease_id: int, timeout_s: float | None = None) -> bool:
        """Give a lease back; its keys vanish with it. False, and nothing happens, if etcd has no such lease."""
        try:
            await self._call("LeaseRevoke", etcdrpc.LeaseRevokeRequest(ID=lease_id), timeout_s)
        except NotFound:
            return False
        return True

    async def time_to_live(self, lease_id: int, timeout_s: float | None = None) -> tuple[int, int] | None:
        """Return a lease's seconds left, and its granted TTL in seconds; None if there is no such lease."""
        answer = await self._call("LeaseTimeToLive", etcdrpc.LeaseTimeToLiveRequest(ID=lease_id), timeout_s)
        return (int(answer.TTL), int(answer.grantedTTL)) if answer.TTL >= 0 else None

    # -- the cluster -------------------------------------------------------------------------------------------------

    async def ping(self, timeout_s: float | None = None) -> None:
        """Raise `LockUnavailable` unless a quorum answers (a linearizable read needs one) and grants leases.

        Over its quota etcd answers reads as if nothing was wrong, and grants no leases. A lease that was granted a
        moment ago will do: pings may be many, and each grant is a write.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        try:
            await self._call("Range", etcdrpc.RangeRequest(key=b"\0", count_only=True), timeout_s)
        except RequestRefused as refusal:
            if refusal.code is not grpc.StatusCode.PERMISSION_DENIED:  # that is an answer, too
                raise
        if time.monotonic() - self._granted_at < _GRANTS_S:
            return
        lease_id = new_lease_id()
        await self.grant(lease_id, _PING_TTL_S, deadline - time.monotonic())
        with suppress(LockUnavailable):  # then it runs out
            await self.revoke(lease_id, deadline - time.monotonic())

    async def watch(
        self, key: str, wake: Callable[[], None], timeout_s: float | None = None, *, below: bool = False
    ) -> "KeyWatch":
        """Have `wake` called when `key` is deleted or the watch breaks.

        `below`: for changes of any key with this prefix. The watch reports nothing that happened before it was created,
        so look *after* that. Raises `LockUnavailable`.
        """
        endpoint = self._endpoints[self._current]
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            stream = await endpoint.watches(timeout_s)
            found = None if below else stream.kept(key, wake)
            watch = found or await stream.add(key, wake, timeout_s, end=_end_of(key) if below else None)
        except (LockUnavailable, grpc.RpcError) as error:
            self._next(endpoint)
            raise LockUnavailable(f"etcd at {endpoint.url} takes no watch: {_text(error)}") from error
        return KeyWatch(self, endpoint, watch, kept=found is not None)

    def asks(self, endpoint: Endpoint) -> bool:
        """Return whether calls go to that member now."""
        return self._endpoints[self._current] is endpoint

    async def close(self) -> None:
        """Close the connections. Calls under way end with `LockUnavailable`."""
        self._closed = True
        for endpoint in self._endpoints:
            await endpoint.close()

    # -- a call ------------------------------------------------------------------------------------------------------

    async def _call(
        self, method: str, request: Any, timeout_s: float | None, unanswered: Callable[[], object] = lambda: None
    ) -> Any:
        """Try the endpoints in turn until one answers or the time is over."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        if self._meeting is None:
            self._meeting = asyncio.get_running_loop().create_task(self._meet())
        if not self._meeting.done():
            await asyncio.wait({self._meeting})
        if self._strange:
            raise LockUnavailable(self._strange)
        untried = len(self._endpoints)
        while True:
            endpoint = self._endpoints[self._current]
            # Enough for this try, and leaves something for the members that were not asked yet.
            try_s = max(_MIN_TRY_S, (deadline - time.monotonic()) / max(1, untried))
            token, asked_at, seen = None, time.monotonic(), self._revision
            try:
                token = await endpoint.token(try_s)
                answer = await endpoint.call(method, request, try_s, metadata_of(token))
                endpoint.heard()
                self._ensure_ours(endpoint, answer.header.cluster_id)
                self._ensure_not_older(endpoint, method, answer.header.revision, seen)
                return answer
            except grpc.RpcError as error:
                self._judge(endpoint, error, token, asked_at)
                failure: Exception = error
            except LockUnavailable as error:
                if self._closed:
                    raise
                self._next(endpoint)
                failure = error
            except BaseException:  # the call was cancelled by a program that goes on, and may still arrive
                unanswered()
                raise
            unanswered()
            untried -= 1
            if untried <= 0:
                await asyncio.sleep(max(0.0, min(_ROUND_PAUSE_S, deadline - time.monotonic())))
            aside = [one.aside for one in self._endpoints if one.aside]
            if time.monotonic() >= deadline or len(aside) == len(self._endpoints):
                said = aside if endpoint.aside else [f"{endpoint.url}: {_text(failure)}", *aside]
                raise LockUnavailable(f"etcd does not answer ({'; '.join(said)})") from failure

    def _judge(self, endpoint: Endpoint, error: Any, token: str | None, asked_at: float) -> None:
        """Decide whether a call that failed is tried again, and where. Raises `RequestRefused` if it is not."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            endpoint.not_heard(asked_at, self.timeout_s / 2)
        elif code is grpc.StatusCode.UNAVAILABLE:
            endpoint.not_heard(asked_at)
        else:
            endpoint.heard()
        if endpoint.has_login and (
            code is grpc.StatusCode.UNAUTHENTICATED or any(text in details for text in _OUTDATED)
        ):
            endpoint.forget_token(token)  # the token has expired, or is from before a restart or a change: log in again
        elif code is grpc.StatusCode.NOT_FOUND:
            raise NotFound(endpoint.url, code, details) from error
        elif code not in _ELSEWHERE:
            raise RequestRefused(endpoint.url, code, details) from error
        else:
            self._next(endpoint)

    async def _meet(self) -> None:
        """Ask each member once for its cluster: two clusters would give the same lock to two holders."""
        ids: dict[str, int] = {}

        async def ask(endpoint: Endpoint) -> None:
            with suppress(grpc.RpcError, LockUnavailable):
                answer = await endpoint.call("Status", etcdrpc.StatusRequest(), _MEET_S)
                ids[endpoint.url] = answer.header.cluster_id

        if len(self._endpoints) > 1:
            await asyncio.gather(*map(ask, self._endpoints))
        if len(set(ids.values())) > 1:
            found = ", ".join(f"{one.url} of {ids[one.url]:x}" for one in self._endpoints if one.url in ids)
            self._strange = f"these endpoints of etcd are not one cluster: {found}"

    def _ensure_ours(self, endpoint: Endpoint, cluster_id: int) -> None:
        """Raise `LockUnavailable` if the answer is from another cluster than the first one.

        Its revisions can't be compared with ours, and it doesn't know who has our locks: two clusters would give the
        same lock to two holders. So the processes that use etcd must be restarted when it is replaced.
        """
        ours = self.cluster_id = self.cluster_id or cluster_id or None
        if cluster_id and cluster_id != ours:
            endpoint.leave_aside(
                f"{endpoint.url} is of another cluster, {cluster_id:x}, than what answered first, {ours:x}: "
                "if etcd was replaced, restart this process"
            )
            raise LockUnavailable(endpoint.aside)

    def _ensure_not_older(self, endpoint: Endpoint, method: str, revision: int, seen: int) -> None:
        """Raise `LockUnavailable` if etcd was set back: its revision is lower than one it had answered before we asked.

        It may take others for the holders of our locks, and a lease that we went on renewing might keep alive an old
        key that nobody knows of. So all our keys there count as lost.
        """
        if method not in _IN_ORDER:
            return
        if revision >= min(seen, self._revision):
            self._revision = max(revision, self._revision)
            return
        self.era += 1
        self._revision = revision
        raise LockUnavailable(f"etcd at {endpoint.url} is older than it was: revision {revision} comes after {seen}")

    def _next(self, failed: Endpoint) -> None:
        # Another call may have moved on already.
        if self._endpoints[self._current] is failed:
            count = len(self._endpoints)
            others = [(self._current + step) % count for step in range(1, count + 1)]
            self._current = next((other for other in others if not self._endpoints[other].aside), others[0])


class KeyWatch:
    """A watch. `kept`: the watch existed already, so it has missed nothing."""

    def __init__(self, client: EtcdClient, endpoint: Endpoint, watch: Watch, *, kept: bool) -> None:
        self.kept = kept
        self.made_at = watch.made_at
        self._client = client
        self._endpoint = endpoint
        self._watch = watch

    def will_tell(self) -> bool:
        """Return whether the watch can be trusted to tell.

        Calls go away from a frozen member, whose watches report nothing.
        """
        return self._watch.alive and self._client.asks(self._endpoint)

    def close(self) -> None:
        """Watch no longer."""
        self._watch.stream.keep(self._watch)


class RequestRefused(LockUnavailable):
    """etcd answered, with a refusal that asking again will not change."""

    def __init__(self, url: str, code: Any, details: str) -> None:
        super().__init__(f"etcd at {url} refuses: {details or code.name}")
        self.code = code
        self.details = details


class NotFound(RequestRefused):
    """etcd has no such lease."""


def new_lease_id() -> int:
    """Return a random lease id."""
    return secrets.randbits(62) + 1


# -- what transactions are made of -----------------------------------------------------------------------------------


def created(key: str, revision: int) -> Any:
    """Return a comparison: `key` was created at that revision (0: there is no such key)."""
    equal, what = etcdrpc.Compare.EQUAL, etcdrpc.Compare.CREATE
    return etcdrpc.Compare(key=key.encode(), target=what, result=equal, create_revision=revision)


def modified(key: str, revision: int) -> Any:
    """Return a comparison: `key` was last changed at that revision."""
    equal, what = etcdrpc.Compare.EQUAL, etcdrpc.Compare.MOD
    return etcdrpc.Compare(key=key.encode(), target=what, result=equal, mod_revision=revision)


def valued(key: str, value: bytes) -> Any:
    """Return a comparison: `key` has that value."""
    equal, what = etcdrpc.Compare.EQUAL, etcdrpc.Compare.VALUE
    return etcdrpc.Compare(key=key.encode(), target=what, result=equal, value=value)


def put(key: str, value: bytes, lease_id: int = 0, *, keep_lease: bool = False) -> Any:
    """Return a step: write a key, bound to a lease, to none, or to its present one."""
    request = etcdrpc.PutRequest(key=key.encode(), value=value, lease=lease_id, ignore_lease=keep_lease)
    return etcdrpc.RequestOp(request_put=request)


def delete(key: str) -> Any:
    """Return a step: delete a key."""
    return etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=key.encode()))


def get(key: str) -> Any:
    """Return a step: read a key."""
    return etcdrpc.RequestOp(request_range=etcdrpc.RangeRequest(key=key.encode()))


def newest(prefix: str, *, until: int = 0) -> Any:
    """Return a step: read the two newest keys under a prefix, up to a create revision (0: all)."""
    return _under(prefix, etcdrpc.RangeRequest.DESCEND, limit=2, max_create_revision=until)


def oldest(prefix: str, *, limit: int = 0) -> Any:
    """Return a step: read the keys under a prefix in the order in which they were created."""
    return _under(prefix, etcdrpc.RangeRequest.ASCEND, limit=limit)


def _under(prefix: str, order: Any, **terms: int) -> Any:
    by, end = etcdrpc.RangeRequest.CREATE, _end_of(prefix)
    key = prefix.encode() or b"\0"
    request = etcdrpc.RangeRequest(key=key, range_end=end, sort_order=order, sort_target=by, **terms)
    return etcdrpc.RequestOp(request_range=request)


def _end_of(prefix: str) -> bytes:
    # The first key after all keys with the prefix, whose last byte can always grow in UTF-8; or etcd's word for no end.
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(errors="replace"), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _text(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else str(error)) or type(error).__name__

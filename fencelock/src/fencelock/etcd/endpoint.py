"""An etcd member: its channel, its log-in token, its stream of watches."""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
from etcd3 import etcdrpc

from .. import fork
from ..errors import ConfigurationError, LockError, LockUnavailable
from .watch import WatchStream

_log = logging.getLogger(__name__)

_CHANNEL_OPTIONS: Final = [
    # gRPC's default waits up to two minutes before it connects again to a server that came back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A name is looked up again when its address does not answer; the default is not before 30 s have passed.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Two clients of one process must not share a connection that one of them closes.
    ("grpc.use_local_subchannel_pool", 1),
    # etcd is never asked through a proxy for web pages (`http_proxy`): no other lock's client does that.
    ("grpc.enable_http_proxy", 0),
    # The default, 4 MB, is a queue of 30,000.
    ("grpc.max_receive_message_length", -1),
]
_ASIDE_S: Final = 10.0
_UNREACHABLE_S: Final = 1.0  # then connect anew: a new channel looks the name up at once, not after a back-off
_TOLD_S: Final = 0.1
_AUTH_IS_OFF: Final = "authentication is not enabled"
_used_in: int | None = None  # the generation (see `fork`) of the process that has used gRPC


def use_grpc() -> None:
    """Note that this process uses gRPC from now on. Raises `LockError` where it would hang."""
    global _used_in  # noqa: PLW0603
    if _used_in not in (None, fork.generation):
        raise LockError("gRPC, etcd's client, was in use before the fork: connect after the fork")
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise LockError(
            "gRPC's asyncio, etcd's client, hangs where gevent has patched threading: redis:// and zookeeper:// don't"
        )
    _used_in = fork.generation


@dataclass(frozen=True, slots=True)
class Access:
    """A log-in, and the PEM `files` of the CA, our key and our certificate, which are read at each connection."""

    login: tuple[str, str] | None = field(repr=False, default=None)
    files: tuple[Path | None, Path | None, Path | None] = (None, None, None)

    def credentials(self) -> Any:
        """Return gRPC's credentials for TLS. Raises `OSError`."""
        return grpc.ssl_channel_credentials(*(None if file is None else file.read_bytes() for file in self.files))


def parse(url: str) -> tuple[str, str]:
    """Return the scheme and the host:port of a member. Raises `ConfigurationError`."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 2379
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        # It is not quoted: there may be a password in it, also without an @, if the end is missing.
        raise ConfigurationError("not an etcd endpoint: say http://host:2379 (user and password apart)")
    return parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint:
    """An etcd member, as one event loop uses it."""

    def __init__(self, scheme: str, target: str, access: Access) -> None:
        self.url = f"{scheme}://{target}"
        self._target = target
        self._access = access
        self._secure = scheme == "https"
        self._channel: Any = None  # made at first use
        self._methods: dict[str, Any] = {}
        self._connected_at = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self._cut_off_at = -math.inf  # when a call was cancelled last
        self._closed = False
        self._failing_since: float | None = None
        self._aside, self._aside_until = "", 0.0
        self._auth_is_off = False
        self._token: str | None = None
        self._logging_in = asyncio.Lock()
        self._watches: WatchStream | None = None
        self._watches_token: str | None = None

    @property
    def has_login(self) -> bool:
        """True if we have a user and a password."""
        return self._access.login is not None

    def _connect(self) -> None:
        if self._closed:
            raise LockUnavailable("the connection to etcd is closed")
        if self._channel is not None:
            return
        use_grpc()
        try:
            credentials = self._access.credentials() if self._secure else None
        except OSError as error:
            raise LockUnavailable(f"etcd's TLS file can't be read: {error}") from error
        if credentials is None:
            channel = grpc.aio.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
        else:
            channel = grpc.aio.secure_channel(self._target, credentials, options=_CHANNEL_OPTIONS)
        kv, lease = etcdrpc.KVStub(channel), etcdrpc.LeaseStub(channel)
        self._channel = channel
        self._methods = {
            "Range": kv.Range,
            "Txn": kv.Txn,
            "DeleteRange": kv.DeleteRange,
            "LeaseGrant": lease.LeaseGrant,
            "LeaseRevoke": lease.LeaseRevoke,
            "LeaseTimeToLive": lease.LeaseTimeToLive,
            "LeaseKeepAlive": lease.LeaseKeepAlive,
            "Authenticate": etcdrpc.AuthStub(channel).Authenticate,
            "Status": etcdrpc.MaintenanceStub(channel).Status,
        }

    async def call(self, method: str, request: Any, timeout_s: float, metadata: Sequence[tuple[str, str]] = ()) -> Any:
        """Call one of etcd's methods, with a deadline. Raises `grpc.RpcError`; `LockUnavailable` if it is closed."""
        self._connect()
        try:
            if method != "LeaseKeepAlive":
                return await self._methods[method](request, timeout=timeout_s, metadata=metadata)
            # We want one answer of this stream. We keep our side open until it has come: when a client ends its side,
            # etcd's own proxy ends the whole call.
            stream = self._methods[method](timeout=timeout_s, metadata=metadata)
            try:
                await stream.write(request)
                answer = await stream.read()
                if answer is grpc.aio.EOF:
                    raise LockUnavailable(
                        f"etcd at {self.url} renews no leases: {await stream.details() or 'no answer'}"
                    )
                return answer
            finally:
                stream.cancel()
                self._cut_off_at = time.monotonic()
        except (grpc.aio.UsageError, asyncio.InvalidStateError):
            raise LockUnavailable("the connection to etcd is closed") from None
        except asyncio.CancelledError:
            self._cut_off_at = time.monotonic()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LockUnavailable("the connection to etcd was closed") from None  # gRPC's word for that

    def heard(self) -> None:
        """Note that it has answered a call."""
        self._failing_since = None

    def not_heard(self, since: float, silent_s: float | None = None) -> None:
        """Note that a call sent at `since` got no answer within `silent_s`, or (None) reached no server.

        After a while without any answer, connect anew. A path may break silently: something between acknowledges the
        bytes, or they are lost. gRPC's own pings notice that after a minute, or with other options after 2 to 13
        seconds; and it looks an unknown name up again only after half a minute.
        """
        if self._closed or since < self._connected_at:  # then the call was out on the former channel
            return
        if self._failing_since is None:
            self._failing_since = since
        if time.monotonic() - self._failing_since < (_UNREACHABLE_S if silent_s is None else silent_s):
            return
        if silent_s is not None:
            _log.warning("etcd at %s says nothing; connecting anew", self.url)
        self._failing_since = None
        self._connected_at = time.monotonic()
        # A member that is only slow may still answer the calls under way, so they are not cut off at once.
        self._disconnect(silent_s or _UNREACHABLE_S)

    def _disconnect(self, grace_s: float | None) -> None:
        stream, self._watches = self._watches, None
        channel, self._channel = self._channel, None
        if stream is not None:
            stream.close()  # its watchers are woken, and come here
            self._cut_off_at = time.monotonic()
        if channel is not None:
            closing = asyncio.get_running_loop().create_task(channel.close(grace_s))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    @property
    def aside(self) -> str:
        """The reason why other members are asked first for now; "": there is none."""
        return self._aside if time.monotonic() < self._aside_until else ""

    def leave_aside(self, why: str) -> None:
        """Ask other members first for some seconds, until this one may be repaired."""
        self._aside, self._aside_until = why, time.monotonic() + _ASIDE_S

    async def token(self, timeout_s: float) -> str | None:
        """Return the log-in token; one caller fetches it for all, at first use, as etcd may be away when we start."""
        login = self._access.login
        if login is None or self._token is not None or self._auth_is_off:
            return self._token
        try:
            # etcd takes its time over a password on purpose; many log-ins at once would all be too late.
            async with asyncio.timeout(timeout_s), self._logging_in:
                if self._token is None:
                    request = etcdrpc.AuthenticateRequest(name=login[0], password=login[1])
                    self._token = (await self.call("Authenticate", request, timeout_s)).token
        except TimeoutError:
            raise LockUnavailable(f"a log-in to etcd at {self.url} takes too long") from None
        except grpc.RpcError as error:
            if _AUTH_IS_OFF not in (error.details() or ""):
                raise
            self._auth_is_off = True  # no log-in until a call is refused without a token
        return self._token

    def forget_token(self, token: str | None) -> None:
        """Drop a token that was refused, unless there is a newer one: the next call logs in again."""
        self._auth_is_off = False
        if self._token == token:
            self._token = None

    async def watches(self, timeout_s: float) -> WatchStream:
        """Return the stream that all watches here share; a new one if the last one broke or has an old token."""
        token = await self.token(timeout_s)
        self._connect()
        if self._watches is not None and self._watches_token != token:
            self._watches.close()  # etcd would refuse every new watch on it; its watchers come here
            self._watches = None
        if self._watches is None or self._watches.broken:
            self._watches = WatchStream(etcdrpc.WatchStub(self._channel), metadata_of(token))
            self._watches_token = token
        return self._watches

    async def close(self) -> None:
        """Close the stream and the channel."""
        self._closed = True
        self._disconnect(None)
        if self._closing:
            await asyncio.wait(self._closing)
        await asyncio.sleep(0)  # let the callers whose calls were cut off just now hear of it
        if time.monotonic() - self._cut_off_at < 2 * _TOLD_S:
            # gRPC's own thread tells the loop of their end a moment later, and offers nothing to wait for; if the loop
            # is closed by then, another loop of the process logs an error.
            await asyncio.sleep(_TOLD_S)


def metadata_of(token: str | None) -> Sequence[tuple[str, str]]:
    """Return the metadata of a call with this log-in token."""
    return () if token is None else (("token", token),)

"""One etcd member: its channel and stubs, its log-in token, its stream of watches."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
from etcd3 import etcdrpc

from .. import fork
from ..errors import ConfigurationError, LockError, LockUnavailable
from ..per_loop import PerLoop
from ..steps import Blocking, Step
from .watch import WatchStream

_log = logging.getLogger(__name__)

_CHANNEL_OPTIONS: Final = [
    # gRPC's default waits up to two minutes before it connects again to a server that came back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Two clients of one process must not share a connection that one of them closes.
    ("grpc.use_local_subchannel_pool", 1),
]
_ASIDE_S: Final = 10.0
_used_in: int | None = None  # the generation (see `fork`) of the process that has used gRPC


def is_parents() -> bool:
    """Whether gRPC was used before this process was forked: here it would crash, or wait for ever."""
    return _used_in not in (None, fork.generation)


def use_grpc() -> None:
    """Say that it is used from now on, in this process. Raises `LockError` in a child that can't."""
    global _used_in  # noqa: PLW0603
    if is_parents():
        raise LockError("gRPC, etcd's client, was in use before the fork: connect after the fork")
    _used_in = fork.generation


class Endpoint:
    """A member, and what a process has of it. All methods may be called from any thread."""

    def __init__(self, url: str, credentials: Any, user: str | None, password: str | None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port or 2379
        except ValueError:
            host = None
        if host is None or parts.scheme not in ("http", "https") or "@" in parts.netloc:
            shown = "" if "@" in url else f" {url!r}:"  # there may be a password in it
            raise ConfigurationError(f"not an etcd endpoint:{shown} say http://host:2379 (user and password apart)")
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.url = f"{parts.scheme}://{target}"
        self._target = target
        self._credentials = credentials if parts.scheme == "https" else None
        self._closed = False
        self._login = (user, password) if user and password else None
        self._token: str | None = None
        self._connecting = threading.Lock()
        self._connection: _Connection | None = None  # made at first use
        self._former: _Connection | None = None  # the one before: calls may still be out on it
        self._on_loops = PerLoop(self._connect_on_loop)
        self._connected_at = 0.0
        self._silent_since: float | None = None
        self._aside, self._aside_until = "", 0.0
        self._logging_in = threading.Lock()
        self._mutex = threading.Lock()
        self._watches: WatchStream | None = None
        self._watches_token: str | None = None

    def _connected(self) -> "_Connection":
        with self._connecting:
            if self._closed:
                raise ValueError("the channel is closed")  # as gRPC says it
            if self._connection is None:
                self._connection = _Connection(grpc, self._target, self._credentials)
            return self._connection

    def method(self, name: str) -> Any:
        """One of etcd's methods, for threads."""
        return self._connected().methods[name]

    def method_on_loop(self, name: str) -> Any:
        """The same for tasks of the running loop."""
        with self._connecting:
            if self._closed:
                raise ValueError("the channel is closed")
            return self._on_loops.here().methods[name]

    def _connect_on_loop(self, _: asyncio.AbstractEventLoop) -> "_Connection":
        return _Connection(grpc.aio, self._target, self._credentials)

    def heard(self) -> None:
        """It has answered a call."""
        self._silent_since = None

    def not_heard(self, since: float, silent_s: float) -> None:
        """A call that was sent then had no answer in time. After `silent_s` without any answer connect anew.

        A path may be gone without a word: bytes are acknowledged by what lies between, or lost. gRPC's own pings notice
        that after a minute, or with other options after anything from 2 to 13 seconds.
        """
        with self._mutex:
            if self._closed or since < self._connected_at:  # then the call was out on the former channel
                return
            if self._silent_since is None:
                self._silent_since = since
            if time.monotonic() - self._silent_since < silent_s:
                return
            stream, self._watches = self._watches, None
            self._silent_since = None
            with self._connecting:
                # A member that is only slow may still answer what is out there, so that is not cut off.
                former, self._former, self._connection = self._former, self._connection, None
                self._connected_at = time.monotonic()
                on_loops = self._on_loops.clear()
        _log.warning("etcd at %s says nothing; connecting anew", self.url)
        if stream is not None:
            stream.close()  # whoever watches there is woken, and comes here
        if former is not None:
            former.channel.close()
        for loop, connection in on_loops:
            _close_later(loop, connection)

    @property
    def aside(self) -> str:
        """Why it is not asked for now, if another one can be; empty if it is."""
        return self._aside if time.monotonic() < self._aside_until else ""

    def leave_aside(self, why: str) -> None:
        """Ask others for some seconds: it may be repaired by then."""
        self._aside, self._aside_until = why, time.monotonic() + _ASIDE_S

    async def token(self, timeout_s: float) -> str | None:
        """The login token, got on first use (etcd may be away when we start), by one thread for all."""
        if self._login is None or self._token is not None:
            return self._token
        return await Blocking(lambda: self._log_in(timeout_s))

    def _log_in(self, timeout_s: float) -> str | None:
        # etcd takes its time over a password on purpose; many log-ins at once would all be too late.
        if not self._logging_in.acquire(timeout=timeout_s):
            raise LockUnavailable(f"a log-in to etcd at {self.url} takes too long")
        try:
            if self._token is None and self._login is not None:
                request = etcdrpc.AuthenticateRequest(name=self._login[0], password=self._login[1])
                self._token = etcdrpc.AuthStub(self._connected().channel).Authenticate(request, timeout=timeout_s).token
            return self._token
        finally:
            self._logging_in.release()

    def forget_token(self, token: str) -> None:
        """A call with this token was refused; unless another thread has a newer one, the next call logs in again."""
        with self._mutex:
            if self._token == token:
                self._token = None

    async def watches(self, timeout_s: float) -> WatchStream:
        """The stream that all watches on this member share; a new one when the last one broke, or its token is old."""
        token = await self.token(timeout_s)
        old = None
        with self._mutex:
            if self._watches is not None and self._watches_token != token:
                old, self._watches = self._watches, None  # etcd would refuse every new watch on it
            if self._watches is None or self._watches.broken:
                self._watches = WatchStream(etcdrpc.WatchStub(self._connected().channel), metadata_of(token))
                self._watches_token = token
            stream = self._watches
        if old is not None:
            await Blocking(old.close)  # whoever still watches there is woken, and comes here
        return stream

    def close(self) -> None:
        """Close the stream and the channel."""
        if is_parents():
            return
        with self._mutex:
            self._closed = True
            stream, self._watches = self._watches, None
        if stream is not None:
            stream.close()
        with self._connecting:
            self._closed = True
            for connection in (self._connection, self._former):
                if connection is not None:
                    connection.channel.close()
            on_loops = self._on_loops.clear()
        for loop, connection in on_loops:
            _close_later(loop, connection)

    async def close_on_loop(self) -> None:
        """Close the channel of the running loop."""
        connection = self._on_loops.pop()
        if connection is not None:
            await connection.channel.close()


class Call(Step[Any]):
    """A call of one of etcd's methods, with a deadline. Raises `grpc.RpcError`; `ValueError` if it is closed."""

    def __init__(
        self, endpoint: Endpoint, method: str, request: Any, timeout_s: float, metadata: Sequence[tuple[str, str]]
    ) -> None:
        self._endpoint = endpoint
        self._method = method
        self._request = request
        self._terms = {"timeout": timeout_s, "metadata": metadata}

    def in_thread(self) -> Any:
        """Over the channel of the threads."""
        return self._endpoint.method(self._method)(self._request, **self._terms)

    async def on_loop(self) -> Any:
        """Over the channel of this loop."""
        try:
            return await self._endpoint.method_on_loop(self._method)(self._request, **self._terms)
        except grpc.aio.UsageError:
            raise ValueError("the channel is closed") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LockUnavailable("the connection was closed") from None  # gRPC's word for that


class _Connection:
    """A channel and what can be called over it. `made_by`: gRPC for threads, or for a loop."""

    def __init__(self, made_by: Any, target: str, credentials: Any) -> None:
        if credentials is None:
            self.channel = made_by.insecure_channel(target, options=_CHANNEL_OPTIONS)
        else:
            self.channel = made_by.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
        kv, lease = etcdrpc.KVStub(self.channel), etcdrpc.LeaseStub(self.channel)
        self.methods = {
            "Range": kv.Range,
            "Txn": kv.Txn,
            "DeleteRange": kv.DeleteRange,
            "LeaseGrant": lease.LeaseGrant,
            "LeaseRevoke": lease.LeaseRevoke,
            "LeaseTimeToLive": lease.LeaseTimeToLive,
            # A stream, of which one request and one answer are all we want, with a deadline like any other call.
            "LeaseKeepAlive": self.channel.unary_unary(
                "/etcdserverpb.Lease/LeaseKeepAlive",
                request_serializer=etcdrpc.LeaseKeepAliveRequest.SerializeToString,
                response_deserializer=etcdrpc.LeaseKeepAliveResponse.FromString,
            ),
        }


def _close_later(loop: asyncio.AbstractEventLoop, connection: _Connection) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        asyncio.run_coroutine_threadsafe(connection.channel.close(), loop)


def metadata_of(token: str | None) -> Sequence[tuple[str, str]]:
    """What goes with a call that is made with this log-in token."""
    return () if token is None else (("token", token),)


def tls_credentials(ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> Any:
    """gRPC's credentials from PEM files; `ConfigurationError` if they can't be read."""
    if bool(cert_file) != bool(key_file):
        raise ConfigurationError("etcd's client certificate needs both a cert file and a key file")
    try:
        contents = [None if file is None else file.read_bytes() for file in (ca_file, key_file, cert_file)]
    except OSError as error:
        raise ConfigurationError(f"etcd's TLS file can't be read: {error}") from error
    return grpc.ssl_channel_credentials(*contents)

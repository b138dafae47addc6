"""One etcd member: its channel and stubs, its log-in token, its stream of watches."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
from etcd3 import etcdrpc

from app.common import fork
from app.errors import ConfigurationError, LockUnavailable
from app.locks.etcd.gate import GATE
from app.locks.etcd.watch import WatchStream

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
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        if not GATE.usable:
            return  # what the parent had of gRPC must not even be deleted
        self._connecting = threading.Lock()
        self._connection: _Connection | None = None  # made at first use
        self._former: _Connection | None = None  # the one before: calls may still be out on it
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
                self._connection = _Connection(self._target, self._credentials)
            return self._connection

    @property
    def kv(self) -> Any:
        """Calls about keys."""
        return self._connected().kv

    @property
    def lease(self) -> Any:
        """Calls about leases."""
        return self._connected().lease

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
        _log.warning("etcd at %s says nothing; connecting anew", self.url)
        if stream is not None:
            stream.close()  # whoever watches there is woken, and comes here
        if former is not None:
            former.channel.close()

    @property
    def aside(self) -> str:
        """Why it is not asked for now, if another one can be; empty if it is."""
        return self._aside if time.monotonic() < self._aside_until else ""

    def leave_aside(self, why: str) -> None:
        """Ask others for some seconds: it may be repaired by then."""
        self._aside, self._aside_until = why, time.monotonic() + _ASIDE_S

    def token(self, timeout_s: float) -> str | None:
        """The login token, got on first use (etcd may be away when we start), by one thread for all."""
        if self._login is None or self._token is not None:
            return self._token
        # etcd takes its time over a password on purpose; many log-ins at once would all be too late.
        if not self._logging_in.acquire(timeout=timeout_s):
            raise LockUnavailable(f"a log-in to etcd at {self.url} takes too long")
        try:
            if self._token is None:
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

    def watches(self, timeout_s: float) -> WatchStream:
        """The stream that all watches on this member share; a new one when the last one broke, or its token is old."""
        token = self.token(timeout_s)
        old = None
        with self._mutex:
            if self._watches is not None and self._watches_token != token:
                old, self._watches = self._watches, None  # etcd would refuse every new watch on it
            if self._watches is None or self._watches.broken:
                self._watches = WatchStream(etcdrpc.WatchStub(self._connected().channel), metadata_of(token))
                self._watches_token = token
            stream = self._watches
        if old is not None:
            old.close()  # whoever still watches there is woken, and comes here
        return stream

    def close(self) -> None:
        """Close the stream and the channel."""
        if not GATE.usable:
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


class _Connection:
    """A channel and its stubs."""

    def __init__(self, target: str, credentials: Any) -> None:
        if credentials is None:
            self.channel = grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
        else:
            self.channel = grpc.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
        self.kv = etcdrpc.KVStub(self.channel)
        self.lease = etcdrpc.LeaseStub(self.channel)


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

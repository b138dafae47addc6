"""A session with ZooKeeper, over kazoo: kazoo's one thread speaks the protocol, and passes all it hears to our loop.

In `fencelock` only this file imports kazoo. The session lives on when its connection breaks, if kazoo finds a server in
time. A session is ended if the creation of a contender's node got no answer, or an impossible one: else a node may stay
that nobody looks for.
"""

import asyncio
import contextlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from ..callbacks import Callbacks
from ..errors import ConfigurationError, LockUnavailable
from ..portal import Selector

_log = logging.getLogger(__name__)
_kazoo = logging.getLogger(f"{__name__}.kazoo")  # it warns of each try; this file logs each fault once
_kazoo.setLevel(logging.CRITICAL)

# The part of the session's timeout for which a lease is trusted. An answer proves that the session lived, but not that
# its timeout began anew: a follower reports only now and then which sessions it heard from, and not if it dies first.
_BELIEVED: Final = 2 / 3
_BEAT: Final = 1 / 8  # the part of the timeout after which the loop reports that it runs
_HANGS: Final = 1 / 2  # the part of the timeout after which a silent loop keeps no session alive
_END_S: Final = 1.0
_CLOSE_S: Final = 10.0  # for so long at most we wait for a server's word that a session has ended
_AGAIN_S: Final = 0.1
_TRIES: Final = 5  # to create a node whose parent others delete again and again
_TIMEOUT: Final = struct.Struct(">8xi")
_CONTAINER: Final = 4  # a node that the server removes some time after its last child
# Refusals that prove that nothing was done. Any other error leaves that open.
_CLEAR: Final = tuple(EXCEPTIONS[code] for code in (-101, -110, -102, -6, -8, -103, -108, -111, -114, -124, -125, -127))
_IS_NOT_SO: Final = (NoNodeError, NodeExistsError)  # these count as answers
Missing: Final = NoNodeError


@dataclass(frozen=True, slots=True)
class Login:
    """The servers' addresses, and our log-in."""

    hosts: str  # "host:port,host:port/folder", see `parse`
    timeout_s: float
    user: str = ""
    password: str = ""
    sasl: str = ""  # the mechanism of the log-in; "": ZooKeeper's digest scheme
    tls: bool = False
    files: tuple[str | None, str | None, str | None] = (None, None, None)  # of the CA, our certificate, our key

    @property
    def logged_in(self) -> bool:
        """True if only clients with the same log-in may use our nodes."""
        return bool(self.user or self.sasl)

    def client(self, handler: Any, session_s: float) -> Any:
        """Return kazoo's client, not started yet."""
        sasl = None
        if self.sasl:
            sasl = {"mechanism": self.sasl} | ({"username": self.user, "password": self.password} if self.user else {})
        ca, cert, key = self.files
        return KazooClient(
            hosts=self.hosts,
            timeout=session_s,
            handler=handler,
            auth_data=[("digest", f"{self.user}:{self.password}")] if self.user and not self.sasl else None,
            sasl_options=sasl,
            connection_retry=KazooRetry(max_tries=-1, delay=_AGAIN_S, max_delay=1.0, sleep_func=handler.sleep_func),
            logger=_kazoo,
            use_ssl=self.tls,
            check_hostname=self.tls,
            ca=ca,
            certfile=cert,
            keyfile=key,
        )


def parse(hosts: str) -> str:
    """Return the text. Raises `ConfigurationError` if it is not "host:port,host:port", perhaps with "/folder"."""
    try:
        for one in hosts.partition("/")[0].split(","):
            parts = urlsplit(f"//{one.strip()}")
            (parts.hostname or "").encode("idna")
            if not parts.hostname or parts.username is not None or parts.port == 0:
                raise ValueError
    except ValueError:
        # Never quoted: somebody may have put a password there.
        raise ConfigurationError(
            "not ZooKeeper's hosts: say host:port,host:port and, for a part of its tree, /folder after that"
        ) from None
    return hosts


class _Socket:
    """A connection, of which we read the beginning, too: the server says there how long a session lasts in silence.

    kazoo keeps that to itself. It is the second number of the answer, behind the length and the protocol's version.
    """

    def __init__(self, socket: Any, told: Callable[[float], None]) -> None:
        self._socket = socket
        self._told = told
        self._begin = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self, size: int) -> bytes:
        data: bytes = self._socket.recv(size)
        self._begin += data
        if len(self._begin) >= _TIMEOUT.size:
            self._told(_TIMEOUT.unpack_from(self._begin)[0] / 1000)
            self.recv = self._socket.recv  # type: ignore[method-assign]
        return data


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's thread; its callbacks run on our loop, in order. If the loop hangs, nothing keeps the session alive.

    `session_s`: the session's timeout, by the server's last answer.
    """

    running = True

    def __init__(self, loop: asyncio.AbstractEventLoop, session_s: float, timeout_s: float) -> None:
        super().__init__()
        self._loop = loop
        self.completion_queue = self.callback_queue = self  # in the place of the workers'
        self._stopped = threading.Event()
        self._silent = False  # the last look found nothing from the server
        self.session_s = session_s
        self.timeout_s = timeout_s
        self.beat = time.monotonic()
        self.client: Any = None
        self.thread: threading.Thread
        self.ended: Callable[[], None] = lambda: None

    def put(self, work: Callable[..., object], *args: Any) -> None:
        """Call something on the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work, *args)

    def start(self) -> None:
        """Start no workers."""
        self._stopped.clear()

    def stop(self) -> None:
        """End a wait for a loop that hangs."""
        self._stopped.set()

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except Exception as error:  # the server is no ZooKeeper
                _log.debug("kazoo ends: %r", error)
            self.ended()

        self.thread = threading.Thread(target=run, name="fencelock-zookeeper", daemon=True)
        self.thread.start()
        return self.thread

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        def told(session_s: float) -> None:
            self.session_s = session_s

        kwargs["timeout"] = min(kwargs["timeout"], self.timeout_s)
        return _Socket(super().create_connection(*args, **kwargs), told)

    def select(self, read: Sequence[Any], write: Sequence[Any], _: object, timeout: float) -> Any:
        """Wait, as `select.select` does, in kazoo's thread. `read` begins with the server's socket, if it is read."""
        while not self._stopped.is_set() and (
            self._loop.is_closed() or time.monotonic() - self.beat > self.session_s * _HANGS
        ):
            if self._loop.is_closed():
                threading.Thread(target=_stop, args=(self.client,), name="fencelock-zookeeper-end", daemon=True).start()
                self._stopped.wait(1)
            time.sleep(0.02)
        buffered = [one for one in read if getattr(one, "pending", int)()]  # TLS has read it already
        if buffered:
            return buffered, [], []
        if not self.client.connected:
            timeout, self._silent = min(timeout, self.timeout_s), False
        elif self._silent:  # a server may pause for as long as a lease is trusted; kazoo hangs up at the second look
            timeout = max(timeout, self.session_s * _BELIEVED)
        with Selector() as selector:  # quicker than kazoo's own, which makes an epoll each time
            for one in {*read, *write}:
                selector.register(one, (one in read) * EVENT_READ | (one in write) * EVENT_WRITE)
            ready = {key.fileobj for key, _ in selector.select(timeout)}
        readable, writable = [one for one in read if one in ready], [one for one in write if one in ready]
        if read and (not readable or read[0] in readable):
            self._silent = not readable
        return readable, writable, []


def _stop(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.stop()
        client.close()


class _CreateContainer(Create):  # type: ignore[misc]
    type = 19


class Created(NamedTuple):
    """A contender's node, and the names of all contenders just after."""

    path: str
    czxid: int
    names: list[str]


class NotAllowed(LockUnavailable):
    """Our log-in may not do this: a retry can't help, but another node may allow it."""


class ZooKeeperSession:
    """A session that connects in the background, for as long as that takes, on the loop where it was made.

    Once it has connected, `session_s` is its timeout, and `ttl_s` how long its nodes can be trusted, from the sending
    of a request that was answered. `over`: the reason why it is over; None before.
    """

    def __init__(self, access: Login, session_s: float) -> None:
        self.over: str | None = None
        self.sources: dict[str, str] = {}  # see `ZooKeeperClient.source`
        self.session_s = session_s
        self.id: tuple[int, bytes] | None = None
        self._access = access
        self._silent = f"ZooKeeper at {access.hosts} does not answer{' over TLS' if access.tls else ''}"
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()  # it is connected, or over
        self._on_over = Callbacks()
        self._ended = asyncio.Event()
        self._asked = 0  # requests under way
        self._silent_since: float | None = None
        self.used_at = time.monotonic()  # when a caller last asked it for anything
        self._unwanted: set[str] = set()  # nodes that could not be deleted for want of a connection
        self._handler = _Handler(self._loop, session_s, access.timeout_s)
        self._tell = self._handler.put
        self.client = self._handler.client = access.client(self._handler, session_s)
        self.client.add_listener(self._heard)
        self._handler.ended = lambda: self._tell(self.end, "what answers does not speak ZooKeeper's protocol")
        self._live = self.client.start_async()
        self._timer = self._loop.call_soon(self._look)

    @property
    def ttl_s(self) -> float:
        """The seconds for which its leases are trusted: two thirds of its timeout."""
        return self.session_s * _BELIEVED

    # -- begin and end -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True while it is connected, as far as we know."""
        return self._ready.is_set() and self.over is None

    @property
    def idle(self) -> bool:
        """True while it is connected and unused: no request is pending, and no node's owner would hear of its end."""
        return self.ready and not self._on_over and not self._asked

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until it is connected. Raises `LockUnavailable` if it is not within that time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise LockUnavailable(self._silent) from None
        self._refuse_if_over()

    def on_over(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once when it is over (now, if it is). The returned function unsubscribes."""
        return self._on_over.subscribe(callback)

    def end(self, why: str) -> None:
        """End the session: for us at once; for ZooKeeper when the message arrives, or else after `session_s`."""
        if self.over is not None:
            return
        self.over = why
        self._timer.cancel()
        self._ready.set()
        self._on_over.fire()  # a holder must know before the server gives the lock to others
        threading.Thread(target=self._close, name="fencelock-zookeeper-end", daemon=True).start()

    def _close(self) -> None:
        # The server keeps the session and its nodes until its timeout, even without a connection: so end it.
        self._handler.beat = time.monotonic() + self.session_s  # this works without a running loop
        until = time.monotonic() + min(self.session_s, _CLOSE_S)
        while self.id is not None and time.monotonic() < until and self._handler.thread.is_alive():
            if self._live.wait(_AGAIN_S):
                break
        _stop(self.client)
        self._tell(self._ended.set)

    async def close(self, why: str) -> None:
        """End the session, and wait a little for ZooKeeper to hear of it."""
        self.end(why)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._ended.wait()

    def _refuse_if_over(self) -> None:
        if self.over is not None:
            raise LockUnavailable(self.over)

    # -- news from kazoo ---------------------------------------------------------------------------------------------

    def _heard(self, state: str) -> None:
        """Pass a change of the connection's state on to the loop. kazoo's thread calls it."""
        if state == KazooState.CONNECTED:
            self._tell(self._connected, self._handler.session_s, self.client.client_id)
        elif state == KazooState.LOST:
            refused = self.client.client_state == KeeperState.AUTH_FAILED
            self._tell(self.end, "ZooKeeper refuses the log-in" if refused else "the session with ZooKeeper is over")
        else:
            self._tell(self._broken)

    def _connected(self, session_s: float, session: tuple[int, bytes]) -> None:
        if self.over is not None:
            return
        if self.id is not None and (self.id != session or session_s < self.session_s):  # its leases are trusted longer
            self.end("the session with ZooKeeper is over, or shorter than it was")
            return
        self.id, self.session_s, self._silent_since = session, session_s, None
        self._ready.set()
        unwanted, self._unwanted = self._unwanted, set()
        for path in unwanted:
            self.delete_soon(path)

    def _broken(self) -> None:
        if self.over is None and self._ready.is_set():
            self._ready.clear()
            self._silent_since = time.monotonic()
            _log.warning("the connection to ZooKeeper broke; connecting anew")

    def _look(self) -> None:
        """Report that the loop runs, and leave a server that is silent."""
        now = self._handler.beat = time.monotonic()
        if self._silent_since is not None and now > self._silent_since + self.ttl_s:
            self.end("ZooKeeper did not answer for too long")
        else:
            self._timer = self._loop.call_later(self.session_s * _BEAT, self._look)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _ask(self, call: Callable[..., Any], path: str, *args: Any, **options: Any) -> "asyncio.Future[Any]":
        """Make one of kazoo's calls; the future gets its answer or its error. Raises `LockUnavailable`."""
        self._refuse_if_over()
        if not self._ready.is_set():  # kazoo would send it later
            raise LockUnavailable("there is no connection to ZooKeeper")
        try:
            path.encode()
        except ValueError as error:
            raise LockUnavailable(f"ZooKeeper can't have a node of that name: {error}") from None
        self._asked += 1
        self.used_at = time.monotonic()
        if self._silent_since is None:
            self._silent_since = time.monotonic()
        future: asyncio.Future[Any] = self._loop.create_future()

        def answered(result: Any) -> None:
            self._asked -= 1
            if self._ready.is_set():  # else it is the end of a connection, and no answer
                self._silent_since = time.monotonic() if self._asked else None
            if not future.done():
                future.set_result(result.value if result.exception is None else result.exception)

        call(path, *args, **options).rawlink(answered)
        return future

    async def answers(self, timeout_s: float, *futures: "asyncio.Future[Any]") -> list[Any]:
        """Return the answers, `NoNodeError` and `NodeExistsError` among them; raise others as `LockUnavailable`."""
        _, missing = await asyncio.wait(futures, timeout=max(0.0, timeout_s))
        self._refuse_if_over()
        if missing:
            raise LockUnavailable(self._silent)
        return [_checked(future.result()) for future in futures]

    async def create(self, parent: str, prefix: str, data: bytes, timeout_s: float) -> Created:
        """Create a contender's node, and its parents where they are missing; mostly in one round trip.

        Raises `LockUnavailable`; a node that was created all the same is deleted.
        """
        deadline = time.monotonic() + timeout_s
        for _ in range(_TRIES):
            created, names = await self._create(f"{parent}/{prefix}", data, deadline)
            if not isinstance(created, NoNodeError):
                break
            # The first contender ever; or the container was empty, and the server has removed it.
            await self.make_folder(parent, deadline - time.monotonic())
        if isinstance(created, _IS_NOT_SO) or isinstance(names, _IS_NOT_SO):
            raise uncreatable(parent)
        path, stat = created
        if not path.startswith(f"{parent}/{prefix}"):
            self.end("ZooKeeper answers another name than was created")
            self._refuse_if_over()
        return Created(path, stat.czxid, names)

    async def _create(self, path: str, data: bytes, deadline: float) -> list[Any]:
        options = {"ephemeral": True, "sequence": True, "include_data": True, "acl": self.rights()}
        created = self._ask(self.client.create_async, path, data, **options)
        names = self._ask(self.client.get_children_async, path.rpartition("/")[0])
        try:
            return await self.answers(deadline - time.monotonic(), created, names)
        except BaseException:
            if created.done():
                self._undo(created)
            else:
                created.add_done_callback(self._undo)
            raise

    def _undo(self, created: "asyncio.Future[Any]") -> None:
        """Delete a node that was created after its caller had left; end the session if that is unknown."""
        answer = None if created.cancelled() else created.result()
        if isinstance(answer, tuple):
            self.delete_soon(answer[0])
        elif not isinstance(answer, _CLEAR):
            self.end("a session with ZooKeeper was in doubt: the answer to a create was lost")

    def rights(self, *, readable: bool = False) -> Any:
        """Return a node's ACL: for clients with our log-in, or for all. `readable`: everybody can read it."""
        if not self._access.logged_in:
            return OPEN_ACL_UNSAFE
        return [make_acl("auth", "", all=True), *([make_acl("world", "anyone", read=True)] if readable else [])]

    async def make_folder(self, path: str, timeout_s: float) -> None:
        """Create a node and its parents, where missing, as containers, which the server removes when empty."""
        parts = path.split("/")[1:]
        folders = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
        try:
            await self.answers(timeout_s, *(self._ask(self._container_async, folder) for folder in folders))
        except NotAllowed:
            # ZooKeeper answers so even for a node that is there, if we may not write to its parent.
            there = await self.answers(timeout_s, *(self._ask(self.client.exists_async, folder) for folder in folders))
            if None in there:
                raise

    def _container_async(self, path: str) -> Any:
        """Create a container, for which kazoo has no method."""
        result = self._handler.async_result()
        self.client._call(_CreateContainer(self.client.chroot + path, b"", self.rights(), _CONTAINER), result)
        return result

    async def get(
        self, timeout_s: float, *paths: str, synced: bool = False, watch: Callable[[Any], None] | None = None
    ) -> list[Any]:
        """Return nodes' texts and stats; `NoNodeError` for each that is not there.

        `synced`: as new as the leader's, as a follower that is cut off goes on answering for a while. `watch`: called
        when an existing node is deleted or changed, or when its watch has ended.
        """
        calls = [self._ask(self.client.sync_async, "/")] if synced else []
        calls += [self._ask(self.client.get_async, path, watch=watch) for path in paths]
        return (await self.answers(timeout_s, *calls))[synced:]

    async def lists(self, timeout_s: float, *paths: str) -> list[Any]:
        """Return the names of each node's children; `NoNodeError` for each that is not there."""
        return await self.answers(timeout_s, *(self._ask(self.client.get_children_async, path) for path in paths))

    async def put(self, path: str, data: bytes, timeout_s: float) -> None:
        """Create a persistent node that others can read, unless it exists."""
        acl = self.rights(readable=True)
        await self.answers(timeout_s, self._ask(self.client.create_async, path, data, acl=acl))

    async def write(self, place: str, path: str, data: bytes, version: int | None, timeout_s: float) -> bool:
        """Write a persistent node's text, if our node is at that place; `version`: to overwrite, if any.

        Returns False, without writing, if our node is gone, or the version has changed.
        """
        change = self.client.transaction()
        change.check(place, -1)  # any version
        if version is None:
            change.create(path, data, acl=self.rights())
        else:
            change.set_data(path, data, version)
        (answer,) = await self.answers(timeout_s, self._ask(lambda _: change.commit_async(), path))
        why = [one for one in answer if isinstance(one, Exception) and not isinstance(one, RolledBackError)]
        if why and not isinstance(why[0], (*_IS_NOT_SO, BadVersionError)):
            _checked(why[0])
        return not why

    async def delete(self, path: str, timeout_s: float) -> None:
        """Delete a node; nothing happens if it is gone, or if the session is over, which takes its nodes along.

        If there is no answer, it is deleted as soon as there is a connection again.
        """
        if self.over is None:
            await self.answers(timeout_s, self._delete(path))

    def delete_soon(self, path: str) -> None:
        """Delete a node without waiting for an answer."""
        with contextlib.suppress(LockUnavailable):
            self._delete(path)

    def _delete(self, path: str) -> "asyncio.Future[Any]":
        def deleted(done: "asyncio.Future[Any]") -> None:
            if isinstance(done.result(), Exception) and not isinstance(done.result(), _CLEAR):
                self._unwanted.add(path)

        try:
            deleting = self._ask(self.client.delete_async, path)
        except LockUnavailable:
            self._unwanted.add(path)
            raise
        deleting.add_done_callback(deleted)
        return deleting


def _checked(answer: Any) -> Any:
    if not isinstance(answer, Exception) or isinstance(answer, _IS_NOT_SO):
        return answer
    if isinstance(answer, NoAuthError):
        raise NotAllowed("ZooKeeper does not allow that: the log-in is missing or has no right to it (NoAuth)")
    if isinstance(answer, AuthFailedError):
        raise LockUnavailable("ZooKeeper refuses the log-in")
    said = f"ZooKeeper refuses that: {type(answer).__name__}"
    raise LockUnavailable(said if isinstance(answer, KazooException) else f"{said} {answer}") from answer


def uncreatable(path: str) -> LockUnavailable:
    """Return the error of a node whose parent is never there."""
    return LockUnavailable(f"{path} can't be created in ZooKeeper: what it is in is not there, or is deleted each time")

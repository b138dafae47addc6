"""Calls to ZooKeeper: each with a deadline, with errors of ours. The only file that imports kazoo.

Only kazoo's asynchronous calls are used: the others block, with no deadline, for as long as it is undecided whether a
broken connection comes back. Here it never does: a session is over when its connection is, and another one is made.
So whatever a session left behind goes with it, and nobody has to look for it.
"""

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from .. import fork
from ..callbacks import Callbacks
from ..errors import ConfigurationError, LockUnavailable
from ..steps import Step
from ..waiting import Wake

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        BadVersionError,
        ConnectionLoss,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        SessionExpiredError,
    )
    from kazoo.protocol.states import KazooState
    from kazoo.retry import KazooRetry
    from kazoo.security import CREATOR_ALL_ACL
except ImportError:  # an extra: said when a client is made
    KazooClient = None

_log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL + 1)  # its warnings are ours to say; its details have the password

# A lease is believed in for so much of the session. An answer proves that the session lived, but not that its timeout
# began anew: a follower tells the leader only now and then whom it heard of, and tells it nothing if it dies first.
_BELIEVED: Final = 2 / 3
_RECONNECT_S: Final = 0.1
_TELL_S: Final = 1.0  # for those who hold something, to learn that they have lost it
_END_S: Final = 1.0
_TRIES: Final = 5  # at a node that others delete again and again
_BATCH: Final = 100  # requests under way at once
_TIMES: Final = 30


@dataclass(frozen=True, slots=True)
class Found:
    """A node as ZooKeeper keeps it."""

    path: str
    data: bytes
    czxid: int


@dataclass(frozen=True, slots=True)
class Created:
    """A contender's node, and the names of all contenders just after."""

    path: str
    czxid: int
    names: list[str]


class _Answered(Step[bool]):
    """Whether a call of kazoo's has its answer, within some seconds."""

    def __init__(self, result: Any, timeout_s: float) -> None:
        self._result = result
        self._timeout_s = max(0.0, timeout_s)

    def in_thread(self) -> bool:
        """Block."""
        return bool(self._result.wait(self._timeout_s))

    async def on_loop(self) -> bool:
        """Let others go on."""
        wake = Wake()
        self._result.rawlink(lambda _: wake.set())
        if not self._result.ready():
            await wake.sleep(self._timeout_s)
        return bool(self._result.ready())


def sequence(name: str) -> str | None:
    """What a contender's name is ordered by, as Curator does it: the text after the last "lock-"; None for others."""
    _, lock, number = name.rpartition("lock-")
    return number if lock and number.isdecimal() else None


class Session:
    """A session with ZooKeeper, over for good when its connection breaks. Those of its methods that ask it are steps.

    It connects in the background, for as long as that takes. Once it has: `session_s` is its timeout, `ttl_s` how long
    one may believe in what it keeps, from the sending of a request that was answered. `over`: why it is over; None
    before.
    """

    def __init__(self, hosts: str, session_s: float, auth: str | None) -> None:
        self.over: str | None = None
        self.session_s = session_s
        self.sources: dict[str, str] = {}
        self._kazoo = KazooClient(
            hosts=hosts,
            timeout=session_s,
            logger=_kazoo_log,
            auth_data=[("digest", auth)] if auth else None,
            # Whoever is not logged in alike could delete our nodes otherwise.
            default_acl=CREATOR_ALL_ACL if auth else None,
            connection_retry=KazooRetry(max_tries=-1, delay=_RECONNECT_S, backoff=1, max_jitter=0),
        )
        self._mutex = threading.Lock()
        self._connected = threading.Event()  # or over
        self._on_connected = Callbacks()
        self._reconnected = threading.Event()
        self._on_over = Callbacks()
        self._ending: threading.Thread | None = None
        self._silent_since: float | None = None
        self._watching: dict[str, list[Callable[[], None]]] = {}
        self._learn_timeout()
        self._notice_the_end()
        self._kazoo.add_listener(self._state_changed)
        self._kazoo.start_async()

    @property
    def ttl_s(self) -> float:
        """Two thirds of the session's timeout."""
        return self.session_s * _BELIEVED

    # -- begin and end -----------------------------------------------------------------------------------------------

    def _learn_timeout(self) -> None:
        # What was negotiated is not what was asked for if the server has limits; kazoo knows it, but does not say.
        connect = self._kazoo._connection._connect

        def connect_and_learn(*address: Any) -> Any:
            read_ms, connect_ms = connect(*address)
            if self.over is not None:
                self._reconnected.set()
            elif not self._connected.is_set():
                self.session_s = read_ms * 1.5 / 1000
                self._connected.set()
                self._on_connected.fire()
            return read_ms, connect_ms

        self._kazoo._connection._connect = connect_and_learn

    def _notice_the_end(self) -> None:
        # kazoo's thread ends at an answer that it doesn't expect, and before there was a session its listeners hear
        # nothing of that: nobody would ever be connected again.
        run = self._kazoo._connection.zk_loop

        def run_and_tell() -> None:
            why = "the connection to ZooKeeper was given up"
            try:
                run()
            except Exception as error:
                why = f"what answers does not speak ZooKeeper's protocol: {type(error).__name__}"
            finally:
                self.end(why)
                self._reconnected.set()

        self._kazoo._connection.zk_loop = run_and_tell

    def _state_changed(self, state: str) -> None:
        """Called on kazoo's thread, which nothing must hold up."""
        if state != KazooState.CONNECTED:
            self.end("the connection to ZooKeeper broke")
        if state == KazooState.LOST:
            self._reconnected.set()  # there is nothing left to come back for

    @property
    def ready(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self._connected.is_set() and self.over is None

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when it is connected. Raises `LockUnavailable` if it is not within that time."""
        if not self._connected.is_set():
            wake = Wake()
            forget = self._on_connected.subscribe(wake.set)
            try:
                await wake.wait(timeout_s)
            finally:
                forget()
        if not self._connected.is_set():
            raise LockUnavailable("ZooKeeper does not answer")
        self._refuse_if_over()

    def on_over(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once when it is over (now, if it is); the answer takes that back."""
        return self._on_over.subscribe(callback)

    def end(self, why: str) -> None:
        """Be over: now for us; for ZooKeeper as soon as it hears of it, or else after `session_s`."""
        told = threading.Event()
        with self._mutex:
            if self.over is not None:
                return
            was_connected = self._connected.is_set()
            self.over = why
            self._connected.set()
            self._on_connected.fire()
            self._ending = threading.Thread(
                target=self._close, args=(was_connected, told), name="fencelock-zookeeper-end", daemon=True
            )
            self._ending.start()
        self._on_over.fire()
        told.set()

    def _close(self, was_connected: bool, told: threading.Event) -> None:
        # A holder must know before the server gives the lock to others; but a callback that blocks must not keep it.
        told.wait(_TELL_S)
        if was_connected and not self._kazoo.connected:
            # kazoo comes back with the same session, by itself. Ended then, its nodes go at once, not at its timeout.
            self._reconnected.wait(self.session_s)
        try:
            self._kazoo.stop()
            self._kazoo.close()
        except (KazooException, OSError) as error:
            _log.warning("a connection to ZooKeeper was not closed: %s", type(error).__name__)

    def join(self) -> None:
        """Wait a little for the end to have come to ZooKeeper."""
        if self._ending is not None:
            self._ending.join(_END_S)

    def forget(self) -> None:
        """In a forked child, whose parent has the session: close the copy of its connection."""
        fork.close_copy(self._kazoo._connection._socket)
        atexit.unregister(self._kazoo.handler.stop)  # which would wait for threads that are not here

    def _refuse_if_over(self) -> None:
        if self.over is not None:
            raise LockUnavailable(self.over)

    # -- calls -------------------------------------------------------------------------------------------------------

    async def ask(self, timeout_s: float, *calls: Callable[[Any], Any]) -> list[Any]:
        """The answers to calls that are sent together, and so are answered in their order.

        Instead of an answer, the error with which ZooKeeper says that a node isn't as it was thought to be. All other
        errors of kazoo's are `LockUnavailable`.
        """
        deadline = time.monotonic() + timeout_s
        return [await self._answer(result, deadline) for result in self._send(*calls)]

    def _send(self, *calls: Callable[[Any], Any]) -> list[Any]:
        self._refuse_if_over()
        sent_at = time.monotonic()
        try:
            results = [call(self._kazoo) for call in calls]
        except ValueError as error:
            raise LockUnavailable(f"ZooKeeper can't have a node of that name: {error}") from None
        if self._silent_since is None:
            self._silent_since = sent_at
        return results

    async def _answer(self, result: Any, deadline: float) -> Any:
        now = time.monotonic()
        # kazoo looks whether its server is alive only when it has nothing to send, and we always have something.
        silent_at = (self._silent_since or now) + self.ttl_s
        if not await _Answered(result, min(deadline, silent_at) - now):
            if time.monotonic() >= silent_at:
                self.end("ZooKeeper did not answer for too long")
            result.rawlink(lambda _: self._heard())  # late, but an answer
            raise LockUnavailable("ZooKeeper does not answer")
        self._heard()
        error = result.exception
        if error is None:
            return result.value
        if isinstance(error, (NoNodeError, NodeExistsError, BadVersionError)):
            return error
        if isinstance(error, (ConnectionLoss, SessionExpiredError)):
            self.end("the connection to ZooKeeper broke")
            self._refuse_if_over()
        if isinstance(error, NoAuthError):
            raise LockUnavailable("ZooKeeper does not allow that: the log-in is missing or has no right to it (NoAuth)")
        raise LockUnavailable(f"ZooKeeper refuses that: {type(error).__name__}")

    def _heard(self) -> None:
        self._silent_since = None

    async def create(self, parent: str, prefix: str, data: bytes, timeout_s: float) -> Created:
        """Create a contender's node, and its parents where they are missing; mostly one round trip.

        Raises `LockUnavailable`; what was created nevertheless is deleted.
        """
        deadline = time.monotonic() + timeout_s
        for _ in range(_TRIES):
            created, names = await self._create(f"{parent}/{prefix}", data, deadline)
            if not isinstance(created, NoNodeError):
                break
            # The first contender ever; or Curator's container was empty, and the server has removed it.
            await self.ask(deadline - time.monotonic(), lambda kazoo: kazoo.ensure_path_async(parent))
        if isinstance(created, KazooException) or isinstance(names, KazooException):
            raise _uncreatable(parent)
        path, stat = created
        if sequence(path) is None:
            self.delete_soon(path)
            raise LockUnavailable(f"ZooKeeper has no more numbers for {parent}: delete that node when it is empty")
        return Created(path, stat.czxid, list(names))

    async def _create(self, path: str, data: bytes, deadline: float) -> list[Any]:
        def create(kazoo: Any) -> Any:
            return kazoo.create_async(path, data, ephemeral=True, sequence=True, include_data=True)

        def delete(result: Any) -> None:
            if result.successful():
                self.delete_soon(result.value[0])

        results = self._send(create, lambda kazoo: kazoo.get_children_async(path.rpartition("/")[0]))
        try:
            return [await self._answer(result, deadline) for result in results]
        except LockUnavailable:
            results[0].rawlink(delete)  # when it is answered after all; else the session is over
            raise

    async def present(self, path: str, czxid: int, timeout_s: float) -> bool:
        """Whether a contender's node is there, as far as the leader knows.

        A follower that is cut off from the leader goes on answering reads for a while.
        """
        if self.over is not None:
            return False
        _, stat = await self.ask(
            timeout_s, lambda kazoo: kazoo.sync_async(path), lambda kazoo: kazoo.exists_async(path)
        )
        return stat is not None and bool(stat.czxid == czxid)

    async def children(self, path: str, timeout_s: float) -> list[str]:
        """The names of a node's children; none if there is no such node."""
        (names,) = await self.ask(timeout_s, lambda kazoo: kazoo.get_children_async(path))
        return [] if isinstance(names, KazooException) else list(names)

    async def delete(self, path: str, timeout_s: float) -> None:
        """Delete a node; one that is gone is fine, and so is a session that is over, which takes its nodes along."""
        if self.over is None:
            await self.ask(timeout_s, lambda kazoo: kazoo.delete_async(path))

    def delete_soon(self, path: str) -> None:
        """The same, without waiting for an answer."""
        if self.over is None:
            self._kazoo.delete_async(path)

    async def watch(self, path: str, wake: Callable[[], None], timeout_s: float) -> tuple[bool, Callable[[], None]]:
        """Have `wake` called when the node is deleted or changed: whether it is there, and what ends that."""
        # Not `exists`, whose watch on a node that is gone would stay for ever.
        found, forget = await self._watched(
            path, wake, timeout_s, lambda kazoo: kazoo.get_async(path, watch=self._fired)
        )
        return not isinstance(found, KazooException), forget

    async def watch_children(
        self, path: str, wake: Callable[[], None], timeout_s: float
    ) -> tuple[list[str], Callable[[], None]]:
        """Have `wake` called when the node has other children: those that it has, and what ends that."""
        found, forget = await self._watched(
            path, wake, timeout_s, lambda kazoo: kazoo.get_children_async(path, watch=self._fired)
        )
        return [] if isinstance(found, KazooException) else list(found), forget

    async def _watched(
        self, path: str, wake: Callable[[], None], timeout_s: float, look: Callable[[Any], Any]
    ) -> tuple[Any, Callable[[], None]]:
        with self._mutex:
            self._watching.setdefault(path, []).append(wake)

        def forget() -> None:
            with self._mutex:
                wakes = self._watching.get(path, [])
                if wake in wakes:
                    wakes.remove(wake)
                if not wakes:
                    self._watching.pop(path, None)

        try:
            (found,) = await self.ask(timeout_s, look)
        except BaseException:
            forget()
            raise
        return found, forget

    def _fired(self, event: Any) -> None:
        # One callback for all watches: kazoo keeps each that it was given until the node changes.
        with self._mutex:
            wakes = list(self._watching.get(event.path, ())) if event.path else []
        for wake in wakes:
            wake()


class ZooKeeperClient:
    """The current session with ZooKeeper, made at the first call; threads and loops share it.

    `hosts`: see `ZooKeeperBackend`; `session_s`: the timeout to ask for; `timeout_s`: deadline of a call. Methods
    raise `LockUnavailable` when there is no answer within their `timeout_s`.
    """

    def __init__(self, hosts: Sequence[str] | str, *, session_s: float, timeout_s: float, auth: str | None) -> None:
        if KazooClient is None:
            raise ConfigurationError("ZooKeeper needs kazoo: pip install kazoo")
        if auth is not None and not all(auth.partition(":")):
            raise ConfigurationError("ZooKeeper's log-in must be user:password")
        self.timeout_s = timeout_s
        self.session_s = session_s
        self._hosts = _for_kazoo(hosts if isinstance(hosts, str) else ",".join(hosts), session_s, timeout_s)
        self._auth = auth
        self._session: Session | None = None
        self._closed = False
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        session, self._session = self._session, None
        if session is not None:  # the parent's
            session.forget()

    async def session(self, timeout_s: float) -> Session:
        """The session, connected; a new one if the last one is over."""
        session = self._session
        if session is not None and session.ready:
            return session
        with self._mutex:
            if self._closed:
                raise LockUnavailable("the connection to ZooKeeper is closed")
            session = self._session
            if session is None or session.over is not None:
                if session is not None:
                    _log.warning("%s; connecting anew", session.over)
                session = self._session = Session(self._hosts, self.session_s, self._auth)
        await session.wait_ready(timeout_s)
        return session

    def close(self) -> None:
        """End the session, and with it all its nodes; holders are told."""
        with self._mutex:
            self._closed = True
            session = self._session
        if session is not None:
            session.end("the connection to ZooKeeper is closed")
            session.join()

    async def _ask(self, timeout_s: float, *calls: Callable[[Any], Any]) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        session = await self.session(timeout_s)
        return await session.ask(max(0.0, deadline - time.monotonic()), *calls)

    async def take_first(self, name: str, record: str, text: bytes) -> Found | None:
        """Delete the first node of a queue, and write `record`; that node, if there was one."""
        for found in sorted(await self.under(f"{name}/", deep=False), key=lambda one: sequence(one.path) or ""):
            await self._ask(self.timeout_s, lambda kazoo: kazoo.ensure_path_async(record))
            if await self._delete_and_write(found.path, record, text):
                return found
        return None

    async def _delete_and_write(self, path: str, record: str, text: bytes) -> bool:
        deleted, _ = await self._ask(
            self.timeout_s, lambda kazoo: kazoo.delete_async(path), lambda kazoo: kazoo.set_async(record, text)
        )
        return not isinstance(deleted, KazooException)

    async def read(self, path: str) -> bytes:
        """What is in a node; nothing if there is none."""
        (found,) = await self._ask(self.timeout_s, lambda kazoo: kazoo.get_async(path))
        return b"" if isinstance(found, KazooException) else bytes(found[0])

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the leader answers."""
        await self._ask(timeout_s, lambda kazoo: kazoo.sync_async("/"))

    async def under(self, prefix: str, *, deep: bool) -> list[Found]:
        """The contenders under a prefix (which ends in "/"); those of the locks below it, too, if `deep`."""
        found: list[str] = []
        level = [prefix.rstrip("/")]
        while level:
            below: list[str] = []
            children = await self._each(level, lambda kazoo, path: kazoo.get_children_async(path or "/"))
            for path, names in children.items():
                for name in names:
                    if sequence(name) is not None:
                        found.append(f"{path}/{name}")
                    elif deep and name[0] != "~":  # an id, not a lock
                        below.append(f"{path}/{name}")
            level = below
        answers = await self._each(found, lambda kazoo, path: kazoo.get_async(path))
        return [Found(path, data, stat.czxid) for path, (data, stat) in answers.items()]

    async def _each(self, paths: Sequence[str], call: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The answers for those of many nodes that are there."""
        answers: dict[str, Any] = {}
        for first in range(0, len(paths), _BATCH):
            some = paths[first : first + _BATCH]
            calls = [lambda kazoo, path=path: call(kazoo, path) for path in some]
            answers |= zip(some, await self._ask(self.timeout_s, *calls), strict=True)
        return {path: answer for path, answer in answers.items() if not isinstance(answer, KazooException)}

    # -- whose numbers the transaction numbers are -------------------------------------------------------------------

    async def source(self, session: Session, name: str, timeout_s: float) -> str:
        """What tells this ensemble from others: an id that is drawn once, and kept in it. Asked once a session."""
        path = _id_path(name)
        if path not in session.sources:
            session.sources[path] = await _id(session, path, timeout_s)
        return session.sources[path]


def _id_path(name: str) -> str:
    return beside(name, "id")


def beside(name: str, what: str) -> str:
    """A node for something about a lock that is in no queue of one; a lock at the root has it there."""
    # Curator orders strangers among its contenders by their whole names: this one after all of them.
    first, *rest = name.split("/")[1:]
    return f"/{first}/~{what}" if rest else f"/~{what}"


async def _id(session: Session, path: str, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    drawn = uuid4().hex[:16].encode()
    for _ in range(_TRIES):
        _, found = await session.ask(
            deadline - time.monotonic(), lambda kazoo: kazoo.sync_async(path), lambda kazoo: kazoo.get_async(path)
        )
        if not isinstance(found, KazooException):
            return str(found[0].decode(errors="replace"))
        # Or somebody else creates it, just now: look again.
        await session.ask(deadline - time.monotonic(), lambda kazoo: kazoo.create_async(path, drawn, makepath=True))
    raise _uncreatable(path)


def _uncreatable(path: str) -> LockUnavailable:
    return LockUnavailable(f"{path} can't be created in ZooKeeper: what it is in is not there, or is deleted each time")


def _for_kazoo(hosts: str, session_s: float, timeout_s: float) -> str:
    """The hosts as kazoo takes them, each so many times that an attempt to connect takes about `timeout_s`.

    kazoo shares out the session's timeout among them. ZOOKEEPER-5051: a client that connects while the server is
    opening its port never gets an answer; it must connect again.
    """
    text, slash, folder = hosts.partition("/")
    addresses = [address.strip() for address in text.split(",")]
    try:
        for address in addresses:
            parts = urlsplit(f"//{address}")
            (parts.hostname or "").encode("idna")
            if not parts.hostname or parts.username is not None or parts.port == 0:
                raise ValueError(address)
    except ValueError:
        # Never quoted: somebody may have put a password there.
        raise ConfigurationError(
            "not ZooKeeper's hosts: say host:port,host:port and, for a part of its tree, /folder after that"
        ) from None
    times = min(_TIMES, math.ceil(session_s / (timeout_s * len(addresses))))
    return ",".join(addresses * times) + slash + folder

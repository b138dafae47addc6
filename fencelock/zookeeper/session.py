"""A session with ZooKeeper, over for good when its connection breaks.

ZooKeeper would let a client come back with the same session. Here it never does: another one is made. So whatever a
session left behind goes with it, and nobody has to look for it.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..callbacks import Callbacks
from ..errors import LockUnavailable
from ..waiting import Wake
from . import wire
from .link import Link, Servers
from .wire import Fault, Kind, Request, SessionId

# A lease is believed in for so much of the session. An answer proves that the session lived, but not that its timeout
# began anew: a follower tells the leader only now and then whom it heard of, and tells it nothing if it dies first.
_BELIEVED: Final = 2 / 3
_PING: Final = 1 / 3  # of the session, without a request
_END_S: Final = 1.0
_AGAIN_S: Final = 0.1
_XIDS: Final = 2**31
_TRIES: Final = 5  # at a node that others delete again and again
_NUMBERS: Final = 2**31 - 1  # of contenders; from there on all have the same one, and none is before another
# Refusals of which one knows that nothing was done. Any other leaves that open.
_CLEAR: Final = {-101, -110, wire.NO_AUTH, -6, -8, -103, -108, -111, -114, -125, -127}


@dataclass(frozen=True, slots=True)
class Created:
    """A contender's node, and the names of all contenders just after."""

    path: str
    czxid: int
    names: list[str]


class NotAllowed(LockUnavailable):
    """We lack a right, so asking again is no use; perhaps there is another place."""


class _Call:
    """A request under way. `error`: ZooKeeper's, 0 for none; `late`: for an answer that nobody waits for any more."""

    __slots__ = ("answer", "answered", "done", "error", "last", "late", "request")

    def __init__(self, request: Request[Any], done: Wake, *, last: bool) -> None:
        self.request = request
        self.answered = False
        self.answer: Any = None
        self.error = 0
        self.done = done
        self.last = last
        self.late: Callable[[Any], None] | None = None


def sequence(name: str) -> str | None:
    """What a contender's name is ordered by, as Curator does it: the text after the last "lock-"; None for others."""
    _, lock, number = name.rpartition("lock-")
    return number if lock and number.isdecimal() else None


class Session:
    """It connects in the background, for as long as that takes. It belongs to the loop on which it was made.

    Once it has connected: `session_s` is its timeout, `ttl_s` how long one may believe in what it keeps, from the
    sending of a request that was answered. `over`: why it is over; None before.
    """

    def __init__(self, servers: Servers, session_s: float, auth: str | None) -> None:
        self.over: str | None = None
        self.sources: dict[str, str] = {}  # see `ZooKeeperClient.source`
        self.id = wire.new_session(session_s)
        self._servers = servers
        self._auth = auth
        self._connected = False  # or over
        self._wakes: set[Wake] = set()  # of those who wait for that
        self._on_over = Callbacks()
        self._ending: asyncio.Task[None] | None = None
        self._stream = wire.Stream()
        self._xid = 0
        self._calls: dict[int, _Call] = {}
        self._sent_at = 0.0
        self._silent_since: float | None = None
        self._watching: dict[str, list[Watch]] = {}
        self._link = Link(self, servers)
        self._link.start()

    @property
    def session_s(self) -> float:
        """Its timeout: as asked for at first, then as the server has it."""
        return self.id.timeout_s

    @property
    def ttl_s(self) -> float:
        """Two thirds of that."""
        return self.session_s * _BELIEVED

    # -- begin and end -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self._connected and self.over is None

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when it is connected. Raises `LockUnavailable` if it is not within that time."""
        if not self._connected:
            wake = Wake()
            self._wakes.add(wake)
            try:
                await wake.wait(timeout_s)
            finally:
                self._wakes.discard(wake)
        if not self._connected:
            raise LockUnavailable("ZooKeeper does not answer")
        self._refuse_if_over()

    def on_over(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called once when it is over (now, if it is); the answer takes that back."""
        return self._on_over.subscribe(callback)

    def end(self, why: str) -> None:
        """Be over: now for us; for ZooKeeper as soon as it hears of it, or else after `session_s`."""
        if self.over is not None:
            return
        self.over = why
        calls, self._calls = self._calls, {}
        self._connect_is_over()
        for call in calls.values():
            call.done.set()
        self._on_over.fire()  # a holder must know before the server gives the lock to others
        self._ending = self._link.loop.create_task(self._close())

    def _connect_is_over(self) -> None:
        self._connected = True
        for wake in self._wakes:
            wake.set()

    async def _close(self) -> None:
        # Until its timeout the server keeps it and all its nodes, whatever becomes of the connection. Over another one
        # it is ended at once: not by a request over the old one, which may be broken.
        until = time.monotonic() + self.session_s
        if self.id.number != wire.NO_SESSION:
            for address in self._servers.in_turn():
                left_s = until - time.monotonic()
                if left_s <= 0 or await _ended(address, self.id, min(left_s, self._servers.timeout_s)):
                    break
                await asyncio.sleep(_AGAIN_S)
        self._link.close()

    async def close(self, why: str) -> None:
        """End it, and wait a little for that to have come to ZooKeeper."""
        self.end(why)
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=_END_S)
            self._link.close()

    def _refuse_if_over(self) -> None:
        if self.over is not None:
            raise LockUnavailable(self.over)

    # -- what the link tells -----------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Say hello over a new connection."""
        self._stream = wire.Stream()
        return self.id.hello()

    def heard(self, data: bytes) -> None:
        """Answers, and what was watched for."""
        try:
            for message in self._stream.messages(data):
                if self.over is not None:
                    return
                if self._connected:
                    self._take(wire.Reader(message))
                else:
                    self._welcomed(message)
        except wire.Malformed as error:
            self.end(f"what answers does not speak ZooKeeper's protocol: {error}")

    def _welcomed(self, message: bytes) -> None:
        welcome = wire.read_welcome(message)
        if welcome is None:
            raise wire.Malformed("a new session that is over")
        self._sent_at = time.monotonic()
        if self._auth:
            self._link.send(wire.log_in(self._auth))
        if self.over is None:
            self.id = welcome
            self._connect_is_over()

    def _take(self, answer: wire.Reader) -> None:
        xid, error = wire.read_head(answer)
        if xid == wire.EVENT_XID:
            path, deleted = wire.read_event(answer)
            self._fired(path, deleted=deleted)
        elif xid == wire.AUTH_XID and error:
            self.end(f"ZooKeeper refuses the log-in: {wire.name_of(error)}")
        if xid >= 0:
            self._answered(xid, error, answer)
        self._silent_since = time.monotonic() if self._calls else None

    def _answered(self, xid: int, error: int, answer: wire.Reader) -> None:
        if self.over is not None:
            return
        if not self._calls or xid != next(iter(self._calls)):
            raise wire.Malformed("an answer out of order")
        call = self._calls.pop(xid)
        call.error = error
        if not error:
            call.answer = call.request.read(answer)
        call.answered = True
        if call.last:
            call.done.set()
        if call.late is not None and not error:
            call.late(call.answer)
        if error and error not in _CLEAR:
            # Whether it was done nobody knows; and what is done under a session that is over is gone with it.
            self.end(f"ZooKeeper says {wire.name_of(error)}")

    def look(self) -> float:
        """Leave a server that is silent, or have it answer; seconds until the next look."""
        now = time.monotonic()
        silent_since = self._silent_since
        if silent_since is not None and now >= silent_since + self.ttl_s:
            self.end("ZooKeeper did not answer for too long")
            return self.session_s
        ping_at = self._sent_at + self.session_s * _PING
        if now >= ping_at:
            self._note_sent(now)
            self._link.send(wire.PING)
            ping_at = now + self.session_s * _PING
        silent_since = self._silent_since
        return max(0.0, (ping_at if silent_since is None else min(ping_at, silent_since + self.ttl_s)) - now)

    def _note_sent(self, now: float) -> None:
        self._sent_at = now
        if self._silent_since is None:
            self._silent_since = now

    def broken(self) -> None:
        """The connection is gone."""
        if self._connected:
            self.end("the connection to ZooKeeper broke")

    # -- calls -------------------------------------------------------------------------------------------------------

    async def ask(self, timeout_s: float, *requests: Request[Any]) -> list[Any]:
        """The answers to requests that are sent together, and so are answered in their order.

        Instead of an answer, the `Fault` with which ZooKeeper says that a node isn't as it was thought to be. All other
        errors are `LockUnavailable`.
        """
        calls = self._send(*requests)
        await self._wait_for(calls, time.monotonic() + timeout_s)
        return [_outcome(call) for call in calls]

    def _send(self, *requests: Request[Any]) -> list[_Call]:
        done = Wake()  # for all: answers come in the order of the requests, and whoever waits does so for the last
        calls = [_Call(request, done, last=request is requests[-1]) for request in requests]
        self._refuse_if_over()
        xids = [(self._xid + number) % _XIDS for number in range(1, len(calls) + 1)]
        try:
            frames = [call.request.frame(xid, self._servers.folder) for xid, call in zip(xids, calls, strict=True)]
        except ValueError as error:
            raise LockUnavailable(f"ZooKeeper can't have a node of that name: {error}") from None
        self._xid = xids[-1]
        self._calls.update(zip(xids, calls, strict=True))
        self._note_sent(time.monotonic())
        self._link.send(b"".join(frames))
        return calls

    async def _wait_for(self, calls: list[_Call], deadline: float) -> None:
        last = calls[-1]
        if not last.answered:
            await last.done.wait(max(0.0, deadline - time.monotonic()))
        if not last.answered:
            self._refuse_if_over()
            raise LockUnavailable("ZooKeeper does not answer")

    async def create(self, parent: str, prefix: str, data: bytes, timeout_s: float) -> Created:
        """Create a contender's node, and its parents where they are missing; mostly one round trip.

        Raises `LockUnavailable`; what was created nevertheless is deleted.
        """
        deadline = time.monotonic() + timeout_s
        for _ in range(_TRIES):
            created, names = await self._create(f"{parent}/{prefix}", data, deadline)
            if created is not Fault.NO_NODE:
                break
            # The first contender ever; or the container was empty, and the server has removed it.
            await self.make_folder(parent, deadline - time.monotonic())
        if isinstance(created, Fault) or isinstance(names, Fault):
            raise uncreatable(parent)
        path, czxid = created
        path = path.removeprefix(self._servers.folder)
        if not path.startswith(f"{parent}/{prefix}"):
            self.end("ZooKeeper answers another name than was created")
            raise LockUnavailable("ZooKeeper answers another name than was created")
        if int(sequence(path) or _NUMBERS) >= _NUMBERS:
            self.delete_soon(path)
            raise LockUnavailable(f"ZooKeeper has no more numbers for {parent}: delete that node when it is empty")
        return Created(path, czxid, names)

    async def _create(self, path: str, data: bytes, deadline: float) -> list[Any]:
        kind = Kind.EPHEMERAL_SEQUENTIAL
        calls = self._send(self.created(path, data, kind), wire.children(path.rpartition("/")[0]))
        try:
            await self._wait_for(calls, deadline)
        except BaseException:
            calls[0].late = self._delete_created  # when it is answered after all; else the session is over
            if calls[0].answered and not calls[0].error:
                self._delete_created(calls[0].answer)
            raise
        return [_outcome(call) for call in calls]

    def _delete_created(self, created: tuple[str, int]) -> None:
        self.delete_soon(created[0].removeprefix(self._servers.folder))

    def created(self, path: str, data: bytes, kind: Kind, *, readable: bool = False) -> Request[tuple[str, int]]:
        """The request for a node, with the rights of those who are logged in alike; `readable`: by all others, too."""
        # Whoever is not could delete it otherwise.
        return wire.create(path, data, kind, logged_in=self._auth is not None, readable=readable)

    async def make_folder(self, path: str, timeout_s: float) -> None:
        """Have a node with all its parents: containers, as Curator makes them, which the server removes when empty."""
        parts = path.split("/")[1:]
        folders = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
        try:
            await self.ask(timeout_s, *(self.created(folder, b"", Kind.CONTAINER) for folder in folders))
        except NotAllowed:
            # So it says even of one that is there, if we may not write to what it is in.
            there = await self.ask(timeout_s, *map(wire.exists, folders))
            if any(isinstance(one, Fault) for one in there):
                raise

    async def present(self, path: str, czxid: int, timeout_s: float) -> bool:
        """Whether a contender's node is there, as far as the leader knows.

        A follower that is cut off from the leader goes on answering reads for a while.
        """
        if self.over is not None:
            return False
        _, there = await self.ask(timeout_s, wire.sync(path), wire.exists(path))
        return bool(there == czxid)

    async def children(self, path: str, timeout_s: float) -> list[str]:
        """The names of a node's children; none if there is no such node."""
        (names,) = await self.ask(timeout_s, wire.children(path))
        return [] if isinstance(names, Fault) else names

    async def delete(self, path: str, timeout_s: float) -> None:
        """Delete a node; one that is gone is fine, and so is a session that is over, which takes its nodes along."""
        if self.over is None:
            await self.ask(timeout_s, wire.delete(path))

    def delete_soon(self, path: str) -> None:
        """The same, without waiting for an answer."""
        with contextlib.suppress(LockUnavailable):  # it is over
            self._send(wire.delete(path))

    async def watch(self, wake: Callable[[], None], timeout_s: float, *paths: str) -> "Watch":
        """Have `wake` called when one of the nodes is deleted or changed; see whether they are `there`."""
        # Not `exists`, whose watch on a node that is gone would stay for ever.
        return await self._watched(wake, timeout_s, [wire.get(path, watch=True) for path in paths])

    async def _watched(self, wake: Callable[[], None], timeout_s: float, looks: list[Request[Any]]) -> "Watch":
        watch = Watch(wake, [look.path for look in looks], self._forget)
        for path in watch.paths:
            self._watching.setdefault(path, []).append(watch)
        try:
            watch.found = await self.ask(timeout_s, *looks)
        except BaseException:
            watch.forget()
            raise
        return watch

    def _forget(self, watch: "Watch") -> None:
        for path in watch.paths:
            watches = self._watching.get(path, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watching.pop(path, None)

    def _fired(self, path: str, *, deleted: bool) -> None:
        path = path.removeprefix(self._servers.folder)
        for watch in list(self._watching.get(path, ())):
            if deleted:
                watch.deleted.append(path)
            watch.wake()


class Watch:
    """What is told of some nodes, until it is to be forgotten. `found`: what they were like when it began.

    `deleted`: those that have been since; ZooKeeper tells of that in the order in which it happened.
    """

    def __init__(self, wake: Callable[[], None], paths: list[str], forget: Callable[["Watch"], None]) -> None:
        self.wake = wake
        self.paths = paths
        self.found: list[Any] = []
        self.deleted: list[str] = []
        self._forget = forget

    @property
    def there(self) -> bool:
        """Whether all were there."""
        return not any(isinstance(one, Fault) for one in self.found)

    def has_gone(self, path: str) -> bool:
        """Whether a node was not there, or has been deleted since."""
        return path in self.deleted or isinstance(self.found[self.paths.index(path)], Fault)

    def forget(self) -> None:
        """Be told no more."""
        self._forget(self)


def _outcome(call: _Call) -> Any:
    if not call.error:
        return call.answer
    with contextlib.suppress(ValueError):
        return Fault(call.error)
    if call.error == wire.NO_AUTH:
        raise NotAllowed("ZooKeeper does not allow that: the log-in is missing or has no right to it (NoAuth)")
    raise LockUnavailable(f"ZooKeeper refuses that: {wire.name_of(call.error)}")


def uncreatable(path: str) -> LockUnavailable:
    """The error of a node whose parent is never there."""
    return LockUnavailable(f"{path} can't be created in ZooKeeper: what it is in is not there, or is deleted each time")


async def _ended(address: tuple[str, int], session: SessionId, within_s: float) -> bool:
    """Whether a server was told, over a connection of its own, that a session is over."""
    stream = wire.Stream()
    welcomed = False
    with contextlib.suppress(OSError, wire.Malformed):
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(*address)
            try:
                # Both at once: whoever has the session's other connection may be about to lose it.
                writer.write(session.hello() + wire.close(1))
                while data := await reader.read(65_536):
                    for message in stream.messages(data):
                        if not welcomed:
                            wire.read_welcome(message)
                        welcomed = True
                return welcomed
            finally:
                writer.transport.abort()
    return False

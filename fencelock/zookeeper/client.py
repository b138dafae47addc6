"""What locks ask ZooKeeper: over the current session of the threads, or of a loop."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from .. import fork
from ..errors import ConfigurationError, LockUnavailable
from ..per_loop import PerLoop
from ..steps import Step
from . import wire
from .link import LoopLink, Servers, ThreadLink
from .session import NotAllowed, Session, sequence, uncreatable
from .wire import Fault, Kind, Request

_log = logging.getLogger(__name__)

_TRIES: Final = 5  # at a node that others delete again and again
_BATCH: Final = 100  # requests under way at once
_SOURCES_MAX: Final = 1000  # first parts of locks' names that a session remembers


@dataclass(frozen=True, slots=True)
class Found:
    """A node as ZooKeeper keeps it."""

    path: str
    data: bytes
    czxid: int


class _Slot:
    """Where the session of the threads is, or that of a loop."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.session: Session | None = None


class _Here(Step[tuple[_Slot, Callable[..., Any]]]):
    """The slot of whoever asks, and what connects its session."""

    def __init__(self, threads: _Slot, loops: PerLoop[_Slot]) -> None:
        self._threads = threads
        self._loops = loops

    def in_thread(self) -> tuple[_Slot, Callable[..., Any]]:
        """That of all threads."""
        return self._threads, ThreadLink

    async def on_loop(self) -> tuple[_Slot, Callable[..., Any]]:
        """That of the running loop."""
        return self._loops.here(), LoopLink


class ZooKeeperClient:
    """The current sessions with ZooKeeper, made at the first call: one for all threads, and one for each loop.

    A loop's is kept alive by that loop alone, so one that hangs loses what it has. `hosts`: see `ZooKeeperBackend`;
    `session_s`: the timeout to ask for; `timeout_s`: deadline of a call. Methods raise `LockUnavailable` when there is
    no answer within their `timeout_s`.
    """

    def __init__(self, hosts: Sequence[str] | str, *, session_s: float, timeout_s: float, auth: str | None) -> None:
        if auth is not None and not all(auth.partition(":")):
            raise ConfigurationError("ZooKeeper's log-in must be user:password")
        self.timeout_s = timeout_s
        self.session_s = session_s
        self._servers = Servers.parse(hosts if isinstance(hosts, str) else ",".join(hosts), timeout_s)
        self._auth = auth
        self._closed = False
        self._loops = PerLoop(lambda _: _Slot())
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        self._threads = _Slot()

    async def session(self, timeout_s: float) -> Session:
        """The session, connected; a new one if the last one is over."""
        slot, link = await _Here(self._threads, self._loops)
        session = slot.session
        if session is not None and session.ready:
            return session
        with slot.mutex:
            if self._closed:
                raise LockUnavailable("the connection to ZooKeeper is closed")
            session = slot.session
            if session is None or session.over is not None:
                if session is not None:
                    _log.warning("%s; connecting anew", session.over)
                session = slot.session = Session(self._servers, self.session_s, self._auth, link)
        await session.wait_ready(timeout_s)
        return session

    def close(self) -> None:
        """End the sessions, and with them all their nodes; holders are told."""
        self._closed = True
        sessions = [slot.session for slot in (self._threads, *self._loops)]
        _end_all(sessions)

    async def close_on_loop(self) -> None:
        """End that of the running loop."""
        slot = self._loops.pop()
        if slot is not None and slot.session is not None:
            await asyncio.to_thread(_end_all, [slot.session])

    async def ask(self, timeout_s: float, *requests: Request[Any]) -> list[Any]:
        """See `Session.ask`."""
        deadline = time.monotonic() + timeout_s
        session = await self.session(timeout_s)
        return await session.ask(max(0.0, deadline - time.monotonic()), *requests)

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the leader answers."""
        await self.ask(timeout_s, wire.sync("/"))

    async def under(self, prefix: str, *, deep: bool) -> list[Found]:
        """The contenders under a prefix (which ends in "/"); those of the locks below it, too, if `deep`."""
        found: list[str] = []
        level = [prefix.rstrip("/")]
        while level:
            below: list[str] = []
            children = await self._each(level, lambda path: wire.children(path or "/"))
            for path, names in children.items():
                for name in names:
                    if sequence(name) is not None:
                        found.append(f"{path}/{name}")
                    elif deep and name[0] != "~":  # an id, not a lock
                        below.append(f"{path}/{name}")
            level = below
        answers = await self._each(found, wire.get)
        return [Found(path, node.text, node.czxid) for path, node in answers.items()]

    async def _each(self, paths: Sequence[str], request: Callable[[str], Request[Any]]) -> dict[str, Any]:
        """The answers for those of many nodes that are there."""
        answers: dict[str, Any] = {}
        for first in range(0, len(paths), _BATCH):
            some = paths[first : first + _BATCH]
            answers |= zip(some, await self.ask(self.timeout_s, *map(request, some)), strict=True)
        return {path: answer for path, answer in answers.items() if not isinstance(answer, Fault)}

    # -- whose numbers the transaction numbers are -------------------------------------------------------------------

    async def source(self, session: Session, name: str, timeout_s: float) -> str:
        """What tells this ensemble from others: an id that is drawn once, and kept in it. Asked once a session."""
        places = _places(name)
        source = session.sources.get(places[-1])
        if source is None:
            if len(session.sources) >= _SOURCES_MAX:
                session.sources.clear()  # who takes locks by ever new names shall not remember each of them
            source = session.sources[places[-1]] = await _id(session, places, timeout_s)
        return source


def _places(name: str) -> list[str]:
    """Where the ensemble's id may be.

    At the root, so that the first part of the name is left empty, for ZooKeeper to remove. Or in that part, for those
    who may not write to the root: they need a folder that somebody has made for them, and it stays.
    """
    # Curator orders strangers among its contenders by their whole names: this one after all of them.
    first, *rest = name.split("/")[1:]
    return ["/~id", *([f"/{first}/~id"] if rest else [])]


async def _id(session: Session, places: Sequence[str], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    drawn = uuid4().hex[:16].encode()
    place, *others = places
    for _ in range(_TRIES):
        looks = [wire.get(one) for one in reversed(places)]
        _, *found = await session.ask(deadline - time.monotonic(), wire.sync(place), *looks)
        for node in found:
            # The one in the name's first part counts, if there is one: tokens and fences of before go by it.
            if not isinstance(node, Fault):
                return str(node.text.decode(errors="replace"))
        # Or somebody else creates it, just now: look again.
        try:
            parent = place.rpartition("/")[0]
            if parent:
                await session.make_folder(parent, deadline - time.monotonic())
            created = session.created(place, drawn, Kind.PERSISTENT, readable=True)  # others may have other folders
            await session.ask(deadline - time.monotonic(), created)
        except NotAllowed:
            if not others:
                raise
            place = others.pop()
    raise uncreatable(place)


def _end_all(sessions: Sequence[Session | None]) -> None:
    there = [session for session in sessions if session is not None]
    for session in there:
        session.end("the connection to ZooKeeper is closed")
    for session in there:
        session.join()

"""The ZooKeeper client: the locks' requests, over the current session."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from ..errors import ConfigurationError, LockUnavailable
from .session import Login, Missing, NotAllowed, ZooKeeperSession, uncreatable

_log = logging.getLogger(__name__)

_TRIES: Final = 5  # tries to create a node whose parent others keep deleting
_BATCH: Final = 100  # requests under way at once
_SOURCES_MAX: Final = 1000  # first parts of locks' names that a session remembers
_LAST_NUMBER: Final = 2**31 - 1


class FoundNode(NamedTuple):
    """A node as ZooKeeper keeps it."""

    path: str
    data: bytes
    czxid: int
    mzxid: int  # of the last change


def sequence(name: str) -> int | None:
    """Return the number that orders a contender, as in Curator: the one after the last "lock-"; None for other nodes.

    A parent that has had 2^31 children has no more numbers: the server gives the last one to all, or negative ones to
    nodes that come at the same time. All of these count as equal, and are ordered by their transactions.
    """
    _, lock, digits = name.rpartition("lock-")
    if not lock or not digits.removeprefix("-").isdecimal():
        return None
    return min(int(digits), _LAST_NUMBER) if digits[0] != "-" else _LAST_NUMBER


class ZooKeeperClient:
    """The current session with ZooKeeper, made at the first call, for one event loop.

    `session_s`: the timeout to ask for; `attempts`: the present attempts to get a lock. Methods raise `LockUnavailable`
    when there is no answer within their `timeout_s`.
    """

    def __init__(self, access: Login, *, session_s: float) -> None:
        self.check(session_s)
        self.timeout_s = access.timeout_s
        self.session_s = session_s
        self.attempts = 0
        self._access = access
        self._closed = False
        self._session: ZooKeeperSession | None = None
        self._said: str | None = None  # the last logged reason for the end of a session

    @staticmethod
    def check(session_s: float) -> None:
        """Raise `ConfigurationError` for a timeout that the protocol has no room for."""
        if session_s * 1000 > _LAST_NUMBER:
            raise ConfigurationError(f"in ZooKeeper ttl_s can be {_LAST_NUMBER // 1000} at most, not {session_s:g}")

    async def session(self, timeout_s: float) -> ZooKeeperSession:
        """Return the session, connected; a new one if the last one is over."""
        session = self._session
        if session is not None and session.ready:
            self._said = None
            return session
        if self._closed:
            raise LockUnavailable("the connection to ZooKeeper is closed")
        if session is None or session.over is not None:
            if session is not None and session.over != self._said:
                self._said = session.over
                _log.warning("%s; connecting anew", session.over)
            session = self._session = ZooKeeperSession(self._access, self.session_s)
        await session.wait_ready(timeout_s)
        return session

    @property
    def idle_since(self) -> float | None:
        """The moment since which nobody uses it, on the monotonic clock; None while somebody does."""
        session = self._session
        if self.attempts or not (session is None or session.idle or session.over):
            return None
        return 0.0 if session is None else session.used_at

    async def close(self) -> None:
        """End the session, and with it all its nodes; its grants are lost."""
        self._closed = True
        if self._session is not None:
            await self._session.close("the connection to ZooKeeper is closed")

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the leader answers."""
        deadline = time.monotonic() + timeout_s
        session = await self.session(timeout_s)
        await session.get(deadline - time.monotonic(), synced=True)

    async def under(self, prefix: str, *, deep: bool) -> list[FoundNode]:
        """Return the contenders of the locks that begin with a prefix; also of deeper locks, if `deep`."""
        session = await self.session(self.timeout_s)
        found: list[str] = []
        level = [prefix.rpartition("/")[0] or "/"]
        while level:
            below: list[str] = []
            for path, names in (await self._each(level, session.lists)).items():
                for name in names:
                    child = f"{path.rstrip('/')}/{name}"
                    if not child.startswith(prefix):
                        continue
                    if sequence(name) is not None:
                        found.append(child)
                    elif deep and name[0] != "~":  # an id, not a lock
                        below.append(child)
            level = below
        nodes = (await self._each(found, session.get)).items()
        return [FoundNode(path, data, stat.czxid, stat.mzxid) for path, (data, stat) in nodes]

    async def _each(self, paths: Sequence[str], ask: Callable[..., Awaitable[list[Any]]]) -> dict[str, Any]:
        """Ask for many nodes, and return the answers for existing ones."""
        answers: dict[str, Any] = {}
        for first in range(0, len(paths), _BATCH):
            some = paths[first : first + _BATCH]
            answers |= zip(some, await ask(self.timeout_s, *some), strict=True)
        return {path: answer for path, answer in answers.items() if not isinstance(answer, Missing)}

    # -- the source of the tokens, which are transaction numbers -----------------------------------------------------

    async def source(self, session: ZooKeeperSession, name: str, timeout_s: float) -> str:
        """Return this ensemble's id, which was drawn once and is kept in it. It is asked for once a session."""
        places = _places(name)
        source = session.sources.get(places[-1])
        if source is None:
            if len(session.sources) >= _SOURCES_MAX:
                session.sources.clear()  # a program that takes locks by ever new names must not remember them all
            source = session.sources[places[-1]] = await _id(session, places, timeout_s)
        return source


def _places(name: str) -> list[str]:
    """Return the nodes that may hold the ensemble's id.

    It is at the root, so that the first folder of the name gets empty and ZooKeeper can remove it; or in that folder,
    for clients that may not write to the root: they need a folder that somebody has made for them, and it stays.
    """
    # Curator orders other nodes among its contenders by their whole names: "~" puts this one after all of them.
    first, *rest = name.split("/")[1:]
    return ["/~id", *([f"/{first}/~id"] if rest else [])]


async def _id(session: ZooKeeperSession, places: Sequence[str], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    drawn = uuid4().hex[:16].encode()
    place, *others = places
    for _ in range(_TRIES):
        for node in await session.get(deadline - time.monotonic(), *reversed(places), synced=True):
            # The id in the name's first folder counts, if there is one: earlier tokens and fences go by it.
            if not isinstance(node, Missing):
                return str(node[0].decode(errors="replace"))
        # Or somebody else creates it, just now: look again.
        try:
            parent = place.rpartition("/")[0]
            if parent:
                await session.make_folder(parent, deadline - time.monotonic())
            await session.put(place, drawn, deadline - time.monotonic())  # others may have other folders
        except NotAllowed:
            if not others:
                raise
            place = others.pop()
    raise uncreatable(place)

"""Server-sent events: each feed looks twice a second for all its listeners, and only while it has any."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from app.errors import CursorAhead, TooManyListeners
from app.forever import run_forever

_log = logging.getLogger(__name__)

EVERY_S: Final = 0.5
_HEARTBEAT_S: Final = 10
_RETRY_MS: Final = 1000
_SEND_S: Final = 10.0  # a listener that reads nothing for longer is disconnected
_LAST_S: Final = 1.0

Look = Callable[[], Awaitable[str | None]]
LookOn = Callable[[], Awaitable[tuple[str, str] | None]]


class Feeds:
    """The feeds of this instance, with at most `listeners_max` listeners at once. It lives on one event loop."""

    def __init__(self, listeners_max: int) -> None:
        self._listeners_max = listeners_max
        self._feeds: dict[str, _Feed] = {}
        self._tellings: set[_Telling] = set()
        self._closed = False
        self._end = asyncio.Event()
        self.number = 0  # of the latest news of all feeds

    def _next_number(self) -> int:
        self.number += 1
        return self.number

    def ensure_room(self) -> None:
        """Raise `TooManyListeners` if there is no room for another one."""
        if len(self._tellings) >= self._listeners_max or self._closed:
            raise TooManyListeners(f"{self._listeners_max} listen already; ask now and then instead")

    def open(self, name: str, first: str, look: Look, *, since: int) -> EventSourceResponse:
        """Send a listener `first`, and then all news that `look` finds (None: nothing), shared by all of that name.

        `since` is `number` from before `first` was looked up. Raises `TooManyListeners`.
        """
        self.ensure_room()
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = _Feed(look, self._next_number)
        feed.listeners += 1

        def leave() -> None:
            self._tellings.discard(telling)
            feed.listeners -= 1
            if not feed.listeners and self._feeds.get(name) is feed:
                del self._feeds[name]
                feed.close()

        telling = _Telling(_tell(feed, since, first), leave)
        self._tellings.add(telling)
        return telling

    def follow(self, look: LookOn) -> EventSourceResponse:
        """Send a listener all that its own `look` finds, each with an id by which to go on (None: nothing yet).

        Raises `TooManyListeners`.
        """
        self.ensure_room()
        telling = _Telling(self._tell_all(look), lambda: self._tellings.discard(telling))
        self._tellings.add(telling)
        return telling

    async def _tell_all(self, look: LookOn) -> AsyncIterator[bytes]:
        yield ServerSentEvent(comment="from here on", retry=_RETRY_MS).encode()
        while not self._closed:
            try:
                found = await look()
            except CursorAhead as error:  # the same error is given in full when the stream is asked for again
                _log.warning("a stream of events ends: %s", error)
                return
            if found is not None:
                yield ServerSentEvent(found[0], id=found[1]).encode()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), EVERY_S)

    def close(self) -> None:
        """Let all listeners go."""
        self._closed = True
        self._end.set()
        for feed in self._feeds.values():
            feed.close()


class _Feed:
    """A feed, while it has listeners."""

    def __init__(self, look: Look, next_number: Callable[[], int]) -> None:
        self.listeners = 0
        self.number = 0  # of the latest news
        self._look = look
        self._next_number = next_number
        self._latest: bytes | None = None
        self._news = asyncio.Event()
        self._closed = False
        self._looking = asyncio.create_task(
            run_forever(self._look_once, every_s=0, log=_log, what="a look at what is shown"), name="feed"
        )

    async def next(self, seen: int) -> bytes | None:
        """Wait for news after `seen`; None at the end. A slow reader misses some, but never the latest."""
        while self.number <= seen and not self._closed:
            await self._news.wait()
        return None if self._closed else self._latest

    async def _look_once(self) -> None:
        await asyncio.sleep(EVERY_S)
        text = await self._look()
        if text is not None:
            self._latest = ServerSentEvent(text).encode()  # once for all
            self.number = self._next_number()
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """End the feed."""
        self._looking.cancel()
        self._closed = True
        self._tell()


class _Telling(EventSourceResponse):
    """The stream of one listener; calls `leave` at the end, even if it never began."""

    def __init__(self, told: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(
            told,
            ping=_HEARTBEAT_S,
            ping_message_factory=lambda: ServerSentEvent(comment="still here"),
            send_timeout=_SEND_S,
            # When uvicorn is about to stop, the library would cut all streams off: this gives `close` the time to end
            # them first. (With plain uvicorn nobody calls that in time.)
            shutdown_grace_period=2 * _LAST_S,
        )
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            pass  # the listener reads nothing: the connection ends
        finally:
            self._leave()


async def _tell(feed: _Feed, seen: int, first: str) -> AsyncIterator[bytes]:
    yield ServerSentEvent(first, retry=_RETRY_MS).encode()
    while (event := await feed.next(seen)) is not None:
        seen = feed.number
        yield event

"""Server-sent events: what many look at is looked up once, twice a second, and only while somebody looks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from app.errors import SeckillError, TooManyListeners

_log = logging.getLogger(__name__)

EVERY_S: Final = 0.5
_HEARTBEAT_S: Final = 5
_RETRY_MS: Final = 1000
_SEND_S: Final = 10.0  # who reads nothing for so long is let go

Look = Callable[[], Awaitable[str | None]]


class Feeds:
    """All that is looked at in this instance, by at most `listeners_max` at once. Lives on one event loop."""

    def __init__(self, listeners_max: int) -> None:
        self._listeners_max = listeners_max
        self._feeds: dict[str, _Feed] = {}
        self._listeners = 0
        self._closed = False

    def open(self, name: str, first: str, look: Look) -> EventSourceResponse:
        """Tell a listener `first`, and then whatever `look` finds that is new (None: nothing), with all of that name.

        Raises `TooManyListeners`.
        """
        if self._listeners >= self._listeners_max or self._closed:
            raise TooManyListeners(f"{self._listeners_max} listen already; ask now and then instead")
        self._listeners += 1
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = _Feed(look)
        feed.listeners += 1

        def leave() -> None:
            self._listeners -= 1
            feed.listeners -= 1
            if not feed.listeners and self._feeds.get(name) is feed:
                del self._feeds[name]
                feed.close()

        return _Telling(
            _tell(first, feed),
            leave,
            ping=_HEARTBEAT_S,
            ping_message_factory=lambda: ServerSentEvent(comment="still here"),
            send_timeout=_SEND_S,
        )

    def close(self) -> None:
        """Let all listeners go."""
        self._closed = True
        for feed in self._feeds.values():
            feed.close()


class _Feed:
    """One thing to look at, while it has listeners."""

    def __init__(self, look: Look) -> None:
        self.listeners = 0
        self._look = look
        self._next: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._looking = asyncio.create_task(self._look_on(), name="feed")

    async def next(self) -> bytes | None:
        """What is new next, None at the end. Who is slow misses what was new meanwhile."""
        return await asyncio.shield(self._next)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                text = await self._look()
            except SeckillError:
                continue  # there is nothing to be seen; the heartbeat goes on
            except Exception:
                _log.exception("a look at what is shown failed in a way that it must not")
                continue
            if text is not None:
                told, self._next = self._next, asyncio.get_running_loop().create_future()
                told.set_result(ServerSentEvent(text).encode())  # once for all

    def close(self) -> None:
        """Nobody looks any more."""
        self._looking.cancel()
        if not self._next.done():
            self._next.set_result(None)


class _Telling(EventSourceResponse):
    """A response that says when it is over, even if it never began."""

    def __init__(self, content: AsyncIterator[bytes], leave: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _tell(first: str, feed: _Feed) -> AsyncIterator[bytes]:
    yield ServerSentEvent(first, retry=_RETRY_MS).encode()
    while (event := await feed.next()) is not None:
        yield event

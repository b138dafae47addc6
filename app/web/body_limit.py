"""Bodies of requests are read before the request is admitted, and only from clients that may send one.

Valid bodies are small. A request takes no place among the readers while its body is on its way.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

BODY_MAX_BYTES: Final = 65_536
_STRANGERS_MAX: Final = 100  # bodies at once of clients without rights, such as a login's
_STRANGERS_MAX_BYTES: Final = 67_108_864  # of theirs in memory


class Bodies:
    """Reads bodies of at most `bytes_max` within `timeout_s` seconds. It lives on one event loop.

    At most `strangers_max` of clients without rights are read at once, and 64 MiB of them kept. If there are more, the
    one that has taken the longest gives up its place: a body that is sent in one go takes milliseconds, and slow ones
    can't keep it out.
    """

    def __init__(
        self, *, timeout_s: float, bytes_max: int = BODY_MAX_BYTES, strangers_max: int = _STRANGERS_MAX
    ) -> None:
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._strangers_max = strangers_max
        self._strangers: deque[asyncio.Timeout] = deque()  # the one that began first is the first
        self._strangers_bytes = 0

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes], *, known: bool) -> Receive:
        """Read a request's body, and return the `receive` that gives it to the application.

        `known`: the client has rights. Raises `HTTPException` 413 or 408.
        """
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._bytes_max:
            raise _too_large(self._bytes_max)
        try:
            async with asyncio.timeout(self._timeout_s) as until:
                if known:
                    return await self._read(receive)
                return await self._read_strangers(receive, until)
        except TimeoutError:
            raise HTTPException(408, f"no whole body within {self._timeout_s:g} s", {"Connection": "close"}) from None

    async def _read_strangers(self, receive: Receive, until: asyncio.Timeout) -> Receive:
        if len(self._strangers) >= self._strangers_max:
            self._let_the_slowest_go()
        self._strangers.append(until)
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += (more := len(message.get("body", b"")))
            self._strangers_bytes += more
            if self._strangers_bytes > _STRANGERS_MAX_BYTES:
                self._let_the_slowest_go()
            return message

        try:
            return await self._read(counted)
        finally:
            self._strangers_bytes -= size
            with contextlib.suppress(ValueError):  # the request has given up its place
                self._strangers.remove(until)

    def _let_the_slowest_go(self) -> None:
        if self._strangers and not (oldest := self._strangers.popleft()).expired():
            oldest.reschedule(0.0)  # a moment that is over

    async def _read(self, receive: Receive) -> Receive:
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the client has gone
                return receive
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._bytes_max:
                raise _too_large(self._bytes_max)
        return with_body(bytes(body), receive)


def with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives this body, and then waits like the original one."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def has_body(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request announces a body that its method may have."""
    announced = headers.get(b"content-length", b"0").strip(b"0") or b"transfer-encoding" in headers
    return bool(announced) and scope["method"] not in ("GET", "HEAD")


def _too_large(bytes_max: int) -> HTTPException:
    title = f"the body is larger than {bytes_max} bytes"
    return HTTPException(413, title, {"Connection": "close"})

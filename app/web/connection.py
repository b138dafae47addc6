"""uvicorn's connection with the limits that it lacks: heads that never end, clients that never speak or never read.

All else is uvicorn's, and a balancer's in front of it. How long a body may take, and how large it may be, is the
application's business: see `app.web.limits`.
"""

import asyncio
import fcntl
import sys
import termios
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.web.problems import problem

HEAD_MAX_BYTES: Final = 16_384
_HEAD_TOO_LARGE: Final = f"the head of the request is larger than {HEAD_MAX_BYTES} bytes"
_TITLES: Final = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}
GONE: Final = "seckill.gone"  # in a request's scope: says whether its client has gone
_UNSENT_BYTES: Final = getattr(termios, "TIOCOUTQ", None)  # of a socket on Linux and macOS
_INT: Final = bytes(4)
_refuse_head: Final = problem(
    431, "request-header-fields-too-large", _TITLES[431], _HEAD_TOO_LARGE, headers={"Connection": "close"}
)


class Connection(HttpToolsProtocol):
    """Swept by the server now and then. `connections_max`: set by the server, for all of them."""

    connections_max: int = 20_000

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting_since: float | None = None  # for a whole head
        self._head_bytes = 0
        self._unsent_bytes = 0
        self._asked = False  # since the last look
        self._stuck_since: float | None = None
        self._descriptor: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A silent client counts as one that sends a head slowly: uvicorn waits for its first byte for ever."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        connected = transport.get_extra_info("socket")
        self._descriptor = connected.fileno() if connected is not None else None
        # uvicorn's `limit_concurrency` would refuse those who are connected, too.
        if len(self.connections) > self.connections_max:
            self.refuse(503, "too many connections; nothing was sold")

    def data_received(self, data: bytes) -> None:
        """Bytes that begin no request (empty lines) count as well: each of them ends uvicorn's keep-alive timer."""
        if self._waiting_since is None and not self._answering:
            self._waiting_since = self.loop.time()
        super().data_received(data)
        if self._waiting_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES:
                self.refuse(431, _HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request that does not wait for the answer to the one ahead of it is not taken: no client sends that."""
        if self._answering:
            raise BlockingIOError("pipelined")  # ends the parser; see `send_400_response`
        super().on_message_begin()
        self._head_bytes = 0
        self._asked = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are dropped: uvicorn would add them to the headers, without a bound."""
        if self._waiting_since is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """From here on the application has the time."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_MAX_BYTES:
            self.app = _refuse_head
        cast(dict[str, Any], self.scope)[GONE] = self.transport.is_closing
        super().on_headers_complete()
        self._waiting_since = None
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser takes nothing more, and we speak nothing else

    def on_response_complete(self) -> None:
        """Answered before the body was there: close, or it may go on for ever."""
        if self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or comes too early. An answer that is under way is the last one."""
        if self._answering:
            self._end_after_answer()
        else:
            super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """No word in the log: what clients offer is their affair."""

    def sweep(self, now: float, *, request_timeout_s: float, reading_timeout_s: float) -> None:
        """End it if a head has been on its way for too long, or if the client reads nothing of what was sent."""
        if self._waiting_since is not None and now - self._waiting_since > request_timeout_s:
            self.refuse(408, f"no whole request within {request_timeout_s:g} s")
        unsent = self._unread()
        # Whoever asks again and again may have as much unread at each look, and not more.
        if not unsent or unsent < self._unsent_bytes or (self._asked and unsent == self._unsent_bytes):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > reading_timeout_s:
            self.transport.abort()  # a close would wait until what was sent has been read
        self._unsent_bytes, self._asked = unsent, False

    def _unread(self) -> int:
        """Bytes that were sent and that the client's machine has not taken, in our buffer and in the kernel's."""
        unsent = self.transport.get_write_buffer_size()
        if self.cycle is None or self._descriptor is None or _UNSENT_BYTES is None or self.transport.is_closing():
            return unsent
        in_kernel = fcntl.ioctl(self._descriptor, _UNSENT_BYTES, _INT)
        return unsent + int.from_bytes(in_kernel, sys.byteorder)

    def refuse(self, status: int, why: str) -> None:
        """Say why and close; if an answer is under way, that is the last."""
        if self.transport.is_closing():
            return
        if self._answering:
            self._end_after_answer()
            return
        title = _TITLES[status]
        slug = title.lower().replace(" ", "-")
        body = f'{{"type":"urn:seckill:{slug}","title":"{title}","status":{status},"detail":"{why}"}}'
        retry = "retry-after: 1\r\n" if status == 503 else ""
        self.transport.write(
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n{retry}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()

    def _end_after_answer(self) -> None:
        self.cycle.keep_alive = False
        self.flow.pause_reading()

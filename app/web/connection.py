"""A connection that can't be used to exhaust us: one request at a time, bounded in size, in time, and in number.

uvicorn's protocol reads a head as long as it comes, however slowly and however long it is, and queues what is sent
before the answer. The time that a body may take is the application's business, see `app.web.limits`.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.web.limits import ABORT, BODY_MAX_BYTES

HEAD_MAX_BYTES: Final = 16_384
# With all that lies around a body: sizes of its chunks, what is said behind it. None of that is kept.
_REQUEST_MAX_BYTES: Final = HEAD_MAX_BYTES + 4 * BODY_MAX_BYTES

_REASONS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Connection(HttpToolsProtocol):
    """uvicorn's own, with limits. `connections_max` is set by the server for all of them."""

    connections_max: int = 20_000

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Since when we wait for the rest of a head, or for the rest of a body that nobody needs any more; or None.
        self.waits_since: float | None = None
        self._in_head = False
        self._in_request = False
        self._bytes = 0  # of this request
        self._deaf = False  # what comes is not listened to any more: we close after the answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Welcome, unless there are too many."""
        super().connection_made(transport)
        self._extensions = {ABORT: transport.abort}
        self.waits_since = self.loop.time()
        if len(self.connections) > self.connections_max:
            self.refuse(503, "too many connections; nothing was sold")

    def data_received(self, data: bytes) -> None:
        """Parse on, unless the request has become too long."""
        if self._deaf:
            return
        self._bytes += len(data)
        super().data_received(data)
        if self._deaf:
            return
        if self._in_head and self._bytes > HEAD_MAX_BYTES:
            self._head_too_large()
        elif self._bytes > _REQUEST_MAX_BYTES:
            self.refuse(413, f"the request is larger than {_REQUEST_MAX_BYTES} bytes")
        elif self.waits_since is None and not self._in_request and not self._answering:
            self.waits_since = self.loop.time()  # bytes that begin nothing: empty lines

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- what the parser finds ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._deaf:
            return
        if self._answering:
            # Sent before the answer to the one before, which is still allowed to come; then we close.
            self._last()
            return
        super().on_message_begin()
        self._in_head = self._in_request = True
        if self.waits_since is None:
            self.waits_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """A part of the path."""
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one behind the body is none of those that we could still judge the request by."""
        if self._in_head and not self._deaf:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The whole head: judge its size before anything is done about it."""
        if self._deaf:
            return
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_MAX_BYTES:
            self._head_too_large()
            return
        super().on_headers_complete()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self._in_head = False
        self.waits_since = None
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # to nothing that we speak; the parser says no more after that

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is there."""
        if not self._deaf:
            self._in_request = False
            self._bytes = 0
            self.waits_since = None
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answered; perhaps before all of the request was there."""
        super().on_response_complete()
        if self._in_request:
            self.waits_since = self.loop.time()

    # -- ends --------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The server stops: no request is taken any more, and none waited for that is half here."""
        if self._in_request and self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.close()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self.refuse(400, "not an HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """No word in the log: it is the buyer's affair what they offer."""

    def _head_too_large(self) -> None:
        self.refuse(431, f"the head of the request is larger than {HEAD_MAX_BYTES} bytes")

    def _last(self) -> None:
        self._deaf = True
        self.cycle.keep_alive = False

    def refuse(self, status: int, why: str) -> None:
        """Say why and close. If another answer is under way that one is the last; if it is out we only close."""
        if self._deaf or self.transport.is_closing():
            return
        if self._answering:
            self._last()
            return
        self._deaf = True
        if self._in_head or not self._in_request:
            slug = _REASONS[status].lower().replace(" ", "-")
            body = (
                f'{{"type":"urn:seckill:{slug}","title":"{_REASONS[status]}","status":{status},"detail":"{why}"}}'
            ).encode()
            retry = b"retry-after: 1\r\n" if status == 503 else b""
            self.transport.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n".encode()
                + retry
                + b"\r\n"
                + body
            )
        self.transport.close()

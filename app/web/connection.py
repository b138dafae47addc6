"""The connection of a client: it answers purchases and holds itself, and hands all else to uvicorn's protocol.

A purchase that is well formed is answered without a task of its own, as a task costs more than the sale; so is a hold,
or a change of one, with a small body. The ASGI applications (`app.web.purchase`, `app.web.holds`) parse them and form
the answers, and serve all unusual requests by themselves.

uvicorn's protocol is used unchanged: it is given whole requests, one at a time, and the same transport. The limits that
it lacks are here and in `connection_limits`. The application limits the time and the size of a body:
see `app.web.body_limit`.
"""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr

from app.orders import Answer
from app.web import holds, purchase
from app.web.body_limit import BODY_MAX_BYTES
from app.web.call import GONE, Call
from app.web.connection_limits import BEYOND_MAX, HEAD_MAX_BYTES, ConnectionLimits, Places
from app.web.headers import HEADERS
from app.web.problem_types import URN, Effect
from app.web.state import State

_TITLES: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_ODD: Final = re.compile(rb"[%?#]")
_LAST_MAX_BYTES: Final = 16 * BODY_MAX_BYTES  # after an offer to upgrade: a maximal body sent in one-byte chunks
_NEVER_S: Final = 10**6
_BEGIN: Final = b"HTTP/1.1 "  # of every answer
_PATH: Final = purchase.PATH.encode()
_HOLDS: Final = holds.PATH.encode()
_WATCH: Final = (b"/healthz", b"/readyz", b"/metrics")  # have an answer although there are too many connections
_FIXED: Final = b"".join(b"%s: %s\r\n" % header for header in HEADERS)


def _raise(error: Exception) -> Answer:
    raise error


class _Begun:
    """The transport of an answer whose first bytes were written, for uvicorn, which does not know that."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begin = _BEGIN

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write without what was written."""
        self._transport.write(data.removeprefix(self._begin))
        self._begin = b""


class ClientConnection(asyncio.Protocol):
    """The connection of a client, made by uvicorn's server, and swept by ours, which sets `connections_max`."""

    connections_max: int = 20_000

    def __init__(
        self,
        config: Config,
        server_state: Places,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._uvicorn: HttpToolsProtocol | None = None  # made for the first request that is no purchase
        self._call: Call | None = None  # that is not answered
        self._keep_alive = self._begun = False  # behind its answer; the first bytes of that were written
        self._wish: list[bytes] | None = None  # the body of a hold, as far as it has come
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = self._in_body = False
        self._chunked = False
        self._upgraded = False  # our parser takes nothing more, and uvicorn's gets all that comes
        self._silent_bytes = 0  # bytes of chunks' heads or trailers since the head, or since a part of the body
        self._head_bytes = 0  # that came before
        self._new_bytes = 0
        self._told = False  # a purchase that has come with these bytes
        self._half_closed = False
        self._gone = False  # after that

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place; uvicorn's `limit_concurrency` would refuse older connections, too.

        Beyond the limit some wait until their request is read: an orchestrator ends an instance whose health check is
        refused, with all its buyers. The operator's port has no limit.
        """
        self.transport = transport
        self._server = get_local_addr(transport)
        self._limits = ConnectionLimits(transport, self._loop.time())
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        beyond, state = self._server_state.beyond, self._app_state.get("seckill")
        by_operator = isinstance(state, State) and self._server and self._server[1] == state.operator_port
        if not by_operator and self._server_state.taken > self.connections_max:
            if len(beyond) >= BEYOND_MAX:
                cast(ClientConnection, next(iter(beyond))).refuse_place()
            beyond[self] = None

    def data_received(self, data: bytes) -> None:
        """Parse the bytes. A request that does not wait for the previous answer is refused: no client does that."""
        if self._upgraded:
            self._pass_on(data)
            return
        if not self._in_body and not self._answering:
            self._limits.bytes_come(self._loop.time())
        self._new_bytes, self._told = len(data), False
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # It is answered as any other request, and is the last one. Java's client asks for that, bodies included.
            self._upgraded = True
            self._pass_on(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            if self._in_body and not self._responds:
                self._refuse(400, "the rest of the body is no HTTP", waiting=True)  # which nobody need wait for
            elif self._answering:
                self._end_after_answer()
            elif self._told:
                self.transport.close()  # it has been answered already
            else:
                self._refuse(400, "this is no HTTP request")
            return
        if self._in_body and self._silent_bytes > HEAD_MAX_BYTES + len(data):
            self.transport.abort()  # the parser would gather a trailer of any size
        if self._in_head or not (self._in_body or self._answering or self._told):
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES:
                self._refuse_head()

    # -- what the parser finds ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._answering or self._told or self.transport.is_closing():
            raise BlockingIOError("pipelined")  # ends the parser
        self._url, self._headers, self._in_head = b"", [], True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; drop trailers behind a body, which would pass for headers, and have no limit."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the request if it is a purchase, or hand it on."""
        self._in_head, self._in_body = False, True
        self._silent_bytes = 0
        self._limits.head_is_complete()
        if self in self._server_state.beyond and self._url.partition(b"?")[0] not in _WATCH:
            if self._server_state.taken >= self.connections_max:
                self.refuse_place()
                return
            del self._server_state.beyond[self]  # there is a place by now
        # Bytes that came with the end of the head may be of the head.
        if self._head_bytes + self._new_bytes > HEAD_MAX_BYTES:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
            if size > HEAD_MAX_BYTES:
                self._refuse_head()
                return
        # RFC 9112, 3.2 and 2.3: a proxy in front might have believed another one.
        version = self._parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self._headers)
        if version not in ("1.0", "1.1"):
            self._refuse(505, "HTTP/1.1 and HTTP/1.0 are spoken here")
        elif hosts > 1 or (hosts < 1 and version == "1.1"):
            self._refuse(400, "one Host header, in HTTP/1.1")
        elif any(one.lower() != b"chunked" for name, one in self._headers if name == b"transfer-encoding"):
            self._refuse(501, "the only transfer coding is chunked")
        elif self._is_hold():
            self._wish = []
            self._limits.bytes_come(self._loop.time())  # the timer goes on until the short body is there
        elif not self._is_purchase():
            self._hand_on()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; close if the request was answered already, as the body may go on for ever."""
        self._silent_bytes = 0
        if self._wish is not None:
            self._wish.append(body)
        elif not self._answering:
            self.transport.close()
        elif self._uvicorn is not None:
            self._uvicorn.data_received(b"%x\r\n%s\r\n" % (len(body), body) if self._chunked else body)

    def on_message_complete(self) -> None:
        """Buy, if the request is a purchase, or hold."""
        self._in_body = False
        if self._wish is not None:
            self._limits.head_is_complete()
            body, self._wish = b"".join(self._wish), None
            self._hold(body)
            return
        if self._call is not None:
            self._submit(self._call)
        elif self._chunked and self._uvicorn is not None and self._answering:
            self._uvicorn.data_received(b"0\r\n\r\n")

    # -- other requests ----------------------------------------------------------------------------------------------

    def _hand_on(self) -> None:
        """Give the head to uvicorn's protocol, as it would come over a connection without purchases."""
        if self._uvicorn is None:
            state = {**self._app_state, GONE: self._has_gone}
            self._uvicorn = HttpToolsProtocol(self._config, self._server_state, state, self._loop)
            self._uvicorn.timeout_keep_alive = _NEVER_S  # uvicorn's protocol doesn't know of the purchases in between
            self._uvicorn.connection_made(self.transport)
            self._server_state.connections.discard(self._uvicorn)  # the server has us
        head = [b"%s %s HTTP/%s\r\n" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())]
        upgrade = self._parser.should_upgrade()  # our parser takes nothing more then, and we speak nothing else
        self._chunked = False
        for name, value in self._headers:
            if not (upgrade and name in (b"connection", b"upgrade")):
                head.append(b"%s: %s\r\n" % (name, value))
            self._chunked = self._chunked or (name == b"transfer-encoding" and not upgrade)
        head.append(b"connection: close\r\n\r\n" if upgrade else b"\r\n")
        self._uvicorn.data_received(b"".join(head))

    def _pass_on(self, data: bytes) -> None:
        self._silent_bytes += len(data)
        if self._silent_bytes > _LAST_MAX_BYTES:
            self.transport.abort()  # uvicorn's parser, too, would gather a trailer of any size
        elif data and self._uvicorn is not None:
            self._uvicorn.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client has gone."""
        self._server_state.connections.discard(self)
        self._server_state.beyond.pop(self, None)
        self._gone = True
        if self._uvicorn is not None:
            self._uvicorn.connection_lost(None)  # with an error it would leave its timer behind

    def pause_writing(self) -> None:
        """Pause the application, as the client reads too slowly: see `asyncio.Protocol`."""
        if self._uvicorn is not None:
            self._uvicorn.pause_writing()

    def resume_writing(self) -> None:
        """Resume the application."""
        if self._uvicorn is not None:
            self._uvicorn.resume_writing()

    def shutdown(self) -> None:
        """End after the answer that is under way; called by uvicorn's server at its shutdown."""
        if self._call is not None:
            self._keep_alive = False
        elif self._uvicorn is not None:
            self._uvicorn.shutdown()
        else:
            self.transport.close()

    # -- purchases ---------------------------------------------------------------------------------------------------

    def _is_purchase(self) -> bool:
        """Return whether it is a well-formed purchase. Any other request needs a task, as its body may never come."""
        path, _, query = self._url.partition(b"?")
        if path != _PATH:
            return False
        method = self._parser.get_method().decode()
        state = self._open_shop()
        if state is None or method not in state.buying:
            return False
        call = Call(purchase.ROUTE, state, method, purchase.PATH, query, self._headers, self._server)
        try:
            call.read()
        except Exception:
            return False  # the application answers, and logs it if it is an error of ours
        self._begin(call)
        return True

    def _begin(self, call: Call) -> None:
        parser = self._parser  # our parser takes nothing more after an upgrade
        self._keep_alive = (
            parser.get_http_version() != "1.0" and parser.should_keep_alive() and not parser.should_upgrade()
        )
        self._call, self._begun = call, False

    def _is_hold(self) -> bool:
        """Return whether it is a hold, or a change of one, whose body is small and will come."""
        # An id may be escaped: Java writes %7E for ~. Few do, so the application reads these and all unusual requests.
        if (
            not self._url.startswith(_HOLDS)
            or _ODD.search(self._url)
            or not holds.is_route(self._parser.get_method().decode(), self._url.decode("latin-1"))
        ):
            return False
        headers = dict(self._headers)
        length = headers.get(b"content-length", b"0")
        unusual = b"transfer-encoding" in headers or b"expect" in headers or self._parser.should_upgrade()
        return (
            not unusual and length.isdigit() and int(length) <= holds.BODY_MAX_BYTES and self._open_shop() is not None
        )

    def _hold(self, body: bytes) -> None:
        """Hold, or change a hold."""
        state, method = self._app_state["seckill"], self._parser.get_method().decode()
        call = Call(holds.ROUTE, state, method, self._url.decode("latin-1"), b"", self._headers, self._server, body)
        self._begin(call)
        try:
            call.read()
        except Exception as error:
            self._tell(call, partial(_raise, error))
            return
        self._submit(call)

    def _open_shop(self) -> State | None:
        state = self._app_state.get("seckill")
        if not isinstance(state, State):
            return None
        return None if self._server and self._server[1] == state.operator_port else state

    def _submit(self, call: Call) -> None:
        try:
            found = call.submit(self._has_gone)
        except Exception as error:
            self._tell(call, partial(_raise, error))
            return
        if isinstance(found, Answer):
            self._tell(call, lambda: found)
        else:
            found.add_done_callback(lambda future: self._tell(call, future.result))

    def _tell(self, call: Call, answer: Callable[[], Answer]) -> None:
        """Answer in any case; a buyer who can't be answered loses the connection."""
        try:
            self._say(*call.answered(answer))
        except BaseException:
            self.transport.abort()
            raise

    def _say(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        self._call, self._told = None, True
        if self.transport.is_closing():
            return
        said = [STATUS_LINE[status].removeprefix(_BEGIN) if self._begun else STATUS_LINE[status]]
        said += [b"%s: %s\r\n" % header for header in self._server_state.default_headers]
        said += [b"%s: %s\r\n" % header for header in headers]
        said += (_FIXED, b"\r\n" if self._keep_alive else b"connection: close\r\n\r\n", body)
        self.transport.write(b"".join(said))
        self._server_state.total_requests += 1
        if self._keep_alive:
            self._limits.answered(self._loop.time())
        else:
            self.transport.close()

    def eof_received(self) -> bool:
        """Keep the connection: the client sends no more, but may still read. A live stream has lost its listener.

        A client that has gone altogether looks the same, but answers the first bytes with a reset; and these are the
        same for every answer.
        """
        if self._in_body:
            return False  # the rest of it will not come
        if not self._answering or self._responds:
            return False  # the transport closes; it may be a stream
        self._half_closed = True
        self.transport.write(_BEGIN)
        if self._call is not None:
            self._begun = True
        elif self._uvicorn is not None:
            self._uvicorn.cycle.transport = cast(asyncio.Transport, _Begun(self.transport))
        self.shutdown()
        return True

    def _has_gone(self) -> bool:
        if not self._half_closed or self._gone or self.transport.is_closing():
            return self._gone or self.transport.is_closing()
        # Nobody reads from the socket any more, so the reset was not noticed.
        connected = self.transport.get_extra_info("socket")
        self._gone = bool(connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        if self._gone and self._call is None:
            self.transport.abort()  # uvicorn is told, too
        return self._gone

    # -- limits ------------------------------------------------------------------------------------------------------

    @property
    def _answering(self) -> bool:
        if self._call is not None:
            return True
        cycle = self._uvicorn.cycle if self._uvicorn is not None else None
        return cycle is not None and not cycle.response_complete

    @property
    def _responds(self) -> bool:
        """Return whether uvicorn has begun to answer."""
        return self._call is None and self._uvicorn is not None and self._uvicorn.cycle.response_started

    def sweep(self, now: float, *, request_timeout_s: float, reading_timeout_s: float) -> None:
        """Close the connection if a head is late, if it is unused, or if the client does not read."""
        limits = self._limits
        if limits.head_is_late(now, request_timeout_s):
            self._refuse(408, f"no whole request within {request_timeout_s:g} s")
        elif (
            self._wish is None
            and not self._answering
            and (self._in_body or limits.is_unused(now, self._config.timeout_keep_alive))
        ):
            self.transport.close()  # a body that is still on its way was not waited for
        if limits.is_stuck(now, reading_timeout_s):
            self.transport.abort()  # a close would wait until the client has read the answer

    def refuse_place(self) -> None:
        """Refuse a connection that is there beyond the limit."""
        self._server_state.beyond.pop(self, None)
        self._refuse(503, "too many connections; nothing was done")

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of the request is larger than {HEAD_MAX_BYTES} bytes")

    def _refuse(self, status: int, why: str, *, waiting: bool = False) -> None:
        """Refuse a request and close; an answer that is under way, and not `waiting` for a body, is the last."""
        if self.transport.is_closing():
            return
        if self._answering and not waiting:
            self._end_after_answer()
            return
        title = _TITLES[status]
        slug = title.lower().replace(" ", "-")
        about = {"type": URN + slug, "title": title, "status": status, "detail": why, "effect": Effect.NOTHING}
        body = json.dumps(about, separators=(",", ":"))
        retry = "retry-after: 1\r\n" if status == 503 else ""
        self.transport.write(
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n{retry}{_FIXED.decode()}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()

    def _end_after_answer(self) -> None:
        self.shutdown()
        self.transport.pause_reading()

"""uvicorn's connection with the limits that it lacks: heads that never end, clients that never speak or never read.

A purchase that is well formed is answered without a task of its own, as a task costs more than the sale. What it means
and what it is told are the ASGI application's affair (`app.web.purchase`), and all that is unusual goes through that.

All else is uvicorn's, and a balancer's in front of it. How long a body may take, and how large it may be, is the
application's business: see `app.web.limits`.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.sale import Answer, Purchase
from app.web.headers import HEADERS
from app.web.problems import of, problem
from app.web.purchase import GONE, PATH, read, respond
from app.web.state import State

HEAD_MAX_BYTES: Final = 16_384
_HEAD_TOO_LARGE: Final = f"the head of the request is larger than {HEAD_MAX_BYTES} bytes"
_TITLES: Final = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}
_UNSENT_BYTES: Final = getattr(termios, "TIOCOUTQ", None)  # of a socket on Linux and macOS
_INT: Final = bytes(4)
_BEGIN: Final = b"HTTP/1.1 "  # of every answer
_PATH: Final = PATH.encode()
_FIXED: Final = b"".join(b"%s: %s\r\n" % header for header in HEADERS)
_refuse_head: Final = problem(
    431, "request-header-fields-too-large", _TITLES[431], _HEAD_TOO_LARGE, headers={"Connection": "close"}
)


class _NoBody:
    def set(self) -> None:
        """Nobody waits for a body."""


class _Sale:
    """A purchase that is being answered: what uvicorn asks of a request in hand, and what the answer needs.

    `begun`: the first bytes of the answer are written.
    """

    __slots__ = (
        *("as_json", "begun", "disconnected", "in_line", "keep_alive", "method"),
        *("more_body", "response_complete", "state", "wish"),
    )
    message_event = _NoBody()

    def __init__(self, state: State, method: str, wish: Purchase, as_json: bool, *, keep_alive: bool) -> None:
        self.state = state
        self.method = method
        self.wish = wish
        self.as_json = as_json
        self.keep_alive = keep_alive
        self.in_line = self.begun = self.disconnected = self.response_complete = False
        self.more_body = True


def _raise(error: Exception) -> Answer:
    raise error


class _Nothing(list[tuple[bytes, bytes]]):
    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


_DROPPED: Final = _Nothing()


class Connection(HttpToolsProtocol):
    """Swept by the server now and then. `connections_max`: set by the server, for all of them."""

    connections_max: int = 20_000

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting_since: float | None = None  # for a whole head
        self._head_bytes = 0  # that came before
        self._new_bytes = 0
        self._sale: _Sale | None = None  # that is not answered
        self._told = False  # of one that has come with these bytes
        self._idle_since: float | None = None  # after that
        self._half_closed = False
        self._gone = False  # after that
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
        self._new_bytes, self._told = len(data), False
        super().data_received(data)
        if self._waiting_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES:
                self.refuse(431, _HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request that does not wait for the answer to the one ahead of it is not taken: no client sends that."""
        if self._answering or self._told:
            raise BlockingIOError("pipelined")  # ends the parser; see `send_400_response`
        # What uvicorn makes of a request's beginning can wait: a purchase needs none of it.
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._idle_since = None
        self._head_bytes = 0
        self._asked = True

    def on_headers_complete(self) -> None:
        """From here on the application has the time."""
        # Bytes that came with the end of the head may be of the head.
        if self._head_bytes + self._new_bytes > HEAD_MAX_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > HEAD_MAX_BYTES:
                self.app = _refuse_head
        if not self._is_purchase():
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers.extend(headers)
            cast(dict[str, Any], self.scope)[GONE] = self._has_gone
            super().on_headers_complete()
        self._waiting_since = None
        self.headers = _DROPPED  # uvicorn would add trailers to the headers, without a bound
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser takes nothing more, and we speak nothing else

    # -- purchases ---------------------------------------------------------------------------------------------------

    def _is_purchase(self) -> bool:
        """Whether it is one, and well formed. What is unusual needs a task, and perhaps has a body that never comes."""
        path, _, query = self.url.partition(b"?")
        if path != _PATH or self.app is not self.config.loaded_app:
            return False
        method = self.parser.get_method().decode()
        state = self._open_shop(method)
        if state is None:
            return False
        try:
            wish, as_json = read(state, query, self.headers)
        except Exception:
            return False  # the application says it, and logs it if it is an error of ours
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self._sale = _Sale(state, method, wish, as_json, keep_alive=keep_alive)
        self.cycle = cast(RequestResponseCycle, self._sale)
        return True

    def _open_shop(self, method: str) -> State | None:
        state = self.app_state.get("seckill")
        if not isinstance(state, State) or method not in state.buying or state.rates is not None:
            return None
        return None if self.server and self.server[1] == state.operator_port else state

    def on_message_complete(self) -> None:
        """Buy, if that is what was asked for."""
        super().on_message_complete()
        sale = self._sale
        if sale is None or sale.in_line:
            return
        sale.in_line = True
        try:
            told = sale.state.shop.join(sale.wish, gone=self._has_gone)
        except Exception as error:
            self._tell(sale, partial(_raise, error))
            return
        if isinstance(told, Answer):
            self._tell(sale, lambda: told)
        else:
            told.add_done_callback(lambda told: self._tell(sale, told.result))

    def _tell(self, sale: "_Sale", answer: Callable[[], Answer]) -> None:
        """Whatever happens, the buyer is told, or loses the connection."""
        try:
            try:
                headers, body = respond(sale.state, self.server, answer(), as_json=sale.as_json)
                status = 200
            except Exception as error:
                problem = of(error, sale.method, PATH)
                status, headers, body = problem.status_code, problem.raw_headers, bytes(problem.body)
            self._say(sale, status, headers, body)
        except BaseException:
            self.transport.abort()
            raise

    def _say(self, sale: "_Sale", status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        sale.response_complete = self._told = True
        self._sale = None
        if sale.disconnected:
            return
        said = [STATUS_LINE[status].removeprefix(_BEGIN) if sale.begun else STATUS_LINE[status]]
        said += [b"%s: %s\r\n" % header for header in self.server_state.default_headers]
        said += [b"%s: %s\r\n" % header for header in headers]
        said += (_FIXED, b"\r\n" if sale.keep_alive else b"connection: close\r\n\r\n", body)
        self.transport.write(b"".join(said))
        self.server_state.total_requests += 1
        if sale.keep_alive:
            self._idle_since = self.loop.time()  # uvicorn has a timer for that, for each answer
        else:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more; a buyer may still read.

        Who has gone altogether looks the same, but answers the first bytes with a reset; and those are the same
        whatever the buyer will be told.
        """
        if not self._answering:
            return False  # uvicorn closes
        self._half_closed = True
        if self._sale is not None:
            self.transport.write(_BEGIN)
            self._sale.begun = True
        elif cast(Any, self.cycle.scope)["path"] != PATH:
            return False
        self.cycle.keep_alive = False
        return True

    def _has_gone(self) -> bool:
        if not self._half_closed or self._gone or self.transport.is_closing():
            return self._gone or self.transport.is_closing()
        # Nobody reads from it any more, so nobody has noticed the reset.
        connected = self.transport.get_extra_info("socket")
        self._gone = self._sale is not None and bool(connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        return self._gone

    # -- limits ------------------------------------------------------------------------------------------------------

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
        elif self._told:
            self.transport.close()  # it has been answered already
        else:
            super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """No word in the log: what clients offer is their affair."""

    def sweep(self, now: float, *, request_timeout_s: float, reading_timeout_s: float) -> None:
        """End it if a head has been on its way for too long, or if the client reads nothing of what was sent."""
        if self._waiting_since is not None and now - self._waiting_since > request_timeout_s:
            self.refuse(408, f"no whole request within {request_timeout_s:g} s")
        if self._idle_since is not None and now - self._idle_since > self.timeout_keep_alive:
            self.transport.close()
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
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n{retry}{_FIXED.decode()}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()

    def _end_after_answer(self) -> None:
        self.cycle.keep_alive = False
        self.flow.pause_reading()

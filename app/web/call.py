"""A call: a request for a command, from whichever door it comes through to its answer.

The doors to it are the connection (`app.web.connection`), which needs no task for what is usual, and ASGI (`asgi`):
for all else, for the callbacks of payment providers, and behind another server than ours. Whatever the door, a request
is read, submitted, answered and refused here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from starlette.types import Receive, Scope, Send

from app.errors import TurnedAway
from app.orders import Answer, Command
from app.web import problems, request_ids
from app.web.state import State

GONE: Final = "seckill.gone"  # in the state of a request: says whether its client has gone

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Served: TypeAlias = tuple[int, list[tuple[bytes, bytes]], bytes]  # an answer: status, headers and body
Form: TypeAlias = Callable[[Answer], tuple[list[tuple[bytes, bytes]], bytes]]


class Asked(NamedTuple):
    """What a request asks for.

    `command`: a command; or the answer, if none is needed for it; or what finds the answer, for which there is no way
    but ASGI. `form`: makes headers and body of an answer, or raises that it is an error at this route.
    """

    command: Command | Answer | Callable[[], Awaitable[Answer]]
    form: Form


class Route(NamedTuple):
    """A route with commands. `path`: for the log, as an order's id is a secret; `path_of`: that of a request, likewise.

    `read`: reads a call, or raises the error that is its answer; `has_body`: what it asks for is in there;
    `has_id`: each request has an id; else only with `SECKILL_REQUEST_IDS`; `strict`: one that is none is refused.
    """

    path: str
    read: Callable[["Call"], Asked]
    has_body: bool = True
    has_id: bool = False
    strict: bool = True
    path_of: Callable[[str], str] | None = None


def never() -> bool:
    """Of a client behind another server than ours, nobody knows whether it has gone."""
    return False


@dataclass(slots=True, eq=False)
class Call:
    """A request. `server`: the address that it came to; `request_id`, `traceparent`: None if it has none."""

    route: Route
    state: State
    method: str
    path: str
    query: bytes
    headers: Headers
    server: tuple[str, int | None] | None
    body: bytes = b""
    request_id: str | None = None
    traceparent: str | None = None
    _asked: Asked = field(init=False)

    def read(self) -> None:
        """Read what it asks for. Raises the error that is its answer."""
        if self.route.has_id or self.state.request_ids:
            self.request_id, self.traceparent = request_ids.read(self.headers, strict=self.route.strict)
        self._asked = self.route.read(self)

    def submit(self, gone: Callable[[], bool]) -> "Answer | asyncio.Future[Answer]":
        """Submit its command, and return the answer, or a future that gets it. Raises what `Shop.join` does."""
        command = self._asked.command
        if isinstance(command, Answer):
            return command
        assert not callable(command)  # noqa: S101 - those come through ASGI
        return self.state.shop.join(command, gone=gone)

    async def serve(self, gone: Callable[[], bool]) -> Served:
        """Read it, submit it, wait, and answer."""
        try:
            self.read()
            command = self._asked.command
            found = command() if callable(command) else self.submit(gone)
            answer = found if isinstance(found, Answer) else await found
        except Exception as error:
            return self.refused(error)
        return self.answered(lambda: answer)

    def answered(self, answer: Callable[[], Answer]) -> Served:
        """Form the answer that `answer` returns, or the error that it raises."""
        try:
            told = answer()
            headers, body = self._asked.form(told)
        except Exception as error:
            return self.refused(error)
        headers += [(b"content-length", b"%d" % len(body)), (b"x-seckill-outcome", told.outcome.encode())]
        if self.request_id is not None:
            headers.append((request_ids.HEADER, self.request_id.encode()))
            if self.state.request_ids:
                request_ids.note(self.request_id, self.route.path, told)
        return 200, headers, body

    def refused(self, error: Exception) -> Served:
        """Form an error; count a buyer who was turned away among the others, and log what is an error of ours."""
        if isinstance(error, TurnedAway):
            self.state.shop.turned_away(error)
        path = self.route.path if self.route.path_of is None else self.route.path_of(self.path)
        problem = problems.of(error, self.method, path)
        if self.request_id is not None:
            request_ids.give_back(self.request_id, self.route.path, problem, logged=self.state.request_ids)
        return problem.status_code, problem.raw_headers, bytes(problem.body)


async def asgi(route: Route, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request of that route: an ASGI application. `receive` gives a whole body at once."""
    message = await receive() if route.has_body else {}
    if message.get("type") == "http.disconnect":
        return  # in the middle of its body: no body would say something else
    body = message.get("body", b"")
    asked = scope["method"], scope["path"], scope["query_string"], scope["headers"]
    call = Call(route, scope["state"]["seckill"], *asked, scope.get("server"), body)
    status, headers, body = await call.serve(scope["state"].get(GONE, never))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""A call: a request for a command, from whichever door it comes through to its answer.

Its doors are the connection (`app.web.connection`), which needs no task for usual requests, and ASGI (`asgi`) for all
others, for the callbacks of payment providers, and behind another server than ours. Whatever the door, a request is
read, submitted, answered and refused here.
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

GONE: Final = "seckill.gone"  # a key in a request's state: a function that says whether its client has gone

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Served: TypeAlias = tuple[int, list[tuple[bytes, bytes]], bytes]  # an answer: status, headers and body
Form: TypeAlias = Callable[[Answer], tuple[list[tuple[bytes, bytes]], bytes]]


class Asked(NamedTuple):
    """What a request asks for.

    `command`: a command; or the answer, if it needs no command; or a coroutine that finds the answer, on ASGI only.
    `form`: makes headers and body of an answer, or raises that it is an error at this route.
    """

    command: Command | Answer | Callable[[], Awaitable[Answer]]
    form: Form


class Route(NamedTuple):
    """A route with commands."""

    path: str  # as the log shows it, since an order's id is a secret
    read: Callable[["Call"], Asked]  # raises the error that answers the call
    has_body: bool = True  # the request is in the body
    has_id: bool = False  # each request has an id; else only with `SECKILL_REQUEST_IDS`
    strict: bool = True  # a malformed `X-Request-Id` is refused
    path_of: Callable[[str], str] | None = None  # the path of a request, for the log


def never() -> bool:
    """Behind another server than ours nobody knows whether a client has gone."""
    return False


@dataclass(slots=True, eq=False)
class Call:
    """A request. `server`: the address that it came to; `request_id`, `traceparent`: None if absent."""

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
        """Form an error; count a buyer who was turned away among the others, and log an error of ours."""
        if isinstance(error, TurnedAway):
            self.state.shop.turned_away(error)
        path = self.route.path if self.route.path_of is None else self.route.path_of(self.path)
        problem = problems.of(error, self.method, path)
        if self.request_id is not None:
            request_ids.give_back(self.request_id, self.route.path, problem, logged=self.state.request_ids)
        return problem.status_code, problem.raw_headers, bytes(problem.body)


async def asgi(route: Route, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request of that route: an ASGI application. `receive` must return the whole body at once."""
    message = await receive() if route.has_body else {}
    if message.get("type") == "http.disconnect":
        return  # the client left in the middle of its body, and an empty body would be another request
    body = message.get("body", b"")
    asked = scope["method"], scope["path"], scope["query_string"], scope["headers"]
    call = Call(route, scope["state"]["seckill"], *asked, scope.get("server"), body)
    status, headers, body = await call.serve(scope["state"].get(GONE, never))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

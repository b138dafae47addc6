"""The ASGI application: commands go first, and all else is admitted as there is time for it."""

import json
from collections.abc import Awaitable, Callable
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from app.web import (
    auth,
    dashboard,
    document,
    health,
    holds,
    operator_routes,
    pages,
    payments,
    problems,
    purchase,
    reconcile,
    stock,
)
from app.web.admission import Admission
from app.web.body_limit import Bodies, has_body, with_body
from app.web.call import Route, asgi
from app.web.headers import with_headers
from app.web.state import State

_DOCUMENT: Final = "/openapi.json"
_CALLBACKS_MAX: Final = 500  # of payment providers, likewise
_WISHES_MAX: Final = 5000  # bodies of holds that are on their way at once


class Application(FastAPI):
    """FastAPI for all but purchases and the most frequent requests, which are dispatched before it.

    `buying`: the methods that buy; `port`: the buyers'; `operator_port`: the one that has the operator's paths, if any;
    `readers_max`: requests of readers at once, and as many of operators; `body_timeout_s`: for a whole body.
    """

    def __init__(
        self,
        *,
        buying: tuple[str, ...],
        port: int,
        operator_port: int | None,
        readers_max: int,
        body_timeout_s: float,
        **options: Any,
    ) -> None:
        super().__init__(**options, openapi_url=_DOCUMENT)
        self._buying = buying
        self._port = port
        self._operator_port = operator_port
        self._framework = super().__call__
        self._state: State | None = None
        self._bodies = Bodies(timeout_s=body_timeout_s)
        # Bodies of a crowd, with a few words each.
        self._wishes = Bodies(timeout_s=body_timeout_s, bytes_max=holds.BODY_MAX_BYTES, strangers_max=_WISHES_MAX)
        self._callbacks = Bodies(
            timeout_s=body_timeout_s, bytes_max=payments.BODY_MAX_BYTES, strangers_max=_CALLBACKS_MAX
        )
        self._statements = Bodies(timeout_s=reconcile.BODY_TIMEOUT_S, bytes_max=reconcile.BODY_MAX_BYTES)
        # The liveness probe has a queue of its own: no crowd of readers can starve it.
        self._readers, self._operators, self._probes = (
            Admission(self._read, at_once=readers_max, buyers_wait=self._buyers_wait) for _ in range(3)
        )
        self._direct: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": pages.shop,
            "/shop/order": pages.order_page,
            health.ALIVE: health.healthz,
            _DOCUMENT: self._show_document,
        }

    def _buyers_wait(self) -> bool:
        return self._state is not None and self._state.shop.has_buyers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the framework handles the lifespan."""
        if scope["type"] == "http":
            await with_headers(self._dispatch, scope, receive, send)
        else:
            await self._framework(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method, from_operator = scope["path"], scope["method"], False
        self._state = scope["state"]["seckill"]
        hidden = path.endswith("\n")  # a route's `$` lets that pass; what looks at paths before does not
        if self._operator_port:
            from_operator = scope["server"][1] == self._operator_port
            hidden = hidden or operator_routes.is_hidden(method, path, from_operator=from_operator)
        if hidden:
            await (pages.missing(Request(scope)) or _not_found(method, path))(scope, receive, send)
            return
        call, bodies = self._route(method, path)
        try:
            if bodies is not None:
                receive = await bodies.read(receive, dict(scope["headers"]), known=False)
            elif call is None:
                receive = await self._with_body(scope, receive)
        except HTTPException as error:
            await _http(error)(scope, receive, send)
            return
        if call is not None:
            await asgi(call, scope, receive, send)
            return
        if path == health.ALIVE:
            await self._probes(scope, receive, send)
        else:
            await (self._operators if from_operator else self._readers)(scope, receive, send)

    def _route(self, method: str, path: str) -> tuple[Route | None, Bodies | None]:
        """The route of a request for a command, and where its body has a place; None if it is none, or has none."""
        if path == purchase.PATH and method in self._buying:
            return purchase.ROUTE, None
        if holds.is_route(method, path):
            return holds.ROUTE, self._wishes
        if payments.is_route(method, path):
            return payments.ROUTE, self._callbacks
        return None, None

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read a request's body, and return its new `receive`: of no body, if the client has no right to send one."""
        headers = dict(scope["headers"])
        if not has_body(scope, headers):
            return receive
        known = auth.has_rights(Request(scope))
        if not known and scope["path"] != dashboard.LOGIN:
            return with_body(b"", receive)
        bodies = self._statements if known and scope["path"] == reconcile.PATH else self._bodies
        return await bodies.read(receive, headers, known=known)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        asks_more = path == health.ALIVE and scope["query_string"]  # which is refused
        if scope["method"] != "GET" or asks_more or (path != stock.PATH and path not in self._direct):
            await self._framework(scope, receive, send)
        elif path == stock.PATH:
            await stock.look(scope, receive, send)
        else:
            response = await self._direct[path](Request(scope, receive))
            await response(scope, receive, send)

    async def _show_document(self, _: Request) -> Response:
        return Response(self._document, media_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        return json.dumps(self.openapi(), separators=(",", ":")).encode()

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, with the parts that FastAPI doesn't know."""
        if self.openapi_schema is None:
            made = get_openapi(title=self.title, version=self.version, summary=self.summary, routes=self.routes)
            self.openapi_schema = document.completed(made, port=self._port, operator_port=self._operator_port)
        return self.openapi_schema


def _http(error: HTTPException) -> Response:
    status = error.status_code
    headers = dict(error.headers or {})
    return problems.problem(status, f"http-{status}", HTTPStatus(status).phrase, error.detail, headers=headers)


def _not_found(method: str, path: str) -> Response:
    return problems.problem(404, "http-404", "Not Found", f"{method} {path}: Not Found")

"""The ASGI application: purchases go first, and all else is admitted as there is time for it."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from app.web import health, operator_routes, problems, purchase, stock
from app.web.admission import Admission
from app.web.headers import with_headers


class Application(FastAPI):
    """FastAPI for all but purchases and readiness of the process, which are dispatched before it.

    `buying`: the methods that buy; `operator_port`: the port that has the operator's paths, if they have one;
    `readers_max`: requests at once of those who look, and as many of operators.
    """

    def __init__(self, *, buying: tuple[str, ...], operator_port: int | None, readers_max: int, **options: Any) -> None:
        super().__init__(**options)
        self._buying = buying
        self._operator_port = operator_port
        self._framework = super().__call__
        self._readers = Admission(self._read, at_once=readers_max)
        self._operators = Admission(self._read, at_once=readers_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the lifespan is the framework's."""
        if scope["type"] == "http":
            await with_headers(self._dispatch, scope, receive, send)
        else:
            await self._framework(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method, from_operator = scope["path"], scope["method"], False
        if self._operator_port:
            from_operator = scope["server"][1] == self._operator_port
            if operator_routes.is_hidden(method, path, from_operator=from_operator):
                await problems.problem(404, "http-404", "Not Found", f"{method} {path}: Not Found")(
                    scope, receive, send
                )
                return
        if path == purchase.PATH and method in self._buying:
            await purchase.purchase(scope, receive, send)
        elif path == health.ALIVE:  # its client ends a process that doesn't answer
            await self._framework(scope, receive, send)
        else:
            await (self._operators if from_operator else self._readers)(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == stock.PATH and scope["method"] == "GET":
            await stock.look(scope, receive, send)
        else:
            await self._framework(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, and the models that only our responses refer to."""
        if self.openapi_schema is None:
            document = get_openapi(title=self.title, version=self.version, summary=self.summary, routes=self.routes)
            _, models = models_json_schema(
                [(problems.Problem, "serialization"), (purchase.PurchaseView, "serialization")],
                ref_template="#/components/schemas/{model}",
            )
            document.setdefault("components", {}).setdefault("schemas", {}).update(models["$defs"])
            self.openapi_schema = document
        return self.openapi_schema

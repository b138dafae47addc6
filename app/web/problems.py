"""Errors as `application/problem+json` (RFC 9457): the one place where an error of ours gets its HTTP status."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app import errors
from app.web import hints
from app.web.problem_types import KINDS, OTHERS, URN, Effect, class_of, effect_of, name_of
from fencelock import FencelockError, LockError

_log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AFTER_S: Final = 1
_METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# How OpenAPI describes the header that each 503 has.
RETRY_AFTER: Final = {"Retry-After": {"description": "seconds", "required": True, "schema": {"type": "integer"}}}

# When such an error of a route was last logged as a warning, on the monotonic clock, and how many were not since.
_said: dict[tuple[str, type[Exception]], tuple[float, int]] = {}
_SILENCE_S: Final = 1.0
# The texts of these reveal names and set-up of our machines; buyers get only the title.
_INTERNAL: Final = (LockError, errors.StockUnavailable, errors.FenceRefused, errors.StockBehind)


class FieldError(BaseModel):
    """The error of one field of the request."""

    field: str = Field(examples=["quantity"])
    message: str = Field(examples=["Input should be greater than or equal to 1"])


class Problem(BaseModel):
    """An error, in the form of RFC 9457. `type` is stable and meant for programs, `detail` for people."""

    type: str = Field(examples=["urn:seckill:queue-full"], description="docs/errors.md has a row for each")
    title: str
    status: int
    detail: str
    effect: Effect = Field(
        description="`nothing`: this request has changed nothing, and never will; "
        "`unknown`: it may have been done, and the same request with the same key tells"
    )
    errors: list[FieldError] = Field(default_factory=list)
    orders: int | None = Field(None, description="how many orders would be forgotten")
    next: str | None = Field(
        None, description="the cursor with which to go on: at the first event of items that came back older"
    )


def problem(
    status: int,
    type_: str,
    title: str,
    detail: str,
    *,
    effect: Effect = Effect.NOTHING,
    fields: list[FieldError] | None = None,
    headers: dict[str, str] | None = None,
    orders: int | None = None,
    next_: str | None = None,
) -> Response:
    """A problem document as a response."""
    about = {"title": title, "status": status, "detail": detail, "effect": effect}
    body = Problem.model_validate(
        {"type": URN + type_, **about, "errors": fields or [], "orders": orders, "next": next_}
    )
    headers = dict(headers or {})
    if status == 503:
        headers.setdefault("Retry-After", str(_RETRY_AFTER_S))
    told = body.model_dump(exclude_defaults=not body.errors, exclude_none=True)
    return JSONResponse(told, status, headers, media_type=MEDIA_TYPE)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses for OpenAPI."""
    described: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        described[status] = {"description": _DESCRIPTIONS[status], "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}
        if status in (429, 503):
            described[status]["headers"] = RETRY_AFTER
        if status == 401:
            described[status]["headers"] = {
                "WWW-Authenticate": {"description": "Bearer", "required": True, "schema": {"type": "string"}}
            }
    return described


_SCHEMA: Final = {"$ref": "#/components/schemas/Problem"}
_DESCRIPTIONS: Final = {
    400: "The item or the buyer does not fit; the field is named",
    401: "The operator's bearer token is missing or wrong",
    403: "Not allowed: the title says why",
    404: "No such item, or no such order",
    408: "The request's body did not arrive in time",
    409: "Not possible now: the title says why",
    412: "The stock is not what If-Match says, or there are orders that would be forgotten; nothing was changed",
    413: "The request's body is too large",
    422: "A field of the request is not valid, or the idempotency key belongs to another purchase; the field is named",
    429: "This buyer or this address has tried too often",
    503: "Nothing was decided, or the outcome is unknown: the same request with the same key may be sent again",
}


def invalid_field(field: str, message: str, *, where: str = "query") -> RequestValidationError:
    """Make the error of a field that is not valid, in the form of FastAPI's own errors."""
    return RequestValidationError([{"loc": (where, field), "type": "value_error", "msg": message}])


def _field(error: Mapping[str, Any]) -> str:
    """The name of a field; of one in a list with its place, such as items.0.quantity."""
    if error["type"] == "json_invalid":
        return "body"
    in_list = any(isinstance(part, int) for part in error["loc"])
    return ".".join(map(str, error["loc"][1:] if in_list else error["loc"][-1:]))


def whole(value: object) -> object:
    """Accept 5.0 as 5, as JSON Schema, and so our own description, does; a strict int does not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def install(app: FastAPI, missing: Callable[[Request], Response | None]) -> None:
    """Answer every error of the app with a problem document, and none with a stack trace.

    `missing`: the answer to a browser that asks for a path of no route, None if it is another client.
    """

    @app.exception_handler(errors.SeckillError)
    @app.exception_handler(FencelockError)
    async def expected(request: Request, error: Exception) -> Response:
        return of(error, request.method, _route(request))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return of(hints.add(error, hints.fields_of(request)), request.method, _route(request))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        status, title, headers = error.status_code, str(error.detail), dict(error.headers or {})
        detail = f"{request.method} {request.scope['path']}: {title}"
        if status == 404 and "route" not in request.scope and (page := missing(request)) is not None:
            return page
        if status == 405:
            headers["Allow"] = ", ".join(_methods(app, request))
        if status == 400:  # FastAPI's answer to a body that the JSON parser gives up on
            return _invalid(f"body: {title}", [_body_error(title)])
        return problem(status, f"http-{status}", title, detail, headers=headers)

    @app.exception_handler(Exception)
    async def not_ours(request: Request, error: Exception) -> Response:
        return of(error, request.method, _route(request))


def of(error: Exception, method: str, route: str) -> Response:
    """Return the answer for an error, and log it if it is ours."""
    if isinstance(error, RequestValidationError):
        invalid = [FieldError(field=_field(part), message=part["msg"]) for part in error.errors()]
        detail = "; ".join(f"{field.field}: {field.message}" for field in invalid)
        return _invalid(detail, invalid)
    if isinstance(error, HTTPException):
        return problem(
            error.status_code,
            f"http-{error.status_code}",
            str(error.detail),
            f"{method} {route}: {error.detail}",
            headers=dict(error.headers or {}),
        )
    if not isinstance(error, errors.EXPECTED):
        _log.error("%s %s failed", method, route, exc_info=error)
        kind = OTHERS["internal-error"]
        detail = "an error of ours; it was logged"
        return problem(kind.status, "internal-error", kind.title, detail, effect=kind.effect)
    of_class = class_of(error)
    kind = KINDS[of_class]
    detail = kind.title if isinstance(error, _INTERNAL) else str(error)
    if kind.status == 503 and not isinstance(error, errors.SaleError | errors.TooManyListeners | errors.Overloaded):
        warn(_log, route, of_class, "%s %s: %s", method, route, error)
    fields = [FieldError(field=kind.field, message=detail)] if kind.field else None
    retry_after_s = getattr(error, "retry_after_s", None)
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
    orders = error.orders if isinstance(error, errors.HasOrders) else None
    next_ = error.next if isinstance(error, errors.CursorAhead) else None
    name, effect = name_of(of_class), effect_of(error)
    told = kind.status, name, kind.title, detail
    return problem(*told, effect=effect, fields=fields, headers=headers, orders=orders, next_=next_)


def title(error: Exception) -> str:
    """The public title of an error."""
    return KINDS[class_of(error)].title


def _invalid(detail: str, fields: list[FieldError]) -> Response:
    kind = OTHERS["invalid-request"]
    return problem(kind.status, "invalid-request", kind.title, detail, fields=fields)


def warn(log: logging.Logger, route: str, kind: type[Exception], text: str, *args: object) -> None:
    """Log an error of a route as a warning once a second, with how many there were, not for each buyer of a rush."""
    now = time.monotonic()
    at, more = _said.get((route, kind), (-_SILENCE_S, 0))
    if now - at < _SILENCE_S:
        _said[route, kind] = at, more + 1
        log.debug(text, *args)
        return
    _said[route, kind] = now, 0
    log.warning(f"{text} (and %d more since the last time)" if more else text, *args, *([more] if more else []))


def _route(request: Request) -> str:
    """The route for the log: a path may contain an order's id, which is the buyer's secret."""
    return str(getattr(request.scope.get("route"), "path", "a path of no route"))


def _body_error(message: str) -> FieldError:
    return FieldError(field="body", message=message)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """The methods of a path: Starlette names only its first route's."""
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]

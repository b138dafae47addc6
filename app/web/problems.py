"""Errors as `application/problem+json` (RFC 9457): the one place where an error of ours gets its HTTP status."""

import logging
import time
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app import errors
from fencelock import FencelockError, LockError

_log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AFTER_S: Final = 1
_METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# How OpenAPI describes the header that each 503 has.
RETRY_AFTER: Final = {"Retry-After": {"description": "seconds", "required": True, "schema": {"type": "integer"}}}

# By the most special class that matches: status, and a title that never changes for its type.
_STATUSES: Final[dict[type[Exception], tuple[int, str]]] = {
    errors.UnknownItem: (404, "No such item"),
    errors.ItemNotPossible: (400, "Not an item that this store can hold"),
    errors.BuyerRequired: (400, "Buyer required"),
    errors.HoldsNotPossible: (409, "Units can't be held"),
    errors.EarlierSale: (409, "Not in a sale that an earlier release began"),
    errors.KeyReused: (422, "Idempotency key belongs to another request"),
    errors.ForeignOrigin: (403, "Not from this site"),
    errors.Prefetched: (403, "Not asked for by a buyer"),
    errors.BuyerNotSigned: (403, "Not a buyer of this shop"),
    errors.QueueFull: (503, "Too many buyers at the moment"),
    errors.Closing: (503, "Shutting down"),
    errors.ItemBlocked: (503, "Item can't be sold at the moment"),
    errors.NotDecided: (503, "Not decided in time"),
    errors.OutcomeUnknown: (503, "Outcome unknown"),
    errors.StockCorrupt: (503, "Stock is not usable"),
    errors.FenceRefused: (503, "Refused by the stock's fence"),
    errors.StockBehind: (503, "Stock is being looked into"),
    errors.StockError: (503, "Stock not available"),
    LockError: (503, "Lock not available"),
    errors.HoursNotPossible: (422, "Not possible hours"),
    errors.PriceNotPossible: (422, "Not a possible price"),
    errors.HasOrders: (412, "Orders would be forgotten"),
    errors.NotInCatalogue: (422, "Not in the catalogue"),
    errors.StockNotAsExpected: (412, "The stock is not as expected"),
    errors.NoCallbacks: (403, "No callbacks"),
    errors.NotSigned: (400, "Not signed by the payment provider"),
    errors.NoSuchOrder: (409, "No such order"),
    errors.TooManyListeners: (503, "Too many listeners at the moment"),
    errors.Overloaded: (503, "Too many requests at the moment"),
    errors.SeckillError: (503, "Not available"),
    FencelockError: (503, "Not available"),
}
# The field of the request that an error is about.
_FIELDS: Final[dict[type[Exception], str]] = {
    errors.UnknownItem: "sku",
    errors.NotInCatalogue: "sku",
    errors.HoursNotPossible: "ends_at",
    errors.PriceNotPossible: "price",
    errors.ItemNotPossible: "sku",
    errors.BuyerRequired: "buyer",
    errors.BuyerNotSigned: "buyer",
    errors.KeyReused: "Idempotency-Key",
}
# When such an error of a route was last logged as a warning, on the monotonic clock.
_said: dict[tuple[str, type[Exception]], float] = {}
_SILENCE_S: Final = 1.0
# The texts of these reveal names and set-up of our machines; buyers get only the title.
_INTERNAL: Final = (LockError, errors.StockUnavailable, errors.FenceRefused, errors.StockBehind)


class FieldError(BaseModel):
    """The error of one field of the request."""

    field: str = Field(examples=["quantity"])
    message: str = Field(examples=["Input should be greater than or equal to 1"])


class Problem(BaseModel):
    """An error, as RFC 9457 has it. `type` is stable and meant for programs, `detail` for people."""

    type: str = Field(examples=["urn:seckill:queue-full"])
    title: str
    status: int
    detail: str
    errors: list[FieldError] = Field(default_factory=list)
    orders: int | None = Field(None, description="how many orders would be forgotten")


def problem(
    status: int,
    type_: str,
    title: str,
    detail: str,
    *,
    fields: list[FieldError] | None = None,
    headers: dict[str, str] | None = None,
    orders: int | None = None,
) -> Response:
    """A problem document as a response."""
    about = {"title": title, "status": status, "detail": detail, "errors": fields or [], "orders": orders}
    body = Problem.model_validate({"type": f"urn:seckill:{type_}", **about})
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


def whole(value: object) -> object:
    """Accept 5.0 as 5, as JSON Schema, and so our own description, does; a strict int does not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def install(app: FastAPI) -> None:
    """Answer every error of the app with a problem document, and none with a stack trace."""

    @app.exception_handler(errors.SeckillError)
    @app.exception_handler(FencelockError)
    async def expected(request: Request, error: Exception) -> Response:
        return of(error, request.method, _route(request))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return of(error, request.method, _route(request))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        status, title, headers = error.status_code, str(error.detail), dict(error.headers or {})
        detail = f"{request.method} {request.scope['path']}: {title}"
        if status == 405:
            headers["Allow"] = ", ".join(_methods(app, request))
        if status == 400:  # FastAPI's answer to a body that the JSON parser gives up on
            return problem(422, "invalid-request", "Invalid request", f"body: {title}", fields=[_body_error(title)])
        return problem(status, f"http-{status}", title, detail, headers=headers)

    @app.exception_handler(Exception)
    async def not_ours(request: Request, error: Exception) -> Response:
        return of(error, request.method, _route(request))


def of(error: Exception, method: str, route: str) -> Response:
    """Return the answer for an error, and log it if it is ours."""
    if isinstance(error, RequestValidationError):
        invalid = [
            FieldError(field=str(part["loc"][-1] if part["type"] != "json_invalid" else "body"), message=part["msg"])
            for part in error.errors()
        ]
        detail = "; ".join(f"{field.field}: {field.message}" for field in invalid)
        return problem(422, "invalid-request", "Invalid request", detail, fields=invalid)
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
        return problem(500, "internal-error", "Internal error", "an error of ours; it was logged")
    kind = next(kind for kind in type(error).__mro__ if kind in _STATUSES)
    status, title = _STATUSES[kind]
    name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in type(error).__name__).strip("-")
    field = _FIELDS.get(kind)
    detail = title if isinstance(error, _INTERNAL) else str(error)
    if status == 503 and not isinstance(error, errors.SaleError | errors.TooManyListeners | errors.Overloaded):
        _log.log(loudness(route, kind), "%s %s: %s", method, route, error)
    fields = [FieldError(field=field, message=detail)] if field else None
    retry_after_s = getattr(error, "retry_after_s", None)
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
    orders = error.orders if isinstance(error, errors.HasOrders) else None
    return problem(status, name, title, detail, fields=fields, headers=headers, orders=orders)


def title(error: Exception) -> str:
    """The public title of an error."""
    return next(_STATUSES[kind][1] for kind in type(error).__mro__ if kind in _STATUSES)


def loudness(route: str, kind: type[Exception]) -> int:
    """The log level of an error: a warning once a second, not for each buyer of a rush."""
    now = time.monotonic()
    if now - _said.get((route, kind), -_SILENCE_S) < _SILENCE_S:
        return logging.DEBUG
    _said[route, kind] = now
    return logging.WARNING


def _route(request: Request) -> str:
    """The route for the log: a path may contain an order's id, which is the buyer's secret."""
    return str(getattr(request.scope.get("route"), "path", "a path of no route"))


def _body_error(message: str) -> FieldError:
    return FieldError(field="body", message=message)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """The methods of a path: Starlette names those of its first route only."""
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]

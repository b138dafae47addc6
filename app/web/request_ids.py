"""The ids of requests: taken or made, given back, and kept with the order; with `SECKILL_REQUEST_IDS` also logged.

A hold always has one. For purchases they are off unless set, as an order that has one costs its store a record.
"""

import logging
import random
import re
from collections.abc import Iterable
from typing import Final

from fastapi.responses import Response

from app.orders import Answer
from app.telemetry import logs
from app.web.problems import invalid_field

HEADER: Final = b"x-request-id"
_ID: Final = re.compile(rb"[\x21-\x7e]{1,100}")
_TRACEPARENT: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context, version 00

_log = logging.getLogger(__name__)


def read(headers: Iterable[tuple[bytes, bytes]], *, strict: bool = True) -> tuple[str, str | None]:
    """Read a request's id, or make one, and its `traceparent`, if it has one that is well-formed.

    Raises `RequestValidationError` for a malformed id; without `strict` a new one replaces it.
    """
    given: bytes | None = None
    trace: str | None = None
    for name, value in headers:
        if name == HEADER:
            given = value if given is None else given + b", " + value
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            trace = value.decode()
    if given is None or not (strict or _ID.fullmatch(given)):
        return f"{random.getrandbits(64):016x}", trace
    if _ID.fullmatch(given) is None:
        raise invalid_field("X-Request-Id", "1 to 100 visible ASCII characters", where="header")
    return given.decode(), trace


def note(request_id: str, path: str, answer: Answer) -> None:
    """Log an answer, with the order's number and without its secret."""
    order = answer.order.name if answer.order else "no order"
    with logs.about(request=request_id):
        _log.info("%s: %s, %s%s", path, answer.outcome, order, " (again)" if answer.replayed else "")


def give_back(request_id: str, path: str, problem: Response, *, logged: bool) -> Response:
    """Add the request id to an error response, and log it."""
    problem.headers["X-Request-Id"] = request_id
    if logged:
        with logs.about(request=request_id):
            _log.info("%s: %d", path, problem.status_code)
    return problem

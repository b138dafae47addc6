"""The paths of each port, if the operator has a port of their own: the operator's are not on the buyers' port."""

from typing import Final

from app.web import purchase

_OPERATORS: Final = frozenset(
    ("/metrics", "/readyz", "/locks", "/orders", "/log", "/report", "/control", "/docs", "/openapi.json")
)


def is_hidden(method: str, path: str, *, from_operator: bool) -> bool:
    """Return whether that path is not for the port of the request. Buyers buy; operators change and watch."""
    if from_operator:
        return path == purchase.PATH or path.startswith(("/holds", "/payments/"))
    return (
        path in _OPERATORS
        or path.startswith(("/control/", "/docs/"))
        or (path.startswith("/orders/") and (method != "GET" or path.endswith(("/export", "/history"))))
        or (path == "/stock" and method in ("PUT", "DELETE"))
    )

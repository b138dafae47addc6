"""Refuses query parameters that an endpoint doesn't know, as they may be misspelt ones."""

from collections import Counter
from typing import Final

from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from app.web.problems import invalid_field

_known: dict[str, frozenset[str]] = {}  # by the id of a route


async def refuse_others(request: Request) -> None:
    """Raise `RequestValidationError`, which names it, for a parameter that is not declared, or one that comes twice."""
    route = request.scope.get("route")
    if not request.url.query or not isinstance(route, APIRoute):
        return
    known = _known.get(route.unique_id)
    if known is None:
        declared = get_flat_params(route.dependant)
        by_hand = [one["name"] for one in (route.openapi_extra or {}).get("parameters", ())]
        known = frozenset((*by_hand, *(one.alias for one in declared if isinstance(one.field_info, Query))))
        _known[route.unique_id] = known
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            there = f"there is {', '.join(sorted(known)) or 'none'}"
            raise invalid_field(name or "query", f"unknown parameter; {there}")
        if times > 1:
            raise invalid_field(name, "once, not several times")


KNOWN_PARAMETERS: Final = Depends(refuse_others)

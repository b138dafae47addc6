"""Hints at the field that was probably meant by an unknown name."""

import difflib
from collections.abc import Iterable
from typing import get_args

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel


def add(error: RequestValidationError, known: Iterable[str]) -> RequestValidationError:
    """The same error, with the likeliest `known` field for an unknown one."""
    parts = [
        {**part, "msg": _said(str(part["loc"][-1]), list(known))} if part["type"] == "extra_forbidden" else part
        for part in error.errors()
    ]
    return RequestValidationError(parts)


def fields_of(request: Request) -> list[str]:
    """The fields of the body that a request's route takes."""
    body = getattr(request.scope.get("route"), "body_field", None)
    kind = body.field_info.annotation if body else None
    models = (one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, BaseModel))
    return [name for model in models for name in model.model_fields]


def _said(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)  # qty is quantity
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known) or 'none'}"
    return f"there is no such field; {hint}"

"""Functions that the readers share: signatures by one of several secrets, and fields that may be anything."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from app.errors import NotSigned

Secret = TypeVar("Secret")


class NoticeHead(BaseModel):
    """The part that every notice in JSON has."""

    type: str


def ensure_signed(secrets: Iterable[Secret], verify: Callable[[Secret], object], refused: type[Exception]) -> None:
    """Verify a notice with each secret in turn. `refused`: the library's own error. Raises `NotSigned`."""
    why = ["nobody could have signed it"]
    for secret in secrets:
        try:
            verify(secret)
        except refused as error:
            why.append(str(error) or "another signature")
        except (ValueError, TypeError):  # of a header that isn't ASCII, or has another form; of a body that is no text
            why.append("a header or the body can't be read")
        else:
            return
    raise NotSigned("; ".join(dict.fromkeys(why[1:] or why)))


def number(of: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is a whole number."""
    return next((one for name in names if isinstance(one := of.get(name), int)), None)


def inner(of: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object that a field has; without anything in it if it has none."""
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def name_of(found: object) -> object:
    """The name of an object that may be given in full."""
    return found.get("id") if isinstance(found, dict) else found


def missing(setting: str, library: str, extra: str) -> str:
    """Return the error that a library is missing, and how to install it."""
    return f"{setting} needs {library}; in the checkout: pip install '.[{extra}]'"

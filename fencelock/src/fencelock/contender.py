"""A contender in a lock's queue, as everybody can see it."""

import asyncio
import json
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from .version import __version__

_OWNER_MAX: Final = 4096  # characters; ours are much shorter


@dataclass(frozen=True, slots=True)
class Contender:
    """A participant in a lock's queue; the first one owns the lock.

    - `key`: its key, row or node on the server.
    - `token`: its fencing token (0: none).
    - `owner`: its description; one of ours has `instance`, `pid`, `thread` and the `version` of this library.
    - `waited_s`: how long it has been in the queue, by its own clock.
    - `ttl_left_s`: seconds until its lease ends unless it is renewed.
    - `holds`: whether it owns the lock.
    """

    key: str
    token: int
    owner: dict[str, Any]
    waited_s: float | None
    ttl_left_s: float | None
    holds: bool


def whoami() -> str:
    """Return the name of the current task, or else of the current thread."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return threading.current_thread().name if task is None else task.get_name()


def describe(instance: str) -> str:
    """Describe the current thread or task as JSON for `Contender.owner`; `since` is in seconds since 1970."""
    fields = {
        "instance": instance,
        "pid": os.getpid(),
        "thread": whoami(),
        "version": __version__,
        "since": round(time.time(), 3),
    }
    return json.dumps(fields, separators=(",", ":"))


def _finite(number: str) -> float:
    """Parse a JSON number. Raises `ValueError` if a float can't hold it (1e999), and for NaN and infinity."""
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(number)
    return found


def parse_owner(text: str | bytes | None) -> tuple[dict[str, Any], float | None]:
    """Parse a text of `describe`, and return the owner and for how many seconds it has been there.

    Other programs may write anything; the owner can be written as JSON in any encoding of Unicode all the same.
    """
    try:
        # NaN is no JSON, and 1e999 would become infinity, which is none either.
        owner = (
            json.loads(text or "", parse_constant=_finite, parse_float=_finite)
            if len(text or "") <= _OWNER_MAX
            else None
        )
        # JSON can spell halves of characters, at any depth, which no encoding has.
        owner = json.loads(json.dumps(owner, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        owner = None
    owner = owner if isinstance(owner, dict) else {}
    since = owner.pop("since", None)
    if type(since) not in (int, float):
        return owner, None
    try:
        waited_s = max(0.0, time.time() - since)
    except OverflowError:  # whole numbers have no end
        return owner, None
    return owner | {"since": since}, waited_s


def printable(text: str) -> str:
    """Make control characters visible that a terminal could obey, as other programs may write anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)

"""Who queues for a lock, as everybody can see it."""

import asyncio
import json
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

_OWNER_MAX: Final = 4096  # characters; ours are much shorter


@dataclass(frozen=True, slots=True)
class Contender:
    """One who queues for a lock; the first of a queue owns the lock.

    `key`: its key, row or node on the server; `token`: its fencing token (0: none); `owner`: what it says of itself,
    see `describe`, or nothing of ours; `waited_s`: how long it has been there, in seconds, by its own clock;
    `ttl_left_s`: seconds until its lease ends unless it is renewed; `holds`: whether it owns the lock.
    """

    key: str
    token: int
    owner: dict[str, Any]
    waited_s: float | None
    ttl_left_s: float | None
    holds: bool


def whoami() -> str:
    """The name of the current task, or else of the current thread."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return threading.current_thread().name if task is None else task.get_name()


def describe(instance: str) -> str:
    """The current thread or task as JSON for `Contender.owner`; `since` in seconds since 1970."""
    fields = {
        "instance": instance,
        "pid": os.getpid(),
        "thread": whoami(),
        "since": round(time.time(), 3),
    }
    return json.dumps(fields, separators=(",", ":"))


def taken(by: str, why: str) -> bytes:
    """What is written down when a lock is taken away; read by `parse_owner`."""
    fields = {"by": by, "why": why, "since": round(time.time(), 3)}
    return json.dumps(fields, separators=(",", ":")).encode()


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def parse_owner(text: str | bytes | None) -> tuple[dict[str, Any], float | None]:
    """What `describe` has written, and for how many seconds that has been there; others write what they like."""
    try:
        # Numbers that JSON doesn't have (NaN) are nobody's who speaks it.
        owner = json.loads(text or "", parse_constant=_refuse) if len(text or "") <= _OWNER_MAX else None
    except (ValueError, RecursionError):
        owner = None
    owner = owner if isinstance(owner, dict) else {}
    # JSON can spell halves of characters, which no other encoding can.
    owner = {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in owner.items()
    }
    since = owner.get("since")
    if not isinstance(since, int | float) or isinstance(since, bool) or not math.isfinite(since):
        owner.pop("since", None)
        return owner, None
    return owner, max(0.0, time.time() - since)


def printable(text: str) -> str:
    """The text with all that a terminal could take for a command made visible: others write what they like."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)

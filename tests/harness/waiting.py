"""Waiting for a condition with a deadline; no test sleeps and hopes."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

WITHIN_S = 15.0  # how long anything that should happen may take on a busy machine
_PAUSE_S = 0.01


def eventually(look: Callable[[], Value], what: str = "the condition", within_s: float = WITHIN_S) -> Value:
    """What `look` answers as soon as that is true; fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (value := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s, last seen: {value!r}")
        time.sleep(_PAUSE_S)
    return value


async def eventually_async(
    look: Callable[[], Any],
    what: str = "the condition",
    within_s: float = WITHIN_S,
    *,
    until: Callable[[Any], object] = bool,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """The same in a task, for any function. `until`: which answer will do; `despite`: errors that are no end."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            value = look()
            if inspect.isawaitable(value):
                value = await value
            if until(value):
                return value
        except despite as error:
            value = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s, last seen: {value!r}")
        await asyncio.sleep(_PAUSE_S)

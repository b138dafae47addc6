"""Wait for a condition with a deadline, so that no test sleeps and hopes."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

WITHIN_S = 15.0  # the longest time for an event on a busy machine
_POLLED_S = 60.0  # on one that is much slower than that: a poll loses nothing by being patient
_PAUSE_S = 0.01


def eventually(look: Callable[..., Value], what: str = "the condition", within_s: float = _POLLED_S) -> Value:
    """Return the answer of `look` as soon as it is true; fail after `within_s`.

    It is called with nothing. `...`: a lambda in a loop has its variables as defaults, which mypy refuses for `[]`.
    """
    deadline = time.monotonic() + within_s
    while not (value := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s, last seen: {value!r}")
        time.sleep(_PAUSE_S)
    return value


async def eventually_async(
    look: Callable[..., Any],
    what: str = "the condition",
    within_s: float = _POLLED_S,
    *,
    until: Callable[..., object] = bool,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Do the same in a task, for any function. `until` accepts an answer; errors in `despite` are retried."""
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

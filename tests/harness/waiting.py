"""Wait for a condition with a deadline, so that no test sleeps and hopes."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

WITHIN_S = 15.0  # the longest time for an event on a busy machine
_POLLED_S = 60.0  # on one that is much slower than that: a poll loses nothing by being patient


def _pause_s(waited_s: float) -> float:
    """Return a longer pause the longer it takes: a look may cost requests, and takes the CPU from what it waits for."""
    return min(0.05, 0.01 + waited_s / 20)


def eventually(look: Callable[..., Value], what: str = "the condition", within_s: float = _POLLED_S) -> Value:
    """Return the answer of `look` as soon as it is true; fail after `within_s`.

    It is called with nothing. `...`: a lambda in a loop has its variables as defaults, which mypy refuses for `[]`.
    """
    began = time.monotonic()
    while not (value := look()):
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            raise AssertionError(f"{what}: not within {within_s} s, last seen: {value!r}")
        time.sleep(_pause_s(waited_s))
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
    began = time.monotonic()
    while True:
        try:
            value = look()
            if inspect.isawaitable(value):
                value = await value
            if until(value):
                return value
        except despite as error:
            value = error
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            raise AssertionError(f"{what}: not within {within_s} s, last seen: {value!r}")
        await asyncio.sleep(_pause_s(waited_s))

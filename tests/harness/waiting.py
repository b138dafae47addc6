"""Waiting for a condition with a deadline; no test sleeps and hopes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
    look: Callable[[], Awaitable[Value]], what: str = "the condition", within_s: float = WITHIN_S
) -> Value:
    """The same for a coroutine function."""
    deadline = time.monotonic() + within_s
    while not (value := await look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s, last seen: {value!r}")
        await asyncio.sleep(_PAUSE_S)
    return value

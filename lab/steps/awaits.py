"""The awaits of an actor's tasks: they are counted, and a fault strikes at one of them.

Those of the operation's own task have numbers. Of the tasks that the program makes meanwhile each place counts once, by
the task's coroutine, the line that awaits and the function that called it; 0 is the moment before a task has begun.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import app
import fencelock
import lab
from lab.steps.wire import WireStep

AWAIT: Final = "await"
_OURS: Final = tuple(f"{Path(str(house.__file__)).parent}/" for house in (app, fencelock, lab))  # and no library's
_NOT_BEGUN: Final = 0

Strike = Callable[["asyncio.Task[Any]", Any], None]


def is_await(step: WireStep) -> bool:
    """Return whether a step is an await, and no message."""
    return step.name.partition(" ")[0] == AWAIT


def is_own(step: WireStep) -> bool:
    """Return whether it is an await of the operation's own task."""
    return step.name == AWAIT


class Awaits:
    """Makes tasks, and counts their awaits, in `steps`.

    `strike` is called at the step `aim`, with the task and what it awaits. `spared`: the coroutines of the harness, by
    their names.
    """

    def __init__(self, aim: WireStep, strike: Strike, spared: str) -> None:
        self.steps: dict[WireStep, None] = {}
        self.counting = True
        self._aim = aim
        self._strike = strike
        self._spared = spared

    def operation(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Make the operation's own task."""
        driven = Driven(work, lambda task, count, awaited: self._reach(WireStep(AWAIT, count, ""), task, awaited))
        driven.task = asyncio.Task(driven, loop=loop)
        return driven.task

    def task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **how: Any) -> "asyncio.Task[Any]":
        """Make a task, as the loop's factory."""
        name = getattr(work, "__qualname__", "")
        code = getattr(work, "cr_code", None)
        if not self.counting or code is None or not code.co_filename.startswith(_OURS) or name.startswith(self._spared):
            return asyncio.Task(work, loop=loop, **how)
        name = f"{AWAIT} {name}"
        driven = Driven(work, partial(self._at_a_line, name, work))
        task = driven.task = asyncio.Task(driven, loop=loop, **how)
        self._reach(WireStep(name, _NOT_BEGUN, ""), task, None)
        return task

    def _at_a_line(
        self, name: str, work: Coroutine[Any, Any, Any], task: "asyncio.Task[Any]", count: int, awaited: Any
    ) -> None:
        if self.counting and (place := _place(work)) is not None:
            self._reach(WireStep(f"{name} in {place[0]}", place[1], ""), task, awaited)

    def _reach(self, step: WireStep, task: "asyncio.Task[Any]", awaited: Any) -> None:
        if self.counting and step not in self.steps:
            self.steps[step] = None
            if step == self._aim:
                self._strike(task, awaited)


class Driven(Coroutine[Any, Any, Any]):
    """A coroutine, of each await of which somebody is told: the task, how many there were, and what is awaited."""

    def __init__(self, work: Coroutine[Any, Any, Any], tell: "Callable[[asyncio.Task[Any], int, Any], None]") -> None:
        self.task: asyncio.Task[Any]
        self._work = work
        self._tell = tell
        self._count = 0

    def send(self, value: Any) -> Any:
        """Go on."""
        return self._told(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        return self._told(self._work.throw(*error))

    def _told(self, awaited: Any) -> Any:
        self._count += 1
        self._tell(self.task, self._count, awaited)
        return awaited

    def close(self) -> None:
        """Go on no more."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("only a task drives it")

    def __repr__(self) -> str:
        return repr(self._work)


def _place(work: Any) -> tuple[str, int] | None:
    """Return where a coroutine of ours awaits: the innermost two functions of ours, and the line."""
    frames: list[FrameType] = []
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "ag_frame", None) or getattr(work, "gi_frame", None)
        if frame is None:
            break
        if frame.f_code.co_filename.startswith(_OURS):
            frames.append(frame)
        work = next((getattr(work, at) for at in ("cr_await", "ag_await", "gi_yieldfrom") if hasattr(work, at)), None)
    return (" > ".join(one.f_code.co_qualname for one in frames[-2:]), frames[-1].f_lineno) if frames else None

"""Threads of which exactly one runs at a time; a schedule says at which of their steps another one goes on.

A step is an access of the code under test to what others may share: an attribute, an element. Locks, events, sleep and
the clock are replaced by ones that know of the schedule: so a deadlock is found at once, and time passes only when
everybody waits for it. Nothing outside of `fencelock` is touched.
"""

import ast
import dis
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final, Self, TypeVar

import pytest

from fencelock import attempt, callbacks, lease, lock, owners, per_loop, renewer, steps, waiting
from tests.harness.explorer import Schedule
from tests.harness.virtual import let_locks_count_on

Result = TypeVar("Result")

_PATCHED: Final = (attempt, callbacks, lease, lock, owners, per_loop, renewer, steps, waiting)
_STEPS_MAX: Final = 10_000
_READS: Final = ("LOAD_ATTR", "LOAD_METHOD")
_WRITES: Final = ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR")

_CHANGES: Final = ("append", "pop", "remove", "clear", "add", "discard", "setdefault", "update", "set")


class Deadlock(AssertionError):
    """Everybody waits, and nothing will ever happen; or it never ends."""


class _Over(BaseException):
    """Ends a thread of a run that is over."""


def _changing() -> frozenset[str]:
    """The names of attributes that may change once their object is made, and of what is computed from such."""
    found = {"_mutex"}
    for module in _PATCHED:
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name == "__init__":
                continue
            found |= {function.name} if any(_name(one) == "property" for one in function.decorator_list) else set()
            for node in ast.walk(function):
                match node:
                    case ast.Attribute(ctx=ast.Store() | ast.Del()):
                        found.add(node.attr)
                    case ast.Subscript(ctx=ast.Store() | ast.Del()):
                        found.add(_name(node.value))
                    case ast.Call(func=ast.Attribute(attr=attr)) if attr in _CHANGES:
                        found.add(_name(node.func.value))
    return frozenset(found)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@lru_cache(None)
def _steps(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Before which instructions of a function, and before which lines, others may come."""
    instructions, lines, line = set(), set(), code.co_firstlineno
    for one in dis.get_instructions(code):
        line = (one.positions and one.positions.lineno) or line
        if one.opname in _WRITES or (one.opname in _READS and one.argval in _shared()):
            instructions.add(one.offset)
            lines.add(line)
    return frozenset(instructions), frozenset(lines)


_shared = lru_cache(None)(_changing)


def _baton() -> threading.Lock:
    """A real mutex, which somebody waits for who goes on when it is released."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class Stage:
    """Where the threads of one run are.

    `modules`: whose lines count as steps, as far as they touch what may change, and those of a `mutant`; each access by
    itself if it is `fine`. `now`: what the clock says, in seconds.
    """

    here: "Stage"

    def __init__(
        self,
        schedule: Schedule,
        modules: Iterable[ModuleType],
        *,
        mutant: FunctionType | None = None,
        fine: bool = False,
    ) -> None:
        Stage.here = self
        self._schedule = schedule
        self._fine = fine
        self._files = {module.__file__ for module in modules}
        self._mutant = mutant and mutant.__code__
        self.threads: list[Thread] = []
        self._current: Thread | None = None
        self._over = False
        self._main = _baton()
        self._error: BaseException | None = None
        self._count = 0
        self._and_then_s = 0.0
        self._ends_at = 0.0  # 0: somebody still counts
        self.now = 1000.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for thread in self.threads:
            with suppress(RuntimeError):  # it has ended, or was not waited for
                thread.baton.release()
            threading.Thread.join(thread)

    def play(self, *works: Callable[[], object], and_then_s: float = 0.0) -> None:
        """Have these run to their end, each as a thread of that name. Raises what one of them raised, or `Deadlock`.

        What they started as daemons goes on for some seconds, and then stands still.
        """
        self._and_then_s = and_then_s
        for work in works:
            Thread(target=work, name=work.__name__).start()
        self._go_on(None)
        self._main.acquire()
        self._current = None
        if self._error is not None:
            raise self._error

    # -- called by the threads ---------------------------------------------------------------------------------------

    def enter(self, thread: "Thread") -> None:
        """A thread takes part from now on."""
        self.threads.append(thread)

    def run(self, thread: "Thread", work: Callable[[], object]) -> None:
        """Do a thread's work, once it is its turn."""
        error: BaseException | None = None
        try:
            self._pause(thread)
            sys.settrace(self._trace)
            work()
        except _Over:
            return
        except BaseException as raised:
            error = raised
        finally:
            sys.settrace(None)
            thread.ended = True
        if not self._over:
            self.fail(error)
            self._go_on(thread)

    def step(self, where: Callable[[], str]) -> None:
        """Here another one may go on."""
        me = self._current
        if me is None or self._over:
            return
        self._count += 1
        if self._count > _STEPS_MAX:
            self._error = Deadlock("it never ends")
            self._stop(me)
        others = [thread for thread in self.threads if thread is not me and thread.can_run(self.now)]
        if others:
            chosen = self._schedule.choose(
                1 + len(others),
                lambda option: f"{me.name} stops before {where()}, and {others[option - 1].name} goes on",
            )
            if chosen:
                self._switch(me, others[chosen - 1])

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Go on when that is so, or after some time; whether it is so."""
        me = self._current
        if me is None or self._over or until():
            return True
        me.until, me.wakes_at = until, None if timeout_s is None else self.now + timeout_s
        self._go_on(me)
        me.until = me.wakes_at = None
        return until()

    @property
    def current(self) -> "Thread | None":
        """Who runs."""
        return self._current

    def fail(self, error: BaseException | None) -> None:
        """The run has failed, although the thread goes on."""
        self._error = self._error or error

    def _go_on(self, me: "Thread | None") -> None:
        """Somebody else goes on: `me` has ended, or waits."""
        while self._error is None and not self._is_over():
            if ready := [thread for thread in self.threads if thread.can_run(self.now)]:
                self._switch(me, self._one_of(ready))
                return
            times = [thread.wakes_at for thread in self.threads if thread.wakes_at is not None]
            if times or self._ends_at:
                self.now = min(times, default=self._ends_at)
            else:
                names = [thread.name for thread in self.threads if not thread.ended]
                self._error = Deadlock(f"everybody waits: {', '.join(names)}")
        self._stop(me)

    def _one_of(self, ready: "list[Thread]") -> "Thread":
        return ready[self._schedule.choose(len(ready), lambda option: f"then {ready[option].name} goes on", free=True)]

    def _is_over(self) -> bool:
        if not self._ends_at and not any(thread.counts for thread in self.threads):
            self._ends_at = self.now + self._and_then_s
        return 0 < self._ends_at <= self.now

    def _switch(self, me: "Thread | None", to: "Thread") -> None:
        if to is not me:
            self._current = to
            to.baton.release()
            if me is not None and not me.ended:
                self._pause(me)

    def _pause(self, me: "Thread") -> None:
        me.baton.acquire()
        if self._over:
            raise _Over

    def _stop(self, me: "Thread | None") -> None:
        self._main.release()
        if me is not None and not me.ended:
            self._pause(me)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if (code.co_filename not in self._files and code is not self._mutant) or not _steps(code)[0]:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = not self._fine, self._fine
        return self._trace_in

    def _trace_in(self, frame: FrameType, event: str, _: Any) -> Any:
        instructions, lines = _steps(frame.f_code)
        if frame.f_lasti in instructions if event == "opcode" else event == "line" and frame.f_lineno in lines:
            code, line = frame.f_code, frame.f_lineno
            self.step(lambda: f"{code.co_filename.rpartition('/')[2]}:{line} ({code.co_name})")
        return self._trace_in


class Thread(threading.Thread):
    """One of the threads on the stage."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool = False) -> None:
        self._stage = Stage.here
        super().__init__(target=self._stage.run, args=(self, target), name=name, daemon=True)
        self.lasts = daemon
        self.baton = _baton()
        self.ended = False
        self.until: Callable[[], bool] | None = None
        self.wakes_at: float | None = None

    @property
    def counts(self) -> bool:
        """Whether the run goes on until it has ended."""
        return not (self.ended or self.lasts)

    def can_run(self, now: float) -> bool:
        """Whether it could go on."""
        if self.ended:
            return False
        return self.until is None or self.until() or (self.wakes_at is not None and self.wakes_at <= now)

    def start(self) -> None:
        self._stage.enter(self)
        super().start()

    def join(self, timeout: float | None = None) -> None:
        self._stage.wait(lambda: self.ended, timeout)

    def is_alive(self) -> bool:
        return self.ident is not None and not self.ended


class Lock:
    """A mutex."""

    _reentrant = False

    def __init__(self) -> None:
        self._stage = Stage.here
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._stage.current
        if self._depth and not (self._reentrant and self._owner is me):
            timeout_s = None if timeout < 0 else timeout
            if not (blocking and self._stage.wait(lambda: not self._depth, timeout_s)):
                return False
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        if not self._depth:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """The same, for a thread that may have it already."""

    _reentrant = True


class Event:
    """An event."""

    def __init__(self) -> None:
        self._stage = Stage.here
        self._set = False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._stage.wait(lambda: self._set, timeout)


class _Threading:
    """The module `threading`, for the code under test."""

    Thread = Thread
    Lock = Lock
    RLock = RLock
    Event = Event

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class _Time:
    """The module `time`, for the code under test."""

    def sleep(self, seconds: float) -> None:
        Stage.here.wait(lambda: False, seconds)

    def monotonic(self) -> float:
        return Stage.here.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Log:
    """What the code under test logs: nobody reads it but for what it does not expect, which is an error here."""

    def exception(self, *_: object) -> None:
        Stage.here.fail(sys.exception())

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def put_on_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the locks' threads, mutexes, events, clocks and logs be a stage's, which must be there before them."""
    for module in _PATCHED:
        for name, stand_in in (("threading", _Threading()), ("time", _Time()), ("_log", _Log())):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    let_locks_count_on(lambda: Stage.here.now, monkeypatch)

"""Runs cases, each in a process of its own, many at a time: most of the time they wait."""

import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from lab.steps.play import Case, Play, PlayResult, die_with_parent

_LIMIT_S: Final = 180.0  # of a run; what takes longer hangs
_AT_ONCE: Final = 16

_numbers: Final = count(1)  # no name is used again: what was written down under it may be there

Make = Callable[[Case, str], Play]


@dataclass(slots=True)
class _Running:
    case: Case
    process: int
    began: float
    said: bytes = b""


def run_all(cases: Iterable[Case], make: Make, *, at_once: int = _AT_ONCE) -> Iterator[PlayResult]:
    """Run cases, and yield what came of each as soon as it is known."""
    waiting, running = iter(cases), dict[int, _Running]()
    gc.collect()
    gc.freeze()  # of what the runs share, their collectors look at nothing
    more = True
    try:
        while more or running:
            while more and len(running) < at_once:
                if (case := next(waiting, None)) is None:
                    more = False
                    break
                reader, process = _begin(case, make, f"/steps/{os.getpid()}-{next(_numbers):06}")
                running[reader] = _Running(case, process, time.monotonic())
            if not running:
                break
            ready, _, _ = select.select(list(running), [], [], 1.0)
            for reader in ready:
                data = os.read(reader, 1 << 20)
                running[reader].said += data
                if not data:
                    yield _ended(reader, running.pop(reader))
            for one in running.values():
                if time.monotonic() - one.began > _LIMIT_S:
                    with suppress(ProcessLookupError):
                        os.killpg(one.process, signal.SIGKILL)
    finally:
        for one in running.values():
            with suppress(ProcessLookupError):
                os.killpg(one.process, signal.SIGKILL)


def _begin(case: Case, make: Make, name: str) -> tuple[int, int]:
    reader, writer = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    os.setpgid(0, 0)
    die_with_parent()
    os.close(reader)
    try:
        try:
            result = make(case, name).run()
        except BaseException:
            result = PlayResult(case, violations=[f"the harness: {traceback.format_exc()}"])
        with os.fdopen(writer, "wb") as out:
            out.write(pickle.dumps(result))
    finally:
        os._exit(0)


def _ended(reader: int, one: _Running) -> PlayResult:
    os.close(reader)
    os.waitpid(one.process, 0)
    if not one.said:
        took_s = time.monotonic() - one.began
        return PlayResult(one.case, violations=[f"it hung, or died, after {took_s:.0f} s"], struck=True)
    result: PlayResult = pickle.loads(one.said)  # noqa: S301 - of our own child
    return result

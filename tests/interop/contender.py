"""Run a contender that is written in Python: it obeys the lines of its input, and ends with it."""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

HOLD_S = 0.002  # between reading the counter and writing it


def obey(do: Callable[[list[str]], str], *, at_end: Callable[[], None] = lambda: None) -> None:
    """Answer each command with what `do` returns, in this thread."""
    told: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            told.put(line.split())
        at_end()
        os._exit(0)  # as if it were killed, even in the middle of a wait: its locks end with their lease

    _say("ready")
    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            answer = do(told.get())
        except Exception as error:
            answer = f"error {error!r}"
        _say(answer)


def step(who: str, counter: str, journal: str) -> None:
    """Run a critical section: a second holder inside would show as a lost update, and in the journal."""
    _note(journal, f"in {who}")
    number = int(Path(counter).read_text())
    time.sleep(HOLD_S)
    Path(counter).write_text(str(number + 1))
    _note(journal, f"out {who}")


def micros() -> int:
    """Return the time by the wall clock."""
    return time.time_ns() // 1000


def _note(journal: str, line: str) -> None:
    with Path(journal).open("a") as file:
        file.write(f"{line}\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

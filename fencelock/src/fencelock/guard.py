"""The guard: a process between `fencelock run` and its command, which ends all of it when we, or the lease, are gone.

    fencelock run  --- orders, by a pipe --->  guard  --- starts, signals, kills --->  the command, and what it starts

The command starts as in a shell's script: on our terminal, in our group, with our descriptors and signals. The guard
has a session of its own, where no signal to the group finds it, and adopts each process below it that loses its parent,
in any session or group. It is a program that imports nothing of ours, so that it starts quickly.
"""

import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

LEFT: Final = 77  # the guard's status: we may not kill a process that should have ended
_NOT_FOUND, _NOT_RUN = 127, 126  # as a shell has them
_ORDER: Final = struct.Struct(
    "=bd"
)  # a signal, or 0; the moment at which all must end, on the clock of `fencelock.now`
_LOOK_S: Final = 1.0  # timers stand still while the machine is suspended
_AGAIN_S: Final = 0.005
_PDEATHSIG, _SUBREAPER = 1, 36  # numbers for Linux' prctl; on other systems only the command's group can be ended


class Guard:
    """A command that runs, by its guard. `deadline`: the end of all its processes, on the clock of `fencelock.now`."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], blocked: set[int], deadline: float
    ) -> None:
        _prctl(_SUBREAPER, 1)  # if the guard is killed, which should not be, the rest is ours
        self.deadline = deadline
        self._mutex = threading.Lock()
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_inheritable(reading, True)
        self.order(0)
        argv = [sys.executable, "-I", "-S", __file__, str(reading), " ".join(map(str, map(int, blocked))), *command]
        self._process = subprocess.Popen(argv, env=environment, close_fds=False)
        os.close(reading)

    def order(self, number: int) -> None:
        """Send a signal (0: none) to all of the command, and kill it at `deadline`.

        Never blocks; any thread may call it. SIGKILL ends the guard, too, once everything has ended.
        """
        with self._mutex, suppress(OSError):  # the guard is over, or stands still
            os.write(self._pipe, _ORDER.pack(number, self.deadline))

    def wait(self) -> int:
        """Wait until all has ended, and return the command's status as a shell gives it, or `LEFT`."""
        try:
            self._process.wait()
        finally:
            with self._mutex:
                os.close(self._pipe)  # which ends all of it, if the wait was interrupted
                self._pipe = -1
            status = self._process.wait()
        if status < 0:
            _end_all(0)
        return status if status >= 0 else 128 - status


def given() -> dict[str, str]:
    """Return the environment as we were given it: Python adds `LC_CTYPE` where nobody has set a language."""
    try:
        lines = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    except OSError:
        return dict(os.environ)
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def _main(pipe: int, blocked: set[int], command: list[str]) -> int:
    os.set_inheritable(pipe, False)
    _prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    guard, child = os.getpid(), os.fork()
    if child == 0:
        _become(command, blocked, guard)
    os.setsid()
    ended, noticed = os.pipe()
    for number in (noticed, pipe):
        os.set_blocking(number, False)
    signal.set_wakeup_fd(noticed)
    poll, deadline = select.poll(), float("inf")
    poll.register(pipe, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while _now() < deadline:
        if (ended, select.POLLIN) in poll.poll(1000 * max(0.0, min(_LOOK_S, deadline - _now()))):
            os.read(ended, select.PIPE_BUF)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == child:
                    _end_all(child)
                    status = os.waitstatus_to_exitcode(found[1])
                    return status if status >= 0 else 128 - status
        with suppress(BlockingIOError):
            while order := os.read(pipe, _ORDER.size):
                number, deadline = _ORDER.unpack(order)
                if number == signal.SIGKILL:
                    break
                _say_left(_send(number, child) if number else [], "signalled")
            deadline = 0.0  # the order to end, or `fencelock run` is gone
    return LEFT if _end_all(child) else 128 + signal.SIGKILL


def _become(command: list[str], blocked: set[int], guard: int) -> None:
    """Replace this process by the command; it dies with the guard."""
    if not _prctl(_PDEATHSIG, signal.SIGKILL):
        os.setsid()
    status = _NOT_RUN
    try:
        for name in ("SIGPIPE", "SIGXFSZ", "SIGINT"):  # Python ignores the first two, and catches the third
            if name != "SIGINT" or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if os.getppid() == guard:
            os.execvpe(command[0], command, given())  # noqa: S606 - as the user has it
    except OSError as error:
        status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN
        _say(f"{command[0]}: {error.strerror}")
    finally:
        os._exit(status)


def _now() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _prctl(what: int, value: int) -> bool:
    return sys.platform == "linux" and bool(ctypes.CDLL(None).prctl(what, value) == 0)


def _below(child: int) -> list[int]:
    """Return the processes below this one, parents before their children; elsewhere the child's group."""
    if sys.platform != "linux":
        return [-child] if child else []
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found = [os.getpid()]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def _send(number: int, child: int) -> list[int]:
    """Send a signal to all below this process; return those to whom we may not."""
    refused = []
    for one in _below(child):
        try:
            os.kill(one, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            refused.append(one)
    return refused


def _end_all(child: int) -> list[int]:
    """Kill all processes below this one, until there are none; report and return those that we may not kill."""
    before: list[int] | None = None
    while True:
        left = _send(signal.SIGKILL, child)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        if left == before == _below(child):  # twice, as an ended process is listed until its parent has noticed
            left = left or [0]  # a process that we may not even see
            _say_left(left, "killed")
            return left
        before = left
        time.sleep(_AGAIN_S)


def _say_left(left: Sequence[int], what: str) -> None:
    names = []
    for one in left:
        with suppress(OSError):
            names.append(f"{one} ({Path(f'/proc/{one}/comm').read_text().strip()})")
    if left:
        whose = f"not ours to be {what}: {', '.join(names) or 'a process'}, of another user, goes on"
        _say(f"{whose}. Put sudo before fencelock, not before its command")


def _say(what: str) -> None:
    with suppress(OSError, ValueError):
        print(f"fencelock: {what}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), {*map(int, sys.argv[2].split())}, sys.argv[3:]))

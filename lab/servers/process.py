"""A child process with a readiness check, which can be paused and killed, and which dies with its parent."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from app.errors import SeckillError

# Runs beside each child and reads a pipe that only the parent writes to. When the parent is gone, however it
# ended, the read returns and the child is killed. (Linux's PR_SET_PDEATHSIG would fire when the *thread* that
# forked ends, and macOS has nothing like it.) A paused child is killed as well: SIGKILL needs no SIGCONT.
_REAPER = 'read _; kill -9 "$1" 2>/dev/null; while kill -0 "$1" 2>/dev/null; do sleep 0.05; done; rm -rf -- "$2"'

# The stack of a program in Go that has ended itself, which would hide the reason in the lines before it.
_GO_STACK = re.compile(r'^goroutine \d+ \[.*\n(?:\S.*\n\t.*(?:\n|$))*|,"stacktrace":"(?:[^"\\]|\\.)*"', re.MULTILINE)


class ProcessFailed(SeckillError):
    """A child process ended, or was not ready in time; the text has its last lines."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place where a server runs: the address on which it listens, and the prefix of its command."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


HERE: Final = Site()


# Ports on which a server of this process is going to listen, if it does not already. Until it does, a socket on the UDP
# port of the same number reserves it against other processes that look for one, such as the second worker of the tests.
# Only for the last so many, as each costs a file descriptor.
_given: Final[set[int]] = set()
_claims: Final[deque[int]] = deque()
_CLAIMS_MAX: Final = 64
_STOPPED_WITHIN_S: Final = 5.0
_AGREED_WITHIN_S: Final = 30.0
_WORKS: Final = 0.02  # of the time; an instance that only waits for its servers takes less
_EXTENSIONS_MAX: Final = 10


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until the servers reach a condition, for 30 s at most. Raises `ProcessFailed`, which names it."""
    deadline = time.monotonic() + _AGREED_WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            raise ProcessFailed(f"not within {_AGREED_WITHIN_S:.0f} s: {what}")
        time.sleep(0.02)


def free_port() -> int:
    """Return a TCP port on loopback on which nobody listens at this moment, and which was not handed out before.

    The port is below the range from which the kernel takes ports for outgoing connections (32768 on Linux, 49152 on
    macOS): such a connection could take the port before the server does.
    """
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - not a secret
        if port in _given:
            continue
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        # Claimed before it is checked: of two processes that check it together only one has the claim.
        if not port_is_free(port):
            claim.close()
            continue
        _given.add(port)
        _claims.append(claim.detach())
        if len(_claims) > _CLAIMS_MAX:
            os.close(_claims.popleft())
        return port


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now (for servers TIME_WAIT is free, too)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _worked_s(pid: int) -> float:
    """Return how many seconds of CPU a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:  # macOS
        written = subprocess.run(
            ["/bin/ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        return sum((float(part) * 60.0**n for n, part in enumerate(reversed(written.strip().split(":"))) if part), 0.0)
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


class Process:
    """Runs `argv(directory)` in a temporary directory of its own, in a session of its own.

    A session of its own, so that Ctrl-C on the terminal reaches only the parent, which then stops its children in
    the order that it wants. The output goes to `output.log` in the directory.
    """

    cwd: Path | None = None  # the working directory; None: ours
    graceful = True  # whether `stop` asks before it kills; a database whose data is removed needn't be asked

    def __init__(
        self,
        name: str,
        argv: Callable[[Path], Sequence[str]],
        *,
        ready: Callable[[], bool] = lambda: True,
        env: Mapping[str, str] | None = None,
        ready_within_s: float = 20.0,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self._argv = argv
        self._ready = ready
        self._env = env
        self._ready_within_s = ready_within_s
        self._keep_directory = directory is not None
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id. Raises an error if the process was never started."""
        if self._child is None:
            raise ProcessFailed(f"{self.name} was not started")
        return self._child.pid

    @property
    def running(self) -> bool:
        """True if the process was started and has not ended (a paused one is running)."""
        return self._child is not None and self._child.poll() is None

    @property
    def directory(self) -> Path:
        """Return the directory of the process's files; `stop` removes it, unless the caller has passed it."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"seckill-{self.name}-"))
        return self._directory

    def start(self, *, wait: bool = True) -> Self:
        """Start it (again: the directory is kept between a kill and the next start) and wait until it is ready.

        Raises `ProcessFailed`, with the process's own last lines, when it ends early or is not ready in time.
        """
        if self._child is not None and not self.running:
            self._gone(None)  # the child ended by itself; its reaper must not outlive it
        argv = list(self._argv(self.directory))
        with (self.directory / "output.log").open("ab") as log:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self.cwd,
                start_new_session=True,
            )
        # A directory that the caller has passed is the caller's to remove.
        doomed = "" if self._keep_directory else str(self.directory)
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", _REAPER, "seckill-reaper", str(self._child.pid), doomed],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.stop()
                raise
        return self

    def wait_ready(self) -> None:
        """Ask until the process says that it is ready, or raise `ProcessFailed`.

        On a busy machine it has as much more time again, several times, as long as it works.
        """
        began, worked_s, extensions = time.monotonic(), 0.0, 0
        while not self._ready():
            if not self.running:
                raise ProcessFailed(f"{self.name} did not start:\n{self.last_lines()}")
            waited_s = time.monotonic() - began
            if waited_s > self._ready_within_s * (extensions + 1):
                before_s, worked_s = worked_s, _worked_s(self.pid)
                extensions += 1
                if worked_s - before_s < self._ready_within_s * _WORKS or extensions == _EXTENSIONS_MAX:
                    raise ProcessFailed(f"{self.name} was not ready within {waited_s:.0f} s:\n{self.last_lines()}")
            time.sleep(0.02)

    def last_lines(self, count: int = 12) -> str:
        """Return the end of the process's output, indented, without the stacks of a program in Go."""
        try:
            lines = _GO_STACK.sub("", (self.directory / "output.log").read_text(errors="replace")).rstrip().splitlines()
        except OSError:
            return "    (it left no output)"
        return "\n".join(f"    {line}" for line in lines[-count:]) or "    (it printed nothing)"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still exists."""
        if self.running:
            assert self._child is not None  # noqa: S101 - for the type checker
            self._child.send_signal(number)

    def pause(self) -> None:
        """Pause the process with SIGSTOP: it is alive and does nothing, as in a long garbage collection."""
        self.signal(signal.SIGSTOP)
        if self._child is not None and hasattr(os, "waitid"):  # on macOS since Python 3.13
            # The last of its threads may run for a moment; `subprocess` finds out by itself if the child has ended.
            deadline = time.monotonic() + _STOPPED_WITHIN_S
            states = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
            with contextlib.suppress(ChildProcessError):
                while os.waitid(os.P_PID, self._child.pid, states) is None and time.monotonic() < deadline:
                    time.sleep(0.001)

    def resume(self) -> None:
        """Resume the process with SIGCONT."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone; its directory stays for the next `start`."""
        self.signal(signal.SIGKILL)
        self._gone(None)

    def terminate(self, *, within_s: float = 10.0) -> None:
        """End the process with SIGTERM, or with SIGKILL after `within_s`; its directory stays."""
        self.resume()
        self.signal(signal.SIGTERM)
        try:
            self._gone(within_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self) -> None:
        """End the process and remove its directory."""
        if self.graceful:
            self.terminate()
        else:
            self.kill()
        if self._directory is not None and not self._keep_directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _gone(self, within_s: float | None) -> None:
        if self._child is not None:
            self._child.wait(within_s)
        # Only now: a reaper that outlived its child could kill a stranger with a recycled id.
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            with contextlib.suppress(OSError):
                if self._reaper.stdin is not None:
                    self._reaper.stdin.close()
            self._reaper = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

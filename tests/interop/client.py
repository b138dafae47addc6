"""Run a contender in a process of its own, ours or another client's, that obeys one line of text at a time.

    acquire WAIT_MS      "granted TOKEN MICROS", or "timeout"; below 0: wait for ever; a client without tokens says 0
    release              "released MICROS": when it began to
    loop ROUNDS REST_MS ID COUNTER JOURNAL
                         "looped ROUNDS"; each round gets the lock, writes "in ID" to the journal, reads the
                         counter, pauses, writes one more there, writes "out ID", releases the lock, and rests
    race LENGTH HOLD FILE
                         "raced TURNS"; the part of contestants (Go, Java): see loadtest/bench/race.py
    campaign VALUE       "elected"
    resign               "resigned"
    interrupt MS         "interrupted"; waits, is interrupted, and cleans up nothing after that (Java)
    holds                "holds true": whether the client believes that it has the lock (Java)

An error is answered with "error ...". MICROS are of the wall clock, which all have in common. A contender says
"ready" first, and ends with its input.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from lab.servers import etcd_binary
from lab.servers.zookeeper import java_binary
from tests.interop.builds import go_program, java_folder

ANSWER_S: Final = 60.0  # for undisturbed commands, beside three other tests on two cores
_JAVA_OPTIONS: Final = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx128m"),  # a quick start of a small program
    "-XX:-UsePerfData",  # else a killed Java leaves a file in /tmp/hsperfdata_*
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


def ours(url: str, name: str, ttl_s: float, face: str) -> list[str]:
    """Return the command line of one of ours, for threads or tasks."""
    return [sys.executable, "-m", "tests.interop.ours", url, name, f"{ttl_s:g}", face]


def go(kind: str, servers: str, name: str, ttl_s: float) -> list[str]:
    """Return the command line in Go for kind "etcd" or "redsync"."""
    return [str(go_program()), kind, servers, name, f"{ttl_s * 1000:.0f}"]


def java(kind: str, servers: str, name: str, ttl_s: float, fair_wait_s: float = 0) -> list[str]:
    """Return Java's command for "jetcd", "redisson", "redisson-fair" or "curator". `fair_wait_s`: of a fair one."""
    folder = java_folder()
    classes = f"{folder / 'classes'}:{folder / 'lib'}/*"
    program = [str(java_binary()), *_JAVA_OPTIONS, "-cp", classes, "Interop"]
    return [*program, kind, servers, name, f"{ttl_s * 1000:.0f}", f"{fair_wait_s * 1000:.0f}"]


def etcdctl(endpoint: str, name: str, ttl_s: float) -> list[str]:
    """Return the command line for `etcdctl lock` and `etcdctl elect`."""
    return [sys.executable, "-m", "tests.interop.etcdctl", str(etcd_binary("etcdctl")), endpoint, name, f"{ttl_s:g}"]


class Client:
    """The harness's end of a contender. Its answers come one after another, one per command."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = Path(command[0]).name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            process_group=0,  # `etcdctl` is a child of the contender, and is killed with it
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="contender-reader", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, *words: object) -> None:
        """Send a command; the contender answers when it is done."""
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join(map(str, words)) + "\n")

    def answer(self, within_s: float = ANSWER_S) -> list[str]:
        """Return the words of its next answer."""
        try:
            answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise AssertionError(f"no answer within {within_s} s; {self._said()}") from None
        assert not answer.startswith("error"), f"{answer}; {self._said()}"
        return answer.split()

    def ask(self, *words: object, within_s: float = ANSWER_S) -> list[str]:
        """Send a command, and wait for the answer."""
        self.tell(*words)
        return self.answer(within_s)

    def is_silent(self, for_s: float = 0.0) -> bool:
        """Return whether no answer comes for that long."""
        try:
            self._answers.get(timeout=for_s)
        except queue.Empty:
            return True
        return False

    def pause(self) -> None:
        """Send SIGSTOP."""
        os.killpg(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.killpg(self._child.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, also to its children."""
        # The process id stays reserved until it is waited for, which is only done here.
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()

    def close(self) -> None:
        """Kill it, if it is alive; its locks on a server end with their lease."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self.kill()
        self._reader.join()
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        self._child.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._answers.put(line.strip())

    def _said(self) -> str:
        self._errors.seek(0)
        return f"{self._name} said: {self._errors.read()[-2000:] or 'nothing'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

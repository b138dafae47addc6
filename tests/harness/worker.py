"""Run a separate process with a lock that obeys commands, so that a holder or a waiter can be killed or paused.

The child reads one JSON command a line and answers with one JSON line. `Worker` is the parent's end of it.
"""

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

from fencelock import DistributedLock, LockBackend, LockError


class Worker:
    """A child process that opens `module:Class(**options)`, a lock backend, and its lock `name`.

    `under`: a program that runs it, if any.
    """

    def __init__(self, backend: str, options: dict[str, Any], name: str, *, under: Sequence[str] = ()) -> None:
        arguments = json.dumps({"backend": backend, "options": options, "name": name})
        self._child = subprocess.Popen(
            [*under, sys.executable, "-m", "tests.harness.worker", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="worker-reader", daemon=True)
        self._reader.start()
        assert self.answer() == {"ready": True}

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, command: str, **arguments: Any) -> None:
        """Send a command to the child; it answers when it is done."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": command} | arguments) + "\n")

    def answer(self, within_s: float = 30.0) -> dict[str, Any]:
        """Return the child's next answer."""
        return self._answers.get(timeout=within_s)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command, and wait for the answer."""
        self.tell(command, **arguments)
        return self.answer()

    def pause(self) -> None:
        """Send SIGSTOP."""
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._child.kill()
        self._child.wait()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._answers.put(json.loads(line))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()  # the child ends with its input
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(10)
        self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _do(lock: DistributedLock, backend: LockBackend, told: dict[str, Any]) -> dict[str, Any]:
    match told["do"]:
        case "acquire":
            grant = lock.acquire(wait_s=told.get("wait_s"))
            return {"token": grant.token, "at": time.monotonic()}
        case "release":
            at = time.monotonic()
            lock.release()
            return {"at": at}
        case "lost":
            grant = lock.acquire()  # re-entered: raises LockLost if it is lost
            lock.release()
            return {"lost": grant.lost}
        case "count":
            # Read, wait, write: a lost update shows two holders at once.
            for _ in range(told["times"]):
                with lock:
                    with open(told["file"]) as file:  # noqa: PTH123
                        number = int(file.read())
                    time.sleep(0)
                    with open(told["file"], "w") as file:  # noqa: PTH123
                        file.write(str(number + 1))
            return {"counted": told["times"]}
        case "cycle":
            # Acquire and release until the given moment; record when each grant came and each release began.
            cycles = []
            while time.time() < told["until"]:
                grant = lock.acquire()
                got = time.monotonic()
                began = time.monotonic()
                lock.release()
                cycles.append([grant.token, got, began])
            return {"cycles": cycles}
        case other:
            raise ValueError(other)


def _main() -> None:
    told = json.loads(sys.argv[1])
    module, _, name = told["backend"].partition(":")
    backend: LockBackend = getattr(importlib.import_module(module), name)(**told["options"])
    lock = backend.lock(told["name"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            answer = _do(lock, backend, json.loads(line))
        except LockError as error:
            answer = {"error": type(error).__name__}
        print(json.dumps(answer), flush=True)
    if not lock.hold_count:
        backend.close()
    os._exit(0)  # as if it were killed: its locks end with their lease


if __name__ == "__main__":
    _main()

"""Run `etcdctl lock` and `elect` as a contender: `python -m tests.interop.etcdctl BINARY ENDPOINT NAME TTL_S`."""

import os
import select
import signal
import subprocess
import sys
import time

from tests.interop.contender import HOLD_S, micros, obey

# The critical section that `etcdctl lock` runs, as in `contender.step`.
_STEP = f'echo "in $1" >> "$3"; n=$(cat "$2"); sleep {HOLD_S}; echo $((n + 1)) > "$2"; echo "out $1" >> "$3"'


class _Etcdctl:
    """A runner of one etcdctl process after another."""

    def __init__(self, binary: str, endpoint: str, name: str, ttl_s: str) -> None:
        self._command = [binary, f"--endpoints={endpoint}"]
        self._lock = ["lock", f"--ttl={ttl_s}", "--", name]  # followed by the command to run
        self._name = name
        self._running: subprocess.Popen[bytes] | None = None

    def do(self, told: list[str]) -> str:
        match told:
            case ["acquire", wait_ms]:
                if self._begin(self._lock, None if int(wait_ms) < 0 else int(wait_ms) / 1000):
                    return f"granted 0 {micros()}"
                self._interrupt()
                return "timeout"
            case ["release"]:
                at = micros()
                self._interrupt()
                return f"released {at}"
            case ["loop", rounds, rest_ms, *rest]:
                for _ in range(int(rounds)):
                    command = [*self._command, *self._lock, "sh", "-e", "-c", _STEP, "step", *rest]
                    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
                    time.sleep(int(rest_ms) / 1000)
                return f"looped {rounds}"
            case ["campaign", value]:
                self._begin(["elect", self._name, value], None)
                return "elected"
            case ["resign"]:
                self._interrupt()
                return "resigned"
            case _:
                raise ValueError(told)

    def _begin(self, arguments: list[str], wait_s: float | None) -> bool:
        """Return whether it reports within that time that it has the lock, or leads."""
        self._running = subprocess.Popen([*self._command, *arguments], stdout=subprocess.PIPE, bufsize=0)
        out = self._running.stdout
        assert out is not None
        if not select.select([out], [], [], wait_s)[0]:
            return False
        if not out.readline():  # otherwise its key, before which it prints nothing
            raise RuntimeError(f"etcdctl ended with {self._running.wait()}")
        return True

    def _interrupt(self) -> None:
        """Send Ctrl-C, which makes etcdctl resign, release or stop waiting."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        self._running.communicate(timeout=30)

    def kill(self) -> None:
        os.killpg(0, signal.SIGKILL)  # the contender leads its group; etcdctl does not end with it by itself


def main() -> None:
    etcdctl = _Etcdctl(*sys.argv[1:])
    obey(etcdctl.do, at_end=etcdctl.kill)


if __name__ == "__main__":
    main()

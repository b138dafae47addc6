"""Child processes get ports of their own, and can be paused."""

import itertools
import signal
import subprocess
import sys

import pytest

from lab.servers import EtcdMember, process
from lab.servers.process import Process, ProcessFailed, free_port

ANOTHER_PROCESS = """
import random
from lab.servers.process import free_port
first = {port}
numbers = iter([first, first + 1, first + 2, first + 3])
random.randrange = lambda *_: next(numbers)
print(free_port())
"""


def test_a_port_is_given_to_one_process_only() -> None:
    """No other process gets the port, even while nothing listens on it yet: one of two servers on a port would fail."""
    port = free_port()
    code = ANOTHER_PROCESS.format(port=port)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) in {port + 1, port + 2, port + 3}


def test_a_pause_that_somebody_ends_at_once_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that ends at once counts as one that came a moment too late."""
    monkeypatch.setattr(process, "_STOPPED_WITHIN_S", 0.1)
    with Process("sleeper", lambda _: ["sleep", "60"]) as sleeper:
        send = sleeper.signal

        def and_continue(number: signal.Signals) -> None:
            send(number)
            send(signal.SIGCONT)

        monkeypatch.setattr(sleeper, "signal", and_continue)
        sleeper.pause()
        assert sleeper.running


def test_a_server_whose_disk_is_full_says_so_in_a_line() -> None:
    """The stack of a program in Go does not hide its reason."""
    etcd = EtcdMember()
    started = etcd._argv
    etcd._argv = lambda folder: ["/bin/sh", "-c", 'ulimit -f 2000; exec "$@"', "sh", *started(folder)]
    with pytest.raises(ProcessFailed) as failed, etcd:
        pass
    assert "failed to create WAL" in str(failed.value)
    assert "goroutine" not in str(failed.value)
    assert "server.go" not in str(failed.value)


@pytest.mark.slow
def test_a_slow_start_has_time_as_long_as_it_works() -> None:
    """On a busy machine a server is ready later than usual; one that stands still is given up."""
    asked = itertools.count()
    works = [sys.executable, "-c", "while True: pass"]
    with Process("slow", lambda _: works, ready=lambda: next(asked) > 150, ready_within_s=1.0) as slow:
        assert slow.running
    stands = ["sleep", "1000"]
    with pytest.raises(ProcessFailed, match="stuck was not ready within"):
        Process("stuck", lambda _: stands, ready=lambda: False, ready_within_s=1.0).start()

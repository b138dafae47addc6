"""The sale on hosts of its own, each in a network of its own: hosts are cut off and come back, and all is replaced."""

import subprocess
import sys

import pytest

from lab.servers.process import free_port
from tests.harness.command import seckill
from tests.harness.servers import namespaces, optional_server


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_go_and_come_and_are_replaced() -> None:
    """Nothing is oversold or lost; a host without the stock is missed by nobody; a rolling update refuses nobody."""
    optional_server("haproxy", "haproxy")
    namespaces()
    argv = [sys.executable, "-m", "app", "cluster", "--buyers", "60", "--stock", "40", "--rate", "20", "--away-s", "2"]
    done = subprocess.run(
        [*argv, "--ports", f"{free_port()},{free_port()}"], capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 got one, 20 did not" in done.stdout
    assert "default: 40 units sold in 40 orders, 0 left" in done.stdout
    assert "Consistent" in done.stdout
    assert done.stdout.count("is replaced\n") == 3


def test_wrong_options_are_named() -> None:
    """A wrong option is named before anything is started."""
    done = seckill("cluster", "--ports", "8080")
    assert done.returncode == 2
    assert "--ports" in done.stderr

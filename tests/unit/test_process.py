"""Ports for child processes."""

import subprocess
import sys

from app.process import free_port

ANOTHER_PROCESS = """
import random
from app.process import free_port
first = {port}
numbers = iter([first, first + 1, first + 2, first + 3])
random.randrange = lambda *_: next(numbers)
print(free_port())
"""


def test_a_port_is_given_to_one_process_only() -> None:
    """Also while nothing listens on it yet: two servers would be started on it, and one of them would fail."""
    port = free_port()
    code = ANOTHER_PROCESS.format(port=port)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) in {port + 1, port + 2, port + 3}

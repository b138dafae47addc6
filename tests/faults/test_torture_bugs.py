"""`seckill torture --with-bug` must find each bug, else its silence would prove nothing."""

from pathlib import Path

import pytest

from lab.torture.bugs import BUGS
from tests.harness.torture import torture

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(tmp_path: Path, bug: str) -> None:
    """With one safeguard switched off, a rule that it breaks is broken, perhaps not at the first try."""
    for seed in ("5", "6", "7"):
        done = torture(tmp_path, "--with-bug", bug, "--seed", seed)
        assert f"With a bug that must be found, {bug}" in done.stdout
        if done.returncode == 0:
            return
    pytest.fail(done.stdout + done.stderr)

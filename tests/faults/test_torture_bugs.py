"""`seckill torture --with-bug`: what the judge would not see proves nothing when it is not seen."""

from pathlib import Path

import pytest

from tests.harness.torture import torture

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", ["believes-for-ever", "never-renews", "no-fence"])
def test_a_bug_is_found(tmp_path: Path, bug: str) -> None:
    """One repair is switched off, and the run ends with violations: else the others would prove little."""
    done = torture(tmp_path, "--with-bug", bug, "--seed", "5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"With a bug that must be found, {bug}" in done.stdout

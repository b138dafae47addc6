"""CI's refusal of a skip that is not named: see tests/harness/skips.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPS = """
import pytest
def test_of_a_backend(): pytest.skip("it holds nothing")
@pytest.mark.xfail
def test_expected(): assert False
@pytest.mark.skipif(True, reason="no curl")
def test_of_a_tool(): pass
def test_of_a_library(): pytest.importorskip("no_such_library")
"""


@pytest.mark.parametrize(
    ("ci", "outcomes"), [("true", "1 failed, 1 skipped, 1 xfailed, 1 error"), ("", "3 skipped, 1 xfailed")]
)
def test_a_skip_that_is_not_named_fails_in_ci(tmp_path: Path, ci: str, outcomes: str) -> None:
    """What a backend has not is skipped anywhere; a missing tool or library fails in CI, with its reason."""
    (tmp_path / "test_them.py").write_text(SKIPS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    argv = [sys.executable, "-m", "pytest", "-p", "tests.harness.skips", "-p", "no:cacheprovider", "-rs"]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120)
    assert outcomes in done.stdout
    assert ("and not this: Skipped: no curl" in done.stdout) == bool(ci)

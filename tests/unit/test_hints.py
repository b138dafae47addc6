"""No text has people install `seckill` or `fencelock` by name: a package of that name in an index is a stranger's."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A name outside a path, behind a command that installs.
INSTALL = re.compile(
    r"\b(?:pip|pipx|uv|uvx)\b.*\b(?:install|add|run)\b(?:\W[^`;]*)?(?<![\w./*-])(?:seckill|fencelock)(?![\w./*-])"
)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_nobody_is_told_to_install_a_name_of_ours() -> None:
    """No document, hint or comment names one of them for an installation; each has a path instead."""
    assert INSTALL.search("pip install 'fencelock[etcd]'")
    assert not INSTALL.search("`pip install './fencelock[etcd]'`, which is the package `fencelock`")
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    files = [ROOT / name for name in names if name and name != f"tests/unit/{Path(__file__).name}"]
    lines = [line for file in files if file.is_file() for line in file.read_text(errors="replace").splitlines()]
    assert not [line for line in lines if INSTALL.search(line)]

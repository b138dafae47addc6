"""CI's second and third try of what failed: see tests/harness/again.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(directory: Path, text: str, *others: str) -> "subprocess.CompletedProcess[str]":
    """Run a file of tests with the plugin, as CI does; in it `tries(name)` says how often it was called."""
    head = """
import os, pathlib, pytest
def tries(name):
    with open(name, "a+") as file:
        file.write("x")
        return file.tell()
"""
    (directory / "test_them.py").write_text(head + text)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    argv = [sys.executable, "-m", "pytest", "-p", "tests.harness.again", "-p", "no:cacheprovider", *others]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(argv, cwd=directory, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize("others", [(), ("-p", "xdist", "-n", "2")])
def test_a_failure_that_does_not_come_again(tmp_path: Path, others: tuple[str, ...]) -> None:
    """What fails once and then passes twice is named, and the run has not failed; what passed does not run again."""
    text = """
@pytest.mark.slow
def test_shaky(): assert tries("shaky") > 1
def test_gone():
    if tries("gone") == 1: os._exit(3)
def test_good(): tries("good")
"""
    done = run(tmp_path, text if others else text.replace("os._exit(3)", "assert False"), *others)
    assert done.returncode == 0, done.stdout
    named = done.stdout.partition("TO BE MENDED NEXT")[2]
    assert "::test_shaky" in named
    assert "::test_gone" in named
    assert "::test_good" not in named
    assert {name: len((tmp_path / name).read_text()) for name in ("shaky", "good")} == {"shaky": 3, "good": 1}


@pytest.mark.parametrize(
    "text",
    [
        "def test_it(): assert False",
        "def test_it(): assert tries('it') == 2",  # the third try fails
        "def test_it(): assert tries('it') == 3",  # the second try fails
        "def test_shaky(): assert tries('shaky') > 1\ndef test_it(): assert False",
        "def test_shaky(): assert tries('shaky') > 1\ndef test_it(): raise KeyboardInterrupt",  # it breaks off
        "def test_shaky(): assert tries('shaky') > 1\n(",  # it can't be collected
        "@pytest.mark.parametrize('one', range(11))\ndef test_it(one): assert tries(str(one)) > 1",
    ],
)
def test_what_is_wrong_refuses(tmp_path: Path, text: str) -> None:
    """A failure that comes again, a run that broke off, and many failures at once."""
    done = run(tmp_path, text)
    assert done.returncode != 0
    assert "TO BE MENDED NEXT" not in done.stdout

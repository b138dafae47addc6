"""`seckill torture`: a short pass that must hold, and one without the guard that must be caught."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.torture.history import History, load
from app.torture.judge import judge, recovery_s
from app.torture.nemesis import NAMES
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow


def torture(report: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "app", "torture", "--report", str(report), *options]
    env = os.environ | {"COLUMNS": "160"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False, env=env)


def broken(history: History) -> set[str]:
    """The invariants that the judge found broken."""
    return {finding.invariant for finding in judge(history) if not finding.holds}


@pytest.mark.parametrize(
    "nemeses",
    [
        "pause,late-commit,lost-answer",
        "kill,etcd-kill,pause-holder",
        "store-kill,renewal,holder-key",
        "several,waiter-key,store-reset",
        "hang",
    ],
)
def test_every_promise_is_kept(tmp_path: Path, nemeses: str) -> None:
    """Faults strike while buyers buy: nothing is oversold, undersold or lost, and sales go on soon after each."""
    done = torture(tmp_path, "--duration", "16", "--every", "4", "--nemesis", nemeses, "--rate", "60", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    history = load(tmp_path / "history.jsonl")
    assert broken(history) == set()
    assert len(history.faults) >= 2
    assert done.stdout.count("│ kept │") == len(judge(history)) == 15
    assert (tmp_path / "timeline.html").stat().st_size > 1000
    assert "open, lock: etcd" in (tmp_path / "instance-1.log").read_text()


def test_without_the_guard_it_is_caught(tmp_path: Path) -> None:
    """The control: holders are paused, nothing checks their writes. If this passed, the check would prove nothing."""
    options = ["--guard", "none", "--nemesis", "pause", "--rate", "60", "--seed", "3"]
    done = torture(tmp_path, "--duration", "12", "--every", "4", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    history = load(tmp_path / "history.jsonl")
    # The commit that came late wrote a stock from before the others' sales, with a token from before theirs.
    assert broken(history) >= {"I1", "I5, I8"}
    assert any("units were sold that did not exist" in text for one in judge(history) for text in one.violations)
    assert "violations" in done.stdout
    # What it was paused for: a pause of the holder stops the sale until its lease is over.
    assert max(recovery_s(history, fault) for fault in history.faults) > 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nemesis", "rain"], "'rain' is none of pause, "),
        (["--every", "2"], "--every 2 is too often"),
        (["--rate", "10"], "--rate 10 is too low for 3 instances"),
        (["--ttl-s", "1"], "--ttl-s"),
        (["--report", __file__], "is not a folder"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], said: str) -> None:
    """Before anything is started."""
    done = torture(tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_faults_are_listed() -> None:
    """Each with what it does."""
    done = torture(Path(), "--nemesis", "help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(NAMES)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """In mid-run: all servers and instances are gone, the exit status is 130, and so far is written down."""
    argv = [sys.executable, "-m", "app", "torture", "--report", str(tmp_path), "--nemesis", "pause", "--rate", "20"]
    command = psutil.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        history = tmp_path / "history.jsonl"
        eventually(lambda: history.exists() and history.stat().st_size > 2000, "it sells", 60)
        children = command.children(recursive=True)
        assert len(children) >= 7
        command.send_signal(2)
        said, _ = command.communicate(timeout=60)
        assert command.returncode == 130, said
        eventually(lambda: not [child for child in children if child.is_running() and _alive(child)], "all are gone")
    finally:
        if command.is_running():
            command.kill()
            command.communicate()
    assert "Traceback" not in said
    with pytest.raises(ValueError, match="no end"):
        judge(load(history))


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

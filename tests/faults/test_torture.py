"""`seckill torture` holds in a short pass, and finds the violations of one without the guard."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import app
from lab.torture.bugs import BUGS
from lab.torture.history import load
from lab.torture.judge import judge
from lab.torture.judge_service import recovery_s
from lab.torture.nemesis import NAMES
from lab.torture.stand import STAND
from tests.harness.command import seckill
from tests.harness.torture import QUICK, broken, torture
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow


# CI runs this once, and `make test-all` runs the others.
@pytest.mark.parametrize(
    "nemeses",
    [
        "kill-sender,lost-reply,late-between",
        pytest.param("pause,late-commit,late-restocked", marks=pytest.mark.exhaustive),
        pytest.param("kill,lock-kill,store-power", marks=pytest.mark.exhaustive),
        pytest.param("several,waiter-key,renewal", marks=pytest.mark.exhaustive),
        pytest.param("hang,restart,instance-clock,store-clock", marks=pytest.mark.exhaustive),
        pytest.param("lock-older,holder-key", marks=pytest.mark.exhaustive),
    ],
)
def test_every_promise_is_kept(tmp_path: Path, nemeses: str) -> None:
    """Faults strike while buyers buy: nothing is oversold, undersold or lost, and sales resume soon after each."""
    done = torture(tmp_path, *QUICK, "--nemesis", nemeses)
    assert done.returncode == 0, done.stdout + done.stderr
    history = load(tmp_path / "history.jsonl")
    assert broken(history) == set()
    assert {fault.name for fault in history.faults if fault.struck} == {*nemeses.split(","), STAND}
    assert done.stdout.count("│ kept │") == len(judge(history))
    assert (tmp_path / "timeline.html").stat().st_size > 1000
    assert "open, lock: etcd" in (tmp_path / "instance-1.log").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", ["redis", "mysql", "postgres"])
def test_each_cent_is_known(tmp_path: Path, store: str) -> None:
    """Payers pay at a provider with bad days while instances are killed: its books and ours agree in the end."""
    done = torture(tmp_path, *QUICK, "--cents", "--store", store, "--nemesis", "kill,store-cut")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "requests for refunds" in done.stdout


def test_without_the_guard_it_is_caught(tmp_path: Path) -> None:
    """The control: holders are paused, nothing checks their writes: the judge must find violations."""
    done = torture(tmp_path, *QUICK, "--guard", "none", "--nemesis", "pause")
    assert done.returncode == 0, done.stdout + done.stderr
    history = load(tmp_path / "history.jsonl")
    # The late commit wrote a stock from before the others' sales, with a token from before theirs.
    assert broken(history) >= {"I1", "I7", "I8"}
    assert "violations" in done.stdout
    # The reason for the pause: it stops the sale of all items under that lock until the holder's lease is over.
    assert max(recovery_s(history, fault) for fault in history.faults) > 1


def test_instances_are_upgraded_in_mid_sale(tmp_path: Path) -> None:
    """Instances begin as an earlier release, with another program, and end as this one."""
    release, report = tmp_path / "release", tmp_path / "report"
    root = Path(app.__file__).parents[1]
    for house in ("app", "fencelock", "lab"):
        shutil.copytree(root / house, release / house, ignore=shutil.ignore_patterns("__pycache__"))
    (release / ".venv").symlink_to(sys.prefix)
    program = release / "lab" / "torture" / "instance.py"
    program.write_text(f"{program.read_text()}".replace("def main(", 'print("an earlier release")\n\n\ndef main('))
    done = torture(report, *QUICK, "--upgrade-from", str(release), "--nemesis", "upgrade")
    assert done.returncode == 0, done.stdout + done.stderr
    for number in (1, 2, 3):
        said = (report / f"instance-{number}.log").read_text()
        assert said.count("an earlier release") == 1
        assert said.count("open, lock: etcd") == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nemesis", "rain"], "there is no 'rain'"),
        (["--nemesis", "holder-key", "--lock", "redis"], "holder-key strikes what this sale doesn't have"),
        (["--lock", "padlock"], "there is no lock 'padlock'"),
        (["--store", "drawer"], "there is no store 'drawer'"),
        (["--nemesis", "lost-reply", "--store", "redis-cluster"], "lost-reply strikes what this sale doesn't have"),
        (["--nemesis", "kill-sender", "--no-payers"], "kill-sender strikes what this sale doesn't have"),
        (["--nemesis", "upgrade"], "upgrade strikes what this sale doesn't have"),
        (["--upgrade-from", str(Path(__file__).parent)], "no checkout of a release"),
        (["--with-bug", "bed"], "there is no bug 'bed'"),
        (["--guard", "fence", "--lock", "redlock"], "gives no fencing tokens"),
        (["--every", "2"], "--every 2 is too often"),
        (["--rate", "10"], "--rate 10 is too low for 3 instances"),
        (["--ttl-s", "1"], "--ttl-s"),
        (["--report", __file__], "is not a folder"),
        (["--cents", "--guard", "none"], "nothing can be held there"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], said: str) -> None:
    """A wrong option is named before anything is started."""
    done = seckill("torture", "--report", str(tmp_path), *options)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "names"), [("--nemesis", NAMES), ("--with-bug", tuple(BUGS))])
def test_faults_and_bugs_are_listed(option: str, names: tuple[str, ...]) -> None:
    """Each fault and bug is listed with its effect."""
    done = seckill("torture", option, "help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(names)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C in mid-run ends all servers and instances with exit status 130, and keeps the history so far."""
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

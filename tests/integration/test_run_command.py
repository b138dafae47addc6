"""`fencelock run`: a command that runs as a shell's script would have it, and of which nothing outlives the lock."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import fencelock
from fencelock import connect
from fencelock.__main__ import EPILOG
from lab.servers import Valkey
from tests.harness.waiting import WITHIN_S, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has processes that adopt others")
ROOT = Path(__file__).parents[2]
TTL_S = 2
Start = Callable[..., "subprocess.Popen[str]"]
# As rsync does, and daemons do: a child, one in a session of its own, and one that has lost its parent, too.
CROWD = """
beat='while :; do sleep 0.1; done'
sh -c "$beat" MARK & setsid sh -c "$beat" MARK & setsid -f sh -c "$beat" MARK
"""
STAYS = CROWD + "trap '' TERM\nwhile :; do wait; done"


def argv(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fencelock", "run", "--url", url, *arguments]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/locks"


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the command lines of a command's processes; those that a failed test leaves are ended."""
    mark = f"mark-{uuid.uuid4().hex}"
    yield mark
    for one in running(mark):
        os.kill(one, signal.SIGKILL)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `fencelock run`, which ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(url: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(argv(url, *arguments), **pipes | options))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.communicate()


def running(mark: str) -> list[int]:
    """The processes with this word in their command lines that have not ended, but for `fencelock` and its guard."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            words, state = (one / "cmdline").read_text().split("\0"), (one / "stat").read_text().rpartition(")")[2]
        except OSError:
            continue
        if any(mark in word for word in words) and state.split()[0] != "Z" and words[0].endswith("sh"):
            found.append(int(one.name))
    return found


def guard_of(fencelock: int) -> int:
    return int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(fencelock)]))


def answer(url: str, *arguments: str, **options: Any) -> tuple[int, str, str]:
    done = subprocess.run(argv(url, *arguments), capture_output=True, text=True, timeout=4 * WITHIN_S, **options)
    return done.returncode, done.stdout, done.stderr


# -- as a script would have it ---------------------------------------------------------------------------------------

PROBE = """
grep -E 'Sig(Blk|Ign)' /proc/self/status
env | grep -v -E '^(FENCELOCK_|_=|SHLVL=)' | sort
cut -d ' ' -f 5-7 /proc/self/stat
umask; ulimit -a; ls /proc/self/fd; tty; echo there >&9
"""


@pytest.mark.parametrize("where", ["a terminal", "cron"])
def test_a_command_has_what_a_script_would_have_given_it(url: str, tmp_path: Path, where: str) -> None:
    """Signals, environment, session, group, terminal, descriptors: no line differs, also not in cron's bare one."""
    run = " ".join(argv(url, "n", "--"))
    probe = tmp_path / "probe"
    probe.write_text(PROBE)
    said = []
    for number, prefix in enumerate(("", run)):
        script = tmp_path / f"script{number}"
        script.write_text(f"exec 9>{tmp_path}/nine\ncut -d ' ' -f 5-7 /proc/self/stat\n{prefix} sh {probe}\n")
        command = ["env", "-i", f"PATH={os.environ['PATH']}", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"]
        command += ["sh", str(script)]
        if where == "a terminal":
            command = ["script", "-qec", " ".join(command), "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=WITHIN_S)
        # Two signals are of the C library's own: a program that was spawned, as by make, has them ignored.
        text = re.sub(r"(?<=SigIgn:\t)\w+", lambda found: f"{int(found[0], 16) & ~0x180000000:x}", done.stdout)
        ours, *probed = text.splitlines()
        assert probed.count(ours) == 1, "it is in the session and the group of the script"
        said.append([line for line in probed if line != ours])
        assert (tmp_path / "nine").read_text() == "there\n"
    assert said[0] == said[1]
    assert any(line.startswith("/dev/") for line in said[1]) == (where == "a terminal")


def test_a_pipeline_ends_as_it_does_elsewhere(url: str) -> None:
    """A writer whose reader has gone is ended by the system."""
    status, said, why = answer(url, "n", "--", "bash", "-c", "set -o pipefail; yes | head -1")
    assert (status, said, why) == (128 + signal.SIGPIPE, "y\n", "")


def test_a_command_that_can_not_be_run(url: str) -> None:
    """The status is the shell's, and the reason is said."""
    assert answer(url, "n", "--", "no-such") == (127, "", "fencelock: no-such: No such file or directory\n")
    assert answer(url, "n", "--", "/etc") == (126, "", "fencelock: /etc: Permission denied\n")


def test_ctrl_c_reaches_the_command_once_and_ends_the_script(url: str, tmp_path: Path) -> None:
    """A terminal sends its signal to the whole group: we add none, and end so that a shell's loop ends as well."""
    counts = "trap 'echo interrupted' INT; echo up; n=0; while [ $n -lt 30 ]; do n=$((n+1)); sleep 0.1; done; exit 3"
    script = f'{" ".join(argv(url, "n", "--"))} sh -c "$1"; echo status $?; '
    script += f"{' '.join(argv(url, 'n', '--'))} sh -c 'echo again; sleep 60'; echo the script goes on"
    master, slave = os.openpty()
    try:
        command = ["setsid", "--ctty", "--wait", "bash", "-c", script, "bash", counts]
        with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, text=True) as shell:
            assert shell.stdout is not None
            for word in ("up", "again"):
                while (line := shell.stdout.readline().strip()) != word:
                    assert line in ("interrupted", "status 3"), line
                os.write(master, b"\x03")
                if word == "up":
                    assert [shell.stdout.readline().strip() for _ in range(2)] == ["interrupted", "status 3"]
            assert shell.stdout.read() == ""
    finally:
        os.close(master)
        os.close(slave)


# -- nothing outlives the lock ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["killed", "the guard is killed", "its command ends", "SIGTERM", "the file is deleted"])
def test_nothing_of_a_command_outlives_it(start: Start, url: str, mark: str, tmp_path: Path, end: str) -> None:
    """Neither a child, nor what has a session of its own, nor a daemon, however the run ends."""
    script = f"{CROWD if end in ('its command ends', 'SIGTERM') else STAYS}".replace("MARK", mark)
    run = start(url, "--ttl", "1", "n", "--", "sh", "-c", script + f"\nread _; : {mark}", stdin=subprocess.PIPE)
    eventually(lambda: len(running(mark)) == 4, "all of them run")
    if end == "killed":
        run.kill()
    elif end == "the guard is killed":
        os.kill(guard_of(run.pid), signal.SIGKILL)
    elif end == "SIGTERM":
        run.terminate()
    elif end == "its command ends":
        assert run.stdin is not None
        run.stdin.close()
        run.stdin = None
    else:
        (tmp_path / "locks" / "n.lock").unlink()
    status = run.wait(WITHIN_S)
    if end != "killed":  # nothing runs when others may have the lock
        assert running(mark) == []
    statuses = {"killed": -9, "the guard is killed": 137, "SIGTERM": 143, "its command ends": 0}
    assert status == statuses.get(end, 76)
    eventually(lambda: not running(mark), "all of them have ended")


def test_a_run_that_stands_still_is_over_with_its_lease(start: Start, valkey: Valkey, mark: str) -> None:
    """SIGSTOP, or whatever else hangs it: its guard ends the command, which is killed as the lease is over."""
    script = STAYS.replace("MARK", mark)
    first = start(valkey.url, "--ttl", str(TTL_S), "/stands", "--", "sh", "-c", f"{script}; : {mark}")
    eventually(lambda: len(running(mark)) == 4, "all of them run")
    first.send_signal(signal.SIGSTOP)
    with connect(valkey.url) as locks, locks.lock("/stands").holding(wait_s=WITHIN_S):
        eventually(lambda: running(mark) == [], "they are gone, as soon as a busy machine comes to it")
    first.send_signal(signal.SIGCONT)
    assert first.wait(WITHIN_S) == 76


def test_a_command_of_another_user_is_said_to_go_on(start: Start) -> None:
    """What has become root's, as by sudo, can't be killed by us: the run ends with 76 all the same, and says so."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        found = shutil.copy("/usr/bin/python3", f"{folder}/like-sudo")
        for change in (["chown", "0:0", found], ["chmod", "4755", found]):
            if subprocess.run([*sudo, *change], capture_output=True).returncode:
                pytest.skip("another user's process: nobody here is root")
        (folder / "jobs").mkdir()
        (folder / "jobs").chmod(0o777)
        shutil.copytree(Path(fencelock.__file__).parent, folder / "fencelock")
        import typing_extensions

        shutil.copy(typing_extensions.__file__, folder)
        becomes_root = "import os, time; os.setgid(0); os.setreuid(0, 0); print('up', flush=True); time.sleep(60)"
        command = ["/usr/bin/python3", *argv(f"file://{folder}/jobs", "--ttl", "1", "n", "--", found)[1:]]
        run = subprocess.Popen(
            [*command, "-I", "-S", "-c", becomes_root],
            env={"PYTHONPATH": str(folder)},
            user=None if sudo else 65534,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        (folder / "jobs" / "n.lock").unlink()
        assert run.wait(WITHIN_S) == 76
        assert run.stderr is not None
        said = None
        while said is None:  # its end doesn't come while that one lives
            line = run.stderr.readline()
            said = re.search(r"not ours to be killed: (\d+) \(like-sudo\), of another user, goes on\. Put sudo", line)
        subprocess.run([*sudo, "kill", "-9", said[1]], check=True)
        run.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert "sudo fencelock run" in EPILOG


# -- signals, and terms ----------------------------------------------------------------------------------------------


def test_a_signal_ends_a_wait_and_leaves_the_queue(start: Start, valkey: Valkey) -> None:
    """A standby that a rolling update ends is in nobody's way."""
    for how in ((), ("--leader",), ("--once", "x")):
        with connect(valkey.url.replace("redis://", "redis+fair://")) as locks, locks.lock(f"/wait{how}") as grant:
            waiting = start(locks_url(valkey), *how, f"/wait{how}", "--", "echo", "ran")
            eventually(lambda how=how, locks=locks: len(locks.contenders(f"/wait{how}")) == 2, "it waits")
            waiting.send_signal(signal.SIGTERM)
            assert waiting.communicate(timeout=WITHIN_S) == ("", "")
            assert waiting.returncode == 128 + signal.SIGTERM
            assert [one.token for one in locks.contenders(f"/wait{how}")] == [grant.token]


def locks_url(valkey: Valkey) -> str:
    return valkey.url.replace("redis://", "redis+fair://")


def test_a_leaders_command_ends_with_a_status_of_its_own(valkey: Valkey, tmp_path: Path) -> None:
    """76 is a status that commands have; only a lost lock is a lost term."""
    count = tmp_path / "count"
    status, _, why = answer(valkey.url, "--leader", "/76", "--", "sh", "-c", f"echo x >> {count}; exit 76")
    assert (status, why, count.read_text()) == (76, "", "x\n")


def test_a_signal_between_two_terms_is_not_lost(start: Start, mark: str) -> None:
    """The term is over as the server is silent, the resignation takes its time, and then comes the signal."""
    own = Valkey().start()
    try:
        command = f"trap '' TERM; while :; do sleep 1; done; : {mark}"
        run = start(own.url, "--ttl", "2", "--leader", "/b", "--", "sh", "-c", command)
        eventually(lambda: running(mark), "it leads")
        own.pause()
        eventually(lambda: not running(mark), "its term is over")
        run.terminate()
        assert run.wait(WITHIN_S) == 128 + signal.SIGTERM
    finally:
        own.stop()


def test_sighup_is_for_the_command(start: Start, url: str, tmp_path: Path) -> None:
    """One that has it read its configuration goes on, and ends by itself."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # else it is inherited, where the tests run under nohup
    up = f"trap 'echo read again; exit 4' HUP; touch {tmp_path}/up; while :; do sleep 0.1; done"
    run = start(url, "a", "--", "sh", "-c", up)
    eventually((tmp_path / "up").exists, "it runs")
    run.send_signal(signal.SIGHUP)
    assert run.communicate(timeout=WITHIN_S)[0] == "read again\n"
    assert run.returncode == 4


def test_what_is_ignored_stays_ignored(valkey: Valkey) -> None:
    """What waits under nohup outlives the terminal; and SIGCHLD that is ignored hides no status."""
    with connect(locks_url(valkey)) as locks:
        with locks.lock("/nohup"):
            ignoring = ["bash", "-c", "trap '' HUP CHLD; exec \"$@\"", "bash"]
            run = subprocess.Popen([*ignoring, *argv(locks_url(valkey), "/nohup", "--", "sh", "-c", "exit 3")])
            eventually(lambda: len(locks.contenders("/nohup")) == 2, "it waits")
            run.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                run.wait(0.5)
        assert run.wait(WITHIN_S) == 3


# -- cron ------------------------------------------------------------------------------------------------------------


def test_today_is_the_date_in_a_zone(valkey: Valkey) -> None:
    """By the machine's zone or by one that is named, of which an unknown one is said."""
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):  # 25 hours apart: never the same date
        before = datetime.now(ZoneInfo(zone)).date()
        show = ("--", "printenv", "FENCELOCK_SLOT")
        said = answer(valkey.url, "--once", "today", "--zone", zone, f"/today/{zone}", *show)[1]
        said_too = answer(valkey.url, "--once", "today", f"/local/{zone}", *show, env={**os.environ, "TZ": zone})[1]
        assert {said, said_too} <= {f"{before}\n", f"{datetime.now(ZoneInfo(zone)).date()}\n"}
    status, _, why = answer(valkey.url, "--once", "today", "--zone", "Mars/Olympus", "/today", "--", "true")
    assert status == 2
    assert "there is no zone 'Mars/Olympus' here" in why


def by_cron(line: str) -> tuple[str, str]:
    """The command of a crontab's line, and its input: man 5 crontab."""
    command = re.match(r"(?:@\w+|(?:\S+\s+){5})\s*(.*)", line)
    assert command is not None, line
    first, *more = re.split(r"(?<!\\)%", command[1])
    return first.replace("\\%", "%"), "\n".join(more)


@pytest.mark.slow
def test_the_lines_for_a_crontab_are_read_by_cron_as_they_are_meant(tmp_path: Path, valkey: Valkey) -> None:
    """Each line of a crontab on a page is one command without input, which runs its job, or starts it once a slot."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "fencelock" / "README.md"]
    blocks = [one for page in pages for one in re.findall(r"```crontab\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [one for block in blocks for one in block.splitlines() if one and not re.match(r"#|\w+=", one)]
    assert lines
    for name, program in {"fencelock": f'{sys.executable} -m fencelock "$@"', "job": "echo ran"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexec {program}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    environment["FENCELOCK_URL"] = valkey.url
    for line in lines:
        command, given = by_cron(line)
        assert given == "", line
        command = re.sub(r"/opt/\S+", str(tmp_path / "job"), re.sub(r"--url \S+ ", "", command))
        done = [subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True) for _ in range(3)]
        assert [one.returncode for one in done] == [0, 0, 0], done[0].stderr
        runs = sum(one.stdout == b"ran\n" for one in done)
        assert runs in ((1, 2) if re.search("--once|--every", line) else (3,)), line  # two, if a slot ends in between

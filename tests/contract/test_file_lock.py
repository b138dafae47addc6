"""The lock of one machine keeps the contract among its processes, and is free when its holder's process has ended."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fencelock import (
    ConfigurationError,
    Grant,
    LockBackend,
    LockLost,
    LockTimeout,
    LockUnavailable,
    NoLock,
    connect,
    file,
)
from fencelock.file import FileBackend, filesystem_of
from tests.contract.lock_contract import CALM_S, SMOKE, LockContract, LockSystem, hold_and_release
from tests.harness.forked import Forked
from tests.harness.waiting import WITHIN_S, eventually
from tests.harness.worker import Worker

NAME = "/jobs/nightly"


class FileSystem(LockSystem):
    backend = "fencelock.file:FileBackend"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"folder": str(self.folder), "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return connect(f"file://{self.folder}", ttl_s=ttl_s, **more)

    def delete_key(self, key: str) -> None:
        (self.folder / (quote(key.rpartition("/")[0], safe="") + ".lock")).unlink()

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        return [one.name for one in self.folder.glob("*.lock") if one.stat().st_size]


class TestFileLock(LockContract):
    SMOKE = SMOKE
    guarantees = FileBackend.guarantees

    @pytest.fixture
    def system(self, tmp_path: Path) -> LockSystem:
        return FileSystem(tmp_path / "locks")


@pytest.fixture
def system(tmp_path: Path) -> FileSystem:
    return FileSystem(tmp_path / "locks")


@pytest.fixture
def backend(system: FileSystem) -> Iterator[LockBackend]:
    with system.open(CALM_S) as backend:
        yield backend


def worker(system: FileSystem, ttl_s: float = CALM_S) -> Worker:
    return Worker(system.backend, system.options(ttl_s), NAME)


def test_a_killed_holder_is_succeeded_at_once(system: FileSystem, backend: LockBackend) -> None:
    """Not a TTL later: the kernel frees what a process had."""
    lock = backend.lock(NAME)
    with worker(system, 3600) as holder:
        token = holder.ask("acquire")["token"]
        assert lock.try_acquire() is None
        assert [(one.token, one.owner["pid"], one.holds) for one in lock.contenders()] == [(token, holder.pid, True)]
        holder.kill()
        with lock.holding(wait_s=WITHIN_S) as grant:
            assert grant.token > token


def test_a_paused_holder_keeps_it(system: FileSystem, backend: LockBackend) -> None:
    """For as long as it stands still, however long its TTL is, and when it goes on it still has the lock."""
    lock = backend.lock(NAME)
    with worker(system, 0.1) as holder:
        holder.ask("acquire")
        holder.pause()
        with pytest.raises(LockTimeout):
            lock.acquire(wait_s=0.5)
        holder.resume()
        assert holder.ask("lost") == {"lost": False}
        holder.ask("release")
    hold_and_release(lock)


def test_a_hold_has_a_greatest_age(system: FileSystem, backend: LockBackend) -> None:
    """Although nothing else ends it: then its owner is told, and others have it."""
    with system.open(0.2) as brief:
        grant = brief.lock(NAME).acquire(owner="me", hold_max_s=0.3)
        with backend.lock(NAME).holding(wait_s=WITHIN_S) as next_one:
            assert grant.lost
            assert next_one.token > grant.token


def test_words_of_an_earlier_leader_are_nobodys(backend: LockBackend) -> None:
    """Whoever has the lock now has not said them."""
    election = backend.election(NAME)
    with election.campaign("me") as leadership:
        leader = election.leader()
        assert leader is not None
        assert (leader.token, leader.value) == (leadership.token, "me")
    with backend.lock(NAME):
        assert election.leader() is None


def test_a_forked_child_does_not_keep_what_its_parent_had(system: FileSystem, backend: LockBackend) -> None:
    """A parent that is killed leaves no lock behind with a child of its that lives on."""
    program = (
        "import os, sys, time\nfrom fencelock import connect\n"
        f"connect('file://{system.folder}').lock('{NAME}').acquire()\n"
        "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(3600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert backend.lock(NAME).try_acquire() is None
        parent.kill()
        parent.wait()
        with backend.lock(NAME).holding(wait_s=WITHIN_S):
            os.kill(child, 0)  # which lives on
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_release_frees_what_a_child_was_forked_with(backend: LockBackend) -> None:
    """The parent's release counts, whoever has a copy of the file; and a child frees nothing of the parent's."""
    lock = backend.lock(NAME)
    with lock as grant:
        assert Forked(lambda _: grant.lost).result()
        assert backend.lock(NAME).try_acquire(owner="other") is None
        (number,) = file._held
        copy = os.dup(number)  # as a child that another library forks has it
    try:
        with lock.holding(wait_s=WITHIN_S):
            pass
    finally:
        os.close(copy)


def test_a_file_that_can_not_be_written_is_unlocked_all_the_same(
    backend: LockBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails keeps the holder's name in it, and nobody out; not even if a child has a copy of the file."""

    def fail(number: int, length: int) -> None:
        raise OSError(30, "Read-only file system")

    lock = backend.lock(NAME)
    with lock:
        (number,) = file._held
        copy = os.dup(number)
        monkeypatch.setattr(os, "ftruncate", fail)
    monkeypatch.undo()
    try:
        assert lock.contenders() == []
        with lock.holding(wait_s=WITHIN_S):
            pass
    finally:
        os.close(copy)


@pytest.mark.parametrize("what", ["a lock file of uv's", "a file with a number", "a second link", "a leader's words"])
def test_a_file_of_another_program_stays_as_it_is(system: FileSystem, backend: LockBackend, what: str) -> None:
    """It has the name of a lock's file, as poetry.lock has, or is one with the user's own; the error names it."""
    system.folder.mkdir()
    file = system.folder / ("uv.lock.words" if what == "a leader's words" else "uv.lock")
    text = {"a file with a number": "4711\n", "a second link": "17 {}"}.get(what, "version = 1\n")
    file.write_text(text)
    if what == "a second link":
        (system.folder / "precious").hardlink_to(file)
    with pytest.raises(NoLock, match=rf"locks/{file.name} is another program's"):
        backend.election("uv").campaign("me")
    assert file.read_text() == text
    assert backend.contenders("") == []
    file.unlink()
    hold_and_release(backend.lock("uv"))


def test_a_file_that_is_deleted_as_it_is_locked_is_no_lock(
    system: FileSystem, backend: LockBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would lock a new one: so it is looked at again once it is locked, and the new one is taken."""
    flock, left = fcntl.flock, [system.folder / (quote(NAME, safe="") + ".lock")]

    def late(number: int, how: int) -> None:
        if left and how & fcntl.LOCK_EX:
            left.pop().unlink()
        flock(number, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with backend.lock(NAME), system.open(CALM_S) as other:
        assert not left
        assert other.lock(NAME).try_acquire() is None


def test_a_child_that_is_forked_meanwhile_keeps_nothing(system: FileSystem, backend: LockBackend) -> None:
    """Another thread forks just as a lock's file, and then the guard of the tokens, is about to be locked."""
    program = (
        "import os, sys, time\nfrom fencelock import connect, file\n"
        "opened, children = file._to_lock, []\n"
        "def forks(path):\n"
        "    number = opened(path)\n"
        "    child = os.fork()\n"
        "    if not child: time.sleep(3600)\n"
        "    children.append(child)\n"
        "    return number\n"
        "file._to_lock = forks\n"
        f"connect('file://{system.folder}').lock('{NAME}').acquire()\n"
        "print(*children, flush=True)\ntime.sleep(3600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(one) for one in parent.stdout.readline().split()]
    try:
        assert len(children) == 2
        parent.kill()
        parent.wait()
        hold_and_release(backend.lock(NAME))
        hold_and_release(backend.lock("other"))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_tokens_grow_over_all_locks_and_restarts(system: FileSystem) -> None:
    """One counter serves all locks of a folder; if it is gone, as when the machine's memory was cleared, time does."""

    def tokens() -> list[int]:
        with system.open(CALM_S) as backend:
            return [hold_and_release(backend.lock(name)) for name in ("/a", "/b", "/a")]

    found = [*tokens(), *tokens()]
    (system.folder / ".token").unlink()
    found += tokens()
    assert found == sorted(set(found))
    with system.open(CALM_S) as backend, backend.lock("/a") as grant:
        assert grant.source == f"file:{socket.gethostname()}:{system.folder}"


def test_a_folder_has_one_source(system: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share it have names of their own: a fence would take each other's tokens for strange ones."""
    sources = []
    for host in ("pod-1", "pod-2"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        with system.open(CALM_S) as backend, backend.lock(NAME) as grant:
            sources.append(grant.source)
    assert sources == [f"file:pod-1:{system.folder}"] * 2


def test_a_crash_repeats_no_token(system: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step of writing the token down is the last one, the next grant's is greater than all before it."""
    given = []
    for name in ("fsync", "replace"):
        for number in (1, 2):
            with system.open(CALM_S) as backend:
                given.append(hold_and_release(backend.lock(NAME)))
                with monkeypatch.context() as crashing:
                    left, step = [number], getattr(os, name)

                    def crash(*arguments: Any, left: list[int] = left, step: Any = step) -> Any:
                        left[0] -= 1
                        if not left[0]:
                            raise OSError(5, "the machine fails")
                        return step(*arguments)

                    crashing.setattr(os, name, crash)
                    try:
                        given.append(hold_and_release(backend.lock(NAME)))
                    except LockUnavailable as error:
                        assert "the machine fails" in str(error)
                given.append(hold_and_release(backend.lock(NAME)))
    assert given == sorted(set(given))


@pytest.mark.slow
def test_a_token_that_can_not_be_read_is_no_new_beginning(system: FileSystem, backend: LockBackend) -> None:
    """Nobody gets the lock: a store would take the old tokens for new ones."""
    hold_and_release(backend.lock(NAME))
    for wrong in ("", "-5", str(2**63)):
        (system.folder / ".token").write_text(wrong)
        with pytest.raises(LockUnavailable, match=r"\.token holds no number"):
            backend.lock(NAME).acquire()
    assert system.leftovers() == []


def test_a_file_that_is_deleted_is_a_loss(system: FileSystem, backend: LockBackend) -> None:
    """Others lock a new one then; the holder is told by its next look."""
    with system.open(0.3) as brief:
        lock = brief.lock(NAME)
        grant = lock.acquire()
        (held,) = system.leftovers()
        (system.folder / held).unlink()
        eventually(lambda: grant.lost, "the loss is noticed")
        hold_and_release(backend.lock(NAME))
        with pytest.raises(LockLost):
            lock.release()


@pytest.mark.parametrize("there", ["nothing", "a file", "another folder"])
def test_a_folder_that_is_gone_is_a_loss(system: FileSystem, backend: LockBackend, there: str) -> None:
    """Whatever stands in its place; the next grant makes it anew where it can, and tokens go on."""
    hold_and_release(backend.lock(NAME))
    with system.open(0.3) as brief:
        grant = brief.lock(NAME).acquire(owner="me")
        system.folder.rename(system.folder.with_name("old"))
        if there == "a file":
            system.folder.write_text("")
        elif there == "another folder":
            system.folder.mkdir()
        eventually(lambda: grant.lost, "the loss is noticed")
        if there == "a file":
            with pytest.raises(LockUnavailable, match="locks: File exists"):
                backend.lock(NAME).acquire()
        else:
            assert hold_and_release(backend.lock(NAME)) > grant.token


@pytest.mark.parametrize("name", [".token", ".token.new", ".token.guard", quote(NAME, safe="") + ".lock"])
def test_a_link_of_another_user_is_not_followed(system: FileSystem, backend: LockBackend, name: str) -> None:
    """In a folder where all may write nobody gets us to overwrite, or to make, a file elsewhere."""
    system.folder.mkdir()
    precious = system.folder.parent / "precious"
    precious.write_text("1")
    (system.folder / name).symlink_to(precious)
    with pytest.raises(LockUnavailable, match="symbolic links"):
        backend.lock(NAME).acquire()
    assert precious.read_text() == "1"


def test_a_pipe_in_the_place_of_the_token_is_no_wait(system: FileSystem, backend: LockBackend) -> None:
    """One that nobody writes to would stop all locks of the process."""
    system.folder.mkdir()
    os.mkfifo(system.folder / ".token")
    with pytest.raises(LockUnavailable, match="holds no number"):
        backend.lock(NAME).acquire()


def test_what_others_put_into_the_folder_hides_nobody(system: FileSystem, backend: LockBackend) -> None:
    """Nor has it the list wait; and a lock that nobody has ever had has no contenders."""
    assert backend.lock(NAME).contenders() == []
    with backend.lock(NAME) as grant:
        (system.folder / "folder.lock").mkdir()
        os.mkfifo(system.folder / "pipe.lock")
        (system.folder / "long.lock").write_text("1" * 5000)
        (system.folder / "link.lock").symlink_to(system.folder / (quote(NAME, safe="") + ".lock"))
        assert [one.key for one in backend.contenders("")] == [grant.key]


def test_any_name_is_a_file_in_the_folder(system: FileSystem, backend: LockBackend) -> None:
    """Whatever is in it, and each name has its own; one that is too long is refused."""
    names = ["/../../etc/passwd", "..", ".", ".token", "a b", "ä/ü", "a%2Fb", "a/b", "A/b", "x" * 250, "nul\0"]
    for name in names:
        with backend.lock(name) as grant:
            assert [one.key for one in backend.contenders(name)] == [grant.key] == [f"{name}/{grant.token}"]
    assert len(list(system.folder.glob("*.lock"))) == len(names)
    assert {one.name for one in system.folder.parent.iterdir()} == {system.folder.name}
    for name in ("x" * 251, "/" * 100 + "x", "half \ud800"):
        with pytest.raises(ValueError, match="at most 250 bytes|surrogates"):
            backend.lock(name)


def test_flock_stands_beside_it(system: FileSystem, backend: LockBackend) -> None:
    """A shell script with util-linux' `flock` keeps apart from ours."""
    lock = backend.lock("nightly")
    hold_and_release(lock)
    ask = ["flock", "--nonblock", str(system.folder / "nightly.lock"), "true"]
    assert subprocess.run(ask).returncode == 0
    with lock:
        assert subprocess.run(ask).returncode == 1


def test_a_folder_that_can_not_be_used_is_said(tmp_path: Path) -> None:
    """What it lies in must be there; an error names the folder."""
    with FileBackend(tmp_path / "a" / "b") as backend, pytest.raises(LockUnavailable, match="a/b: No such file"):
        backend.lock(NAME).acquire()
    (tmp_path / "file").write_text("")
    with FileBackend(tmp_path / "file") as backend, pytest.raises(LockUnavailable, match="file: File exists"):
        backend.lock(NAME).acquire()


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
29 22 8:4 / /run rw - ext4 /dev/sdd1 rw
30 22 0:25 / /run rw,nosuid - tmpfs tmpfs rw
95 22 0:49 / /srv/with\\040space rw,relatime shared:50 - {kind} server:/export rw,vers=4.2
96 95 8:2 / /srv/with\\040space/disk rw - xfs /dev/sdb1 rw
97 22 8:3 / /srv/\udcff rw - ext4 /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.glusterfs", "ceph", "lustre", "9p"]
)
def test_what_is_on_a_network_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """When it is opened, and not when a lock is lost in silence; a disk that is mounted there is none.

    What is mounted last at a place, as on /run, covers what was there.
    """
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(os.fsencode(MOUNTS.format(kind=kind)))
    monkeypatch.setattr(file, "_MOUNTS", str(mounts))
    with pytest.raises(ConfigurationError, match=f"/srv/with space/locks is on {kind}"):
        connect("file:///srv/with%20space/locks")
    assert [filesystem_of(Path(one)) for one in ("/srv/locks", "/run/locks", "/srv/with space/disk/locks")] == [
        *("ext4", "tmpfs", "xfs")
    ]
    connect("file:///srv/with%20space/disk/locks").close()


def test_without_flock_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "fcntl", None)
    with pytest.raises(ConfigurationError, match="Windows"):
        connect("file:///var/lock/jobs")

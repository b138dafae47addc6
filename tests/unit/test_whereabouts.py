"""A file leads other terminals to the sale of a `seckill up`."""

import os
from pathlib import Path

import pytest

from app.settings import Settings
from lab.demo import state_file
from lab.demo.state_file import StageFile

SETTINGS = Settings(
    _env_file=None, lock="etcd://a:1", store="mysql://u:s3cret@b:2/c", guard="version", lock_prefix="/mine"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("SECKILL_LOCK", "SECKILL_STORE", "SECKILL_GUARD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "seckill"


def ours(pid: int = 1) -> StageFile:
    found = state_file.of(SETTINGS, ["http://127.0.0.1:8080"])
    return StageFile(pid, found.settings, found.instances)


def test_it_says_what_leads_to_the_same_sale(folder: Path) -> None:
    """The file leads to the same sale, with its secrets, for this user only; and it goes when the sale does."""
    said: list[str] = []
    with state_file.told(ours()) as file:
        assert [one.name for one in folder.iterdir()] == ["up-1.json"]
        assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
        found = state_file.find(said.append)
    assert found == ours()
    assert found.settings["store"] == "mysql://u:s3cret@b:2/c"
    assert {found.settings[name] for name in ("lock", "guard", "lock_prefix")} == {"etcd://a:1", "version", "/mine"}
    assert said == ["using the sale of `seckill up` (process 1, http://127.0.0.1:8080)"]
    assert state_file.find(said.append) is None
    assert (list(folder.iterdir()), len(said)) == ([], 1)


def test_a_file_that_nobody_has_locked_was_left_behind(folder: Path) -> None:
    """A file without a lock is removed, once, with a message; a live one beside it is found."""
    said: list[str] = []
    with state_file.told(ours(2)):
        (folder / "up-3.json").write_text((folder / "up-2.json").read_text())
        assert state_file.find(said.append) == ours(2)
        assert said[0] == f"a `seckill up` was killed and has left {folder}/up-3.json, which is removed"
        assert [one.name for one in folder.iterdir()] == ["up-2.json"]


def test_the_latest_of_several_is_meant(folder: Path) -> None:
    """The latest of several files counts, however they are numbered; another version's file is left alone."""
    said: list[str] = []
    with state_file.told(ours(9)), state_file.told(ours(4)) as later, state_file.told(ours(5)) as foreign:
        for file, at in ((folder / "up-9.json", 1), (later, 2), (foreign, 3)):
            file.write_text(file.read_text() if file != foreign else '{"pid": 5}')
            os.utime(file, (at, at))
        assert state_file.find(said.append) == ours(4)
        assert said == ["using the sale of `seckill up` (process 4, http://127.0.0.1:8080, the latest of 2)"]
        assert foreign.exists()


def test_the_user_says_where_the_sale_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment and .env come first; an empty variable sets nothing, and a guard alone names no sale."""
    assert not state_file.leads_elsewhere()
    monkeypatch.setenv("SECKILL_STORE", "")
    monkeypatch.setenv("SECKILL_GUARD", "none")
    assert not state_file.leads_elsewhere()
    assert "GUARD" in state_file.set_by_user()
    (tmp_path / ".env").write_text("SECKILL_LOCK=etcd://c:3\n")
    assert state_file.leads_elsewhere()


def test_who_has_no_home_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, as in a container, finds no sale, and can write no file."""
    monkeypatch.delenv("XDG_STATE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert state_file.find(lambda _: None) is None
    with pytest.raises(OSError, match="home"), state_file.told(ours()):
        pass

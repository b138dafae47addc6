"""A lock from outside needs no patch: the example's is found by its entry point, and keeps the contract."""

import importlib
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import ConfigurationError, Grant, Guarantees, LockBackend, Scope, connect, registry
from fencelock.local import LocalBackend
from tests.contract.lock_contract import SMOKE, LockContract, LockSystem

EXAMPLE = Path(__file__).parents[2] / "examples" / "sqlitelock"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example as pip would have installed it, here and in other processes, and nothing is left in the registry."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    info = site / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (named,) = project["entry-points"][registry.GROUP].items()
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{' = '.join(named)}\n")
    (site / "sqlitelock.py").write_bytes((EXAMPLE / "sqlitelock.py").read_bytes())
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(site), *sys.path[1:]]))
    before = dict(registry.CLASSES)
    registry._register_installed.cache_clear()
    yield site
    registry.CLASSES.clear()
    registry.CLASSES.update(before)
    sys.modules.pop("sqlitelock", None)


class SqliteSystem(LockSystem):
    backend = "sqlitelock:SqliteBackend"

    def __init__(self, file: Path) -> None:
        self._file = file

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"file": str(self._file), "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return connect(f"sqlite://{self._file}", ttl_s=ttl_s, **more)

    def delete_key(self, key: str) -> None:
        self._run("DELETE FROM locks WHERE name || '/' || token = ?", key)

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        return [name for (name,) in self._run("SELECT name FROM locks WHERE until > ?", time.time())]

    def _run(self, sql: str, *row: Any) -> list[Any]:
        db = sqlite3.connect(self._file, isolation_level=None, timeout=10)
        try:
            return db.execute(sql, row).fetchall()
        except sqlite3.OperationalError:  # there is no table yet
            return []
        finally:
            db.close()


class TestSqliteLock(LockContract):
    SMOKE = SMOKE
    guarantees = Guarantees(scope=Scope.MACHINE, fencing=True)

    @pytest.fixture
    def system(self, tmp_path: Path) -> LockSystem:
        return SqliteSystem(tmp_path / "locks.db")

    @pytest.fixture
    def own_system(self) -> Iterator[LockSystem]:
        pytest.skip("there is no server")
        yield

    async def test_a_child_works_anew(self, *_: object) -> None:
        pytest.skip("SQLite can't be used on both sides of a fork")


def test_an_installed_lock_is_known_by_its_entry_point(tmp_path: Path) -> None:
    """Nobody calls or imports anything of it; and who mistypes it is told that it is there."""
    assert distribution("sqlitelock").entry_points
    with pytest.raises(ConfigurationError, match=r"there is no lock 'sqlit'; there are etcd, .*, sqlite$"):
        connect("sqlit:///x")
    with connect(f"sqlite://{tmp_path}/locks.db") as locks, locks.lock("/jobs/nightly") as grant:
        assert (locks.name, grant.token) == ("sqlite", 1)
    module = importlib.import_module("sqlitelock")
    assert locks.guarantees == module.SqliteBackend.guarantees == TestSqliteLock.guarantees
    url = f"sqlite://{tmp_path}/locks.db"
    run = [sys.executable, "-m", "fencelock", "run", "--url", url, "/jobs/nightly", "--", "true"]
    assert subprocess.run(run, capture_output=True).returncode == 0


def test_a_lock_is_registered_by_class_or_by_name() -> None:
    """Twice is once; the schemes of others are theirs, with their ways to say TLS."""

    class Other(LocalBackend):
        name = "other"

    for _ in range(2):
        fencelock.register("other+kind", Other)
    with connect("other+kind://") as locks:
        assert type(locks) is Other
    fencelock.register("lacking", "sqlitelock_of_nobody:Backend")
    with pytest.raises(ConfigurationError, match="the lock lacking needs sqlitelock_of_nobody, which is not installed"):
        connect("lacking://")
    for taken in ("etcd", "etcds", "redis+fair", "unix", "other+kind"):
        with pytest.raises(ConfigurationError, match="there is another lock"):
            fencelock.register(taken, LocalBackend)
    for wrong in ("", "Other", "a b", "other-kind", "1st"):
        with pytest.raises(ConfigurationError, match="not the scheme"):
            fencelock.register(wrong, Other)


def test_the_example_is_as_small_as_its_page_says() -> None:
    """And it imports what is public alone."""
    text = (EXAMPLE / "sqlitelock.py").read_text()
    code = [line for line in text.splitlines() if line.strip()]
    assert len(code) <= 80
    imported = {line.split()[1] for line in code if line.startswith("from fencelock")}
    assert imported == {"fencelock", "fencelock.kit"}

"""Both distributions build from their own sources; the sdist of the service is all that is in git."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a user of the package may want; what only a checkout needs is in dependency groups, which no wheel has.
EXTRAS = {
    "seckill": {"alipay", "buyers", "mysql", "postgres", "stripe", "traces", "zookeeper"},
    "fencelock": {"etcd", "fence", "mysql", "postgres", "redis", "zookeeper"},
}
NAMES = tuple(EXTRAS)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build each sdist, and the wheel from that sdist alone, as an installer without a wheel does."""
    folder = tmp_path_factory.mktemp("built")
    for source in (ROOT, ROOT / "fencelock"):
        build = [sys.executable, "-m", "uv", "build", "--quiet", "--no-config", "--out-dir", str(folder), str(source)]
        done = subprocess.run(build, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def unpacked(built: Path) -> dict[str, Path]:
    """Unpack the sdists."""
    found = {}
    for name in NAMES:
        (archive,) = built.glob(f"{name}-*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(built, filter="data")
        found[name] = built / archive.name.removesuffix(".tar.gz")
    return found


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_the_sdists_hold_what_is_in_git(unpacked: dict[str, Path]) -> None:
    """That of the service has each file of the repository, tests and .github, too; that of the locks has its folder."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    tracked = {name for name in names if (ROOT / name).is_file()}
    locks = {name.removeprefix("fencelock/") for name in tracked if name.startswith("fencelock/")}
    assert files_in(unpacked["seckill"]) == {*tracked, "PKG-INFO"}
    assert files_in(unpacked["fencelock"]) - {".gitignore"} == {*locks, "PKG-INFO"}


@pytest.mark.slow
def test_tests_run_from_the_unpacked_sdist(unpacked: dict[str, Path]) -> None:
    """Tests that read files from everywhere in the repository find them in the sdist."""
    some = ["tests/unit/test_compose.py", "tests/unit/test_decision.py", "tests/deploy/test_repository.py"]
    pytest_of_it = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *some]
    done = subprocess.run(pytest_of_it, cwd=unpacked["seckill"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_metadata_is_whole(built: Path, name: str) -> None:
    """The wheel has a licence, a page, extras, the systems it is for, and the Pythons from the oldest that it takes."""
    (wheel,) = built.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (entry for entry in files.namelist() if entry.endswith(".dist-info/METADATA"))
        found = HeaderParser().parsestr(files.read(metadata).decode())
    assert (found["License-Expression"], found.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert set(found.get_all("Provides-Extra", [])) == EXTRAS[name]
    assert found["Description-Content-Type"] == "text/markdown"
    assert len(found.get_payload()) > 1000
    classifiers = found.get_all("Classifier", [])
    pythons = [one.rpartition(" ")[2] for one in classifiers if re.search(r"Python :: 3\.\d+$", one)]
    assert pythons == [f"3.{minor}" for minor in range(11, 11 + len(pythons))]
    assert found["Requires-Python"] == f">={pythons[0]}"
    assert {one.split(" :: ")[0] for one in classifiers} >= {
        "Operating System",
        "Topic",
        "Development Status",
        "Typing",
    }

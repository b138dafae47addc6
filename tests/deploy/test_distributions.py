"""Both distributions build as a release builds them; the sdist of the service is all that is in git."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a user of the package may want; what only a checkout needs is in dependency groups, which no wheel has.
EXTRAS = {
    "seckill": {"alipay", "buyers", "mysql", "postgres", "stripe", "traces", "zookeeper"},
    "fencelock": {
        "etcd",
        "fence",
        "mysql",
        "opentelemetry",
        "postgres",
        "prometheus",
        "redis",
        "structlog",
        "zookeeper",
    },
}
NAMES = tuple(EXTRAS)


def distributions(into: Path, repository: str) -> "subprocess.CompletedProcess[str]":
    """Build both as a release of that repository does."""
    where = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": repository, "GITHUB_REF_NAME": "v1.2.3"}
    build: list[str | Path] = [sys.executable, ROOT / ".ci" / "distributions", into]
    return subprocess.run(build, env=os.environ | where, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build each sdist, and the wheel from that sdist alone, as an installer without a wheel does."""
    folder = tmp_path_factory.mktemp("built")
    done = distributions(folder, "Lock-Smiths/Flash.Sale")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def unpacked(built: Path) -> dict[str, Path]:
    """Unpack the sdists."""
    found = {}
    for name in NAMES:
        (archive,) = built.glob(f"{name}/*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(built, filter="data")
        found[name] = built / archive.name.removesuffix(".tar.gz")
    return found


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_wheel_of_the_locks_holds_their_package(built: Path) -> None:
    """Each module, script and table of it, and nothing beside it: no recipe, and no test."""
    (wheel,) = built.glob("fencelock/*.whl")
    with zipfile.ZipFile(wheel) as files:
        found = {name for name in files.namelist() if ".dist-info/" not in name}
    package = ROOT / "fencelock" / "src"
    assert found == {name for name in files_in(package) if "__pycache__" not in name}
    assert {Path(name).suffix for name in found} == {".py", ".lua", ".sql", ".typed"}


def metadata_of(built: Path, name: str) -> "Message[str, str]":
    (wheel,) = built.glob(f"{name}/*.whl")
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (entry for entry in files.namelist() if entry.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(files.read(metadata).decode())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_metadata_is_whole(built: Path, name: str) -> None:
    """The wheel has a licence, extras, the systems it is for, and the Pythons from the oldest that it takes."""
    found = metadata_of(built, name)
    assert (found["License-Expression"], found.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert set(found.get_all("Provides-Extra", [])) == EXTRAS[name]
    classifiers = found.get_all("Classifier", [])
    pythons = [one.rpartition(" ")[2] for one in classifiers if re.search(r"Python :: 3\.\d+$", one)]
    assert pythons == [f"3.{minor}" for minor in range(11, 11 + len(pythons))]
    assert found["Requires-Python"] == f">={pythons[0]}"
    assert {one.split(" :: ")[0] for one in classifiers} >= {"Operating System", "Typing"}


@pytest.mark.slow
def test_the_index_gets_the_locks_with_their_addresses(built: Path) -> None:
    """Its page's links lead to files of the tag, and its addresses to the repository; the service is refused there."""
    found = metadata_of(built, "fencelock")
    assert found["Description-Content-Type"] == "text/markdown"
    assert {one.split(" :: ")[0] for one in found.get_all("Classifier", [])} >= {"Topic", "Development Status"}
    urls = dict(url.split(", ") for url in found.get_all("Project-URL", []))
    home = "https://github.com/Lock-Smiths/Flash.Sale"
    assert urls == {
        "Documentation": "https://lock-smiths.github.io/Flash.Sale/fencelock/README.html",
        "Source": f"{home}/tree/v1.2.3/fencelock",
        "Changelog": f"{home}/blob/v1.2.3/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    page = str(found.get_payload())
    assert "'fencelock[redis]'" in page  # and no path
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert links
    for link in links:
        path, _, _ = link.removeprefix(f"{home}/blob/v1.2.3/").partition("#")
        assert link.startswith(("https://", "#")), link
        assert "fencelock.md" not in link  # whose text only the site has
        assert not link.startswith(home) or (ROOT / path).exists(), link
    assert "Private :: Do Not Upload" in metadata_of(built, "seckill").get_all("Classifier", [])


def test_without_an_address_nothing_is_built(tmp_path: Path) -> None:
    """A build that does not know its repository ends with a sentence, and leaves no file."""
    done = distributions(tmp_path / "dist", "")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("GITHUB_REPOSITORY is not owner/name")
    assert not (tmp_path / "dist").exists()


def test_what_builds_a_release_has_hashes() -> None:
    """build.lock has each tool of the group, and nothing without a version and a hash."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["build"]
    entries = re.split(r"\n(?=\w)", (ROOT / "build.lock").read_text())
    assert {re.split(r"[^\w-]", line)[0] for line in group} <= {entry.partition("==")[0] for entry in entries}
    assert all(re.match(r"[\w-]+==\S.*\\\n    --hash=sha256:[0-9a-f]{64}", entry) for entry in entries)

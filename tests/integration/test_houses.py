"""The wheel and the container have the service, and nothing that only tests it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSES = {"fencelock", "lab", "loadtest", "tests"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", str(ROOT), "-w", str(folder)], check=True)
    (found,) = folder.glob("seckill-*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_service_and_nothing_that_tries_it(wheel: Path) -> None:
    """The wheel has no torture, planted bugs, embedded servers or demo, and all that the pages and the store need."""
    files = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    assert {file.parts[0] for file in files if "dist-info" not in file.parts[0]} == {"app"}
    names = {part for file in files for part in file.with_suffix("").parts}
    assert not names & {"torture", "bugs", "nemesis", "embedded", "servers", "demo", "model", "locustfile"}
    assert {"put", "control", "cli"} <= names


def test_the_container_is_built_of_the_service_and_the_locks() -> None:
    """No other folder is copied into the container."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert copied & {path.name for path in ROOT.iterdir() if path.is_dir()} == {"app", "fencelock"}


@pytest.mark.slow
def test_without_the_lab_its_commands_say_where_they_are(wheel: Path, tmp_path: Path) -> None:
    """`seckill --help` lists an operator's commands; `seckill demo` says what to install."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys; sys.path[:0] = [sys.argv.pop(1)]; import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name.partition('.')[0] == 'lab' else found(name, *rest)\n"
        "from app.cli import main; sys.argv[0] = 'seckill'; main()"
    )

    def seckill(*arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-c", program, str(tmp_path), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    told = seckill("--help").stdout
    assert all(name in told for name in ("serve", "stock", "locks", "check"))
    assert not any(f" {name} " in told for name in ("demo", "up", "torture", "model"))
    for name in ("demo", "up", "torture", "model"):
        done = seckill(name, "--buyers", "5")
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"seckill: `seckill {name}` is in the lab, which is not installed here; in a checkout: make\n"
        )


def test_errors_of_the_locks_are_not_those_of_the_shop() -> None:
    """`except FencelockError` catches no error of the shop."""
    from app import errors
    from fencelock import FencelockError

    assert not issubclass(errors.QueueFull, FencelockError)
    assert not issubclass(FencelockError, errors.SeckillError)
    assert not issubclass(errors.ConfigurationError, FencelockError)

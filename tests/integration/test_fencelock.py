"""The package `fencelock` works when it is built and installed alone, as users of only the locks have it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencelock import connect
from lab.servers import EtcdMember, Postgres, Valkey
from tests.harness.servers import optional
from tests.harness.waiting import WITHIN_S, eventually

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "fencelock"
UV = [sys.executable, "-m", "uv"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
# What the README's programs are printed with.
ADDRESSES = {
    "etcd": "127.0.0.1:2379",
    "file": "/var/lock/jobs",
    "postgres": "user:password@127.0.0.1:5432/shop",
    "redis": "127.0.0.1:6379",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with only the wheel, etcd's client, and somebody else's package `app`."""
    folder = tmp_path_factory.mktemp("fencelock")
    subprocess.run([*UV, "build", "--wheel", "--no-config", "--out-dir", str(folder), str(LOCKS)], check=True)
    (wheel,) = folder.glob("fencelock-*.whl")
    subprocess.run([*UV, "venv", "--python", sys.executable, str(folder / "venv")], check=True)
    found = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([*UV, "pip", "install", "--python", str(found), f"{wheel}[etcd]"], check=True)
    packages = subprocess.check_output([str(found), "-c", "import site; print(site.getsitepackages()[0])"], text=True)
    somebodys = Path(packages.strip()) / "app"
    somebodys.mkdir()
    (somebodys / "__init__.py").write_text("raise ImportError('this is somebody else\\'s')\n")
    return found


@pytest.fixture
def fencelock(python: Path, etcd: EtcdMember) -> Run:
    def run(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        command, *rest = arguments
        argv = [str(python), "-m", "fencelock", command, "--url", url(etcd), *rest]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/", **options)

    return run


def url(etcd: EtcdMember) -> str:
    return f"etcd://{etcd.endpoint.partition('://')[2]}"


def programs(*sections: str) -> list[str]:
    """The README's programs in those sections, in their order; without any section, all programs."""
    parts = (LOCKS / "README.md").read_text().split("\n## ")[1:]
    found = {part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in parts}
    return [program for section in sections or found for program in found[section]]


def said_by(program: str, interpreter: "Path | str", script: Path, **addresses: str) -> str:
    """What a program prints, with the test's addresses in the place of the printed ones."""
    for system, address in addresses.items():
        program = program.replace(ADDRESSES[system], address)
    script.write_text(program)
    done = subprocess.run([str(interpreter), str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_snippets_run_as_printed(python: Path, etcd: EtcdMember, tmp_path: Path) -> None:
    """The README's snippets that need only a lock do what they say; only the address is the test's."""
    at = {"etcd": url(etcd).partition("://")[2], "file": str(tmp_path / "jobs")}
    said = [said_by(one, python, tmp_path / "program.py", **at) for one in programs("A file", "Five minutes")]
    assert [len(one.splitlines()) for one in said] == [1, 4, 2]


def test_the_program_with_metrics_runs_as_printed(tmp_path: Path) -> None:
    """It counts the one grant that it made."""
    (program,) = programs("Metrics, traces, logs")
    said = said_by(program, sys.executable, tmp_path / "program.py", file=str(tmp_path / "jobs"))
    assert said == "1.0 granted\n"


def test_the_first_programs_run_as_printed(etcd: EtcdMember, valkey: Valkey, tmp_path: Path) -> None:
    """Redis and etcd: lock, fence, done; only the ports are the test's."""
    at = {"etcd": url(etcd).partition("://")[2], "redis": f"127.0.0.1:{valkey.port}"}
    said = [said_by(one, sys.executable, tmp_path / "program.py", **at) for one in programs("Redis", "etcd")]
    assert said == ["balance 5\n", "account 5\n"]


@pytest.mark.slow
def test_the_program_for_postgresql_runs_as_printed(tmp_path: Path) -> None:
    """Lock, fence, done, in a table that was there without a fence; only the address is the test's."""
    (program,) = programs("PostgreSQL")
    with optional(Postgres) as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL)")
        connection.execute("ALTER TABLE accounts ADD fence BIGINT NOT NULL DEFAULT 0, ADD fence_source BYTEA")
        connection.execute("INSERT INTO accounts VALUES (1, 0)")
        address = server.url.partition("://")[2]
        said = [said_by(program, sys.executable, tmp_path / "program.py", postgres=address) for _ in range(2)]
    assert said == ["account 5\n", "account 10\n"]


@pytest.mark.slow
def test_the_snippets_are_typed(python: Path, tmp_path: Path) -> None:
    """`mypy --strict` finds the installed types, no error in the README, and each mistake that was planted."""
    # The programs about metrics import this. No other test minds its presence.
    also = ["prometheus-client", "opentelemetry-api"]
    subprocess.run([*UV, "pip", "install", "--python", str(python), *also], check=True)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]

    def check(*texts: str) -> "subprocess.CompletedProcess[str]":
        files = [tmp_path / f"snippet{number}.py" for number, _ in enumerate(texts)]
        for file, program in zip(files, texts, strict=True):
            file.write_text(program)
        argv = [*mypy, "--cache-dir", str(tmp_path / "cache"), *map(str, files)]
        return subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)

    first = programs("Redis", "PostgreSQL", "etcd")  # whose data are in libraries that the wheel does not bring
    plain = [one for one in programs() if one not in first and "import pytest" not in one]
    right = check(*plain, (Path(__file__).parent / "typed.py").read_text())
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = check(*(program.replace("wait_s=", "wait=") for program in programs("Five minutes")))
    assert wrong.stdout.count("[call-arg]") == 3, wrong.stdout + wrong.stderr


@pytest.mark.slow
@pytest.mark.parametrize("comments", [True, False])
def test_pyright_reads_the_same(tmp_path: Path, comments: bool) -> None:
    """It finds each planted mistake where mypy finds one, and no other; so an editor shows what CI will say."""
    program = (Path(__file__).parent / "typed.py").read_text()
    (tmp_path / "typed.py").write_text(program if comments else re.sub(r"# type: ignore\S+", "#", program))
    rules = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error", "pythonVersion": "3.11"}
    settings = rules | {"extraPaths": [str(LOCKS / "src")], "enableTypeIgnoreComments": True}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(pyright, capture_output=True, text=True, cwd=tmp_path)
    found = {one["range"]["start"]["line"] for one in json.loads(done.stdout)["generalDiagnostics"]}
    planted = {number for number, line in enumerate(program.splitlines()) if "# type: ignore[" in line}
    assert found == (set() if comments else planted)


def test_it_brings_nothing_but_the_client(python: Path) -> None:
    """Neither FastAPI nor typer comes along: the wheel needs only the client of the chosen lock system."""
    listed = subprocess.check_output([*UV, "pip", "list", "--python", str(python), "--format=json"])
    names = {one["name"].lower() for one in json.loads(listed)}
    assert "fencelock" in names
    assert not names & {"fastapi", "starlette", "typer", "rich", "pydantic", "redis", "kazoo", "pymysql", "seckill"}


def test_what_is_about_it_is_in_it(python: Path) -> None:
    """The wheel has the licence, and the README as its page; a release puts addresses into its links."""
    program = (
        "import json; from importlib.metadata import distribution as of; it = of('fencelock')\n"
        "licences = [one.read_text() for one in it.files if one.name == 'LICENSE']\n"
        "print(json.dumps([licences, it.metadata.get_payload(), [str(one) for one in it.files]]))"
    )
    said = subprocess.check_output([str(python), "-c", program], text=True, cwd="/")
    licences, readme, files = json.loads(said)
    assert licences == [(ROOT / "LICENSE").read_text()]
    assert readme.strip() == (LOCKS / "README.md").read_text().strip()
    assert {one.split("/")[0].partition("-")[0] for one in files if "bin" not in one} == {"fencelock"}


def test_the_programs_about_the_fence_import_what_there_is(python: Path) -> None:
    """The programs of docs/fence.md import only names that the package has."""
    page = (ROOT / "docs" / "fence.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    imported = [re.findall(r"^from (fencelock[\w.]*) import (.*)$", program, re.MULTILINE) for program in programs]
    assert (
        len(programs) == 2 + sum("fencelock.fence" in dict(one) for one in imported) == 6
    )  # a client over HTTP, and PostgreSQL's two statements, need no fence
    names = {f"{module}:{name}" for one in imported for module, them in one for name in them.split(", ")}
    # The modules behind these names are not imported: this environment lacks their libraries.
    program = (
        "from importlib import import_module; import sys\n"
        "for one in sys.argv[1:]: assert one.split(':')[1] in import_module(one.split(':')[0]).__all__, one"
    )
    done = subprocess.run([str(python), "-c", program, *names], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr


def test_a_lock_without_its_client_says_what_to_install(python: Path) -> None:
    """The error names the extra, and a package that exists under that name."""
    for scheme, package in {"redis": "redis", "postgres": "psycopg[binary]", "mysql+row": "sqlalchemy"}.items():
        program = f"from fencelock import connect; connect('{scheme}://a:b@127.0.0.1/c')"
        done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, cwd="/")
        assert "ConfigurationError" in done.stderr, done.stderr
        assert f"(fencelock's extra [{scheme.partition('+')[0]}])" in done.stderr, done.stderr
        assert f"pip install '{package}" in done.stderr or f"pip install {package}" in done.stderr, done.stderr


def test_nothing_in_it_is_called_after_the_service() -> None:
    """Keys, threads and hints belong to the package."""
    texts = {file: file.read_text() for file in LOCKS.rglob("*") if file.suffix in (".py", ".lua", ".toml")}
    assert not [str(file) for file, text in texts.items() if "seckill" in text.lower()]


# -- the command -----------------------------------------------------------------------------------------------------


def test_run_gives_the_commands_status_and_its_token(fencelock: Run) -> None:
    """The command gets its token, and its exit status is that of `fencelock`."""
    done = fencelock("run", "/cli/a", "--", "sh", "-c", "echo $FENCELOCK_NAME $FENCELOCK_TOKEN; exit 3")
    assert done.returncode == 3, done.stderr
    name, token = done.stdout.split()
    assert name == "/cli/a"
    assert int(token) > 0
    assert fencelock("run", "/cli/a", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    assert fencelock("run", "/cli/a", "--", "no-such-command").returncode == 127


def test_a_signal_that_comes_before_the_command_reaches_it(python: Path, tmp_path: Path) -> None:
    """A supervisor that ends `run` just as it begins ends the command, too."""
    early = f"""
import os, signal, sys
from fencelock import __main__, guard
start = guard.Guard.__init__
def signalled(*about):
    os.kill(os.getpid(), signal.SIGTERM)
    start(*about)
guard.Guard.__init__ = signalled
sys.argv = ["fencelock", "run", "--url", "file://{tmp_path}", "/cli/early", "--", "sleep", "1000"]
__main__.main()
"""
    done = subprocess.run([str(python), "-c", early], capture_output=True, text=True, timeout=WITHIN_S, cwd="/")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr


def test_run_waits_no_longer_than_told(fencelock: Run, etcd: EtcdMember) -> None:
    """Status 75 means that another holder has the lock, and that the command has not run."""
    with connect(url(etcd)) as locks, locks.lock("/cli/b"):
        done = fencelock("run", "--wait", "0.2", "/cli/b", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (75, "")
    assert "not free" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setsid") is None, reason="no process groups")
def test_a_command_whose_release_is_forced_is_killed(python: Path, etcd: EtcdMember, fencelock: Run) -> None:
    """A command whose release is forced is killed, with its children."""
    argv = [str(python), "-m", "fencelock", "run", "--url", url(etcd), "--ttl", "2", "/cli/c", "--"]
    with (
        subprocess.Popen([*argv, "sh", "-c", "sleep 1000 & sleep 1000"], cwd="/") as running,
        connect(url(etcd)) as locks,
    ):
        eventually(lambda: locks.contenders("/cli/c"), "it has the lock")
        assert "holds" in fencelock("show", "/cli/c").stdout
        forced = fencelock("force-release", "/cli/c")
        assert forced.returncode == 0, forced.stderr
        assert running.wait(WITHIN_S) == 76
    assert fencelock("force-release", "/cli/c").returncode == 1


def test_mistakes_are_said_in_a_line(fencelock: Run, python: Path) -> None:
    """A wrong URL, an absent server or a missing command is reported in a line, without a traceback."""
    assert fencelock("run", "/cli/e").returncode == 2
    for wrong, status in {"nonsense://x": 2, "etcd://127.0.0.1:1": 69}.items():
        done = subprocess.run(
            [str(python), "-m", "fencelock", "show", "--url", wrong],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        assert done.stderr.startswith("fencelock: ")
        assert len(done.stderr.splitlines()) == 1

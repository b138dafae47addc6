"""The recipes of fencelock, each run as it stands, several times at once, against a real lock system."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from lab.servers import Valkey
from lab.servers.process import Process, free_port
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "fencelock" / "recipes"
EVERY_S = 1


class Program(Process):
    """A program in a recipe's folder, which prints what it does."""

    def __init__(self, argv: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.cwd = folder
        super().__init__("recipe", lambda _: argv, env=os.environ | env)

    def said(self, what: str = "") -> list[str]:
        """Return the lines so far in which that is."""
        text = (self.directory / "output.log").read_text(errors="replace")
        return [line for line in text.splitlines() if what in line]


@pytest.fixture
def locks() -> Iterator[dict[str, str]]:
    """Return the variables that name a lock system of their own."""
    with Valkey() as valkey:
        found = [str(RECIPES), *filter(None, [os.environ.get("PYTHONPATH")])]
        yield {"LOCKS": valkey.url, "EVERY_S": str(EVERY_S), "PYTHONPATH": os.pathsep.join(found)}


def python(*words: str) -> list[str]:
    return [sys.executable, *words]


def once_a_slot(began_at: float, reports: list[str]) -> bool:
    """Return whether there were no more reports than slots since then."""
    return len(reports) <= time.time() // EVERY_S - began_at // EVERY_S + 1


def test_fastapi(locks: dict[str, str]) -> None:
    """One worker of three works; when it is killed, another one goes on, under a greater token."""
    argv = python("-m", "uvicorn", "fastapi_lifespan:app", "--workers", "3", "--port", str(free_port()))
    with Program(argv, RECIPES, locks | {"EVERY_S": "0.05"}) as program:

        def working() -> list[tuple[int, int]]:
            lines = (re.search(r"worker (\d+) works under token (\d+)", line) for line in program.said("works"))
            return [(int(found[1]), int(found[2])) for found in lines if found]

        eventually(lambda: len(working()) > 10)
        (first,) = set(working())
        os.kill(first[0], signal.SIGKILL)
        eventually(lambda: working()[-1][0] != first[0])
        after = working()[-1]
        assert after[1] > first[1]
        assert set(working()) == {first, after}


def test_apscheduler_3(locks: dict[str, str]) -> None:
    """Three schedulers start each run once."""
    began_at = time.time()
    with ExitStack() as stack:
        argv = python("apscheduler_3.py")
        programs = [stack.enter_context(Program(argv, RECIPES, locks)) for _ in range(3)]

        def reports() -> list[str]:
            return [line for program in programs for line in program.said("reports")]

        eventually(lambda: len(reports()) > 3)
        assert once_a_slot(began_at, reports())


def test_apscheduler_4(locks: dict[str, str], tmp_path: Path) -> None:
    """The same with version 4, which has an environment of its own, as it has the name of version 3."""
    uv = python("-m", "uv", "--quiet", "--no-config")
    subprocess.run([*uv, "venv", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    own = tmp_path / "venv" / "bin" / "python"
    wanted = ["apscheduler==4.0.0a6", f"{ROOT / 'fencelock'}[redis]"]
    subprocess.run([*uv, "pip", "install", "--python", str(own), *wanted], check=True)
    began_at = time.time()
    with ExitStack() as stack:
        argv = [str(own), "apscheduler_4.py"]
        programs = [stack.enter_context(Program(argv, RECIPES, locks)) for _ in range(3)]

        def reports() -> list[str]:
            return [line for program in programs for line in program.said("reports")]

        eventually(lambda: len(reports()) > 3)
        assert once_a_slot(began_at, reports())


def test_celery(locks: dict[str, str], tmp_path: Path) -> None:
    """Of two beats one runs, and the other one goes on when it is killed; of two tasks of a slot one does the work."""
    celery = python("-m", "celery", "-A", "celery_tasks")
    led = python("-m", "fencelock", "run", "--leader", "--ttl", "2", "--url", locks["LOCKS"], "/celery/beat", "--")
    began_at = time.time()
    with ExitStack() as stack:
        worker = stack.enter_context(
            Program([*celery, "worker", "--pool", "solo", "--loglevel", "info"], RECIPES, locks)
        )
        more = Program(
            [*celery, "beat", "-s", str(tmp_path / "alone")], RECIPES, locks
        )  # not led: sends each task again
        stack.enter_context(more)
        beats = [
            stack.enter_context(
                Program([*led, *celery, "beat", "-l", "info", "-s", str(tmp_path / name)], RECIPES, locks)
            )
            for name in ("one", "two")
        ]

        def running() -> list[Program]:
            return [beat for beat in beats if beat.said("beat: Starting")]

        eventually(lambda: len(worker.said("received")) > 4 and running(), "tasks come, and one beat is led")
        assert once_a_slot(began_at, worker.said("reports"))
        assert worker.said("reports")
        (first,) = running()
        first.kill()
        (other,) = (beat for beat in beats if beat is not first)
        eventually(lambda: other.said("beat: Starting"))


def test_django(locks: dict[str, str], tmp_path: Path) -> None:
    """Three containers migrate at once, and each ends well."""
    commands = tmp_path / "yourapp" / "management" / "commands"
    commands.mkdir(parents=True)
    for folder in (commands, commands.parent, commands.parents[1], tmp_path / "yourapp" / "migrations"):
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    shutil.copy(RECIPES / "django_migrate.py", commands / "migrate.py")
    (tmp_path / "settings.py").write_text(
        "INSTALLED_APPS = ['django.contrib.contenttypes', 'django.contrib.auth', 'yourapp']\n"
        f"DATABASES = {{'default': {{'ENGINE': 'django.db.backends.sqlite3', 'NAME': '{tmp_path / 'db'}'}}}}\n"
        "USE_TZ, SECRET_KEY = True, 'of a test'\n"
    )
    (tmp_path / "yourapp" / "migrations" / "0001_initial.py").write_text(
        "import time\n"
        "from django.db import migrations\n"
        "class Migration(migrations.Migration):\n"
        "    operations = [\n"
        "        migrations.RunPython(lambda *_: time.sleep(0.5)),\n"
        "        migrations.RunSQL('CREATE TABLE yours (id INT)'),\n"
        "    ]\n"
    )
    done = at_once(3, python("-m", "django", "migrate", "--settings", "settings"), tmp_path, locks)
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
    assert sum("Applying yourapp.0001_initial" in one.stdout for one in done) == 1
    assert sum("No migrations to apply" in one.stdout for one in done) == 2


def test_alembic(locks: dict[str, str], tmp_path: Path) -> None:
    """Three containers upgrade at once, and each ends well."""
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    shutil.copy(RECIPES / "alembic_env.py", tmp_path / "migrations" / "env.py")
    (tmp_path / "alembic.ini").write_text(
        f"[alembic]\nscript_location = {tmp_path / 'migrations'}\nsqlalchemy.url = sqlite:///{tmp_path / 'db'}\n"
    )
    (versions / "first.py").write_text(
        "import time\n"
        "from alembic import op\n"
        "revision, down_revision = 'first', None\n"
        "def upgrade():\n"
        "    print('upgraded')\n"
        "    time.sleep(0.5)\n"
        "    op.execute('CREATE TABLE yours (id INT)')\n"
    )
    done = at_once(3, python("-m", "alembic", "upgrade", "head"), tmp_path, locks)
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
    assert sum(one.stdout.count("upgraded") for one in done) == 1


def test_xdist(locks: dict[str, str], tmp_path: Path) -> None:
    """Three workers run the tests, and one of them has made the database; so it is in the next run."""
    shutil.copy(RECIPES / "xdist_conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('number', range(9))\ndef test_it(number): pass\n"
    )
    made = tmp_path / "made"
    for runs in (1, 2):
        (done,) = at_once(
            1, python("-m", "pytest", "-n", "3", "-p", "no:cacheprovider"), tmp_path, locks | {"MADE": str(made)}
        )
        assert "9 passed" in done.stdout, done.stdout
        assert made.read_text().splitlines() == ["made"] * runs


def test_the_cron_job(locks: dict[str, str], tmp_path: Path) -> None:
    """The manifest is a valid one, and its command starts once a slot."""
    manifest = yaml.safe_load((RECIPES / "cronjob.yaml").read_text())
    kubernetes_validate.validate(manifest, "1.34", strict=True)
    (container,) = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    words = ["-m", *container["command"][:-1], sys.executable, "-c", "print('hourly')"]
    words[words.index("--url") + 1] = locks["LOCKS"]
    words[words.index("--every") + 1] = "86400"
    done = at_once(4, python(*words), tmp_path, locks)
    assert [one.returncode for one in done] == [0, 0, 0, 0], [one.stderr for one in done]
    assert sum(one.stdout.count("hourly") for one in done) == 1


def at_once(
    count: int, argv: Sequence[str], folder: Path, env: dict[str, str]
) -> list["subprocess.CompletedProcess[str]"]:
    """Run a command several times at once, each to its end."""

    def run(_: int) -> "subprocess.CompletedProcess[str]":
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        paths = os.pathsep.join([str(folder), env["PYTHONPATH"]])
        return subprocess.run(
            argv, cwd=folder, env=inherited | env | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
        )

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))

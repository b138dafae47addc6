"""The tutorial's commands, run in their order, print what the tutorial shows."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.servers.process import free_port
from tests.harness.waiting import eventually

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "fencelock"
PAGE = ROOT / "docs" / "tutorial.md"
_WITHIN_S = 150.0

BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A line to type, its terminal, and its output."""

    terminal: str
    typed: str
    shown: list[str]


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> list[Command]:
    found: list[Command] = []
    for line in block.splitlines():
        if prompt := re.match(r"([12]?)\$ (.*)", line):
            found.append(Command(prompt[1] or "2", prompt[2], []))
        else:
            found[-1].shown.append(line)
    return found


def plain(text: str) -> str:
    """Remove a table's frame, an order's random part, and figures that differ from run to run."""
    text = re.sub(r"[\u2500-\u257f]", " ", text)
    text = re.sub(r"\d{3,}", "0", text)
    return " ".join(text.split())


def pattern(line: str) -> str:
    """Return a pattern for a line of output: `…` matches anything."""
    return ".*?".join(re.escape(part.strip()) for part in plain(line).split("…")).replace(r"\ ", " ?")


class Terminal:
    """A shell that gets one line after another."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._output = folder / "terminal"
        self._count = 0
        with self._output.open("wb") as file:
            self._shell = subprocess.Popen(
                ["bash"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def type(self, line: str) -> None:
        """Type a line and wait until it is done; background jobs go on."""
        self._count += 1
        mark = f"-- done {self._count} --"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\necho '{mark}'\n".encode())
        self._shell.stdin.flush()
        eventually(lambda: mark in self.said, f"{line}: {self.said}", _WITHIN_S)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()


class Standing:
    """The command in the first terminal, until Ctrl-C."""

    def __init__(self, line: str, folder: Path, env: dict[str, str]) -> None:
        self._output = folder / "first-terminal"
        with self._output.open("wb") as file:
            self._command = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=folder, env=env, stdout=file, stderr=file, start_new_session=True
            )
        eventually(lambda: "Ctrl-C ends it" in self.said or self._command.poll() is not None, "it stands", 60)

    @property
    def said(self) -> str:
        return self._output.read_text()

    def end(self) -> None:
        self._command.send_signal(signal.SIGTERM)
        self._command.wait(60)


@contextmanager
def terminals(folder: Path) -> Iterator[tuple[Terminal, list[Standing], dict[str, str]]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SECKILL_", "FENCELOCK_"))}
    taken_out = folder / "site"
    env |= {
        "COLUMNS": "160",
        "XDG_STATE_HOME": str(folder / "state"),
        "PATH": os.pathsep.join([str(taken_out / "bin"), str(Path(sys.executable).parent), env["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(taken_out), str(ROOT)]),
    }
    terminal, standing = Terminal(folder, env), list[Standing]()
    try:
        yield terminal, standing, env
    finally:
        terminal.close()
        for one in standing:
            one.end()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="no bash, or no curl")
def test_its_commands_show_what_it_says(tmp_path: Path) -> None:
    """Each command prints its output, in order, with the test's own ports, token, URL and package folder."""
    ports = {"8080": str(free_port()), "8090": str(free_port())}
    with terminals(tmp_path) as (terminal, standing, env):
        for kind, block in blocks(PAGE):
            if kind == "python":
                (tmp_path / "account.py").write_text(block)
                continue
            began = len(terminal.said)
            for command in commands(block):
                line = command.typed
                for port, other in ports.items():
                    line = line.replace(port, other)
                if command.terminal == "1":
                    for one in standing:
                        one.end()
                    line = line.replace("seckill up", f"seckill up --ports {','.join(ports.values())}")
                    standing[:] = [Standing(line, tmp_path, env)]
                else:
                    told = standing[0].said if standing else ""
                    terminal.type(typed(line, told, terminal.said[began:]))
                said = standing[0].said if command.terminal == "1" else terminal.said[began:]
                for shown in command.shown:
                    if shown != "...":
                        expected = re.compile(pattern(shown))
                        found = any(expected.search(plain(line)) for line in said.splitlines())
                        assert found, f"{command.typed}\n{shown}\n\nis not in\n\n{said}"


def typed(line: str, told: str, said: str) -> str:
    """Return the line as a user here would type it. `told`: by the first terminal; `said`: in the second one."""
    if line.startswith(". .venv"):
        return "true"  # the test's own environment is on PATH
    if line.startswith("pip install"):
        folder = "site"
        return f"python -m pip install --quiet --no-deps --target {folder} {LOCKS}"
    if token := re.search(r"The admin token +(\S+)", told):
        line = line.replace("the-admin-token", token[1])
    if url := re.search(r"The lock +(\S+)", told):
        line = line.replace("etcd://127.0.0.1:2379", url[1])
    if till := re.search(r"The payments +(\S+)/callbacks", told):
        line = line.replace("http://127.0.0.1:8070", till[1])
    if pid := re.search(r" pid (\d+)", said):
        line = line.replace("12345", pid[1])
    return line

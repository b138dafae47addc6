"""The pages' references exist: files, sections, tests, commands with their options, targets of make."""

import re
import shlex
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperGroup as Group
from typer.main import get_command

from app.cli import app
from app.stock.sql.schema import METADATA

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in ("docs", "examples", "fencelock") for page in sorted((ROOT / name).rglob("*.md"))),
]

FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r'\]\(([^)]+)\)|<img src="([^"]+)"')
COMMAND = re.compile(r'(?:^|[`/ ])(seckill [a-z].*?|make [a-z-]+(?: ARGS="[^"]*")?)(?=`|\n|$| #|  )', re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each link and picture of a page is a file or a folder of ours, and a link's section exists in that file."""
    for target in (link or picture for link, picture in LINK.findall(FENCED.sub("", page.read_text()))):
        if target.startswith("https://"):
            continue  # nothing is fetched
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_the_files_that_are_named_exist() -> None:
    """Each file of the code that a page names exists; a decision may name one that existed then."""
    path = re.compile(r"`((?:app|docs|examples|fencelock|lab|loadtest|monitoring|tests)/[\w./@-]+)`")
    named = {name for page in PAGES if page.parent.name != "adr" for name in path.findall(page.read_text())}
    assert not [name for name in named if not (ROOT / name).exists()]


def test_all_tables_are_saved() -> None:
    """The runbook's backup of MySQL has each table of the stock, and so has the list of its user's rights."""
    tables = set(METADATA.tables)
    page = (ROOT / "docs" / "operations.md").read_text()
    (saved,) = re.findall(r"^mysqldump (.*?) > ", page, re.MULTILINE | re.DOTALL)
    (granted,) = re.findall(r"DELETE on the tables (.*?), and for", page.replace("\n", " "))
    assert set(re.findall(r"seckill_\w+", saved)) == set(re.findall(r"seckill_\w+", granted)) == tables


def test_the_tests_that_are_named_exist() -> None:
    """Each test that a page names as evidence exists; one that it defines itself, as an example, is there."""
    files = list((ROOT / "tests").rglob("*.py"))
    defined = {file.stem for file in files} | {
        name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert {name for page in PAGES for name in re.findall(r"(?<!def )\btest_\w+", page.read_text())} <= defined


@pytest.mark.parametrize(
    "page", [*READMES, ROOT / "docs" / "commands.md", ROOT / "docs" / "tutorial.md"], ids=lambda page: page.name
)
def test_commands_are_real(page: Path) -> None:
    """Each target of make is in the Makefile, and each command of `seckill` has the options that the pages use."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = COMMAND.findall(page.read_text())
    assert found
    for line in found:
        program, name, *words = shlex.split(line)
        if program == "make":
            assert name in targets, line
            words = shlex.split(" ".join(words).removeprefix("ARGS="))
            if name not in ("demo", "up", "torture"):
                continue
        root = get_command(app)
        assert isinstance(root, Group)
        command = root.get_command(Context(root), name)
        if isinstance(command, Group) and words:
            command = command.commands[words[0]]
        assert command is not None, line
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_both_readmes_have_the_same_commands() -> None:
    """The code blocks of both READMEs differ in nothing but comments."""
    english, chinese = (re.sub(r" +# .*", "", "\n".join(FENCED.findall(page.read_text()))) for page in READMES)
    assert english == chinese

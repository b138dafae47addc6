"""README.md and README.zh-CN.md have the same sections, commands, names, tables, links and pictures, in other words."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)]+)\)")
PICTURE = re.compile(r'<img src="([^"]+)" alt="[^"]+" width="([^"]+)">')
CODE = re.compile(r"`[^`\n]+`")


def sections(text: str) -> list[tuple[str, str]]:
    """Each heading with its marks, and what is below it."""
    found: list[tuple[str, list[str]]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and re.match(r"#+ ", line):
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return [(heading, "\n".join(lines)) for heading, lines in found]


def facts(section: str) -> Counter[str]:
    """What a translation leaves as it is, each as a line for people.

    Of a fenced block that is its lines without their comments. One that is marked `text` is a drawing or a list, whose
    words may be translated: of that it is what has a dot, a stroke, an underscore or a digit in it.
    """
    told: list[str] = []
    for kind, block in FENCED.findall(section):
        if kind == "text":
            words = re.findall(r"[a-z0-9_./]*[a-z0-9_/]", block, re.IGNORECASE)
            told += [f"the name {word}" for word in words if re.search(r"[\d_./]", word)]
        else:
            bare = (re.sub(r"(^|\s+)# .*", "", line) for line in block.splitlines())
            told += [f"the line {line}" for line in bare if line]
    prose = FENCED.sub("", section)
    rows = re.findall(r"^\|.*\|$", prose, re.MULTILINE)
    told += [f"a row with {' '.join(sorted(CODE.findall(row))) or 'no code'}" for row in rows]
    told += ["an item of a list" for _ in re.findall(r"^- ", prose, re.MULTILINE)]
    told += {f"the code {code}" for code in CODE.findall(prose)}
    told += [f"a link to {_same(to)}" for to in LINK.findall(prose)]
    told += [f"the picture {source}, {width} wide" for source, width in PICTURE.findall(prose)]
    return Counter(told)


def _same(target: str) -> str:
    """A link's target, whichever language it is in."""
    if target.startswith("#"):
        return "a section of this page"
    return "the other one" if ROOT / target in (ENGLISH, CHINESE) else target.replace(".zh-CN.md", ".md")


def differences(english: str, chinese: str) -> list[str]:
    """A line for each heading, line, row, name, link or picture that only one of the two has."""
    ours, theirs = sections(english), sections(chinese)
    if [heading.split()[0] for heading, _ in ours] != [heading.split()[0] for heading, _ in theirs]:
        return [f"{[heading for heading, _ in ours]} are not the headings {[heading for heading, _ in theirs]}"]
    lines = []
    for (heading, text), (translation, translated) in zip(ours, theirs, strict=True):
        here, there = facts(text), facts(translated)
        lines += [f"{CHINESE.name}, {translation!r}, lacks {fact}" for fact in (here - there).elements()]
        lines += [f"{ENGLISH.name}, {heading!r}, lacks {fact}" for fact in (there - here).elements()]
    return lines


def test_both_say_the_same() -> None:
    """Section by section, neither has a command, a name, a row, a link or a picture that the other has not."""
    found = differences(ENGLISH.read_text(), CHINESE.read_text())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("\n## Run a sale\n", "\n### Run a sale\n", "are not the headings"),
        ("\n## Known limits\n", "\n", "are not the headings"),
        ("make up      #", "make up PYTHON=python3.13      #", "lacks the line make up PYTHON=python3.13"),
        ("lock.try_acquire()", "lock.try_to_acquire()", "lacks the line     if grant := lock.try_to_acquire()"),
        ("worker ──", "worker_2 ──", "lacks the name worker_2"),
        ('| `make demo ARGS="--lock redis"`', '| `make demo ARGS="--stay"`', "lacks a row with `--lock all`"),
        ("`SECKILL_BATCH_MAX=1`", "`SECKILL_BATCH_MAX=2`", "lacks the code `SECKILL_BATCH_MAX=2`"),
        ("- **Break it**", "**Break it**", "README.md, '# seckill', lacks an item"),
        ("(docs/locks.md)", "(docs/torture.md)", "lacks a link to docs/torture.md"),
        ('"docs/control.webp"', '"docs/phone.png"', "lacks the picture docs/phone.png"),
    ],
)
def test_a_change_of_one_is_told(was: str, now: str, said: str) -> None:
    """Whoever changes one README only is told what the other one lacks, and where."""
    english = ENGLISH.read_text()
    assert was in english
    assert said in "\n".join(differences(english.replace(was, now), CHINESE.read_text()))


def test_words_may_differ() -> None:
    """A comment in a block, the words of a drawing and the text of a link are for each language to say."""
    english = "# A\n[a](b.md)\n```\nmake up  # and look\n```\n```text\napp/main.py  builds, all of it.\n```\n"
    chinese = "# 甲\n[乙](b.md)\n```\nmake up  # 看看\n```\n```text\napp/main.py  构建一切。\n```\n"
    assert differences(english, chinese) == []


PAGES = [ENGLISH, CHINESE, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", dict.fromkeys(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each link and picture of a page is a file or a folder of ours, and a link's section is one of that file."""
    text = FENCED.sub("", page.read_text())
    pictures = [source for source, _ in PICTURE.findall(text)]
    assert len(pictures) == text.count("<img")
    for target in LINK.findall(text) + pictures:
        if target.startswith("https://"):
            continue  # nothing is fetched
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_the_tests_that_are_named_exist() -> None:
    """A test that a page names as evidence is there."""
    tests = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests)) | {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    named = {name for page in PAGES for name in re.findall(r"\btest_\w+", page.read_text())}
    missing = sorted(named - defined)
    assert not missing


@pytest.mark.parametrize(("readme", "other"), [(ENGLISH, CHINESE), (CHINESE, ENGLISH)], ids=["english", "chinese"])
def test_each_begins_with_the_way_to_the_other(readme: Path, other: Path) -> None:
    """The first line below the title links to the other language, by the name that it has for itself."""
    names = {ENGLISH: "English", CHINESE: "简体中文"}
    line = readme.read_text().splitlines()[2]
    assert f"**{names[readme]}**" in line
    assert f"[{names[other]}]({other.name})" in line

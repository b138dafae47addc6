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
    told += [f"a link to {'the other one' if ROOT / to in (ENGLISH, CHINESE) else to}" for to in LINK.findall(prose)]
    told += [f"the picture {source}, {width} wide" for source, width in PICTURE.findall(prose)]
    return Counter(told)


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
        ("\n## Running it\n", "\n### Running it\n", "are not the headings"),
        ("\n## Honest limits\n", "\n", "are not the headings"),
        ("```\nmake up\n```", "```\nmake up PYTHON=python3.13\n```", "lacks the line make up PYTHON=python3.13"),
        ("lock.acquire(wait_s=2.5)", "lock.acquire(wait_s=3)", "lacks the line grant = lock.acquire(wait_s=3)"),
        ("  bench.py  ", "  benchmark.py  ", "lacks the name benchmark.py"),
        (
            '| `make demo ARGS="--keep"` |',
            '| `make demo ARGS="--stay"` |',
            'lacks a row with `make demo ARGS="--stay"`',
        ),
        ("| `SECKILL_PORT` | `8080` |", "| `SECKILL_PORT` | `8000` |", "lacks a row with `8000` `SECKILL_PORT`"),
        ("`GET /orders/{id}`", "`GET /orders/{name}`", "lacks the code `GET /orders/{name}`"),
        ("- **Locks are for threads.**", "**Locks are for threads.**", "README.md, '## Honest limits', lacks an item"),
        ("(docs/torture.md)", "(docs/faults.md)", "lacks a link to docs/faults.md"),
        ('"docs/shop.png"', '"docs/phone.png"', "lacks the picture docs/phone.png"),
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


@pytest.mark.parametrize("readme", [ENGLISH, CHINESE], ids=lambda readme: readme.name)
def test_what_is_linked_is_there(readme: Path) -> None:
    """Each link and picture is a file of ours, and a link's section is one of that file. Nothing is fetched."""
    text = readme.read_text()
    pictures = [source for source, _ in PICTURE.findall(text)]
    assert len(pictures) == text.count("<img")
    for target in LINK.findall(text) + pictures:
        file, _, anchor = target.partition("#")
        assert (ROOT / file).is_file(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize(("readme", "other"), [(ENGLISH, CHINESE), (CHINESE, ENGLISH)], ids=["english", "chinese"])
def test_each_begins_with_the_way_to_the_other(readme: Path, other: Path) -> None:
    """The first line below the title links to the other language, by the name that it has for itself."""
    names = {ENGLISH: "English", CHINESE: "简体中文"}
    line = readme.read_text().splitlines()[2]
    assert f"**{names[readme]}**" in line
    assert f"[{names[other]}]({other.name})" in line

"""`make check` compares sizes with `ratchet.toml`, and fails where one has grown.

python tests/ratchet.py [--write]     with `--write` the file gets today's numbers
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".toml")


def lines(folder: str) -> int:
    """Count the lines of Python that git tracks in this folder, or would add."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", folder]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    files = {ROOT / name for name in names if name.endswith(".py")}
    return sum(len(file.read_bytes().splitlines()) for file in files if file.is_file())


def words(page: str) -> int:
    """Count the rows of the tables on a page, without their heads."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return len(re.findall(r"^\|", text, re.MULTILINE)) - 2 * len(re.findall(r"^\|-", text, re.MULTILINE))


def main() -> int:
    """Return the exit status."""
    allowed = tomllib.loads(FILE.read_text())
    grown, text = [], FILE.read_text()
    for section, count in (("lines", lines), ("words", words)):
        for name, most in allowed[section].items():
            there = count(name)
            if there > most:
                grown.append(f"{name}: {there:,} {section}, and {FILE.name} has {most:,}")
            text = re.sub(rf'^("{re.escape(name)}" =) \d+', rf"\1 {there}", text, flags=re.MULTILINE)
    if "--write" in sys.argv:
        FILE.write_text(text)
        return 0
    for line in grown:
        print(f"{line}; if that is meant: python tests/ratchet.py --write, and a line in docs/adr")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())

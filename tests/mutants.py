"""`make mutants` changes the code in one place at a time, and looks whether a fast test notices it.

python tests/mutants.py app/orders [app/money.py ...] [--sample 200] [--again] [--tests FILE ...] [--write]
python tests/mutants.py --since origin/main [--sample 60]

A house is a folder or a file; `mutants.toml` has the tests that belong to it besides those of `tests/unit` that import
it. Of these mutmut chooses for each function those that run it. `--sample`: so many mutants, always the same ones;
`--again`: only those that were not noticed the last time; `--write`: docs/mutants.md gets the result. `--since`: only
those of functions that have changed since a commit, file by file.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "mutants.md"
OWN: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SOURCES: Final = {
    "app": "app",
    "lab": "lab",
    "src/fencelock": "fencelock/src/fencelock",
}  # mutmut knows no other layout
_NOTICED: Final = ("killed", "timeout", "segfault", "suspicious")


class Mutant(NamedTuple):
    """A change that no test noticed: where it is, and the lines before and after it."""

    name: str
    place: str
    was: str
    now: str

    @property
    def reason(self) -> str:
        """Why nobody can notice it; empty if that is not known."""
        for one in OWN["equivalent"]:
            said = (one.get("was", ""), self.was), (one.get("now", ""), self.now)
            if re.fullmatch(one["in"], self.place) and all(re.search(*some) for some in said):
                return str(one["why"])
        return ""


@dataclass
class House:
    """A folder or a file, and where its mutants are made."""

    path: str
    chosen: Sequence[str] = ()
    functions: frozenset[str] | None = None  # only of these, such as `_Now.hold`; None: all
    results: dict[str, str] = field(default_factory=dict)
    there: int = 0  # mutants, of which some may not have been tried

    @property
    def place(self) -> Path:
        """The folder in which mutmut works: its caches are of one house."""
        return ROOT / "build" / "mutants" / self.path.replace("/", "-")

    @property
    def _mutated(self) -> str:
        """The path as mutmut has it."""
        return self.path.replace("fencelock/src/", "src/")

    def tests(self) -> list[str]:
        """The fast tests that belong to it: those that import it, and those of `mutants.toml`; or those `chosen`."""
        if self.chosen:
            return list(self.chosen)
        module = self._mutated.removeprefix("src/").removesuffix(".py").replace("/", ".")
        found = {one for path, tests in OWN["tests"].items() if self.path.startswith(path) for one in tests}
        for file in (ROOT / "tests" / "unit").glob("test_*.py"):
            names = {f"{name}." for name in _imported(file) if "." in name or name == module}
            if any(name.startswith(f"{module}.") or f"{module}.".startswith(name) for name in names):
                found.add(str(file.relative_to(ROOT)))
        return sorted(found - set(OWN["slow"]["files"]))

    def prepare(self) -> None:
        """Lay out the sources as mutmut wants them, and beside its copies what else the tests read."""
        shutil.rmtree(self.place, ignore_errors=True)
        copy = self.place / "mutants"
        copy.mkdir(parents=True)
        for one in ROOT.iterdir():
            if one.name not in ("app", "lab", "tests", "build", "pyproject.toml", ".git"):
                (copy / one.name).symlink_to(one)
        for name, source in SOURCES.items():
            (self.place / name).parent.mkdir(exist_ok=True)
            (self.place / name).symlink_to(ROOT / source)
        (self.place / "tests").symlink_to(ROOT / "tests")
        (self.place / "src").mkdir(exist_ok=True)
        whole = self._mutated if self.path.endswith(".py") else f"{self._mutated}/*"
        args = ["--hypothesis-seed=0", "-p", "no:cacheprovider", "-p", "no:warnings", "--timeout=0"]
        args += [f"--deselect={one}" for one in OWN["slow"]["tests"]]
        settings = {
            "source_paths": [*SOURCES],
            "only_mutate": [whole],
            "pytest_add_cli_args": args,
            "pytest_add_cli_args_test_selection": self.tests(),
            "timeout_multiplier": 2,
            "timeout_constant": 30,
        }
        lines = ["use_git_change_detection = false", "track_dependencies = false"]
        lines += [f"{name} = {json.dumps(one)}" for name, one in settings.items()]
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        (self.place / "pyproject.toml").write_text("\n".join([text, "[tool.mutmut]", *lines, ""]))

    def run(self, sample: int | None, *, again: bool) -> None:
        """Make the mutants, and run the tests that belong to each."""
        if not (again and self.place.exists()):
            self.prepare()
        shutil.rmtree(self.place / "mutants" / "tests", ignore_errors=True)
        os.chdir(self.place)  # where mutmut finds its settings as it is imported
        # As a library: the command has no sample, and no order of the tests.
        from mutmut.__main__ import _run, create_mutants
        from mutmut.mutation.trampoline import set_mutant_under_test
        from mutmut.runners.harness import PytestRunner
        from mutmut.state import state
        from mutmut.utils.file_utils import copy_src_dir

        def quickest_first(runner: PytestRunner, tests: Iterable[str]) -> list[str]:
            chosen = sorted(tests, key=lambda one: state().duration_by_test.get(one, 0.0))
            return ["-x", "-q", *(chosen or runner._pytest_add_cli_args_test_selection)]

        setattr(PytestRunner, "_pytest_args_regular_run", quickest_first)  # noqa: B010 - it is a method
        chosen: tuple[str, ...] = ()
        out, log = os.dup(1), os.open("log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)  # it is a dance of spinners
        try:
            if again:
                chosen = tuple(name for name, result in self.read().items() if result not in (*_NOTICED, "not checked"))
            elif sample or self.functions is not None:
                set_mutant_under_test("mutant_generation")
                copy_src_dir()
                create_mutants(1)
                some = [one for one in self.read() if self.functions is None or _function(one) in self.functions]
                chosen = tuple(sorted(some, key=lambda name: hashlib.sha256(name.encode()).digest())[:sample])
                if not chosen:
                    return
            _run(chosen, os.cpu_count())
        except SystemExit as ended:
            raise SystemExit(f"see {self.place / 'log'}") from ended
        finally:
            sys.stdout.flush()
            os.dup2(out, 1)
        self.take()

    def take(self) -> None:
        """Take what became of those that were tried."""
        found = self.read()
        self.results = {name: one for name, one in found.items() if one != "not checked"}
        self.there = len(found)

    def read(self) -> dict[str, str]:
        """What became of each mutant."""
        from mutmut.stats import status_by_exit_code

        found: dict[str, str] = {}
        for file in sorted((self.place / "mutants").rglob("*.py.meta")):
            codes = json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"]
            found |= {name: status_by_exit_code[code] for name, code in codes.items()}
        return found

    def survivors(self) -> Iterator[Mutant]:
        """Those that no test noticed."""
        from mutmut.mutation.diff_apply import find_mutant, get_diff_for_mutant

        os.chdir(self.place)
        for name in [name for name, one in self.results.items() if one not in _NOTICED]:
            path = str(find_mutant(name).path)
            diff = get_diff_for_mutant(name, path=path).splitlines()[2:]
            was, now = (" ".join(line[1:].strip() for line in diff if line[0] == sign) for sign in "-+")
            source = path.replace("src/fencelock", "fencelock/src/fencelock")
            yield Mutant(name, f"{source}:{_function(name)}", was, now)


def _function(name: str) -> str:
    """The function of a mutant, such as `_Now.hold`."""
    return re.sub(r"^x_|^xǁ", "", name.rpartition(".")[2].partition("__mutmut_")[0]).replace("ǁ", ".")


def changed_since(commit: str) -> dict[str, frozenset[str]]:
    """By file of the sources, the functions with lines that have changed since a commit."""
    diff = ["git", "diff", "--unified=0", "--diff-filter=AM", commit, "--", *SOURCES.values()]
    text = subprocess.run(diff, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[str, frozenset[str]] = {}
    for part in text.split("\ndiff --git "):
        match = re.search(r"^\+\+\+ b/(\S+\.py)$", part, re.MULTILINE)
        if match is None:
            continue
        spans = re.findall(r"^@@ \S+ \+(\d+)(?:,(\d+))? @@", part, re.MULTILINE)
        lines = {int(first) + n for first, count in spans for n in range(max(1, int(count or 1)))}
        tree = ast.parse((ROOT / match[1]).read_text(encoding="utf-8"))
        found[match[1]] = frozenset(name for name, span in _functions(tree) if lines & {*span})
    return {path: names for path, names in found.items() if names}


def _functions(node: ast.AST, of: str = "") -> Iterator[tuple[str, range]]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.ClassDef):
            yield from _functions(one, f"{one.name}.")
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield of + one.name, range(one.lineno, (one.end_lineno or one.lineno) + 1)


def _imported(file: Path) -> set[str]:
    """The modules that a test imports, and those names that may be modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def row(house: House, found: Sequence[Mutant]) -> str:
    """The line of a house in the table of the page."""
    counts = Counter(house.results.values())
    total, noticed = sum(counts.values()), sum(counts[one] for one in _NOTICED)
    explained = sum(bool(one.reason) for one in found)
    tried = f"{total:,}" if total == house.there else f"{total:,} of {house.there:,}"
    score = 100 * (noticed + explained) / total if total else 100.0
    return f"| `{house.path}` | {tried} | {noticed:,} | {explained:,} | {len(found) - explained:,} | {score:.1f} % |"


def section(house: House, found: Sequence[Mutant]) -> str:
    """The survivors of a house, each with its reason, if it has one."""
    lines = [f"### {house.path}", ""]
    for one in found:
        lines.append(f"- `{one.place}`: `{_short(one.was)}` → `{_short(one.now)}`: {one.reason or '**not noticed**'}")
    return "\n".join(lines if found else [*lines, "None."])


def _short(text: str) -> str:
    text = text.replace("`", "'").replace("](", "] (")  # which a page would take for a link
    return text if len(text) <= 160 else f"{text[:157]}..."


def write(house: House, found: Sequence[Mutant]) -> None:
    """Replace what the page says of a house."""
    text = PAGE.read_text(encoding="utf-8")
    head, table, rest = re.split(r"(?s)(?<=\|---\|\n)(.*?)(?=\n\n)", text, maxsplit=1)
    rows = {line.split("`")[1]: line for line in table.splitlines()} | {house.path: row(house, found)}
    named = {one.partition("\n")[0]: one.strip() for one in rest.split("\n### ")[1:]}
    named[house.path] = section(house, found).removeprefix("### ")
    before = rest.split("\n### ")[0].rstrip()
    sections = "".join(f"\n\n### {named[one]}" for one in sorted(rows))
    PAGE.write_text(f"{head}{chr(10).join(rows[one] for one in sorted(rows))}{before}{sections}\n", encoding="utf-8")


def main() -> int:
    """Return the exit status: 1 if a mutant was not noticed, and has no reason."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("paths", nargs="*", default=OWN["houses"], help="default: all houses of tests/mutants.toml")
    asked.add_argument("--sample", type=int, help="only so many mutants of each house")
    asked.add_argument("--tests", nargs="*", help="files of tests; default: the fast ones that belong to the house")
    asked.add_argument("--again", action="store_true", help="only those that were not noticed the last time")
    asked.add_argument("--write", action="store_true", help="write the result into docs/mutants.md")
    asked.add_argument("--since", metavar="COMMIT", help="only of functions that have changed since then")
    given, unnoticed = asked.parse_args(), 0
    touched = changed_since(given.since) if given.since else dict[str, frozenset[str]]()
    for path in touched if given.since else given.paths:
        pid = os.fork()  # mutmut keeps all that it knows in the process: each house has its own
        if not pid:
            house = House(path, given.tests or (), touched.get(path))
            house.run(given.sample, again=given.again)
            found = list(house.survivors())
            print(row(house, found))
            for one in found:
                print(f"{one.place}  [{one.name.rpartition('_')[2]}] {one.reason}\n  - {one.was}\n  + {one.now}")
            if given.write:
                write(house, found)
            sys.stdout.flush()
            os._exit(any(not one.reason for one in found))
        unnoticed += os.waitpid(pid, 0)[1] != 0
    return min(unnoticed, 1)


if __name__ == "__main__":
    sys.exit(main())

"""No module imports itself through others: not for types only, and not inside a function either."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# By pydantic, pydantic-settings, FastAPI and Redis' client with its extra.
BROUGHT_ALONG = {"pydantic_core", "dotenv", "starlette", "hiredis", "psycopg"}


def modules_of(house: str) -> dict[str, Path]:
    root = ROOT / "fencelock" / "src" if house == "fencelock" else ROOT
    files = (root / house).rglob("*.py")
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(module: str, file: Path) -> Iterator[str]:
    """Return all possible modules of the imports: `from a import b` means `a.b`, or else `a`."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{one.name}" for one in node.names)


@pytest.mark.parametrize("house", ["fencelock", "app", "lab", "loadtest"])
def test_no_circles(house: str) -> None:
    modules = modules_of(house)
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = (name if name in modules else name.rpartition(".")[0] for name in imported(module, file))
        graph[module] = {name for name in names if name in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_service_imports_what_it_declares() -> None:
    """What `app` imports comes with it, or with an extra: the lab's packages are not there where it runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = {name_of(one) for some in (project["dependencies"], *extras) for one in some}
    names = (name for module, file in modules_of("app").items() for name in imported(module, file))
    tops = {name.partition(".")[0] for name in names} - {"app", *sys.stdlib_module_names}
    packages = packages_distributions()
    foreign = {top for top in tops if not {name_of(one) for one in packages.get(top, [top])} & declared}
    assert foreign <= BROUGHT_ALONG


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")

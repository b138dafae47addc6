"""No module imports itself through others: not for types only, and not inside a function either."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_of(house: str) -> dict[str, Path]:
    files = (ROOT / house).rglob("*.py")
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


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

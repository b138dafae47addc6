"""The numbers of steps that are noted: an operation that has far fewer one day is looked at no more."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

COUNTS: Final = Path(__file__).with_name("counts.toml")

Numbers: TypeAlias = dict[str, int]
"""Of an operation: steps, and if they were let fail once: faults, runs, and the seconds of all runs together."""


def read() -> dict[str, dict[str, Numbers]]:
    """Read the numbers, by system and operation."""
    return tomllib.loads(COUNTS.read_text()) if COUNTS.exists() else {}


def write(name: str, operations: Mapping[str, Numbers]) -> None:
    """Note the numbers of a system's operations."""
    known = read()
    before = known.get(name, {})
    known[name] = before | {one: before.get(one, {}) | numbers for one, numbers in operations.items()}
    lines = ["# The steps of each operation, written by `python -m lab.steps --write`."]
    for system, noted in known.items():
        lines += ["", f"[{system}]"]
        for operation, numbers in noted.items():
            inside = ", ".join(f"{key} = {value}" for key, value in numbers.items())
            lines.append(f'"{operation}" = {{ {inside} }}')
    COUNTS.write_text("\n".join(lines) + "\n")

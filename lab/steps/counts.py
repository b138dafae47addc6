"""The numbers of steps that are noted: an operation that has far fewer one day is looked at no more."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

COUNTS: Final = Path(__file__).with_name("counts.toml")

Numbers: TypeAlias = dict[str, int]
"""Of an operation: steps, faults, runs, and the seconds of all runs together, many of which are made at a time."""


def read() -> dict[str, dict[str, Numbers]]:
    """Read the numbers, by system and operation."""
    return tomllib.loads(COUNTS.read_text()) if COUNTS.exists() else {}


def write(name: str, operations: Mapping[str, Numbers]) -> None:
    """Note the numbers of a system's operations."""
    known = read()
    known[name] = known.get(name, {}) | dict(operations)
    lines = ["# The steps of each operation, written by `python -m lab.steps --write`."]
    for system, noted in known.items():
        lines += ["", f"[{system}]"]
        for operation, numbers in noted.items():
            inside = ", ".join(f"{key} = {value}" for key, value in numbers.items())
            lines.append(f'"{operation}" = {{ {inside} }}')
    COUNTS.write_text("\n".join(lines) + "\n")

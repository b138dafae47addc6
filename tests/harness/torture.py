"""Run the command `seckill torture`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from lab.torture.history import History
from lab.torture.judge import judge

QUICK: Final = ("--duration", "20", "--rate", "40", "--ttl-s", "3", "--every", "6", "--seed", "1")


def torture(report: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    argv = [sys.executable, "-m", "app", "torture", "--report", str(report), *options]
    env = os.environ | {"COLUMNS": "160"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=env)


def broken(history: History) -> set[str]:
    """Return the invariants that the judge found broken."""
    return {one for finding in judge(history) if not finding.holds for one in finding.invariant.split(", ")}

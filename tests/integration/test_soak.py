"""A short soak test takes part in everything and writes a complete report. No figure is judged so early."""

import csv
import json
import signal
import subprocess
import sys
import time
from html import escape
from pathlib import Path

import psutil
import pytest

from loadtest.soak.quantities import QUANTITIES

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]
SOAK = [sys.executable, "-m", "loadtest.soak"]


def test_a_short_soak(tmp_path: Path) -> None:
    """The test sells under faults; all quantities are in the table and in the plot."""
    plot = tmp_path / "docs" / "plot.svg"
    options = ["--minutes", "0.75", "--report", str(tmp_path), "--plot", str(plot)]
    done = subprocess.run([*SOAK, *options], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Too short to say whether anything grows" in done.stdout
    summary = json.loads((tmp_path / "soak.json").read_text())
    assert len(summary["faults"]) >= 3
    told = summary["told"]
    assert all(told[what] for what in ("sold", "replayed", "sold_out", "404", "hung up", "GET 200", "listened 200"))
    with (tmp_path / "soak.csv").open() as file:
        rows = list(csv.DictReader(file))
    unseen = {"store_bytes_per_order"}  # too few orders
    assert {column for column in rows[0] if not any(row[column] for row in rows)} <= unseen
    assert plot.read_text() == (tmp_path / "soak.svg").read_text()
    assert all(escape(quantity.title) in plot.read_text() for quantity in QUANTITIES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in mid-run ends all processes, and keeps the figures."""
    soak = subprocess.Popen([*SOAK, "--report", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    table = tmp_path / "soak.csv"
    try:
        while not (table.exists() and len(table.read_text().splitlines()) > 1):
            assert soak.poll() is None
            time.sleep(0.1)
        started = psutil.Process(soak.pid).children(recursive=True)
        assert len(started) >= 4
        soak.send_signal(number)
        said, _ = soak.communicate(timeout=60)
    finally:
        soak.kill()
    assert soak.returncode == 130, said
    assert "Stopped" in said
    until = time.monotonic() + 10
    while left := [process for process in started if process.is_running()]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_wrong_options_are_named() -> None:
    """A wrong option ends the command before anything is started."""
    done = subprocess.run([*SOAK, "--minutes", "0"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "half a minute at least" in done.stderr

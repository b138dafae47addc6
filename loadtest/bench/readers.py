"""The sale beside readers: left out of `make bench`, as it takes minutes.

    python -m loadtest.bench.readers [--rounds 3] [--seconds 5] [--connections 100] [--busy] [--report DIR]

In each round in turn: alone; beside as many `/healthz` a second as there are requests in the last one; and beside 1,000
`GET /stock`, 100 `/metrics` and 100 `/readyz` a second and 10,000 listeners spread over 1,000 items. The ratio of
the last two matters. `--busy`: while half of the machine's cores are taken by others.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from app.server import raise_file_limit
from lab.servers.process import Process, ProcessFailed
from loadtest.bench.generator import Load, drive
from loadtest.bench.stand import ROOT, ComparedApp, Running, Stand

_ITEMS: Final = 1000
_HEALTHZ: Final = ["--get", "/healthz:1200"]
_READERS: Final = [
    "--get",
    "/stock:1000",
    "/metrics:100",
    "/readyz:100",
    "--listeners",
    "10000",
    "--items",
    str(_ITEMS),
]
_CROWDS: Final = {"alone": [], "beside /healthz": _HEALTHZ, "beside readers": _READERS}
_AIM: Final = 0.8
_WARM_S: Final = 1.0


@contextmanager
def _beside(crowd: list[str], urls: list[str], told: dict[str, int]) -> Iterator[None]:
    if not crowd:
        yield
        return
    argv = [sys.executable, "-m", "loadtest.bench.crowd", *crowd, "--urls", *urls]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    lookers = Process(
        "crowd", lambda _: argv, env=env, ready=lambda: "looking" in lookers.last_lines(1), ready_within_s=120
    )
    with lookers:
        yield
        if not lookers.running:
            raise ProcessFailed(f"the crowd did not stay:\n{lookers.last_lines()}")
        lookers.signal(signal.SIGTERM)
        while lookers.running:
            time.sleep(0.01)
        for what, number in json.loads(lookers.last_lines(1)).items():
            told[what] = told.get(what, 0) + number


@contextmanager
def _busy_cores(number: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(
                Process("busy", lambda _: [sys.executable, "-c", "while True: pass"], ready=lambda: True)
            )
        yield


def _measure(running: Running, crowd: list[str], options: argparse.Namespace, told: dict[str, int]) -> Load:
    with _beside(crowd, running.urls(""), told):
        drive(running.urls(""), options.connections, _WARM_S)
        return drive(running.urls(""), options.connections, options.seconds)


def main() -> int:
    """Measure and print; exit status 1 if a purchase was answered other than 200, or a connection broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    raise_file_limit()
    rounds: list[dict[str, Load]] = []
    told: dict[str, dict[str, int]] = {name: {} for name in _CROWDS}
    console = Console()
    with Stand() as stand, _busy_cores((os.cpu_count() or 2) // 2 if options.busy else 0):
        settings = {"LISTENERS_MAX": "10000"}
        running = stand.start(ComparedApp("readers", "this service", settings=settings), options.instances)
        running.fill(("default", *(f"item-{number}" for number in range(_ITEMS))))
        with console.status("") as status:
            for number in range(options.rounds):
                loads: dict[str, Load] = {}
                names = list(_CROWDS)
                for name in names[number % 3 :] + names[: number % 3]:
                    status.update(f"Round {number + 1} of {options.rounds}: {name}")
                    loads[name] = _measure(running, _CROWDS[name], options, told[name])
                rounds.append(loads)
    table = Table("", "sales/s", "of beside /healthz", "p50", "p99", "the crowd was told")
    for name in _CROWDS:
        loads_of = [one[name] for one in rounds]
        ratios = [one[name].per_s / one["beside /healthz"].per_s for one in rounds]
        table.add_row(
            name,
            f"{statistics.median(one.per_s for one in loads_of):,.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{statistics.median(one.p50_ms for one in loads_of):.1f} ms",
            f"{statistics.median(one.p99_ms for one in loads_of):.1f} ms",
            ", ".join(f"{what}: {number:,}" for what, number in sorted(told[name].items())),
        )
    console.print(table)
    console.print(f"Aim: beside readers {_AIM} of beside /healthz.")
    options.report.mkdir(parents=True, exist_ok=True)
    per_s = {name: [one[name].per_s for one in rounds] for name in _CROWDS}
    (options.report / "readers.json").write_text(json.dumps({"per_s": per_s, "told": told}, indent=1))
    loads_all = [load for one in rounds for load in one.values()]
    return 1 if any(load.lost or set(load.statuses) - {"200"} for load in loads_all) else 0


if __name__ == "__main__":
    sys.exit(main())

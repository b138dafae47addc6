"""How cost grows: with items, instances and waiting buyers; memory per waiting buyer; calls to the servers per sale.

    python -m loadtest.bench.growth [--seconds 2] [--rounds 7] [--only items] [--report DIR]

The rows of a group take turns on the same instances and servers, and begin with another one in each round, so that a
machine that slows down hits all alike. The ratios to the group's first row matter: for each round by itself,
then their median. The CPU time of a sale is that of the instances, etcd and the store together, without the load
generator's: it is steadier than the sales a second, which depend on what else the machine does.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from app.server import raise_file_limit
from loadtest.bench.generator import drive, holding
from loadtest.bench.stand import ComparedApp, Running, Stand

_WARM_S = 0.7
_ENOUGH = ComparedApp("default", "", settings={"QUEUE_MAX": "100000"})


@dataclass(frozen=True, slots=True)
class Row:
    """A way to load the service: so many buyers at so many of its instances, who want the items in turn."""

    what: str
    instances: int = 2
    items: int = 1
    buyers: int = 500


# Instances without buyers keep their sessions and reports: so those rows have a first row of their own.
GROUPS = (
    (
        Row("1 item, 500 buyers"),
        *(Row(f"{items} items, 500 buyers", items=items) for items in (10, 100, 1000)),
        Row("100 items, 2,000 buyers", items=100, buyers=2000),
        *(Row(f"1 item, {buyers:,} buyers", buyers=buyers) for buyers in (2000, 10_000, 20_000)),
    ),
    (
        Row("1 item of 100,000"),
        *(Row(f"{items:,} items of 100,000", items=items) for items in (1000, 10_000, 100_000)),
    ),
    (
        Row("2 instances of 8 at work"),
        *(Row(f"{instances} of 8", instances=instances) for instances in (1, 4, 8)),
    ),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """The measurements of a row in one round."""

    per_s: float
    cpu_us_per_sale: float
    etcd_per_sale: float
    store_per_sale: float
    p99_ms: float
    lost: int


def main() -> int:
    """Measure and print; exit status 1 if something was answered other than 200, or a connection broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    parser.add_argument(
        "--only", default="", help="a part of the rows' names, such as `items`; their first row comes with them"
    )
    options = parser.parse_args()
    raise_file_limit()
    console = Console()
    groups = [[row for row in group if row is group[0] or options.only in row.what] for group in GROUPS]
    table = Table("", "sales/s", "of the first row", "CPU a sale", "p99", "calls a sale: etcd, store")
    figures: dict[str, list[Figure]] = {}
    with console.status("") as status:
        for rows in groups:
            if options.only and len(rows) == 1:
                continue
            rounds = _measure_in_turn(rows, options.rounds, options.seconds, status.update)
            for row in rows:
                figures[row.what] = [one[row.what] for one in rounds]
                _add(table, row.what, figures[row.what], figures[rows[0].what])
            table.add_section()
        status.update("Memory of those who wait")
        per_buyer = {what: _memory(program, waiting) for what, program, waiting in _MEMORY if not options.only}
    console.print(table)
    for what, size in per_buyer.items():
        console.print(f"{what}: {size / 1024:.1f} KiB each", highlight=False)
    options.report.mkdir(parents=True, exist_ok=True)
    per_s = {what: [one.per_s for one in found] for what, found in figures.items()}
    (options.report / "growth.json").write_text(json.dumps(per_s | per_buyer, indent=1))
    return 1 if any(one.lost for found in figures.values() for one in found) else 0


def _add(table: Table, what: str, found: Sequence[Figure], first: Sequence[Figure]) -> None:
    ratios = [one.per_s / base.per_s for one, base in zip(found, first, strict=True)]
    table.add_row(
        what,
        f"{statistics.median(one.per_s for one in found):,.0f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
        f"{statistics.median(one.cpu_us_per_sale for one in found):.0f} µs",
        f"{statistics.median(one.p99_ms for one in found):.0f} ms",
        f"{statistics.median(one.etcd_per_sale for one in found):.3f}, "
        f"{statistics.median(one.store_per_sale for one in found):.3f}",
    )


def _measure_in_turn(
    rows: Sequence[Row], rounds: int, seconds: float, told: Callable[[str], None]
) -> list[dict[str, Figure]]:
    skus = [f"item-{number}" for number in range(max(row.items for row in rows))]
    with Stand() as stand:
        told("Starting etcd, the store and the instances")
        running = stand.start(_ENOUGH, max(row.instances for row in rows))
        running.fill(tuple(skus))
        # The first purchase of an item costs more than the others, and is not to be measured.
        drive(running.urls(""), 500, _WARM_S, _paths(skus))
        found: list[dict[str, Figure]] = []
        for number in range(rounds):
            turn = number % len(rows)
            one: dict[str, Figure] = {}
            for row in (*rows[turn:], *rows[:turn]):
                told(f"Round {number + 1} of {rounds}: {row.what}")
                one[row.what] = _measure(stand, running, row, _paths(skus[: row.items]), seconds)
            found.append(one)
        return found


def _paths(skus: Sequence[str]) -> list[str]:
    return [f"/stock/reduce?sku={sku}" for sku in skus]


def _measure(stand: Stand, running: Running, row: Row, paths: Sequence[str], seconds: float) -> Figure:
    urls = running.urls("")[: row.instances]
    drive(urls, row.buyers, _WARM_S, paths, never_wrk=True)
    before, cpu_s = stand.calls(), stand.cpu_s(running)
    load = drive(urls, row.buyers, seconds, paths, never_wrk=True)  # wrk can't do all rows, and they are compared
    cpu_s = stand.cpu_s(running) - cpu_s
    after = stand.calls()
    return Figure(
        load.per_s,
        cpu_s / load.requests * 1e6,
        (after[0] - before[0]) / load.requests,
        (after[1] - before[1]) / load.requests,
        load.p99_ms,
        load.lost + load.requests - load.statuses.get("200", 0),
    )


_MEMORY = (
    ("a connection that waits for nothing (the do-nothing endpoint)", "nothing", False),
    ("a buyer who waits, with the connection", None, True),
)
_WAITING = 10_000


def _memory(program: str | None, waiting: bool) -> float:
    with Stand() as stand:
        running: Running = stand.start(replace(_ENOUGH, name="memory", program=program), 1)
        running.fill()
        process = psutil.Process(running.processes[0].pid)
        drive(running.urls(""), 100, 0.3)
        before = process.memory_info().rss
        with running.held_up() if waiting else nullcontext(), holding(running.urls("/stock/reduce")[0], _WAITING):
            return float((process.memory_info().rss - before) / _WAITING)


if __name__ == "__main__":
    raise SystemExit(main())

"""How cost grows: with items, instances and waiting buyers; memory per waiting buyer; calls to the servers per sale.

    python -m loadtest.bench.growth [--seconds 4] [--rounds 3] [--report DIR]

Each row is the default service under a full load, beside the row that the others are compared with, round by round.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from app.locks import EtcdBackend
from app.server import raise_file_limit
from loadtest.bench.generator import drive
from loadtest.bench.plot import bars
from loadtest.bench.stand import Contender, Running, Stand

_WARM_S = 0.7


@dataclass(frozen=True, slots=True)
class Row:
    """One way to load the service."""

    what: str
    instances: int = 2
    items: int = 1
    buyers: int = 500

    @property
    def skus(self) -> tuple[str, ...]:
        """The items' names."""
        return tuple(f"item-{number}" for number in range(self.items))


BASE = Row("2 instances, 1 item, 500 buyers")
ROWS = (
    BASE,
    *(Row(f"{items} items", items=items) for items in (10, 100, 1000)),
    *(Row(f"{instances} instance{'s' if instances > 1 else ''}", instances=instances) for instances in (1, 4, 8)),
    *(Row(f"{buyers:,} buyers waiting", buyers=buyers) for buyers in (2000, 10_000, 20_000)),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Of one row in one round."""

    per_s: float
    etcd_per_sale: float
    store_per_sale: float
    p99_ms: float
    lost: int


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    parser.add_argument(
        "--only", default="", help="a part of the rows' names, such as `waiting`; the first row is always there"
    )
    options = parser.parse_args()
    raise_file_limit()
    console = Console()
    rows = [row for row in ROWS if row is BASE or options.only in row.what]
    figures: dict[str, list[Figure]] = {row.what: [] for row in rows}
    with console.status("") as status:
        for number in range(options.rounds):
            for row in rows:
                status.update(f"Round {number + 1} of {options.rounds}: {row.what}")
                with Stand() as stand:
                    figures[row.what].append(_measure(stand, row, options.seconds))
        status.update("Memory of those who wait")
        per_buyer = {what: _memory(program, waiting) for what, program, waiting in _MEMORY if not options.only}
    table = Table("", "sales/s", "of the first row", "p99", "etcd calls per sale", "store calls per sale")
    for what, found in figures.items():
        ratios = [one.per_s / base.per_s for one, base in zip(found, figures[BASE.what], strict=True)]
        table.add_row(
            what,
            f"{statistics.median(one.per_s for one in found):,.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{statistics.median(one.p99_ms for one in found):.0f} ms",
            f"{statistics.median(one.etcd_per_sale for one in found):.4f}",
            f"{statistics.median(one.store_per_sale for one in found):.4f}",
        )
    console.print(table)
    for what, size in per_buyer.items():
        console.print(f"{what}: {size / 1024:.1f} KiB each", highlight=False)
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "growth.svg").write_text(
        bars({what: [one.per_s for one in found] for what, found in figures.items()}, "sales a second")
    )
    (options.report / "growth.json").write_text(
        json.dumps({what: [one.per_s for one in found] for what, found in figures.items()} | per_buyer, indent=1)
    )
    return 1 if any(one.lost for found in figures.values() for one in found) else 0


def _measure(stand: Stand, row: Row, seconds: float) -> Figure:
    running = stand.start(Contender("default", "", settings={"QUEUE_MAX": "100000"}), row.instances)
    running.fill(row.skus)
    paths = [f"/stock/reduce?sku={sku}" for sku in row.skus]
    drive(running.urls(""), row.buyers, _WARM_S, paths)
    before = stand.calls()
    load = drive(running.urls(""), row.buyers, seconds, paths)
    after = stand.calls()
    return Figure(
        load.per_s,
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
        contender = Contender("memory", "", program, settings={"QUEUE_MAX": "100000"})
        running: Running = stand.start(contender, 1)
        running.fill()
        process = psutil.Process(running.processes[0].pid)
        drive(running.urls(""), 100, 0.3)
        before = process.memory_info().rss
        if not waiting:
            return _peak(process, running, before)
        backend = EtcdBackend([stand.etcd.endpoint], ttl_s=60)
        with backend.lock("/bench/memory/default"):
            size = _peak(process, running, before)
        backend.close()
        return size


def _peak(process: psutil.Process, running: Running, before: int) -> float:
    from loadtest.bench.generator import holding

    with holding(running.urls("/stock/reduce")[0], _WAITING):
        return (process.memory_info().rss - before) / _WAITING


if __name__ == "__main__":
    raise SystemExit(main())

"""`seckill demo --lock all`: the same rush over each lock, and the outcomes side by side."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from app.errors import ConfigurationError
from app.settings import Guard
from fencelock import Scope
from fencelock.registry import backend_class
from lab.demo.demo import DemoOptions, on_stage, rush
from lab.demo.stage import LockName, StoreName


def run(options: DemoOptions) -> int:
    """Run the demos one after the other, and return the exit status: 0 if each did what it declares."""
    console = Console()
    columns = ("lock", "guard", "sold", "agree", "wall", "p99", "locks", "calls", "declared")
    table = Table(*(Column(name, no_wrap=True) for name in columns), box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.title = f"{options.buyers} buyers, {options.stock} units, {options.instances} instances; times in ms"
    report: dict[str, Any] = {}
    not_run: list[str] = []
    try:
        for name, own, fails in _ways(options):
            try:
                with on_stage(own, console) as stage:
                    figures = rush(own, stage, console)
            except ConfigurationError as missing:
                not_run.append(f"{name} was not run: {missing}")
                continue
            as_declared = figures.oversold > 0 if fails else figures.consistent
            report[name] = asdict(figures) | {"guard": stage.guard, "as_declared": as_declared}
            table.add_row(
                name,
                stage.guard,
                str(figures.sold),
                "yes" if figures.consistent else "NO",
                f"{figures.wall_s * 1000:.0f}",
                f"{figures.latency_p99_ms:.0f}",
                str(figures.locks_taken),
                str(figures.lock_calls),
                "[green]yes[/]" if as_declared else "[red]NO[/]",
            )
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    console.print(table)
    to_fail = "they have to fail" if options.store is StoreName.REDIS else "the guard alone has to do it"
    console.print(
        f"local and none don't keep two instances apart: {to_fail}. agree: numbers and "
        "orders do; calls: to the lock's server; declared: it did what docs/locks.md says.",
        highlight=False,
    )
    for line in not_run:
        console.print(line, style="yellow", markup=False, highlight=False)
    if options.report is not None:
        options.report.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(one["as_declared"] for one in report.values()) else 1


def _ways(options: DemoOptions) -> Iterator[tuple[str, DemoOptions, bool]]:
    """Yield a name, the options, and whether it must oversell: each lock, and the optimistic ways without one."""
    for lock in LockName:
        # A lock that keeps nobody apart is shown without a guard, a lock for each buyer, as in the articles; in MySQL
        # there is always one.
        apart = backend_class(lock).guarantees.scope in (Scope.EVERYBODY, Scope.MACHINE) or options.instances == 1
        fails = not apart and options.store is StoreName.REDIS
        own = replace(options, lock=lock, guard=None)
        yield lock, replace(own, guard=Guard.NONE, batch_max=1) if fails else own, fails
    in_mysql = replace(options, lock=LockName("none"), store=StoreName.MYSQL)
    for guard in (Guard.VERSION, Guard.TIMESTAMP):
        if (options.store, guard) != (StoreName.MYSQL, Guard.VERSION):  # that pair was among the locks' demos
            yield f"none, {guard}", replace(in_mysql, guard=guard), False

"""`seckill demo --lock all`, `--store all`: the same rush over each of them, and the outcomes side by side."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
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


def run(options: DemoOptions, locks: Sequence[LockName], stores: Sequence[StoreName]) -> int:
    """Run the demos one after the other, and return the exit status: 0 if each did what it declares."""
    console = Console()
    columns = ("lock", "guard", "sold", "agree", "wall", "p99", "locks", "calls", "declared")
    table = Table(*(Column(name, no_wrap=True) for name in columns), box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.title = f"{options.buyers} buyers, {options.stock} units, {options.instances} instances; times in ms"
    report: dict[str, Any] = {}
    not_run: list[str] = []
    try:
        for name, own, fails in _ways(options, locks, stores):
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
    console.print(
        "local and none don't keep two instances apart: with Redis they have to fail, else the guard alone has to do "
        "it. agree: numbers and orders do; calls: to the lock's server; declared: it did what docs/locks.md says.",
        highlight=False,
    )
    for line in not_run:
        console.print(line, style="yellow", markup=False, highlight=False)
    if options.report is not None:
        options.report.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(one["as_declared"] for one in report.values()) else 1


def _ways(
    options: DemoOptions, locks: Sequence[LockName], stores: Sequence[StoreName]
) -> Iterator[tuple[str, DemoOptions, bool]]:
    """Yield a name, the options, and whether it must oversell: each lock, and the optimistic ways without one."""
    for store, lock in product(stores, locks):
        # A lock that keeps nobody apart is shown without a guard, a lock for each buyer, as in the articles; in SQL
        # there is always one.
        apart = backend_class(lock).guarantees.scope in (Scope.EVERYBODY, Scope.MACHINE) or options.instances == 1
        fails = not apart and store is StoreName.REDIS
        own = replace(options, lock=lock, store=store, guard=None)
        name = f"{lock}, {store}" if len(stores) > 1 else lock
        yield name, replace(own, guard=Guard.NONE, batch_max=1) if fails else own, fails
    for store, guard in product((StoreName.MYSQL, StoreName.POSTGRES), (Guard.VERSION, Guard.TIMESTAMP)):
        if len(locks) > 1 and not (store in stores and guard is Guard.VERSION):  # else it was among the locks' demos
            yield f"none, {guard}, {store}", replace(options, lock=LockName("none"), store=store, guard=guard), False

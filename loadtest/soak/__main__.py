"""`make soak`: sells for an hour beside short faults, and says whether anything grows that must not.

    python -m loadtest.soak [--minutes 60] [--buyers 48] [--report soak-report] [--plot FILE.svg]

etcd, a durable Valkey and two instances; buyers with keys and without, repeats, hung-up clients, listeners that come
and go. Each minute something breaks for a moment. A sale lasts a twelfth of the run, then a new one begins: data of
each order goes with its sale, such as the auditor's ledger (some 90 bytes for each order with a key, in one of the
instances) and the orders themselves, in the store. So memory is a saw-tooth of several teeth a quarter, and its median
has to be flat; the bytes of an order in the store are shown by themselves.
"""

import argparse
import asyncio
import csv
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from app.errors import EXPECTED
from app.server import raise_file_limit
from lab.demo.stage import LockName, Stage, StageOptions, StoreName, set_up
from lab.servers.process import ProcessFailed, free_port
from loadtest.soak.crowd import ITEMS, Crowd
from loadtest.soak.faults import Fault, strike
from loadtest.soak.flatness import SHARE, flatness
from loadtest.soak.panels import Panel, draw
from loadtest.soak.quantities import QUANTITIES
from loadtest.soak.sampler import Sample, Sampler

_INSTANCES: Final = 2
_TTL_S: Final = 5
_SAMPLES_MIN: Final = 40  # per run: ten a quarter
_SAMPLE_EVERY_S: Final = 5.0
_FAULT_EVERY_S: Final = 60.0
_SALES: Final = 12  # one after the other: three a quarter
_JUDGED_FROM_MINUTES: Final = 20  # before that all is warm-up
_SAY_EVERY_S: Final = 60.0


@dataclass(slots=True)
class Run:
    """The observations of a run. Times are in seconds since the beginning."""

    instances: list[str]
    at_s: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)
    orders: int = 0

    def panels(self) -> list[Panel]:
        """Return all quantities, with their series."""
        found = []
        for quantity in QUANTITIES:
            columns = quantity.columns(self.instances)
            series = {column: [sample.get(column) for sample in self.samples] for column in columns}
            verdicts = {column: flatness(self.at_s, values, quantity.slack or 0.0) for column, values in series.items()}
            found.append(Panel(quantity, series, verdicts))
        return found


def complaints(panels: Sequence[Panel]) -> list[str]:
    """Return a sentence for each series that grows, or has too few values to judge."""
    found = []
    for panel in panels:
        quantity = panel.quantity
        if quantity.slack is None:
            continue
        for column, verdict in panel.verdicts.items():
            what = f"{column.rpartition(' ')[0]}: {quantity.title}" if quantity.each else quantity.title
            if verdict is None:
                found.append(f"{what}: too seldom seen to judge")
            elif not verdict.flat:
                unit = f" {quantity.unit}" if quantity.unit else ""
                found.append(
                    f"{what} grew from {verdict.before:.1f}{unit} (median of the second quarter) to "
                    f"{verdict.after:.1f}{unit} (of the last one); {SHARE:.0%} and {quantity.slack:g}{unit} more are "
                    f"allowed, which is {verdict.most:.1f}{unit}"
                )
    return found


def main() -> int:
    """Run, write and judge. Return the exit status: 1 if something grows or has ended, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--buyers", type=int, default=48, help="who are there at once")
    parser.add_argument("--report", type=Path, default=Path("soak-report"), help="for the figures and the plot")
    parser.add_argument("--plot", type=Path, help="where else the plot is written to")
    options = parser.parse_args()
    if options.minutes < 0.5:
        parser.error("argument --minutes: half a minute at least")
    raise_file_limit()
    console = Console()
    options.report.mkdir(parents=True, exist_ok=True)
    try:
        ports = tuple(free_port() for _ in range(_INSTANCES))
        stage_options = StageOptions(0, _INSTANCES, ports, None, LockName("etcd"), StoreName.REDIS, None, _TTL_S)
        with set_up(stage_options, console) as stage:
            run = asyncio.run(_soak(stage, options.minutes * 60, options.buyers, options.report, console))
    except KeyboardInterrupt:
        console.print(f"Stopped; what was seen until now is in {options.report / 'soak.csv'}.")
        return 130
    except EXPECTED as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    return _conclude(run, options, console)


def _conclude(run: Run, options: argparse.Namespace, console: Console) -> int:
    panels = run.panels()
    title = (
        f"{options.minutes:g} minutes, {run.orders:,} orders, {_INSTANCES} instances, {options.buyers} buyers at once, "
        f"{len(run.faults)} faults"
    )
    plot = draw(title, run.at_s, panels, [one.began_s for one in run.faults])
    for path in filter(None, (options.report / "soak.svg", options.plot)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plot)
    judged = options.minutes >= _JUDGED_FROM_MINUTES
    found = complaints(panels) if judged else []
    if not run.orders:
        found.append("nothing was sold")
    medians = {column: verdict and asdict(verdict) for panel in panels for column, verdict in panel.verdicts.items()}
    summary = {
        "minutes": options.minutes,
        "orders": run.orders,
        "told": run.told,
        "faults": [asdict(one) for one in run.faults],
        "medians": medians,
        "complaints": found,
    }
    (options.report / "soak.json").write_text(json.dumps(summary, indent=1) + "\n")
    console.print(f"{title}; {options.report / 'soak.csv'}, soak.json, soak.svg", highlight=False, soft_wrap=True)
    for line in found:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if not judged:
        console.print(f"Too short to say whether anything grows: {_JUDGED_FROM_MINUTES} minutes at least.")
    elif not found:
        console.print("Nothing grows.", style="green")
    return 1 if found else 0


async def _soak(stage: Stage, for_s: float, buyers: int, report: Path, console: Console) -> Run:
    sampler = Sampler(stage, ITEMS)
    crowd = Crowd([one.url for one in stage.instances], stage.variables["ADMIN_TOKEN"], buyers)
    run = Run(sampler.names)
    tasks: list[asyncio.Task[None]] = []
    try:
        await crowd.prepare()
        began = time.monotonic()

        def clock() -> float:
            return time.monotonic() - began

        tasks = crowd.begin(for_s / _SALES)
        every_s = min(_FAULT_EVERY_S, for_s / 4)
        tasks.append(asyncio.create_task(strike(stage, _TTL_S, every_s, clock, run.faults.append)))
        with ExitStack() as files:
            columns = ["at_s", *(column for one in QUANTITIES for column in one.columns(run.instances))]
            file = files.enter_context((report / "soak.csv").open("w", newline=""))
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            sample_every_s = min(_SAMPLE_EVERY_S, for_s / _SAMPLES_MIN)
            while clock() < for_s:
                await asyncio.sleep((len(run.at_s) + 1) * sample_every_s - clock())
                _raise_failure(tasks)
                sample = await sampler.sample()
                run.at_s.append(round(clock(), 1))
                run.samples.append(sample)
                run.told, run.orders = dict(sorted(crowd.told.items())), sampler.ordered
                table.writerow({"at_s": run.at_s[-1], **sample})
                file.flush()
                if len(run.at_s) % max(1, round(_SAY_EVERY_S / sample_every_s)) == 0:
                    _say(run, console)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await crowd.close()
        await sampler.close()
    return run


def _raise_failure(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        if task.done():
            task.result()  # none of our tasks ends by itself


def _say(run: Run, console: Console) -> None:
    last = run.samples[-1]
    memory = ", ".join(f"{last[f'{name} rss_mib']:.1f}" for name in run.instances)
    files = ", ".join(f"{last[f'{name} open_files']:.0f}" for name in run.instances)
    console.print(
        f"{run.at_s[-1] / 60:4.0f} min: {run.orders:,} orders, {memory} MiB, {files} files, {len(run.faults)} faults",
        highlight=False,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProcessFailed as error:
        sys.exit(str(error))

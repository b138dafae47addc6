"""`make bench`: all contenders on the same servers, in turn, several rounds; a table, JSON and a plot.

    python -m loadtest.bench [--rounds 5] [--seconds 4] [--connections 500] [--only default,nothing] [--report DIR]

The contenders take turns within each round, and begin with another one in each, so that a machine that slows down hits
all alike. What counts are the ratios: for each round by itself, then their median.
"""

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.bench.generator import Load, drive, rush
from loadtest.bench.plot import bars
from loadtest.bench.stand import CONTENDERS, Contender, Running, Stand

TARGETS = (
    ("default", "nothing", 0.9),
    ("default", "lua", 2.0),
    ("default", "articles", 60.0),
    ("sold out", "nothing", 0.95),
    ("20 pages", "default", 0.97),
)
_WARM_S = 0.7
_RUSH = ("nothing", "default")
_RUSHES = 5  # a round
_RUSH_BUYERS = 500
_RUSH_AIM = 1.5


def main() -> int:
    """Measure and print; exit status 1 if something was answered other than 200, or a connection broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--only", default="", help="some of the contenders, separated by commas")
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    known = {contender.name: contender for contender in CONTENDERS}
    for name in wanted:
        if name not in known:
            parser.error(f"argument --only: {name!r} is none of {', '.join(known)}")
    contenders = [known[name] for name in wanted] or list(CONTENDERS)
    console = Console()
    with Stand() as stand, console.status("") as status:
        status.update("Starting etcd, the store and the contenders")
        canned = stand.start(Contender("canned", "a fixed answer, without a framework", "canned"), options.instances)
        running = [stand.start(contender, options.instances) for contender in contenders]
        ceiling = drive(canned.urls(""), options.connections, options.seconds)
        rounds: list[dict[str, Load]] = []
        rushes: list[dict[str, float]] = []
        for number in range(options.rounds):
            loads: dict[str, Load] = {}
            turn = number % len(running)
            for one in running[turn:] + running[:turn]:
                status.update(f"Round {number + 1} of {options.rounds}: {one.contender.name}")
                load = loads[one.contender.name] = _measure(one, options.connections, options.seconds)
                if not load.requests:
                    parser.error(f"argument --seconds: {one.contender.name} answered nobody in {load.seconds:.1f} s")
            rounds.append(loads)
            status.update(f"Round {number + 1} of {options.rounds}: the rush")
            rushing = [one for one in running if one.contender.name in _RUSH]
            times: dict[str, list[float]] = {one.contender.name: [] for one in rushing}
            for one in rushing * _RUSHES:
                one.fill()
                times[one.contender.name].append(rush(one.urls(""), _RUSH_BUYERS))
            rushes.append({name: statistics.median(found) for name, found in times.items()})
    _print(console, contenders, rounds, ceiling)
    _print_rush(console, rushes)
    options.report.mkdir(parents=True, exist_ok=True)
    figures = {
        "options": {name: value for name, value in vars(options).items() if name != "report"},
        "ceiling": asdict(ceiling),
        "rounds": [{name: asdict(load) for name, load in one.items()} for one in rounds],
        "rush_s": rushes,
    }
    (options.report / "bench.json").write_text(json.dumps(figures, indent=1))
    (options.report / "bench.svg").write_text(
        bars({one.name: [load[one.name].per_s for load in rounds] for one in contenders}, "answers a second")
    )
    console.print(f"Figures and plot are in {options.report}", highlight=False)
    failed = sum(load.lost + load.requests - load.statuses.get("200", 0) for one in rounds for load in one.values())
    if failed:
        console.print(f"{failed} requests were not answered with 200", style="red")
    return 1 if failed else 0


def _print_rush(console: Console, rushes: list[dict[str, float]]) -> None:
    if not all(name in one for one in rushes for name in _RUSH):
        return
    doing_nothing, sale = (statistics.median(one[name] for one in rushes) * 1000 for name in _RUSH)
    ratios = sorted(one["default"] / one["nothing"] for one in rushes)
    middle = statistics.median(ratios)
    colour = "green" if middle <= _RUSH_AIM else "red"
    console.print(
        f"A rush of {_RUSH_BUYERS} buyers takes {sale:.0f} ms, and {doing_nothing:.0f} ms at the endpoint that does "
        f"nothing: [{colour}]{middle:.2f}[/] times as long ({ratios[0]:.2f}-{ratios[-1]:.2f}; aim: {_RUSH_AIM})",
        highlight=False,
    )


def _measure(running: Running, connections: int, seconds: float) -> Load:
    running.fill()
    with running.watched():
        drive(running.urls(""), connections, _WARM_S)
        return drive(running.urls(""), connections, seconds)


def _print(console: Console, contenders: list[Contender], rounds: list[dict[str, Load]], ceiling: Load) -> None:
    table = Table("", "", "answers/s", "spread", "p50", "p99", title=f"Median of {len(rounds)} rounds")
    for contender in contenders:
        loads = [one[contender.name] for one in rounds]
        per_s = [load.per_s for load in loads]
        table.add_row(
            contender.name,
            contender.what,
            f"{statistics.median(per_s):,.0f}",
            f"{min(per_s):,.0f}-{max(per_s):,.0f}",
            f"{statistics.median(load.p50_ms for load in loads):.1f} ms",
            f"{statistics.median(load.p99_ms for load in loads):.1f} ms",
        )
    console.print(table)
    ratios = Table("ratio", "median", "spread", "aim")
    for one, other, aim in TARGETS:
        if all(one in loads and other in loads for loads in rounds):
            found = [loads[one].per_s / loads[other].per_s for loads in rounds]
            middle = statistics.median(found)
            colour = "green" if middle >= aim else "red"
            ratios.add_row(
                f"{one} : {other}", f"[{colour}]{middle:.2f}[/]", f"{min(found):.2f}-{max(found):.2f}", f"{aim:g}"
            )
    if ratios.row_count:
        console.print(ratios)
    console.print(
        f"Load by {ceiling.program}, which drives two servers with a fixed answer at {ceiling.per_s:,.0f} a second.",
        highlight=False,
    )


if __name__ == "__main__":
    raise SystemExit(main())

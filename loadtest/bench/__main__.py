"""`make bench`: all contenders on the same servers, in turn, several rounds; a table, JSON and a plot.

    python -m loadtest.bench [--rounds 5] [--seconds 4] [--connections 500] [--only "default,lua"] [--report DIR]
    python -m loadtest.bench --store postgres       one PostgreSQL for lock, stock, and what one would write on it

A row is a contender and what its buyers send: a POST as a browser sends it, with a key, or (`get`) the articles' bare
GET. The rows take turns within each round, and begin with another one in each, so that a machine that slows down hits
all alike. The ratios matter: for each round by itself, then their median.
"""

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.bench.generator import Load, Request, drive, rush
from loadtest.bench.plot import bars
from loadtest.bench.stand import CONTENDERS, ComparedApp, Running, Stand

ROWS = (
    *("default", "asgi-wait", "nothing", "lua"),
    *("default get", "asgi get", "asgi-wait get", "nothing get", "lua get"),
    *("articles get", "batch_max=1 get", "20 pages get", "sold out get"),
)
ONE_WOULD_WRITE = ("update", "skip-locked", "advisory")
ROWS_ON_POSTGRES = ("default", *ONE_WOULD_WRITE)
TARGETS = (
    ("default", "asgi-wait", 0.6),
    ("default", "nothing", 1.8),
    ("default", "lua", 3.0),
    ("default get", "asgi-wait get", 0.65),
    ("default get", "nothing get", 0.9),
    ("default get", "lua get", 2.0),
    ("default get", "articles get", 60.0),
    ("sold out get", "asgi get", 0.9),
    ("20 pages get", "default get", 0.97),
    ("default", ", ".join(ONE_WOULD_WRITE), 3.0),  # the best of them
)
_P99_AIM = 2.0  # times the p50 of the default
_WARM_S = 0.7
_RUSH = ("nothing get", "default get")
_RUSHES = 5  # per round
_RUSH_BUYERS = 500
_RUSH_AIM = 1.5


def main() -> int:
    """Measure and print; exit status 1 if something was answered other than 200, or a connection broke.

    A contender that answers nobody in time is reported, and has no ratio.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--store", choices=("redis", "postgres"), default="redis")
    parser.add_argument("--only", default="", help="some of the rows, separated by commas")
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    possible = ROWS_ON_POSTGRES if options.store == "postgres" else ROWS
    for name in wanted:
        if name not in possible:
            parser.error(f"argument --only: {name!r} is none of {', '.join(possible)}")
    rows = wanted or list(possible)
    console = Console()
    with Stand(postgres=options.store == "postgres") as stand, console.status("") as status:
        status.update("Starting the servers and the contenders")
        canned = stand.start(ComparedApp("canned", "a fixed answer, without a framework", "canned"), options.instances)
        running = {
            name: stand.start(CONTENDERS[name], options.instances)
            for name in dict.fromkeys(_contender(row) for row in rows)
        }
        ceiling = drive(canned.urls(""), options.connections, options.seconds)
        rounds: list[dict[str, Load]] = []
        rushes: list[dict[str, float]] = []
        for number in range(options.rounds):
            loads: dict[str, Load] = {}
            turn = number % len(rows)
            for row in rows[turn:] + rows[:turn]:
                status.update(f"Round {number + 1} of {options.rounds}: {row}")
                loads[row] = _measure(running[_contender(row)], _request(row), options.connections, options.seconds)
            rounds.append(loads)
            status.update(f"Round {number + 1} of {options.rounds}: the rush")
            times: dict[str, list[float]] = {row: [] for row in rows if row in _RUSH}
            for row in list(times) * _RUSHES:
                one = running[_contender(row)]
                one.fill()
                times[row].append(rush(one.urls(""), _RUSH_BUYERS))
            rushes.append({row: statistics.median(found) for row, found in times.items()})
        durability = stand.durability()
    _print(console, rows, rounds, ceiling, durability)
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
        bars({row: [loads[row].per_s for loads in rounds] for row in rows}, "answers a second")
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
    ratios = sorted(one[_RUSH[1]] / one[_RUSH[0]] for one in rushes)
    middle = statistics.median(ratios)
    colour = "green" if middle <= _RUSH_AIM else "red"
    console.print(
        f"A rush of {_RUSH_BUYERS} buyers takes {sale:.0f} ms, and {doing_nothing:.0f} ms at the endpoint that does "
        f"nothing: [{colour}]{middle:.2f}[/] times as long ({ratios[0]:.2f}-{ratios[-1]:.2f}; aim: {_RUSH_AIM})",
        highlight=False,
    )


def _contender(row: str) -> str:
    return row.removesuffix(" get")


def _request(row: str) -> Request:
    return Request.GET if row.endswith(" get") else Request.POST


def _measure(running: Running, request: Request, connections: int, seconds: float) -> Load:
    running.fill()
    with running.watched():
        drive(running.urls(""), connections, _WARM_S, request=request)
        return drive(running.urls(""), connections, seconds, request=request)


def _print(console: Console, rows: list[str], rounds: list[dict[str, Load]], ceiling: Load, durability: str) -> None:
    table = Table("", "", "answers/s", "spread", "p50", "p99", title=f"Median of {len(rounds)} rounds")
    for row in rows:
        loads = [one[row] for one in rounds]
        per_s = [load.per_s for load in loads]
        answered = any(per_s)
        table.add_row(
            row,
            CONTENDERS[_contender(row)].what,
            f"{statistics.median(per_s):,.0f}" if answered else "no answer",
            f"{min(per_s):,.0f}-{max(per_s):,.0f}" if answered else "",
            f"{statistics.median(load.p50_ms for load in loads):.1f} ms" if answered else "",
            f"{statistics.median(load.p99_ms for load in loads):.1f} ms" if answered else "",
        )
    console.print(table)
    ratios = Table("ratio", "median", "spread", "aim")
    for one, others, aim in TARGETS:
        found = [
            loads[one].per_s / max(loads[other].per_s for other in others.split(", "))
            for loads in rounds
            if one in loads and all(_answers(loads, other) for other in others.split(", "))
        ]
        if found:
            middle = statistics.median(found)
            colour = "green" if middle >= aim else "red"
            spread = f"{min(found):.2f}-{max(found):.2f}"
            ratios.add_row(f"{one} : {others}", f"[{colour}]{middle:.2f}[/]", spread, f"{aim:g}")
    late = [loads["default"].p99_ms / loads["default"].p50_ms for loads in rounds if _answers(loads, "default")]
    if late:
        middle = statistics.median(late)
        colour = "green" if middle <= _P99_AIM else "red"
        spread = f"{min(late):.2f}-{max(late):.2f}"
        ratios.add_row("default, p99 : p50", f"[{colour}]{middle:.2f}[/]", spread, f"{_P99_AIM:g} at most")
    if ratios.row_count:
        console.print(ratios)
    console.print(
        f"Load by {ceiling.program}, which drives two servers with a fixed answer at {ceiling.per_s:,.0f} a second."
        f"{durability}",
        highlight=False,
    )


def _answers(loads: dict[str, Load], row: str) -> bool:
    return row in loads and loads[row].requests > 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`seckill rehearse`: the expected load of a sale, sent to the user's own servers, with a report."""

import json
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from app.errors import SeckillError
from lab.demo.demo import crowd_argv

_DETAILS_SHOWN: Final = 5
_SPARE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Buyers and their behavior: see the options of `loadtest/locustfile.py`."""

    hosts: Sequence[str]
    buyers: int
    skus: Sequence[str]
    quantity: int
    over_s: float
    retries: int
    again: float
    sign_with: Path | None
    report: Path | None
    pay: float | None = None


def run(rehearsal: Rehearsal) -> int:
    """Send the buyers, show their answers; return the exit status: 0 if the sale was consistent and nobody failed."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="seckill-rehearsal-") as folder:
        file = rehearsal.report or Path(folder) / "report.json"
        with console.status(f"{rehearsal.buyers:,} buyers come to {', '.join(rehearsal.hosts)}"):
            done = subprocess.run(argv_of(rehearsal, file), capture_output=True, text=True, timeout=_limit_s(rehearsal))
        try:
            report: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError):
            raise SeckillError(f"the buyers left no report: {done.stderr.strip()[-500:]}") from None
    console.print(_items(report))
    console.print(_buyers(report))
    for detail, count in Counter(answer["detail"] for answer in report["answers"] if answer["detail"]).most_common(
        _DETAILS_SHOWN
    ):
        console.print(f"{count:,} failed: {detail}", markup=False, highlight=False)
    for problem in report["problems"][:_DETAILS_SHOWN]:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    if not report["problems"]:
        console.print("Consistent: stock + sold is what it was, and each buyer who was told so has an order.")
    return 1 if report["problems"] else 0


def _limit_s(rehearsal: Rehearsal) -> float:
    return _SPARE_S + rehearsal.over_s + rehearsal.buyers / 50 + 15 * rehearsal.retries


def argv_of(rehearsal: Rehearsal, report: Path) -> list[str]:
    """Return the command that sends the buyers and writes the report."""
    argv = crowd_argv(rehearsal.hosts, rehearsal.buyers, report, "--stop-timeout", "5")
    argv += ["--sku", ",".join(rehearsal.skus), "--quantity", str(rehearsal.quantity), "--over", str(rehearsal.over_s)]
    argv += ["--retries", str(rehearsal.retries), "--again", str(rehearsal.again)]
    if rehearsal.sign_with is not None:
        argv += ["--sign-with", str(rehearsal.sign_with)]
    if rehearsal.pay is not None:
        argv += ["--pay", str(rehearsal.pay)]
    return argv


def _items(report: dict[str, Any]) -> Table:
    table = Table("item", "stock before", "stock after", "sold", "sold out", "other outcomes", "failed")
    for sku, before in report["before"].items():
        after = report["after"][sku]
        outcomes = Counter(answer["outcome"] for answer in report["answers"] if answer["sku"] == sku)
        known = {name: outcomes.pop(name, 0) for name in ("sold", "sold_out", "failed")}
        others = ", ".join(f"{name}: {count:,}" for name, count in sorted(outcomes.items())) or "-"
        stocks = [f"{level['stock']:,}" if level else "?" for level in (before, after)]
        table.add_row(sku, *stocks, f"{known['sold']:,}", f"{known['sold_out']:,}", others, f"{known['failed']:,}")
    return table


def _buyers(report: dict[str, Any]) -> Table:
    answers = report["answers"]
    latencies = sorted(answer["latency_ms"] for answer in answers) or [0.0]
    cuts = statistics.quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    table = Table(show_header=False)
    table.add_row("buyers", f"{len(answers):,} in {report['wall_s']:.1f} s")
    table.add_row(
        "told after, p50 / p95 / p99 / last",
        " / ".join(f"{cuts[n]:,.0f}" for n in (49, 94, 98)) + f" / {latencies[-1]:,.0f} ms",
    )
    table.add_row("asked again", f"{sum(answer['tries'] > 1 for answer in answers):,} buyers")
    return table

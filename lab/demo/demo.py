"""`seckill demo`: the whole sale on one machine, and the audit of its outcome."""

import asyncio
import json
import statistics
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from app.audit import Audit
from app.errors import ConfigurationError
from app.orders import DEFAULT_SKU, OrderId
from app.sale import Shop
from app.settings import Guard
from fencelock import Scope
from fencelock.registry import backend_class
from lab.demo.stage import LockName, Stage, StageOptions, set_up
from lab.demo.up import stay_up
from lab.demo.whereabouts import Whereabouts, whereabouts
from lab.servers.process import Process, ProcessFailed

_POLL_S: Final = 0.05
_PROBLEMS_SHOWN: Final = 5
_RUSH_WITHIN_S: Final = 120.0
_HOLD_S: Final = 4  # short, as the demo waits until unpaid holds run out; but longer than a crowd waits for its answers
_PATIENCE_S: Final = 30
_ENDS_WITHIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class DemoOptions(StageOptions):
    """The command line's options for the stage and the rush. `pay`: units are held, and so many percent pay."""

    buyers: int
    report: Path | None
    keep: bool
    pay: float | None = None


@dataclass(slots=True)
class Figures:
    """The outcome of a rush. Latencies are as the buyers saw them."""

    sold: int
    sold_out: int
    failed: int
    stock: int
    lucky: int
    orders: int
    oversold: int
    consistent: bool
    problems: list[str]
    sold_per_instance: dict[str, int]
    wall_s: float
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    locks_taken: int
    buyers_per_lock: float
    lock_calls: int
    whereabouts: Whereabouts | None = None


def run(options: DemoOptions) -> int:
    """Run the demo, and return the exit status."""
    console = Console()
    try:
        with on_stage(options, console) as stage:
            figures = rush(options, stage, console)
            _show(options, console, stage, figures)
            if options.keep:
                stay_up(stage, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0 if figures.consistent else 1


def on_stage(options: DemoOptions, console: Console) -> AbstractContextManager[Stage]:
    """Return a stage that is ready for the rush. Raises the errors of `set_up`."""
    locustfile()  # a missing file is reported before anything is started
    if options.pay is not None and options.chosen_guard is Guard.NONE:
        raise ConfigurationError("--pay needs a guard: units can't be held without one")
    variables = {
        # The demo audits at the end; an auditor's calls would be counted among the locks'.
        **({} if options.keep else {"AUDIT_INTERVAL_S": "0"} if options.pay is None else _WINDOWS),
        # Everybody comes at once, and must be admitted.
        "QUEUE_MAX": str(max(20_000, options.buyers)),
        "PURCHASE_TIMEOUT_MS": str(max(10_000, 40 * options.buyers)),
    }
    return set_up(options, console, variables)


# The auditor's instance gives back holds that have run out while nobody buys.
_WINDOWS: Final = {"AUDIT_INTERVAL_S": "1", "HOLD_S": str(_HOLD_S), "PAY_S": str(2 * _HOLD_S), "GRACE_S": "0.5"}


def rush(options: DemoOptions, stage: Stage, console: Console) -> Figures:
    """Admit the buyers, and audit."""
    with _steps(console) as steps:
        return asyncio.run(_sell(options, stage, steps))


def _show(options: DemoOptions, console: Console, stage: Stage, figures: Figures) -> None:
    console.print(_table(options, stage, figures))
    if figures.whereabouts is not None:
        console.print(_where_units_went(figures.whereabouts))
    for problem in figures.problems[-_PROBLEMS_SHOWN:]:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    if len(figures.problems) > _PROBLEMS_SHOWN:
        console.print(f"  and {len(figures.problems) - _PROBLEMS_SHOWN} more before these", style="red")
    if options.report is not None:
        asked = asdict(options) | {"report": str(options.report), "guard": stage.guard}
        report = {"options": asked, "ports": stage.ports, **asdict(figures)}
        options.report.write_text(json.dumps(report, indent=2) + "\n")
        console.print(f"All figures are in {options.report}")
    if figures.oversold and stage.guard is Guard.NONE:
        console.print(_meant(options, figures.oversold), style="bold", highlight=False)


def _meant(options: DemoOptions, oversold: int) -> str:
    """Explain the result of a sale that was run without a guard on purpose."""
    scope = backend_class(options.lock).guarantees.scope
    many = f"{oversold:,} units were" if oversold > 1 else "one unit was"
    if scope in (Scope.EVERYBODY, Scope.MACHINE):
        cause = "A holder that was late wrote all the same, as nothing guards the store"
    elif scope is Scope.PROCESS:
        cause = "Each instance has a lock of its own, and nothing guards the store"
    else:
        cause = "No lock keeps the buyers apart, and nothing guards the store"
    return (
        f"This is what you were meant to see. {cause}: {many} sold that did not exist. That is what a lock that all "
        "instances share is for, and a store that checks its fencing token: `seckill demo` has both."
    )


async def _sell(options: DemoOptions, stage: Stage, steps: Progress) -> Figures:
    async with stage.open_sale() as sale:
        urls = [instance.url for instance in stage.instances]
        await sale.stock.set_stock(DEFAULT_SKU, options.stock, new_sale=True)
        calls = stage.locks.calls()
        answers = await _rush(options, urls, steps, sale.shop)
        calls = stage.locks.calls() - calls
        if options.pay is not None:
            await _until_all_holds_end(sale.shop, steps)
        step = steps.add_task("Auditing", total=None)
        found = await sale.audit(DEFAULT_SKU)
        missing = [
            answer["order"]
            for answer in answers["answers"]
            if answer["outcome"] == "sold" and not await _is_there(sale.shop, answer["order"])
        ]
        figures = _figures(options, stage.ports, answers, found, missing, sum(map(_locks_taken, urls)), calls)
        if options.pay is not None:
            figures.whereabouts = await whereabouts(sale.store, await sale.shop.level(DEFAULT_SKU))
        steps.remove_task(step)
        return figures


async def _is_there(shop: Shop, order_id: str) -> bool:
    order = OrderId.parse(order_id)
    return order is not None and await shop.order(order) is not None


async def _until_all_holds_end(shop: Shop, steps: Progress) -> None:
    """Wait until the holds whose buyers have gone run out."""
    step = steps.add_task("Waiting for the last holds to run out", total=None)
    give_up_at = asyncio.get_running_loop().time() + _ENDS_WITHIN_S
    # Holds end in the store, and nobody here is told.
    while (await shop.level(DEFAULT_SKU)).held and asyncio.get_running_loop().time() < give_up_at:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    steps.remove_task(step)


async def _rush(options: DemoOptions, urls: list[str], steps: Progress, shop: Shop) -> dict[str, Any]:
    """Admit the crowd, and return the answer of each buyer."""
    pay = [] if options.pay is None else ["--pay", str(options.pay), "--patience", str(_PATIENCE_S)]
    crowd = Process(
        "crowd", lambda folder: crowd_argv(urls, options.buyers, folder / "report.json", "--stop-timeout", "1", *pay)
    )
    gathering = steps.add_task(f"{options.buyers} buyers gather at the door", total=None)
    selling = steps.add_task("Units sold", total=options.stock, visible=False)
    try:
        crowd.start()
        give_up_at = asyncio.get_running_loop().time() + _RUSH_WITHIN_S + options.buyers / 50
        while crowd.running:
            level = await shop.level(DEFAULT_SKU)
            if level.lucky:
                steps.update(gathering, visible=False)
                steps.update(selling, visible=True, completed=min(level.lucky, options.stock))
            if asyncio.get_running_loop().time() > give_up_at:
                raise ProcessFailed(f"the buyers did not come to an end:\n{crowd.last_lines()}")
            await asyncio.sleep(_POLL_S)
        try:
            answers: dict[str, Any] = json.loads((crowd.directory / "report.json").read_text())
        except (OSError, ValueError):
            raise ProcessFailed(f"the buyers left no report:\n{crowd.last_lines()}") from None
    finally:
        crowd.stop()
        steps.remove_task(gathering)
        steps.remove_task(selling)
    return answers


def _figures(
    options: DemoOptions,
    ports: list[int],
    answers: dict[str, Any],
    found: Audit,
    missing: list[str],
    locks: int,
    calls: int,
) -> Figures:
    told = answers["answers"]
    count = {name: sum(answer["outcome"] == name for answer in told) for name in ("sold", "sold_out", "failed")}
    problems = list(found.violations)
    if len(told) != options.buyers:
        problems.append(f"{options.buyers - len(told)} buyers got no answer")
    if count["failed"]:
        first = next(answer["detail"] for answer in told if answer["outcome"] == "failed")
        hint = "; `ulimit -n` bounds the open files" if "too many connections" in first else ""
        problems.append(f"{count['failed']} buyers were refused without cause, the first with: {first}{hint}")
    problems += answers["problems"] if options.pay is not None else []
    if options.pay is not None:
        if found.stock and count["sold_out"]:
            problems.append(f"{found.stock} units were left to buyers who wanted them")
    elif count["sold"] < min(options.stock, options.buyers):
        problems.append(
            f"{min(options.stock, options.buyers) - count['sold']} units were left unsold to buyers who wanted them"
        )
    if missing:
        problems.append(f"{len(missing)} buyers were told 'sold' and have no order")
    latencies = sorted(answer["latency_ms"] for answer in told) or [0.0]
    cuts = statistics.quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    return Figures(
        sold=count["sold"],
        sold_out=count["sold_out"],
        failed=count["failed"],
        stock=found.stock,
        lucky=found.lucky,
        orders=found.orders,
        oversold=found.oversold,
        consistent=not problems,
        problems=problems,
        sold_per_instance={str(port): found.units_per_instance.get(str(port), 0) for port in ports},
        wall_s=round(answers["wall_s"], 4),
        latency_p50_ms=round(cuts[49], 2),
        latency_p95_ms=round(cuts[94], 2),
        latency_p99_ms=round(cuts[98], 2),
        locks_taken=locks,
        buyers_per_lock=round(len(told) / locks, 1) if locks else 0.0,
        lock_calls=calls,
    )


def _table(options: DemoOptions, stage: Stage, figures: Figures) -> Table:
    how = f"lock: {options.lock}, guard: {stage.guard}, instances on {', '.join(map(str, stage.ports))}"
    table = Table(title=f"{options.buyers} buyers, {options.stock} units", caption=how, show_header=False, min_width=56)
    rows: list[tuple[str, Any]] = [
        ("sold", figures.sold),
        ("sold out", figures.sold_out),
        ("failed", figures.failed),
        ("stock", figures.stock),
        ("units sold", figures.lucky),
        ("orders", figures.orders),
        *([("[red]oversold[/]", f"[red]{figures.oversold} units[/]")] if figures.oversold else []),
        ("consistent", "[green]yes[/]" if figures.consistent else "[red]NO[/]"),
        (
            "sold per instance",
            ", ".join(f"{name}: {units}" for name, units in figures.sold_per_instance.items()) or "-",
        ),
        ("wall time of the rush", f"{figures.wall_s * 1000:.0f} ms"),
        (
            "latency p50 / p95 / p99",
            f"{figures.latency_p50_ms:.0f} / {figures.latency_p95_ms:.0f} / {figures.latency_p99_ms:.0f} ms",
        ),
        ("locks taken", "-" if options.lock is LockName("none") else figures.locks_taken),
        ("buyers per lock", "-" if options.lock is LockName("none") else figures.buyers_per_lock),
    ]
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def _where_units_went(found: Whereabouts) -> Table:
    table = Table(title="Where each unit went, by the journal", show_header=False, min_width=56)
    rows: list[tuple[str, str]] = [
        ("sold at first try", f"{found.at_first_try}"),
        ("sold after it came back", f"{found.after_it_came_back}"),
        ("still left", f"{found.left}"),
        ("still held", f"{found.held}"),
        ("all units", f"{found.left + found.held + found.sold}"),
        ("came back", f"{found.came_back} (ran out: {found.ran_out}, cancelled: {found.cancelled})"),
        ("payments", f"{found.payments}"),
        ("to be given back", f"{found.not_needed} (paid twice: {found.duplicates}, too late: {found.too_late})"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _locks_taken(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "seckill_lock_hold_seconds_count":
                return int(sample.value)
    return 0


def crowd_argv(urls: Sequence[str], buyers: int, report: Path, *more: str) -> list[str]:
    """Return the command that sends so many buyers at once, with more options, and writes the report."""
    argv = [sys.executable, "-m", "locust", "-f", str(locustfile()), "--headless", "--only-summary"]
    argv += ["--loglevel", "WARNING", "-u", str(buyers), "-r", str(buyers), "--host", ",".join(urls)]
    return [*argv, "--report", str(report), *more]


def locustfile() -> Path:
    """Return the load test's file. Raises `ConfigurationError` where there is none."""
    file = Path(__file__).parents[2] / "loadtest" / "locustfile.py"
    if not file.is_file():
        raise ConfigurationError("the load test is missing; in the checkout: pip install --group demo")
    return file


class _Count(MofNCompleteColumn):
    """A counter that shows nothing, instead of "0/?", for a step that has no count."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


@contextmanager
def _steps(console: Console) -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), _Count(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress

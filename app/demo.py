"""`seckill demo`: the whole sale on one machine, and the audit of what came out."""

import asyncio
import json
import os
import secrets
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from app.embedded import EtcdMember, Valkey
from app.errors import ConfigurationError
from app.main import open_shop
from app.process import Process, ProcessFailed, port_is_free
from app.sale import Audit, Shop
from app.settings import PREFIX, Guard, LockName, load
from app.stock import DEFAULT_SKU

_POLL_S: Final = 0.05
_RUSH_WITHIN_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line says."""

    buyers: int
    stock: int
    instances: int
    ports: tuple[int, ...]
    batch_max: int | None
    lock: LockName
    guard: Guard
    report: Path | None
    keep: bool


@dataclass(slots=True)
class Figures:
    """What came out of a rush. Latencies are as the buyers saw them."""

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


def run(options: DemoOptions) -> int:
    """Run it; the exit status."""
    console = Console()
    if options.lock is LockName.NONE and options.guard is Guard.FENCE:
        raise ConfigurationError("--lock none gives no fencing tokens to guard with; add --guard none")
    crowd_file = _locustfile()
    try:
        with ExitStack() as servers, _steps(console) as steps:
            try:
                return _run(options, console, crowd_file, servers, steps)
            finally:
                steps.stop()
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130


def _run(options: DemoOptions, console: Console, crowd_file: Path, servers: ExitStack, steps: Progress) -> int:
    token = secrets.token_urlsafe(16)
    step = steps.add_task("Starting etcd and Valkey", total=None)
    etcd = servers.enter_context(EtcdMember())
    valkey = servers.enter_context(Valkey(durable=True))
    variables = {
        "ETCD_ENDPOINTS": etcd.endpoint,
        "REDIS_URL": valkey.url,
        "LOCK_BACKEND": options.lock.value,
        "GUARD": options.guard.value,
        "ADMIN_TOKEN": token,
        # Everybody comes at once, and must be let in.
        "QUEUE_MAX": str(max(20_000, options.buyers)),
        "PURCHASE_TIMEOUT_MS": str(max(10_000, 40 * options.buyers)),
    }
    if options.batch_max is not None:
        variables["BATCH_MAX"] = str(options.batch_max)
    env = os.environ | {PREFIX + name: value for name, value in variables.items()}
    steps.update(step, description=f"Starting {options.instances} instances")
    ports = _choose_ports(options, console)
    instances = [servers.enter_context(_Instance(port, env)) for port in ports]
    steps.remove_task(step)

    figures = asyncio.run(_sell(options, env, ports, crowd_file, steps))
    steps.stop()
    console.print(_table(options, ports, figures))
    for problem in figures.problems:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    if options.report is not None:
        report = {"options": asdict(options) | {"report": str(options.report)}, "ports": ports, **asdict(figures)}
        options.report.write_text(json.dumps(report, indent=2) + "\n")
        console.print(f"All figures are in {options.report}")
    if options.keep:
        _stay(console, [_url(port) for port in ports], token, etcd, valkey, instances)
    return 0 if not figures.problems else 1


class _Instance(Process):
    def __init__(self, port: int, env: dict[str, str]) -> None:
        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"{_url(port)}/readyz", timeout=2) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        argv = [sys.executable, "-m", "app", "serve", "--port", str(port)]
        super().__init__(
            f"instance-{port}",
            lambda _: argv,
            ready=ready,
            env=env | {f"{PREFIX}INSTANCE": str(port)},
            ready_within_s=30,
        )


async def _sell(
    options: DemoOptions, env: dict[str, str], ports: list[int], crowd_file: Path, steps: Progress
) -> Figures:
    settings = load(
        etcd_endpoints=env[f"{PREFIX}ETCD_ENDPOINTS"],
        redis_url=env[f"{PREFIX}REDIS_URL"],
        lock_backend=options.lock,
        guard=options.guard,
        instance="demo",
    )
    async with open_shop(settings) as shop:
        urls = [_url(port) for port in ports]
        await shop.set_stock(DEFAULT_SKU, options.stock, new_sale=True)
        answers = await _rush(options, urls, crowd_file, steps, shop)
        step = steps.add_task("Auditing", total=None)
        found = await shop.audit(DEFAULT_SKU)
        missing = [
            answer["order"]
            for answer in answers["answers"]
            if answer["outcome"] == "sold" and await shop.order(answer["order"]) is None
        ]
        figures = _figures(options, ports, answers, found, missing, sum(map(_locks_taken, urls)))
        steps.remove_task(step)
        return figures


async def _rush(options: DemoOptions, urls: list[str], crowd_file: Path, steps: Progress, shop: Shop) -> dict[str, Any]:
    """Let the crowd in; what every buyer was told."""
    argv = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(crowd_file),
        "--headless",
        "--only-summary",
        "--loglevel",
        "WARNING",
    ]
    argv += ["-u", str(options.buyers), "-r", str(options.buyers), "--host", ",".join(urls), "--stop-timeout", "1"]
    crowd = Process("crowd", lambda folder: [*argv, "--report", str(folder / "report.json")])
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
    options: DemoOptions, ports: list[int], answers: dict[str, Any], found: Audit, missing: list[str], locks: int
) -> Figures:
    told = answers["answers"]
    count = {name: sum(answer["outcome"] == name for answer in told) for name in ("sold", "sold_out", "failed")}
    problems = list(found.violations)
    if len(told) != options.buyers:
        problems.append(f"{options.buyers - len(told)} buyers got no answer")
    if count["failed"]:
        first = next(answer["detail"] for answer in told if answer["outcome"] == "failed")
        problems.append(f"{count['failed']} buyers were refused without cause, the first with: {first}")
    if count["sold"] < min(options.stock, options.buyers):
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
    )


def _table(options: DemoOptions, ports: list[int], figures: Figures) -> Table:
    how = f"lock: {options.lock}, guard: {options.guard}, instances on {', '.join(map(str, ports))}"
    table = Table(title=f"{options.buyers} buyers, {options.stock} units", caption=how, show_header=False, min_width=56)
    rows: list[tuple[str, Any]] = [
        ("sold", figures.sold),
        ("sold out", figures.sold_out),
        ("failed", figures.failed),
        ("stock", figures.stock),
        ("lucky", figures.lucky),
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
        ("locks taken", "-" if options.lock is LockName.NONE else figures.locks_taken),
        ("buyers per lock", "-" if options.lock is LockName.NONE else figures.buyers_per_lock),
    ]
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def _choose_ports(options: DemoOptions, console: Console) -> list[int]:
    """The wanted ports, ten apart when more are needed; the next free one for one in use, and it says so."""
    wanted = list(options.ports[: options.instances])
    while len(wanted) < options.instances:
        wanted.append(wanted[-1] + 10)
    chosen: list[int] = []
    for port in wanted:
        free = next((other for other in range(port, 65536) if other not in chosen and port_is_free(other)), None)
        if free is None:
            raise ConfigurationError(f"no free port from {port} on")
        if free != port:
            console.print(f"Port {port} is in use; taking {free}.")
        chosen.append(free)
    return chosen


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _locks_taken(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "seckill_lock_hold_seconds_count":
                return int(sample.value)
    return 0


def _stay(
    console: Console, urls: list[str], token: str, etcd: EtcdMember, valkey: Valkey, instances: Sequence[Process]
) -> None:
    """Stay up until Ctrl-C, and say so when one of the processes ends before that."""
    lines = [f"{url}{path}" for url in urls for path in ("/stock/reduce", "/stock", "/docs")]
    lines += [
        f"admin token: {token}",
        "",
        "For `seckill stock`, `seckill locks` and `seckill check` in another terminal:",
        f"export SECKILL_ETCD_ENDPOINTS={etcd.endpoint} SECKILL_REDIS_URL={valkey.url}",
        f"{Path(sys.executable).with_name('seckill')} stock set 300 --new-sale",
        "",
        "Ctrl-C ends it.",
    ]
    console.print()
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, highlight=False)
    watched = [etcd, valkey, *instances]
    try:
        while True:
            for process in [one for one in watched if not one.running]:
                watched.remove(process)
                console.print(f"{process.name} has ended:\n{process.last_lines(3)}", style="red", markup=False)
            time.sleep(0.5)
    except KeyboardInterrupt:
        console.print("Stopped.")


def _locustfile() -> Path:
    here = Path(__file__).parent
    for file in (here / "_loadtest" / "locustfile.py", here.parent / "loadtest" / "locustfile.py"):
        if file.is_file():
            return file
    raise ConfigurationError("the load test is missing; install seckill with: pip install 'seckill[demo]'")


class _Count(MofNCompleteColumn):
    """Nothing for a step that has no count, instead of "0/?"."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


@contextmanager
def _steps(console: Console) -> Iterator[Progress]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _Count(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress

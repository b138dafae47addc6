"""`seckill demo`: the whole sale on one machine, and the audit of what came out."""

import asyncio
import json
import os
import secrets
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from app.embedded import LockServers, MariaDB, Valkey
from app.errors import ConfigurationError
from app.locks import Reach
from app.locks.registry import backend_class
from app.main import open_shop, open_store
from app.process import Process, ProcessFailed, port_is_free
from app.sale import Audit, Shop
from app.settings import NOT_THERE, PREFIX, Guard, LockName, StoreName, load
from app.stock import DEFAULT_SKU

_POLL_S: Final = 0.05
_PROBLEMS_SHOWN: Final = 5
_RUSH_WITHIN_S: Final = 120.0
# The settings that lead to the servers, for other terminals.
_LEADING: Final = {
    *("LOCK_BACKEND", "STORE", "GUARD", "ETCD_ENDPOINTS", "REDIS_URL", "LOCK_REDIS_URL", "REDLOCK_URLS"),
    "ZOOKEEPER_HOSTS",
    "MYSQL_URL",
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line says."""

    buyers: int
    stock: int
    instances: int
    ports: tuple[int, ...]
    batch_max: int | None
    lock: LockName
    store: StoreName
    guard: Guard | None
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
    lock_calls: int


def run(options: DemoOptions) -> int:
    """Run it; the exit status."""
    _guard(options)
    console = Console()
    try:
        with ExitStack() as servers, _steps(console) as steps:
            try:
                stage = _set_up(options, console, servers, steps)
                figures = stage.rush(steps)
                steps.stop()
                _show(options, console, stage, figures)
                if options.keep:
                    _stay(console, stage)
            finally:
                steps.stop()
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0 if figures.consistent else 1


def run_all(options: DemoOptions) -> int:
    """The same rush over each lock, and what came out side by side; 0 if each did what it declares."""
    console = Console()
    columns = ("lock", "guard", "sold", "agree", "wall", "p99", "locks", "calls", "declared")
    table = Table(*(Column(name, no_wrap=True) for name in columns), box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.title = f"{options.buyers} buyers, {options.stock} units, {options.instances} instances; times in ms"
    report: dict[str, Any] = {}
    not_run: list[str] = []
    try:
        for name, own, fails in _ways(options):
            with ExitStack() as servers, _steps(console) as steps:
                try:
                    figures = _set_up(own, console, servers, steps).rush(steps)
                except ConfigurationError as missing:
                    not_run.append(f"{name} was not run: {missing}")
                    continue
                finally:
                    steps.stop()
            as_declared = figures.oversold > 0 if fails else figures.consistent
            report[name] = asdict(figures) | {"guard": own.guard, "as_declared": as_declared}
            table.add_row(
                name,
                own.guard,
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
        f"local and none keep two instances apart from nothing: {to_fail}. agree: numbers and "
        "orders do; calls: to the lock's server; declared: it did what docs/locks.md says.",
        highlight=False,
    )
    for line in not_run:
        console.print(line, style="yellow", markup=False, highlight=False)
    if options.report is not None:
        options.report.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(one["as_declared"] for one in report.values()) else 1


def _ways(options: DemoOptions) -> Iterator[tuple[str, DemoOptions, bool]]:
    """A name, what to run, and whether that must oversell: each lock, and the optimistic ways without one."""
    for lock in LockName:
        # What keeps nobody apart is shown without a guard, a lock for each buyer, as in the articles; in MySQL
        # there is always one.
        apart = backend_class(lock).guarantees.reach is Reach.EVERYBODY or options.instances == 1
        fails = not apart and options.store is StoreName.REDIS
        guard = Guard.NONE if fails else _best_guard(lock, options.store)
        batch_max = 1 if fails else options.batch_max
        yield lock, replace(options, lock=lock, guard=guard, batch_max=batch_max), fails
    in_mysql = replace(options, lock=LockName.NONE, store=StoreName.MYSQL)
    for guard in (Guard.VERSION, Guard.TIMESTAMP):
        if (options.store, guard) != (StoreName.MYSQL, Guard.VERSION):  # that was among them
            yield f"none, {guard}", replace(in_mysql, guard=guard), False


def _best_guard(lock: LockName, store: StoreName) -> Guard:
    """What checks writes as well as the lock and the store allow."""
    guarantees = backend_class(lock).guarantees
    if guarantees.fencing:
        return Guard.FENCE
    if store is StoreName.MYSQL:
        return Guard.VERSION
    return Guard.NONE if guarantees.reach is Reach.NOBODY else Guard.COMPARE


def _guard(options: DemoOptions) -> Guard:
    """What was asked for, or the best that the lock allows."""
    best = _best_guard(options.lock, options.store)
    if options.guard is Guard.FENCE and best is not Guard.FENCE:
        raise ConfigurationError(f"--lock {options.lock} gives no fencing tokens; say --guard {best}")
    guard = options.guard or best
    if why := NOT_THERE.get((options.store, guard)):
        raise ConfigurationError(why)
    return guard


def _set_up(options: DemoOptions, console: Console, servers: ExitStack, steps: Progress) -> "_Stage":
    crowd_file = _locustfile()
    guard = _guard(options)
    token = secrets.token_urlsafe(16)
    locks = LockServers(options.lock)
    step = steps.add_task(f"Starting the store and what the lock needs: {options.lock}", total=None)
    servers.enter_context(locks)
    store, leading = _store(options.store, locks)
    if store not in locks.processes:
        servers.enter_context(store)
    variables = (
        locks.variables
        | leading
        | {
            "STORE": options.store.value,
            "GUARD": guard.value,
            "ADMIN_TOKEN": token,
            # The demo audits at the end; an auditor's calls would be counted among the locks'.
            **({} if options.keep else {"AUDIT_INTERVAL_S": "0"}),
            # Everybody comes at once, and must be let in.
            "QUEUE_MAX": str(max(20_000, options.buyers)),
            "PURCHASE_TIMEOUT_MS": str(max(10_000, 40 * options.buyers)),
        }
    )
    if options.batch_max is not None:
        variables["BATCH_MAX"] = str(options.batch_max)
    # What doesn't go together, or isn't installed, is said here.
    open_store(load(**{name.lower(): value for name, value in variables.items()}))
    env = os.environ | {PREFIX + name: value for name, value in variables.items()}
    steps.update(step, description=f"Starting {options.instances} instances")
    ports = _choose_ports(options, console)
    instances = [servers.enter_context(_Instance(port, env)) for port in ports]
    steps.remove_task(step)
    return _Stage(options, guard, crowd_file, locks, store, variables, ports, instances)


def _store(name: StoreName, locks: LockServers) -> tuple[Process, dict[str, str]]:
    """The store's server, which may be the lock's, and the settings that lead to it."""
    if name is StoreName.REDIS:
        valkey = Valkey(durable=True)
        return valkey, {"REDIS_URL": valkey.url}
    for server in locks.processes:
        if isinstance(server, MariaDB):
            return server, {}
    mariadb = MariaDB(durable=True)
    return mariadb, {"MYSQL_URL": mariadb.url}


@dataclass(frozen=True, slots=True)
class _Stage:
    """All that runs. `variables`: the instances' settings."""

    options: DemoOptions
    guard: Guard
    crowd_file: Path
    locks: LockServers
    store: Process
    variables: dict[str, str]
    ports: list[int]
    instances: list["_Instance"]

    def rush(self, steps: Progress) -> Figures:
        """Let the buyers in, and audit."""
        return asyncio.run(_sell(self, steps))


def _show(options: DemoOptions, console: Console, stage: _Stage, figures: Figures) -> None:
    console.print(_table(stage, figures))
    for problem in figures.problems[-_PROBLEMS_SHOWN:]:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    if len(figures.problems) > _PROBLEMS_SHOWN:
        console.print(f"  and {len(figures.problems) - _PROBLEMS_SHOWN} more before these", style="red")
    if options.report is not None:
        asked = asdict(options) | {"report": str(options.report), "guard": stage.guard}
        report = {"options": asked, "ports": stage.ports, **asdict(figures)}
        options.report.write_text(json.dumps(report, indent=2) + "\n")
        console.print(f"All figures are in {options.report}")


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


async def _sell(stage: _Stage, steps: Progress) -> Figures:
    options, ports = stage.options, stage.ports
    settings = load(**{name.lower(): value for name, value in stage.variables.items()}, instance="demo")
    async with open_shop(settings) as shop:
        urls = [_url(port) for port in ports]
        await shop.set_stock(DEFAULT_SKU, options.stock, new_sale=True)
        calls = stage.locks.calls()
        answers = await _rush(options, urls, stage.crowd_file, steps, shop)
        calls = stage.locks.calls() - calls
        step = steps.add_task("Auditing", total=None)
        found = await shop.audit(DEFAULT_SKU)
        missing = [
            answer["order"]
            for answer in answers["answers"]
            if answer["outcome"] == "sold" and await shop.order(answer["order"]) is None
        ]
        figures = _figures(options, ports, answers, found, missing, sum(map(_locks_taken, urls)), calls)
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
        lock_calls=calls,
    )


def _table(stage: _Stage, figures: Figures) -> Table:
    options = stage.options
    how = f"lock: {options.lock}, guard: {stage.guard}, instances on {', '.join(map(str, stage.ports))}"
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


def _stay(console: Console, stage: _Stage) -> None:
    """Stay up until Ctrl-C, and say so when one of the processes ends before that."""
    urls = [_url(port) for port in stage.ports]
    leading = " ".join(f"{PREFIX}{name}={value}" for name, value in stage.variables.items() if name in _LEADING)
    lines = [f"{url}{path}" for url in urls for path in ("/stock/reduce", "/stock", "/docs")]
    lines += [
        f"admin token: {stage.variables['ADMIN_TOKEN']}",
        "",
        "For `seckill stock`, `seckill locks` and `seckill check` in another terminal:",
        f"export {leading}",
        f"{Path(sys.executable).with_name('seckill')} stock set 300 --new-sale",
        "",
        "Ctrl-C ends it.",
    ]
    console.print()
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, highlight=False)
    watched: list[Process] = [*dict.fromkeys((*stage.locks.processes, stage.store)), *stage.instances]
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

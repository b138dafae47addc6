"""`seckill torture`: sets the stage, lets buyers and nemesis loose, heals, lets the sale finish, and has it judged."""

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.errors import ConfigurationError, SeckillError
from app.main import Sale, open_sale
from app.settings import Guard, load
from app.stock import DEFAULT_SKU
from app.torture.buyers import Crowd
from app.torture.history import Count, End, Fault, History, Look, Recorder, Setup, SoldOrder
from app.torture.judge import Finding, judge, recovery_s
from app.torture.nemesis import Nemesis, World
from app.torture.picture import draw
from app.torture.stage import Actor, Stage

RECOVERY_S: Final = 2.0  # beyond the TTL
_LOOK_EVERY_S: Final = 0.05
_UNITS_PER_PURCHASE: Final = 1.75  # on the average, see `Crowd.come`
_FINISH_WITHIN_S: Final = 60.0
_COUNT_EVERY_S: Final = 0.25
_PURCHASE_TIMEOUT_TTLS: Final = 1.5  # longer than a dead holder stands in the way, shorter than most faults last
_BUYERS_PER_INSTANCE: Final = 5.0  # a second, at least: else one can't tell silence from nobody asking
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class TortureOptions:
    """What the command line says. `stock` None: a little less than will be asked for."""

    duration_s: float
    instances: int
    ttl_s: int
    nemeses: tuple[str, ...]
    every_s: float
    rate: float
    seed: int
    stock: int | None
    guard: Guard
    report: Path


def run(options: TortureOptions) -> int:
    """Run it; the exit status: 0 if every promise was kept, 1 if not, 3 if the run failed and proves nothing."""
    if options.every_s < options.ttl_s + RECOVERY_S:
        raise ConfigurationError(
            f"--every {options.every_s:g} is too often: whether sales go on within a TTL and {RECOVERY_S:g} s "
            f"({options.ttl_s + RECOVERY_S:g} s) can't be seen if the next fault comes before that"
        )
    if options.rate < _BUYERS_PER_INSTANCE * options.instances:
        raise ConfigurationError(
            f"--rate {options.rate:g} is too low for {options.instances} instances: whether each of them sells can be "
            f"seen only if buyers come often, {_BUYERS_PER_INSTANCE * options.instances:g} a second or more"
        )
    console = Console()
    console.print(f"Seed {options.seed}; what happens is written to {options.report}/history.jsonl", highlight=False)
    options.report.mkdir(parents=True, exist_ok=True)
    for old in options.report.glob("*.log"):
        old.unlink()
    picture = options.report / "timeline.html"
    picture.unlink(missing_ok=True)
    try:
        with ExitStack() as servers, _progress(console) as progress:
            try:
                history = _run(options, servers, progress)
            finally:
                progress.stop()
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except Exception as error:  # whatever it is: it is no violation
        console.print(f"The run itself has failed, so there is nothing to judge: {error!r}", style="red", markup=False)
        if not isinstance(error, SeckillError | OSError | httpx.HTTPError):
            console.print_exception()
        return 3
    findings = judge(history)
    picture.write_text(draw(history, findings))
    _print(console, history, findings)
    console.print(f"The time line is in {picture}", highlight=False)
    return 0 if all(finding.holds for finding in findings) else 1


def _run(options: TortureOptions, servers: ExitStack, progress: Progress) -> History:
    step = progress.add_task("", total=None)
    stage = Stage(options.instances, _variables(options))
    servers.callback(stage.stop)
    servers.callback(_keep_logs, stage, options.report)
    stage.start(lambda what: progress.update(step, description=what))
    stock = options.stock
    if stock is None:
        stock = int(0.9 * options.rate * _UNITS_PER_PURCHASE * options.duration_s)
    setup = Setup(
        initial=stock,
        instances=options.instances,
        ttl_s=options.ttl_s,
        recovery_s=options.ttl_s + RECOVERY_S,
        guard=options.guard.value,
        seed=options.seed,
        nemeses=options.nemeses,
    )
    with (options.report / "history.jsonl").open("w") as file:
        recorder = Recorder(History(setup), file)
        asyncio.run(_sell(options, stage, recorder, progress))
    return recorder.history


def _variables(options: TortureOptions) -> dict[str, str]:
    timeout_ms = str(options.ttl_s * 500)  # below the TTL: an instance that is cut off must notice in time
    return {
        "GUARD": options.guard.value,
        "LOCK_TTL_S": str(options.ttl_s),
        "PURCHASE_TIMEOUT_MS": str(int(options.ttl_s * _PURCHASE_TIMEOUT_TTLS * 1000)),
        "LOCK_TIMEOUT_MS": timeout_ms,
        "STORE_TIMEOUT_MS": timeout_ms,
    }


async def _sell(options: TortureOptions, stage: Stage, recorder: Recorder, progress: Progress) -> None:
    direct = load(
        lock=stage.lock_url,
        store=stage.store.url,
        guard=options.guard,
        instance="torture",
        lock_ttl_s=options.ttl_s,
    )
    async with open_sale(direct) as sale:
        await sale.admin.set_stock(DEFAULT_SKU, recorder.history.setup.initial, new_sale=True)
        began = time.monotonic()

        def clock() -> float:
            return time.monotonic() - began

        # Some ask elsewhere while their instance is still at it, others hear it give up.
        patience_s = (1.0, options.ttl_s + RECOVERY_S)
        crowd = Crowd(stage.instances, options.seed, clock, recorder.note, patience_s=patience_s)
        watching = [
            asyncio.create_task(_look_on(sale, clock, recorder)),
            *(asyncio.create_task(_count(actor, clock, recorder)) for actor in stage.instances),
        ]
        try:
            await _let_loose(options, stage, sale, crowd, clock, recorder, progress)
            await _finish(sale, crowd, options, progress)
            await _calm_down(stage, sale, options.ttl_s + RECOVERY_S)
        finally:
            for task in watching:
                task.cancel()
            ends = await asyncio.gather(*watching, return_exceptions=True)
            await crowd.close()
        # A watcher that has stopped sees nothing wrong.
        for end in ends:
            if isinstance(end, Exception):
                raise end
        # What was sold must be on disk, not only in the store's memory.
        await asyncio.to_thread(stage.store.kill)
        await asyncio.to_thread(stage.store.start)
        recorder.note(await _end(stage, sale))


async def _let_loose(
    options: TortureOptions,
    stage: Stage,
    sale: Sale,
    crowd: Crowd,
    clock: Callable[[], float],
    recorder: Recorder,
    progress: Progress,
) -> None:
    step = progress.add_task(f"Selling for {options.duration_s:g} s", total=options.duration_s)

    def told(fault: Fault) -> None:
        recorder.note(fault)
        took = f"; longest time without a sale {recovery_s(recorder.history, fault):.1f} s" if fault.struck else ""
        progress.console.print(
            f"{fault.began_at:6.1f} s  {fault.name}: {fault.target}{took}",
            highlight=False,
            soft_wrap=True,
        )

    # Dice of their own, as how often those for the targets are thrown depends on what they meet.
    schedule, targets = random.Random(options.seed), random.Random(options.seed)  # noqa: S311 - no secrets
    world = World(stage, targets, sale.admin.contenders, options.guard.value)
    nemesis = Nemesis(world, options.nemeses, schedule, ttl_s=options.ttl_s, calm_s=options.every_s)
    striking = asyncio.create_task(nemesis.run(clock, options.duration_s, told))
    coming = asyncio.create_task(crowd.come(options.rate))
    try:
        while not striking.done():
            progress.update(step, completed=min(clock(), options.duration_s))
            await asyncio.wait([striking, coming], timeout=0.2, return_when=asyncio.FIRST_EXCEPTION)
            if coming.done():
                coming.result()
        striking.result()
    finally:
        for task in (coming, striking):
            task.cancel()
        await asyncio.gather(coming, striking, return_exceptions=True)


async def _finish(sale: Sale, crowd: Crowd, options: TortureOptions, progress: Progress) -> None:
    """Everything is healed: sell the rest, until each instance has said "sold out" and every buyer has an answer."""
    progress.add_task("Everything is healed; selling the rest", total=None)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _FINISH_WITHIN_S
    while (left := (await sale.admin.level(DEFAULT_SKU)).stock) > 0 and loop.time() < give_up_at:
        quantity = min(100, max(1, left // 50))
        await asyncio.wait([crowd.send(quantity) for _ in range(50)], timeout=give_up_at - loop.time())
    for _ in range(4 * options.instances):
        crowd.send(1)
    await crowd.all_told(max(1.0, give_up_at - loop.time()))


async def _calm_down(stage: Stage, sale: Sale, within_s: float) -> None:
    """Queue and leases have this long to be gone; what is still there after that is a violation."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while await sale.admin.contenders() or await stage.leases():  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.1)


async def _count(actor: Actor, clock: Callable[[], float], recorder: Recorder) -> None:
    """Note what an instance counts, over its restarts."""
    before: dict[str, int] = {}
    since = clock()
    while True:
        await asyncio.sleep(_COUNT_EVERY_S)
        if not (counters := await asyncio.to_thread(actor.counters)):
            continue
        at = clock()
        for name, value in counters.items():
            # Less than before: it was started anew.
            more = value - before.get(name, 0) if value >= before.get(name, 0) else value
            if more and not name.startswith("lease"):
                recorder.note(Count(round(since, 3), round(at, 3), actor.name, name, more))
        before, since = counters, at


async def _look_on(sale: Sale, clock: Callable[[], float], recorder: Recorder) -> None:
    """Read stock and lucky again and again, as anybody may at any time."""
    while True:
        asked_at = clock()
        try:
            level = await sale.admin.level(DEFAULT_SKU)
        except SeckillError:
            pass  # the store is away
        else:
            recorder.note(Look(round(asked_at, 4), round(clock(), 4), level.stock, level.lucky))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _end(stage: Stage, sale: Sale) -> End:
    level = await sale.admin.level(DEFAULT_SKU)
    orders: list[SoldOrder] = []
    after = None
    while page := await sale.admin.orders(DEFAULT_SKU, after=after, limit=_PAGE):
        orders += [
            SoldOrder(one.id, one.quantity, one.buyer, one.key, one.instance, one.token, one.batch_id) for one in page
        ]
        after = page[-1].id
    queue = tuple(one.key for one in await sale.admin.contenders())
    leases = tuple(await stage.leases())
    return End(level.stock, level.lucky, level.initial, tuple(orders), queue, leases)


def _keep_logs(stage: Stage, report: Path) -> None:
    for actor in stage.instances:
        log = actor.directory / "output.log"
        if log.is_file():
            shutil.copyfile(log, report / f"{actor.name}.log")


def _print(console: Console, history: History, findings: list[Finding]) -> None:
    title = f"{history.setup.instances} instances, {history.setup.initial} units, guard: {history.setup.guard}"
    table = Table("", "promise", "judged by", "", title=title)
    for finding in findings:
        verdict = "[green]kept[/]" if finding.holds else f"[red]{len(finding.violations)} violations[/]"
        table.add_row(finding.invariant, finding.promise, finding.looked_at, verdict)
    console.print(table)
    for finding in findings:
        for violation in finding.violations[:5]:
            console.print(f"✗ {violation}", style="red", markup=False, highlight=False, soft_wrap=True)
        if len(finding.violations) > 5:
            console.print(f"  ... and {len(finding.violations) - 5} more of these", style="red")


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)

"""`seckill torture`: sets the stage, runs buyers and nemesis, heals, lets the sale finish, and has it judged."""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.errors import EXPECTED, ConfigurationError, StockError, StockUnavailable
from app.orders import DEFAULT_SKU, TermsChange
from app.outbox.state import DeliveryState
from app.settings import Guard, load
from app.stock import Level
from app.wiring import Sale, open_sale
from fencelock.backend import Scope
from fencelock.clock import now
from fencelock.registry import backend_class
from lab.cents import books
from lab.cents import payers as cents
from lab.cents.payers import OF_WICKS, OFFER, SKU, WICK
from lab.torture import asked, beliefs, long_hold
from lab.torture.books import journal_of, kept_of
from lab.torture.bugs import BUGS
from lab.torture.buyers import UNITS_PER_PURCHASE, Crowd
from lab.torture.history import (
    Count,
    Entry,
    Fault,
    FinalState,
    Flow,
    History,
    Item,
    Kept,
    Late,
    Left,
    Look,
    Reading,
    Recorder,
    Setup,
)
from lab.torture.judge import Finding, branches, judge
from lab.torture.judge_service import recovery_s
from lab.torture.nemesis import CABLE, Nemesis, World
from lab.torture.operator import CURRENCY, Operator
from lab.torture.payers import Payers
from lab.torture.picture import draw
from lab.torture.receiver import SECRET, EventReceiver
from lab.torture.stage import CLUSTER, REPLICAS, SENTINEL, STORES, WEBHOOK_TIMEOUT_S, Actor, TortureStage
from lab.torture.stand import STAND, stand

RECOVERY_S: Final = 2.0  # beyond the TTL
PICTURE: Final = "timeline.html"
_HISTORY: Final = "history.jsonl"
_EARLIER: Final = "earlier"
_PEACE_S: Final = 1.0
_OPERATOR: Final = "operator"
_LOCK_GROUPS: Final = 2
_REFUSAL_TTL_S: Final = 36_000  # a clock that jumps by an hour must not end it
_LOOK_EVERY_S: Final = 0.05
_TICK_S: Final = 0.05
_LATE_S: Final = 0.2
_FINISH_WITHIN_S: Final = 60.0
_PAID_WITHIN_S: Final = 20.0  # longer than all windows of a hold, and an answer after them; or an operator's last wish
_LAST_AT_ONCE: Final = 16  # more buyers would wait for each other, however well it goes
_COUNT_EVERY_S: Final = 0.25
_PURCHASE_TIMEOUT_TTLS: Final = 1.5  # longer than a dead holder stands in the way, shorter than most faults last
_BUYERS_PER_INSTANCE: Final = 5.0  # a second, at least: otherwise silence looks like a lack of buyers
_PAYERS: Final = 0.25  # so many payers come for each buyer
_CENTS: Final = 0.1  # and so many to a provider with bad days
_PLENTY: Final = 10**6
_ALL_PAID_WITHIN_S: Final = 120.0  # money that nobody was told of would be a difference
_BID_AGAIN_S: Final = 8.0  # when the next sale has begun, as often as not
_DROPPED: Final = 0.15  # share of the buyers who come for the drop
_PRICE: Final = 499
_GROUP: Final = 4  # units that a buyer may have of two items together
_TOKEN: Final = "of-the-torture"  # noqa: S105 - no secret
_SENT_WITHIN_S: Final = 30.0
_READ_WITHIN_S: Final = 10.0
# The embedded etcd is 3.5.1: a leader that was frozen ends live leases as it wakes up (etcd issue 15247).
_KNOWN: Final = {"etcd": ("lock-pause",), "etcd-txn": ("lock-pause",)}


@dataclass(frozen=True, slots=True)
class TortureOptions:
    """Options of a run. `stock` None: a little less than buyers will ask for; `bug`: see `lab.torture.bugs`.

    `payers`: whether units are held and paid beside the sale, where the store can do so; `cents`: whether that is at a
    provider with bad days, which a cashier asks for refunds.
    """

    duration_s: float
    instances: int
    ttl_s: int
    nemeses: tuple[str, ...]
    every_s: float
    rate: float
    seed: int
    stock: int | None
    lock: str
    store: str
    guard: Guard
    fallback: bool
    bug: str
    report: Path
    upgrade_from: Path | None
    payers: bool
    cents: bool = False


def run(options: TortureOptions) -> tuple[int, list[Finding]]:
    """Run the torture. Return the exit status, 0 if every promise was kept, 1 if not, 3 if it failed, and findings."""
    check_pace(options)
    console = Console()
    console.print(f"Seed {options.seed}; what happens is written to {options.report / _HISTORY}", highlight=False)
    if options.bug:
        console.print(f"With a bug that must be found, {options.bug}: {BUGS[options.bug].what}", highlight=False)
    try:
        history, findings = run_once(options, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130, []
    except Exception as error:  # any error of our own: it is no violation
        console.print(f"The run itself has failed, so there is nothing to judge: {error!r}", style="red", markup=False)
        if not isinstance(error, (*EXPECTED, OSError, httpx.HTTPError)):
            console.print_exception()
        elif ours := [one for one in extract_tb(error.__traceback__) if "/lab/" in one.filename]:
            where = " < ".join(f"{one.name} ({Path(one.filename).name}:{one.lineno})" for one in reversed(ours))
            console.print(f"It came from {where}", markup=False, highlight=False, soft_wrap=True)
        return 3, []
    _print(console, history, findings)
    console.print(f"The time line is in {options.report / PICTURE}", highlight=False)
    return 0 if all(finding.holds for finding in findings) else 1, findings


def check_pace(options: TortureOptions) -> None:
    """Raise `ConfigurationError` if such a pace would show nothing."""
    if options.every_s < options.ttl_s + RECOVERY_S + _PEACE_S:
        raise ConfigurationError(
            f"--every {options.every_s:g} is too often: whether sales go on within a TTL and {RECOVERY_S:g} s "
            f"({options.ttl_s + RECOVERY_S:g} s), and nobody is hurt after that, can't be seen if the next fault comes "
            f"before {options.ttl_s + RECOVERY_S + _PEACE_S:g} s"
        )
    if options.rate < _BUYERS_PER_INSTANCE * options.instances:
        raise ConfigurationError(
            f"--rate {options.rate:g} is too low for {options.instances} instances: whether each of them sells can be "
            f"seen only if buyers come often, {_BUYERS_PER_INSTANCE * options.instances:g} a second or more"
        )


def run_once(options: TortureOptions, console: Console) -> tuple[History, list[Finding]]:
    """Run the torture once, and judge it."""
    _make_room(options.report)
    with ExitStack() as servers, _progress(console) as progress:
        try:
            history = _run(options, servers, progress)
        finally:
            progress.stop()
    findings = judge(history)
    (options.report / PICTURE).write_text(draw(history, findings))
    return history, findings


def _make_room(report: Path) -> None:
    """Move the previous run's report aside, for this run may be stopped before there is another."""
    report.mkdir(parents=True, exist_ok=True)
    if not (report / _HISTORY).exists():
        return
    earlier = report / _EARLIER
    shutil.rmtree(earlier, ignore_errors=True)
    earlier.mkdir()
    for old in (*report.glob("*.log"), *(report / name for name in (_HISTORY, PICTURE))):
        if old.exists():
            old.rename(earlier / old.name)


def _run(options: TortureOptions, servers: ExitStack, progress: Progress) -> History:
    step = progress.add_task("", total=None)
    bug_options = BUGS[options.bug].store_options if options.bug else ()
    stage = TortureStage(
        options.lock,
        options.store,
        options.instances,
        _variables(options),
        bug=options.bug,
        store_options=bug_options,
        cabled=CABLE in options.nemeses,
        release=options.upgrade_from,
    )
    servers.callback(stage.stop)
    servers.callback(_keep_logs, stage, options.report)
    stage.start(lambda what: progress.update(step, description=what))
    setup = _setup(options)
    stage.skus = tuple(item.sku for item in (*setup.items, *setup.drops, *(flow.item for flow in setup.flows)))
    with (options.report / _HISTORY).open("w") as file:
        recorder = Recorder(History(setup), file)
        asyncio.run(_sell(options, stage, recorder, progress))
    return recorder.history


def _setup(options: TortureOptions) -> Setup:
    units = int(options.rate * UNITS_PER_PURCHASE * options.duration_s)
    stock = options.stock or int(0.4 * units)
    promised = backend_class(options.lock).guarantees
    promises = [field.name for field in fields(promised) if getattr(promised, field.name) is True]
    if options.fallback:
        promises = []  # while the lock is away everybody sells without it
    elif promised.scope is Scope.EVERYBODY:
        promises.append("everybody")
    # An item that lasts nearly to the end, one that is sold out again and again, and one with a limit.
    first = "phone" if options.store == CLUSTER else DEFAULT_SKU  # its keys lie in two slots
    items = (Item(first, stock), Item("tablet", max(1, stock // 20)), Item("mug", units, limit=6))
    return Setup(
        items=items,
        instances=options.instances,
        ttl_s=options.ttl_s,
        recovery_s=options.ttl_s + RECOVERY_S,
        lock=options.lock,
        store=options.store,
        guard=options.guard.value,
        seed=options.seed,
        nemeses=options.nemeses,
        promises=tuple(promises),
        known=_KNOWN.get(options.lock, ()),
        bug=options.bug,
        flows=_flows(options),
        drops=(Item("drop", max(2, int(options.rate * _DROPPED))),),
    )


def can_hold(store: str, guard: Guard, release: Path | None) -> bool:
    """Return whether units can be held and paid, and events sent, by the earliest of the instances, too."""
    able = guard is not Guard.NONE and store in STORES
    return able and (release is None or (release / "app" / "outbox").exists())


def _grace_s(options: TortureOptions) -> float:
    return float(options.seed % 2)


def _joins(options: TortureOptions) -> bool:
    """Return whether several items can be in one order, at the earliest of the instances, too."""
    return options.store != CLUSTER and options.upgrade_from is None


def _flows(options: TortureOptions) -> tuple[Flow, ...]:
    """Items whose units are held and paid: one is too scarce for all who come, one has a limit.

    Two more, of the scarce one's lock, are in baskets with it, and have a limit together.
    """
    if options.cents or not (options.payers and can_hold(options.store, options.guard, options.upgrade_from)):
        return ()
    visits, grace_s = options.rate * _PAYERS * options.duration_s / 2, _grace_s(options)
    joins = _joins(options)
    plain = (
        Flow(Item("ticket", max(4, int(0.15 * visits))), 1.0, 2.0, grace_s, _PRICE, basket=joins),
        Flow(Item("seat", max(8, int(2 * visits)), limit=2), 2.0, 3.0, grace_s, _PRICE),
    )
    joined = (
        Flow(Item(sku, max(8, int(visits))), hold_s, 2.0, grace_s, _PRICE, basket=True, group=_GROUP)
        for sku, hold_s in (("cap", 1.5), ("snack", 1.0))
    )
    return (*plain, *(joined if joins else ()))


def _variables(options: TortureOptions) -> dict[str, str]:
    timeout_ms = str(options.ttl_s * 500)  # below the TTL: an instance that is cut off must notice in time
    sends = {
        "WEBHOOK_SECRET": SECRET,
        "WEBHOOK_TIMEOUT_MS": str(int(WEBHOOK_TIMEOUT_S * 1000)),
        "WEBHOOK_RETRY_S": "0.1",
    }
    refunds = {
        "PAYMENTS_SECRET": cents.SECRET,
        "REFUNDS_PER_MINUTE": "100000",
        "WEBHOOK_TIMEOUT_MS": "1000",  # the bank is later than that now and then
        "AUDIT_INTERVAL_S": "1",
    }
    return (
        (sends if _flows(options) else {})
        | (refunds if options.cents else {})
        | {
            "GUARD": options.guard.value,
            "LOCK_TTL_S": str(options.ttl_s),
            "LOCK_GROUPS": str(_LOCK_GROUPS),
            "LOCK_FALLBACK": str(options.fallback).lower(),
            "PURCHASE_TIMEOUT_MS": str(int(options.ttl_s * _PURCHASE_TIMEOUT_TTLS * 1000)),
            "LOCK_TIMEOUT_MS": timeout_ms,
            "STORE_TIMEOUT_MS": timeout_ms,
            "STORE_WAIT_REPLICAS": str(_wait_replicas(options)),
            "REFUSAL_TTL_S": str(_REFUSAL_TTL_S),
            "SHOP_TOKEN": _TOKEN,
            "HOLDS_FROM": "anybody",
            "ADMIN_TOKEN": _TOKEN,
            "GRACE_S": str(options.seed % 2),
        }
    )


def _wait_replicas(options: TortureOptions) -> int:
    return REPLICAS if options.store == SENTINEL else 0


async def _sell(options: TortureOptions, stage: TortureStage, recorder: Recorder, progress: Progress) -> None:
    direct = load(
        lock=stage.locks.url,
        store=stage.store_url,
        guard=options.guard,
        store_wait_replicas=_wait_replicas(options),
        instance=_OPERATOR,
        lock_ttl_s=options.ttl_s,
        lock_groups=_LOCK_GROUPS,
        lock_fallback=options.fallback,
        grace_s=_grace_s(options),  # units that an operator adds are offered by their own settings
    )
    setup = recorder.history.setup
    with beliefs.watch(stage.folder / beliefs.FILE, _OPERATOR), asked.watch(stage.folder / asked.FILE, _OPERATOR):
        async with open_sale(direct) as sale:
            await _put_on_sale(sale, setup, cents=options.cents)
            began = now()

            def clock() -> float:
                return now() - began

            # Some ask elsewhere while their instance is still busy, others hear it give up.
            patience_s = (1.0, options.ttl_s + RECOVERY_S)
            crowd = Crowd(stage.instances, setup.items, options.seed, clock, recorder.note, patience_s=patience_s)
            payers = await _payers(options, stage, recorder, clock, patience_s)
            bidders = Crowd(
                stage.instances,
                setup.drops,
                options.seed + 1,
                clock,
                recorder.note,
                patience_s=patience_s,
                once_more_s=_BID_AGAIN_S,
                thieves=0,  # a key of a sale that is over is anybody's
            )
            operator = Operator(sale, setup.items, setup.flows, setup.drops, clock, recorder.note)
            receiver = EventReceiver(stage.instances, options.seed, clock, recorder.note)
            if setup.flows:
                await receiver.open(sorted(stage.hosts), stage.receiver_port)
            watching = [
                asyncio.create_task(_look_on(sale, stage.skus, clock, recorder)),
                asyncio.create_task(_tick(clock, recorder)),
                *(asyncio.create_task(_count(actor, clock, recorder)) for actor in stage.instances),
            ]
            try:
                # Dice of their own, as the number of throws for targets depends on circumstances.
                targets = random.Random(options.seed)  # noqa: S311 - no secret
                world = World(stage, targets, sale, operator, options.ttl_s, receiver)
                await _let_loose(options, world, crowd, bidders, payers, clock, recorder, progress)
                unheard = await operator.rest(_PAID_WITHIN_S)
                for actor in stage.instances:
                    actor.be_quiet()
                receiver.behave()
                await _finish(sale, crowd, options, setup, progress)
                for others in (payers, bidders):
                    await others.all_told(_ALL_PAID_WITHIN_S if others is payers and options.cents else _PAID_WITHIN_S)
                await books.settled(sale, payers)
                await _all_over(sale, setup)
                if setup.flows:
                    await _all_sent(sale, stage.skus)
                calm_s = options.ttl_s * (1 + long_hold.HOLD_TTLS) + RECOVERY_S
                await _calm_down(stage, sale, calm_s)
            finally:
                for task in watching:
                    task.cancel()
                ends = await asyncio.gather(*watching, return_exceptions=True)
                for one in (crowd, bidders, payers, receiver):
                    await one.close()
            # A watcher that has stopped would see nothing wrong.
            for end in ends:
                if isinstance(end, Exception):
                    raise end
            # Sold units must be on disk, not only in the memory of the store or of the machine.
            if server := stage.store_server:
                await asyncio.to_thread(stage.cut_power, server)
                await asyncio.to_thread(server.start)
            await _calm_down(stage, sale, calm_s)  # an instance may have stood for an office anew
            await _read(stage, recorder)
            for closed in await books.closed(sale, payers):
                recorder.note(closed)
            recorder.note(await _end(stage, sale, unheard, [*stage.skus, *([SKU, WICK] if options.cents else [])]))
    _note_what_instances_saw(stage, recorder, began)


async def _put_on_sale(sale: Sale, setup: Setup, *, cents: bool) -> None:
    for item in (*setup.items, *setup.drops):
        terms: TermsChange = {"limit_per_buyer": item.limit} if item.limit else {}
        await sale.stock.set_stock(item.sku, item.initial, new_sale=True, terms=terms)
    for flow in setup.flows:
        terms = {"hold_s": flow.hold_s, "pay_s": flow.pay_s, "price": flow.price, "currency": CURRENCY}
        terms["limit_per_buyer"] = flow.item.limit or None
        if flow.group:
            others = [one.item.sku for one in setup.flows if one.group == flow.group and one is not flow]
            terms["limit_group"] = " ".join((str(flow.group), *others))
        await sale.stock.set_stock(flow.item.sku, flow.item.initial, new_sale=True, terms=terms)
    if cents:
        for sku, terms in ((SKU, OFFER), (WICK, OF_WICKS)):
            await sale.stock.set_stock(sku, _PLENTY, new_sale=True, terms=terms)


async def _payers(
    options: TortureOptions,
    stage: TortureStage,
    recorder: Recorder,
    clock: Callable[[], float],
    patience_s: tuple[float, ...],
) -> Payers | cents.CentsPayers:
    if not options.cents:
        about = stage.instances, recorder.history.setup.flows, options.seed, clock, recorder.note
        return Payers(*about, patience_s=patience_s, token=_TOKEN)
    bank = books.bank_of(options.seed)
    await bank.open(sorted(stage.hosts), stage.bank_port)
    return cents.CentsPayers(stage.instances, bank, options.seed, clock, token=_TOKEN, baskets=_joins(options))


def _note_what_instances_saw(stage: TortureStage, recorder: Recorder, began: float) -> None:
    for folder, name in [(stage.folder, _OPERATOR), *((actor.directory, actor.name) for actor in stage.instances)]:
        for belief in beliefs.read(folder / beliefs.FILE, name, began):
            recorder.note(belief)
        for one in asked.read(folder / asked.FILE, name, began):
            recorder.note(one)


async def _let_loose(
    options: TortureOptions,
    world: World,
    crowd: Crowd,
    bidders: Crowd,
    payers: Payers | cents.CentsPayers,
    clock: Callable[[], float],
    recorder: Recorder,
    progress: Progress,
) -> None:
    step = progress.add_task(f"Selling for {options.duration_s:g} s", total=options.duration_s)

    def told(fault: Fault) -> None:
        recorder.note(fault)
        took = ""
        if fault.struck:
            took = f"; longest time without a sale of an item {recovery_s(recorder.history, fault):.1f} s"
        progress.console.print(
            f"{fault.began_at:6.1f} s  {fault.name}: {fault.target}{took}", highlight=False, soft_wrap=True
        )

    schedule = random.Random(options.seed)  # noqa: S311 - no secret
    nemesis = Nemesis(world, options.nemeses, schedule, ttl_s=options.ttl_s, calm_s=options.every_s)
    striking = asyncio.create_task(nemesis.run(clock, options.duration_s, told))
    at_once = int(options.rate * UNITS_PER_PURCHASE)
    others = [
        asyncio.create_task(crowd.come(options.rate)),
        asyncio.create_task(bidders.come(options.rate * _DROPPED)),
        asyncio.create_task(world.operator.run(options.seed, at_once)),
        asyncio.create_task(world.operator.begin_sales(options.seed)),
    ]
    if recorder.history.setup.flows:
        others.append(asyncio.create_task(payers.come(options.rate * _PAYERS)))
    if options.cents:
        others.append(asyncio.create_task(payers.come(options.rate * _CENTS)))
    try:
        while not striking.done():
            progress.update(step, completed=min(clock(), options.duration_s))
            await asyncio.wait([striking, *others], timeout=0.2, return_when=asyncio.FIRST_EXCEPTION)
            for task in others:
                if task.done():
                    task.result()
        striking.result()
        if options.instances > 1 and not options.bug:
            progress.update(step, description="The last stand", total=None)
            await _stand(world, recorder, clock, progress)
    finally:
        for task in (*others, striking):
            task.cancel()
        await asyncio.gather(*others, striking, return_exceptions=True)


async def _stand(world: World, recorder: Recorder, clock: Callable[[], float], progress: Progress) -> None:
    began_at = clock()
    seen = await stand(world, recorder.history, clock)
    recorder.note(seen)
    ended_at = clock()
    moments = {"began_at": began_at, "ended_at": ended_at, "free_from": ended_at, "watched_until": ended_at}
    recorder.note(Fault(STAND, seen.gone, True, **moments, hit_at=seen.began_at))
    progress.console.print(f"{began_at:6.1f} s  gone for good: {seen.gone}", highlight=False, soft_wrap=True)


async def _finish(sale: Sale, crowd: Crowd, options: TortureOptions, setup: Setup, progress: Progress) -> None:
    """Sell the rest after all is healed, until each instance has said "sold out" and every buyer has an answer."""
    progress.add_task("Everything is healed; selling the rest", total=None)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _FINISH_WITHIN_S
    for item in setup.items:
        if item.limit:
            continue
        while (left := await _units_left(sale, item)) > 0 and loop.time() < give_up_at:
            quantity = min(100, max(1, left // _LAST_AT_ONCE))
            last = [crowd.send(item.sku, quantity) for _ in range(_LAST_AT_ONCE)]
            await asyncio.wait(last, timeout=give_up_at - loop.time())
        for _ in range(4 * options.instances):
            crowd.send(item.sku, 1)
    await crowd.all_told(max(1.0, give_up_at - loop.time()))


async def _all_over(sale: Sale, setup: Setup) -> None:
    """Wait until all holds have run out and were given back; if one stays, the judge will say so."""
    for flow in setup.flows:
        within_s = 2 * (flow.hold_s + flow.pay_s) + flow.grace_s + setup.recovery_s
        with contextlib.suppress(StockError):  # those who wait are offered units one after the other, and don't pay
            within_s += (await sale.store.level(flow.item.sku)).waiting * (flow.hold_s + flow.grace_s)
        with contextlib.suppress(TimeoutError, StockError):
            async with asyncio.timeout(within_s):
                while not _is_over(await sale.store.level(flow.item.sku), within_s):  # noqa: ASYNC110 - in the store
                    await asyncio.sleep(_LOOK_EVERY_S)


def _is_over(level: Level, within_s: float) -> bool:
    if 0 < level.wants <= level.stock:
        return False  # the next in line is served first
    # Units that were held while the store's clock was an hour ahead stay held for that hour.
    return not level.held or (level.due_in_s is not None and level.due_in_s > within_s)


async def _all_sent(sale: Sale, skus: Sequence[str]) -> None:
    """Wait until all events were delivered; if some never are, the judge will say so."""
    with contextlib.suppress(TimeoutError, StockError):
        async with asyncio.timeout(_SENT_WITHIN_S):
            while not await is_sent(sale, skus):  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(_LOOK_EVERY_S)


async def is_sent(sale: Sale, skus: Sequence[str]) -> bool:
    """Return whether all events of some items were delivered, and noted as such."""
    levels, outboxes = await sale.stock.levels(list(skus)), await sale.store.outbox(skus)
    for sku, level in levels.items():
        outbox = outboxes[sku]
        if isinstance(level, StockError) or isinstance(outbox, StockError):
            continue  # it can't be read any more
        state = DeliveryState.from_text(outbox.text)
        if state.parked or state.cursor != (level.last_entry or ""):
            return False
    return True


async def _units_left(sale: Sale, item: Item) -> int:
    try:
        return (await sale.store.level(item.sku)).stock
    except StockUnavailable:
        raise
    except StockError:
        return 0  # it can't be read: there is nothing to sell, and the judge will see that in the end


async def _calm_down(stage: TortureStage, sale: Sale, within_s: float) -> None:
    """Wait until the queue and leases are gone; any that are left after that time are a violation."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while await sale.readiness.contenders() or await stage.leases():  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.1)


async def _count(actor: Actor, clock: Callable[[], float], recorder: Recorder) -> None:
    """Note an instance's counters, across its restarts."""
    before: dict[str, int] = {}
    since = clock()
    while True:
        await asyncio.sleep(_COUNT_EVERY_S)
        if not (counters := await asyncio.to_thread(actor.counters)):
            continue
        at = clock()
        for name, value in counters.items():
            # A lower count means that it was restarted.
            more = value - before.get(name, 0) if value >= before.get(name, 0) else value
            if more and not name.startswith("lease"):
                recorder.note(Count(round(since, 3), round(at, 3), actor.name, name, more))
        before, since = counters, at


async def _tick(clock: Callable[[], float], recorder: Recorder) -> None:
    """Note when this loop wakes late: the rules of peace are for a machine that has a processor for us."""
    while True:
        due = clock() + _TICK_S
        await asyncio.sleep(_TICK_S)
        if (at := clock()) > due + _LATE_S:
            recorder.note(Late(round(due, 4), round(at, 4)))


async def _look_on(sale: Sale, skus: Sequence[str], clock: Callable[[], float], recorder: Recorder) -> None:
    """Read what is left, held and sold again and again, as anybody may at any time."""
    while True:
        for sku in skus:
            asked_at = clock()
            with contextlib.suppress(*EXPECTED):  # the store is away
                level = await sale.store.level(sku)
                at = round(asked_at, 4), round(clock(), 4)
                recorder.note(Look(*at, sku, level.stock, level.held, level.lucky, level.due_in_s))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _read(stage: TortureStage, recorder: Recorder) -> None:
    """Note what each instance tells readers and operators of the items; nothing, if it does not answer."""
    setup, headers = recorder.history.setup, {"Authorization": f"Bearer {_TOKEN}"}
    skus = [item.sku for item in (*setup.items, *(flow.item for flow in setup.flows))]
    async with httpx.AsyncClient(headers=headers, timeout=_READ_WITHIN_S, trust_env=False) as http:

        async def ask(actor: Actor, path: str, sku: str) -> dict[str, Any]:
            with contextlib.suppress(TimeoutError, httpx.HTTPError, ValueError):
                async with asyncio.timeout(_READ_WITHIN_S):
                    while (answer := await http.get(actor.url + path, params={"sku": sku})).status_code == 503:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_EVERY_S)
                    return dict(answer.json())
            return {}

        for actor in stage.instances:
            for sku in skus:
                level, report = await ask(actor, "/stock", sku), await ask(actor, "/report", sku)
                recorder.note(Reading(actor.name, sku, level, report.get("total", {})))


async def _end(stage: TortureStage, sale: Sale, unreadable: list[str], skus: Sequence[str]) -> FinalState:
    left: list[Left] = []
    journal: list[Entry] = []
    kept: list[Kept] = []
    for sku in skus:
        try:
            level = await sale.store.level(sku)
            left.append(Left(sku, level.stock, level.held, level.lucky, level.initial))
            journal += await journal_of(sale.store, sku)
            kept += await kept_of(sale.store, sku, journal)
        except StockUnavailable:
            raise
        except StockError as error:
            unreadable.append(str(error))
    queue = tuple(one.key for one in await sale.readiness.contenders())
    leases = tuple(await stage.leases())
    return FinalState(tuple(left), queue, leases, tuple(unreadable), tuple(journal), tuple(kept))


def _keep_logs(stage: TortureStage, report: Path) -> None:
    for actor in stage.instances:
        log = actor.directory / "output.log"
        if log.is_file():
            shutil.copyfile(log, report / f"{actor.name}.log")


def _print(console: Console, history: History, findings: list[Finding]) -> None:
    setup = history.setup
    units = sum(item.initial for item in setup.items) + sum(one.added for one in history.restocks)
    title = (
        f"{setup.instances} instances, {units} units, lock: {setup.lock}, store: {setup.store}, guard: {setup.guard}"
    )
    table = Table("", "promise", "judged by", "", title=title)
    for finding in findings:
        verdict = "[green]kept[/]" if finding.holds else f"[red]{len(finding.violations)} violations[/]"
        promise = finding.promise if finding.holds else f"{finding.promise} ({finding.rule})"
        table.add_row(finding.invariant, promise, finding.looked_at, verdict)
    console.print(table)
    gone = branches(history)
    console.print("Ways that were gone: " + ", ".join(f"{name} {n}" for name, n in gone.items() if n), highlight=False)
    if never := [name for name, n in gone.items() if not n]:
        console.print(f"Nothing is proved of what did not happen: {', '.join(never)}", highlight=False)
    for finding in findings:
        for violation in finding.violations[:5]:
            console.print(f"✗ {violation}", style="red", markup=False, highlight=False, soft_wrap=True)
        if len(finding.violations) > 5:
            console.print(f"  ... and {len(finding.violations) - 5} more of these", style="red")


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)

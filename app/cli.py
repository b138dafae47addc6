"""The `seckill` command."""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from app.audit import Audit
from app.commands import tables, terms, whereabouts
from app.commands.stage import LockName, StageOptions, StoreName
from app.errors import ConfigurationError, LockError, LockTimeout, LockUnavailable, SeckillError, StockUnavailable
from app.main import Sale, open_sale
from app.model.protocol import Mechanism
from app.settings import PREFIX, Guard, Settings, load, unknown_variables
from app.stock import DEFAULT_SKU, Level

app = typer.Typer(
    help="A flash sale that never oversells, undersells or loses an order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
stock = typer.Typer(
    help="Look at the stock, and set it (under the lock, guarded like any other write).", no_args_is_help=True
)
app.add_typer(stock, name="stock")

Result = TypeVar("Result")

_SAY_EVERY_S = 2.0
_FAILED = 2  # could not be done; 1 is the answer "not consistent"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"seckill {version('seckill')}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


_ALL = "all"
DemoLock = StrEnum("DemoLock", [(name.name, name.value) for name in LockName] + [("ALL", _ALL)])  # type: ignore[misc]
_ETCD = DemoLock("etcd")
_UP_LOCK = LockName("etcd")

# What `demo` and `up` both ask, and `torture` in part.
Units = Annotated[int, typer.Option(min=0, max=10**9, help="Units that exist.")]
Instances = Annotated[int, typer.Option(min=1, max=16, help="Instances of the service.")]
Ports = Annotated[str, typer.Option(help="Their ports; the next free one is taken for one in use.")]
BatchMax = Annotated[
    int | None, typer.Option(min=1, help="Buyers that one lock grant serves at most; 1 is the articles' way.")
]
Store = Annotated[StoreName, typer.Option(help="Where the stock is; MySQL means MariaDB.")]
BestGuard = Annotated[
    Guard | None,
    typer.Option(
        help="What checks each write: the lock's fencing token, what was read, or nothing.",
        show_default="the best that lock and store allow",
    ),
]
TtlS = Annotated[int, typer.Option(min=2, max=60, help="Lease TTL of the locks, in seconds.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sku = Annotated[str, typer.Option(help="The item.")]


def main() -> None:
    """Run the command; an error of ours is one line on standard error, not a stack trace."""
    try:
        app(standalone_mode=True)
    except LockTimeout as error:
        sys.exit(_say(f"{error}; `seckill locks` shows who has it"))
    except SeckillError as error:
        sys.exit(_say(str(error)))


def _say(message: str) -> int:
    for line in message.splitlines():
        print(f"seckill: {line}", file=sys.stderr)  # noqa: T201
    return _FAILED


@app.command()
def demo(
    buyers: Annotated[
        int, typer.Option(min=1, max=20_000, help="Buyers who press the button at the same instant.")
    ] = 500,
    stock: Units = 300,
    instances: Instances = 2,
    ports: Ports = "8080,8090",
    batch_max: BatchMax = None,
    lock: Annotated[DemoLock, typer.Option(help="What keeps the instances apart; `all` compares them.")] = _ETCD,
    store: Store = StoreName.REDIS,
    guard: BestGuard = None,
    ttl_s: TtlS = 5,
    report: Annotated[Path | None, typer.Option(help="Write all the figures to this file, as JSON.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up after the rush, until Ctrl-C.")] = False,
) -> None:
    """Run the whole sale on this machine: etcd, Valkey or MariaDB, the instances, a rush of buyers, and the audit.

    Exit status 0 only if every invariant holds and nobody was refused without cause.
    """
    from app.commands import compare as each
    from app.commands import demo as one

    _check_file(report, "--report")
    compared = lock.value == _ALL
    options = one.DemoOptions(
        stock=stock,
        instances=instances,
        ports=_ports(ports),
        batch_max=batch_max,
        lock=LockName("etcd") if compared else LockName(lock.value),
        store=store,
        guard=guard,
        ttl_s=ttl_s,
        buyers=buyers,
        report=report,
        keep=keep,
    )
    raise typer.Exit(each.run(options) if compared else one.run(options))


@app.command()
def up(
    stock: Units = 300,
    instances: Instances = 2,
    ports: Ports = "8080,8090",
    batch_max: BatchMax = None,
    lock: Annotated[LockName, typer.Option(help="What keeps the instances apart.")] = _UP_LOCK,
    store: Store = StoreName.REDIS,
    guard: BestGuard = None,
    ttl_s: TtlS = 5,
) -> None:
    """Start the servers, the instances and a new sale on this machine, and stay up until Ctrl-C, with the URLs."""
    from app.commands.up import run

    raise typer.Exit(run(StageOptions(stock, instances, _ports(ports), batch_max, lock, store, guard, ttl_s)))


def _check_file(file: Path | None, option: str) -> None:
    """Raise `typer.BadParameter` unless the file can be written: before the work, not after it."""
    if file is None:
        return
    if not file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.absolute().parent}", param_hint=option)
    is_new = not file.exists()
    try:
        file.open("a").close()
    except OSError as error:
        raise typer.BadParameter(f"{file} can't be written: {error.strerror}", param_hint=option) from None
    if is_new:
        file.unlink()


def _ports(text: str) -> tuple[int, ...]:
    try:
        wanted = tuple(int(port) for port in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"not a list of ports: {text!r}", param_hint="--ports") from None
    if not all(0 < port < 65536 for port in wanted):
        raise typer.BadParameter(f"ports are from 1 to 65535: {text!r}", param_hint="--ports")
    return wanted


@app.command()
def torture(
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds of selling under faults.")] = 240,
    instances: Instances = 3,
    ttl_s: TtlS = 2,
    nemesis: Annotated[
        str, typer.Option(help="Faults, separated by commas; `--nemesis help` lists them.", show_default="all of them")
    ] = "",
    every: Annotated[
        float | None,
        typer.Option(min=1, max=3600, help="Seconds of calm after each fault.", show_default="TTL + 5"),
    ] = None,
    rate: Annotated[float, typer.Option(min=1, max=1000, help="Buyers a second.")] = 60,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Chooses faults, targets and purchases.", show_default="any")
    ] = None,
    stock: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**9, help="Units of the default item.", show_default="a little less than is asked for"
        ),
    ] = None,
    lock: Annotated[str, typer.Option(help="The lock, by its short name, or `fallback`.")] = "etcd",
    store: Annotated[
        str, typer.Option(help="Where the stock is: redis, mysql (MariaDB), redis-sentinel or redis-cluster.")
    ] = "redis",
    guard: Annotated[
        Guard | None,
        typer.Option(help="What checks each write; with `none` the run must end with violations.", show_default="best"),
    ] = None,
    with_bug: Annotated[str, typer.Option(help="Switch a repair off; `--with-bug help` lists them.")] = "",
    all_bugs: Annotated[bool, typer.Option("--all-bugs", help="Try all bugs: each must be found.")] = False,
    upgrade_from: Annotated[
        Path | None,
        typer.Option(help="A checkout, with its .venv, of an earlier release, which the instances begin as."),
    ] = None,
    report: Annotated[Path, typer.Option(help="Folder for the history, the time line and the instances' logs.")] = Path(
        "torture-report"
    ),
) -> None:
    """Sell while things break: processes are paused and killed, paths are cut, locks are stolen. Then judge.

    Exit status 0 only if every promise was kept: nothing oversold, nothing undersold, no order lost; 1 if not, 3 if the
    run itself failed. With --all-bugs: 0 if each bug was found, 1 if one was not.
    """
    try:
        from app.commands import torture as torturing
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"{missing.name} is missing; in the checkout: pip install '.[demo]'") from None

    arguments = torturing.TortureArguments(
        duration_s=duration,
        instances=instances,
        ttl_s=ttl_s,
        nemesis=nemesis,
        every_s=every,
        rate=rate,
        seed=seed,
        stock=stock,
        lock=lock,
        store=store,
        guard=guard,
        with_bug=with_bug,
        all_bugs=all_bugs,
        report=report,
        upgrade_from=upgrade_from,
    )
    try:
        raise typer.Exit(torturing.torture(arguments))
    except torturing.WrongOption as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None


@app.command()
def model(
    without: Annotated[
        Mechanism | None, typer.Option(help="Leave out a mechanism, and see the shortest way to a broken promise.")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Leave out one after the other.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Two faults in one history as well: minutes.")] = False,
    picture: Annotated[Path | None, typer.Option(help="File for a picture of it (SVG); a folder with --each.")] = None,
) -> None:
    """Explore the protocol as a model: each state that a small sale can reach, whatever is late, lost, or dead.

    Exit status 0 if no state breaks a promise; with --each, if each mechanism is missed.
    """
    from app.commands import model as exploring

    if each and picture is not None and not picture.is_dir():
        raise typer.BadParameter(f"{picture} is not a folder", param_hint="--picture")
    if not each:
        _check_file(picture, "--picture")
    if each:
        raise typer.Exit(exploring.each(picture))
    if without is not None:
        raise typer.Exit(exploring.without(without, picture))
    raise typer.Exit(exploring.whole(thorough=thorough))


_OURS = "seckill "  # what our locks' names begin with, beside their peers

bench = typer.Typer(no_args_is_help=True, help="Measure side by side.")
app.add_typer(bench, name="bench")


@bench.command("locks")
def bench_locks(
    only: Annotated[
        str,
        typer.Option(
            help="Some of them, separated by commas: ours by their short names, such as etcd, or peers, such as kazoo.",
            show_default="all of them",
        ),
    ] = "",
    processes: Annotated[str, typer.Option(help="How many contend.")] = "1,2,4,8",
    hold_ms: Annotated[str, typer.Option(help="How long each holds the lock.")] = "0,5",
    seconds: Annotated[float, typer.Option(min=0.2, max=3600, help="Length of a heat.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; in each of them everybody takes part.")] = 3,
    report: Annotated[Path | None, typer.Option(help="File for all figures, as JSON.")] = None,
) -> None:
    """Each lock, taken and given back by several processes: how fast, how evenly, and how many keys it leaves behind.

    Exit status 1 if a lock of ours let two in at once, or left something behind.
    """
    _check_file(report, "--report")
    benching = _bench_locks()

    names = _names(only, "--only", list(benching.CONTESTANTS))
    counts = [int(one) for one in _numbers(processes, "--processes", least=1, most=64)]
    options = benching.BenchOptions(
        names, counts, _numbers(hold_ms, "--hold-ms", least=0, most=1000), seconds, rounds, report
    )
    raise typer.Exit(benching.run(options))


def _bench_locks() -> Any:
    try:
        return import_module("app._loadtest.bench.locks")  # in an installed wheel
    except ModuleNotFoundError:
        return import_module("loadtest.bench.locks")  # in a checkout


def _names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Those in the text, separated by commas; all that are known if it is empty."""
    names = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        found = next((one for one in (name, f"{_OURS}{name}") if one in known), None)
        if found is None:
            short = ", ".join(one.removeprefix(_OURS) for one in known)
            raise typer.BadParameter(f"{name!r} is none of {short}", param_hint=option)
        names.append(found)
    return list(dict.fromkeys(names)) or list(known)


def _numbers(text: str, option: str, *, least: float, most: float) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= one <= most for one in found):
        raise typer.BadParameter(f"{text!r} is not a list of numbers from {least:g} to {most:g}", param_hint=option)
    return found


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; SECKILL_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; SECKILL_PORT.")] = None,
) -> None:
    """Run one instance against the servers that the environment or .env names."""
    from app import server

    server.run(load(host=host, port=port))


@stock.command("show")
def stock_show(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Units left and sold."""

    async def show(sale: Sale) -> list[Level]:
        if sku:
            return [await sale.admin.level(sku)]
        found = await sale.admin.levels(await sale.admin.items())
        return [level for level in found.values() if isinstance(level, Level)]

    _print_levels(_with_sale(show), as_json)


@stock.command("set")
def stock_set(
    units: Annotated[
        int | None, typer.Argument(min=0, max=10**12, help="Units left from now on; as many as there are without.")
    ] = None,
    sku: Sku = DEFAULT_SKU,
    limit: Annotated[
        str | None, typer.Option(metavar="UNITS|none|default", help="How many one buyer may have of this item.")
    ] = None,
    starts_at: Annotated[
        str | None,
        typer.Option(metavar="TIME|none|default", help="When its sale starts, such as 2026-11-11T20:00:00+08:00."),
    ] = None,
    ends_at: Annotated[str | None, typer.Option(metavar="TIME|none|default", help="When it ends.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add so many to those that are left.")] = False,
    new_sale: Annotated[
        bool,
        typer.Option("--new-sale", help="Forget what was sold: lucky becomes 0; orders, buyers, keys are deleted."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Set the units left, and on what terms the item is sold. What was sold stays sold, unless it is a new sale.

    `none`: no limit, no start, no end; `default`: as the settings have it for all items.
    """
    if add and new_sale:
        raise typer.BadParameter("not together with --new-sale", param_hint="--add")
    changed = terms.read(limit, starts_at, ends_at)
    if units is None and (add or new_sale or not changed):
        raise typer.BadParameter("say how many", param_hint="UNITS")

    async def change(sale: Sale) -> Level:
        return await sale.admin.set_stock(sku, units or 0, new_sale=new_sale, add=add or units is None, terms=changed)

    _print_levels([_with_sale(change)], as_json)


@stock.command("unfence")
def stock_unfence(
    sku: Sku = DEFAULT_SKU,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget the store's fence, after etcd was replaced or restored from a backup.

    Until the next sale nothing stops a paused instance of the old cluster from writing; be sure that none is left.
    """
    if not yes:
        typer.confirm(f"Have all instances that sell {sku!r} under the old lock system ended?", abort=True)

    async def unfence(sale: Sale) -> Level:
        await sale.admin.unfence(sku)
        return await sale.admin.level(sku)

    _print_levels([_with_sale(unfence)], as_json)


@stock.command("accept-loss")
def stock_accept_loss(
    sku: Sku = DEFAULT_SKU,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Sell on although the store has lost orders, when no complete copy of it is left.

    Buyers were told "sold" whose orders are gone, and their units are for sale again: set the stock accordingly.
    """

    async def accept(sale: Sale) -> Level:
        faults = await sale.admin.faults(sku)
        for fault in faults or [f"nothing is wrong with {sku!r}: no order is known to be lost"]:
            Console(stderr=True).print(fault, markup=False, highlight=False, soft_wrap=True)
        if not yes:
            typer.confirm(f"Are the lost orders of {sku!r} gone for good?", abort=True)
        await sale.admin.accept_loss(sku)
        return await sale.admin.level(sku)

    _print_levels([_with_sale(accept)], as_json)


@app.command()
def locks(as_json: Json = False) -> None:
    """The queue of each lock: the holder first, then the waiters in order."""
    contenders = _with_sale(lambda sale: sale.admin.contenders())
    if as_json:
        _print_json([dataclasses.asdict(contender) for contender in contenders])
        return
    tables.print_queues(contenders)


@app.command()
def check(
    sku: Annotated[str | None, typer.Option(help="The item; all of them without.")] = None, as_json: Json = False
) -> None:
    """Audit the sale: do stock, lucky and the orders agree, and does the store have what was acknowledged?

    Exit status 0 if so, 1 if not.
    """

    async def audit(sale: Sale) -> list[Audit]:
        audits: list[Audit] = []
        skus, said_at, compare = [sku] if sku else await sale.admin.items(), time.monotonic(), True
        async for page in sale.audits(skus):
            faults: dict[str, list[str]] = {}
            try:
                if not audits:
                    await sale.admin.learn()
                if page and compare:
                    faults = await sale.admin.faults_of([one.sku for one in page])
            except LockError as error:
                _say(f"not compared with the lock system: {error}")
                compare = False
            for one in page:
                one.violations += [fault for fault in faults.get(one.sku, []) if fault not in one.violations]
            audits += page
            if time.monotonic() - said_at > _SAY_EVERY_S:
                said_at = time.monotonic()
                _say(f"looked at {len(audits):,} of {len(skus):,} items")
        if sku and not audits:
            await sale.audit(sku)  # raises
        return audits

    audits = _with_sale(audit)
    if as_json:
        _print_json([dataclasses.asdict(one) | {"consistent": one.consistent} for one in audits])
    else:
        tables.print_audits(audits)
    raise typer.Exit(0 if all(one.consistent for one in audits) else 1)


def _print_levels(levels: list[Level], as_json: bool) -> None:
    if as_json:
        _print_json([dataclasses.asdict(level) for level in levels])
        return
    tables.print_levels(levels)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))  # noqa: T201


def _with_sale(work: Callable[[Sale], Awaitable[Result]]) -> Result:
    settings, hint = _settings()
    for line in unknown_variables():
        _say(line)

    async def run() -> Result:
        async with open_sale(settings) as sale:
            return await work(sale)

    try:
        return asyncio.run(run())
    except StockUnavailable as error:
        raise SeckillError(f"{str(error).rstrip('.')}; {hint or f'{PREFIX}STORE says where it is'}") from None
    except LockUnavailable as error:
        raise SeckillError(f"{str(error).rstrip('.')}; {hint or f'{PREFIX}LOCK says where it is'}") from None


def _settings() -> tuple[Settings, str]:
    """The user's. Who has set neither lock nor store means the sale of a `seckill up`, if one runs.

    And what to do if nobody answers there; empty if that is for a setting to say.
    """
    if whereabouts.leads_elsewhere():
        return load(), ""
    where = whereabouts.find(_say)
    if where is None:
        return load(), f"start a sale with `seckill up`, or set {PREFIX}LOCK and {PREFIX}STORE"
    own = whereabouts.set_by_user()
    return load(**{name: value for name, value in where.settings.items() if name.upper() not in own}), (
        "look at what `seckill up` says"
    )

"""The lab's commands of `seckill`: `demo`, `up`, `rehearse`, `cluster`, `torture`, `model`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.errors import ConfigurationError
from app.settings import Guard
from lab.demo.stage import LockName, StageOptions, StoreName
from lab.model import money, protocol

app = typer.Typer()

_ALL = "all"
DemoLock = StrEnum("DemoLock", [(name.name, name.value) for name in LockName] + [("ALL", _ALL)])  # type: ignore[misc]
DemoStore = StrEnum("DemoStore", [(name.name, name.value) for name in StoreName] + [("ALL", _ALL)])  # type: ignore[misc]
_ETCD = DemoLock("etcd")
_REDIS = DemoStore("redis")
_UP_LOCK = LockName("etcd")

Mechanism = StrEnum("Mechanism", [(one.name, one) for kind in (protocol.Mechanism, money.Safeguard) for one in kind])  # type: ignore[misc]

# Options that `demo` and `up` share, and `torture` in part.
Units = Annotated[int, typer.Option(min=0, max=10**9, help="Units that exist.")]
Instances = Annotated[int, typer.Option(min=1, max=16, help="Instances of the service.")]
Ports = Annotated[str, typer.Option(help="Their ports; the next free one is taken for one in use.")]
BatchMax = Annotated[
    int | None, typer.Option(min=1, help="Buyers that one lock grant serves at most; 1 is the articles' way.")
]
_STORE = "Where the stock is; MySQL means MariaDB. A lock in the same database is on the same server"
Store = Annotated[StoreName, typer.Option(help=f"{_STORE}.")]
BestGuard = Annotated[
    Guard | None,
    typer.Option(
        help="What checks each write: the lock's fencing token, what was read, or nothing.",
        show_default="the best that lock and store allow",
    ),
]
TtlS = Annotated[int, typer.Option(min=2, max=60, help="Lease TTL of the locks, in seconds.")]


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
    store: Annotated[DemoStore, typer.Option(help=f"{_STORE}; `all` compares them.")] = _REDIS,
    guard: BestGuard = None,
    ttl_s: TtlS = 5,
    report: Annotated[Path | None, typer.Option(help="Write all the figures to this file, as JSON.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up after the rush, until Ctrl-C.")] = False,
    pay: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Units are held, and this percentage pays; the others run out or cancel."),
    ] = None,
) -> None:
    """Run the whole sale on this machine: servers of lock and stock, the instances, a rush of buyers, and the audit.

    Exit status 0 only if every invariant holds and nobody was refused without cause.
    """
    from lab.demo import compare as each
    from lab.demo import demo as one

    check_file(report, "--report")
    locks = list(LockName) if lock.value == _ALL else [LockName(lock.value)]
    stores = list(StoreName) if store.value == _ALL else [StoreName(store.value)]
    compared = len(locks) > 1 or len(stores) > 1
    if compared and pay is not None:
        raise typer.BadParameter("with one lock and one store only", param_hint="--pay")
    options = one.DemoOptions(
        stock=stock,
        instances=instances,
        ports=_ports(ports),
        batch_max=batch_max,
        lock=locks[0],
        store=stores[0],
        guard=guard,
        ttl_s=ttl_s,
        buyers=buyers,
        report=report,
        keep=keep,
        pay=pay,
    )
    raise typer.Exit(each.run(options, locks, stores) if compared else one.run(options))


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
    admin_token: Annotated[str | None, typer.Option(help="The operator's token; a random one without.")] = None,
    pay: Annotated[
        bool, typer.Option("--pay", help="Units are held and paid, at a pretended payment provider with a page.")
    ] = False,
) -> None:
    """Start the servers, the instances and a new sale on this machine, and stay up until Ctrl-C, with the URLs."""
    from lab.demo.up import run

    variables = {"ADMIN_TOKEN": admin_token} if admin_token else {}
    options = StageOptions(stock, instances, _ports(ports), batch_max, lock, store, guard, ttl_s)
    raise typer.Exit(run(options, variables, pay=pay))


def check_file(file: Path | None, option: str) -> None:
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
def rehearse(
    host: Annotated[str, typer.Option(help="URLs of the instances, or of what is in front of them, with commas.")],
    sku: Annotated[str, typer.Option(help="The items, with commas; buyers spread over them.")] = "default",
    buyers: Annotated[int, typer.Option(min=1, max=100_000, help="How many come.")] = 1000,
    quantity: Annotated[int, typer.Option(min=1, max=1000, help="Units a purchase.")] = 1,
    over: Annotated[float, typer.Option(min=0, max=3600, help="Seconds over which they come; 0: all at once.")] = 1.0,
    retries: Annotated[int, typer.Option(min=0, max=20, help="How often a buyer who failed asks again.")] = 3,
    again: Annotated[float, typer.Option(min=0, max=1, help="Which part asks once more when it was told.")] = 0.1,
    sign_with: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The secret or private key that signs buyers.")
    ] = None,
    pay: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, help="Units are held, and this percentage pays; LOADTEST_SHOP_TOKEN is the shop's."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write all answers to this file, as JSON.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Rehearse a sale on your own staging: buyers with keys, retries, several items, signed names. They really buy.

    Exit status 0 if the sale was consistent and no purchase failed for good.
    """
    from lab.demo import rehearse as rehearsing

    hosts, skus = (tuple(part.strip() for part in text.split(",") if part.strip()) for text in (host, sku))
    if not hosts or not all(one.startswith(("http://", "https://")) for one in hosts):
        raise typer.BadParameter("URLs, such as https://shop.example.com", param_hint="--host")
    check_file(report, "--report")
    if not yes:
        typer.confirm(f"{buyers:,} purchases of {', '.join(skus)} will be made at {', '.join(hosts)}. Go?", abort=True)
    raise typer.Exit(
        rehearsing.run(
            rehearsing.Rehearsal(hosts, buyers, skus, quantity, over, retries, again, sign_with, report, pay)
        )
    )


@app.command()
def torture(
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds of selling under faults.")] = 240,
    instances: Instances = 3,
    ttl_s: TtlS = 2,
    nemesis: Annotated[
        str,
        typer.Option(
            help="Faults, separated by commas; `--nemesis help` lists them.",
            show_default="as many as there is time for",
        ),
    ] = "",
    every: Annotated[
        float | None, typer.Option(min=1, max=3600, help="Seconds of calm after each fault.", show_default="TTL + 5")
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
        str,
        typer.Option(
            help="The stock: redis, redis-sentinel, redis-cluster, mysql (MariaDB), postgres, postgres-pgbouncer."
        ),
    ] = "redis",
    guard: Annotated[
        Guard | None,
        typer.Option(help="What checks each write; with `none` the run must end with violations.", show_default="best"),
    ] = None,
    payers: Annotated[bool, typer.Option(help="Whether units are held and paid as well, beside the sale.")] = True,
    cents: Annotated[
        bool,
        typer.Option("--cents", help="They pay at a provider with bad days, whose books must agree with ours."),
    ] = False,
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
    run itself failed. Without a guard: 0 if violations were found, 1 if not; with a bug: of a rule that it breaks.
    """
    try:
        from lab.torture import command as torturing
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"{missing.name} is missing; in the checkout: pip install --group demo") from None

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
        payers=payers,
        cents=cents,
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
def cluster(
    hosts: Annotated[int, typer.Option(min=3, max=9, help="Hosts.")] = 3,
    buyers: Annotated[int, typer.Option(min=1, max=5_000, help="Buyers of the rush.")] = 500,
    stock: Units = 300,
    rate: Annotated[float, typer.Option(min=1, max=1_000, help="Buyers a second after the rush.")] = 50,
    away_s: Annotated[float, typer.Option(min=1, max=600, help="For how long a host is cut off.")] = 10,
    ports: Annotated[str, typer.Option(help="Ports of the balancer: for buyers, and for operators.")] = "8080,8090",
    ttl_s: TtlS = 5,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up afterwards, until Ctrl-C.")] = False,
) -> None:
    """Sell on several hosts, which are network namespaces: a rush, hosts that are cut off, a rolling update.

    It takes Linux, root and HAProxy. Exit status 0 only if every promise was kept and the update refused nobody.
    """
    from lab.cluster import story

    of_buyers, of_operators = chosen if len(chosen := _ports(ports)) == 2 else (0, 0)
    if not of_buyers:
        raise typer.BadParameter("two of them", param_hint="--ports")
    raise typer.Exit(
        story.run(story.StoryOptions(hosts, buyers, stock, rate, away_s, (of_buyers, of_operators), ttl_s, keep))
    )


@app.command()
def model(
    without: Annotated[
        Mechanism | None, typer.Option(help="Leave out a mechanism, and see the shortest way to a broken promise.")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Leave out one after the other.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Larger scopes as well: minutes.")] = False,
    picture: Annotated[Path | None, typer.Option(help="File for a picture of it (SVG); a folder with --each.")] = None,
) -> None:
    """Explore the protocol and its orders as models: each state that a small sale can reach, whatever is late or lost.

    Exit status 0 if no state breaks a promise; with --each, if each mechanism is missed.
    """
    from lab.model import command as exploring

    if each and picture is not None and not picture.is_dir():
        raise typer.BadParameter(f"{picture} is not a folder", param_hint="--picture")
    if not each:
        check_file(picture, "--picture")
    if each:
        raise typer.Exit(exploring.each(picture))
    if without is not None:
        raise typer.Exit(exploring.without(without, picture))
    raise typer.Exit(exploring.whole(thorough=thorough))

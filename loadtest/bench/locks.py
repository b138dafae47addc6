"""`python -m loadtest.bench.locks`: every lock of ours and its peers from PyPI, side by side on the same servers.

Each contestant is taken and given back by several processes that do nothing else, with nothing and with 5 ms of work in
between. A lock is judged by how often it changes hands, how long one waits for it, how evenly it is given, whether it
excludes at all, and what it leaves behind.
"""

import asyncio
import itertools
import json
import statistics
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from app.errors import EXPECTED, ConfigurationError
from fencelock import LockUnavailable
from fencelock.mysql import MySqlClient
from fencelock.mysql.backend import SCHEMA as LOCK_TABLES
from fencelock.registry import CLASSES, scheme_of
from fencelock.zookeeper.client import ZooKeeperClient
from fencelock.zookeeper.session import Login
from lab.cli import check_file
from lab.servers import EtcdMember, MariaDB, Postgres, Valkey, ZooKeeper
from loadtest.bench.race import OURS, PEERS, Contestant, Heat, heat_of, is_installed, medians, race

_COLUMNS: Final = ("lock", "of", "grants/s", "hand-off", "wait", "turns", "overlaps", "left")


@dataclass(frozen=True, slots=True)
class LockServer:
    """A server of locks. `start` returns its address, as in a lock's URL; `left` returns the keys that locks left.

    Our locks talk to it with `module`, which comes with `package`, the name for pip: never a name of
    ours, which in an index of packages may be anybody's.
    """

    module: str
    package: str
    start: Callable[[ExitStack], str]
    left: Callable[[str], set[str]]


# -- the servers -------------------------------------------------------------------------------------------------------


def _start_etcd(started: ExitStack) -> str:
    return started.enter_context(EtcdMember()).endpoint.partition("://")[2]


def _start_redis(started: ExitStack) -> str:
    return started.enter_context(Valkey()).url.partition("://")[2]


def _start_redlock(started: ExitStack) -> str:
    servers = [started.enter_context(Valkey(f"valkey-{number}")) for number in (1, 2, 3)]
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def _start_zookeeper(started: ExitStack) -> str:
    return started.enter_context(ZooKeeper()).hosts


def _start_mysql(started: ExitStack) -> str:
    return started.enter_context(MariaDB()).url.partition("://")[2]


def _start_postgres(started: ExitStack) -> str:
    return started.enter_context(Postgres()).url.partition("://")[2]


# Data that a lock keeps on purpose (counters, folders, a row for each name) is not left behind.


def _left_in_etcd(address: str) -> set[str]:
    def ask(method: str, **arguments: str | bool) -> Any:
        body = json.dumps(arguments).encode()
        with urllib.request.urlopen(f"http://{address}/v3/{method}", data=body, timeout=10) as answer:
            return json.loads(answer.read())

    keys = ask("kv/range", key="AA==", range_end="AA==", keys_only=True).get("kvs", [])
    leases = ask("lease/leases").get("leases", [])
    return {f"key {key['key']}" for key in keys} | {f"lease {lease['ID']}" for lease in leases}


def _left_in_redis(addresses: str) -> set[str]:
    import redis

    found: set[str] = set()
    for address in addresses.split(","):
        with redis.Redis.from_url(f"redis://{address}") as client:
            keys: Any = client.scan_iter(count=1000)
            found |= {f"key {key!r} in {address}" for key in keys if key != b"fencelock_tokens"}
    return found


def _left_in_zookeeper(address: str) -> set[str]:
    async def look() -> set[str]:
        client = ZooKeeperClient(Login(address, timeout_s=10), session_s=10)
        try:
            return {one.path for one in await client.under("/bench/", deep=True)}
        finally:
            await client.close()

    return asyncio.run(look())


def _left_in_mysql(address: str) -> set[str]:
    async def look() -> set[str]:
        client = MySqlClient(f"mysql://{address}", timeout_s=10, unavailable=LockUnavailable, schema=LOCK_TABLES)
        try:
            return {f"row {name!r}" for (name,) in (await client.ask("SELECT name FROM fencelock_locks")).rows}
        finally:
            await client.close()

    return asyncio.run(look())


def _left_in_postgres(address: str) -> set[str]:
    import psycopg

    with psycopg.connect(f"postgres://{address}", autocommit=True) as client:
        found = {f"lock {key}" for (key,) in client.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory'")}
        if client.execute("SELECT FROM pg_tables WHERE tablename = 'fencelock_contenders'").rowcount:
            found |= {f"row {holder}" for (holder,) in client.execute("SELECT holder FROM fencelock_contenders")}
    return found


# The servers by the first word of our locks' names.
SERVERS: Final = {
    "etcd": LockServer("etcd3", "cslab-etcd3", _start_etcd, _left_in_etcd),
    "redis": LockServer("redis", "'redis[hiredis]'", _start_redis, _left_in_redis),
    "redlock": LockServer("redis", "'redis[hiredis]'", _start_redlock, _left_in_redis),
    "zookeeper": LockServer("fencelock.zookeeper", "", _start_zookeeper, _left_in_zookeeper),
    "postgres": LockServer("psycopg", "'psycopg[binary]'", _start_postgres, _left_in_postgres),
    "mysql": LockServer("asyncmy", "'sqlalchemy[asyncio]' asyncmy cryptography", _start_mysql, _left_in_mysql),
}


# -- the contestants ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockEntry:
    """A lock that takes part. `server`: the one it needs; `scheme`: of its URL there; `module` comes with `package`."""

    contestant: Contestant
    server: str
    scheme: str
    module: str
    package: str


def _ours() -> Iterator[tuple[str, LockEntry]]:
    """Yield all registered locks that have a server; the others keep no processes apart."""
    for lock in CLASSES:
        name = lock.partition("-")[0]
        if server := SERVERS.get(name):
            yield f"seckill {lock}", LockEntry(OURS[0], name, scheme_of(lock), server.module, server.package)


# A lock of ours joins by being registered (`fencelock.registry`), a peer by being added in `loadtest.bench.race`.
CONTESTANTS: Final[dict[str, LockEntry]] = dict(_ours()) | {
    one.name: LockEntry(one, one.system, one.system, one.module, one.package) for one in PEERS
}


# -- the heats ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of the command line."""

    names: Sequence[str]
    processes: Sequence[int]
    holds_ms: Sequence[float]
    seconds: float
    rounds: int
    report: Path | None = None


@dataclass(frozen=True, slots=True)
class _Heat(Heat):
    left_behind: int


@dataclass(slots=True)
class _Report:
    heats: list[_Heat] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def run(options: BenchOptions) -> int:
    """Measure and print. Return the exit status: 1 if a lock of ours misbehaved, 2 if too few took part."""
    console = Console()
    report = _Report()
    absent = {
        one: f"pip install {CONTESTANTS[one].package}"
        for one in options.names
        if not is_installed(CONTESTANTS[one].module)
    }
    with ExitStack() as started, console.status("") as status:
        addresses: dict[str, str] = {}
        for server in dict.fromkeys(CONTESTANTS[one].server for one in options.names if one not in absent):
            try:
                addresses[server] = SERVERS[server].start(started)
            except ConfigurationError as missing:
                absent |= {one: str(missing) for one in options.names if CONTESTANTS[one].server == server}
        present = [one for one in options.names if one not in absent]
        if not present:
            raise ConfigurationError(
                "none of them can take part:\n" + "\n".join(f"{name}: {reason}" for name, reason in absent.items())
            )
        heats = list(itertools.product(range(options.rounds), options.holds_ms, options.processes, present))
        for number, (_, hold_ms, processes, name) in enumerate(heats, 1):
            status.update(f"{number} of {len(heats)}: {name}, {processes} processes, holds {hold_ms:g} ms")
            server = CONTESTANTS[name].server
            address, left = addresses[server], SERVERS[server].left
            before = left(address)
            url = f"{CONTESTANTS[name].scheme}://{address}"
            turns, wrong = race(CONTESTANTS[name].contestant, url, processes, hold_ms, options.seconds)
            if wrong:
                report.failed.append(f"{name}: {wrong}")
            if heat := heat_of(name, hold_ms, turns):
                report.heats.append(_Heat(**asdict(heat), left_behind=len(left(address) - before)))
    _print(console, options, report)
    for name, reason in absent.items():
        console.print(f"{name} did not take part: {reason}", markup=False, highlight=False)
    for line in report.failed:
        console.print(line, style="red", highlight=False)
    if options.report is not None:
        options.report.write_text(json.dumps([asdict(heat) for heat in report.heats], indent=1))
        console.print(f"All heats are in {options.report}", highlight=False)
    ours = [heat for heat in report.heats if heat.contestant.startswith("seckill")]
    if any(heat.overlaps or heat.left_behind for heat in ours):
        return 1
    lacking = len(options.names) - len({heat.contestant for heat in report.heats})
    may_lack = len(CONTESTANTS) // 2 if len(options.names) == len(CONTESTANTS) else 0
    return 2 if lacking > may_lack else 0


def _print(console: Console, options: BenchOptions, report: _Report) -> None:
    for hold_ms in options.holds_ms:
        table = Table(
            *(Column(name, no_wrap=True) for name in _COLUMNS),
            box=box.SIMPLE_HEAD,
            padding=0,  # the box has a space between columns: the table fits into 80
            title=f"held for {hold_ms:g} ms; medians of {options.rounds} rounds of {options.seconds:g} s; "
            "p50/p99 in ms",
        )
        for name, processes in itertools.product(options.names, options.processes):
            heats = [
                heat
                for heat in report.heats
                if (heat.contestant, heat.processes, heat.hold_ms) == (name, processes, hold_ms)
            ]
            if heats:
                left = statistics.median(heat.left_behind for heat in heats)
                table.add_row(name, str(processes), *medians(heats), f"{left:.0f}")
        console.print(table)


_OURS = "seckill "  # the prefix of our locks' names, beside their peers

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def bench(
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
    """Have several processes take and give back each lock: how fast, how evenly, and how many keys it leaves behind.

    Exit status 1 if a lock of ours let two in at once, or left something behind; 2 if one that --only
    names did not take part, or most of all.
    """
    check_file(report, "--report")
    names = _names(only, "--only", list(CONTESTANTS))
    counts = [int(one) for one in _numbers(processes, "--processes", least=1, most=64)]
    options = BenchOptions(names, counts, _numbers(hold_ms, "--hold-ms", least=0, most=1000), seconds, rounds, report)
    raise typer.Exit(run(options))


def _names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Return the names in the text, separated by commas; all that are known if it is empty."""
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


if __name__ == "__main__":
    try:
        app()
    except EXPECTED as error:
        sys.exit(f"bench: {error}")

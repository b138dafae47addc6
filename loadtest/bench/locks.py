"""`seckill bench locks`: every lock of ours and its peers from PyPI, side by side on the same servers.

Each contestant is taken and given back by several processes that do nothing else, with nothing and with 5 ms of work in
between. A lock is judged by how often it changes hands, how long one waits for it, how evenly it is given, whether it
excludes at all, and what it leaves behind.
"""

import importlib.util
import itertools
import json
import multiprocessing
import statistics
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Column, Table

from app import locks
from app.embedded import EtcdMember, MariaDB, Valkey, ZooKeeper
from app.errors import ConfigurationError, LockUnavailable
from app.locks.mysql.backend import SCHEMA as LOCK_TABLES
from app.locks.mysql.client import MySqlClient
from app.locks.registry import CLASSES, scheme_of

_START_WITHIN_S: Final = 30.0  # all processes of a heat are there, and connected
_TTL_S: Final = 5
_COLUMNS: Final = ("lock", "of", "grants/s", "hand-off", "wait", "turns", "overlaps", "left")


@dataclass(frozen=True, slots=True)
class Handle:
    """A lock in the hand of one process: blocks until it is taken; gives it back; ends the connection."""

    take: Callable[[], object]
    give: Callable[[], object]
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Server:
    """What locks run on. `start` answers its address, as it is in a lock's URL; `left`: what locks have left there.

    Our locks talk to it with `module`, which comes with `package`.
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


# What a lock keeps on purpose (counters, folders, a row for each name) is not left behind.


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
    from kazoo.client import KazooClient

    client = KazooClient(hosts=address)
    client.start()
    try:
        folders = [f"{top}/{name}" for top in ("/bench", "/bench-kazoo") for name in _children(client, top)]
        return {f"{folder}/{node}" for folder in folders for node in _children(client, folder)}
    finally:
        client.stop()
        client.close()


def _children(client: Any, folder: str) -> list[str]:
    from kazoo.exceptions import NoNodeError

    try:
        return list(client.get_children(folder))
    except NoNodeError:
        return []


def _left_in_mysql(address: str) -> set[str]:
    client = MySqlClient(f"mysql://{address}", timeout_s=10, unavailable=LockUnavailable, schema=LOCK_TABLES)
    try:
        return {f"row {name!r}" for (name,) in client.run("SELECT name FROM fencelock_locks").rows}
    finally:
        client.close()


# By the first word of our locks' names.
SERVERS: Final = {
    "etcd": Server("etcd3", "seckill", _start_etcd, _left_in_etcd),
    "redis": Server("redis", "seckill", _start_redis, _left_in_redis),
    "redlock": Server("redis", "seckill", _start_redlock, _left_in_redis),
    "zookeeper": Server("kazoo", "seckill[zookeeper]", _start_zookeeper, _left_in_zookeeper),
    "mysql": Server("asyncmy", "seckill[mysql]", _start_mysql, _left_in_mysql),
}


# -- the contestants ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contestant:
    """A lock that takes part. `server`: which it needs; `module`: what has to be installed.

    `open`, with the server's address and a name for the lock, connects.
    """

    name: str
    server: str
    module: str
    package: str
    open: Callable[[str, str], Handle]


def _ours() -> Iterator[Contestant]:
    """All registered locks that have a server; the others keep no processes apart."""
    for lock in CLASSES:
        name = lock.partition("-")[0]
        if server := SERVERS.get(name):
            yield Contestant(f"seckill {lock}", name, server.module, server.package, _open_ours(lock))


def _open_ours(lock: str) -> Callable[[str, str], Handle]:
    def connect(address: str, name: str) -> Handle:
        backend = locks.connect(f"{scheme_of(lock)}://{address}", ttl_s=_TTL_S, timeout_s=30)
        one = backend.lock(f"/bench/{name}")
        return Handle(one.acquire, one.release, backend.close)

    return connect


def _python_etcd3(address: str, name: str) -> Handle:
    import etcd3

    host, _, port = address.partition(":")
    client = etcd3.client(host=host, port=int(port))
    lock: Any = etcd3.Lock(f"bench/{name}", ttl=_TTL_S, etcd_client=client)
    return Handle(lambda: lock.acquire(timeout=None), lock.release, client.close)


def _redis_py(address: str, name: str) -> Handle:
    import redis

    client = redis.Redis.from_url(f"redis://{address}")
    lock = client.lock(f"bench:{name}", timeout=_TTL_S, sleep=0.01)
    return Handle(lock.acquire, lock.release, client.close)


def _python_redis_lock(address: str, name: str) -> Handle:
    import redis
    import redis_lock

    client = redis.Redis.from_url(f"redis://{address}")
    lock: Any = redis_lock.Lock(client, f"bench:{name}", expire=_TTL_S)
    return Handle(lock.acquire, lock.release, client.close)


def _kazoo(address: str, name: str) -> Handle:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=address, timeout=_TTL_S)
    client.start()
    lock: Any = client.Lock(f"/bench-kazoo/{name}")
    return Handle(lock.acquire, lock.release, client.stop)


# A lock of ours joins by being registered (app/locks/registry.py), a peer by being added here.
CONTESTANTS: Final[dict[str, Contestant]] = {
    one.name: one
    for one in (
        *_ours(),
        Contestant("python-etcd3", "etcd", "etcd3", "cslab-etcd3", _python_etcd3),
        Contestant("redis-py", "redis", "redis", "redis", _redis_py),
        Contestant("python-redis-lock", "redis", "redis_lock", "python-redis-lock", _python_redis_lock),
        Contestant("kazoo", "zookeeper", "kazoo", "kazoo", _kazoo),
    )
}


# -- the heats ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one process; moments of the machine's monotonic clock, in seconds."""

    asked_at: float
    got_at: float
    gave_at: float


@dataclass(frozen=True, slots=True)
class Heat:
    """What a contestant did with so many processes. `overlaps`: how often two had the lock at once."""

    contestant: str
    processes: int
    hold_ms: float
    grants_per_s: float
    hand_p50_ms: float
    hand_p99_ms: float
    wait_p50_ms: float
    wait_p99_ms: float
    fewest: int
    most: int
    overlaps: int
    left_behind: int


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line says."""

    names: Sequence[str]
    processes: Sequence[int]
    holds_ms: Sequence[float]
    seconds: float
    rounds: int
    report: Path | None = None


@dataclass(slots=True)
class _Report:
    heats: list[Heat] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def run(options: BenchOptions) -> int:
    """Measure and print; the exit status: 1 if a lock of ours let two in at once, or left something behind."""
    console = Console()
    report = _Report()
    absent = {
        one: f"pip install {CONTESTANTS[one].package}"
        for one in options.names
        if importlib.util.find_spec(CONTESTANTS[one].module) is None
    }
    with ExitStack() as started, console.status("") as status:
        addresses: dict[str, str] = {}
        for server in dict.fromkeys(CONTESTANTS[one].server for one in options.names if one not in absent):
            try:
                addresses[server] = SERVERS[server].start(started)
            except ConfigurationError as missing:
                absent |= {one: str(missing) for one in options.names if CONTESTANTS[one].server == server}
        present = [one for one in options.names if one not in absent]
        heats = list(itertools.product(range(options.rounds), options.holds_ms, options.processes, present))
        for number, (_, hold_ms, processes, name) in enumerate(heats, 1):
            status.update(f"{number} of {len(heats)}: {name}, {processes} processes, holds {hold_ms:g} ms")
            server = CONTESTANTS[name].server
            address, left = addresses[server], SERVERS[server].left
            before = left(address)
            turns = _measure(name, address, processes, hold_ms, options.seconds)
            if not all(turns):
                report.failed.append(f"{name} with {processes} processes: one of them got no turn")
            if sum(map(len, turns)) > 1:
                report.heats.append(_heat(name, processes, hold_ms, turns, len(left(address) - before)))
    _print(console, options, report)
    for name, reason in absent.items():
        console.print(f"{name} did not take part: {reason}", markup=False, highlight=False)
    for line in report.failed:
        console.print(line, style="red", highlight=False)
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps([asdict(heat) for heat in report.heats], indent=1))
        console.print(f"All heats are in {options.report}", highlight=False)
    ours = [heat for heat in report.heats if heat.contestant.startswith("seckill")]
    return 1 if any(heat.overlaps or heat.left_behind for heat in ours) else 0


def _measure(name: str, address: str, processes: int, hold_ms: float, seconds: float) -> list[list[Turn]]:
    spawn = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    turns: Queue[list[Turn]] = spawn.Queue()
    together = spawn.Barrier(processes)
    lock_name = uuid.uuid4().hex
    crowd = [
        spawn.Process(target=_contend, args=(name, address, lock_name, together, seconds, hold_ms, turns), daemon=True)
        for _ in range(processes)
    ]
    for process in crowd:
        process.start()
    found = [turns.get(timeout=seconds + 60) for _ in crowd]
    for process in crowd:
        process.join()
    return found


def _contend(
    name: str,
    address: str,
    lock_name: str,
    together: Barrier,
    seconds: float,
    hold_ms: float,
    turns: "Queue[list[Turn]]",
) -> None:
    own: list[Turn] = []
    try:
        handle = CONTESTANTS[name].open(address, lock_name)
        together.wait(_START_WITHIN_S)
        end = time.monotonic() + seconds
        while (asked_at := time.monotonic()) < end:
            handle.take()
            got_at = time.monotonic()
            if hold_ms:
                time.sleep(hold_ms / 1000)
            gave_at = time.monotonic()
            handle.give()
            own.append(Turn(asked_at, got_at, gave_at))
        handle.close()
    finally:
        turns.put(own)


def _heat(name: str, processes: int, hold_ms: float, turns: list[list[Turn]], left_behind: int) -> Heat:
    line = sorted((turn for own in turns for turn in own), key=lambda turn: turn.got_at)
    hands_ms = [(later.got_at - earlier.gave_at) * 1000 for earlier, later in itertools.pairwise(line)]
    waits_ms = [(turn.got_at - turn.asked_at) * 1000 for turn in line]
    counts = [len(own) for own in turns]
    return Heat(
        name,
        processes,
        hold_ms,
        len(line) / (line[-1].gave_at - line[0].got_at),
        _quantile(hands_ms, 0.5),
        _quantile(hands_ms, 0.99),
        _quantile(waits_ms, 0.5),
        _quantile(waits_ms, 0.99),
        min(counts),
        max(counts),
        sum(hand < 0 for hand in hands_ms),
        left_behind,
    )


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def _print(console: Console, options: BenchOptions, report: _Report) -> None:
    for hold_ms in options.holds_ms:
        table = Table(
            *(Column(name, no_wrap=True) for name in _COLUMNS),
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
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
                table.add_row(name, str(processes), *_row(heats))
        console.print(table)


def _row(heats: Sequence[Heat]) -> list[str]:
    def middle(of: Callable[[Heat], float]) -> float:
        return statistics.median(map(of, heats))

    return [
        f"{middle(lambda heat: heat.grants_per_s):,.0f}",
        f"{middle(lambda heat: heat.hand_p50_ms):.1f}/{middle(lambda heat: heat.hand_p99_ms):.1f}",
        f"{middle(lambda heat: heat.wait_p50_ms):.1f}/{middle(lambda heat: heat.wait_p99_ms):.1f}",
        f"{middle(lambda heat: heat.fewest):.0f}:{middle(lambda heat: heat.most):.0f}",
        str(sum(heat.overlaps for heat in heats)),
        f"{middle(lambda heat: heat.left_behind):.0f}",
    ]

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
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Column, Table

from app.embedded import EtcdMember, MariaDB, Valkey, ZooKeeper
from app.errors import ConfigurationError
from app.locks.registry import backend_class

_START_S: Final = 1.5  # until all processes of a heat are there
_TTL_S: Final = 5
_COLUMNS: Final = ("lock", "of", "grants/s", "hand-off", "wait", "turns", "overlaps", "left")


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are, in a form that goes to another process; empty: there is none."""

    etcd: str
    redis: str
    zookeeper: str
    mysql: str


@dataclass(frozen=True, slots=True)
class Handle:
    """A lock in the hand of one process: blocks until it is taken; gives it back; ends the connection."""

    take: Callable[[], object]
    give: Callable[[], object]
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Contestant:
    """A lock that takes part. `server`: which it needs; `module`: what has to be installed; `open` connects."""

    name: str
    server: str
    module: str
    package: str
    open: Callable[[Servers, str], Handle]


def _ours(lock: str, server: str) -> Callable[[Servers, str], Handle]:
    def connect(servers: Servers, name: str) -> Handle:
        kind: Any = backend_class(lock)
        backend = kind(getattr(servers, server), ttl_s=_TTL_S, timeout_s=30)
        one = backend.lock(f"/bench/{name}")
        return Handle(one.acquire, one.release, backend.close)

    return connect


def _python_etcd3(servers: Servers, name: str) -> Handle:
    import etcd3

    host, _, port = servers.etcd.rpartition("//")[2].partition(":")
    client = etcd3.client(host=host, port=int(port))
    lock: Any = etcd3.Lock(f"bench/{name}", ttl=_TTL_S, etcd_client=client)
    return Handle(lambda: lock.acquire(timeout=None), lock.release, client.close)


def _redis_py(servers: Servers, name: str) -> Handle:
    import redis

    client = redis.Redis.from_url(servers.redis)
    lock = client.lock(f"bench:{name}", timeout=_TTL_S, sleep=0.01)
    return Handle(lock.acquire, lock.release, client.close)


def _python_redis_lock(servers: Servers, name: str) -> Handle:
    import redis
    import redis_lock

    client = redis.Redis.from_url(servers.redis)
    lock: Any = redis_lock.Lock(client, f"bench:{name}", expire=_TTL_S)
    return Handle(lock.acquire, lock.release, client.close)


def _kazoo(servers: Servers, name: str) -> Handle:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=servers.zookeeper, timeout=_TTL_S)
    client.start()
    lock: Any = client.Lock(f"/bench-kazoo/{name}")
    return Handle(lock.acquire, lock.release, client.stop)


# Another lock joins by being added here.
CONTESTANTS: Final[dict[str, Contestant]] = {
    one.name: one
    for one in (
        Contestant("seckill etcd", "etcd", "etcd3", "seckill", _ours("etcd", "etcd")),
        Contestant("seckill etcd-txn", "etcd", "etcd3", "seckill", _ours("etcd-txn", "etcd")),
        Contestant("python-etcd3", "etcd", "etcd3", "cslab-etcd3", _python_etcd3),
        Contestant("seckill redis", "redis", "redis", "seckill", _ours("redis", "redis")),
        Contestant("seckill redis-fair", "redis", "redis", "seckill", _ours("redis-fair", "redis")),
        Contestant("redis-py", "redis", "redis", "redis", _redis_py),
        Contestant("python-redis-lock", "redis", "redis_lock", "python-redis-lock", _python_redis_lock),
        Contestant("kazoo", "zookeeper", "kazoo", "kazoo", _kazoo),
        Contestant("seckill mysql-row", "mysql", "pymysql", "seckill[mysql]", _ours("mysql-row", "mysql")),
        Contestant(
            "seckill mysql-for-update", "mysql", "pymysql", "seckill[mysql]", _ours("mysql-for-update", "mysql")
        ),
    )
}


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
        etcd, valkey = started.enter_context(EtcdMember()), started.enter_context(Valkey())
        more = {"zookeeper": "", "mysql": ""}
        for one in options.names:
            server = CONTESTANTS[one].server
            if one not in absent and not more.get(server, "there"):
                try:
                    more[server] = _start(server, started)
                except ConfigurationError as missing:
                    absent[one] = str(missing)
        servers = Servers(etcd.endpoint, valkey.url, **more)
        present = [one for one in options.names if one not in absent]
        heats = list(itertools.product(range(options.rounds), options.holds_ms, options.processes, present))
        for number, (_, hold_ms, processes, name) in enumerate(heats, 1):
            status.update(f"{number} of {len(heats)}: {name}, {processes} processes, holds {hold_ms:g} ms")
            before = _things(etcd, servers)
            turns = _measure(name, servers, processes, hold_ms, options.seconds)
            if not all(turns):
                report.failed.append(f"{name} with {processes} processes: one of them got no turn")
            if sum(map(len, turns)) > 1:
                report.heats.append(_heat(name, processes, hold_ms, turns, len(_things(etcd, servers) - before)))
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


def _start(server: str, started: ExitStack) -> str:
    if server == "zookeeper":
        return started.enter_context(ZooKeeper()).hosts
    return started.enter_context(MariaDB()).url


def _things(etcd: EtcdMember, servers: Servers) -> set[str]:
    """Keys and leases in etcd, keys in the store."""
    import redis

    with redis.Redis.from_url(servers.redis) as client:
        keys: Any = client.scan_iter(count=1000)
        found = {f"key {key!r} in the store" for key in keys if key != b"seckill_lock_tokens"}
    found |= {
        f"key {kv['key']}" for kv in etcd.ask("kv/range", key="AA==", range_end="AA==", keys_only=True).get("kvs", [])
    }
    return found | {f"lease {lease}" for lease in etcd.leases()}


def _measure(name: str, servers: Servers, processes: int, hold_ms: float, seconds: float) -> list[list[Turn]]:
    spawn = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    turns: Queue[list[Turn]] = spawn.Queue()
    begin = time.monotonic() + _START_S
    lock_name = uuid.uuid4().hex
    crowd = [
        spawn.Process(
            target=_contend, args=(name, servers, lock_name, begin, begin + seconds, hold_ms, turns), daemon=True
        )
        for _ in range(processes)
    ]
    for process in crowd:
        process.start()
    found = [turns.get(timeout=seconds + 60) for _ in crowd]
    for process in crowd:
        process.join()
    return found


def _contend(
    name: str, servers: Servers, lock_name: str, begin: float, end: float, hold_ms: float, turns: "Queue[list[Turn]]"
) -> None:
    own: list[Turn] = []
    try:
        handle = CONTESTANTS[name].open(servers, lock_name)
        time.sleep(max(0.0, begin - time.monotonic()))
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

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
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Column, Table

from app.common.mysql import MySqlClient
from app.embedded import EtcdMember, MariaDB, Valkey, ZooKeeper
from app.errors import ConfigurationError, LockUnavailable
from app.locks.mysql.backend import SCHEMA as LOCK_TABLES
from app.locks.registry import NAMES, backend_class

_START_WITHIN_S: Final = 30.0  # all processes of a heat are there, and connected
_TTL_S: Final = 5
_COLUMNS: Final = ("lock", "of", "grants/s", "hand-off", "wait", "turns", "overlaps", "left")


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are, in a form that goes to another process; empty: not started."""

    etcd: str = ""
    redis: str = ""
    redlock: str = ""  # three of them
    zookeeper: str = ""
    mysql: str = ""


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


def _ours() -> Iterator[Contestant]:
    """All locks that keep processes apart."""
    for name in NAMES:
        server, module, package = next(needs for prefix, needs in _NEEDS.items() if name.startswith(prefix))
        if server:
            yield Contestant(f"seckill {name}", server, module, package, _open_ours(name, server))


# What our locks need: the server, the client's module, and what to install, by how their names begin.
_NEEDS: Final = {
    "etcd": ("etcd", "etcd3", "seckill"),
    "redis": ("redis", "redis", "seckill"),
    "redlock": ("redlock", "redis", "seckill"),
    "zookeeper": ("zookeeper", "kazoo", "seckill[zookeeper]"),
    "mysql": ("mysql", "pymysql", "seckill[mysql]"),
    "": ("", "", ""),
}


def _open_ours(lock: str, server: str) -> Callable[[Servers, str], Handle]:
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
        servers = Servers()
        for server in dict.fromkeys(CONTESTANTS[one].server for one in options.names if one not in absent):
            try:
                servers = replace(servers, **{server: _START[server](started)})
            except ConfigurationError as missing:
                absent |= {one: str(missing) for one in options.names if CONTESTANTS[one].server == server}
        present = [one for one in options.names if one not in absent]
        heats = list(itertools.product(range(options.rounds), options.holds_ms, options.processes, present))
        for number, (_, hold_ms, processes, name) in enumerate(heats, 1):
            status.update(f"{number} of {len(heats)}: {name}, {processes} processes, holds {hold_ms:g} ms")
            look = _LEFT[CONTESTANTS[name].server]
            before = look(servers)
            turns = _measure(name, servers, processes, hold_ms, options.seconds)
            if not all(turns):
                report.failed.append(f"{name} with {processes} processes: one of them got no turn")
            if sum(map(len, turns)) > 1:
                report.heats.append(_heat(name, processes, hold_ms, turns, len(look(servers) - before)))
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


def _start_redlock(started: ExitStack) -> str:
    return ",".join(started.enter_context(Valkey(f"valkey-{number}")).url for number in (1, 2, 3))


_START: Final[dict[str, Callable[[ExitStack], str]]] = {
    "etcd": lambda started: started.enter_context(EtcdMember()).endpoint,
    "redis": lambda started: started.enter_context(Valkey()).url,
    "redlock": _start_redlock,
    "zookeeper": lambda started: started.enter_context(ZooKeeper()).hosts,
    "mysql": lambda started: started.enter_context(MariaDB()).url,
}


# -- what is left behind: what a lock keeps on purpose (counters, folders, a row for each name) does not count --------


def _left_in_etcd(servers: Servers) -> set[str]:
    def ask(method: str, **arguments: str | bool) -> Any:
        body = json.dumps(arguments).encode()
        with urllib.request.urlopen(f"{servers.etcd}/v3/{method}", data=body, timeout=10) as answer:
            return json.loads(answer.read())

    keys = ask("kv/range", key="AA==", range_end="AA==", keys_only=True).get("kvs", [])
    leases = ask("lease/leases").get("leases", [])
    return {f"key {key['key']}" for key in keys} | {f"lease {lease['ID']}" for lease in leases}


def _left_in_redis(urls: str) -> set[str]:
    import redis

    found: set[str] = set()
    for url in urls.split(","):
        with redis.Redis.from_url(url) as client:
            keys: Any = client.scan_iter(count=1000)
            found |= {f"key {key!r} in {url}" for key in keys if key != b"seckill_lock_tokens"}
    return found


def _left_in_zookeeper(servers: Servers) -> set[str]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=servers.zookeeper)
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


def _left_in_mysql(servers: Servers) -> set[str]:
    client = MySqlClient(servers.mysql, timeout_s=10, unavailable=LockUnavailable, schema=LOCK_TABLES)
    try:
        return {f"row {name!r}" for (name,) in client.run("SELECT name FROM seckill_locks").rows}
    finally:
        client.close()


_LEFT: Final[dict[str, Callable[[Servers], set[str]]]] = {
    "etcd": _left_in_etcd,
    "redis": lambda servers: _left_in_redis(servers.redis),
    "redlock": lambda servers: _left_in_redis(servers.redlock),
    "zookeeper": _left_in_zookeeper,
    "mysql": _left_in_mysql,
}


def _measure(name: str, servers: Servers, processes: int, hold_ms: float, seconds: float) -> list[list[Turn]]:
    spawn = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    turns: Queue[list[Turn]] = spawn.Queue()
    together = spawn.Barrier(processes)
    lock_name = uuid.uuid4().hex
    crowd = [
        spawn.Process(target=_contend, args=(name, servers, lock_name, together, seconds, hold_ms, turns), daemon=True)
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
    servers: Servers,
    lock_name: str,
    together: Barrier,
    seconds: float,
    hold_ms: float,
    turns: "Queue[list[Turn]]",
) -> None:
    own: list[Turn] = []
    try:
        handle = CONTESTANTS[name].open(servers, lock_name)
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

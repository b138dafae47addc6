"""`fencelock bench`: how often a lock changes hands, how long one waits for it, and how evenly it is given.

Each contestant is taken and given back by several processes that do nothing else. Contestants take turns within each
round, so that a machine that slows down hits all alike.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import multiprocessing
import queue
import signal
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from .interrupt import uninterrupted
from .registry import connect

_START_WITHIN_S: Final = 30.0  # all processes of a heat are there, and connected
_END_WITHIN_S: Final = 60.0
_TTL_S: Final = 5
_TIMEOUT_S: Final = 30.0  # a crowd on a small machine is no outage
_LINE: Final = "{:20} {:>3} {:>5} {:>9} {:>11} {:>13} {:>11} {:>9}"
_POLL_S: Final = 0.01  # of those peers that wait by asking


@dataclass(frozen=True, slots=True)
class Handle:
    """A lock in the hand of one process: blocks until it is taken; gives it back; ends the connection."""

    take: Callable[[], object]
    give: Callable[[], object]
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class AsyncHandle:
    """The same, of a lock for tasks."""

    take: Callable[[], Awaitable[object]]
    give: Callable[[], Awaitable[object]]
    close: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A lock that takes part. `system`: the first word of the URLs that it understands, or nothing if it is ours.

    `in_thread` or `on_loop`, with a server's URL and the lock's name, connects. `module`: what has to be installed; it
    comes with `package`.
    """

    name: str
    system: str = ""
    module: str = "asyncio"
    package: str = ""
    in_thread: Callable[[str, str], Handle] | None = None
    on_loop: Callable[[str, str], AsyncHandle] | None = None


def is_installed(module: str) -> bool:
    """Whether what needs that module can take part here."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


# -- the contestants ---------------------------------------------------------------------------------------------------


def _threads(url: str, name: str) -> Handle:
    backend = connect(url, ttl_s=_TTL_S, timeout_s=_TIMEOUT_S)
    lock = backend.lock(f"/bench/{name}")
    return Handle(lock.acquire, lock.release, backend.close)


def _asyncio(url: str, name: str) -> AsyncHandle:
    backend = connect(url, ttl_s=_TTL_S, timeout_s=_TIMEOUT_S)
    lock = backend.aio.lock(f"/bench/{name}")

    async def close() -> None:
        await backend.leave_loop()
        await asyncio.to_thread(backend.close)

    return AsyncHandle(lock.acquire, lock.release, close)


def _python_etcd3(url: str, name: str) -> Handle:
    import etcd3

    host, port = _host_and_port(url)
    client = etcd3.client(host=host, port=port)
    lock: Any = etcd3.Lock(f"bench/{name}", ttl=_TTL_S, etcd_client=client)
    return Handle(lambda: lock.acquire(timeout=None), lock.release, client.close)


def _aetcd(url: str, name: str) -> AsyncHandle:
    import aetcd  # type: ignore[import-not-found] # a peer

    host, port = _host_and_port(url)
    client: Any = aetcd.Client(host=host, port=port)
    lock: Any = client.lock(f"bench-aetcd/{name}".encode(), ttl=_TTL_S)
    return AsyncHandle(lambda: lock.acquire(timeout=_END_WITHIN_S), lock.release, client.close)


def _etcd3aio(url: str, name: str) -> AsyncHandle:
    import etcd3aio  # type: ignore[import-not-found] # a peer

    client: Any = etcd3aio.Etcd3Client([url.partition("://")[2]])
    found: list[Any] = []

    async def take() -> None:
        if not found:
            await client.connect()
            found.append(client.lock(f"/bench-etcd3aio/{name}", ttl=_TTL_S))
        await found[0].acquire()

    async def give() -> None:
        await found[0].release()

    return AsyncHandle(take, give, client.close)


def _redis_py(url: str, name: str) -> Handle:
    import redis

    client = redis.Redis.from_url(url)
    lock = client.lock(f"bench:{name}", timeout=_TTL_S, sleep=_POLL_S)
    return Handle(lock.acquire, lock.release, client.close)


def _redis_py_asyncio(url: str, name: str) -> AsyncHandle:
    import redis.asyncio

    client: Any = redis.asyncio.Redis.from_url(url)
    lock = client.lock(f"bench:{name}", timeout=_TTL_S, sleep=_POLL_S)
    return AsyncHandle(lock.acquire, lock.release, client.aclose)


def _python_redis_lock(url: str, name: str) -> Handle:
    import redis
    import redis_lock

    client = redis.Redis.from_url(url)
    lock: Any = redis_lock.Lock(client, f"bench:{name}", expire=_TTL_S)
    return Handle(lock.acquire, lock.release, client.close)


def _kazoo(url: str, name: str) -> Handle:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.partition("://")[2], timeout=_TTL_S)
    client.start()
    lock: Any = client.Lock(f"/bench-kazoo/{name}")
    return Handle(lock.acquire, lock.release, client.stop)


def _host_and_port(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].partition(",")[0].rpartition(":")
    return host, int(port)


OURS: Final = (Contestant("threads", in_thread=_threads), Contestant("asyncio", on_loop=_asyncio))
PEERS: Final = (
    Contestant("python-etcd3", "etcd", "etcd3", "cslab-etcd3", in_thread=_python_etcd3),
    Contestant("aetcd", "etcd", "aetcd", "aetcd", on_loop=_aetcd),
    Contestant("etcd3aio", "etcd", "etcd3aio", "etcd3aio", on_loop=_etcd3aio),
    Contestant("redis-py", "redis", "redis", "redis", in_thread=_redis_py),
    Contestant("redis-py on asyncio", "redis", "redis.asyncio", "redis", on_loop=_redis_py_asyncio),
    Contestant("python-redis-lock", "redis", "redis_lock", "python-redis-lock", in_thread=_python_redis_lock),
    Contestant("kazoo", "zookeeper", "kazoo", "kazoo", in_thread=_kazoo),
)
_KNOWN: Final = {one.name: one for one in (*OURS, *PEERS)}


def peers_of(url: str) -> list[Contestant]:
    """Those that can use the server of one of our URLs."""
    system = url_for_peers(url).partition("://")[0]
    return [one for one in PEERS if one.system == system]


def url_for_peers(url: str) -> str:
    """The server's URL without our word for the kind of lock: redis+fair://host is redis://host to everybody else."""
    scheme, separator, rest = url.partition("://")
    return scheme.partition("+")[0] + separator + rest


# -- a heat ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one process; moments of the machine's monotonic clock, in seconds."""

    asked_at: float
    got_at: float
    gave_at: float


@dataclass(frozen=True, slots=True)
class Heat:
    """What a contestant did with so many processes. `overlaps`: how often two had the lock at once.

    A hand-off is from the call of one's release to the return of the next one's acquire.
    """

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


def race(name: str, url: str, processes: int, hold_ms: float, seconds: float) -> list[list[Turn]]:
    """Let so many processes have the contestant of that name in turn, for some seconds; the turns of each.

    A process that fails or hangs has no turns, and is ended.
    """
    spawn = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    turns: Queue[list[Turn]] = spawn.Queue()
    together = spawn.Barrier(processes)
    lock_name = uuid.uuid4().hex
    crowd = [
        spawn.Process(target=_contend, args=(name, url, lock_name, together, seconds, hold_ms, turns), daemon=True)
        for _ in range(processes)
    ]
    found: list[list[Turn]] = []
    try:
        with uninterrupted(), _deaf_to_ctrl_c():
            for process in crowd:
                process.start()
        end = time.monotonic() + _START_WITHIN_S + seconds + _END_WITHIN_S
        with contextlib.suppress(queue.Empty):
            while len(found) < processes:
                found.append(turns.get(timeout=max(0.0, end - time.monotonic())))
    finally:  # also after a Ctrl-C: left to the end of this process, they would miss what it has removed by then
        for process in crowd:
            if process.pid is not None:
                if len(found) < processes:
                    process.kill()
                process.join()
    return found + [[]] * (processes - len(found))


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in it never hear a Ctrl-C, not even in their imports."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _contend(
    name: str, url: str, lock_name: str, together: Barrier, seconds: float, hold_ms: float, turns: "Queue[list[Turn]]"
) -> None:
    own: list[Turn] = []
    contestant = _KNOWN[name]
    try:
        if contestant.in_thread is not None:
            _take_turns(contestant.in_thread(url, lock_name), together, seconds, hold_ms / 1000, own)
        if contestant.on_loop is not None:
            asyncio.run(_take_turns_on_loop(contestant.on_loop, url, lock_name, together, seconds, hold_ms / 1000, own))
    finally:
        turns.put(own)


def _take_turns(handle: Handle, together: Barrier, seconds: float, hold_s: float, own: list[Turn]) -> None:
    together.wait(_START_WITHIN_S)
    end = time.monotonic() + seconds
    while (asked_at := time.monotonic()) < end:
        handle.take()
        got_at = time.monotonic()
        if hold_s:
            time.sleep(hold_s)
        gave_at = time.monotonic()
        handle.give()
        own.append(Turn(asked_at, got_at, gave_at))
    handle.close()


async def _take_turns_on_loop(
    open_it: Callable[[str, str], AsyncHandle],
    url: str,
    lock_name: str,
    together: Barrier,
    seconds: float,
    hold_s: float,
    own: list[Turn],
) -> None:
    handle = open_it(url, lock_name)
    together.wait(_START_WITHIN_S)
    end = time.monotonic() + seconds
    while (asked_at := time.monotonic()) < end:
        await handle.take()
        got_at = time.monotonic()
        if hold_s:
            await asyncio.sleep(hold_s)
        gave_at = time.monotonic()
        await handle.give()
        own.append(Turn(asked_at, got_at, gave_at))
    await handle.close()


def heat_of(name: str, hold_ms: float, turns: Sequence[Sequence[Turn]]) -> Heat | None:
    """What the turns of all processes come to; None for fewer than two of them."""
    line = sorted((turn for own in turns for turn in own), key=lambda turn: turn.got_at)
    if len(line) < 2:
        return None
    hands_ms = [(later.got_at - earlier.gave_at) * 1000 for earlier, later in itertools.pairwise(line)]
    waits_ms = [(turn.got_at - turn.asked_at) * 1000 for turn in line]
    counts = [len(own) for own in turns]
    return Heat(
        name,
        len(turns),
        hold_ms,
        len(line) / (line[-1].gave_at - line[0].got_at),
        _quantile(hands_ms, 0.5),
        _quantile(hands_ms, 0.99),
        _quantile(waits_ms, 0.5),
        _quantile(waits_ms, 0.99),
        min(counts),
        max(counts),
        sum(hand < 0 for hand in hands_ms),
    )


def _quantile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


# -- the command -------------------------------------------------------------------------------------------------------


def compare(
    url: str,
    *,
    contenders: Sequence[int],
    holds_ms: Sequence[float],
    seconds: float,
    rounds: int,
    peers: bool,
) -> tuple[list[Heat], list[str]]:
    """Race ours, and with `peers` the others of its system, on the server of that URL.

    The heats, and why there is none of some.
    """
    everybody = [*OURS, *(peers_of(url) if peers else ())]
    heats: list[Heat] = []
    missing = {
        one.name: f"{one.name} did not take part: pip install {one.package}"
        for one in everybody
        if not is_installed(one.module)
    }
    for _, hold_ms, many, one in itertools.product(range(rounds), holds_ms, contenders, everybody):
        if one.name in missing:
            continue
        turns = race(one.name, url_for_peers(url) if one.system else url, many, hold_ms, seconds)
        heat = heat_of(one.name, hold_ms, turns)
        if heat is not None:
            heats.append(heat)
        if not all(turns):
            missing.setdefault(one.name, f"{one.name} with {many} processes: one of them got no turn")
    return heats, list(missing.values())


def table(heats: Sequence[Heat]) -> list[str]:
    """Lines of text: the medians of the rounds."""
    lines = [_LINE.format("lock", "of", "hold", "grants/s", "hand-off", "wait", "turns", "overlaps")]
    groups: dict[tuple[str, int, float], list[Heat]] = {}
    for heat in heats:
        groups.setdefault((heat.contestant, heat.processes, heat.hold_ms), []).append(heat)
    for (name, processes, hold_ms), group in groups.items():
        lines.append(_LINE.format(name, processes, f"{hold_ms:g}", *medians(group)))
    return lines


def medians(heats: Sequence[Heat]) -> list[str]:
    """Of several heats of one kind: grants a second, hand-off and wait (p50/p99, in ms), turns, overlaps in all."""

    def middle(of: Callable[[Heat], float]) -> float:
        return statistics.median(map(of, heats))

    return [
        f"{middle(lambda heat: heat.grants_per_s):,.0f}",
        f"{middle(lambda heat: heat.hand_p50_ms):.1f}/{middle(lambda heat: heat.hand_p99_ms):.1f}",
        f"{middle(lambda heat: heat.wait_p50_ms):.1f}/{middle(lambda heat: heat.wait_p99_ms):.1f}",
        f"{middle(lambda heat: heat.fewest):.0f}:{middle(lambda heat: heat.most):.0f}",
        str(sum(heat.overlaps for heat in heats)),
    ]

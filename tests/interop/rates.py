"""How often a lock changes hands among so many contenders, ours and theirs.

    python -m tests.interop.rates [SECONDS [SYSTEM ...]]

Each contender is a process that takes the lock and gives it back, and does nothing in between. All kinds race in turn,
in each round; the table has the medians of the rounds. A hand-off is from one's release to the next one's grant, by the
wall clock of one machine. Nothing asserts these: they are the machine's.
"""

import itertools
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from app.embedded import EtcdMember, Valkey, ZooKeeper
from app.locks.bench import Heat, Turn, heat_of, is_installed, medians, peers_of
from tests.interop import pairs
from tests.interop.client import Client, peer

ROUNDS: Final = 3
CONTENDERS: Final = (2, 8)
OURS: Final = {"ours, threads": "race", "ours, asyncio": "race-on-loop"}
_TTL_S: Final = 5
Start = Callable[[str, float], list[str]]  # the command line of one, by the lock's name and its TTL
_WARM_MS: Final = 300


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    with ExitStack() as stack:
        etcd, zookeeper = stack.enter_context(EtcdMember()), stack.enter_context(ZooKeeper())
        valkey = stack.enter_context(Valkey())
        go, jetcd, curator = pairs.go_etcd(etcd), pairs.jetcd(etcd), pairs.curator(zookeeper)
        redisson, fair = pairs.redisson(valkey), pairs.redisson_fair(valkey)
        in_python = {
            system: {one.name: partial(peer, one.name, url) for one in peers_of(url) if is_installed(one.module)}
            for system, url in (
                ("etcd", etcd.endpoint.replace("http:", "etcd:")),
                ("redis", valkey.url),
                ("zookeeper", f"zookeeper://{zookeeper.hosts}"),
            )
        }
        systems: dict[str, tuple[Start, dict[str, Start]]] = {
            "etcd": (go.ours, {"Go, Mutex": go.theirs, "jetcd": jetcd.theirs} | in_python["etcd"]),
            "redis": (redisson.ours, {"Redisson, RLock": redisson.theirs} | in_python["redis"]),
            "redis-fair": (fair.ours, {"Redisson, RFairLock": fair.theirs}),
            "zookeeper": (curator.ours, {"Curator": curator.theirs} | in_python["zookeeper"]),
        }
        wanted = sys.argv[2:] or list(systems)
        table = Table("locks", "contenders", "grants/s", "hand-off p50/p99 (ms)", "fewest:most turns", "overlaps")
        for (system, (ours, peers)), many in itertools.product(systems.items(), CONTENDERS):
            if system not in wanted:
                continue
            runs: dict[str, list[Heat]] = {}
            for _ in range(ROUNDS):
                for kind, command in OURS.items():
                    runs.setdefault(kind, []).append(race(kind, ours, many, command, seconds))
                for kind, theirs in peers.items():
                    runs.setdefault(kind, []).append(race(kind, theirs, many, "race", seconds))
            for kind, heats in runs.items():
                grants, hands, _, turns, overlaps = medians(heats)  # they don't say when they asked
                table.add_row(f"{system}: {kind}", str(many), grants, hands, turns, overlaps)
        Console().print(table)


def race(kind: str, start: Start, many: int, command: str, seconds: float) -> Heat:
    """So many processes of a kind, for some seconds."""
    name = f"/race/{uuid.uuid4().hex}"
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        crowd = [stack.enter_context(Client(start(name, _TTL_S))) for _ in range(many)]
        for client in crowd:
            client.answer()  # it is ready
        for length_ms, part in ((_WARM_MS, "warm"), (seconds * 1000, "race")):
            files = [Path(folder) / f"{part}-{number}" for number in range(many)]
            for client, file in zip(crowd, files, strict=True):
                client.tell(command, f"{length_ms:.0f}", str(file))
            for client in crowd:
                kind, *_ = answer = client.answer()
                if kind != "raced":
                    raise RuntimeError(" ".join(answer))
        turns = [[_turn(line) for line in file.read_text().splitlines()] for file in files]
    heat = heat_of(kind, 0, turns)
    if heat is None:
        raise RuntimeError(f"{kind}: nobody had a second turn")
    return heat


def _turn(line: str) -> Turn:
    got_us, gave_us = map(int, line.split())
    return Turn(got_us / 1e6, got_us / 1e6, gave_us / 1e6)


if __name__ == "__main__":
    main()

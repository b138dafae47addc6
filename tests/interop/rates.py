"""Measure how often a lock changes hands, or is taken by one alone: ours, and other clients in Go and Java.

    python -m tests.interop.rates [SECONDS [SYSTEM ...]]

It starts the servers. All kinds race in turn, in each round; a table has the medians of the rounds. Nothing asserts
these figures, which depend on the machine.
"""

import sys
from contextlib import ExitStack
from typing import Final

from lab.servers import EtcdMember, Valkey, ZooKeeper
from loadtest.bench.race import Contestant, compare, table
from tests.interop import pairs

ROUNDS: Final = 3
CONTENDERS: Final = (1, 2, 8)
_TTL_S: Final = 5


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    with ExitStack() as stack:
        etcd, zookeeper = stack.enter_context(EtcdMember()), stack.enter_context(ZooKeeper())
        valkeys = [stack.enter_context(Valkey(f"valkey-{number}")) for number in (1, 2, 3)]
        go, jetcd, curator = pairs.go_etcd(etcd), pairs.jetcd(etcd), pairs.curator(zookeeper)
        redisson, fair = pairs.redisson(valkeys[0]), pairs.redisson_fair(valkeys[0])
        redsync = pairs.redsync(valkeys)
        systems = {
            "etcd": (go.url, {"Go, Mutex": go.theirs, "jetcd": jetcd.theirs}),
            "redis": (redisson.url, {"Redisson, RLock": redisson.theirs}),
            "redis-fair": (fair.url, {"Redisson, RFairLock": fair.theirs}),
            "redlock": (redsync.url, {"Go, redsync": redsync.theirs}),
            "zookeeper": (curator.url, {"Curator": curator.theirs}),
        }
        for system in sys.argv[2:] or systems:
            url, theirs = systems[system]
            heats, missing = compare(
                url,
                contenders=CONTENDERS,
                holds_ms=(0.0,),
                seconds=seconds,
                rounds=ROUNDS,
                peers=system != "redis-fair",  # Redis' peers race already
                programs=[Contestant(name, command("{name}", _TTL_S)) for name, command in theirs.items()],
            )
            sys.stdout.write("\n".join([f"\n{system}", *table(heats), *missing, ""]))
            sys.stdout.flush()


if __name__ == "__main__":
    main()

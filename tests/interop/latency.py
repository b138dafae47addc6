"""Measure the hand-over between our locks and other clients', both ways: `python -m tests.interop.latency [TIMES]`.

The time is from the beginning of the holder's release until the waiter has the lock, by the wall clock
of one machine; the report has the median. Nothing asserts these figures, which depend on the machine.
"""

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console
from rich.table import Table

from lab.servers import EtcdMember, Valkey, ZooKeeper
from tests.interop import pairs
from tests.interop.pairs import Pair
from tests.interop.together import Crowd


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    table = Table("client", "ours to theirs (ms)", "theirs to ours (ms)")
    with ExitStack() as stack:
        etcd, zookeeper = stack.enter_context(EtcdMember()), stack.enter_context(ZooKeeper())
        valkeys = [stack.enter_context(Valkey()) for _ in range(3)]
        all_pairs: dict[str, Callable[[], Pair]] = {
            "etcdctl lock": lambda: pairs.etcdctl(etcd),
            "Go concurrency.Mutex": lambda: pairs.go_etcd(etcd),
            "jetcd": lambda: pairs.jetcd(etcd),
            "Redisson RLock": lambda: pairs.redisson(valkeys[0]),
            "Redisson RFairLock": lambda: pairs.redisson_fair(valkeys[0]),
            "redsync": lambda: pairs.redsync(valkeys),
            "Curator InterProcessMutex": lambda: pairs.curator(zookeeper),
        }
        for name, pair in all_pairs.items():
            with Crowd(pair()) as crowd:
                ours, theirs = crowd.start("ours", "theirs")
                ours.ask("acquire", -1)
                to_theirs, to_ours = [], []
                for _ in range(times):
                    to_theirs.append(1000 * crowd.hand_over(ours, theirs))
                    to_ours.append(1000 * crowd.hand_over(theirs, ours))
            table.add_row(name, *(f"{statistics.median(one):.1f}" for one in (to_theirs, to_ours)))
    Console().print(table)


if __name__ == "__main__":
    main()

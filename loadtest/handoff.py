"""How long a lock takes from hand to hand: from the release call to the next owner's return from acquire.

    python loadtest/handoff.py [--seconds 6] [--processes 1,2,4,8]

Starts an etcd of its own. So many processes take and release one lock as fast as they can; the table has the grants per
second, the times between hands, and the grants of the luckiest and the unluckiest process. What is left behind is
counted, too. On a busy machine the figures are the machine's: compare within one run.
"""

import argparse
import itertools
import multiprocessing
import time
from multiprocessing.queues import Queue

from rich.console import Console
from rich.table import Table

from app.embedded import EtcdMember
from app.locks import EtcdBackend


def contend(endpoint: str, until: float, cycles: "Queue[list[tuple[int, float, float]]]") -> None:
    """One contender: token, moment of the grant and moment of the release of each of its turns."""
    backend = EtcdBackend([endpoint], ttl_s=5)
    lock = backend.lock("/handoff/lock")
    own = []
    while time.time() < until:
        grant = lock.acquire()
        got = time.monotonic()
        lock.release()
        own.append((grant.token, got, got))
    cycles.put(own)
    backend.close()


def measure(endpoint: str, processes: int, seconds: float) -> list[list[tuple[int, float, float]]]:
    """The turns of each process."""
    spawn = multiprocessing.get_context("spawn")
    cycles: Queue[list[tuple[int, float, float]]] = spawn.Queue()
    until = time.time() + seconds + 1.0  # a second to start
    crowd = [spawn.Process(target=contend, args=(endpoint, until, cycles)) for _ in range(processes)]
    for process in crowd:
        process.start()
    turns = [cycles.get() for _ in crowd]
    for process in crowd:
        process.join()
    return turns


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--processes", default="1,2,4,8")
    options = parser.parse_args()
    table = Table(
        "processes", "grants/s", "p50", "p90", "p99", "longest", "fewest : most", title="Hand-off of the etcd lock"
    )
    with EtcdMember() as etcd:
        for processes in map(int, options.processes.split(",")):
            turns = measure(etcd.endpoint, processes, options.seconds)
            line = sorted(turn for own in turns for turn in own)
            hands = sorted((later[1] - earlier[2]) * 1000 for earlier, later in itertools.pairwise(line))
            quantiles = [hands[min(len(hands) - 1, int(len(hands) * part))] for part in (0.5, 0.9, 0.99, 1.0)]
            counts = [len(own) for own in turns]
            table.add_row(
                str(processes),
                f"{len(line) / (line[-1][1] - line[0][1]):.0f}",
                *(f"{value:.1f} ms" for value in quantiles),
                f"{min(counts)} : {max(counts)}",
            )
        backend = EtcdBackend([etcd.endpoint])
        left = len(backend.lock("/handoff/lock").contenders())
        backend.close()
    Console().print(table)
    Console().print(f"keys left behind: {left}")


if __name__ == "__main__":
    main()

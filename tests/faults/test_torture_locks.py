"""`seckill torture` holds for each lock beside etcd's, and for each store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.servers import MariaDB, Postgres, ZooKeeper, pgbouncer_binary
from lab.torture.history import load
from tests.harness.servers import optional
from tests.harness.torture import QUICK, broken, torture

pytestmark = pytest.mark.slow

SERVERS: dict[str, list[Callable[[], object]]] = {
    "zookeeper": [ZooKeeper],
    "postgres": [Postgres],
    "postgres-pgbouncer": [Postgres, pgbouncer_binary],
    "mysql": [MariaDB],
}


@pytest.mark.parametrize(
    ("lock", "store", "nemeses"),
    [
        ("etcd-txn", "mysql", "store-kill,late-commit,lock-delay"),
        *(
            pytest.param(*run, marks=pytest.mark.exhaustive)
            for run in (
                ("redis", "redis", "lock-cut,pause-holder,late-commit"),
                ("redis-fair", "redis", "lock-kill,renewal,pause"),
                ("redlock", "redis", "lock-pause,lost-reply,kill"),
                ("zookeeper", "redis", "lock-silent,pause-holder,late-between"),
                ("postgres", "redis", "lock-kill,lock-pause,pause-holder,lost-reply"),
                ("etcd", "mysql", "kill,lost-reply"),
                ("mysql-row", "mysql", "lock-kill,late-commit,kill"),
                ("mysql-for-update", "mysql", "lock-reset,pause,lost-reply"),
                ("etcd", "redis-sentinel", "store-failover,kill"),
                ("etcd", "redis-cluster", "store-reshard,kill"),
                ("postgres", "postgres", "store-kill,store-reset,kill,lost-reply"),
                ("etcd", "postgres-pgbouncer", "pooler-kill,store-kill,kill"),
                ("fallback", "redis", "lock-kill,lock-pause,lost-reply"),
                ("optimistic", "mysql", "kill,late-commit,store-reset"),
            )
        ),
    ],
)
def test_every_lock_keeps_what_it_promises(tmp_path: Path, lock: str, store: str, nemeses: str) -> None:
    """Each of the other locks and stores keeps the promises that it declares."""
    for server in SERVERS.get(lock.partition("-")[0], []) + SERVERS.get(store, []):
        optional(server)
    few = ["--no-payers"] if lock == "etcd-txn" else []  # MySQL beside this lock is slow enough; another row has both
    done = torture(tmp_path, *QUICK, *few, "--lock", lock, "--store", store, "--nemesis", nemeses)
    assert done.returncode == 0, done.stdout + done.stderr
    assert broken(load(tmp_path / "history.jsonl")) == set()

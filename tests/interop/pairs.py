"""Pair our locks with other clients, and read from a server how many contend."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import Redis

from fencelock import LockBackend, connect
from lab.servers import EtcdMember, Valkey, ZooKeeper
from tests.interop import client

TTL_S = 3  # of all contenders by default, and of Redisson's watchdog
# How long a dead waiter of Redisson's delays the queue; its default is five minutes. It must be longer than the waits
# of a test in which nobody dies: a waiter of theirs that waits longer than this loses its place although it lives.
FAIR_WAIT_S = 30


@dataclass(frozen=True)
class Pair:
    """A lock of ours, by its URL, and another client, by its command line for a lock's name and a TTL.

    `signs`: a number that rises when one more contends for the lock of that name. `in_line`: whether `contenders` shows
    the waiters. `rest_ms`: the rest between two rounds, where other clients need that to have a chance. `face`: ours
    are "threads" or "tasks".
    """

    url: str
    theirs: Callable[[str, float], list[str]]
    signs: Callable[[LockBackend, str], int]
    in_line: bool = True
    rest_ms: int = 0
    face: str = "threads"

    def ours(self, name: str, ttl_s: float) -> list[str]:
        """Return the command line of one of ours."""
        return client.ours(self.url, name, ttl_s, self.face)

    def connect(self) -> LockBackend:
        """Open our backend in the test's own process."""
        return connect(self.url, ttl_s=TTL_S)


def etcdctl(server: EtcdMember) -> Pair:
    return _etcd(server, partial(client.etcdctl, server.endpoint))


def go_etcd(server: EtcdMember) -> Pair:
    return _etcd(server, partial(client.go, "etcd", server.endpoint))


def jetcd(server: EtcdMember) -> Pair:
    return _etcd(server, partial(client.java, "jetcd", server.endpoint))


def _etcd(server: EtcdMember, theirs: Callable[[str, float], list[str]]) -> Pair:
    return Pair(f"etcd://127.0.0.1:{server.client_port}", theirs, _in_line)


def curator(server: ZooKeeper) -> Pair:
    theirs = partial(client.java, "curator", server.hosts)
    return Pair(f"zookeeper://{server.hosts}", theirs, _in_line)


def redisson(server: Valkey) -> Pair:
    theirs = partial(client.java, "redisson", server.url)
    # A failed attempt asks for the rest of the holder's TTL, in a script of ours as in one of theirs.
    return Pair(server.url, theirs, partial(_in_vain, server, {"pttl"}), in_line=False, rest_ms=5)


def redisson_fair(server: Valkey, wait_s: float = FAIR_WAIT_S) -> Pair:
    theirs = partial(client.java, "redisson-fair", server.url, fair_wait_s=wait_s)
    url = f"{server.url.replace('redis:', 'redis+fair:')}?redisson_wait_s={wait_s:g}"
    return Pair(url, theirs, _in_line)


def redsync(servers: list[Valkey]) -> Pair:
    theirs = partial(client.go, "redsync", ",".join(server.url for server in servers))
    url = f"redlock://{','.join(f'127.0.0.1:{server.port}' for server in servers)}"
    return Pair(url, theirs, partial(_in_vain, servers[0], {"set", "setnx"}), in_line=False, rest_ms=20)


def _in_vain(server: Valkey, words: set[str], _locks: LockBackend, _name: str) -> int:
    """Count how often these commands were given: failed attempts leave no other trace.

    With two waiters, the second one's first attempt can't be told from the first one's next.
    """
    with Redis.from_url(server.url) as redis:
        found: dict[str, Any] = redis.info("commandstats")
    return sum(found.get(f"cmdstat_{word}", {"calls": 0})["calls"] for word in words)


def _in_line(locks: LockBackend, name: str) -> int:
    return len(locks.lock(name).contenders())

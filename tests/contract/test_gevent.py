"""A process that gevent has patched: etcd's locks say that they can't, and the others serve greenlets."""

import subprocess
import sys

import pytest

from lab.servers import EtcdMember, Valkey

PROGRAM = """
from gevent import monkey; monkey.patch_all()
import sys, gevent
from fencelock import LockError, connect
with connect(sys.argv[1], ttl_s=1) as locks:
    lock, tokens = locks.lock("/test/gevent"), []
    def work(hold_s):
        me = gevent.getcurrent()
        tokens.append(lock.acquire(wait_s=10, owner=me).token)
        gevent.sleep(hold_s)  # its lease is renewed meanwhile
        lock.release(owner=me)
    try:
        lock.acquire(wait_s=1, owner="me")
        lock.release(owner="me")
        for one in [gevent.spawn(work, hold_s) for hold_s in (2.5, 0, 0)]:
            one.get()
        print("served", len(tokens), tokens == sorted(tokens))
        gevent.spawn(lock.acquire).get()
    except LockError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(params=["etcd", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    server: EtcdMember | Valkey = request.getfixturevalue("etcd" if request.param == "etcd" else "valkey")
    return f"etcd://127.0.0.1:{server.client_port}" if isinstance(server, EtcdMember) else server.url


def test_greenlets(url: str) -> None:
    """They take turns under owners that they name; without one, or with etcd, an error says so."""
    pytest.importorskip("gevent")
    done = subprocess.run([sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=60)
    said = done.stdout.splitlines()
    if url.startswith("etcd"):
        assert said == [
            "LockError gRPC's asyncio, etcd's client, hangs where gevent has patched threading: "
            "redis:// and zookeeper:// don't"
        ], done.stderr
    else:
        assert said[0] == "served 3 True", done.stderr
        assert "greenlet" in said[1]
        assert "pass an owner" in said[1]

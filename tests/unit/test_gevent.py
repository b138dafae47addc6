"""With gevent greenlets are what threads are elsewhere, if it has patched the threads; otherwise they are told."""

import subprocess
import sys

import pytest

from lab.servers import EtcdMember
from tests.harness.shop import lock_url

PATCH = "from gevent import monkey; monkey.patch_all()\n"
GRPC = "from grpc.experimental.gevent import init_gevent; init_gevent()\n"
TAKE_TURNS = """
import sys, threading, gevent, fencelock

locks, beats, inside, owned = fencelock.connect(sys.argv[1], ttl_s=2), [], [], []
lock = locks.lock("/greenlets")

def own(name):
    {acquire}
    inside.append(name)
    gevent.sleep(0.2)
    owned.append((inside[:], name))
    inside.remove(name)
    {release}

def beat():
    while len(owned) < 2:
        beats.append(gevent.sleep(0.02))

def thread(work, *args):
    one = threading.Thread(target=work, args=args)
    one.start()
    one.join()

with gevent.Timeout(20):
    {start}
    gevent.joinall([gevent.spawn(beat), *both], raise_error=True)
assert sorted(owned) == [(["a"], "a"), (["b"], "b")], owned
assert len(beats) > 5, beats
locks.close()
"""
OWNERS = {
    "acquire": "lock.acquire(owner=name)",
    "release": "lock.release(owner=name)",
    "start": "both = [gevent.spawn(own, name) for name in 'ab']",
}
THREADS = {
    "acquire": "lock.acquire()",
    "release": "lock.release()",
    "start": "both = [gevent.spawn(thread, own, name) for name in 'ab']",
}


def run(program: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("way", [OWNERS, THREADS], ids=["owners", "threads"])
def test_greenlets_take_turns(etcd: EtcdMember, way: dict[str, str]) -> None:
    """Of two patched greenlets one waits for the other, and a third goes on meanwhile."""
    done = run(PATCH + GRPC + TAKE_TURNS.format(**way), lock_url(etcd.endpoint))
    assert (done.returncode, done.stderr) == (0, "")


def test_greenlets_that_share_a_thread_own_nothing() -> None:
    """The first would hold the lock for the second as well, as they are one thread."""
    done = run(TAKE_TURNS.format(**THREADS | {"start": OWNERS["start"]}), "local://")
    assert "LockError: the greenlets of a thread would own the lock together" in done.stderr

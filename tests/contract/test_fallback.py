"""An optional lock lets a few holders go on without it while the lock system is away, and then comes back."""

import queue
from collections.abc import Iterator
from contextlib import suppress

import pytest

from app.locks.fallback import FallbackBackend
from fencelock import Cancel, Grant, LockCancelled, LockError, LockLost, LockTimeout, LockUnavailable, Scope
from fencelock.etcd.backend import EtcdBackend
from fencelock.redis.backend import RedisBackend
from lab.servers import EtcdMember, Valkey
from tests.contract.lock_contract import InThread
from tests.harness.forked import Forked
from tests.harness.waiting import WITHIN_S, eventually

NAME = "/test/fallback"
MOST = 2


@pytest.fixture
def server() -> Iterator[Valkey]:
    with Valkey(durable=True) as server:
        yield server


@pytest.fixture
def events() -> "queue.SimpleQueue[str]":
    return queue.SimpleQueue()


@pytest.fixture
def backend(server: Valkey, events: "queue.SimpleQueue[str]") -> Iterator[FallbackBackend]:
    # This TTL is longer than any test waits.
    inner = RedisBackend(server.url, ttl_s=600, timeout_s=0.5)
    backend = FallbackBackend(inner, most=MOST, on_change=events.put)
    yield backend
    backend.close()


def unlocked(grant: Grant) -> bool:
    return (grant.token, grant.source) == (0, "no lock")


def test_what_it_promises(backend: FallbackBackend) -> None:
    """An optional lock promises neither exclusion nor tokens: the store must provide them."""
    assert backend.guarantees.scope is Scope.NOBODY
    assert not backend.guarantees.fencing


def test_a_session_is_one_of_the_lock_system(backend: FallbackBackend, etcd: EtcdMember) -> None:
    """A session is the lock system's own: without the lock system there is none."""
    with pytest.raises(LockError, match="redis has no sessions"):
        backend.session()
    with (
        FallbackBackend(EtcdBackend(etcd.endpoint, ttl_s=10)) as other,
        other.session() as session,
        session.lock(NAME) as grant,
    ):
        assert not unlocked(grant)


def test_a_release_can_be_forced(backend: FallbackBackend) -> None:
    """A force release works as in the lock system itself."""
    lock = backend.lock(NAME)
    grant = lock.acquire()
    had = backend.force_release(NAME)
    assert had is not None
    assert had.token == grant.token
    with backend.lock(NAME).holding(wait_s=WITHIN_S) as after:
        assert after.token > grant.token
    with suppress(LockLost):
        lock.release()


def test_a_lock_while_it_can_be_had(backend: FallbackBackend) -> None:
    """While the lock can be had, it excludes like any other and needs no slot."""
    lock, other = backend.lock(NAME), backend.lock(NAME)
    with lock as grant:
        assert not unlocked(grant)
        assert other.try_acquire(owner="other") is None
        waiting = InThread(lambda: other.acquire(owner="other"))
        taken = [backend.lock(f"{NAME}/{number}").acquire() for number in range(MOST + 1)]
        assert not any(map(unlocked, taken))
        assert [one.key for one in backend.contenders("/test/") if one.token == grant.token]
        assert waiting.thread.is_alive()
    assert waiting.result().token > grant.token
    other.release(owner="other")
    assert not backend.degraded


def test_without_it_a_few_go_on(
    backend: FallbackBackend, server: Valkey, events: "queue.SimpleQueue[str]", caplog: pytest.LogCaptureFixture
) -> None:
    """Without the lock, as many go on at once as there are slots; the others wait for a slot or for the lock."""
    lock = backend.lock(NAME)
    server.kill()
    first, second = lock.acquire(owner=1), lock.acquire(owner=2)
    assert unlocked(first)
    assert unlocked(second)
    assert backend.degraded
    assert events.get(timeout=WITHIN_S) == "away"
    assert backend.contenders("/test/") == []
    backend.ping(1)
    with pytest.raises(LockTimeout):
        lock.acquire(owner=3, wait_s=0.05)
    cancel = Cancel()
    called_off = InThread(lambda: lock.acquire(owner=4, cancel=cancel))
    third = InThread(lambda: lock.acquire(owner=5))
    cancel.set()
    with pytest.raises(LockCancelled):
        called_off.result()
    lock.release(owner=1)
    assert unlocked(third.result())
    fourth = InThread(lambda: lock.acquire(owner=6))
    server.start()
    assert events.get(timeout=WITHIN_S) == "back"
    assert not unlocked(fourth.result())
    assert not backend.degraded
    for owner in (2, 5, 6):  # the holders without a lock end when they release
        lock.release(owner=owner)
    with lock as grant:
        assert not unlocked(grant)
    said = [record.getMessage() for record in caplog.records if record.name.endswith(".fallback")]
    assert ["going on without locks" in said[0], "is back" in said[1]] == [True, True]
    assert len(said) == 2


def test_a_listener_that_raises_stops_nothing(server: Valkey) -> None:
    """Whoever hears of the changes may fail: waiters leave the lock that is away, and it comes back."""

    def fail(event: str) -> None:
        raise ValueError(event)

    inner = RedisBackend(server.url, ttl_s=600, timeout_s=0.5)
    others = RedisBackend(server.url, ttl_s=600, timeout_s=0.5)
    with others, FallbackBackend(inner, most=1, on_change=fail) as backend:
        lock = backend.lock(NAME)
        others.lock(NAME).acquire()
        waiting = InThread(lambda: lock.acquire(owner="me"))
        server.kill()
        assert unlocked(waiting.result())
        server.start()
        eventually(lambda: not backend.degraded, "the lock is back")
        lock.release(owner="me")


def test_a_waiter_in_the_queue_does_not_wait_for_ever(backend: FallbackBackend, server: Valkey) -> None:
    """A waiter whose lock system goes away goes on without it, long before a TTL is over, unlike the holder."""
    lock, other = backend.lock(NAME), backend.lock(NAME)
    grant = lock.acquire()
    waiting = InThread(lambda: other.acquire(owner="other"))
    eventually(lambda: backend.went_away._callbacks, "it waits")
    server.kill()
    assert unlocked(waiting.result())
    assert not grant.lost
    other.release(owner="other")
    lock.release()


def test_a_frozen_server_is_away(backend: FallbackBackend, server: Valkey) -> None:
    """A server that takes connections and answers nothing counts as away, too."""
    lock = backend.lock(NAME)
    server.pause()
    assert unlocked(lock.acquire(wait_s=WITHIN_S))
    lock.release()
    server.resume()
    eventually(lambda: not backend.degraded, "it is back")
    assert not unlocked(lock.acquire())
    lock.release()


def test_closed_while_it_is_away(server: Valkey) -> None:
    """A close ends the wait for a slot with an error, and nobody gets a slot any more."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    server.kill()
    lock = backend.lock(NAME)
    assert unlocked(lock.acquire(owner="holder"))
    waiting = InThread(lock.acquire)
    backend.close()
    with pytest.raises(LockUnavailable):
        waiting.result()
    lock.release(owner="holder")
    with pytest.raises(LockUnavailable):
        lock.acquire(wait_s=WITHIN_S)


def test_a_silent_server_does_not_end_what_has_no_lock(backend: FallbackBackend, server: Valkey) -> None:
    """The renewing thread may hang on a silent server; a grant without a lock stays valid, and so does its slot."""
    locked = [backend.lock(f"{NAME}/{number}") for number in range(5)]
    for lock in locked:
        lock.acquire()
    server.pause()
    lock = backend.lock(NAME)
    grant = lock.acquire()
    assert unlocked(grant)
    began = grant.deadline
    eventually(lambda: grant.deadline > began + 1, "it goes on")
    lock.release()
    server.resume()
    for lock in locked:
        lock.release()


def test_a_slot_that_nobody_can_give_back(server: Valkey) -> None:
    """The slot of a thread that has ended is free again."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    server.kill()
    lock = backend.lock(NAME)
    InThread(lock.acquire).result()
    assert unlocked(lock.acquire(owner="next", wait_s=WITHIN_S))
    # And a slot counts once, whatever became of the earlier grants.
    with pytest.raises(LockTimeout):
        lock.acquire(owner="third", wait_s=0)
    backend.close()


def test_a_forked_child_has_its_own_slots(server: Valkey) -> None:
    """The slots that the parent uses when it forks are none of the child's."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    server.kill()
    lock = backend.lock(NAME)
    with lock:
        child = Forked(lambda _: unlocked(lock.acquire(owner="child", wait_s=WITHIN_S)))
        assert child.result()
    backend.close()


def test_closing_is_not_going_away(server: Valkey) -> None:
    """A waiter learns that the backend was closed, and does not go on without a lock."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    lock = backend.lock(NAME)
    lock.acquire()
    waiting = InThread(lambda: lock.acquire(owner="other"))
    eventually(lambda: backend.went_away._callbacks, "it waits")
    lock.release()
    waiting.result()
    again = InThread(lock.acquire)
    eventually(lambda: backend.went_away._callbacks, "it waits")
    backend.close()
    with pytest.raises(LockUnavailable):
        again.result()
    assert not backend.degraded
    with pytest.raises((LockUnavailable, LockLost)):
        lock.acquire(owner="late")

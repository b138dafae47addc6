"""A lock that may be done without: which way is taken when, by how many, and back again."""

import gc
import queue
from collections.abc import Iterator

import pytest

from app.embedded import Valkey
from app.errors import LockCancelled, LockLost, LockTimeout, LockUnavailable
from app.locks import Cancel, Grant, Reach
from app.locks.fallback import FallbackBackend
from app.locks.redis.lock import RedisBackend
from tests.contract.lock_contract import _Thread
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
    # A TTL that no test waits for.
    inner = RedisBackend(server.url, ttl_s=600, timeout_s=0.5)
    backend = FallbackBackend(inner, most=MOST, told=events.put)
    yield backend
    backend.close()


def unlocked(grant: Grant) -> bool:
    return (grant.token, grant.source) == (0, "no lock")


def test_what_it_promises(backend: FallbackBackend) -> None:
    """No exclusion, no tokens: the store has to see to it."""
    assert backend.guarantees.reach is Reach.NOBODY
    assert not backend.guarantees.fencing


def test_a_lock_while_it_can_be_had(backend: FallbackBackend) -> None:
    """It excludes like any other, and no slot is needed for it."""
    lock, other = backend.lock(NAME), backend.lock(NAME)
    with lock as grant:
        assert not unlocked(grant)
        assert other.try_acquire(owner="other") is None
        waiting = _Thread(lambda: other.acquire(owner="other"))
        taken = [backend.lock(f"{NAME}/{number}").acquire() for number in range(MOST + 1)]
        assert not any(map(unlocked, taken))
        assert [one.key for one in backend.contenders("/test/") if one.token == grant.token]
        assert waiting.thread.is_alive()
    assert waiting.result().token > grant.token
    other.release(owner="other")
    assert backend.way == "lock"


def test_without_it_a_few_go_on(
    backend: FallbackBackend, server: Valkey, events: "queue.SimpleQueue[str]", caplog: pytest.LogCaptureFixture
) -> None:
    """As many at once as there are slots, the others in the order of their arrival; with it again when it is back."""
    lock = backend.lock(NAME)
    server.kill()
    first, second = lock.acquire(owner=1), lock.acquire(owner=2)
    assert unlocked(first)
    assert unlocked(second)
    assert backend.way == "optimistic"
    assert events.get(timeout=WITHIN_S) == "away"
    assert backend.contenders("/test/") == []
    backend.ping(1)
    with pytest.raises(LockTimeout):
        lock.acquire(owner=3, wait_s=0.05)
    cancel = Cancel()
    called_off = _Thread(lambda: lock.acquire(owner=4, cancel=cancel))
    eventually(lambda: len(backend.slots._queue) == 1, "it waits")
    third = _Thread(lambda: lock.acquire(owner=5))
    eventually(lambda: len(backend.slots._queue) == 2, "they wait")
    cancel.set()
    with pytest.raises(LockCancelled):
        called_off.result()
    lock.release(owner=1)
    assert unlocked(third.result())
    fourth = _Thread(lambda: lock.acquire(owner=6))
    eventually(lambda: len(backend.slots._queue) == 1, "it waits")
    server.start()
    assert events.get(timeout=WITHIN_S) == "back"
    assert not unlocked(fourth.result())
    assert backend.way == "lock"
    for owner in (2, 5, 6):  # those without a lock end when they end
        lock.release(owner=owner)
    with lock as grant:
        assert not unlocked(grant)
    said = [record.getMessage() for record in caplog.records if record.name == "app.locks.fallback"]
    assert ["going on without locks" in said[0], "is back" in said[1]] == [True, True]
    assert len(said) == 2


def test_who_waits_in_the_queue_does_not_wait_for_ever(backend: FallbackBackend, server: Valkey) -> None:
    """A waiter whose lock system goes away goes on without it, long before a TTL is over; the holder is not told."""
    lock, other = backend.lock(NAME), backend.lock(NAME)
    grant = lock.acquire()
    waiting = _Thread(lambda: other.acquire(owner="other"))
    eventually(lambda: backend._told_of_away, "it waits")
    server.kill()
    assert unlocked(waiting.result())
    assert not grant.lost
    other.release(owner="other")
    lock.release()


def test_a_frozen_server_is_away(backend: FallbackBackend, server: Valkey) -> None:
    """One that takes connections and answers nothing, too."""
    lock = backend.lock(NAME)
    server.pause()
    assert unlocked(lock.acquire(wait_s=WITHIN_S))
    lock.release()
    server.resume()
    eventually(lambda: backend.way == "lock", "it is back")
    assert not unlocked(lock.acquire())
    lock.release()


def test_slots_are_given_in_order(backend: FallbackBackend, server: Valkey) -> None:
    """First come, first served, whichever slot is free first."""
    server.kill()
    lock = backend.lock(NAME)
    holders = [lock.acquire(owner=number) for number in range(MOST)]
    assert all(map(unlocked, holders))
    order: list[int] = []
    waiting = []

    def wait_for_one(number: int) -> None:
        lock.acquire(owner=100 + number)
        order.append(number)

    for number in range(5):
        waiting.append(_Thread(lambda number=number: wait_for_one(number)))  # type: ignore[misc]
        eventually(lambda: len(backend.slots._queue) == len(waiting), "it waits")
    lock.release(owner=0)
    for number in range(5):
        eventually(lambda: len(order) == number + 1, "the next one has it")  # noqa: B023
        lock.release(owner=100 + number)
    assert order == list(range(5))


def test_closed_while_it_is_away(server: Valkey) -> None:
    """Who waits for a slot is told, and nobody gets one any more."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    server.kill()
    lock = backend.lock(NAME)
    assert unlocked(lock.acquire(owner="holder"))
    waiting = _Thread(lock.acquire)
    eventually(lambda: len(backend.slots._queue) == 1, "it waits")
    backend.close()
    with pytest.raises(LockUnavailable):
        waiting.result()
    lock.release(owner="holder")
    with pytest.raises(LockUnavailable):
        lock.acquire(wait_s=WITHIN_S)


def test_a_silent_server_does_not_end_what_has_no_lock(backend: FallbackBackend, server: Valkey) -> None:
    """The thread that renews locks may hang on it; a grant without a lock stands, and so does its slot."""
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
    """Whose holder is gone is free again."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    server.kill()
    forgetful = backend.lock(NAME)
    eventually(lambda: backend.away, "it is away")  # not found out by `forgetful`: the log keeps the error's frames
    forgetful.acquire(owner="forgetful")
    lock = backend.lock(NAME)
    waiting = _Thread(lambda: lock.acquire(owner="next"))
    eventually(lambda: len(backend.slots._queue) == 1, "it waits")
    del forgetful
    gc.collect()
    assert unlocked(waiting.result())
    # And one slot is one slot, whatever became of the grants before.
    with pytest.raises(LockTimeout):
        lock.acquire(owner="third", wait_s=0)
    backend.close()


def test_closing_is_not_going_away(server: Valkey) -> None:
    """Who waits is told so, and goes on nowhere."""
    backend = FallbackBackend(RedisBackend(server.url, ttl_s=600, timeout_s=0.5), most=1)
    lock = backend.lock(NAME)
    lock.acquire()
    waiting = _Thread(lambda: lock.acquire(owner="other"))
    eventually(lambda: backend._told_of_away, "it waits")
    lock.release()
    waiting.result()
    again = _Thread(lock.acquire)
    eventually(lambda: backend._told_of_away, "it waits")
    backend.close()
    with pytest.raises(LockUnavailable):
        again.result()
    assert backend.way == "lock"
    with pytest.raises((LockUnavailable, LockLost)):
        lock.acquire(owner="late")

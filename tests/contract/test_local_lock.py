"""The lock of one process keeps the contract as far as a process goes; beyond that it is no lock."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from fencelock import Grant, Hook, LockBackend, LockError, local
from fencelock.local import LocalBackend
from fencelock.owners import Owners
from tests.contract.core_contract import CoreContract
from tests.contract.lock_contract import TTL_S, InThread, LockSystem, hold_and_release
from tests.harness.signals import handled_at
from tests.harness.waiting import eventually, eventually_async
from tests.harness.worker import Worker


class LocalSystem(LockSystem):
    backend = "fencelock.local:LocalBackend"

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return LocalBackend(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        queue = local._queues[key.rpartition("/")[0]]
        for place in list(queue):
            if place.key == key:
                place._leave()

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        return list(local._queues)


class TestLocalLock(CoreContract):
    guarantees = LocalBackend.guarantees

    @pytest.fixture
    def system(self) -> LockSystem:
        return LocalSystem()


def test_two_processes_have_two_locks() -> None:
    """Both have "the" lock at once; only their tokens tell who came later, whichever process gave them."""
    system = LocalSystem()
    backend = system.open(TTL_S)
    with Worker(system.backend, system.options(TTL_S), "/test/both") as other, backend.lock("/test/both") as grant:
        theirs = other.ask("acquire")["token"]
        assert theirs > grant.token
    with backend.lock("/test/both") as later:
        assert later.token > theirs
    backend.close()


def test_a_signal_handler_may_use_the_lock_that_it_interrupts() -> None:
    """It re-enters and leaves, wherever its thread was interrupted while doing the same."""
    codes = [getattr(Owners, name).__code__ for name in ("get", "reenter", "leave_inner")]
    with LocalBackend() as backend:
        lock = backend.lock("/test/handler")

        def use() -> None:
            lock.acquire()
            lock.release()

        def at_each_moment() -> int:
            with lock:
                for number in range(100):
                    with handled_at(number, codes, use) as where:
                        use()
                    assert lock.hold_count == 1, where
                    if not where:
                        return number
            return 0

        assert InThread(at_each_moment).result() >= 3
        with lock.holding(wait_s=0):
            pass


def test_a_signal_handler_may_close_what_is_being_closed() -> None:
    """A second Ctrl-C, wherever it interrupts the first one's clean-up."""

    def at_each_moment() -> int:
        for number in range(100):
            backend = LocalBackend()
            backend.ping(1)
            with handled_at(number, [LockBackend._end.__code__], backend.close) as where:
                backend.close()
            if not where:
                return number
        return 0

    assert InThread(at_each_moment).result() >= 2


def test_without_a_loop_of_asyncio_it_says_so() -> None:
    """As in a task of trio, which is a coroutine as well."""
    with LocalBackend() as backend:
        lock = backend.aio.lock("/test/trio")
        for asked in (lock.acquire(), lock.acquire(owner="me"), lock.release(), backend.aio.contenders("/")):
            with pytest.raises(LockError, match="no event loop of asyncio"):
                asked.send(None)


def test_who_waits_for_longer_than_a_ttl_keeps_the_place() -> None:
    """First come, first served, however long that takes."""
    with LocalBackend(ttl_s=0.2) as backend:
        lock = backend.lock("/test/long")
        with lock:
            waiting = []
            for number in (2, 3):
                waiting.append(InThread(lambda: hold_and_release(backend.lock("/test/long"))))
                eventually(lambda number=number: len(lock.contenders()) == number, "it waits")
            line = [one.key for one in lock.contenders()]
            eventually(lambda: (lock.contenders()[2].waited_s or 0) > 1, "they have waited for five TTLs")
            assert [one.key for one in lock.contenders()] == line
        for one in waiting:
            one.result()


def test_a_generator_that_another_thread_closes_gives_the_lock_back() -> None:
    """The lock of `holding` is its owner's, whichever thread ends the block."""
    with LocalBackend() as backend:
        lock = backend.lock("/test/generator")

        def rows() -> Generator[int]:
            with lock.holding():
                yield 1

        begun = rows()
        next(begun)
        InThread(begun.close).result()
        assert lock.contenders() == []


def test_a_loop_that_is_closed_is_in_nobodys_way() -> None:
    """Neither with what its tasks held, nor with their places in the queue; and the holder is told."""
    with LocalBackend(ttl_s=600) as backend:
        lock = backend.aio.lock("/test/closed")
        loop = asyncio.new_event_loop()
        lost = loop.run_until_complete(lock.acquire(owner="me"))
        waiting = loop.create_task(lock.acquire())
        loop.run_until_complete(eventually_async(lambda: len(backend.contenders("/test/closed")) == 2, "one waits"))
        later = InThread(lambda: hold_and_release(backend.lock("/test/closed")))
        eventually(lambda: len(backend.contenders("/test/closed")) == 3, "another one waits")
        loop.close()
        assert backend.lock("/test/closed").try_acquire() is None  # it is behind that one
        later.result()
        assert lost.lost
        assert backend.contenders("/test/closed") == []
        assert not waiting.done()


def test_a_hook_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The lock is had and given back all the same, and the error is in the log."""

    class Odd(Hook):
        def granted(self, name: str, token: int, waited_s: float) -> None:
            raise KeyError(name)

        def released(self, name: str, token: int, held_s: float) -> None:
            raise KeyError(name)

    with LocalBackend(hook=Odd()) as backend:
        lock = backend.lock("/test/hook")
        with lock:
            assert lock.held_by_me
        assert lock.contenders() == []
    assert caplog.text.count("KeyError: '/test/hook'") == 2

"""Locks for tasks and threads, on a server in memory whose time the test moves."""

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from fencelock import LockError, LockLost, LockNotHeld
from fencelock.testing import MemoryLocks
from tests.contract.lock_contract import InThread
from tests.harness.forked import Forked

NAME, TTL_S = "/jobs/nightly", 6


@pytest.fixture
def locks() -> Iterator[MemoryLocks]:
    with MemoryLocks(ttl_s=TTL_S) as locks:
        yield locks


@pytest.mark.parametrize(("hold_max_s", "ends_s"), [(0, 6), (1, 6), (6, 6), (7, 7), (20, 20)])
def test_a_hold_ends_at_its_greatest_age(locks: MemoryLocks, hold_max_s: float, ends_s: float) -> None:
    """However healthy its owner is; but not before its TTL, and not much earlier than it may be."""
    lost = list[bool]()
    with pytest.raises(LockLost, match="as long as it may be"), locks.lock(NAME).holding(hold_max_s=hold_max_s) as one:
        for for_s in (ends_s - 0.1, 0.1):
            locks.server.advance(for_s)
            lost.append(one.lost)
    assert lost == [False, True]
    assert not locks.contenders(NAME)


def test_an_owner_of_two_grants_keeps_the_first(locks: MemoryLocks) -> None:
    """Two of its tasks wait, and the first one's grant is lost before the second has its own: that is given back."""

    async def work() -> None:
        lock = locks.aio.lock(NAME)
        await lock.acquire(owner="another")
        waiting = [asyncio.create_task(lock.acquire(owner="me")) for _ in range(2)]
        while len(await lock.contenders()) < 3:
            await asyncio.sleep(0)
        await lock.release(owner="another")
        await waiting[0]
        locks.server.lose(NAME)
        with pytest.raises(LockError, match="twice at the same time"):
            await waiting[1]
        assert not await lock.contenders()
        with pytest.raises(LockLost):
            await lock.release(owner="me")
        await locks.leave_loop()

    asyncio.run(work())


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_a_loss_cancels_the_body_and_hides_no_other_cancellation(
    locks: MemoryLocks, before: bool, beside: bool
) -> None:
    """`before`: the task has outlived a cancellation; `beside`: it is cancelled while the lock is lost."""

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        if before:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        try:
            async with locks.aio.lock(NAME).holding(cancel_on_lost=True):
                locks.server.lose(NAME)
                if beside:
                    task.cancel()
                await asyncio.Event().wait()
        except BaseException as error:
            assert type(error) is (asyncio.CancelledError if beside else LockLost)
        assert task.cancelling() == before + beside
        await locks.leave_loop()

    asyncio.run(work())


def test_the_error_of_a_tasks_block_says_more_than_a_loss(locks: MemoryLocks) -> None:
    async def work() -> None:
        lock = locks.aio.lock(NAME)
        for block in lock, lock.holding(), lock.holding(cancel_on_lost=True):
            with pytest.raises(KeyError):
                async with block:
                    locks.server.lose(NAME)
                    raise KeyError
            await asyncio.sleep(0)  # in which it could still be cancelled
            with pytest.raises(LockNotHeld):
                await lock.release()
        await locks.leave_loop()

    asyncio.run(work())


def test_a_lock_forgets_the_threads_that_have_ended(locks: MemoryLocks) -> None:
    """Once somebody else has acquired it: a program that runs for months keeps no thread for each loss."""
    lock, gone = locks.lock(NAME), list[weakref.ref[threading.Thread]]()
    for _ in range(3):
        thread = InThread(lambda: lock.acquire(wait_s=0))
        thread.result()
        gone.append(weakref.ref(thread.thread))
        del thread
        locks.server.advance(TTL_S)  # it is given back
    with lock:
        gc.collect()
        assert not [one for one in gone if one() is not None]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, of forks beside threads
def test_a_grandchild_has_no_lock_of_those_before_it(locks: MemoryLocks) -> None:
    lock = locks.lock(NAME)

    def look(*, deeper: bool) -> None:
        with pytest.raises(LockError, match="only the parent process"):
            lock.release(owner="me")
        if deeper:
            lock.acquire(owner="child")
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    look(deeper=False)
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0

    lock.acquire(owner="me")
    Forked(lambda _: look(deeper=True)).result()
    lock.release(owner="me")

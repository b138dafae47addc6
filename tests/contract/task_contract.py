"""The contract of every lock for tasks on an event loop, whatever it is made of. A part of `LockContract`."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencelock import (
    DistributedLock,
    Guarantees,
    Hook,
    LockBackend,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    Scope,
)
from fencelock.aio import AsyncLock
from fencelock.waiting import Wake
from tests.harness.waiting import WITHIN_S, eventually_async

OFTEN = 0.03  # a renewal ratio, for who waits for renewals and not for a TTL


def promise(name: str) -> pytest.MarkDecorator:
    """A test for backends that guarantee this; for the others it is left out when tests are collected."""
    return pytest.mark.promise(name)


class Losses(Hook):
    """A hook that notes renewals and losses."""

    def __init__(self) -> None:
        self.renewals: list[str] = []
        self.losses: list[tuple[str, int, str]] = []

    def renewal(self, event: str) -> None:
        self.renewals.append(event)

    def lost(self, name: str, token: int, reason: str) -> None:
        self.losses.append((name, token, reason))


class TaskContract:
    """The suite. `system`, `own_system`, `backend`, ...: see `LockContract`."""

    guarantees: Guarantees

    @pytest.fixture
    async def tasks_lock(self, backend: LockBackend, name: str) -> AsyncIterator[AsyncLock]:
        """The lock for tasks of the test's loop."""
        yield backend.aio.lock(name)
        await backend.leave_loop()

    @pytest.fixture
    async def brief_tasks_lock(self, brief_backend: LockBackend, name: str) -> AsyncIterator[AsyncLock]:
        """The same, with short leases."""
        yield brief_backend.aio.lock(name)
        await brief_backend.leave_loop()

    # -- one at a time -----------------------------------------------------------------------------------------------

    async def test_excludes_tasks(self, tasks_lock: AsyncLock) -> None:
        """Tasks of one event loop, which share a thread, exclude each other."""
        most = inside = 0

        async def work() -> None:
            nonlocal most, inside
            for _ in range(5):
                async with tasks_lock:
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0)
                    inside -= 1

        await asyncio.gather(*(work() for _ in range(8)))
        assert most == 1

    async def test_tasks_and_threads_exclude_each_other(self, tasks_lock: AsyncLock, lock: DistributedLock) -> None:
        """Both faces are contenders of the same lock."""
        async with tasks_lock as grant:
            assert await asyncio.to_thread(lock.try_acquire) is None
            assert [one.key for one in await tasks_lock.contenders()] == [grant.key]
        held = await asyncio.to_thread(lock.acquire, owner="a thread")
        assert await tasks_lock.try_acquire() is None
        await asyncio.to_thread(lock.release, owner="a thread")
        async with tasks_lock.holding(wait_s=WITHIN_S) as again:
            assert again.token > held.token or not self.guarantees.fencing

    # -- the ways to acquire -----------------------------------------------------------------------------------------

    async def test_a_task_may_reenter(self, tasks_lock: AsyncLock) -> None:
        """The owner is the task, or whom it names: it may acquire again, and its last release gives the lock back."""

        async def another() -> Any:
            with pytest.raises(LockNotHeld):
                await tasks_lock.release()
            if self.guarantees.scope is not Scope.NOBODY:
                with pytest.raises(LockTimeout):
                    async with asyncio.timeout(WITHIN_S):
                        await tasks_lock.acquire(wait_s=0.1)
            return await tasks_lock.try_acquire()

        async with tasks_lock as outer:
            async with tasks_lock as inner:
                assert inner is outer is tasks_lock.grant
                assert tasks_lock.hold_count == 2
            assert tasks_lock.held_by_me
            assert await asyncio.create_task(another()) is None
        assert not tasks_lock.held_by_me
        with pytest.raises(LockNotHeld):
            _ = tasks_lock.grant
        grant = await tasks_lock.acquire(owner="me")
        assert await asyncio.create_task(tasks_lock.acquire(owner="me")) is grant
        await asyncio.create_task(tasks_lock.release(owner="me"))
        await tasks_lock.release(owner="me")
        with pytest.raises(LockNotHeld):
            await tasks_lock.release(owner="me")

    async def test_decorates_coroutines(self, tasks_lock: AsyncLock) -> None:
        """Each call of a decorated function runs under the lock."""

        @tasks_lock.holding(wait_s=WITHIN_S)
        async def work() -> int:
            return tasks_lock.grant.token

        tokens = [await work() for _ in range(3)]
        assert tokens == sorted(set(tokens)) or not self.guarantees.fencing

    # -- cancelling --------------------------------------------------------------------------------------------------

    async def test_a_cancelled_task_leaves_no_key(self, tasks_lock: AsyncLock) -> None:
        """Cancelling a task that waits takes it out of the queue; cancelling one that holds gives the lock back."""

        async def hold(entered: asyncio.Event) -> None:
            async with tasks_lock:
                entered.set()
                await asyncio.Event().wait()

        entered = asyncio.Event()
        holder = asyncio.create_task(hold(entered))
        await entered.wait()
        waiter = asyncio.create_task(hold(asyncio.Event()))
        await self._until_in_line(tasks_lock, 2)
        waiter.cancel()
        await asyncio.wait({waiter})
        await self._until_in_line(tasks_lock, 1)
        holder.cancel()
        await asyncio.wait({holder})
        assert await tasks_lock.contenders() == []
        assert holder.cancelled()
        assert waiter.cancelled()

    async def test_a_cancelled_task_ends(self, tasks_lock: AsyncLock) -> None:
        """No cancellation is swallowed, whenever it comes in an acquire or a release, and the lock is free."""

        async def again_and_again() -> None:
            while True:
                async with tasks_lock:
                    pass

        for step in range(40):
            task = asyncio.create_task(again_and_again())
            await asyncio.sleep(0.01 + step * 0.0003)  # not a wait for anything: a different moment each time
            task.cancel()
            await asyncio.wait({task}, timeout=WITHIN_S)
            assert task.cancelled()
        async with tasks_lock.holding(wait_s=WITHIN_S):
            pass

    # -- losing it ---------------------------------------------------------------------------------------------------

    @promise("leases")
    async def test_a_task_is_told_of_a_loss(self, brief_tasks_lock: AsyncLock, system: Any) -> None:
        """A task whose lease ended is told by flag and error, and at the end of its block."""
        with pytest.raises(LockLost):
            async with brief_tasks_lock as grant:
                await asyncio.to_thread(system.end_lease, grant)
                await eventually_async(lambda: grant.lost, "the loss is noticed")
                assert not brief_tasks_lock.held_by_me
        async with brief_tasks_lock.holding(wait_s=WITHIN_S):
            pass

    @promise("forces_release")
    async def test_a_task_can_force_a_release(self, brief_tasks_lock: AsyncLock, brief_backend: LockBackend) -> None:
        grant = await brief_tasks_lock.acquire()
        had = await brief_backend.aio.force_release(brief_tasks_lock.name)
        assert had is not None
        assert had.key == grant.key
        await eventually_async(lambda: grant.lost, "the loss is noticed")
        with pytest.raises(LockLost):
            await brief_tasks_lock.release()

    @promise("leases")
    async def test_a_loss_can_cancel_the_body(self, brief_tasks_lock: AsyncLock, system: Any) -> None:
        """With `cancel_on_lost` the body goes no further than to where it was when the loss was noticed."""
        with pytest.raises(LockLost):
            async with asyncio.timeout(2 * WITHIN_S), brief_tasks_lock.holding(cancel_on_lost=True) as grant:
                await asyncio.to_thread(system.end_lease, grant)
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    @promise("leases")
    async def test_the_bodys_own_error_says_more_than_a_loss(self, brief_tasks_lock: AsyncLock) -> None:
        """A body that fails after its loop has hung for a TTL fails with its own error, and is not cancelled."""
        with pytest.raises(KeyError):
            async with brief_tasks_lock.holding(cancel_on_lost=True):
                time.sleep(brief_tasks_lock.ttl_s + 0.1)
                raise KeyError
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        await asyncio.sleep(0)

    async def test_a_body_that_is_cancelled_otherwise_stays_cancelled(self, tasks_lock: AsyncLock) -> None:
        """`cancel_on_lost` swallows no cancellation but its own."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), tasks_lock.holding(cancel_on_lost=True):
                await asyncio.Event().wait()

    @promise("leases")
    async def test_a_task_is_renewed_for(self, brief_tasks_lock: AsyncLock) -> None:
        """A loop that turns keeps what its tasks have, for longer than a TTL."""
        async with brief_tasks_lock as grant:
            until = time.monotonic() + 3 * brief_tasks_lock.ttl_s
            await eventually_async(lambda: grant.lost or time.monotonic() > until, "three TTLs are over")
            assert not grant.lost

    @promise("leases")
    async def test_a_blocked_loop_loses_the_lock(self, brief_tasks_lock: AsyncLock, lock: DistributedLock) -> None:
        """A loop that stands still has the lock for a TTL, as nothing on it could be told; then others get it."""
        got = threading.Event()

        def take() -> None:
            lock.acquire(wait_s=WITHIN_S)
            got.set()
            lock.release()

        other = threading.Thread(target=take)
        with pytest.raises(LockLost):
            async with brief_tasks_lock:
                other.start()
                assert got.wait(WITHIN_S)  # blocks the loop
        other.join()

    @promise("leases")
    async def test_a_hold_has_an_upper_age(self, brief_tasks_lock: AsyncLock) -> None:
        """A task that asked for it loses the lock after some time, however healthy it is."""
        with pytest.raises(ValueError, match="hold_max_s"):
            await brief_tasks_lock.acquire(hold_max_s=math.nan)
        with pytest.raises(LockLost):
            async with brief_tasks_lock.holding(hold_max_s=brief_tasks_lock.ttl_s) as grant:
                await eventually_async(lambda: grant.lost, "it is lost")

    @promise("leases")
    async def test_a_task_that_ends_gives_its_lock_back(self, brief_tasks_lock: AsyncLock) -> None:
        """The lock of a task that ended without releasing it is given back: nobody could do that any more."""
        await asyncio.create_task(brief_tasks_lock.acquire())
        async with brief_tasks_lock.holding(wait_s=WITHIN_S) as grant:
            assert not grant.lost

    @promise("leases")
    async def test_the_hook_is_told_of_what_tasks_lose(self, system: Any, backend: LockBackend, name: str) -> None:
        """Of renewals by the loop, and of each loss once, with its reason; of a lock that was released nothing more."""
        told = Losses()
        async with system.open(10, hook=told, renew_ratio=OFTEN).aio as hooked:
            lock = hooked.lock(name)
            async with lock:
                await eventually_async(lambda: "renewed" in told.renewals, "it is renewed")
            grant = await lock.acquire()
            await asyncio.to_thread(system.end_lease, grant)
            await eventually_async(lambda: told.losses and "lost" in told.renewals, "the loss is told")
            assert told.losses == [(name, grant.token, grant.lease.reason)]
            with pytest.raises(LockLost):
                await lock.release()
            token = (await asyncio.create_task(lock.acquire())).token
            await eventually_async(lambda: len(told.losses) > 1, "the end of a task is told")
            assert told.losses[1:] == [(name, token, "its owner ended without releasing it")]
            async with lock.holding(wait_s=WITHIN_S):
                pass
        assert "abandoned" in told.renewals
        assert len(told.losses) == 2

    # -- what it costs, and its end ----------------------------------------------------------------------------------

    async def test_waiting_tasks_cost_no_thread(self, tasks_lock: AsyncLock, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many wait, there are as many threads; and the holder can release."""
        waiting, sleep = set[Wake](), Wake.wait

        async def sleep_and_tell(wake: Wake, timeout_s: float) -> bool:
            waiting.add(wake)
            return await sleep(wake, timeout_s)

        async def once() -> None:
            async with tasks_lock:
                pass

        monkeypatch.setattr(Wake, "wait", sleep_and_tell)
        async with tasks_lock:
            first = asyncio.create_task(once())
            await eventually_async(lambda: waiting, "the first one waits")
            few = threading.active_count()
            rest = [asyncio.create_task(once()) for _ in range(30)]

            def ended() -> list[asyncio.Task[None]]:
                return [task for task in rest if task.done()]

            await eventually_async(lambda: len(waiting) > 30 or ended(), "all wait")
            for task in ended():
                task.result()  # what it raised says more
            many = threading.active_count()
        await asyncio.wait_for(asyncio.gather(first, *rest), 4 * WITHIN_S)
        assert many <= few + 2

    async def test_closing_wakes_waiting_tasks(self, system: Any, lock: DistributedLock) -> None:
        """Tasks that wait when the connection is closed leave the queue and are told."""
        locks = system.open(10).aio
        await asyncio.to_thread(lock.acquire, owner="me")
        waiting = [asyncio.create_task(locks.lock(lock.name).acquire()) for _ in range(3)]
        await self._until_in_line(lock, 4)
        await locks.close()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, LockUnavailable)
        await self._until_in_line(lock, 1)
        await asyncio.to_thread(lock.release, owner="me")

    # -- help --------------------------------------------------------------------------------------------------------

    async def _until_in_line(self, lock: "AsyncLock | DistributedLock", number: int) -> None:
        """Holder and waiters are so many, as far as the backend shows them."""
        shown = number if self.guarantees.shows_queue else min(number, 1)
        if self.guarantees.scope is Scope.NOBODY:
            return

        async def seen() -> bool:
            found = lock.contenders()
            return len(await found if not isinstance(found, list) else found) == shown

        deadline = time.monotonic() + WITHIN_S
        while not await seen():
            assert time.monotonic() < deadline, f"{shown} in the queue"
            await asyncio.sleep(0.01)

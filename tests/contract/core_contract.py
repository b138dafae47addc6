"""The contract of what all locks have in common: owners, blocks, hooks, losses, renewal, whatever the lock is made of.

One algorithm does all of it for each system (ADR 26), so it is held to this in memory, in one process and in Redis.
"""

import _thread
import asyncio
import math
import os
import queue
import signal
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from fencelock import (
    DistributedLock,
    Grant,
    Hook,
    LockBackend,
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
)
from fencelock.aio import AsyncLock
from tests.contract.lock_contract import (
    CALM_S,
    OFTEN,
    InThread,
    LockContract,
    LockSystem,
    Losses,
    hold_and_release,
    promise,
)
from tests.harness.forked import Forked
from tests.harness.waiting import WITHIN_S, eventually, eventually_async


class CoreContract(LockContract):
    """The suite, and that of `LockContract`."""

    # -- the ways to acquire -------------------------------------------------------------------------------------------

    def test_excludes_threads(self, backend: LockBackend, name: str) -> None:
        """Threads exclude each other through one lock object as well as through several."""
        inside = 0
        most = 0

        def work(lock: DistributedLock) -> None:
            nonlocal inside, most
            for _ in range(20):
                with lock:
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0)
                    inside -= 1

        shared = backend.lock(name)
        threads = [InThread(lambda lock=lock: work(lock)) for lock in (shared, shared, backend.lock(name))]
        for thread in threads:
            thread.result()
        assert most == 1

    @pytest.mark.parametrize("wrong", [-1, math.nan, "5", True])
    def test_a_wait_that_can_not_be_is_refused(self, lock: DistributedLock, wrong: Any) -> None:
        """A negative wait is the caller's mistake, not a lock that is taken; NaN, a text and True, too."""
        with pytest.raises(ValueError, match="wait_s must be a number"):
            lock.acquire(wait_s=wrong)
        with pytest.raises(ValueError, match="hold_max_s must be a number"):
            lock.acquire(hold_max_s=wrong)

    async def test_decorates_coroutines(self, tasks_lock: AsyncLock) -> None:
        """Each call of a decorated function runs under the lock."""

        @tasks_lock.holding(wait_s=WITHIN_S)
        async def work() -> int:
            return tasks_lock.grant.token

        tokens = [await work() for _ in range(3)]
        assert tokens == sorted(set(tokens)) or not self.guarantees.fencing

    def test_the_hook_is_told(self, system: LockSystem, backend: LockBackend, name: str) -> None:
        """A hook hears of each grant, wait in vain and release, once, and not of what is re-entered."""
        told: list[tuple[str, str]] = []

        class Told(Hook):
            def granted(self, name: str, token: int, waited_s: float) -> None:
                told.append(("granted", name))

            def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
                told.append((type(error).__name__, name))

            def released(self, name: str, token: int, held_s: float) -> None:
                told.append(("released", name))

        backend.hook = Told()
        lock = backend.lock(name)
        with lock, lock:
            assert InThread(lock.try_acquire).result() is None
        assert told == [("granted", name), ("LockTimeout", name), ("released", name)]

    @promise("leases")
    def test_the_hook_is_told_of_renewals_and_of_losses(
        self, system: LockSystem, backend: LockBackend, name: str
    ) -> None:
        """It hears of renewals; of each loss once, with its reason; and of a lock that was released nothing more.

        It may be set at any time, and raise errors.
        """

        class Odd(Losses):
            def renewal(self, event: str) -> None:
                super().renewal(event)
                raise KeyError(event)

        told = Odd()
        with closing(system.open(CALM_S, renew_ratio=OFTEN)) as hooked:
            lock = hooked.lock(name)
            lock.contenders()  # it is connected
            hooked.hook = told
            with lock:
                eventually(lambda: "renewed" in told.renewals, "it is renewed")
            grant = lock.acquire()
            system.end_lease(grant)
            eventually(lambda: told.losses and "lost" in told.renewals, "the loss is told")
            assert told.losses == [(name, grant.token, grant.lease.reason)]
            with pytest.raises(LockLost):
                lock.release()
            left = hooked.lock(name)
            token = InThread(lambda: left.acquire().token).result()
            eventually(lambda: len(told.losses) > 1, "the end of an owner is told")
            assert told.losses[1:] == [(name, token, "its owner ended without releasing it")]
            with hooked.lock(name).holding(wait_s=WITHIN_S):
                pass
        assert "abandoned" in told.renewals
        assert len(told.losses) == 2

    # -- owners --------------------------------------------------------------------------------------------------------

    def test_a_thread_may_reenter(self, lock: DistributedLock) -> None:
        """The owner is the thread: it may acquire again, its last release gives the lock back, and no other's does."""
        with pytest.raises(LockNotHeld):
            lock.release()
        with lock as outer:
            with lock as inner:
                assert inner is outer
                assert lock.hold_count == 2
                assert len(lock.contenders()) == 1
            assert lock.hold_count == 1
            assert InThread(lambda: lock.held_by_me).result() is False
            assert InThread(lock.try_acquire).result() is None
            with pytest.raises(LockNotHeld):
                InThread(lock.release).result()
            assert lock.held_by_me
            assert [contender.key for contender in lock.contenders()] == [outer.key]
        assert lock.hold_count == 0
        assert not lock.held_by_me
        assert InThread(lambda: hold_and_release(lock)).result() > 0 or not self.guarantees.fencing

    async def test_a_task_may_reenter(self, tasks_lock: AsyncLock) -> None:
        """The owner is the task, or whom it names: it may acquire again, and its last release gives the lock back."""

        async def another() -> Any:
            with pytest.raises(LockNotHeld):
                await tasks_lock.release()
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

    def test_a_new_thread_does_not_inherit(self, brief_lock: DistributedLock) -> None:
        """The lock of a thread that died is given back; a new thread with its recycled identifier never has it."""

        def look() -> tuple[int, bool, int]:
            return threading.get_ident(), brief_lock.held_by_me, brief_lock.hold_count

        # The first new thread mostly gets the identifier of the last dead one; else a lasting thread of somebody's has
        # it, and another one must die.
        def recycled() -> tuple[int, bool, int] | None:
            dead = InThread(lambda: brief_lock.acquire(wait_s=WITHIN_S))
            dead.result()
            for _ in range(20):
                seen: tuple[int, bool, int] = InThread(look).result()
                if seen[0] == dead.thread.ident:
                    return seen
            return None

        found = eventually(recycled, "an identifier is recycled")
        assert found is not None
        assert found[1:] == (False, 0)
        grant = brief_lock.acquire(wait_s=WITHIN_S)  # the renewal found out that its owner is gone
        assert not grant.lost
        brief_lock.release()

    @promise("leases")
    async def test_a_task_that_ends_gives_its_lock_back(self, brief_tasks_lock: AsyncLock) -> None:
        """The lock of a task that ended without releasing it is given back: nobody could do that any more."""
        await asyncio.create_task(brief_tasks_lock.acquire())
        async with brief_tasks_lock.holding(wait_s=WITHIN_S) as grant:
            assert not grant.lost

    def test_a_thread_without_an_object_must_name_its_owner(self, lock: DistributedLock) -> None:
        """A thread that Python's threading doesn't know has no identity that could be trusted."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def acquire() -> None:
            try:
                answers.put(lock.acquire())
            except LockError as error:
                answers.put(error)

        _thread.start_new_thread(acquire, ())
        answer = answers.get(timeout=WITHIN_S)
        assert isinstance(answer, LockError)
        assert "pass an owner" in str(answer)

    def test_a_child_does_not_have_its_parents_lock(self, lock: DistributedLock) -> None:
        """The parent's lock is the parent's: a forked child neither owns it nor can give it back."""

        def look(grant: Grant) -> tuple[Any, ...]:
            found = lock.held_by_me, lock.hold_count, grant.lost
            with pytest.raises(LockError, match="parent"):
                lock.release()
            with pytest.raises(LockLost, match="parent"):
                grant.ensure_held()
            return found

        with lock as grant:
            assert Forked(lambda _: look(grant)).result() == (False, 0, True)
            assert lock.held_by_me
            assert lock.acquire().token == grant.token
            lock.release()
            assert [one.key for one in lock.contenders()] == [grant.key]

    # -- losing it -----------------------------------------------------------------------------------------------------

    @promise("leases")
    def test_with_tells_of_a_loss(self, brief_lock: DistributedLock, system: LockSystem) -> None:
        """A `with` whose lock was lost inside raises at its end, but never hides the body's own error."""
        with pytest.raises(LockLost), brief_lock as grant:
            system.end_lease(grant)
            eventually(lambda grant=grant: grant.lost, "the loss is noticed")
        with pytest.raises(KeyError), brief_lock as grant:
            system.end_lease(grant)
            eventually(lambda grant=grant: grant.lost, "the loss is noticed")
            raise KeyError

    async def test_a_body_that_is_cancelled_otherwise_stays_cancelled(self, tasks_lock: AsyncLock) -> None:
        """`cancel_on_lost` swallows no cancellation but its own."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), tasks_lock.holding(cancel_on_lost=True):
                await asyncio.Event().wait()

    @promise("leases")
    def test_a_callback_may_use_the_lock(self, brief_lock: DistributedLock, system: LockSystem) -> None:
        """An on_lost callback that looks at the lock, or releases it, doesn't block anybody."""
        looked: list[int] = []
        grant = brief_lock.acquire(owner="me")
        grant.on_lost(lambda: looked.append(brief_lock.hold_count))
        system.end_lease(grant)
        eventually(lambda: looked, "the callback was called")
        with pytest.raises(LockLost):
            brief_lock.acquire(owner="me")
        with pytest.raises(LockLost):
            brief_lock.release(owner="me")

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
    @pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here goes on in a suspended machine")
    def test_a_suspended_machine_loses_the_lock(self, lock: DistributedLock, monkeypatch: pytest.MonkeyPatch) -> None:
        """On waking, a machine that was suspended for an hour finds its lease lost at once; nobody has to tell it."""
        told = threading.Event()
        grant = lock.acquire()
        grant.on_lost(told.set)
        read = time.clock_gettime
        # This is how a suspended machine leaves its clocks: the monotonic one stood still.
        monkeypatch.setattr(time, "clock_gettime", lambda which: read(which) + 3600 * (which == time.CLOCK_BOOTTIME))
        assert not lock.held_by_me
        with pytest.raises(LockLost):
            grant.ensure_held()
        assert told.wait(WITHIN_S)
        with pytest.raises(LockLost):
            lock.release()

    # It may come in a finalizer, where Python can't raise it.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_leaves_nothing(self, backend: LockBackend, lock: DistributedLock) -> None:
        """A Ctrl-C at any moment of an acquire or release leaves no key, and no thread that can't go on."""

        class Interrupted(BaseException):
            pass

        armed = False

        def interrupt(*_: object) -> None:
            if armed:
                raise Interrupted

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            for step in range(30):
                timer = threading.Timer(step * 0.0004, os.kill, (os.getpid(), signal.SIGINT))
                try:
                    armed = True
                    timer.start()
                    with lock:
                        pass
                    timer.join()
                except Interrupted:
                    pass
                finally:
                    armed = False
                    timer.join()
                if lock.hold_count:
                    lock.release()
        finally:
            signal.signal(signal.SIGINT, before)
        backend.ping(WITHIN_S)
        assert backend._renewing
        InThread(lambda: hold_and_release(lock)).result()

    async def test_closing_wakes_waiting_tasks(self, system: Any, lock: DistributedLock) -> None:
        """Tasks that wait when the connection is closed leave the queue and are told."""
        locks = system.open(10).aio
        await asyncio.to_thread(lock.acquire, owner="me")
        waiting = [asyncio.create_task(locks.lock(lock.name).acquire()) for _ in range(3)]
        await asyncio.to_thread(self._until_queued, lock, 4)
        await locks.close()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, LockUnavailable)
        await asyncio.to_thread(self._until_queued, lock, 1)
        await asyncio.to_thread(lock.release, owner="me")

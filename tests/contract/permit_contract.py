"""Semaphores and several locks at once, where there are such. A part of `LockContract`."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fencelock import Guarantees, LockBackend, LockError, LockLost, LockTimeout
from fencelock.aio import AsyncLock
from tests.contract.task_contract import promise
from tests.harness.waiting import WITHIN_S, eventually, eventually_async
from tests.harness.worker import Worker


class PermitContract:
    """The suite."""

    guarantees: Guarantees

    # -- semaphores --------------------------------------------------------------------------------------------------

    @promise("permits")
    async def test_a_semaphore_has_so_many_owners_and_no_more(self, backend: LockBackend, name: str) -> None:
        """Ten tasks and three permits: three at most are inside at a time, and three are."""
        inside = most = 0
        semaphore = backend.aio.semaphore(name, 3)

        async def work() -> None:
            nonlocal inside, most
            async with semaphore:
                inside += 1
                most = max(most, inside)
                await eventually_async(lambda: most == 3, "three are inside")
                inside -= 1

        await asyncio.gather(*(work() for _ in range(10)))
        assert most == 3
        await backend.leave_loop()

    @promise("permits")
    async def test_permits_are_given_in_order(self, backend: LockBackend, name: str) -> None:
        """Whichever permit is given back, the one who has waited longest gets it; and the queue shows who has one."""
        semaphore, served = backend.aio.semaphore(name, 2), list[int]()

        async def work(number: int) -> None:
            async with semaphore:
                served.append(number)

        await semaphore.acquire(owner="first")
        await semaphore.acquire(owner="second")
        waiting = []
        for number in range(4):
            waiting.append(asyncio.create_task(work(number)))
            await eventually_async(semaphore.contenders, until=lambda queue, n=number: len(queue) == n + 3)
        assert [one.holds for one in await semaphore.contenders()] == [True, True, False, False, False, False]
        await semaphore.release(owner="second")
        await asyncio.gather(*waiting)
        assert served == [0, 1, 2, 3]
        await semaphore.release(owner="first")
        await backend.leave_loop()

    @promise("permits")
    def test_a_permit_expires(self, brief_backend: LockBackend, name: str, system: Any) -> None:
        """A permit is a lease: one whose end came is lost, and another one has it."""
        semaphore = brief_backend.semaphore(name, 1)
        grant = semaphore.acquire(owner="one")
        system.end_lease(grant)
        assert semaphore.acquire(wait_s=WITHIN_S, owner="another").token > grant.token
        eventually(lambda: grant.lost, "the loss is noticed")
        with pytest.raises(LockLost):
            semaphore.release(owner="one")
        semaphore.release(owner="another")

    @promise("permits")
    def test_a_semaphore_needs_a_permit(self, backend: LockBackend, name: str) -> None:
        """With none it would be a wall."""
        with pytest.raises(ValueError, match="permit"):
            backend.semaphore(name, 0)

    def test_where_there_are_no_semaphores_it_is_said(self, backend: LockBackend, name: str) -> None:
        """A lock system that has none says so, and is not used as if it had."""
        if not self.guarantees.permits:
            with pytest.raises(LockError, match="no semaphores"):
                backend.semaphore(name, 2)

    # -- several at once ---------------------------------------------------------------------------------------------

    @promise("several")
    async def test_several_locks_are_had_all_or_none(
        self, backend: LockBackend, name: str, workers: Callable[..., Worker]
    ) -> None:
        """While one of them is taken none is had, and none is left taken by the one who did not get all."""
        names = [f"{name}-b", name, f"{name}-a"]
        several, worker = backend.aio.several(names), workers()
        await asyncio.to_thread(worker.ask, "acquire")  # the first of them in their order
        with pytest.raises(LockTimeout):
            async with several.holding(wait_s=0.3):
                raise AssertionError("got them")
        for other in (f"{name}-a", f"{name}-b"):
            async with backend.aio.lock(other).holding(wait_s=0):
                pass
        await asyncio.to_thread(worker.ask, "release")
        async with several.holding(wait_s=WITHIN_S) as grants:
            assert len({grant.token for grant in grants}) == len(grants) == 3
            assert grants[name].token == min(grant.token for grant in grants)
            assert await backend.aio.lock(f"{name}-b").try_acquire(owner="another") is None
            assert not grants.lost
        assert await backend.aio.contenders(name) == []
        await backend.leave_loop()

    @promise("several")
    def test_who_wants_the_same_locks_in_another_order_does_not_block(self, backend: LockBackend, name: str) -> None:
        """Two that want two locks each, named in opposite orders, both get on."""
        orders = [[f"{name}-a", f"{name}-b"], [f"{name}-b", f"{name}-a"]]

        def work(names: list[str]) -> None:
            for _ in range(20):
                with backend.several(names).holding(wait_s=WITHIN_S) as grants:
                    grants.ensure_held()

        threads = [threading.Thread(target=work, args=(names,)) for names in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WITHIN_S)
            assert not thread.is_alive()

    @promise("several")
    @promise("leases")
    def test_one_that_is_lost_is_a_loss_of_all(self, brief_backend: LockBackend, name: str, system: Any) -> None:
        """`ensure_held` is about all of them, and the block's end tells of the loss."""
        told = threading.Event()
        several = brief_backend.several([f"{name}-a", f"{name}-b"])
        with pytest.raises(LockLost), several.holding() as grants:
            grants.on_lost(told.set)
            system.end_lease(grants[f"{name}-b"])
            assert told.wait(WITHIN_S)
            assert grants.lost
            with pytest.raises(LockLost):
                grants.ensure_held()

    def test_several_need_names_and_turns(self, backend: LockBackend, name: str) -> None:
        """No name, or one twice, is the caller's mistake; without turns and tokens there are no several locks."""
        if self.guarantees.several:
            assert self.guarantees.fair
            assert self.guarantees.fencing
            for names in ([], [name, name]):
                with pytest.raises(ValueError, match="names"):
                    backend.several(names)
        else:
            with pytest.raises(LockError, match="several"):
                backend.several([name])

    # -- what only some have -----------------------------------------------------------------------------------------

    has_sessions = False

    async def test_where_there_are_no_elections_and_no_sessions_it_is_said(
        self, backend: LockBackend, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To threads and tasks alike, also where etcd's client is not installed."""
        if not self.has_sessions:
            monkeypatch.setitem(sys.modules, "fencelock.etcd.aio", None)
            with pytest.raises(LockError, match=r"no sessions$"):
                backend.session()
            with pytest.raises(LockError, match=r"no sessions$"):
                async with backend.aio.session(ttl_s=5):
                    pass
        if not self.guarantees.elects:
            for locks in (backend, backend.aio):
                with pytest.raises(LockError, match=r"no elections$"):
                    locks.election(name)
        await backend.leave_loop()

    # -- taken away by force -----------------------------------------------------------------------------------------

    can_be_taken = True  # whether the backend has `take_away`

    async def test_a_lock_can_be_taken_away(self, brief_backend: LockBackend, name: str) -> None:
        """The holder is told, the next in line has it, and it is written down who did that, and why."""
        locks = brief_backend.aio
        if not self.can_be_taken:
            with pytest.raises(LockError, match="taken away"):
                await locks.take_away(name, by="me")
            return
        lock: AsyncLock = locks.lock(name)
        assert await locks.take_away(name, by="me") is None
        grant = await lock.acquire(owner="it hangs")
        waiting = asyncio.create_task(lock.acquire(wait_s=WITHIN_S, owner="next"))
        shown = 2 if self.guarantees.shows_queue else 1
        await eventually_async(lock.contenders, until=lambda queue: len(queue) == shown)
        had = await locks.take_away(name, by="an operator", why="it hangs")
        assert had is not None
        assert (had.key, had.token) == (grant.key, grant.token)
        assert (await waiting).token > grant.token or not self.guarantees.fencing
        await eventually_async(lambda: grant.lost, "the holder is told")
        record = await brief_backend.aio.taken_from(name)
        assert (record["by"], record["why"]) == ("an operator", "it hangs")
        await lock.release(owner="next")
        with pytest.raises(LockLost):
            await lock.release(owner="it hangs")
        await brief_backend.leave_loop()

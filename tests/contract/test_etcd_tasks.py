"""Elections and sessions, for tasks: what is cancelled, waited for, observed and lost on an event loop."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

from fencelock import AsyncLocks, LockError, LockLost, LockTimeout, LockUnavailable
from fencelock.election import AsyncElection
from fencelock.etcd import lookout
from fencelock.etcd.backend import EtcdBackend
from fencelock.local import LocalBackend
from lab.servers import EtcdMember
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import CALM_S, TTL_S
from tests.contract.test_etcd_lock import EtcdSystem
from tests.harness.servers import end_leases, etcdctl, leases, watchers
from tests.harness.waiting import WITHIN_S, eventually_async

LEADER, ONE, TWO = "/test/leader", "/test/one", "/test/two"
MOMENTS = 30  # at which something is cancelled, each a little later than the last


@pytest.fixture
async def locks(etcd: EtcdMember) -> AsyncIterator[AsyncLocks]:
    """A connection; at its end nothing is left on the server."""
    end_leases(etcd)
    async with EtcdBackend([etcd.endpoint], ttl_s=CALM_S).aio as locks:
        yield locks
        await nothing_is_left(etcd)


@pytest.fixture
async def brief(etcd: EtcdMember, locks: AsyncLocks) -> AsyncIterator[AsyncLocks]:
    """Another one, with short leases."""
    async with EtcdBackend([etcd.endpoint], ttl_s=TTL_S).aio as brief:
        yield brief


@pytest.fixture
def election(locks: AsyncLocks) -> AsyncElection:
    return locks.election(LEADER)


async def nothing_is_left(etcd: EtcdMember) -> None:
    await eventually_async(
        lambda: asyncio.to_thread(EtcdSystem(etcd).leftovers), "nothing is left", until=lambda left: not left
    )


async def do(etcd: EtcdMember, *arguments: str) -> str:
    return await asyncio.to_thread(etcdctl, etcd.endpoint, *arguments)


async def queued(election: AsyncElection, number: int) -> None:
    await eventually_async(election.candidates, f"{number} candidates", until=lambda found: len(found) == number)


async def in_line(locks: AsyncLocks, name: str, number: int) -> None:
    await eventually_async(
        lambda: locks.contenders(name), f"{number} in the queue", until=lambda found: len(found) == number
    )


async def is_free(locks: AsyncLocks, name: str) -> bool:
    lock = locks.lock(name)
    if await lock.try_acquire() is None:
        return False
    await lock.release()
    return True


async def said(election: AsyncElection) -> str | None:
    leader = await election.leader()
    return leader.value if leader else None


class Observer:
    """Observes in a task of its own; `heard` has the values in their order, None for "nobody"."""

    def __init__(self, election: AsyncElection) -> None:
        self.heard: asyncio.Queue[str | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._observe(election))

    async def _observe(self, election: AsyncElection) -> None:
        async with contextlib.aclosing(election.observe()) as found:
            async for leader in found:
                self.heard.put_nowait(leader.value if leader else None)

    async def hear(self) -> str | None:
        """Wait for the next value."""
        async with asyncio.timeout(WITHIN_S):
            return await self.heard.get()


# -- elections -------------------------------------------------------------------------------------------------------


async def test_tasks_lead_as_threads_do(etcd: EtcdMember, election: AsyncElection) -> None:
    """Campaign, proclaim, record, lose and resign come to the same as for threads (see test_election.py)."""
    assert await election.leader() is None
    try:
        async with election.campaigning("first") as first:
            with pytest.raises(LockTimeout):
                async with asyncio.timeout(WITHIN_S):
                    await election.campaign("other", wait_s=0)
            waiting = asyncio.create_task(election.campaign("second"))
            await queued(election, 2)
            await first.proclaim("still the first")
            await first.record("what was done")
            assert await said(election) == "still the first"
            assert [one.holds for one in await election.candidates()] == [True, False]
        second = await waiting
        assert second.token > first.token
        assert await said(election) == "second"
        await do(etcd, "del", second.key)
        for speak in (second.proclaim, second.record):
            with pytest.raises(LockLost):
                await speak("I still lead")
        assert second.lost
        await second.resign()
        await second.resign()
        assert await election.recorded() == "what was done"
    finally:
        await do(etcd, "del", f"{LEADER}!record")  # it is for good


async def test_a_candidate_that_is_cancelled_leaves_nothing(election: AsyncElection) -> None:
    """A cancelled candidate is out of the queue when its task has ended, and the one behind it is next."""
    async with election.campaigning("me"):
        cancelled = asyncio.create_task(election.campaign("cancelled"))
        await queued(election, 2)
        behind = asyncio.create_task(election.campaign("behind"))
        await queued(election, 3)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert cancelled.cancelled()
        assert len(await election.candidates()) == 2
    async with asyncio.timeout(WITHIN_S):
        leadership = await behind
    assert await said(election) == "behind"
    await leadership.resign()


async def test_cancelling_a_candidate_at_any_moment_leaves_nothing(election: AsyncElection) -> None:
    """Nobody leads afterwards, whatever a cancellation races with (the candidature, the election, the end)."""

    async def lead() -> None:
        async with election.campaigning("me"):
            await asyncio.sleep(0.002)

    for moment in range(MOMENTS):
        leading = asyncio.create_task(lead())
        await asyncio.sleep(moment * 0.0004)  # not a wait for anything: a different moment each time
        leading.cancel()
        await asyncio.wait({leading}, timeout=WITHIN_S)
        assert leading.done()
    assert await election.candidates() == []


async def test_what_is_proclaimed_is_heard_by_tasks(
    election: AsyncElection, etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer is told who leads, what it says then, and that nobody leads; cancelled, it leaves no watch behind."""
    monkeypatch.setattr(lookout, "_LOOK_AGAIN_S", 600)  # told, not found out by looking
    before = await asyncio.to_thread(watchers, etcd)
    observer = Observer(election)
    assert await observer.hear() is None
    async with election.campaigning("one") as leadership:
        assert await observer.hear() == "one"
        await leadership.proclaim("two")
        assert await observer.hear() == "two"
        await leadership.proclaim("two")  # once more is news, too: it says that it is still there
        assert await observer.hear() == "two"
    assert await observer.hear() is None
    assert await asyncio.to_thread(watchers, etcd) > before
    observer.task.cancel()
    await asyncio.wait({observer.task})
    assert observer.task.cancelled()
    await eventually_async(
        lambda: asyncio.to_thread(watchers, etcd), "no watch is left", until=lambda now: now == before
    )


async def test_observing_ends_with_the_connection_of_tasks(etcd: EtcdMember, locks: AsyncLocks) -> None:
    """When it is closed, an observer ends, one who waits to be elected is told, and nothing of either is left."""
    async with locks.election(LEADER).campaigning("me"):
        before = await asyncio.to_thread(watchers, etcd)
        closing = EtcdBackend([etcd.endpoint], ttl_s=CALM_S).aio
        observer = Observer(closing.election(LEADER))
        assert await observer.hear() == "me"
        waiting = asyncio.create_task(closing.election(LEADER).campaign("other"))
        await queued(locks.election(LEADER), 2)
        await closing.close()
        async with asyncio.timeout(WITHIN_S):
            await observer.task
            with pytest.raises(LockUnavailable):
                await waiting
        await queued(locks.election(LEADER), 1)
        await eventually_async(
            lambda: asyncio.to_thread(watchers, etcd), "no watch is left", until=lambda now: now <= before
        )


async def test_the_loop_renews_a_leadership(brief: AsyncLocks) -> None:
    """For longer than its TTL, as long as the loop turns; one that stands still for a TTL leads no more."""
    leadership = await brief.election(LEADER).campaign("me")
    began = leadership.deadline
    await eventually_async(lambda: leadership.lost or leadership.deadline > began + TTL_S, "a TTL has passed")
    assert not leadership.lost
    time.sleep(leadership.lease.ttl_s + 0.1)  # blocks the loop
    assert leadership.lost
    with pytest.raises(LockLost):
        await leadership.proclaim("I still lead")
    await leadership.resign()


# -- sessions --------------------------------------------------------------------------------------------------------


async def test_tasks_have_sessions_as_threads_do(etcd: EtcdMember, locks: AsyncLocks) -> None:
    """There is one lease for all, and the end of the session is the end of all (see test_session.py)."""
    async with locks.session(ttl_s=CALM_S + 1) as session:
        async with session.lock(ONE), session.lock(TWO):
            assert [int(lease, 16) for lease in await asyncio.to_thread(leases, etcd)] == [session.lease_id]
            assert session.ttl_s == CALM_S + 1
            assert await asyncio.create_task(session.lock(ONE).try_acquire()) is None
        leadership = await session.election(LEADER).campaign("me")
    assert session.lost
    assert leadership.lost
    assert await locks.election(LEADER).leader() is None
    with pytest.raises(LockLost, match="the session was closed"):
        await session.lock(TWO).acquire()
    await session.close()
    async with locks.session(ttl_s=TTL_S) as orphan:
        await orphan.lock(ONE).acquire(owner="me")
        orphan.orphan()
        await eventually_async(lambda: orphan.lost, "it is renewed no more")


async def test_a_task_that_is_cancelled_closes_its_session(locks: AsyncLocks) -> None:
    """All that it had locked is free when it has ended."""
    inside = asyncio.Event()

    async def work() -> None:
        async with locks.session() as session, session.lock(ONE):
            inside.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    await asyncio.wait({working})
    assert working.cancelled()
    assert await is_free(locks, ONE)


async def test_a_session_that_is_called_off_leaves_no_lease(etcd: EtcdMember, locks: AsyncLocks) -> None:
    """At whatever moment its opening is cancelled."""

    async def work() -> None:
        async with locks.session():
            pass

    for moment in range(MOMENTS):
        working = asyncio.create_task(work())
        await asyncio.sleep(moment * 0.0002)  # not a wait for anything: a different moment each time
        working.cancel()
        await asyncio.wait({working}, timeout=WITHIN_S)
        assert working.done()
    assert await asyncio.to_thread(leases, etcd) == []


async def test_a_program_that_cancels_all_tasks_and_goes_on(etcd: EtcdMember) -> None:
    """What the library had asked for at that moment may be done later: nobody waits behind a key that nobody has."""
    with Proxy(etcd.client_port) as proxy:
        async with EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=TTL_S).aio as locks:
            keep = locks.lock(ONE)
            await keep.acquire()  # so that the session lives
            async with locks.lock(TWO):
                pass
            (session,) = cast(EtcdBackend, locks.backend).here()._sessions.values()
            proxy.stall()
            before = asyncio.all_tasks()
            taking = asyncio.create_task(locks.lock(TWO).acquire())
            (key,) = await eventually_async(
                lambda: [key for key in session.keys if not key.granted], "it asks for a key"
            )
            for task in asyncio.all_tasks() - before:
                task.cancel()
            proxy.restore()
            await asyncio.wait({taking})
            await do(etcd, "put", f"--lease={session.lease_id:x}", key.name, "late")
            await in_line(locks, TWO, 0)
            await keep.release()


async def test_tasks_under_a_lost_session_are_told(etcd: EtcdMember, locks: AsyncLocks, brief: AsyncLocks) -> None:
    """Holders, leaders and waiters are told; with `cancel_on_lost` a body goes no further."""
    other, told = locks.lock(TWO), threading.Event()
    await other.acquire()
    async with brief.session() as session:
        leadership = await session.election(LEADER).campaign("me")
        leadership.on_lost(told.set)
        waiting = asyncio.create_task(session.lock(TWO).acquire())
        await in_line(locks, TWO, 2)
        with pytest.raises(LockLost):
            async with asyncio.timeout(WITHIN_S), session.lock(ONE).holding(cancel_on_lost=True):
                await do(etcd, "lease", "revoke", f"{session.lease_id:x}")
                await asyncio.Event().wait()
        with pytest.raises(LockLost):
            async with asyncio.timeout(WITHIN_S):
                await waiting
        assert told.is_set()
        assert session.lost
        with pytest.raises(LockLost):
            session.ensure_held()
        with pytest.raises(LockLost):
            await leadership.proclaim("I still lead")
    await other.release()


async def test_the_loop_renews_a_session(locks: AsyncLocks, brief: AsyncLocks) -> None:
    """For longer than its TTL, as long as the loop turns; if it stands still for a TTL all that is locked is lost."""
    async with brief.session() as session:
        lock, began = session.lock(ONE), session.deadline
        grant = await lock.acquire()
        await eventually_async(lambda: session.lost or session.deadline > began + TTL_S, "a TTL has passed")
        assert not grant.lost
        time.sleep(session.ttl_s + 0.1)  # blocks the loop
        assert grant.lost
        assert session.lost
        with pytest.raises(LockLost):
            await lock.release()
    await eventually_async(lambda: is_free(locks, ONE), "it is free")


async def test_a_task_uses_a_lease_that_somebody_else_has_granted(etcd: EtcdMember, locks: AsyncLocks) -> None:
    """It is kept, with its own TTL. A lease that isn't there is an error; a task that is cancelled does not end it."""
    lease_id = int((await do(etcd, "lease", "grant", "60")).split()[1], 16)
    for moment in range(MOMENTS):
        opening = asyncio.create_task(locks.backend.begin_session(None, lease_id, end_lease=False))
        await asyncio.sleep(moment * 0.0001)  # not a wait for anything: a different moment each time
        opening.cancel()
        await asyncio.wait({opening}, timeout=WITHIN_S)
        assert opening.done()
        assert [int(lease, 16) for lease in await asyncio.to_thread(leases, etcd)] == [lease_id]
    async with locks.session(lease_id=lease_id) as session:
        assert (session.lease_id, session.ttl_s) == (lease_id, 60)
        async with session.lock(ONE):
            assert not await is_free(locks, ONE)
    async with locks.session(lease_id=lease_id, end_lease=True):
        assert lease_id in [int(lease, 16) for lease in await asyncio.to_thread(leases, etcd)]
    with pytest.raises(LockLost, match=f"no lease {lease_id:x}"):
        async with locks.session(lease_id=lease_id):
            pass


async def test_not_every_lock_has_sessions_and_elections_for_tasks() -> None:
    async with LocalBackend().aio as locks:
        with pytest.raises(LockError, match="local has no sessions"):
            async with locks.session():
                pass
        with pytest.raises(LockError, match="local has no elections"):
            locks.election(LEADER)

"""Sessions: several locks under one lease."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from fencelock import AsyncLocks, LockError, LockLost, LockTimeout, LockUnavailable, portal
from fencelock.clock import now
from fencelock.etcd.backend import EtcdBackend
from fencelock.etcd.client import EtcdClient
from fencelock.etcd.shared_lease import SharedLease
from fencelock.etcd.txn import EtcdTxnBackend
from fencelock.renewer import Renewer
from lab.servers import EtcdMember
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import TTL_S, InThread, hold_and_release
from tests.contract.test_etcd_lock import EtcdSystem
from tests.harness.inside import shared
from tests.harness.servers import end_leases, etcdctl, leases
from tests.harness.waiting import WITHIN_S, eventually, eventually_async

ONE, TWO = "/test/one", "/test/two"
Work = Callable[[AsyncLocks, int], Coroutine[None, None, None]]


@pytest.fixture
def backend(etcd: EtcdMember) -> Iterator[EtcdBackend]:
    """A connection; at its end nothing is left on the server."""
    end_leases(etcd)
    with EtcdBackend([etcd.endpoint], ttl_s=TTL_S) as backend:
        yield backend
        eventually(lambda: not EtcdSystem(etcd).leftovers(), "nothing is left on the server")


def is_free(backend: EtcdBackend, name: str) -> bool:
    lock = backend.lock(name)
    if lock.try_acquire() is None:
        return False
    lock.release()
    return True


def test_several_locks_under_one_lease(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """They are locks like any other; there is one lease for all, and its end is the end of all."""
    with backend.session() as session:
        one, two = session.lock(ONE), session.lock(TWO)
        with one as first, two as second:
            assert first.token < second.token
            assert [int(lease, 16) for lease in leases(etcd)] == [session.lease_id]
            assert not is_free(backend, ONE)
        assert is_free(backend, ONE)
        assert is_free(backend, TWO)
        one.acquire()
        two.acquire()
    assert session.lost
    assert is_free(backend, ONE)
    assert is_free(backend, TWO)
    with pytest.raises(LockLost, match="the session was closed"):
        one.release()
    with pytest.raises(LockLost, match="the session was closed"):
        two.acquire()
    with pytest.raises(LockLost):
        session.lock(ONE).acquire()
    session.close()


def test_threads_of_a_session_exclude_each_other(backend: EtcdBackend) -> None:
    """In Go a session is one contender; here each of its threads is."""
    with backend.session() as session:
        lock, same = session.lock(ONE), session.lock(ONE)
        grant = lock.acquire()
        waiting = InThread(lambda: hold_and_release(same))
        eventually(lambda: len(lock.contenders()) == 2, "it waits")
        with pytest.raises(LockTimeout):
            session.lock(ONE).acquire(owner="third", wait_s=0)
        lock.release()
        assert waiting.result() > grant.token


def test_what_is_under_a_lost_session_is_lost(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """The session's holders and waiters are told at once."""
    session = backend.session()
    grant = session.lock(ONE).acquire(owner="me")
    other = backend.lock(TWO)
    other.acquire()
    told = threading.Event()
    grant.on_lost(told.set)
    waiting = InThread(lambda: session.lock(TWO).acquire())
    eventually(lambda: len(other.contenders()) == 2, "it waits")
    etcdctl(etcd.endpoint, "lease", "revoke", f"{session.lease_id:x}")
    assert told.wait(WITHIN_S)
    eventually(lambda: session.lost, "it is told, too, be it by its own next renewal")
    with pytest.raises(LockLost):
        grant.ensure_held()
    with pytest.raises(LockLost):
        waiting.result()
    other.release()
    session.close()


def test_an_orphaned_session_ends_by_itself(backend: EtcdBackend) -> None:
    """All stays locked until the session's time is over; then holders that still trust it are told."""
    session = backend.session(ttl_s=TTL_S)
    lock = session.lock(ONE)
    grant = lock.acquire()
    session._session._orphan()
    assert not is_free(backend, ONE)
    assert not grant.lost
    eventually(lambda: is_free(backend, ONE), "its lease has ended")
    assert grant.lost
    assert session.lost


def test_a_lease_that_somebody_else_has_granted(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """It is kept, with its own TTL, also after us; one that isn't there is an error."""
    answer = etcdctl(etcd.endpoint, "lease", "grant", "3")
    lease_id = int(answer.split()[1], 16)
    with backend.session(lease_id=lease_id) as session:
        assert session.ttl_s == 3
        with session.lock(ONE) as grant:
            began = session.deadline
            eventually(lambda: session.deadline > began + 3, "it was renewed beyond its TTL")
            assert not grant.lost
    assert lease_id in [int(lease, 16) for lease in leases(etcd)]
    etcdctl(etcd.endpoint, "lease", "revoke", f"{lease_id:x}")
    with pytest.raises(LockLost, match=f"no lease {lease_id:x}"):
        backend.session(lease_id=lease_id)


def test_who_joins_a_lease_leaves_it_alone(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """What the joined session locked is free at its end, and what others locked under the lease is still theirs."""
    with backend.session() as session, session.lock(ONE) as grant:
        with backend.session(lease_id=session.lease_id) as joined:
            mine = joined.lock(TWO).acquire()
            waiting = InThread(lambda: joined.lock(ONE).acquire())
            eventually(lambda: len(session.lock(ONE).contenders()) == 2, "it waits")
        assert mine.lost
        assert is_free(backend, TWO)
        with pytest.raises(LockLost):
            waiting.result()
        assert [one.token for one in session.lock(ONE).contenders()] == [grant.token]
        assert session.lease_id in [int(lease, 16) for lease in leases(etcd)]
        began = session.deadline
        eventually(lambda: session.deadline > began, "it is still renewed")
        assert not grant.lost


def test_who_joins_a_lease_may_end_it(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """Go's way, for who asks for it."""
    lease_id = int(etcdctl(etcd.endpoint, "lease", "grant", "60").split()[1], 16)
    with backend.session(lease_id=lease_id, end_lease=True):
        pass
    assert leases(etcd) == []


def test_a_late_key_under_a_joined_lease_is_deleted(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """A call that was given up arrives long after the end of the session, whose lease lives on."""
    with (
        backend.session() as owner,
        Proxy(etcd.client_port) as proxy,
        EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=TTL_S) as other,
    ):
        lease_id = owner.lease_id
        session = other.session(lease_id=lease_id)
        with session.lock(TWO):
            pass
        proxy.stall()
        with pytest.raises(LockUnavailable):
            session.lock(ONE).acquire(wait_s=0)
        (key,) = shared(session).keys
        session.close()
        proxy.restore()
        eventually(lambda: not shared(session).keys, "it is deleted")
        over = session.deadline + TTL_S
        eventually(lambda: now() > over, "by its own time the lease is over")
        etcdctl(etcd.endpoint, "put", f"--lease={lease_id:x}", key.name, "late")
        eventually(lambda: backend.lock(ONE).contenders() == [], "the late key is deleted")
        assert not owner.lost


def test_a_lease_that_is_shorter_than_the_backends(etcd: EtcdMember) -> None:
    """The server's time counts, not ours: nobody believes in a lock that somebody else may have."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=600)
    lease_id = int(etcdctl(etcd.endpoint, "lease", "grant", "3").split()[1], 16)
    with backend.session(lease_id=lease_id) as session, session.lock(ONE) as grant:
        assert grant.deadline <= now() + 3
        began = grant.deadline
        eventually(lambda: grant.deadline > began + 3, "it is renewed in time")
    backend.close()


def test_who_closes_stops_believing_first(etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the server frees what was locked, nobody here takes it for theirs any more."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=TTL_S)
    session = backend.session()
    grant = session.lock(ONE).acquire()
    believed = []
    revoke = EtcdClient.revoke
    monkeypatch.setattr(EtcdClient, "revoke", lambda *args: (believed.append(not grant.lost), revoke(*args))[1])
    session.close()
    assert believed == [False]
    backend.close()


def test_a_key_that_is_deleted_costs_its_lock_only(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """The session and its other locks go on."""
    with backend.session() as session:
        one, two = session.lock(ONE), session.lock(TWO)
        first, second = one.acquire(), two.acquire()
        etcdctl(etcd.endpoint, "del", first.key)
        eventually(lambda: first.lost, "its holder is told")
        assert not second.lost
        assert not session.lost
        with pytest.raises(LockLost):
            one.release()
        with one:
            pass
        two.release()


def test_what_is_lost_while_its_session_lives_is_given_back(backend: EtcdBackend) -> None:
    """Its key would live as long as the session, in everybody's way, if its owner never released it."""
    with backend.session() as session:
        leadership, lock = session.election(ONE).campaign("one"), session.lock(TWO)
        for one in leadership, lock.acquire():
            one.lease.lose("it was not renewed in time")
        session.election(ONE).campaign("two", wait_s=WITHIN_S).resign()
        eventually(lambda: is_free(backend, TWO), "it is free")
        assert not session.lost
        with pytest.raises(LockLost):
            lock.release()


def test_what_is_lost_under_a_lease_that_others_renew(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """The lease does not end with our part of it, so its keys are deleted as soon as etcd can be reached."""
    with backend.session() as session, Proxy(etcd.client_port) as proxy:
        with EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=TTL_S) as behind:
            joined = behind.session(lease_id=session.lease_id)
            grant = joined.lock(ONE).acquire()
            proxy.cut()
            eventually(lambda: grant.lost, "it is lost")
            assert not is_free(backend, ONE)
            proxy.restore()
            eventually(lambda: is_free(backend, ONE), "it is free")
        assert not session.lost


def test_ctrl_c_before_an_end_has_begun(backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resignation and the close of a session are done all the same: nobody could repeat them."""
    session = backend.session()
    leadership = session.election(ONE).campaign("me")

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    for ended, end in (leadership, leadership.resign), (session, session.close):
        monkeypatch.setattr(portal._Portal, "call_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            end()
        eventually(lambda ended=ended: ended.lost, "it is over")
        assert backend.election(ONE).leader() is None


def test_nothing_is_kept_of_what_was_released(backend: EtcdBackend) -> None:
    """A session that lives for weeks does not grow with each lock that was taken under it."""
    with backend.session() as session:
        lock = session.lock(ONE)
        ended = []
        for _ in range(5):
            with lock as grant:
                ended.append(weakref.ref(grant.lease))
            del grant
        gc.collect()
        assert [ref() for ref in ended] == [None] * 5
        assert shared(session)._deleted == {}  # nothing that its renewal would have to delete again


def test_a_creation_that_arrives_again_and_again(etcd: EtcdMember) -> None:
    """A key of which nobody knows is deleted at each renewal, though another key keeps the session alive."""
    with Proxy(etcd.client_port) as proxy:
        behind = EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=TTL_S)
        with behind.session() as session, session.lock(ONE):
            lock = session.lock(TWO)
            proxy.lose_answer_to(TWO.encode())
            taking = InThread(lambda: hold_and_release(lock))
            assert proxy.struck.wait(WITHIN_S)
            proxy.restore()
            taking.result()
            ((name, _),) = eventually(lambda: list(shared(session)._deleted), "it was deleted")
            for _ in range(2):
                etcdctl(etcd.endpoint, "put", f"--lease={session.lease_id:x}", name, "late")
                eventually(lambda: not etcdctl(etcd.endpoint, "get", "--keys-only", name).strip(), "it is deleted")
            assert not session.lost
        behind.close()


def test_what_another_one_has_is_not_deleted(etcd: EtcdMember) -> None:
    """A shared key whose creation was not answered may arrive later; deleted is only what has our value."""
    with Proxy(etcd.client_port) as proxy:
        behind = EtcdTxnBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=TTL_S)
        other = EtcdTxnBackend([etcd.endpoint], ttl_s=TTL_S)
        kept = behind.lock(ONE).acquire()
        proxy.lose_answer_to(TWO.encode())
        taking = InThread(lambda: hold_and_release(behind.lock(TWO)))
        assert proxy.struck.wait(WITHIN_S)
        proxy.restore()
        taking.result()
        grant = eventually(lambda: other.lock(TWO).try_acquire(owner="other"), "it is free")
        assert grant is not None
        renewed = kept.deadline
        for _ in range(3):
            eventually(lambda renewed=renewed: kept.deadline > renewed, "the session is renewed")
            renewed = kept.deadline
        (there,) = other.lock(TWO).contenders()
        assert (there.token, grant.lost) == (grant.token, False)
        other.close()
        behind.close()


@pytest.mark.parametrize("kind", [EtcdBackend, EtcdTxnBackend])
def test_a_lock_is_the_same_inside_of_a_session_and_outside(etcd: EtcdMember, kind: type[EtcdBackend]) -> None:
    """An owner in a session keeps out one without it, and the other way round; a session's lock ends with it."""
    with kind([etcd.endpoint], ttl_s=TTL_S) as backend:
        with backend.session() as session:
            with backend.lock(ONE):
                assert session.lock(ONE).try_acquire() is None
            grant = session.lock(ONE).acquire()
            assert backend.lock(ONE).try_acquire(owner="other") is None
        assert grant.lost
        assert is_free(backend, ONE)


@pytest.mark.parametrize("kind", [EtcdBackend, EtcdTxnBackend])
def test_a_session_whose_lease_is_gone_takes_no_locks(etcd: EtcdMember, kind: type[EtcdBackend]) -> None:
    """An acquire is told at once, even before the session itself has noticed, and asks etcd only once."""
    with kind([etcd.endpoint], ttl_s=TTL_S) as backend, backend.session() as session:
        etcdctl(etcd.endpoint, "lease", "revoke", f"{session.lease_id:x}")
        with pytest.raises(LockLost):
            session.lock(ONE).acquire()
        assert session.lost


def test_who_joins_a_lease_is_a_contender_like_any_other(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """Its keys are its own: it takes no lock from the session that began the lease, nor from another that joined."""
    with backend.session() as session, session.lock(ONE) as grant, EtcdBackend([etcd.endpoint], ttl_s=TTL_S) as other:
        first, second = (other.session(lease_id=session.lease_id) for _ in range(2))
        with first.lock(TWO) as joined:
            for lock in first.lock(ONE), second.lock(ONE), second.lock(TWO):
                assert lock.try_acquire() is None
            renewed = session.deadline
            eventually(lambda: session.deadline > renewed, "the session is renewed, and the keys are looked at")
            assert [one.key for one in session.lock(ONE).contenders()] == [grant.key]
            assert not grant.lost
            assert not joined.lost
        first._session._orphan()
        second._session._orphan()


def test_the_time_of_a_joined_lease_begins_before_it_is_renewed(etcd: EtcdMember) -> None:
    """An answer that takes long does not make its locks last longer here than in etcd."""
    lease_id = int(etcdctl(etcd.endpoint, "lease", "grant", "4").split()[1], 16)
    with Proxy(etcd.client_port) as proxy, EtcdBackend([f"http://127.0.0.1:{proxy.port}"], timeout_s=3) as backend:
        backend.ping(WITHIN_S)
        proxy.answer_delay_s = 1
        session = backend.session(lease_id=lease_id)
        assert session.deadline <= now() + 3
        proxy.answer_delay_s = 0
        session.close()


def test_the_time_of_a_session_begins_before_its_lease_is_granted(etcd: EtcdMember) -> None:
    """As above, for a lease of one's own."""
    with Proxy(etcd.client_port) as proxy, EtcdBackend([f"http://127.0.0.1:{proxy.port}"], timeout_s=20) as backend:
        backend.ping(WITHIN_S)
        proxy.answer_delay_s = 1
        session = backend.session(ttl_s=60)
        assert session.trusted_s < session.ttl_s - 0.9
        proxy.answer_delay_s = 0
        session.close()


def test_an_interrupted_join_leaves_the_lease_alone(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """It is another program's, also if nobody wants the session that was begun on it any more."""
    lease_id = int(etcdctl(etcd.endpoint, "lease", "grant", "30").split()[1], 16)

    session = portal.run(backend.begin_session(None, lease_id, end_lease=True))
    portal.run(session.undo())
    assert lease_id in [int(lease, 16) for lease in leases(etcd)]
    etcdctl(etcd.endpoint, "lease", "revoke", f"{lease_id:x}")


def test_a_close_that_is_refused_can_be_repeated(etcd: EtcdMember) -> None:
    """Called by what it would wait for it is an error, and changes nothing for the next one."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=TTL_S)
    refused: list[Exception] = []
    over = threading.Event()

    def close() -> None:
        try:
            backend.close()
        except LockError as error:
            refused.append(error)
        over.set()

    grant = backend.lock(ONE).acquire()
    grant.on_lost(close)
    backend.force_release(ONE)
    assert over.wait(WITHIN_S)
    assert len(refused) == 1
    assert backend._connections
    backend.close()
    assert not backend._connections


def test_an_election_under_a_session(backend: EtcdBackend) -> None:
    """It ends with the session."""
    session = backend.session()
    leadership = session.election(ONE).campaign("me")
    leadership.proclaim("still me")
    leader = backend.election(ONE).leader()
    assert leader is not None
    assert leader.value == "still me"
    session.close()
    assert leadership.lost
    assert backend.election(ONE).leader() is None


async def test_a_late_deletion_delays_no_renewal(etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed as soon as etcd says so, though a key that is deleted again is not answered."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=30)
    deleting = asyncio.Event()

    async def silent(client: EtcdClient, *_: Any, **__: Any) -> None:
        deleting.set()
        await asyncio.Event().wait()

    session = await SharedLease.begin(backend.here().client, Renewer(asyncio.get_running_loop()), 30, 5)
    key = session.key(f"{ONE}/")
    key.not_answered()
    await key.end(5)  # it may still be created
    before = session.deadline
    monkeypatch.setattr(EtcdClient, "txn", silent)
    renewing = asyncio.create_task(session.renew(2))
    await deleting.wait()
    assert session.deadline > before
    assert not renewing.done()
    assert await renewing
    monkeypatch.undo()
    await session.end(5)
    await backend.close_on_loop()


class Granting:
    """An etcd that grants a lease so late that it has no such lease yet when it is asked to revoke it, twice."""

    era = 0

    def __init__(self) -> None:
        self.lacks, self.revoked = 2, asyncio.Event()

    async def grant(self, *_: Any) -> int:
        raise LockUnavailable("not answered")

    async def revoke(self, *_: Any) -> bool:
        self.lacks -= 1
        if self.lacks < 0:
            self.revoked.set()
        return self.lacks < 0


async def test_a_lease_that_is_granted_late_is_revoked() -> None:
    """A grant that was given up, and comes behind the first revocation, is revoked as well."""
    client: Any = Granting()
    renewer = Renewer(asyncio.get_running_loop())
    with pytest.raises(LockUnavailable):
        await SharedLease.begin(client, renewer, 30, 5)
    async with asyncio.timeout(WITHIN_S):
        await client.revoked.wait()
    await renewer.close()


async def test_a_lease_that_is_being_granted_is_revoked_at_the_end(etcd: EtcdMember) -> None:
    """A client that is closed meanwhile, and hears of the grant no more, leaves no lease for a whole TTL."""
    end_leases(etcd)
    with Proxy(etcd.client_port) as path:
        backend = EtcdBackend([f"http://127.0.0.1:{path.port}"], ttl_s=600, timeout_s=60)
        connection = backend.here()
        await connection.client.read(ONE)
        path.answer_delay_s = 1.0
        taking = asyncio.create_task(connection.session(600, 60))
        await asyncio.to_thread(eventually, lambda: leases(etcd), "the lease is there")
        await connection.close()
        await asyncio.to_thread(eventually, lambda: not leases(etcd), "no lease is left")
        await asyncio.wait({taking})


# -- tasks that are cancelled ----------------------------------------------------------------------------------------


async def _leads(locks: AsyncLocks, _: int) -> None:
    async with locks.election(ONE).campaigning("me"):
        await asyncio.sleep(0.002)


async def _begins(locks: AsyncLocks, _: int) -> None:
    async with locks.session() as session, session.lock(ONE):
        await asyncio.sleep(0.002)


async def _joins(locks: AsyncLocks, lease_id: int) -> None:
    await locks.backend.begin_session(None, lease_id, end_lease=False)


@pytest.mark.parametrize("work", [_leads, _begins, _joins])
async def test_a_cancelled_task_leaves_nothing(etcd: EtcdMember, backend: EtcdBackend, work: Work) -> None:
    """At whatever moment: no candidate, no lock and no lease of its own; a lease that it has joined goes on."""
    lease_id = int(etcdctl(etcd.endpoint, "lease", "grant", "60").split()[1], 16)
    for moment in range(30):
        working = asyncio.create_task(work(backend.aio, lease_id))
        await asyncio.sleep(moment * (0.0001 if work is _joins else 0.0004))  # a different moment each time
        working.cancel()
        await asyncio.wait({working}, timeout=WITHIN_S)
        assert working.done()
    assert await backend.aio.election(ONE).candidates() == []
    if work is _leads:  # whose session is kept for a while
        etcdctl(etcd.endpoint, "lease", "revoke", f"{lease_id:x}")
    else:
        assert [int(lease, 16) for lease in await asyncio.to_thread(leases, etcd)] == [lease_id]
    await backend.leave_loop()


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
            await asyncio.to_thread(etcdctl, etcd.endpoint, "put", f"--lease={session.lease_id:x}", key.name, "late")
            await eventually_async(lambda: locks.contenders(TWO), "it is gone", until=lambda queue: not queue)
            await keep.release()

"""The etcd lock keeps the contract; and what is etcd's alone: other clients in the queue, clusters, logins, TLS."""

import asyncio
import base64
import contextlib
import gc
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import trustme

from fencelock import Contender, DistributedLock, Grant, LockBackend, LockError, LockLost, LockUnavailable
from fencelock.clock import now
from fencelock.errors import ConfigurationError
from fencelock.etcd import lookout, shared_lease, watch
from fencelock.etcd.backend import EtcdBackend
from fencelock.etcd.txn import EtcdTxnBackend
from fencelock.etcd.watch import WatchStream
from lab.servers import EtcdCluster, EtcdMember, etcd_binary
from lab.servers.process import Process, free_port, port_is_free
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import CALM_S, SMOKE, TTL_S, InThread, LockContract, LockSystem, hold_and_release
from tests.harness.forked import Forked
from tests.harness.inside import of_threads, shared
from tests.harness.servers import (
    QUICK_ETCD,
    end_leases,
    etcd_far_away,
    etcdctl,
    gateway,
    leader,
    leases,
    leases_in_use,
    optional_server,
    watchers,
    where_installed,
)
from tests.harness.waiting import WITHIN_S, eventually


class EtcdSystem(LockSystem):
    backend = "fencelock.etcd.backend:EtcdBackend"
    ttl_s = 1

    def __init__(self, member: EtcdMember) -> None:
        self.server = member

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"endpoints": [self.server.endpoint], "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> EtcdBackend:
        return EtcdBackend(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        assert etcdctl(self.server.endpoint, "del", key).strip() == "1"

    def end_lease(self, grant: Grant) -> None:
        etcdctl(self.server.endpoint, "lease", "revoke", grant.key.rpartition("/")[2].partition("-")[0])

    def leftovers(self) -> list[str]:
        keys = etcdctl(self.server.endpoint, "get", "--prefix", "--keys-only", "/").split()
        return [key for key in keys if not key.endswith("!record")] + leases_in_use(self.server)


class EtcdTxnSystem(EtcdSystem):
    backend = "fencelock.etcd.txn:EtcdTxnBackend"

    def open(self, ttl_s: float, **more: Any) -> EtcdBackend:
        return EtcdTxnBackend(**self.options(ttl_s), **more)

    def end_lease(self, grant: Grant) -> None:
        answer = gateway(self.server, "kv/range", key=base64.b64encode(grant.key.encode()).decode())
        etcdctl(self.server.endpoint, "lease", "revoke", f"{int(answer['kvs'][0]['lease']):x}")


def _binary(which: str) -> Path:
    if which == "newest":
        from tests.interop import builds

        return where_installed(lambda: builds.etcd_server("3.7"))
    return etcd_binary() if which == "embedded" else optional_server("etcd", "etcd-server")


_OTHERS = [pytest.param(one, marks=pytest.mark.exhaustive) for one in ("debian", "newest")]


@pytest.fixture(scope="module", params=["embedded", *_OTHERS])
def version(request: pytest.FixtureRequest) -> str:
    """etcd 3.5 as it is embedded, 3.4 as Debian has it, and 3.7, which Go builds."""
    _binary(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def shared_member(version: str) -> Iterator[EtcdMember]:
    with EtcdMember(binary=_binary(version), options=QUICK_ETCD) as member:
        yield member


class _EtcdContract(LockContract):
    async def test_a_child_works_anew(self, steady_backend: LockBackend, name: str) -> None:
        """It can't: gRPC would crash there, or wait for ever. It is told so at once, and can end like any other."""
        assert isinstance(steady_backend, EtcdBackend)

        async def in_task() -> None:
            gc.collect()
            await steady_backend.aio.lock(name).acquire()

        def use(_: object) -> None:
            another = EtcdBackend("://".join(steady_backend._members[0])).lock(name)
            lock = steady_backend.lock(name)
            for call in (lock.acquire, another.acquire, lambda: steady_backend.ping(1), lambda: asyncio.run(in_task())):
                with pytest.raises(LockError, match="in use before the fork: connect after the fork"):
                    call()
            steady_backend.close()

        async with steady_backend.aio.lock(name) as grant:
            waiting = InThread(lambda: hold_and_release(steady_backend.lock(name)))
            await asyncio.to_thread(self._until_queued, steady_backend.lock(name), 2)
            for _ in range(8):  # of which some crashed with gRPC's own fork handlers
                await asyncio.to_thread(lambda: Forked(use).result())
            grant.ensure_held()
        assert await asyncio.to_thread(waiting.result) > grant.token
        await steady_backend.leave_loop()


class TestEtcdLock(_EtcdContract):
    guarantees = EtcdBackend.guarantees

    @pytest.fixture
    def system(self, shared_member: EtcdMember) -> LockSystem:
        return EtcdSystem(shared_member)


class TestEtcdTxnLock(_EtcdContract):
    SMOKE = SMOKE
    guarantees = EtcdTxnBackend.guarantees

    @pytest.fixture
    def system(self, etcd: EtcdMember) -> LockSystem:
        return EtcdTxnSystem(etcd)


@pytest.fixture
def backend(etcd: EtcdMember) -> Iterator[EtcdBackend]:
    backend = EtcdBackend([etcd.endpoint], ttl_s=TTL_S, instance="test")
    yield backend
    backend.close()


def test_ctrl_c_while_an_attempt_is_cleaned_up(
    etcd: EtcdMember, backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is ours by then, and nobody else knows: it is given back."""
    close = lookout.KeyLookout.close

    def interrupted(of: lookout.KeyLookout) -> None:
        monkeypatch.undo()
        close(of)
        raise KeyboardInterrupt

    monkeypatch.setattr(lookout.KeyLookout, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.lock("/test/interrupted").acquire()
    eventually(lambda: not EtcdSystem(etcd).leftovers(), "nothing is left on the server")


def test_etcdctl_takes_its_fair_turn(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """`etcdctl lock <name>` (Go's recipe) waits for us, goes before later contenders, and we wait for it."""
    lock = backend.lock("/test/mixed")
    order: list[str] = []
    lock.acquire()
    command = [str(etcd_binary("etcdctl")), f"--endpoints={etcd.endpoint}", "lock", "--ttl=5", "/test/mixed", "true"]
    with subprocess.Popen(command, env=os.environ | {"ETCDCTL_API": "3"}, stdout=subprocess.DEVNULL) as other:
        eventually(lambda: len(lock.contenders()) == 2, "etcdctl is in the queue")
        theirs = lock.contenders()[1]
        assert theirs.owner == {}  # Go's recipe says nothing of itself

        def after() -> None:
            with lock:
                order.append("ours again" if other.poll() is not None or not _has(lock, theirs.key) else "too early")

        later = InThread(after)
        eventually(lambda: len(lock.contenders()) == 3, "we are in the queue behind etcdctl")
        assert other.poll() is None
        lock.release()
        assert other.wait(WITHIN_S) == 0
        later.result()
    assert order == ["ours again"]


def test_all_that_is_under_the_empty_prefix(backend: EtcdBackend) -> None:
    """All that has begun is shown, whatever it begins with."""
    with backend.lock("a"), backend.lock("é"):
        assert {"a", "é"} <= {one.key.rpartition("/")[0] for one in backend.contenders("")}


def test_a_single_key_is_no_record_of_an_election(etcd: EtcdMember) -> None:
    """What an election has written down would be a lock that nobody gives back."""
    with EtcdTxnBackend([etcd.endpoint]) as locks, pytest.raises(ValueError, match="!record"):
        locks.lock("/test/jobs!record")


def test_a_name_that_has_no_encoding_is_refused(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """Half a character is none, and what is refused leaves nothing."""
    with pytest.raises(ValueError, match="surrogates"):
        backend.lock("/test/\udcff")
    with pytest.raises(ValueError, match="surrogates"), backend.session() as session:
        session.lock("/test/\udcff").acquire()
    assert not shared(session).keys


def test_a_ttl_beyond_etcds_is_refused(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """It is nothing that another try could mend."""
    with pytest.raises(ConfigurationError, match="ttl_s"):
        EtcdBackend([etcd.endpoint], ttl_s=1e15)
    for attempt in (backend.lock("/test/long", ttl_s=1e15).acquire, lambda: backend.session(ttl_s=1e15)):
        with pytest.raises(ValueError, match="ttl_s"):
            attempt()


def test_a_name_is_no_prefix_of_another(backend: EtcdBackend) -> None:
    """item/1 and item/10 are two locks."""
    with backend.lock("/test/item/1"), backend.lock("/test/item/10") as grant:
        assert grant.token > 0


@pytest.mark.slow
def test_many_wait_while_etcd_freezes() -> None:
    """Many threads wait while etcd is frozen again and again: neither they nor etcd are worse for it afterwards."""
    with EtcdMember(options=QUICK_ETCD) as member:
        backend = EtcdBackend([member.endpoint], ttl_s=10)
        over = threading.Event()
        served = [0] * 40

        def work(number: int) -> None:
            lock = backend.lock(f"/test/freeze/{number % 3}")
            while not over.is_set():
                with contextlib.suppress(LockUnavailable), lock:
                    served[number] += 1

        threads = [InThread(lambda number=number: work(number)) for number in range(40)]
        for round_ in range(2):
            before = sum(served)
            eventually(lambda before=before: sum(served) > before + 50, f"they are being served, round {round_}")
            member.pause()
            frozen = time.monotonic()
            eventually(lambda frozen=frozen: time.monotonic() > frozen + 2.5, "longer than a call may take")
            member.resume()
        over.set()
        for thread in threads:
            thread.result()
        assert member.running, member.last_lines()
        with backend.lock("/test/freeze/0"):
            pass
        backend.close()


def test_what_others_wrote_into_the_queue_does_no_harm(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """Keys under the prefix with any value and no lease are shown as what they are."""
    etcdctl(etcd.endpoint, "put", "/test/odd/x", "[1, 2")
    try:
        assert [(c.owner, c.ttl_left_s) for c in backend.lock("/test/odd").contenders()] == [({}, None)]
    finally:
        etcdctl(etcd.endpoint, "del", "/test/odd/x")


@pytest.mark.parametrize("further", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_one_of_three_members_dies(further: int, how: str) -> None:
    """The death (or freezing) of the member that is asked costs a retry, and another's nothing: holder, waiter and
    newcomer all succeed.
    """
    with EtcdCluster(3) as cluster:
        backend = EtcdBackend(cluster.endpoints, ttl_s=6)
        lock, other = backend.lock("/test/cluster"), backend.lock("/test/cluster")
        grant = lock.acquire()
        waiting = InThread(lambda: hold_and_release(other))
        eventually(lambda: len(lock.contenders()) == 2, "the waiter is in the queue")
        getattr(cluster.members[(of_threads(backend).client._current + further) % 3], how)()
        # Two renewals later the holder still has it.
        until = grant.deadline
        eventually(lambda: grant.deadline > until + 2, "the lease is being renewed")
        lock.release()
        assert waiting.result() > grant.token
        with lock as again:
            assert again.token > grant.token
        assert eventually(lambda: not lock.contenders(), "the queue is empty")
        backend.close()


@pytest.fixture
def only_watches_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second look each second: a waiter that gets the lock was told by its watch, or by the end of it."""
    monkeypatch.setattr(lookout, "_LOOK_AGAIN_S", 3600.0)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter looks by itself for a moment only: whatever it learns later a watch has told it."""
    monkeypatch.setattr(lookout, "_LOOK_AGAIN_S", 3600.0)
    monkeypatch.setattr(lookout, "_WATCH_IS_PROMPT_S", 0.0)


@pytest.mark.usefixtures("quiet")
def test_a_watch_is_kept_for_the_next_wait() -> None:
    """In a line of the same processes each waits for the same key each time, whose watch tells it each time."""
    with (
        EtcdMember(options=QUICK_ETCD) as member,
        closing(EtcdBackend([member.endpoint], ttl_s=TTL_S)) as ahead,
        closing(EtcdBackend([member.endpoint], ttl_s=TTL_S)) as behind,
    ):
        first, second = ahead.lock("/test/kept"), behind.lock("/test/kept")
        keys = set()
        for number in range(3):
            keys.add(first.acquire(owner="first").key)
            waiting = InThread(lambda: second.acquire(owner="second"))
            eventually(lambda: len(first.contenders()) == 2 and watchers(member) == 1, "it watches")
            first.release(owner="first")
            waiting.result()
            assert watchers(member) == 1, f"the one of round {number} is kept"
            second.release(owner="second")
        assert len(keys) == 1
        # Nobody waits, and the key comes and goes: that would be told for nothing, again and again.
        with first:
            pass
        eventually(lambda: watchers(member) == 0, "a watch that tells what nobody asked for is ended")
        with first:
            waiting = InThread(lambda: hold_and_release(second))
            eventually(lambda: len(first.contenders()) == 2 and watchers(member) == 1, "it watches anew")
        waiting.result()


def test_few_watches_are_kept() -> None:
    """A process that waits for many keys, once for each, does not watch them for ever."""
    with (
        EtcdMember(options=QUICK_ETCD) as member,
        closing(EtcdBackend([member.endpoint], ttl_s=TTL_S)) as ahead,
        closing(EtcdBackend([member.endpoint], ttl_s=TTL_S)) as behind,
    ):
        for number in range(watch._IDLE_MAX + 4):
            lock = behind.lock(f"/test/few/{number}")
            with ahead.lock(lock.name):
                waiting = InThread(lambda lock=lock: hold_and_release(lock))
                eventually(lambda lock=lock: len(lock.contenders()) == 2 and watchers(member) > 0, "it waits")
            waiting.result()
        eventually(lambda: watchers(member) <= watch._IDLE_MAX, "the oldest are ended")


@contextmanager
def a_broken_watch() -> Iterator[tuple[EtcdMember, Proxy, DistributedLock, Contender, InThread]]:
    """A holder, and a waiter whose path to etcd is cut. In the end it got the lock, and never lost its place."""
    with (
        EtcdMember(options=QUICK_ETCD) as member,
        Proxy(member.client_port) as proxy,
        closing(EtcdBackend([member.endpoint], ttl_s=60)) as direct,
        closing(EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=60)) as behind,
    ):
        holder, other = direct.lock("/test/cut"), behind.lock("/test/cut")
        grant = holder.acquire()
        waiting = InThread(lambda: hold_and_release(other))
        (place,) = eventually(lambda: holder.contenders()[1:], "the waiter is there")
        _until_settled(member)
        proxy.cut()
        eventually(lambda: watchers(member) == 0, "its watch is broken")
        yield member, proxy, holder, place, waiting
        assert waiting.result() == place.token > grant.token
        eventually(lambda: not EtcdSystem(member).leftovers(), "nothing is left on the server")


@pytest.mark.usefixtures("only_watches_tell")
def test_a_watch_made_anew_does_not_need_the_past() -> None:
    """The watch breaks, and what it began with is compacted: the new one is made, and tells of the release."""
    with a_broken_watch() as (member, proxy, holder, place, waiting):
        for number in range(200):
            key = base64.b64encode(f"/other/{number % 3}".encode()).decode()
            revision = gateway(member, "kv/put", key=key, value="")["header"]["revision"]
        etcdctl(member.endpoint, "compact", "--physical", revision)
        with pytest.raises(subprocess.CalledProcessError) as refusal:
            etcdctl(member.endpoint, "get", f"--rev={place.token + 1}", "/test/cut")
        assert "compacted" in refusal.value.stderr
        etcdctl(member.endpoint, "del", "--prefix", "/other/")
        assert waiting.thread.is_alive()
        proxy.restore()
        _until_settled(member)
        holder.release()


@pytest.mark.usefixtures("only_watches_tell")
@pytest.mark.parametrize("kind", [EtcdBackend, EtcdTxnBackend])
@pytest.mark.slow
def test_etcd_is_set_back(tmp_path: Path, kind: type[EtcdBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of a lock in an etcd that came back older has lost it, and nobody keeps what stands in the copy."""
    monkeypatch.setattr(shared_lease, "_IDLE_S", 60.0)  # the first one's lease is there all the while
    with EtcdMember() as member:
        one, two = (kind(member.endpoint, ttl_s=CALM_S, timeout_s=CALM_S) for _ in range(2))
        first, second = one.lock("/test/back"), two.lock("/test/back")
        first.acquire()
        waiting = InThread(lambda: second.acquire(owner="two"))
        if one.guarantees.shows_queue:
            eventually(lambda: len(first.contenders()) == 2, "the second one waits")
        member.kill()
        shutil.copytree(member.directory / "data", tmp_path / "data")
        member.start()
        first.release()  # its lease is kept for the next time
        grant = waiting.result()
        member.kill()
        shutil.rmtree(member.directory / "data")
        shutil.copytree(tmp_path / "data", member.directory / "data")
        member.start()
        found = None
        until = time.monotonic() + CALM_S / 2  # some renewals
        while found is None and time.monotonic() < until:
            believed = not grant.lost
            with suppress(LockUnavailable):
                found = first.try_acquire(owner="one")
            if one.guarantees.shows_queue:  # the copy knows that the second one came
                assert not (found and believed and not grant.lost), "two have the lock"
        if found is None:
            # In the copy the second one is the next in line: it has the lock there, too, or knows that it is lost.
            with suppress(LockLost):
                second.release(owner="two")
            first.acquire(owner="one", wait_s=WITHIN_S)
        else:
            eventually(lambda: grant.lost, "the second one finds out", CALM_S)
            with pytest.raises(LockLost):
                second.release(owner="two")
        first.release(owner="one")
        with one.session(ttl_s=3) as session, session.lock("/test/back"):
            pass
        one.close()
        two.close()


@pytest.mark.parametrize("released", ["while it is cut", "afterwards"])
def test_a_watch_that_breaks(released: str) -> None:
    """A waiter whose path to etcd is cut for a moment hears of a release in that moment, and of a later one."""
    with a_broken_watch() as (member, proxy, holder, place, waiting):
        if released == "while it is cut":
            holder.release()
            assert [contender.key for contender in holder.contenders()] == [place.key]
            assert waiting.thread.is_alive()
            proxy.restore()
        else:
            proxy.restore()
            _until_settled(member)
            assert waiting.thread.is_alive()
            holder.release()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_the_leader_is_lost_in_mid_hand_off(how: str) -> None:
    """The leader dies (or freezes) and at once the holder releases: the waiters get the lock in their order."""
    with EtcdCluster(3) as cluster, contextlib.ExitStack() as stack:
        first = eventually(lambda: [at for at in [leader(cluster)] if at is not None], "there is a leader")[0]
        backends = [EtcdBackend(cluster.endpoints, ttl_s=10) for _ in range(3)]
        for backend in backends:
            stack.callback(backend.close)
            of_threads(backend).client._current = first  # everybody asks the leader
        holder, *waiters = [backend.lock("/test/leader") for backend in backends]
        grant = holder.acquire()
        inside: list[int] = []
        served: list[tuple[int, int, list[int]]] = []

        def head(lock: DistributedLock) -> int:
            with contextlib.suppress(LockUnavailable):
                return lock.contenders()[0].token
            return 0

        def work(lock: DistributedLock) -> None:
            with lock as mine:
                inside.append(mine.token)
                first_in_line = eventually(lambda: head(lock), "etcd answers the holder")
                mine.ensure_held()
                served.append((mine.token, first_in_line, list(inside)))
                inside.remove(mine.token)

        threads = []
        for length, lock in enumerate(waiters, 2):
            threads.append(InThread(lambda lock=lock: work(lock)))
            eventually(lambda length=length: len(holder.contenders()) == length, "the waiter is in the queue")
        assert leader(cluster) == first
        places = [contender.token for contender in holder.contenders()]
        getattr(cluster.members[first], how)()
        holder.release()
        for thread in threads:
            thread.result()
        # With the places that they had, one at a time, and nobody before the key just ahead had gone.
        assert served == [(token, token, [token]) for token in places[1:]]
        assert grant.token == places[0] < places[1] < places[2]
        eventually(lambda: not holder.contenders(), "the queue is empty")
        if how == "pause":
            cluster.members[first].resume()
        with holder as again:
            assert again.token > places[2]


def test_a_connection_that_swallows_everything(etcd: EtcdMember) -> None:
    """It acknowledges bytes and never answers. Another one is made: in time for the holder, and for who comes next."""
    ttl_s = 5
    with (
        Proxy(etcd.client_port) as proxy,
        EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=ttl_s) as backend,
        backend.lock("/test/held") as held,
    ):
        renewed = held.deadline
        eventually(lambda: held.deadline > renewed, "the connection is used for nothing but renewals")
        proxy.swallow()
        assert _served_within(ttl_s + 2, backend)
        renewed = held.deadline
        eventually(lambda: held.lost or held.deadline > renewed, "it is renewed, or lost")
        assert not held.lost


@pytest.mark.slow
def test_a_close_while_etcd_is_silent(etcd: EtcdMember) -> None:
    """It does not wait for what is given back in the background, whose calls take as long as the TTL allows."""
    with Proxy(etcd.client_port) as proxy:
        backend = EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=3600)
        lock = backend.lock("/test/closed")
        lock.acquire()
        proxy.stall()
        lock.release()
        eventually(lambda: of_threads(backend).renewer._tasks, "it is being given back")
        closing_it = InThread(backend.close)
        eventually(lambda: not closing_it.thread.is_alive(), "it is closed")
    end_leases(etcd)


def test_a_member_that_swallows_everything() -> None:
    """If one of three members acknowledges bytes and never answers, even on new connections, the next one is asked."""
    ttl_s = 5
    with EtcdCluster(3) as cluster, contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(member.client_port)) for member in cluster.members]
        endpoints = [f"http://127.0.0.1:{proxy.port}" for proxy in proxies]
        backend = stack.enter_context(closing(EtcdBackend(endpoints, ttl_s=ttl_s)))
        with backend.lock("/test/held") as held:
            for _ in range(2):
                current = proxies[of_threads(backend).client._current]
                current.swallow(new_ones=True)
                assert _served_within(ttl_s + 2, backend)
                renewed = held.deadline
                eventually(lambda renewed=renewed: held.lost or held.deadline > renewed, "it is renewed, or lost")
                assert not held.lost
                current.restore()


@pytest.mark.slow
def test_a_path_that_drops_everything(tmp_path: Path) -> None:
    """Of two paths to etcd one drops all packets, and then the other one: the next path is taken each time."""
    ttl_s = 5
    with etcd_far_away(tmp_path) as (_, urls, drop), closing(EtcdBackend(urls, ttl_s=ttl_s)) as backend:
        of_threads(backend).client._current = 0
        with backend.lock("/test/held") as held:
            dropped = ""
            for url in [*urls, *urls]:
                assert _served_within(ttl_s + 2, backend)
                drop("add", url)
                if dropped:
                    drop("del", dropped)
                dropped = url
                assert _served_within(ttl_s + 2, backend)
                renewed = held.deadline
                eventually(lambda renewed=renewed: held.lost or held.deadline > renewed, "it is renewed, or lost")
                assert not held.lost


@pytest.mark.parametrize("marker", [b"/etcdserverpb.Lease/LeaseGrant", b"/etcdserverpb.KV/Txn"], ids=["grant", "put"])
def test_an_answer_that_was_lost_is_asked_for_again(etcd: EtcdMember, marker: bytes) -> None:
    """A grant or a put that was applied, but whose answer was lost, fails no acquire and leaves no second key."""
    with Proxy(etcd.client_port) as proxy:
        backend = EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=5)
        lock = backend.lock("/test/lost-answer")
        # gRPC names a method in full only the first time it is called on a connection, so this is the very first call.
        proxy.lose_answer_to(marker)
        acquiring = InThread(lambda: lock.acquire(owner="me"))
        assert proxy.struck.wait(WITHIN_S)
        proxy.restore()
        grant = acquiring.result()
        assert [contender.key for contender in lock.contenders()] == [grant.key]
        lock.release(owner="me")
        eventually(lambda: not EtcdSystem(etcd).leftovers(), "nothing is left on the server")
        backend.close()


def test_two_clusters_are_not_one() -> None:
    """Endpoints of two clusters are refused by every process that reaches both, whichever it asks first."""
    with EtcdMember(options=QUICK_ETCD) as ours, EtcdMember(options=QUICK_ETCD) as strange:
        ids = [f"{int(gateway(member, 'maintenance/status')['header']['cluster_id']):x}" for member in (ours, strange)]
        for first in (0, 1):
            with closing(EtcdBackend([ours.endpoint, strange.endpoint], ttl_s=3, timeout_s=1)) as backend:
                of_threads(backend).client._current = first
                for ask in (backend.lock("/test/two").acquire, lambda backend=backend: backend.ping(1)):
                    with pytest.raises(LockUnavailable, match=f"not one cluster.*{ids[0]}.*{ids[1]}"):
                        ask()
        for member in (ours, strange):
            assert etcdctl(member.endpoint, "get", "--prefix", "--keys-only", "/test/") == ""


@pytest.mark.slow
def test_a_cluster_that_was_not_there_at_first() -> None:
    """A cluster that answers later than the other is never asked for a lock."""
    with EtcdMember(options=QUICK_ETCD) as ours, EtcdMember(options=QUICK_ETCD) as strange:
        ids = [f"{int(gateway(member, 'maintenance/status')['header']['cluster_id']):x}" for member in (ours, strange)]
        with closing(EtcdBackend([ours.endpoint, strange.endpoint], ttl_s=3, timeout_s=1)) as backend:
            strange.pause()
            of_threads(backend).client._current = 0
            backend.lock("/test/two").acquire(owner="me")
            strange.resume()
            ours.pause()
            for _ in range(3):
                with pytest.raises(LockUnavailable, match=f"{ids[1]}.*{ids[0]}"):
                    backend.lock("/test/two").acquire(owner="somebody else", wait_s=0)
            with pytest.raises(LockUnavailable, match=f"{ids[1]}.*{ids[0]}"):
                backend.ping(1)
            ours.resume()
            eventually(lambda: not _ping_error(backend), "ours is asked again")
            with backend.lock("/test/another") as grant:
                assert grant.source == f"etcd:{ids[0]}"
            assert of_threads(backend).client._current == 0
        assert etcdctl(strange.endpoint, "get", "--prefix", "--keys-only", "/test/") == ""


def test_another_etcd_in_its_place() -> None:
    """A process doesn't follow when its only etcd is replaced by another one; one that starts then does."""
    with EtcdMember(options=QUICK_ETCD) as old:
        backend = EtcdBackend([old.endpoint], ttl_s=TTL_S)
        held = backend.lock("/test/replaced").acquire(owner="me")
    with EtcdMember(client_port=old.client_port, options=QUICK_ETCD) as new, closing(backend):
        eventually(lambda: "restart this process" in _ping_error(backend), "it says what to do")
        with pytest.raises(LockUnavailable, match="of another cluster"):
            backend.lock("/test/replaced").acquire(owner="me again")
        eventually(lambda: held.lost, "what was held is lost")
        with closing(EtcdBackend([new.endpoint], ttl_s=TTL_S)) as started, started.lock("/test/replaced") as grant:
            assert grant.source != held.source


@pytest.mark.slow
def test_an_etcd_without_space_is_not_ready() -> None:
    """Over its quota etcd answers reads and grants no lease: a ping says so, and is well when there is space again."""
    with (
        EtcdMember(options=[*QUICK_ETCD, f"--quota-backend-bytes={2**20}"]) as member,
        closing(EtcdBackend([member.endpoint], ttl_s=TTL_S)) as backend,
    ):
        backend.ping(WITHIN_S)
        key, value = (base64.b64encode(text).decode() for text in (b"/other", b"x" * 2**16))
        with pytest.raises(HTTPError, match="429"):  # etcd's "resource exhausted"
            for _ in range(100):
                revision = gateway(member, "kv/put", key=key, value=value)["header"]["revision"]
        with pytest.raises(LockUnavailable, match="space exceeded"):
            backend.lock("/test/full").acquire()
        eventually(lambda: _ping_error(backend), "what was true a moment ago is not any more")
        assert "space exceeded" in _ping_error(backend)
        # An operator does the same: docs/operations.md.
        etcdctl(member.endpoint, "compact", "--physical", revision)
        etcdctl(member.endpoint, "defrag")
        etcdctl(member.endpoint, "alarm", "disarm")
        backend.ping(WITHIN_S)
        with backend.lock("/test/full") as grant:
            assert grant.token > 0
        eventually(lambda: leases(member) == [], "no ping leaves a lease")


def test_a_refused_acquire_deletes_nothing(etcd: EtcdMember) -> None:
    """A deletion that is late would meet the next key of that name, which is a holder's by then."""
    with EtcdBackend([etcd.endpoint], ttl_s=CALM_S) as backend:
        with backend.lock("/test/refused"):
            (session,) = of_threads(backend)._sessions.values()
        before = deletions(etcd)
        alarm = {"memberID": gateway(etcd, "maintenance/status")["header"]["member_id"], "alarm": "NOSPACE"}
        gateway(etcd, "maintenance/alarm", action="ACTIVATE", **alarm)
        try:
            with pytest.raises(LockUnavailable, match="space exceeded"):
                backend.lock("/test/refused").acquire()
            eventually(lambda: not session.keys, "the attempt is over")
            assert deletions(etcd) == before
        finally:
            gateway(etcd, "maintenance/alarm", action="DEACTIVATE", **alarm)
        with backend.lock("/test/refused") as grant:
            assert session.lease.name.rpartition(" ")[2] in grant.key  # a refusal is no reason for another session


def test_login(tmp_path: Path) -> None:
    """With log-ins on: a user with rights on the prefix gets the lock, also after its token became void."""
    with EtcdMember(options=QUICK_ETCD) as member:
        end = member.endpoint
        etcdctl(end, "user", "add", "shop:open-door")
        etcdctl(end, "role", "add", "locks")
        etcdctl(end, "role", "grant-permission", "--prefix=true", "locks", "readwrite", "/test/")
        etcdctl(end, "user", "grant-role", "shop", "locks")
        ask_for_log_ins(end)
        with pytest.raises(LockUnavailable):
            _take_once(EtcdBackend([end], timeout_s=1))
        with pytest.raises(LockUnavailable, match="authentication failed") as refusal:
            _take_once(EtcdBackend([end], user="shop", password="wrong", timeout_s=1))
        assert "wrong" not in str(refusal.value)
        backend = EtcdBackend([end], user="shop", password="open-door", ttl_s=5)
        backend.ping(WITHIN_S)
        # Many at once log in once, not many times: etcd takes its time over a password.
        crowd = [InThread(lambda n=n: hold_and_release(backend.lock(f"/test/login/{n}"))) for n in range(8)]
        assert all(thread.result() > 0 for thread in crowd)
        lock = backend.lock("/test/login")
        lock.acquire()
        waiting = InThread(lambda: hold_and_release(lock))
        eventually(lambda: len(lock.contenders()) == 2, "the waiter is in the queue")
        # Every token becomes void; the watch that was made with one goes on, and the calls log in again.
        etcdctl(end, "--user=root:sesame", "user", "grant-role", "shop", "root")
        lock.release()
        assert waiting.result() > 0
        member.kill()  # etcd's simple tokens don't survive it
        member.start()
        with lock as grant:
            assert grant.token > 0
        backend.close()


@pytest.mark.slow
def test_a_change_of_users_voids_signed_tokens(tmp_path: Path) -> None:
    """A JWT has the revision of etcd's users in it. After any change of these etcd refuses it: log in again."""
    authority, key, certificate = trustme.CA(key_type=trustme.KeyType.RSA), tmp_path / "key.pem", tmp_path / "cert.pem"
    issued = authority.issue_cert("localhost", key_type=trustme.KeyType.RSA)
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    tokens = f"--auth-token=jwt,pub-key={certificate},priv-key={key},sign-method=RS256,ttl=10m"
    with EtcdMember(options=[*QUICK_ETCD, tokens]) as member:
        end = member.endpoint
        ask_for_log_ins(end)
        with closing(EtcdBackend([end], user="root", password="sesame", ttl_s=5)) as backend:
            lock = backend.lock("/test/signed")
            held = lock.acquire()
            first = InThread(lambda: hold_and_release(lock))
            eventually(lambda: len(lock.contenders()) == 2, "one waits")
            etcdctl(end, "--user=root:sesame", "user", "add", "somebody:else")
            backend.ping(1)  # at once, not at the end of the token's ten minutes
            second = InThread(lambda: hold_and_release(lock))
            eventually(lambda: len(lock.contenders()) == 3, "another one waits")
            renewed = held.deadline
            eventually(lambda: held.lost or held.deadline > renewed, "it is renewed, or lost")
            assert not held.lost
            etcdctl(end, "--user=root:sesame", "user", "delete", "somebody")
            lock.release()
            assert second.result() > first.result() > held.token


@pytest.mark.slow
def test_a_log_in_that_expires_while_one_waits() -> None:
    """A token that expired (etcd: 5 minutes; here 2 s) stops neither a waiter of that moment nor a later one."""
    with EtcdMember(options=["--auth-token-ttl=2"]) as member:
        end = member.endpoint
        ask_for_log_ins(end)
        backend = EtcdBackend([end], user="root", password="sesame", ttl_s=60)
        lock = backend.lock("/test/expiring")
        lock.acquire()
        first = InThread(lambda: hold_and_release(lock))
        eventually(lambda: len(lock.contenders()) == 2, "one waits")
        idle = time.monotonic()
        eventually(lambda: time.monotonic() > idle + 5, "longer than a token lives unused")
        second = InThread(lambda: hold_and_release(lock))
        eventually(lambda: len(lock.contenders()) == 3, "another one waits")
        lock.release()
        assert second.result() > first.result()
        backend.close()


def test_without_the_right_to_watch(backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch only makes it quicker: when etcd takes none, the lock changes hands all the same."""

    def refuse(*_: object, **__: object) -> None:
        raise LockUnavailable("no watches here")

    monkeypatch.setattr(WatchStream, "add", refuse)
    lock = backend.lock("/test/no-watch")
    lock.acquire()
    waiting = InThread(lambda: hold_and_release(lock))
    eventually(lambda: len(lock.contenders()) == 2, "one waits")
    lock.release()
    assert waiting.result() > 0


def test_tls(tmp_path: Path) -> None:
    """With TLS and client certificates: our certificate gets the lock, none gets an error."""
    authority = trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "server_cert", "server_key", "cert", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    for prefix, issued in (
        ("server_", authority.issue_cert("127.0.0.1")),
        ("", authority.issue_cert("shop@example.org")),
    ):
        issued.cert_chain_pems[0].write_to_path(str(files[f"{prefix}cert"]))
        issued.private_key_pem.write_to_path(str(files[f"{prefix}key"]))
    options = [
        f"--cert-file={files['server_cert']}",
        f"--key-file={files['server_key']}",
        f"--trusted-ca-file={files['ca']}",
        "--client-cert-auth",
    ]
    with EtcdMember(secure=True, options=options) as member:
        backend = EtcdBackend(
            [member.endpoint], timeout_s=10, ca_file=files["ca"], cert_file=files["cert"], key_file=files["key"]
        )
        _take_once(backend)
        with pytest.raises(LockUnavailable):
            _take_once(EtcdBackend([member.endpoint], timeout_s=1, ca_file=files["ca"]))
    with pytest.raises(ConfigurationError, match="cert file and a key file"):
        EtcdBackend([member.endpoint], cert_file=files["cert"])
    with pytest.raises(ConfigurationError, match="can't be read"):
        EtcdBackend([member.endpoint], ca_file=tmp_path / "missing.pem")


def test_certificates_are_replaced(tmp_path: Path) -> None:
    """By others of another authority, under the same names: a process goes on with them, and need not be restarted."""
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}

    def issue() -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(str(files["ca"]))
        issued.cert_chain_pems[0].write_to_path(str(files["cert"]))
        issued.private_key_pem.write_to_path(str(files["key"]))

    issue()
    options = [f"--cert-file={files['cert']}", f"--key-file={files['key']}"]
    with (
        EtcdMember(secure=True, options=options) as member,
        closing(EtcdBackend([member.endpoint], ttl_s=CALM_S, ca_file=files["ca"])) as backend,
    ):
        hold_and_release(backend.lock("/test/old"))
        member.kill()
        issue()
        member.start()

        def goes_on() -> bool:
            with suppress(LockUnavailable):
                return hold_and_release(backend.lock("/test/new")) > 0
            return False

        eventually(goes_on, "it goes on")


def test_a_login_while_authentication_is_off(tmp_path: Path) -> None:
    """Credentials may be rolled out before etcd asks for them, and etcd may stop asking for them at any moment."""
    with EtcdMember(options=QUICK_ETCD) as member:
        end = member.endpoint
        with closing(EtcdBackend([end], user="root", password="sesame", ttl_s=CALM_S)) as backend:
            lock = backend.lock("/test/off")
            hold_and_release(lock)
            ask_for_log_ins(end)
            hold_and_release(lock)
            with lock as grant:
                etcdctl(end, "--user=root:sesame", "auth", "disable")
                until = grant.deadline
                eventually(lambda: grant.deadline > until, "it is renewed")
            hold_and_release(lock)


@pytest.mark.slow
def test_behind_etcds_own_proxy(etcd: EtcdMember) -> None:
    """`etcd grpc-proxy` passes on what a session needs: what is held for longer than a TTL is not lost."""
    port = free_port()

    def argv(directory: Path) -> list[str]:
        ends = [f"--endpoints=127.0.0.1:{etcd.client_port}", f"--listen-addr=127.0.0.1:{port}"]
        return [str(etcd_binary()), "grpc-proxy", "start", *ends, f"--data-dir={directory}"]

    with (
        Process("grpc-proxy", argv, ready=lambda: not port_is_free(port)),
        closing(EtcdBackend([f"127.0.0.1:{port}"], ttl_s=3)) as backend,
    ):
        lock = backend.lock("/test/proxy")
        with lock as grant:
            waiting = InThread(lambda: hold_and_release(lock))
            eventually(lambda: len(lock.contenders()) == 2, "one waits")
            until = now() + 1.5 * grant.lease.ttl_s
            eventually(lambda: grant.lost or now() > until, "a TTL is over")
            grant.ensure_held()
        assert waiting.result() > grant.token


def test_a_proxy_for_the_web_is_not_asked(etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `http_proxy` says: no other lock's client asks it either."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with closing(EtcdBackend([etcd.endpoint], ttl_s=CALM_S)) as backend:
        assert hold_and_release(backend.lock("/test/direct")) > 0


@pytest.mark.parametrize("endpoint", ["ftp://host", "http://", "://", "http://h:port", "http://[", "http://u:p@h"])
def test_an_odd_endpoint_is_refused(endpoint: str) -> None:
    """A text that is no etcd URL is a configuration error, at once."""
    with pytest.raises(ConfigurationError, match="not an etcd endpoint"):
        EtcdBackend([endpoint])


def _until_settled(member: EtcdMember) -> None:
    """Wait until there is one watch, and its waiter doesn't look by itself any more."""
    eventually(lambda: watchers(member) == 1, "it watches")
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 5 * lookout._WATCH_IS_PROMPT_S, "it doesn't look any more")
    assert watchers(member) == 1


def _ping_error(backend: EtcdBackend) -> str:
    try:
        backend.ping(WITHIN_S)
    except LockUnavailable as error:
        return str(error)
    return ""


def _served_within(seconds: float, backend: EtcdBackend) -> bool:
    """Return whether somebody who comes now, and comes again after an error, has had a lock by then."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(LockUnavailable), backend.lock("/test/served"):
            return time.monotonic() < until
    return False


def _take_once(backend: EtcdBackend) -> None:
    try:
        with backend.lock("/test/once"):
            pass
    finally:
        backend.close()


def deletions(member: EtcdMember) -> int:
    """How often the server was asked to delete without a condition."""
    with urllib.request.urlopen(f"{member.endpoint}/metrics", timeout=5) as answer:
        metric = rb'^grpc_server_started_total{grpc_method="DeleteRange",.*} (\d+)$'
        found = re.search(metric, answer.read(), re.MULTILINE)
    return int(found[1]) if found else 0


def ask_for_log_ins(endpoint: str) -> None:
    """The root's password is "sesame"."""
    etcdctl(endpoint, "user", "add", "root:sesame")
    etcdctl(endpoint, "user", "grant-role", "root", "root")
    etcdctl(endpoint, "auth", "enable")


def _has(lock: DistributedLock, key: str) -> bool:
    return any(contender.key == key for contender in lock.contenders())


# -- sessions by default ---------------------------------------------------------------------------------------------


def test_locks_share_a_lease(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """All that a process has with one TTL is bound to one lease, by a key each, whose names come up again."""
    with backend.lock("/test/shared-a") as first, backend.lock("/test/shared-b") as second:
        lease = first.key.rpartition("/")[2]
        assert second.key == f"/test/shared-b/{lease}-1"
        assert len(leases(etcd)) == 1
    assert leases_in_use(etcd) == []
    with backend.lock("/test/shared-b") as third:
        assert third.key.rpartition("/")[2] in (lease, f"{lease}-1")
        assert third.token > second.token
        with backend.lock("/test/shared-a", ttl_s=CALM_S) as other:
            assert not other.key.rpartition("/")[2].startswith(lease)
            assert other.lease.ttl_s == CALM_S


@pytest.mark.parametrize("kind", [EtcdBackend, pytest.param(EtcdTxnBackend, marks=pytest.mark.slow)])
def test_many_grants_leave_nothing(etcd: EtcdMember, kind: type[EtcdBackend]) -> None:
    """After hundreds of them a process has as much to renew as after one, and etcd as many leases."""
    with closing(kind([etcd.endpoint], ttl_s=CALM_S)) as other:
        lock = other.lock("/test/many")
        for _ in range(300):
            with lock:
                pass
        (connection,) = other._connections.values()
        assert len(connection.renewer._jobs) == len(leases(etcd)) == 1
        assert etcdctl(etcd.endpoint, "get", "--prefix", "--keys-only", "/test/many").split() == []


@pytest.mark.parametrize("kind", [EtcdBackend, EtcdTxnBackend])
def test_a_key_that_is_written_over_is_deleted_all_the_same(etcd: EtcdMember, kind: type[EtcdBackend]) -> None:
    """The key is off its lease then: its owner deletes it when the loss is noticed and the lock released."""
    with closing(kind([etcd.endpoint], ttl_s=TTL_S)) as other:
        lock = other.lock("/test/over")
        grant = lock.acquire()
        etcdctl(etcd.endpoint, "put", grant.key, "mine")
        eventually(lambda: grant.lost, "it is noticed")
        with pytest.raises(LockLost):
            lock.release()
        with lock.holding(wait_s=WITHIN_S):
            pass


def test_a_key_of_another_at_the_same_revision(etcd: EtcdMember) -> None:
    """An etcd that was set back may give our key's revision to another one's key, which a release leaves alone."""
    with EtcdTxnBackend([etcd.endpoint], ttl_s=TTL_S) as backend:
        lock = backend.lock("/test/again")
        lock.acquire()
        etcdctl(etcd.endpoint, "put", "/test/again", "another's")
        of_threads(backend).client.era += 1
        with suppress(LockLost):
            lock.release()
        assert etcdctl(etcd.endpoint, "del", "/test/again").strip() == "1"


@pytest.mark.parametrize("kind", [EtcdBackend, EtcdTxnBackend])
def test_a_lost_answer_is_the_end_of_a_session(
    etcd: EtcdMember, kind: type[EtcdBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call on its way could make a key that nobody knows of: its session is ended, and the key with it."""
    with closing(kind([etcd.endpoint], ttl_s=CALM_S)) as other:
        client = of_threads(other).client
        txn = client.txn

        async def not_answered(*steps: Any, unanswered: Any = lambda: None, **more: Any) -> Any:
            await txn(*steps, unanswered=unanswered, **more)
            unanswered()
            raise LockUnavailable("no answer")

        monkeypatch.setattr(client, "txn", not_answered)
        with pytest.raises(LockUnavailable):
            other.lock("/test/open").acquire()
        monkeypatch.setattr(client, "txn", txn)
        eventually(lambda: leases(etcd) == [], "key and lease are gone", CALM_S / 4)
        with other.lock("/test/open"):
            pass


def test_a_creation_that_arrives_while_one_waits_is_no_other_owner(etcd: EtcdMember) -> None:
    """A try that was given up creates the key after the holder's release: the waiter finds it, and has the lock."""
    with EtcdTxnBackend([etcd.endpoint], ttl_s=CALM_S) as backend, Proxy(etcd.client_port) as proxy:
        lock, other = backend.lock("/test/own"), EtcdTxnBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=CALM_S)
        lock.acquire()
        waiting = InThread(lambda: hold_and_release(other.lock("/test/own")))
        (session,) = eventually(lambda: list(of_threads(other)._sessions.values()), "it has a session")
        (key,) = eventually(lambda: list(session.keys), "it has tried")
        eventually(lambda: watchers(etcd), "it waits")
        proxy.stall()
        lock.release()
        etcdctl(etcd.endpoint, "put", f"--lease={session.lease_id:x}", key.name, key.value.decode())
        proxy.restore()
        waiting.result()
        assert lock.contenders() == []
        other.close()


def test_idle_leases_are_given_back(etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is kept, and not for long: a process that takes no locks any more has no leases."""
    monkeypatch.setattr(shared_lease, "_IDLE_S", 0.5)
    other = EtcdBackend([etcd.endpoint], ttl_s=TTL_S)
    locks = [other.lock(f"/test/idle-{number}") for number in range(20)]
    for lock in locks:
        lock.acquire()
    for lock in locks:
        lock.release()
    assert len(leases(etcd)) == 1
    eventually(lambda: leases(etcd) == [], "nobody needs them")
    with locks[0]:
        pass
    other.close()
    assert leases(etcd) == []

"""Elections: who leads, what it says, and who hears it; etcd's own client stands in the same line."""

import asyncio
import contextlib
import os
import queue
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from fencelock import (
    Cancel,
    Hook,
    LockBackend,
    LockCancelled,
    LockError,
    LockLost,
    LockTimeout,
    LockUnavailable,
    portal,
)
from fencelock.election import Election, Leader
from fencelock.etcd import lookout
from fencelock.etcd.backend import EtcdBackend
from fencelock.etcd.client import EtcdClient
from fencelock.local import LocalBackend
from fencelock.mysql import MySqlClient
from fencelock.postgres import election as postgres_election
from fencelock.postgres.client import PostgresClient
from fencelock.redis import client as redis_client
from fencelock.redis import election as redis_election
from fencelock.redis.backend import RedisBackend
from fencelock.redis.client import RedisClient
from fencelock.redis.fair import RedisFairBackend
from fencelock.zookeeper.session import ZooKeeperSession
from lab.servers import EtcdMember, MariaDB, Postgres, Valkey, ZooKeeper, etcd_binary
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import CALM_S, TTL_S, InThread, LockSystem, by_day
from tests.contract.test_etcd_lock import EtcdSystem
from tests.contract.test_file_lock import FileSystem
from tests.contract.test_memory_lock import MemorySystem
from tests.contract.test_mysql_locks import ForUpdateSystem, RowSystem
from tests.contract.test_postgres_lock import PostgresSystem
from tests.contract.test_redis_locks import RedisSystem
from tests.contract.test_zookeeper_lock import ZooKeeperSystem
from tests.harness.forked import Forked
from tests.harness.servers import QUICK_ETCD, ask, end_leases, etcdctl, optional, watchers
from tests.harness.waiting import WITHIN_S, eventually

NAME = "/test/leader"


@pytest.fixture
def backend(etcd: EtcdMember) -> Iterator[EtcdBackend]:
    """A connection; at its end nothing is left on the server."""
    end_leases(etcd)
    with EtcdBackend([etcd.endpoint], ttl_s=CALM_S) as backend:
        yield backend
        eventually(lambda: not EtcdSystem(etcd).leftovers(), "nothing is left on the server")


@pytest.fixture
def fair_redis(valkey: Valkey) -> Iterator[RedisFairBackend]:
    """The same in Redis."""
    with RedisFairBackend(valkey.url, ttl_s=CALM_S) as backend:
        yield backend
        left = RedisSystem(valkey, RedisFairBackend).leftovers
        eventually(lambda: not [key for key in left() if not key.endswith("!record")], "nothing is left on the server")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with optional(Postgres) as server:
        yield server


@pytest.fixture
def etcds_election(backend: EtcdBackend) -> Election:
    return backend.election(NAME)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with optional(ZooKeeper) as server:
        yield server


SYSTEMS = ["etcd", "redis-fair", "redis", "zookeeper", "postgres", "mysql-row", "mysql-for-update", "memory", "file"]


@pytest.fixture(params=by_day(SYSTEMS))
def system(request: pytest.FixtureRequest) -> Iterator[LockSystem]:
    """Each system that has elections, which has nothing of a test afterwards but what was written down for good."""
    value: Any = request.getfixturevalue
    match request.param:
        case "etcd":
            end_leases(value("etcd"))
            system: LockSystem = EtcdSystem(value("etcd"))
        case "redis-fair":
            system = RedisSystem(value("valkey"), RedisFairBackend)
        case "redis":
            system = RedisSystem(value("valkey"), RedisBackend)
        case "zookeeper":
            client = KazooClient(hosts=value("zookeeper").hosts)
            client.start(timeout=WITHIN_S)
            request.addfinalizer(lambda: (client.stop(), client.close()))
            system = ZooKeeperSystem(value("zookeeper"), client)
        case "postgres":
            system = PostgresSystem(value("postgres"))
        case "mysql-row":
            system = RowSystem(value("mariadb_server"))
        case "memory":
            system = MemorySystem()
        case "file":
            system = FileSystem(value("tmp_path") / "locks")
        case _:
            system = ForUpdateSystem(value("mariadb_server"))
    yield system
    eventually(lambda: not [one for one in system.leftovers() if not one.endswith("record")], "nothing is left")


@pytest.fixture
def any_backend(system: LockSystem) -> Iterator[LockBackend]:
    with system.open(CALM_S) as backend:
        yield backend


@pytest.fixture
def name() -> str:
    """Its records are for good: no other test has that name."""
    return f"/test/leader-{uuid.uuid4().hex}"


@pytest.fixture
def election(any_backend: LockBackend, name: str) -> Election:
    return any_backend.election(name)


class Observer:
    """Observes in a thread of its own; `heard` has the values in their order, None for "nobody"."""

    def __init__(self, election: Election) -> None:
        self.cancel = Cancel()
        self.heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = InThread(lambda: self._observe(election))

    def _observe(self, election: Election) -> None:
        for leader in election.observe(cancel=self.cancel):
            self.heard.put(leader.value if leader else None)

    def hear(self) -> str | None:
        """Wait for the next value."""
        return self.heard.get(timeout=WITHIN_S)

    def stop(self) -> None:
        self.cancel.set()
        self._thread.result()


def queued(election: Election, number: int, backend: LockBackend | None = None) -> None:
    """Wait for so many candidates, as far as the backend shows them."""
    seen = number if backend is None or backend.guarantees.shows_queue else min(number, 1)
    eventually(lambda: len(election.candidates()) == seen, f"{seen} candidates")


def test_the_first_leads_and_the_next_follows(any_backend: LockBackend, election: Election) -> None:
    """The first candidate leads; when it resigns, the next one does, with a greater token: the second, where fair."""
    assert election.leader() is None
    first = election.campaign("first")
    seen = election.leader()
    assert seen == Leader(first.key, "first", first.token, first.token)
    later = [InThread(lambda: election.campaign("second"))]
    queued(election, 2, any_backend)
    later.append(InThread(lambda: election.campaign("third")))
    queued(election, 3, any_backend)
    first.resign()
    (winner,) = eventually(lambda: [one for one in later if not one.thread.is_alive()], "the next one leads")
    later.remove(winner)
    leading = winner.result()
    assert leading.token > first.token
    assert later[0].thread.is_alive()
    seen = election.leader()
    assert seen is not None
    assert (seen.key, seen.token) == (leading.key, leading.token)
    if any_backend.guarantees.fair:
        assert seen.value == "second"
    leading.resign()
    last = later[0].result()
    assert last.token > leading.token
    last.resign()
    assert election.leader() is None


@pytest.mark.slow
def test_a_hook_hears_of_terms_as_it_does_of_locks(system: LockSystem, name: str) -> None:
    """Of each grant, wait in vain and end of one, once; and of a loss with its reason."""
    told: list[tuple[str, str, object]] = []

    class Told(Hook):
        def granted(self, name: str, token: int, waited_s: float) -> None:
            told.append(("granted", name, token))

        def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
            told.append(("not granted", name, type(error)))

        def released(self, name: str, token: int, held_s: float) -> None:
            told.append(("released", name, token))

        def lost(self, name: str, token: int, reason: str) -> None:
            told.append(("lost", name, reason))

    with system.open(CALM_S, renew_ratio=0.01, hook=Told()) as backend:
        with backend.leading(name, "me") as term:
            with pytest.raises(LockTimeout):
                backend.election(name).campaign("other", wait_s=0)
            token = term.token
        assert told == [("granted", name, token), ("not granted", name, LockTimeout), ("released", name, token)]
        told.clear()
        with pytest.raises(LockLost), backend.leading(name, "me") as term:
            system.end_lease(term)
            eventually(lambda: term.lost, "it is lost")
            eventually(lambda: told[1:], "the hook hears of it")
        assert told[1:] == [("lost", name, term.lease.reason), ("released", name, term.token)]


def test_what_is_proclaimed_is_heard(election: Election, monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer is told who leads now, what it says then, that nobody leads, and who is next."""
    monkeypatch.setattr(lookout, "_LOOK_AGAIN_S", 600)  # told, not found out by looking
    monkeypatch.setattr(redis_election, "_LOOK_AGAIN_S", 600)
    monkeypatch.setattr(postgres_election, "_LOOK_AGAIN_S", 600)
    observer = Observer(election)
    assert observer.hear() is None
    with election.campaign("one") as leadership:
        assert observer.hear() == "one"
        leadership.proclaim("two")
        assert observer.hear() == "two"
        leadership.proclaim("two")  # once more is news, too: it says that it is still there
        assert observer.hear() == "two"
    assert observer.hear() is None
    with election.campaign("three"):
        assert observer.hear() == "three"
    assert observer.hear() is None
    observer.stop()


def test_an_observer_in_redis_hears_again_after_a_cut(
    valkey: Valkey, fair_redis: RedisFairBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is made anew, and what was said meanwhile is not missed."""
    monkeypatch.setattr(redis_election, "_LOOK_AGAIN_S", 600)
    election = fair_redis.election(NAME)
    observer = Observer(election)
    assert observer.hear() is None
    with election.campaign("one") as leadership:
        assert observer.hear() == "one"
        valkey.ask("CLIENT", "KILL", "TYPE", "pubsub")
        leadership.proclaim("two")
        assert observer.hear() == "two"
        leadership.proclaim("three")
        assert observer.hear() == "three"
    assert observer.hear() is None
    observer.stop()


def test_a_campaign_that_is_called_off_leaves_nothing(any_backend: LockBackend, election: Election) -> None:
    """Nothing of it stays in the queue, neither after its time is over nor after it was cancelled."""
    with election.campaign("me"):
        with pytest.raises(LockTimeout):
            election.campaign("other", wait_s=0)
        cancel = Cancel()
        other = InThread(lambda: election.campaign("other", cancel=cancel))
        queued(election, 2, any_backend)
        cancel.set()
        with pytest.raises(LockCancelled):
            other.result()
        queued(election, 1)


def test_a_key_that_was_made_anew_is_not_ours(etcd: EtcdMember, etcds_election: Election) -> None:
    """Somebody else's key of the same name is not written over; a callback that hears of the loss may proclaim, too."""
    election = etcds_election
    leadership = election.campaign("first")
    heard: list[bool] = []

    def protest() -> None:
        with contextlib.suppress(LockLost):
            leadership.proclaim("I protest")
        heard.append(True)

    leadership.on_lost(protest)
    etcdctl(etcd.endpoint, "del", leadership.key)
    etcdctl(etcd.endpoint, "put", leadership.key, "somebody else's")
    proclaiming = InThread(lambda: leadership.proclaim("I still lead"))
    with pytest.raises(LockLost):
        proclaiming.result()
    assert heard == [True]
    seen = election.leader()
    assert seen is not None
    assert seen.value == "somebody else's"
    etcdctl(etcd.endpoint, "del", leadership.key)
    leadership.resign()


def test_a_proclamation_whose_answer_was_lost(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """The proclamation counts once, and the next one counts after it."""
    with Proxy(etcd.client_port) as proxy:
        behind = EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=60, timeout_s=1)
        with behind.election(NAME).campaign("one") as leadership:
            proxy.lose_answer_to(b"second speech")
            proclaiming = InThread(lambda: leadership.proclaim("second speech"))
            assert proxy.struck.wait(WITHIN_S)
            proxy.restore()
            with contextlib.suppress(LockUnavailable):  # then it is not known
                proclaiming.result()
            leader = backend.election(NAME).leader()
            assert leader is not None
            assert leader.value == "second speech"
            leadership.proclaim("third")
            leader = backend.election(NAME).leader()
            assert leader is not None
            assert leader.value == "third"
        behind.close()


# -- what outlasts a leadership --------------------------------------------------------------------------------------


@pytest.fixture
def written(etcd: EtcdMember) -> Iterator[None]:
    """Records are for good: those of a test are removed by hand."""
    yield
    etcdctl(etcd.endpoint, "del", f"{NAME}!record")


def test_a_child_that_is_forked_observes_nothing(valkey: Valkey, fair_redis: RedisFairBackend) -> None:
    """What it inherits is its parent's, who goes on to hear."""

    def listening() -> Any:
        return valkey.ask("PUBSUB", "NUMPAT")

    observing = fair_redis.election(NAME).observe()
    assert next(observing) is None
    eventually(lambda: listening() == 1, "it listens")

    def in_child(_: Any) -> list[Any]:
        rest = list(observing)
        portal.run(asyncio.sleep(2 * redis_client._KEEP_S))  # after which nobody would listen any more
        return rest

    assert Forked(in_child).result() == []
    assert listening() == 1
    observing.close()


def test_a_record_outlasts_its_leader(system: LockSystem, election: Election, name: str) -> None:
    """All can read it, also when nobody leads any more; the next leader writes in its place."""
    assert election.recorded() is None
    with election.campaign("first") as first:
        first.record("one")
        first.record("two")
        assert election.recorded() == "two"
    assert election.leader() is None
    # No lease ends it: even a new connection finds it.
    with system.open(CALM_S) as newcomer:
        assert newcomer.election(name).recorded() == "two"
    with election.campaign("second") as second:
        assert election.recorded() == "two"
        second.record("three")
    assert election.recorded() == "three"


def test_a_record_is_no_candidate_and_no_proclamation(election: Election) -> None:
    """It stands beside the queue: candidates, leader and observers don't see it."""
    with election.campaign("first") as leadership:
        leadership.record("what was written")
        assert [one.key for one in election.candidates()] == [leadership.key]
        seen = election.leader()
        assert seen is not None
        assert seen.value == "first"
        observer = Observer(election)
        assert observer.hear() == "first"
        leadership.record("and more")
        leadership.proclaim("second")
        assert observer.hear() == "second"
    observer.stop()
    assert election.leader() is None


def test_one_that_lost_the_lead_can_say_and_record_no_more(
    system: LockSystem, any_backend: LockBackend, election: Election
) -> None:
    """It hears that it leads no more, and what its successor has said and written down stands."""
    first = election.campaign("first")
    first.record("of the first")
    second = InThread(lambda: election.campaign("second"))
    queued(election, 2, any_backend)
    system.delete_key(first.key)
    leadership = second.result()
    leadership.record("of the second")
    for speak in (first.proclaim, first.record, first.proclaim):
        with pytest.raises(LockLost):
            speak("I still lead")
        assert first.lost
    seen = election.leader()
    assert seen is not None
    assert (seen.value, seen.token) == ("second", leadership.token)
    first.resign()  # not the successor's
    assert election.leader() == seen
    leadership.resign()
    with pytest.raises(LockLost):
        leadership.record("I resigned")
    assert election.recorded() == "of the second"


@pytest.mark.usefixtures("written")
def test_a_record_that_arrives_too_late_is_refused(etcd: EtcdMember, etcds_election: Election) -> None:
    """A leader's last word is on its way until another one leads and has written: it is not written over that."""
    election = etcds_election
    with Proxy(etcd.client_port) as path:
        behind = EtcdBackend([f"http://127.0.0.1:{path.port}"], ttl_s=TTL_S, timeout_s=60)
        first = behind.election(NAME).campaign("first")
        path.stall_at(b"too late")
        recording = InThread(lambda: first.record("too late"))
        assert path.struck.wait(WITHIN_S)
        with election.campaign("second", wait_s=TTL_S + WITHIN_S) as second:
            second.record("in time")
            path.restore()
            with pytest.raises(LockLost):
                recording.result()
            assert election.recorded() == "in time"
        behind.close()


SENDS: dict[str, tuple[type, str]] = {
    "etcd": (EtcdClient, "_call"),
    "redis-fair": (RedisClient, "_send"),
    "redis": (RedisClient, "_send"),
    "zookeeper": (ZooKeeperSession, "write"),
    "postgres": (PostgresClient, "ask"),
    "mysql-row": (MySqlClient, "ask"),
    "mysql-for-update": (MySqlClient, "ask"),
}


@pytest.mark.parametrize("system", SENDS, indirect=True)
def test_an_older_word_that_arrives_again_changes_nothing(
    any_backend: LockBackend, election: Election, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader's call that it gave up, or a repetition, comes behind its later one: the later one stands."""
    client, method = SENDS[any_backend.name]
    send: Any = getattr(client, method)
    calls: list[tuple[Any, ...]] = []

    async def noted(*words: Any, **more: Any) -> Any:
        calls.append(words)
        return await send(*words, **more)

    with election.campaign("first") as leadership:
        monkeypatch.setattr(client, method, noted)
        leadership.record("older")
        leadership.proclaim("older")
        older = [words for words in calls if "older" in str(words)]
        leadership.record("newer")
        leadership.proclaim("newer")
        for words in older:
            portal.run(send(*words))
        assert election.recorded() == "newer"
        seen = election.leader()
        assert seen is not None
        assert seen.value == "newer"
    with election.campaign("second") as second:
        second.record("by the next one")
        assert election.recorded() == "by the next one"


# -- etcd itself -----------------------------------------------------------------------------------------------------


def test_a_restart_costs_no_word() -> None:
    """While the server is away nothing is read or written; when it is back, what was recorded is there, and observers
    hear what is proclaimed then.
    """
    with (
        EtcdMember(options=QUICK_ETCD) as member,
        contextlib.closing(EtcdBackend([member.endpoint], ttl_s=30, timeout_s=1)) as backend,
    ):
        election = backend.election(NAME)
        with election.campaign("before") as leadership:
            leadership.record("before")
            observer = Observer(election)
            assert observer.hear() == "before"
            member.kill()
            for ask_it in (election.recorded, lambda: leadership.record("meanwhile")):
                with pytest.raises(LockUnavailable):
                    ask_it()
            member.start()

            def recorded() -> str | None:
                with contextlib.suppress(LockUnavailable):
                    return election.recorded()
                return None

            assert eventually(recorded, "the server answers again") == "before"
            leadership.proclaim("after")
            assert observer.hear() == "after"
            observer.stop()
            leadership.record("after")
            assert election.recorded() == "after"


def test_observing_ends_with_the_connection(etcd: EtcdMember) -> None:
    """When the connection is closed, or it is called off, the observer ends and leaves no watch behind."""
    before = watchers(etcd)
    backend = EtcdBackend([etcd.endpoint], ttl_s=TTL_S)
    observer = Observer(backend.election(NAME))
    assert observer.hear() is None
    assert watchers(etcd) > before
    observer.stop()
    eventually(lambda: watchers(etcd) == before, "no watch is left")
    observer = Observer(backend.election(NAME))
    assert observer.hear() is None
    backend.close()
    observer._thread.result()
    eventually(lambda: watchers(etcd) == before, "no watch is left")


def test_etcds_own_client_stands_in_the_line(etcd: EtcdMember, etcds_election: Election) -> None:
    """`etcdctl elect` waits behind us, leads after us, and we wait behind it; each sees who leads."""
    election = etcds_election
    ours = election.campaign("ours")
    listening = etcdctl(etcd.endpoint, "get", "--prefix", "--print-value-only", f"{NAME}/")
    assert listening.strip() == "ours"
    theirs = subprocess.Popen(
        [etcd_binary("etcdctl"), f"--endpoints={etcd.endpoint}", "elect", NAME, "theirs"],
        env=os.environ | {"ETCDCTL_API": "3"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        queued(election, 2)
        next_of_ours = InThread(lambda: election.campaign("ours again"))
        queued(election, 3)
        ours.resign()
        assert theirs.stdout is not None
        key = theirs.stdout.readline().strip()
        assert key.startswith(f"{NAME}/")
        seen = election.leader()
        assert seen is not None
        assert seen.value == "theirs"
        assert next_of_ours.thread.is_alive()
    finally:
        theirs.terminate()
        theirs.communicate(timeout=WITHIN_S)
    next_of_ours.result().resign()
    etcdctl(etcd.endpoint, "lease", "revoke", key.removeprefix(f"{NAME}/"))  # it resigns, but leaves that behind


@pytest.mark.parametrize("name", ["", "/ends/", 5, None, b"/bytes"])
def test_an_odd_name_is_refused(backend: EtcdBackend, name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        backend.election(name)
    with pytest.raises(ValueError, match="name"):
        backend.lock(name)


def test_a_leader_of_redis_that_dies_is_succeeded(valkey: Valkey, fair_redis: RedisFairBackend) -> None:
    """A TTL after the leader's last sign of life the next candidate leads, and observers hear of it."""
    election = fair_redis.election(NAME)
    with Proxy(valkey.port) as path:
        dying = RedisFairBackend(f"redis://127.0.0.1:{path.port}", ttl_s=TTL_S, timeout_s=0.5)
        leadership = dying.election(NAME).campaign("first")
        observer = Observer(election)
        assert observer.hear() == "first"
        path.stall()
        with election.campaign("second", wait_s=TTL_S + WITHIN_S) as second:
            assert leadership.lost
            assert second.token > leadership.token
            said = [observer.hear()]
            assert said == ["second"] or [*said, observer.hear()] == [None, "second"]
        observer.stop()
        path.restore()
        dying.close()


async def test_not_every_backend_has_elections_and_sessions() -> None:
    async with LocalBackend().aio as locks:
        assert not locks.backend.guarantees.elects
        with pytest.raises(LockError, match="local has no elections"):
            locks.election(NAME)
        with pytest.raises(LockError, match="local has no sessions"):
            async with locks.session():
                pass


def test_a_word_that_a_counter_set_back_would_lose_is_refused(mariadb: MariaDB, name: str) -> None:
    """In MySQL words are numbered by the counter of the tokens: none is told to be written that is not."""
    with RowSystem(mariadb).open(CALM_S) as backend:
        election = backend.election(name)
        with election.campaign("first") as leadership:
            leadership.record("one")
            ask(mariadb, "UPDATE fencelock_tokens SET token = token - 1")
            with pytest.raises(LockLost):
                leadership.record("two")
        assert election.recorded() == "one"

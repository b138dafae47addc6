"""The ZooKeeper lock keeps the contract; and what is ZooKeeper's alone: Curator in the queue, a session for all."""

import asyncio
import contextlib
import re
import select
import selectors
import shutil
import socket
import struct
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.serialization import Close, Connect
from kazoo.security import make_acl, make_digest_acl

from fencelock import DistributedLock, Grant, LockLost, LockTimeout, LockUnavailable, connect, portal
from fencelock.clock import now
from fencelock.errors import ConfigurationError
from fencelock.zookeeper import lock as zookeeper
from fencelock.zookeeper import session as zookeeper_session
from fencelock.zookeeper.lock import ZooKeeperBackend
from lab.servers import ZooKeeper
from lab.servers.process import free_port
from lab.servers.zookeeper import zookeeper_classpath
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import TTL_S, InThread, LockContract, LockSystem, hold_and_release
from tests.harness.inside import of_threads
from tests.harness.servers import connections, optional
from tests.harness.waiting import WITHIN_S, eventually, eventually_async

pytestmark = pytest.mark.slow


@contextmanager
def raw(server: ZooKeeper, **options: Any) -> Iterator[KazooClient]:
    """kazoo's own client."""
    client = KazooClient(hosts=",".join([server.hosts] * 4), **options)
    client.start(timeout=10)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def close_session(server: ZooKeeper, client_id: tuple[int, bytes]) -> None:
    """As anybody can who knows its password."""
    # Both at once: when its owner sees the end of its connection it comes back, and ours would be ended by that.
    messages = [Connect(0, 0, 10_000, *client_id, False).serialize(), struct.pack(">ii", 1, Close.type)]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"".join(struct.pack(">i", len(message)) + message for message in messages))
        while connection.recv(1024):
            pass


def client_id(backend: ZooKeeperBackend) -> tuple[int, bytes] | None:
    """Its session, and the password of that."""
    session = of_threads(backend).client._session
    return None if session is None else session.id


def sessions_of(backend: ZooKeeperBackend) -> list[zookeeper_session.ZooKeeperSession]:
    """Return the sessions of all loops, including the threads' loop."""
    clients = [client for one in backend._connections.values() for client in (one.client, *one._others.values())]  # type: ignore[attr-defined]
    return [client._session for client in clients if client._session is not None]


def end(session: zookeeper_session.ZooKeeperSession) -> None:
    """On its loop."""
    session._loop.call_soon_threadsafe(session.end, "it is over")
    eventually(lambda: session.over is not None, "it is over")


class ZooKeeperSystem(LockSystem):
    backend = "fencelock.zookeeper.lock:ZooKeeperBackend"
    ttl_s = 1  # of a session, whose grain is a tick of 0.2 s

    def __init__(self, server: ZooKeeper, client: KazooClient) -> None:
        self.server = server
        self._client = client
        self._opened: weakref.WeakSet[ZooKeeperBackend] = weakref.WeakSet()

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"hosts": self.server.hosts, "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> ZooKeeperBackend:
        backend = ZooKeeperBackend(**self.options(ttl_s), **more)
        self._opened.add(backend)
        return backend

    def delete_key(self, key: str) -> None:
        self._client.delete(key)

    def end_lease(self, grant: Grant) -> None:
        session = self._client.exists(grant.key).ephemeralOwner
        ids = dict(each.id for backend in self._opened for each in sessions_of(backend) if each.id is not None)
        close_session(self.server, (session, ids[session]))

    def leftovers(self) -> list[str]:
        return below(self._client, "/test")


def below(client: KazooClient, path: str) -> list[str]:
    """Ephemeral nodes, and texts; folders stay for a while."""
    try:
        data, stat = client.get(path)
        here = [path] if stat.ephemeralOwner or data else []
        return here + [left for name in client.get_children(path) for left in below(client, f"{path}/{name}")]
    except NoNodeError:
        return []


def leftovers(server: ZooKeeper) -> list[str]:
    """List what is on the server."""
    with raw(server) as client:
        return below(client, "/test")


def lasting(server: ZooKeeper) -> str:
    """The name of a new lock whose nodes can be counted by their numbers.

    Its folder is there already and stays: the server removes a container that it finds empty, and the next one begins
    with 0.
    """
    name = f"/test/{uuid.uuid4()}"
    with raw(server) as client:
        client.create(name, makepath=True)
    return name


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    with optional(ZooKeeper) as server:
        yield server


class TestZooKeeperLock(LockContract):
    guarantees = ZooKeeperBackend.guarantees

    @pytest.fixture
    def system(self, server: ZooKeeper) -> Iterator[LockSystem]:
        with raw(server) as client:
            yield ZooKeeperSystem(server, client)


@pytest.fixture
def backend(server: ZooKeeper) -> Iterator[ZooKeeperBackend]:
    backend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S, instance="test")
    yield backend
    backend.close()


@pytest.fixture
def only_watches_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second look after a while: a waiter that gets the lock was told by its watch, or by the end of it."""
    monkeypatch.setattr(zookeeper, "_LOOK_AGAIN_S", 3600.0)


def queue_up(client: KazooClient, name: str) -> str:
    """A contender as Curator's InterProcessMutex makes it; the path of its node."""
    data = b"127.0.0.1"
    path = client.create(f"{name}/_c_{uuid.uuid4()}-lock-", data, ephemeral=True, sequence=True, makepath=True)
    return str(path)


def keys(lock: DistributedLock) -> list[str]:
    return [contender.key for contender in lock.contenders()]


# -- Curator -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_watches_tell")
def test_curator_and_we_stand_in_one_queue(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """We wait for a contender of Curator's that came before us, and one that came after us is just behind us."""
    name = f"/test/{uuid.uuid4().hex}"
    lock = backend.lock(name)
    with raw(server) as curator:
        theirs = queue_up(curator, name)
        assert lock.try_acquire() is None
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: len(lock.contenders()) == 2, "we are in the queue")
        after = queue_up(curator, name)
        queue = lock.contenders()
        assert [queue[0].key, queue[2].key] == [theirs, after]
        assert re.fullmatch(rf"{name}/_c_[0-9a-f-]{{36}}-lock-\d{{10}}", queue[1].key)
        assert [one.holds for one in queue] == [True, False, False]
        assert [one.owner for one in (queue[0], queue[2])] == [{}, {}]
        assert waiting.thread.is_alive()
        # Curator watches whom it finds just ahead, by these names.
        gone = threading.Event()
        order = sorted(curator.get_children(name), key=lambda child: child.rpartition("lock-")[2])
        assert order.index(after.rpartition("/")[2]) == 2
        curator.get(f"{name}/{order[1]}", watch=lambda event: gone.set())
        curator.delete(theirs)
        grant = waiting.result()
        assert grant.key == f"{name}/{order[1]}"
        assert not gone.is_set()
        lock.release(owner="me")
        assert gone.wait(WITHIN_S)
        assert keys(lock) == [after]


def test_a_container_that_vanished_is_made_anew(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """The server removes Curator's containers when they are empty: numbers begin anew, tokens go on."""
    name = f"/test/{uuid.uuid4().hex}"
    lock = backend.lock(name)
    grants = []
    for _ in range(2):
        with lock as grant:
            grants.append(grant)
        with raw(server) as client:
            client.delete(name)
    with lock as grant:
        grants.append(grant)
    assert {grant.key.rpartition("-")[2] for grant in grants} == {"0000000000"}
    assert grants[0].token < grants[1].token < grants[2].token


def test_names_that_are_used_once_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are containers, as Curator makes them: the server removes what is empty."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=100")  # a minute otherwise
    with optional(ZooKeeper) as server, raw(server) as client:
        backend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S)
        with backend.lock("/test/used/once"):
            assert client.get_children("/test/used") == ["once"]
        eventually(lambda: client.exists("/test/used") is None, "nothing is left of it")
        with backend.lock("/test/used/once"):  # again
            pass
        backend.close()


def test_nor_do_names_that_begin_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id that tells the ensemble from others is there once, at the root."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=100")  # a minute otherwise
    with (
        optional(ZooKeeper) as server,
        raw(server) as client,
        ZooKeeperBackend(server.hosts, ttl_s=TTL_S) as backend,
    ):
        sources = set()
        for name in ("/order-1", "/order-2/paid", "/order-3/paid/twice"):
            with backend.lock(name) as grant:
                sources.add(grant.source)
        assert sources == {f"zookeeper:{client.get('/~id')[0].decode()}"}
        eventually(lambda: set(client.get_children("/")) == {"zookeeper", "~id"}, "no folder is left")
        assert backend.contenders("/") == []


@pytest.mark.usefixtures("only_watches_tell")
def test_a_waiter_that_was_thrown_out_has_no_turn(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """Its node is deleted by hand together with the holder's: the next one has the lock, and it queues anew."""
    name = f"/test/{uuid.uuid4().hex}"
    lock = backend.lock(name)
    with raw(server) as client:
        theirs = queue_up(client, name)
        thrown_out = InThread(lambda: lock.acquire(owner="me"))
        place = eventually(lambda: keys(lock)[1:], "it is in the queue")[0]
        eventually(lambda: watches(server) >= 1, "it watches the holder")
        next_in_line = InThread(lambda: lock.acquire(owner="you"))
        eventually(lambda: len(keys(lock)) == 3, "there is somebody behind it")
        both = client.transaction()
        both.delete(place)
        both.delete(theirs)
        both.commit()
        grant = next_in_line.result()
        assert thrown_out.thread.is_alive()
        lock.release(owner="you")
        again = thrown_out.result()
        assert again.key != place
        assert again.token > grant.token
        lock.release(owner="me")


def test_numbers_that_are_used_up() -> None:
    """A parent that has had 2^31 children gives all the same number: the order is that of their creation."""
    with optional(ZooKeeper) as server:
        with raw(server) as client:
            client.create("/test/old", makepath=True)
        server.kill()
        server.start()  # which writes a snapshot of what is there
        server.kill()
        set_counter(server, "/test/old", 2**31 - 3)
        server.start()
        with ZooKeeperBackend(server.hosts, ttl_s=30) as backend:
            eventually(lambda: _answers(backend), "it answers")
            lock = backend.lock("/test/old")
            numbers, tokens = set[str](), list[int]()
            for turn in range(3):
                first = lock.acquire(owner=(turn, 0))
                waiting = []
                for number in range(1, 4):
                    waiting.append(InThread(lambda owner=(turn, number): lock.acquire(owner=owner)))
                    eventually(lambda count=number: len(lock.contenders()) == count + 1, "it is in the queue")
                tokens.append(first.token)
                numbers.update(key.rpartition("lock-")[2] for key in keys(lock))
                for number, waiter in enumerate(waiting):
                    assert [one.holds for one in lock.contenders()] == [True] + [False] * (3 - number)
                    lock.release(owner=(turn, number))
                    tokens.append(waiter.result().token)
                lock.release(owner=(turn, 3))
            assert "2147483647" in numbers
            assert tokens == sorted(tokens)
            assert len(set(tokens)) == 12
            grants = []
            together = [
                InThread(
                    lambda owner=number: (lock.acquire(owner=owner), grants.append(owner), lock.release(owner=owner))
                )
                for number in range(8)
            ]
            for one in together:
                one.result()
            assert len(grants) == 8
        assert leftovers(server) == []


def set_counter(server: ZooKeeper, path: str, number: int) -> None:
    """How many children a node has had, in the newest snapshot of a server that does not run."""
    file = max((server.directory / "data" / "version-2").glob("snapshot.*"), key=lambda one: int(one.suffix[1:], 16))
    data = bytearray(file.read_bytes())
    end = b"\0\0\0\1/"  # behind each checksum
    seals = [found.start() - 8 for found in re.finditer(re.escape(end), data)]
    seals = [at for at in seals if at > 0 and struct.unpack_from(">q", data, at)[0] == zlib.adler32(data[:at])]
    name = path.encode()
    at = data.index(struct.pack(">i", len(name)) + name) + 4 + len(name)
    (length,) = struct.unpack_from(">i", data, at)
    at += 4 + max(0, length) + 8 + 4 * 8 + 4  # the text, its rights, four of its stat's longs, its version
    struct.pack_into(">i", data, at, number)
    for seal in seals:
        struct.pack_into(">q", data, seal, zlib.adler32(data[:seal]))
    assert seals
    file.write_bytes(data)


# -- the connection ------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_in_time() -> None:
    """A session without a server is over, and the holder knows at the deadline of its lease."""
    with optional(ZooKeeper) as server, Proxy(server.port) as proxy:
        backend = ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=TTL_S, timeout_s=0.3)
        told = threading.Event()
        lock = backend.lock("/test/broken")
        lock.acquire().on_lost(told.set)
        session = client_id(backend)
        proxy.cut()
        assert told.wait(WITHIN_S)
        eventually(lambda: client_id(backend) != session or of_threads(backend).client._session.over, "it is over")
        proxy.restore()
        with pytest.raises(LockLost):
            lock.release()
        eventually(lambda: _answers(backend), "it is connected again")
        with lock:
            assert client_id(backend) != session
        backend.close()


def test_a_question_that_a_cut_ends_is_not_answered(server: ZooKeeper) -> None:
    """A session is over in time also if something was being asked when its last connection broke."""
    with (
        Proxy(server.port) as proxy,
        ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=TTL_S, timeout_s=0.3) as backend,
    ):
        backend.ping(WITHIN_S)
        (session,) = sessions_of(backend)
        proxy.stall()
        with pytest.raises(LockUnavailable):
            backend.ping(0.05)
        proxy.cut()
        eventually(lambda: session.over, "it is over")


def test_a_member_that_allows_less_ends_the_session() -> None:
    """Its leases are trusted for longer than it would last there."""
    options = ["maxSessionTimeout=60000"]
    with (
        optional(lambda: ZooKeeper(durable=True, options=options)) as server,
        ZooKeeperBackend(server.hosts, ttl_s=60) as backend,
    ):
        lock = backend.lock("/test/shorter")
        grant, session = lock.acquire(), client_id(backend)
        server.kill()
        options[:] = ["maxSessionTimeout=6000"]
        server.start()
        eventually(lambda: grant.lost, "it is told")
        with pytest.raises(LockLost):
            lock.release()
        eventually(lambda: _answers(backend), "it is connected again")
        with lock as later:
            assert client_id(backend) != session
            assert later.lease.ttl_s == pytest.approx(4)


def test_a_system_without_poll(server: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows: it has `select` alone."""
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(zookeeper_session, "Selector", selectors.SelectSelector)
    with ZooKeeperBackend(server.hosts) as backend, backend.lock("/test/windows") as grant:
        assert grant.token > 0


def test_a_session_that_ends_costs_a_waiter_its_place(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """A waiter whose session is gone starts again, with a new one."""
    holder, other = backend.lock("/test/again"), ZooKeeperBackend(server.hosts, ttl_s=TTL_S)
    holder.acquire()
    waiting = InThread(lambda: other.lock("/test/again").acquire(owner="me"))
    place = eventually(lambda: [*keys(holder), ""][1], "the waiter is in the queue")
    session = client_id(other)
    assert session is not None
    close_session(server, session)
    again = eventually(lambda: [key for key in keys(holder)[1:] if key != place], "it is back")
    assert waiting.thread.is_alive()
    holder.release()
    assert waiting.result().key == again[0]
    other.close()


def test_a_connection_that_breaks_before_the_first_watch(
    server: ZooKeeper, backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contender that has a node has had an answer: it starts again, as any waiter does."""
    holder, get = backend.lock("/test/unwatched"), zookeeper_session.ZooKeeperSession.get

    def broken(session: Any, *arguments: Any, **options: Any) -> Any:
        if "watch" in options:
            monkeypatch.undo()
            session.end("the connection broke")
        return get(session, *arguments, **options)

    with contextlib.closing(ZooKeeperBackend(server.hosts, ttl_s=TTL_S)) as other:
        holder.acquire()
        monkeypatch.setattr(zookeeper_session.ZooKeeperSession, "get", broken)
        lock = other.lock("/test/unwatched")
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(
            lambda: zookeeper_session.ZooKeeperSession.get is get and len(keys(holder)) == 2, "it is in the queue again"
        )
        holder.release()
        waiting.result()
        lock.release(owner="me")


def test_many_who_come_at_once_share_a_session(server: ZooKeeper) -> None:
    """However many ask for it at first, a session is made once; and once again when it is over."""
    backend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S)
    for _ in range(2):
        sessions = [InThread(lambda: portal.run(of_threads(backend).client.session(WITHIN_S))) for _ in range(8)]
        made = {id(thread.result()): thread.result() for thread in sessions}
        assert len(made) == 1
        end(next(iter(made.values())))
    backend.close()


def test_ttls_come_and_go_with_their_sessions(server: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may give each lock the seconds that are left of a job: a server takes 60 sessions of a host.

    Those that hold a lock, or wait for one, stay; of the others a few, for a while.
    """
    monkeypatch.setattr(zookeeper, "_IDLE_S", 1.0)
    with ZooKeeperBackend(server.hosts, ttl_s=TTL_S) as backend:
        locks = [backend.lock(f"/test/ttls/{ttl_s}", ttl_s=ttl_s) for ttl_s in range(60, 66)]
        grants = [lock.acquire() for lock in locks]
        waiting = InThread(lambda: hold_and_release(backend.lock("/test/ttls/60", ttl_s=99)))
        eventually(lambda: len(locks[0].contenders()) == 2, "it waits")
        used = len(locks) + 2  # the waiter's, and the default one, over which we look
        assert connections(server.port) == used
        for ttl_s in range(20, 50):
            with backend.lock("/test/ttls", ttl_s=ttl_s - 0.5):
                pass
            eventually(lambda: connections(server.port) <= used + 4, "few idle ones are kept")
        eventually(lambda: connections(server.port) == used, "and not for long")
        assert not any(grant.lost for grant in grants)
        for lock in locks:
            lock.release()
        assert waiting.result() > grants[0].token
        eventually(lambda: connections(server.port) == 1, "the default one is kept")


def test_threads_have_a_session_and_each_loop_has_one(server: ZooKeeper) -> None:
    """A loop that leaves ends its own, and takes nothing from the others."""
    backend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S)
    held = backend.lock("/test/threads").acquire()

    async def work() -> Grant:
        grant = await backend.aio.lock("/test/loop").acquire()
        assert len({session.id for session in sessions_of(backend)}) == 2
        await backend.leave_loop()
        assert grant.lost
        return grant

    asyncio.run(work())
    assert not held.lost
    with backend.lock("/test/loop"):  # nobody else has it any more
        pass
    backend.close()


def test_a_frozen_server_is_noticed_at_the_deadline(server: ZooKeeper) -> None:
    """A holder is told when its lease has run out, though it never stops asking."""
    backend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S, timeout_s=0.3)
    backend.ping(WITHIN_S)
    lock = backend.lock("/test/frozen")
    told: list[float] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.01):
            with contextlib.suppress(LockUnavailable):
                backend.ping(0.05)

    grant = lock.acquire()
    grant.on_lost(lambda: told.append(time.monotonic()))
    asking = InThread(ask)
    server.pause()
    try:
        eventually(lambda: told, "the holder is told")
        assert grant.lost
        # The session would have lasted longer: nobody else can have had the lock by then.
        assert grant.lease.ttl_s == pytest.approx(TTL_S * 2 / 3)
    finally:
        server.resume()
        over.set()
    asking.result()
    with pytest.raises(LockLost):
        lock.release()
    eventually(lambda: not leftovers(server), "nothing is left on the server")
    with backend.lock("/test/frozen") as again:
        assert again.token > grant.token
    backend.close()


def test_a_late_answer_is_an_answer(server: ZooKeeper) -> None:
    """A server that was silent for longer than a call may take, but not for long, keeps its session."""
    backend = ZooKeeperBackend(server.hosts, ttl_s=1.5, timeout_s=0.2)
    backend.ping(WITHIN_S)
    session = client_id(backend)
    server.pause()
    with pytest.raises(LockUnavailable):
        backend.ping(0.1)
    server.resume()
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 1.2, "as long as one would have believed in a silent server")
    backend.ping(WITHIN_S)
    assert client_id(backend) == session
    backend.close()


def test_a_silent_server_is_left_for_another_one(server: ZooKeeper) -> None:
    """A client that always asks something, and so never pings, moves on to a server that answers."""
    with Proxy(server.port) as one, Proxy(server.port) as other:
        backend = ZooKeeperBackend([f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"], ttl_s=TTL_S, timeout_s=0.3)
        backend.ping(WITHIN_S)
        lock = backend.lock("/test/silent")
        lock.acquire()
        silent = one if one._connections else other
        silent.stall()
        eventually(lambda: _answers(backend, 0.1), "it asks somebody else", 10)
        with pytest.raises(LockLost):
            lock.release()
        with backend.lock("/test/silent"):
            pass
        silent.restore()
        backend.close()


def test_a_connection_that_is_not_answered_is_made_again(server: ZooKeeper) -> None:
    """A server that was asked as it opened its port never answers: one asks again, long before a session's timeout."""
    with Proxy(server.port) as proxy:
        backend = ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=6, timeout_s=0.6)
        proxy.stall()
        began = time.monotonic()
        with pytest.raises(LockUnavailable, match=f"ZooKeeper at 127.0.0.1:{proxy.port} does not answer"):
            backend.ping(0.1)
        eventually(lambda: len(proxy._connections) > 1, "it came again")
        assert time.monotonic() < began + 3
        proxy.restore()
        eventually(lambda: _answers(backend), "it is answered")
        backend.close()


@pytest.mark.parametrize(
    "stray",
    [
        b"\0\0\0\4junk",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">iiiqi", 20, 0, 4000, 1, -1),  # a session without a password
    ],
    ids=["short", "http", "no password"],
)
@pytest.mark.parametrize("before", [False, True], ids=["at first", "later"])
def test_what_does_not_speak_zookeepers_protocol(server: ZooKeeper, stray: bytes, before: bool) -> None:
    """Stray bytes in the place of an answer, at first or later, are an error as long as they come, and no longer."""
    with Proxy(server.port) as proxy:
        backend = ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=TTL_S, timeout_s=0.5)
        if before:
            backend.ping(WITHIN_S)
        proxy.answer_with(stray)
        proxy.reset()
        for _ in range(3):
            with pytest.raises(LockUnavailable):
                backend.ping(0.5)
        proxy.restore()
        spoke = time.monotonic()
        eventually(lambda: _answers(backend), "it is answered", TTL_S + 2)
        with backend.lock("/test/stray") as grant:
            assert grant.token > 0
        assert time.monotonic() < spoke + TTL_S + 2
        backend.close()


def test_a_create_that_the_end_of_its_loop_cuts_short_leaves_nothing(server: ZooKeeper) -> None:
    """No loop will look for that node any more: so the session ends at once, and not only when it has been silent."""

    async def main() -> None:
        async with backend.aio.lock("/test/known"):
            pass
        proxy.hold_at(b"-lock-")
        acquiring = asyncio.create_task(backend.aio.lock("/test/cut").acquire())
        await eventually_async(proxy.struck.is_set, "it is created")
        assert not acquiring.done()

    with Proxy(server.port) as proxy, ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=60) as backend:
        asyncio.run(main())
        proxy.restore()
        eventually(lambda: not leftovers(server), "nothing is left on the server", WITHIN_S)


def test_a_node_whose_answer_comes_too_late_is_deleted(server: ZooKeeper) -> None:
    """It was created, but we were not told in time: it is deleted as soon as we are; the session goes on."""
    with Proxy(server.port) as proxy:
        backend = ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=60, timeout_s=0.3)
        backend.ping(WITHIN_S)
        lock = backend.lock(lasting(server))
        with lock as before:
            session = client_id(backend)
        proxy.stall_at(b"-lock-")
        with pytest.raises(LockUnavailable, match="does not answer"):
            lock.acquire()
        assert proxy.struck.is_set()
        proxy.restore()
        backend.ping(WITHIN_S)
        eventually(lambda: not leftovers(server), "nothing is left on the server")
        with lock as grant:
            assert int(grant.key[-10:]) == int(before.key[-10:]) + 2  # so there was one between the two
        assert client_id(backend) == session
        backend.close()


def test_a_node_whose_answer_was_lost_goes_with_its_session(server: ZooKeeper) -> None:
    """It was created, and the connection broke before we were told: who wanted it starts again, and nothing is left."""
    with Proxy(server.port) as proxy:
        backend = ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=60)
        lock = backend.lock(lasting(server))
        with lock as before:
            pass
        proxy.lose_answer_to(b"-lock-")
        acquiring = InThread(lambda: lock.acquire(owner="me"))
        assert proxy.struck.wait(WITHIN_S)
        proxy.restore()
        grant = acquiring.result()
        assert int(grant.key[-10:]) == int(before.key[-10:]) + 2
        lock.release(owner="me")
        eventually(lambda: not leftovers(server), "nothing is left on the server")
        backend.close()


def test_a_refusal_is_no_doubt(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """Where no node can be, an acquire is refused, and the session goes on with all that is held under it."""
    with backend.lock("/test/held") as held:
        session = client_id(backend)
        with pytest.raises(LockUnavailable, match="NoChildrenForEphemerals"):
            backend.lock(held.key).acquire()
        assert client_id(backend) == session
        held.ensure_held()


def test_what_was_given_up_is_not_sent_later(server: ZooKeeper) -> None:
    """An acquire that found no server is over: nothing of it comes to the server when that is back."""
    with Proxy(server.port) as proxy:
        backend = ZooKeeperBackend(f"127.0.0.1:{proxy.port}", ttl_s=10, timeout_s=0.3)
        backend.ping(WITHIN_S)
        lock = backend.lock(lasting(server))
        with lock as before:
            pass
        proxy.cut()
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(LockUnavailable):
                lock.acquire()
        with pytest.raises(LockUnavailable):
            backend.ping(0.2)
        assert time.monotonic() - began < 8
        proxy.restore()
        eventually(lambda: _answers(backend), "it is there again")
        with lock as grant:
            assert int(grant.key[-10:]) == int(before.key[-10:]) + 1  # no other node was made
        backend.close()


def test_the_server_has_the_last_word_on_the_session(server: ZooKeeper) -> None:
    """A server that allows only shorter sessions than asked for: the lease is as short as what was negotiated."""
    backend = ZooKeeperBackend(server.hosts, ttl_s=600)
    with backend.lock("/test/short") as grant:
        assert grant.lease.ttl_s == pytest.approx(40)  # of a minute, the most that it allows
        assert grant.deadline <= now() + 40
    backend.close()


def test_closing_does_not_wait_for_a_frozen_server(server: ZooKeeper) -> None:
    """It gives up after a while, and goes on in the background."""
    backend = ZooKeeperBackend(server.hosts, ttl_s=60, timeout_s=0.5)
    backend.lock("/test/frozen").acquire()
    server.pause()
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 45
    server.resume()
    eventually(lambda: not leftovers(server), "nothing is left on the server")


def test_closing_tells_who_holds(server: ZooKeeper) -> None:
    """The holder hears of it first; then the session ends, and what is held with it: others have it at once."""
    seen: list[list[str]] = []
    with raw(server) as client, ZooKeeperBackend(server.hosts, ttl_s=60) as other:
        closing = ZooKeeperBackend(server.hosts, ttl_s=60)
        lock = closing.lock("/test/told")
        grant = lock.acquire()
        grant.on_lost(lambda: seen.append(client.get_children("/test/told")))
        closing.close()
        assert grant.lost
        assert seen == [[grant.key.rpartition("/")[2]]]
        assert other.lock("/test/told").try_acquire() is not None
        with pytest.raises(LockLost, match="closed"):
            lock.release()


def test_what_is_lost_is_in_nobodys_way(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """The node of a lost lease goes at once, though its session lives on and nobody has released the lock."""
    lock, other = backend.lock("/test/lost"), backend.lock("/test/lost")
    grant = lock.acquire()
    grant.lease.lose("it was not renewed")
    assert other.acquire(wait_s=1, owner="me").token > grant.token
    other.release(owner="me")
    with pytest.raises(LockLost):
        lock.release()


def watches(server: ZooKeeper) -> int:
    """How many the server has, of all sessions."""
    found = re.search(r"zk_watch_count\s+(\d+)", server.ask("mntr"))
    assert found is not None
    return int(found[1])


# -- the rest --------------------------------------------------------------------------------------------------------


def test_another_ensemble_is_another_source() -> None:
    """Tokens of an ensemble that begins anew at the same address are not compared with the old ones."""
    sources = []
    with optional(ZooKeeper) as server:
        backend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S)
        for _ in range(2):
            with backend.lock("/test/source") as grant:
                sources.append(grant.source)
        server.kill()
        shutil.rmtree(server.directory / "data")
        server.start()
        eventually(lambda: _answers(backend), "it answers")
        with backend.lock("/test/source") as grant:
            sources.append(grant.source)
        backend.close()
    assert sources[0] == sources[1] != sources[2]
    assert all(re.fullmatch("zookeeper:[0-9a-f]{16}", source) for source in sources)


def test_the_source_of_before_goes_on() -> None:
    """Earlier builds had an id in the first part of a lock's name: it counts, so that no fence meets a stranger."""
    with optional(ZooKeeper) as server, raw(server) as client:
        client.create("/before/~id", b"0123456789abcdef", makepath=True)
        with ZooKeeperBackend(server.hosts, ttl_s=TTL_S) as backend:
            with backend.lock("/other/lock") as other, backend.lock("/before/lock") as grant:
                assert grant.source == "zookeeper:0123456789abcdef"
                assert other.source == f"zookeeper:{client.get('/~id')[0].decode()}"
            assert client.get_children("/before") == ["~id", "lock"]


def test_a_user_who_may_not_write_to_the_root() -> None:
    """Such a user has a folder, made by somebody who may, with all that there is of a lock; all agree on the source."""
    with optional(ZooKeeper) as server, raw(server, auth_data=[("digest", "root:r00t")]) as client:
        client.create("/shop")
        client.create("/late")
        client.set_acls("/", [make_acl("world", "anyone", read=True), make_digest_acl("root", "r00t", all=True)])
        with (
            ZooKeeperBackend(server.hosts, ttl_s=TTL_S) as user,
            ZooKeeperBackend(server.hosts, ttl_s=TTL_S) as another,
            ZooKeeperBackend(server.hosts, ttl_s=TTL_S, auth="root:r00t") as admin,
        ):
            locks = [backend.lock("/shop/lock") for backend in (user, another, admin)]
            sources = set()
            for lock in locks[:2]:
                with lock as grant:
                    sources.add(grant.source)
            assert client.exists("/~id") is None
            with admin.lock("/admin") as grant:  # whose id is at the root, from now on
                assert grant.source not in sources
            client.create("/shop/lock/a-stranger-lock-0000000000", ephemeral=True)
            with pytest.raises(LockTimeout):
                locks[2].acquire(wait_s=0)
            assert locks[2].contenders()[0].owner == {}
            client.delete("/shop/lock/a-stranger-lock-0000000000")
            with locks[2] as grant:
                sources.add(grant.source)
            assert sources == {f"zookeeper:{client.get('/shop/~id')[0].decode()}"}
            with user.lock("/late/lock") as grant:
                assert grant.source == f"zookeeper:{client.get('/~id')[0].decode()}"
            with pytest.raises(LockUnavailable, match="no right"):
                user.lock("/alone").acquire()


def _answers(backend: ZooKeeperBackend, within_s: float = 1) -> bool:
    with contextlib.suppress(LockUnavailable):
        backend.ping(within_s)
        return True
    return False


def test_a_prefix_ends_where_it_likes(server: ZooKeeper, backend: ZooKeeperBackend) -> None:
    """All queues whose names begin so are shown, those below another lock's name among them."""
    with backend.lock("/test/show/a"), backend.lock("/test/show/b"), backend.lock("/test/show/b/c"):
        queue = backend.contenders("/test/show/")
        assert len(backend.lock("/test/show/b").contenders()) == 1
        assert len(backend.contenders("/test/show/b")) == len(backend.contenders("/test/show/b/")) == 2
        assert len(backend.contenders("/test/sho")) == len(queue)
        assert backend.contenders("/test/show/c") == []
    names = [contender.key.rpartition("/")[0] for contender in queue]
    assert names == ["/test/show/a", "/test/show/b", "/test/show/b/c"]


def test_login(server: ZooKeeper) -> None:
    """A client with the password shares our locks; nobody else can touch them, nor is told the password."""
    acl = [make_digest_acl("shop", "open-door", all=True)]
    with raw(server, auth_data=[("digest", "shop:open-door")]) as client:
        client.create("/guarded", acl=acl)
        for auth in (None, "shop:wrong"):
            stranger = ZooKeeperBackend(server.hosts, ttl_s=TTL_S, auth=auth)
            with pytest.raises(LockUnavailable, match="log-in is missing or has no right") as refusal:
                stranger.lock("/guarded/lock").acquire()
            assert "wrong" not in str(refusal.value)
            stranger.close()
        friend = ZooKeeperBackend(server.hosts, ttl_s=TTL_S, auth="shop:open-door")
        with pytest.raises(LockLost), friend.lock("/guarded/lock") as grant:
            assert client.get_acls(grant.key)[0] == acl
            with raw(server) as stranger, pytest.raises(NoAuthError):
                stranger.get(grant.key)
            (session,) = sessions_of(friend)
            end(session)
            assert grant.lost
        with friend.lock("/guarded/other"):  # logged in again
            pass
        friend.close()
    for auth in ("shop", ":open-door", "shop:"):
        with pytest.raises(ConfigurationError, match="user:password") as wrong:
            ZooKeeperBackend(server.hosts, auth=auth)
        assert "open-door" not in str(wrong.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo leaves a refused socket open
def test_tls(tmp_path: Path) -> None:
    """A server that speaks TLS and demands a certificate; files that change are read at the next connection."""
    ca, stranger, port = trustme.CA(), trustme.CA(), free_port()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    theirs = ca.issue_cert("127.0.0.1")
    pkcs8 = load_pem_private_key(theirs.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )  # the one form that the server reads
    (tmp_path / "server.pem").write_bytes(pkcs8 + b"".join(one.bytes() for one in theirs.cert_chain_pems))
    ours = ca.issue_cert("shop")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    key.write_bytes(ours.private_key_pem.bytes())
    cert.write_bytes(b"".join(one.bytes() for one in ours.cert_chain_pems))
    options = [
        f"secureClientPort={port}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        *(f"ssl.{what}Store.type=PEM" for what in ("key", "trust")),
        f"ssl.keyStore.location={tmp_path / 'server.pem'}",
        f"ssl.trustStore.location={tmp_path / 'ca.pem'}",
        "ssl.clientAuth=need",
    ]
    files = f"cert_file={cert}&key_file={key}"
    netty = ("netty-codec", "netty-handler", "netty-common", "netty-buffer", "netty-transport", "netty-resolver")
    jars = ":".join([zookeeper_classpath(), *(f"/usr/share/java/{name}.jar" for name in netty)])
    with optional(lambda: ZooKeeper(options=options, classpath=jars)) as server:
        with connect(f"zookeepers://127.0.0.1:{port}?ca_file={tmp_path / 'ca.pem'}&{files}", ttl_s=TTL_S) as backend:
            lock = backend.lock("/test/tls")
            with lock as grant:
                waiting = InThread(lambda: lock.acquire(owner="me"))
                eventually(lambda: len(keys(lock)) == 2, "a waiter is in the queue")
            assert waiting.result().token > grant.token
            lock.release(owner="me")
        stranger.cert_pem.write_to_path(tmp_path / "other.pem")
        for url in (
            f"zookeeper://127.0.0.1:{port}",
            f"zookeepers://127.0.0.1:{port}?ca_file={tmp_path / 'ca.pem'}",
            f"zookeepers://127.0.0.1:{port}?ca_file={tmp_path / 'other.pem'}&{files}",
            f"zookeepers://localhost:{port}?ca_file={tmp_path / 'ca.pem'}&{files}",  # the certificate is another name's
        ):
            with connect(url, ttl_s=TTL_S) as refused, pytest.raises(LockUnavailable):
                refused.ping(1)
        assert leftovers(server) == []
    for url in (f"zookeeper://a?{files}", "zookeepers://a?ca_file=/no/such/file", f"zookeepers://a?cert_file={cert}"):
        with pytest.raises(ConfigurationError, match="certificate|TLS file"):
            connect(url)


def test_sasl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that serves nobody who has not logged in by SASL; our nodes are for that user alone."""
    pytest.importorskip("puresasl")
    login = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    (tmp_path / "jaas.conf").write_text(f'Server {{ {login} user_shop="open-door" user_other="0ther"; }};\n')
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={tmp_path / 'jaas.conf'}")
    options = [
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled=true",
        "enforce.auth.schemes=sasl",
    ]
    with (
        optional(lambda: ZooKeeper(options=options)) as server,
        connect(f"zookeeper://shop:open-door@{server.hosts}?sasl=digest-md5", ttl_s=TTL_S) as backend,
    ):
        lock = backend.lock("/test/sasl")
        with lock as grant:
            other = {"mechanism": "DIGEST-MD5", "username": "other", "password": "0ther"}
            with raw(server, sasl_options=other) as stranger, pytest.raises(NoAuthError):
                stranger.get(grant.key)
        for login in ("", "shop:wrong@"):
            url = f"zookeeper://{login}{server.hosts}" + ("?sasl=DIGEST-MD5" if login else "")
            with connect(url, ttl_s=TTL_S) as refused, pytest.raises(LockUnavailable) as refusal:
                refused.lock("/test/sasl").acquire()
            assert "wrong" not in str(refusal.value)
        with lock as again:
            assert again.token > grant.token


def test_a_folder_is_a_tree_of_its_own(server: ZooKeeper) -> None:
    """With a folder after the hosts all nodes are in there; one that is not there is an error that says so."""
    with raw(server) as client:
        client.ensure_path("/part/of/it")
        backend = ZooKeeperBackend(f"{server.hosts}/part/of/it", ttl_s=TTL_S)
        lock = backend.lock("/test/lock")
        with lock as grant:
            assert keys(lock) == [grant.key]
            assert grant.key.startswith("/test/lock/")
            assert client.exists(f"/part/of/it{grant.key}") is not None
            waiting = InThread(lambda: lock.acquire(owner="me"))
            eventually(lambda: len(keys(lock)) == 2, "a waiter is in the queue")
        waiting.result()
        lock.release(owner="me")
        backend.close()
    lost = ZooKeeperBackend(f"{server.hosts}/no/such/folder", ttl_s=TTL_S)
    with pytest.raises(LockUnavailable, match="what it is in is not there"):
        lost.lock("/test/lock").acquire()
    lost.close()


def test_an_odd_address_is_refused() -> None:
    """A text that is no list of hosts is a configuration error, at once; so is a lock's name that is no path."""
    for hosts in ("", "a,,b", "a:99999", "a:b", "a:0", ["a", ""], "me:s3cret@a:2181", f"{'a' * 70}:2181", "/folder"):
        with pytest.raises(ConfigurationError, match="host:port") as wrong:
            ZooKeeperBackend(hosts)
        assert "s3cret" not in str(wrong.value)
    with pytest.raises(ConfigurationError, match="ttl_s"):
        ZooKeeperBackend("127.0.0.1:1", ttl_s=3e6)
    backend = ZooKeeperBackend("127.0.0.1:1/some/folder")
    with pytest.raises(ConfigurationError, match="ttl_s"):
        backend.lock("/phone", ttl_s=3e6).try_acquire()
    for name in ("phone", "/a//b", "/a/../b"):
        with pytest.raises(ValueError, match="path"):
            backend.lock(name)
    backend.close()

"""Both MySQL locks keep the contract; and what is theirs alone: names, tokens, silent sessions, tables, URLs, TLS."""

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fencelock import Cancel, Grant, LockCancelled, LockTimeout, LockUnavailable, portal
from fencelock.errors import ConfigurationError
from fencelock.mysql import client as mysql_client
from fencelock.mysql import row
from fencelock.mysql.backend import MySqlBackend, Tokens
from fencelock.mysql.for_update import MySqlForUpdateBackend, _Transaction
from fencelock.mysql.row import MySqlRowBackend
from lab.servers import MariaDB
from lab.servers.process import free_port
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import SMOKE, TTL_S, InThread, LockContract, LockSystem, hold_and_release
from tests.harness.inside import of_threads
from tests.harness.servers import ask, connections, optional
from tests.harness.waiting import WITHIN_S, eventually
from tests.harness.worker import Worker

pytestmark = pytest.mark.slow


class MySqlSystem(LockSystem):
    kind: type[MySqlBackend]

    def __init__(self, server: MariaDB) -> None:
        self.server = server

    @property
    def backend(self) -> str:  # type: ignore[override]
        return f"{self.kind.__module__}:{self.kind.__name__}"

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"url": self.server.url, "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> MySqlBackend:
        return self.kind(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        self.delete_holder(key.rpartition("/")[2])

    def delete_holder(self, holder: str) -> None:
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        try:
            return self.held()
        except pymysql.err.ProgrammingError as missing:
            assert missing.args[0] == 1146
            return []

    def held(self) -> list[str]:
        raise NotImplementedError

    def _names(self, which: str) -> list[str]:
        statements = ("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", f"SELECT name FROM {which}")
        return [name.decode() for (name,) in ask(self.server, *statements)]


class RowSystem(MySqlSystem):
    kind = MySqlRowBackend

    def end_lease(self, grant: Grant) -> None:
        past = "expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"
        ask(self.server, f"UPDATE fencelock_locks SET {past} WHERE holder = %s", args=(grant.key.rpartition("/")[2],))

    def delete_holder(self, holder: str) -> None:
        ask(self.server, "DELETE FROM fencelock_locks WHERE holder = %s", args=(holder,))

    def held(self) -> list[str]:
        # A row whose time is over keeps nobody out.
        return self._names("fencelock_locks WHERE expires_at > UTC_TIMESTAMP(6)")


class ForUpdateSystem(MySqlSystem):
    kind = MySqlForUpdateBackend

    def end_lease(self, grant: Grant) -> None:
        self.delete_holder(grant.key.rpartition("/")[2])

    def delete_holder(self, holder: str) -> None:
        """There is nothing to delete but the session that has it."""
        where = "SELECT session FROM fencelock_rows WHERE holder = %s"
        [(session,)] = ask(self.server, "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", where, args=(holder,))
        ask(self.server, f"KILL {session}")

    def held(self) -> list[str]:
        """Signed rows, and transactions of holders and waiters. The rows themselves are meant to stay."""
        return [*self._names("fencelock_rows WHERE holder IS NOT NULL"), *transactions(self.server)]


def transactions(server: MariaDB) -> list[str]:
    """Open ones. (information_schema.INNODB_TRX is not refreshed for who reads it ten times a second.)"""
    [(_, _, status)] = ask(server, "SHOW ENGINE INNODB STATUS")
    return [line for line in status.splitlines() if line.startswith("---TRANSACTION") and "ACTIVE" in line]


def waiting(server: MariaDB) -> int:
    """How many sessions wait for a row."""
    [(_, number)] = ask(server, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(number)


def waiting_session(server: MariaDB) -> int:
    """The number of the only session that waits for a row."""
    where = "INFO LIKE '%fencelock_rows%FOR UPDATE' AND ID <> CONNECTION_ID()"
    [(session,)] = ask(server, f"SELECT ID FROM information_schema.PROCESSLIST WHERE {where}")
    return int(session)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with optional(MariaDB) as server:
        yield server


class _MySqlContract(LockContract):
    kind: type[MySqlSystem]

    @pytest.fixture
    def system(self, server: MariaDB) -> LockSystem:
        return self.kind(server)


class TestMySqlRowLock(_MySqlContract):
    kind = RowSystem
    guarantees = MySqlRowBackend.guarantees


class TestMySqlForUpdateLock(_MySqlContract):
    SMOKE = SMOKE
    kind = ForUpdateSystem
    guarantees = MySqlForUpdateBackend.guarantees


Open = Callable[..., MySqlBackend]


@pytest.fixture(params=[RowSystem, ForUpdateSystem])
def kind(request: pytest.FixtureRequest) -> type[MySqlSystem]:
    return request.param


@pytest.fixture
def system(kind: type[MySqlSystem], server: MariaDB) -> MySqlSystem:
    return kind(server)


@pytest.fixture
def open_() -> Iterator[Open]:
    """Opens backends of a kind, which are closed in the end."""
    with ExitStack() as stack:

        def open_(kind: type[MySqlBackend], url: str, **options: Any) -> MySqlBackend:
            backend = kind(url, **({"ttl_s": TTL_S} | options))
            stack.callback(backend.close)
            return backend

        yield open_


@pytest.fixture
def backend(system: MySqlSystem, open_: Open) -> MySqlBackend:
    return open_(system.kind, system.server.url)


@pytest.fixture
def rows(server: MariaDB, open_: Open) -> MySqlBackend:
    """Of the locks that wait inside the server."""
    return open_(MySqlForUpdateBackend, server.url)


# -- both ----------------------------------------------------------------------------------------------------------


def test_names_are_compared_byte_by_byte(backend: MySqlBackend) -> None:
    """Names that differ only in case, in an accent or in trailing blanks are different locks."""
    names = ["/Test/e", "/test/e", "/test/é", "/test/e ", "/test/e  ", "/test/e\t", "/test/e%", "/test/_"]
    with ExitStack() as stack:
        tokens = [stack.enter_context(backend.lock(name)).token for name in names]
        assert tokens == sorted(set(tokens))
        assert [c.key.rpartition("/")[0] for c in backend.lock("/test/e").contenders()] == ["/test/e"]
        assert len(backend.contenders("/test/")) == len(names) - 1
        assert len(backend.contenders("/test/e%")) == 1


def test_a_name_that_is_too_long_is_refused(backend: MySqlBackend) -> None:
    """255 characters of any alphabet are a name; what would be cut off is refused, or it could be another's name."""
    with backend.lock("/" + "🛒" * 254) as grant:
        assert grant.token > 0
    with pytest.raises(ValueError, match="1020 bytes"):
        backend.lock("/" + "🛒" * 255)


def test_a_paused_holder_loses_the_lock(system: MySqlSystem, backend: MySqlBackend) -> None:
    """Somebody else has it after the TTL, with a higher token; the holder learns of it when it is back."""
    with Worker(system.backend, system.options(TTL_S), "/test/paused") as worker:
        first = worker.ask("acquire")["token"]
        worker.pause()
        began = time.monotonic()
        with backend.lock("/test/paused") as grant:
            assert grant.token > first
            assert TTL_S / 2 < time.monotonic() - began < TTL_S + WITHIN_S
            worker.resume()
            assert worker.ask("lost") == {"error": "LockLost"}
            assert worker.ask("release") == {"error": "LockLost"}
            grant.ensure_held()
            assert len(backend.contenders("/test/paused")) == 1
    eventually(lambda: not system.leftovers(), "nothing is left on the server")


def test_tokens_of_all_locks_of_a_database_can_be_compared(server: MariaDB, open_: Open) -> None:
    """They grow from grant to grant, whichever the name and the method, and are of one source."""
    backends = [open_(kind, server.url) for kind in (MySqlRowBackend, MySqlForUpdateBackend)]
    grants = []
    for number in range(6):
        with backends[number % 2].lock(f"/test/compared/{number // 2}") as grant:
            grants.append(grant)
    tokens = [grant.token for grant in grants]
    assert tokens == sorted(set(tokens))
    assert len({grant.source for grant in grants}) == 1


@pytest.mark.parametrize("kind", [RowSystem, ForUpdateSystem])
def test_a_token_that_comes_late_is_no_ownership(
    system: MySqlSystem, backend: MySqlBackend, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stands still between getting the row and its token, until somebody else gets the lock with a
    smaller token, doesn't trust its row: it queues again.
    """
    slow = open_(system.kind, system.server.url)
    stands, go = threading.Event(), threading.Event()

    tokens = of_threads(slow).tokens

    async def stand(*how: Any) -> tuple[str, int]:
        if not stands.is_set():
            stands.set()
            assert await asyncio.to_thread(go.wait, 2 * WITHIN_S)
        return await Tokens.next(tokens, *how)

    monkeypatch.setattr(tokens, "next", stand)
    late = InThread(lambda: hold_and_release(slow.lock("/test/late")))
    assert stands.wait(WITHIN_S)
    if system.kind is MySqlRowBackend:  # at once, as if the server's clock had jumped: not even our own clock tells
        ask(system.server, "UPDATE fencelock_locks SET expires_at = '2000-01-01' WHERE name = '/test/late'")
    with backend.lock("/test/late") as grant:  # else its session ends after the TTL
        go.set()
        counted = "SELECT token FROM fencelock_tokens"
        eventually(lambda: ask(system.server, counted)[0][0] > grant.token, "it has counted")
        assert late.thread.is_alive()
        assert [contender.token for contender in backend.contenders("/test/late")] == [grant.token]
        grant.ensure_held()
    assert late.result() > grant.token + 1


def test_a_counter_made_anew_is_another_source(server: MariaDB, backend: MySqlBackend, open_: Open) -> None:
    """When the table of tokens is gone, a new one is made whose numbers nobody takes for the old ones."""
    with backend.lock("/test/anew") as before:
        pass
    ask(server, "DROP TABLE fencelock_tokens")
    with backend.lock("/test/anew") as after:
        assert after.token == 1
    assert after.source != before.source
    ask(server, "DROP TABLE fencelock_tokens")
    with open_(type(backend), server.url).lock("/test/anew") as others:  # makes it, behind our back
        pass
    with backend.lock("/test/anew") as ours:
        assert (ours.source, ours.token) == (others.source, others.token + 1)


def test_concurrent_first_users_make_the_tables(
    kind: type[MySqlSystem], open_: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight processes' worth of backends at once, on an empty database: everybody gets the lock, in turn.

    That they meet is nothing that the driver has to warn of: a command line would show it to its user.
    """
    with optional(MariaDB) as server, ThreadPoolExecutor(8) as threads:
        backends = [open_(kind.kind, server.url, timeout_s=10) for _ in range(8)]
        start = threading.Barrier(8)

        def take(backend: MySqlBackend) -> int:
            start.wait()
            with backend.lock("/test/first") as grant:
                return grant.token

        tokens = list(threads.map(take, backends))
        assert sorted(tokens) == list(range(1, 9))
        assert [record.getMessage() for record in caplog.records if record.name == "asyncmy"] == []


def test_without_the_right_to_create_tables(server: MariaDB, backend: MySqlBackend, open_: Open) -> None:
    """A user who may only read and write uses the tables that somebody else made."""
    with backend.lock("/test/rights"):
        pass
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON seckill.* TO"
    ask(server, "CREATE USER IF NOT EXISTS clerk@'127.0.0.1' IDENTIFIED BY 'x'", f"{rights} clerk@'127.0.0.1'")
    clerk = open_(type(backend), f"mysql://clerk:x@127.0.0.1:{server.port}/seckill")
    with clerk.lock("/test/rights") as grant:
        assert [contender.token for contender in clerk.contenders("/test/rights")] == [grant.token]
        assert backend.lock("/test/rights").try_acquire() is None


def test_a_refusal_is_clear_and_keeps_the_password(server: MariaDB, kind: type[MySqlSystem], open_: Open) -> None:
    """A wrong password, an unknown database, a closed port or something that isn't MySQL: each is said, at once."""
    secret = "p@ss/wörd%41"
    for user, port, database, match in (
        ("seckill", server.port, "seckill", "Access denied"),
        ("nobody", server.port, "seckill", "Access denied"),
        ("seckill", free_port(), "seckill", "refused"),
    ):
        backend = open_(kind.kind, f"mysql://{user}:{quote(secret, safe='')}@127.0.0.1:{port}/{database}")
        for use in (backend.lock("/x").acquire, partial(backend.ping, 1)):
            with pytest.raises(LockUnavailable, match=match) as refusal:
                use()
            assert secret not in str(refusal.value)
    unknown = open_(kind.kind, server.url.removesuffix("seckill") + "nowhere")
    with pytest.raises(LockUnavailable, match="Unknown database 'nowhere'"):
        unknown.lock("/x").acquire()
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(WITHIN_S)
        port = other.getsockname()[1]
        backend = open_(kind.kind, f"mysql://seckill:{quote(secret, safe='')}@127.0.0.1:{port}/seckill")
        asking = InThread(lambda: backend.ping(WITHIN_S))
        with other.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000)
            with pytest.raises(LockUnavailable, match=f"MySQL at 127.0.0.1:{port}") as refusal:
                asking.result()
            assert secret not in str(refusal.value)


def test_a_member_of_a_cluster_grants_nothing(kind: type[MySqlSystem], open_: Open) -> None:
    """Rows are locked on one member only: another one would grant the lock as well."""
    options = ["--wsrep-on=ON", "--wsrep-provider=none", "--binlog-format=ROW"]  # alone, but says that it is a member
    with optional(lambda: MariaDB(options=options)) as member:
        backend = open_(kind.kind, member.url)
        for use in (lambda: backend.lock("/test/group").acquire(wait_s=WITHIN_S), lambda: backend.ping(WITHIN_S)):
            with pytest.raises(LockUnavailable, match=r"a member of a cluster \(Galera\): two members may grant"):
                use()


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost", "mysql://", "mysql://host/db", "mysql://user@host", "postgres://user:hunter2@host/db"),
        *("mysql://user:hun/ter2@host/db", "mysql://user:1/hunter2@host/db", "mysql://user:1#hunter2@host/db"),
        *("mysql://user:1?hunter2@host/db", "mysql://user:hunter2@host/db?hunter2=1", "mysql://user:hunter2@h:x/db"),
        "mysql://user:hunter2@host/db?ssl_ca=/x&colour=red",
    ],
)
def test_a_wrong_url_is_refused_without_being_quoted(kind: type[MySqlSystem], url: str) -> None:
    """With what is wrong with it unknown, the password could be anywhere in it."""
    with pytest.raises(ConfigurationError, match="not a MySQL URL") as refusal:
        kind.kind(url)
    assert "hunter2" not in str(refusal.value)
    assert "ter2" not in repr(refusal.value.__cause__)


def test_a_missing_driver_is_a_clear_error(kind: type[MySqlSystem], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(mysql_client, "asyncmy", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sqlalchemy\[asyncio\]' asyncmy"):
        kind.kind("mysql://user:password@host/database")


def test_tls(kind: type[MySqlSystem], tmp_path: Path, open_: Open) -> None:
    """With `ssl_ca` the server's certificate is checked; a server without TLS, or another's certificate, is refused."""
    authority, stranger = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "stranger", "cert", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    stranger.cert_pem.write_to_path(str(files["stranger"]))
    issued.cert_chain_pems[0].write_to_path(str(files["cert"]))
    issued.private_key_pem.write_to_path(str(files["key"]))
    options = [f"--ssl-cert={files['cert']}", f"--ssl-key={files['key']}", "--require-secure-transport=ON"]
    with optional(lambda: MariaDB(options=options)) as server:
        secure = open_(kind.kind, f"{server.url}?ssl_ca={files['ca']}", timeout_s=10)
        with secure.lock("/test/tls"):
            waiter = InThread(lambda: hold_and_release(secure.lock("/test/tls")))
            cancel = Cancel()
            called_off = InThread(lambda: secure.lock("/test/tls").acquire(cancel=cancel))
            cancel.set()
            with pytest.raises(LockCancelled):
                called_off.result()
            assert connections(server.port) > 0
        assert waiter.result() > 0
        with pytest.raises(LockUnavailable, match="certificate"):
            open_(kind.kind, f"{server.url}?ssl_ca={files['stranger']}").ping(WITHIN_S)
        with pytest.raises(LockUnavailable, match="denied"):
            open_(kind.kind, server.url).ping(WITHIN_S)
    with optional(lambda: MariaDB(options=["--skip-ssl"])) as server, pytest.raises(LockUnavailable, match="SSL|TLS"):
        open_(kind.kind, f"{server.url}?ssl_ca={files['ca']}").ping(WITHIN_S)
    with pytest.raises(ConfigurationError, match="can't be read"):
        kind.kind(f"{server.url}?ssl_ca={tmp_path / 'missing.pem'}")


def test_the_password_for_mysql_8_without_tls(kind: type[MySqlSystem], open_: Open) -> None:
    """A server that has forgotten it wants it encrypted with its key: there is none of those in most distributions."""
    secret, salt = "pass/wörd", bytes(range(1, 21))
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    features = 0xFF | 1 << 9 | 1 << 15 | 1 << 19  # no TLS, but plugins for passwords
    greeting = b"\x0a8.0.40\0" + struct.pack("<I8sxHBHHB10x", 1, salt[:8], features & 0xFFFF, 45, 2, features >> 16, 21)

    def serve(peer: socket.socket) -> bytes:
        with peer, peer.makefile("rb") as said:

            def say(number: int, payload: bytes) -> None:
                peer.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)

            def hear() -> bytes:
                return said.read(int.from_bytes(said.read(4)[:3], "little"))

            say(0, greeting + salt[8:] + b"\0caching_sha2_password\0")
            assert secret.encode() not in hear()
            say(2, b"\x01\x04")  # it is not known
            assert hear() == b"\x02"
            say(4, b"\x01" + pem)
            mixed = key.decrypt(hear(), OAEP(MGF1(SHA1()), SHA1(), None))
            say(6, b"\xff\x15\x04#28000Access denied, for the test")
            return bytes(byte ^ salt[place % 20] for place, byte in enumerate(mixed))

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WITHIN_S)
        backend = open_(kind.kind, f"mysql://u:{quote(secret, safe='')}@127.0.0.1:{server.getsockname()[1]}/db")
        asking = InThread(lambda: backend.ping(WITHIN_S))
        assert serve(server.accept()[0]) == secret.encode() + b"\0"
        with pytest.raises(LockUnavailable, match="Access denied, for the test"):
            asking.result()


def test_close_leaves_no_connection(system: MySqlSystem, open_: Open) -> None:
    """Neither those in use nor those kept for later; who holds a lock then, and whose lock the server has freed with
    its connection, has been told.
    """
    server = system.server
    url = f"mysql://{server.user}:{server.password}@127.0.0.1:{server.port}/{server.database}"
    before = len(ask(server, "SHOW PROCESSLIST"))
    backend = open_(system.kind, url, ttl_s=60)
    lock = backend.lock("/test/close")
    grant = lock.acquire()
    lock.contenders()
    threads = [InThread(lambda: backend.lock("/test/close").acquire(wait_s=60)) for _ in range(3)]
    eventually(lambda: len(ask(server, "SHOW PROCESSLIST")) > before + 1, "they are connected")
    began = time.monotonic()
    backend.close()
    for thread in threads:
        with pytest.raises(LockUnavailable):
            thread.result()
    assert time.monotonic() - began < WITHIN_S  # they were told, not left to the end of their connections
    eventually(lambda: len(ask(server, "SHOW PROCESSLIST")) == before, "all connections are closed")
    assert grant.lost == (system.kind is MySqlForUpdateBackend)
    if not grant.lost:
        system.delete_key(grant.key)


def test_idle_connections_that_the_server_closed_are_not_used(system: MySqlSystem, backend: MySqlBackend) -> None:
    """After all of them are closed the next acquire succeeds, without an error in between."""
    lock = backend.lock("/test/idle")
    with lock:
        assert lock.contenders()
    ask(system.server, f"KILL USER {system.server.user}")
    with lock as grant:
        assert [contender.token for contender in lock.contenders()] == [grant.token]


# -- FOR UPDATE: the queue inside the server -----------------------------------------------------------------------


def test_a_wait_ends_when_it_should(server: MariaDB, rows: MySqlBackend) -> None:
    """To within a few milliseconds of what was asked for, or of its cancellation, and out of the server's queue."""
    lock, other = rows.lock("/test/ends"), rows.lock("/test/ends")
    with lock:
        for wait_s in (0.05, 0.35, 1.2):

            def is_punctual(wait_s: float = wait_s) -> bool:
                began = time.monotonic()
                with pytest.raises(LockTimeout):
                    other.acquire(wait_s=wait_s, owner="other")
                assert time.monotonic() >= began + wait_s
                return time.monotonic() < began + wait_s + 0.2

            eventually(is_punctual, "a wait ends in time, once the machine is not too busy")
        cancel = Cancel()
        called_off = InThread(lambda: other.acquire(cancel=cancel))
        eventually(lambda: waiting(server) == 1, "it waits in the server")
        began = time.monotonic()
        cancel.set()
        assert time.monotonic() - began < WITHIN_S / 2  # calling it off blocks nobody
        with pytest.raises(LockCancelled):
            called_off.result()
        eventually(lambda: waiting(server) == 0, "nobody waits in the server")


def test_a_killed_waiter_does_not_stop_those_behind_it(server: MariaDB, rows: MySqlBackend) -> None:
    """Its session in the server is granted the row in its turn, finds nobody, and passes it on at once."""
    with Worker(ForUpdateSystem(server).backend, {"url": server.url, "ttl_s": 60}, "/test/killed") as worker:
        holder = rows.lock("/test/killed")
        first = holder.acquire()
        worker.tell("acquire")
        eventually(lambda: waiting(server) == 1, "it waits in the server")
        behind = InThread(lambda: hold_and_release(rows.lock("/test/killed")))
        eventually(lambda: waiting(server) == 2, "we wait behind it")
        worker.kill()
        assert behind.thread.is_alive()
        holder.release()
        began = time.monotonic()
        assert behind.result() > first.token
        assert time.monotonic() - began < WITHIN_S


def test_a_paused_waiter_stops_those_behind_it_for_a_ttl(server: MariaDB, rows: MySqlBackend) -> None:
    """It is granted the row in its turn and doesn't know; when it comes back it has nothing, and queues again."""
    options = ForUpdateSystem(server).options(TTL_S)
    with Worker(ForUpdateSystem(server).backend, options, "/test/asleep") as worker:
        holder = rows.lock("/test/asleep")
        holder.acquire()
        worker.tell("acquire")
        eventually(lambda: waiting(server) == 1, "it waits in the server")
        worker.pause()
        behind = InThread(lambda: rows.lock("/test/asleep").acquire(owner="behind"))
        eventually(lambda: waiting(server) == 2, "we wait behind it")
        holder.release()
        began = time.monotonic()
        grant = behind.result()
        assert TTL_S / 2 < time.monotonic() - began < TTL_S + WITHIN_S
        worker.resume()
        eventually(lambda: waiting(server) == 1, "it waits again")
        assert not grant.lost
        portal.run(grant.lease.hold.end(1.0))
        assert worker.answer()["token"] > grant.token
        worker.ask("release")


def test_a_wait_that_somebody_ended_goes_on(server: MariaDB, rows: MySqlBackend) -> None:
    """KILL QUERY, by hand or by a limit of the server's, is no reason to have or to give up the lock."""
    holder = rows.lock("/test/ended")
    first = holder.acquire()
    waiter = InThread(lambda: hold_and_release(rows.lock("/test/ended")))
    eventually(lambda: waiting(server) == 1, "it waits in the server")
    ask(server, f"KILL QUERY {waiting_session(server)}")
    eventually(lambda: waiting(server) == 1, "it waits again")
    assert waiter.thread.is_alive()
    holder.release()
    assert waiter.result() > first.token


def by_proxy(server: MariaDB, proxy: Proxy) -> str:
    return server.url.replace(f":{server.port}/", f":{proxy.port}/")


def test_a_waiter_whose_connection_falls_silent_finds_out(server: MariaDB, open_: Open) -> None:
    """It waits in the server's queue, where no answer is no news; but the server lets nobody wait for ever."""
    with Proxy(server.port) as proxy:
        lock = open_(MySqlForUpdateBackend, server.url).lock("/test/deaf")
        first = lock.acquire()
        deaf = open_(MySqlForUpdateBackend, by_proxy(server, proxy)).lock("/test/deaf")
        waiter = InThread(lambda: hold_and_release(deaf))
        eventually(lambda: waiting(server) == 1, "it waits in the server")
        proxy.swallow()
        lock.release()
        assert waiter.result() > first.token


def test_a_waiter_ends_no_session_but_its_own(open_: Open) -> None:
    """Numbers of sessions begin anew with the server: its own number may be a holder's when it gives up."""
    with optional(MariaDB) as server, Proxy(server.port) as proxy:
        for _ in range(30):  # so that its number is above those of a fresh server's first users
            ask(server, "SELECT 1")
        first = open_(MySqlForUpdateBackend, server.url, ttl_s=60).lock("/test/former")
        first.acquire()
        cancel = Cancel()
        lock = open_(MySqlForUpdateBackend, by_proxy(server, proxy), ttl_s=60).lock("/test/former")
        waiter = InThread(lambda: lock.acquire(cancel=cancel))
        eventually(lambda: waiting(server) == 1, "it waits in the server")
        number = waiting_session(server)
        proxy.swallow()  # its connection stays open, and it hears nothing of the restart
        server.kill()
        server.start()
        others = open_(MySqlForUpdateBackend, server.url, ttl_s=60)
        grants = [others.lock(f"/test/other/{one}").acquire() for one in range(number)]
        uncommitted = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
        assert (number,) in ask(server, uncommitted, "SELECT session FROM fencelock_rows")
        cancel.set()
        with pytest.raises(LockCancelled):
            waiter.result()
        assert all(portal.run(grant.lease.hold.renew(WITHIN_S)) for grant in grants)


def test_a_renewal_that_comes_late_prolongs_nothing(server: MariaDB, open_: Open) -> None:
    """Its owner believes in the lock no more: it would only be in others' way for another TTL."""
    grant = open_(MySqlRowBackend, server.url, ttl_s=60).lock("/test/late").acquire()
    ask(server, f"UPDATE fencelock_locks SET expires_at = NOW(6) - INTERVAL 1 SECOND WHERE token = {grant.token}")
    assert not portal.run(grant.lease.hold.renew(WITHIN_S))


def test_a_release_waits_for_a_ping_that_is_under_way(server: MariaDB, open_: Open) -> None:
    """Neither is sent beside the other one, and the connection is kept."""
    with Proxy(server.port) as proxy:
        lock = open_(MySqlForUpdateBackend, by_proxy(server, proxy), ttl_s=60).lock("/test/settled")
        hold = lock.acquire().lease.hold
        assert isinstance(hold, _Transaction)
        session = hold._session
        assert session is not None
        proxy.stall()
        with pytest.raises(LockUnavailable):
            portal.run(hold.renew(0.05))
        renewal = InThread(lambda: portal.run(hold.renew(WITHIN_S)))
        eventually(hold._turn.locked, "it waits for the answer to the first ping")
        release = InThread(lambda: portal.run(hold.end(WITHIN_S)))
        eventually(lambda: hold._session is None, "it is being given back")
        proxy.restore()
        release.result()
        renewal.result()
        assert session.open


def test_locks_with_many_ttls_share_their_connections(server: MariaDB, rows: MySqlBackend) -> None:
    """A program may give each lock the seconds that are left of a job."""
    with rows.lock("/test/ttls"):
        before = connections(server.port)
    for ttl_s in range(60, 80):
        with rows.lock("/test/ttls", ttl_s=ttl_s):
            assert connections(server.port) == before


def test_a_connection_that_had_a_longer_ttl_is_freed_after_its_own(server: MariaDB, open_: Open) -> None:
    with Proxy(server.port) as proxy:
        mine = open_(MySqlForUpdateBackend, by_proxy(server, proxy))
        with mine.lock("/test/shorter", ttl_s=60):
            before = connections(proxy.port)
        gone = mine.lock("/test/shorter", ttl_s=TTL_S).acquire()
        assert connections(proxy.port) == before
        proxy.swallow()
        lock = open_(MySqlForUpdateBackend, server.url).lock("/test/shorter")
        assert lock.acquire(wait_s=TTL_S + WITHIN_S).token > gone.token
        lock.release()


def test_a_row_that_was_deleted_is_made_again(server: MariaDB, rows: MySqlBackend) -> None:
    """Locking a row that isn't there excludes nobody: so nobody believes that they own the lock by that."""
    holder, other = rows.lock("/test/deleted"), rows.lock("/test/deleted")
    with holder:
        pass
    ask(server, "DELETE FROM fencelock_rows")
    with holder:
        assert InThread(other.try_acquire).result() is None
        assert len(holder.contenders()) == 1
    ask(server, "DELETE FROM fencelock_rows")
    assert InThread(other.try_acquire).result() is not None


def test_what_a_transaction_wrote_is_never_committed(server: MariaDB, rows: MySqlBackend) -> None:
    """Readers of uncommitted data see the owner while the grant lasts; nothing of it stays."""
    with rows.lock("/test/seen") as grant:
        [contender] = rows.contenders("/test/seen")
        assert (contender.key, contender.token, contender.holds) == (grant.key, grant.token, True)
        assert ask(server, "SELECT holder FROM fencelock_rows WHERE name = '/test/seen'") == ((None,),)
    assert rows.contenders("/test/seen") == []


# -- a row: dead owners --------------------------------------------------------------------------------------------


def test_a_dead_owners_row_is_taken_without_waiting(server: MariaDB, open_: Open) -> None:
    """`try_acquire` succeeds where a row's time is over, and its owner's late release does nothing to the new one."""
    system = RowSystem(server)
    backend = open_(MySqlRowBackend, server.url)
    dead, lock = backend.lock("/test/dead"), backend.lock("/test/dead")
    before = dead.acquire(owner="dead")
    system.end_lease(before)
    grant = lock.try_acquire()
    assert grant is not None
    assert grant.token > before.token
    portal.run(before.lease.hold.end(1.0))
    assert [contender.key for contender in lock.contenders()] == [grant.key]
    lock.release()
    eventually(lambda: before.lost, "the dead one is told, if it should live")


def test_a_row_whose_answer_was_lost_is_not_in_our_own_way(server: MariaDB, open_: Open) -> None:
    """Each try has a row of its own, so the next one would wait for a TTL until that has expired."""
    with Proxy(server.port) as path:
        url = server.url.replace(f":{server.port}", f":{path.port}")
        lock = open_(MySqlRowBackend, url, ttl_s=600).lock("/test/lost")
        with open_(MySqlRowBackend, server.url).lock("/test/lost"):
            waiting = InThread(lambda: lock.acquire(owner="me"))
            asked(RowSystem(server))
            path.lose_answer_to(b"INSERT INTO fencelock_locks")
        assert path.struck.wait(WITHIN_S)
        path.restore()
        waiting.result()
        lock.release(owner="me")


def test_two_who_find_the_same_dead_row_do_not_both_get_it(
    server: MariaDB, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter acts on a look that is old by then: a row that lives again is not taken over."""
    backend = open_(MySqlRowBackend, server.url)
    late = backend.lock("/test/two")
    with backend.lock("/test/two") as grant:

        async def over(attempt: Any, wait: Any) -> float:
            return -1.0

        monkeypatch.setattr(row._MySqlRowAttempt, "_look", over)
        assert InThread(late.try_acquire).result() is None
        assert portal.run(grant.lease.hold.renew(WITHIN_S))
        assert [contender.key for contender in backend.contenders("/test/two")] == [grant.key]


def asked(system: MySqlSystem) -> int:
    """Return whether somebody waits: in the server, or by looking again and again."""
    if system.kind is MySqlForUpdateBackend:
        return waiting(system.server)

    def looks() -> int:
        return int(ask(system.server, "SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1])

    before = looks()
    eventually(lambda: looks() > before + 30, "it looks again and again; a connection has some selects of its own")
    return 1


def test_a_ctrl_c_ends_a_wait(system: MySqlSystem, backend: MySqlBackend, open_: Open) -> None:
    """At once, and out of the server's queue, however long one would have waited."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with ThreadPoolExecutor(1) as thread:
            holder = backend.lock("/test/interrupted")
            thread.submit(holder.acquire, owner="holder").result()
            interrupting = InThread(lambda: (asked(system), os.kill(os.getpid(), signal.SIGINT)))
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                backend.lock("/test/interrupted").acquire()
            interrupting.result()
            assert time.monotonic() - began < WITHIN_S
            eventually(lambda: waiting(system.server) == 0, "nobody waits in the server")
            assert len(holder.contenders()) == 1
            holder.release(owner="holder")
    finally:
        signal.signal(signal.SIGINT, before)

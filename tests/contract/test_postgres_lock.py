"""The PostgreSQL lock keeps the contract, directly and through PgBouncer; and what is its alone."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.rows import TupleRow

from fencelock import ConfigurationError, Grant, LockTimeout, LockUnavailable, portal
from fencelock.postgres import lock
from fencelock.postgres.backend import PostgresBackend
from fencelock.postgres.client import PostgresClient
from lab.servers import PgBouncer, Postgres
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import CALM_S, SMOKE, TTL_S, InThread, LockContract, LockSystem, hold_and_release
from tests.harness.inside import of_threads
from tests.harness.servers import optional
from tests.harness.waiting import WITHIN_S, eventually


class PostgresSystem(LockSystem):
    backend = "fencelock.postgres.backend:PostgresBackend"

    def __init__(self, server: Postgres, url: str = "") -> None:
        self.server = server
        self.url = url or server.url

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"url": self.url, "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> PostgresBackend:
        return PostgresBackend(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        assert ask(self.server, "DELETE FROM fencelock_contenders WHERE holder = %s RETURNING 1", holder(key))

    def end_lease(self, grant: Grant) -> None:
        past = "expires_at = clock_timestamp() - interval '1 s'"
        ask(self.server, f"UPDATE fencelock_contenders SET {past} WHERE holder = %s", holder(grant.key))

    def leftovers(self) -> list[str]:
        """A row whose time is over keeps nobody out, and so does one with nothing but a record."""
        try:
            rows = ask(self.server, "SELECT name FROM fencelock_contenders WHERE expires_at > clock_timestamp()")
        except psycopg.errors.UndefinedTable:
            return []
        return [name.decode() for (name,) in rows]


def holder(key: str) -> str:
    return key.rpartition("/")[2]


def ask(server: Postgres, sql: str, *args: Any) -> list[TupleRow]:
    """Run a statement, not with our client."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode(), args or None)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with optional(Postgres) as server:
        yield server


@pytest.fixture(scope="module")
def pooler(server: Postgres) -> Iterator[PgBouncer]:
    with optional(lambda: PgBouncer(server)) as pooler:
        yield pooler


class TestPostgresLock(LockContract):
    returns_by_its_key = True
    guarantees = PostgresBackend.guarantees

    @pytest.fixture
    def system(self, server: Postgres) -> LockSystem:
        return PostgresSystem(server)


class TestPostgresLockThroughPgBouncer(LockContract):
    """In transaction mode: each call may be on another session of the server, and nobody can listen."""

    SMOKE = SMOKE
    returns_by_its_key = True
    guarantees = PostgresBackend.guarantees

    @pytest.fixture
    def system(self, server: Postgres, pooler: PgBouncer) -> LockSystem:
        return PostgresSystem(server, pooler.url)


Open = Callable[..., PostgresBackend]
_numbers = count(1)


@pytest.fixture
def open_() -> Iterator[Open]:
    """Opens backends, which are closed in the end."""
    with ExitStack() as stack:

        def open_(url: str, **options: Any) -> PostgresBackend:
            backend = PostgresBackend(url, **({"ttl_s": CALM_S} | options))
            stack.callback(backend.close)
            return backend

        yield open_


@pytest.fixture
def backend(server: Postgres, open_: Open) -> PostgresBackend:
    return open_(server.url)


@pytest.fixture
def new_url(server: Postgres) -> str:
    """A database without tables."""
    name = f"new_{next(_numbers)}"
    ask(server, f"CREATE DATABASE {name}")
    return server.url.rpartition("/")[0] + f"/{name}"


@contextmanager
def transaction(server: Postgres, sql: str, *args: Any) -> Iterator[psycopg.Connection[Any]]:
    """A statement of somebody else's that is not committed before the block ends."""
    with psycopg.connect(server.url) as connection:
        connection.execute(sql.encode(), args)
        yield connection


def waits_for_a_row(server: Postgres) -> bool:
    return bool(
        ask(server, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencelock%'")
    )


def sessions(server: Postgres, which: str = "") -> int:
    sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'fencelock' AND query LIKE %s"
    return len(ask(server, sql, f"{which}%"))


# -- one owner -----------------------------------------------------------------------------------------------------


def test_a_place_is_drawn_by_one_at_a_time(server: Postgres, backend: PostgresBackend) -> None:
    """Drawn before the name's row is locked, the lower of two places might be seen after the higher one has won."""
    name = "/test/places"
    with backend.lock(name):
        before = ask(server, "SELECT last_value FROM fencelock_tokens")
        with transaction(server, "SELECT 1 FROM fencelock_names WHERE name = %s FOR UPDATE", name.encode()):
            waiting = InThread(lambda: hold_and_release(backend.lock(name)))
            eventually(lambda: waits_for_a_row(server), "it waits for the name's row")
            assert ask(server, "SELECT last_value FROM fencelock_tokens") == before
    assert waiting.result() > before[0][0]


def test_a_name_that_is_deleted_under_a_waiter_is_made_again(server: Postgres, backend: PostgresBackend) -> None:
    """Whoever waits for its row while the last contender takes it away has the queue for itself all the same."""
    name = "/test/deleted"
    ask(server, "INSERT INTO fencelock_names VALUES (%s)", name.encode())
    with transaction(server, "DELETE FROM fencelock_names WHERE name = %s", name.encode()):
        waiting = InThread(backend.lock(name).acquire)
        eventually(lambda: waits_for_a_row(server), "it waits for the name's row")
    waiting.result()
    assert ask(server, "SELECT 1 FROM fencelock_names WHERE name = %s", name.encode())
    assert backend.lock(name).try_acquire() is None
    backend.force_release(name)


def test_a_renewal_under_way_is_not_overtaken(server: Postgres, backend: PostgresBackend) -> None:
    """A lease that is over, and is just being renewed, is the holder's: the next one waits to see what comes of it."""
    name, behind = "/test/renewal", backend.lock("/test/renewal")
    grant = backend.lock(name, ttl_s=600).acquire(owner="first")
    PostgresSystem(server).end_lease(grant)
    later = "UPDATE fencelock_contenders SET expires_at = clock_timestamp() + interval '1 h' WHERE holder = %s"
    with transaction(server, later, holder(grant.key)):
        waiting = InThread(lambda: behind.acquire(wait_s=1))
        eventually(lambda: waits_for_a_row(server), "it waits for the holder's row")
    with pytest.raises(LockTimeout):
        waiting.result()
    backend.force_release(name)


def test_the_database_itself_refuses_a_second_owner(server: Postgres, backend: PostgresBackend) -> None:
    """Also from a program that does not look at the queue."""
    with backend.lock("/test/second"), pytest.raises(psycopg.errors.UniqueViolation, match="fencelock_owner"):
        ask(
            server,
            "INSERT INTO fencelock_contenders (holder, name, place, owner, expires_at, token) "
            "VALUES (gen_random_uuid(), %s, 0, '', 'infinity', 1)",
            b"/test/second",
        )


def test_what_a_database_sets_by_default_changes_nothing(server: Postgres, new_url: str, open_: Open) -> None:
    """An isolation that refuses what others have changed, transactions that only read, commits that are not awaited."""
    database = new_url.rpartition("/")[2]
    for setting in ("default_transaction_isolation = serializable", "default_transaction_read_only = on"):
        ask(server, f"ALTER DATABASE {database} SET {setting}")
    ask(server, f"ALTER DATABASE {database} SET synchronous_commit = off")
    ask(server, f"ALTER DATABASE {database} SET idle_session_timeout = 200")
    backends, inside, tokens = [open_(new_url) for _ in range(3)], 0, []

    def work(number: int) -> None:
        nonlocal inside
        for _ in range(10):
            with backends[number].lock("/test/defaults") as grant:
                assert inside == 0
                inside += 1
                tokens.append(grant.token)
                time.sleep(0)
                inside -= 1

    for thread in [InThread(lambda number=number: work(number)) for number in range(3)]:
        thread.result()
    assert tokens == sorted(set(tokens))
    said = of_threads(backends[0]).client

    found = portal.run(
        said.ask("SELECT current_setting('synchronous_commit'), current_setting('idle_session_timeout')")
    )
    assert found == [[("on", "0")]]


def test_tokens_of_all_locks_of_a_database_can_be_compared(server: Postgres, new_url: str, open_: Open) -> None:
    """They grow from grant to grant, whichever the name; another database's have another source."""
    one, other = open_(server.url), open_(new_url)
    grants = []
    for number in range(4):
        with one.lock(f"/test/compared/{number % 2}") as grant:
            grants.append(grant)
    tokens = [grant.token for grant in grants]
    assert tokens == sorted(set(tokens))
    with other.lock("/test/compared/0") as grant:
        assert len({grant.source for grant in grants} | {grant.source}) == 2


# -- tables ----------------------------------------------------------------------------------------------------------


def test_many_programs_make_the_tables_at_once(new_url: str, open_: Open) -> None:
    """Each has its lock, over one counter."""
    backends = [open_(new_url) for _ in range(6)]
    threads = [InThread(lambda b=b: hold_and_release(b.lock("/test/first"))) for b in backends]
    tokens = [thread.result() for thread in threads]
    assert len(set(tokens)) == 6


def test_a_user_who_may_make_no_tables_is_told_the_statements(server: Postgres, new_url: str, open_: Open) -> None:
    """The owner runs them, with the grants that stand in them, and the user has locks and elections."""
    owners, user = open_(new_url), f"user_{next(_numbers)}"
    ask(server, f"CREATE USER {user} PASSWORD 'secret'")
    login = f"{user}:secret@"
    backend = open_(new_url.partition("://")[0] + f"://{login}" + new_url.partition("@")[2])
    with pytest.raises(LockUnavailable, match="may not make them .permission denied") as error:
        backend.lock("/test/rights").acquire()
    _, _, statements = str(error.value).partition("\n")
    with psycopg.connect(new_url, autocommit=True) as owner:
        owner.execute(statements.encode())
        for line in statements.splitlines():
            if line.startswith("--   GRANT"):
                owner.execute(line.removeprefix("--").replace("the_user", user).encode())
    with backend.lock("/test/rights") as grant, backend.election("/test/leads").campaign("me") as leadership:
        leadership.proclaim("still me")
        leadership.record("done")
        assert owners.lock("/test/rights").contenders()[0].token == grant.token
    assert owners.election("/test/leads").recorded() == "done"


def test_nothing_is_left_of_a_lock_that_nobody_has(server: Postgres, new_url: str, open_: Open) -> None:
    """No row for each name that was ever used."""
    backend = open_(new_url)
    for number in range(3):
        hold_and_release(backend.lock(f"/test/{number}"))
    with psycopg.connect(new_url) as connection:
        for table in ("names", "contenders"):
            assert connection.execute(f"SELECT * FROM fencelock_{table}".encode()).fetchall() == []


def test_names_are_compared_byte_by_byte(backend: PostgresBackend) -> None:
    """Names that differ only in case, an accent or trailing blanks are different locks; what is too long is refused."""
    names = ["/Test/e", "/test/e", "/test/é", "/test/e ", "/test/e%", "/test/_", "/test/\\", "/test/'"]
    with ExitStack() as stack:
        tokens = [stack.enter_context(backend.lock(name)).token for name in names]
        assert tokens == sorted(set(tokens))
        assert [one.key.rpartition("/")[0] for one in backend.lock("/test/e").contenders()] == ["/test/e"]
        assert len(backend.contenders("/test/e")) == 3
    with pytest.raises(ValueError, match="1020 bytes"):
        backend.lock("/" + "🛒" * 255)


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_a_waiter_is_told(server: Postgres, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a release, also after the session that listens was ended; one session listens for all, and ends after them."""
    monkeypatch.setattr(lock, "_LOOK_AGAIN_S", 600)
    mine = backend.lock("/test/told", ttl_s=600)
    for cut in (False, True):
        mine.acquire()
        waiting = [InThread(lambda: hold_and_release(backend.lock("/test/told", ttl_s=600))) for _ in range(3)]
        eventually(lambda: len(mine.contenders()) == 4, "they wait")
        eventually(lambda: of_threads(backend).listener.hears, "messages come")
        if cut:
            ask(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        mine.release()
        for thread in waiting:
            thread.result()
    eventually(lambda: not of_threads(backend).listener.hears, "nobody listens any more")


def test_behind_a_pooler_nobody_listens(server: Postgres, pooler: PgBouncer, open_: Open) -> None:
    """A session of the pooler's would hear what is for others. Waiters look by themselves."""
    backend = open_(pooler.url, ttl_s=60)
    mine = backend.lock("/test/pooled")
    mine.acquire()
    waiting = InThread(lambda: hold_and_release(backend.lock("/test/pooled")))
    eventually(lambda: len(mine.contenders()) == 2, "it waits")
    mine.release()
    assert waiting.result() > 0
    assert not of_threads(backend).listener.hears


async def test_many_waiters_share_a_few_sessions(server: Postgres, open_: Open) -> None:
    """A hundred tasks that wait have seven sessions among them, and are served in turn."""
    locks = open_(server.url, ttl_s=60).aio
    before, served = sessions(server), []

    async def wait(number: int) -> None:
        async with locks.lock("/test/crowd"):
            served.append(number)

    async with locks.lock("/test/crowd"):
        tasks = []
        for number in range(100):
            tasks.append(asyncio.create_task(wait(number)))
            if number % 10 == 0:
                await asyncio.sleep(0)
        while len(await locks.contenders("/test/crowd")) < 101:
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(sessions, server) - before <= 7
    await asyncio.gather(*tasks)
    assert sorted(served) == list(range(100))
    await locks.leave_loop()


def test_a_row_that_is_locked_by_hand_stops_no_renewal(server: Postgres, backend: PostgresBackend) -> None:
    """Those who want that lock wait for it, or are told; other locks are kept."""
    brief = backend.lock("/test/kept", ttl_s=2)
    grant, until = brief.acquire(), 0.0
    ask(server, "INSERT INTO fencelock_names VALUES (%s)", b"/test/jammed")
    with transaction(server, "SELECT 1 FROM fencelock_names WHERE name = %s FOR UPDATE", b"/test/jammed"):
        jammed = [InThread(lambda: backend.lock("/test/jammed").acquire(wait_s=3)) for _ in range(8)]
        until = grant.deadline
        eventually(lambda: grant.deadline > until + 1, "it is renewed")
        for thread in jammed:
            with pytest.raises((LockTimeout, LockUnavailable)):
                thread.result()
    brief.release()


# -- the server ------------------------------------------------------------------------------------------------------


def test_sessions_that_the_server_has_ended_are_not_used(server: Postgres, backend: PostgresBackend) -> None:
    """An idle one is noticed before anything is sent."""
    hold_and_release(backend.lock("/test/ended"))
    ask(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencelock'")
    eventually(lambda: not sessions(server), "they are gone")
    hold_and_release(backend.lock("/test/ended"))


def test_an_answer_that_came_too_late_is_nobodys(server: Postgres, open_: Open) -> None:
    """What was asked on that session and not answered in time is never taken for another question's answer."""
    with Proxy(server.port) as path:
        backend = open_(server.url_by(path.port), timeout_s=0.5)
        with backend.lock("/test/late"):
            path.answer_delay_s = 1.0
            with pytest.raises(LockUnavailable, match="does not answer"):
                backend.election("/test/none").leader()
            path.restore()
            eventually(lambda: _names_of(backend) == ["/test/late"], "it answers again")
            assert backend.election("/test/none").leader() is None


def _names_of(backend: PostgresBackend) -> list[str]:
    try:
        return [one.key.rpartition("/")[0] for one in backend.contenders("/test/late")]
    except LockUnavailable:
        return []


def test_what_arrives_too_late_does_nothing(server: Postgres, open_: Open) -> None:
    """A call that was given up, and comes to the server after that, leaves no place in the queue."""
    with Proxy(server.port) as path:
        backend = open_(server.url_by(path.port), timeout_s=0.5, ttl_s=0.6)
        hold_and_release(backend.lock("/test/delayed"))
        before = ask(server, "SELECT last_value FROM fencelock_tokens")
        path.stall()
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            backend.lock("/test/delayed").acquire()
        eventually(lambda: time.monotonic() > began + 1.5, "it is given up, and its lease would be over")
        path.restore()
        eventually(lambda: backend.ping(WITHIN_S) is None, "it answers again")
        eventually(lambda: time.monotonic() > began + 2.5, "what was on its way has come")
        assert ask(server, "SELECT last_value FROM fencelock_tokens") == before


def test_clocks_that_drift_apart_cost_nothing(server: Postgres, backend: PostgresBackend) -> None:
    """A session that is wrong about the server's clock is replaced, and the call made again."""
    hold_and_release(backend.lock("/test/drift"))
    for session in of_threads(backend).client._idle:
        session.ahead_s -= 600
    hold_and_release(backend.lock("/test/drift"))


def test_a_standby_grants_nothing() -> None:
    """It says what it is. When it has become the primary, it grants."""
    with optional(Postgres) as server, PostgresBackend(server.url, ttl_s=TTL_S) as backend:
        hold_and_release(backend.lock("/test/standby"))
        server.kill()
        (server.directory / "data" / "standby.signal").touch()
        server.start()
        for ask_it in (backend.lock("/test/standby").acquire, lambda: backend.ping(WITHIN_S)):
            with pytest.raises(LockUnavailable, match="it is a standby, which grants no locks"):
                ask_it()
        ask(server, "SELECT pg_promote()")
        eventually(lambda: _granted(backend), "it is the primary")


def _granted(backend: PostgresBackend) -> bool:
    try:
        return hold_and_release(backend.lock("/test/standby")) > 0
    except LockUnavailable:
        return False


def test_a_password_is_in_no_error(server: Postgres, open_: Open, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in what a caller gets nor in a log."""
    caplog.set_level(logging.DEBUG)
    url = server.url.replace(server.password, "s3cret-but-wrong")
    with pytest.raises(LockUnavailable, match="password authentication failed") as error:
        open_(url).lock("/test/password").acquire()
    assert "s3cret" not in f"{error.value}{error.value.__cause__}{caplog.text}"


def test_a_session_that_a_pooler_gives_on_has_its_own_ways(server: Postgres, pooler: PgBouncer) -> None:
    """What another client of the pool has left there moves no table: there is one owner, and the renewal finds it."""
    with PostgresBackend(pooler.url, ttl_s=TTL_S) as one, PostgresBackend(pooler.url, ttl_s=TTL_S) as two:
        grant = one.lock("/test/path").acquire()
        with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as stranger:
            stranger.execute("CREATE SCHEMA IF NOT EXISTS tenant")
            stranger.execute("SET search_path TO tenant")
        with pytest.raises(LockTimeout):
            two.lock("/test/path").acquire(wait_s=TTL_S)
        assert not grant.lost
        assert not ask(server, "SELECT 1 FROM pg_tables WHERE schemaname = 'tenant'")


def test_a_record_is_written_or_not_told_to_be(server: Postgres) -> None:
    """Also where somebody has deleted the name's row, or the table, between the lead and the word."""
    with PostgresBackend(server.url, ttl_s=CALM_S) as backend:
        election = backend.election("/test/deleted")
        with election.campaign("me") as leadership:
            ask(server, "DELETE FROM fencelock_names")
            leadership.record("started")
        assert election.recorded() == "started"


@pytest.mark.parametrize("url", ["u:se@CRET@127.0.0.1/db", "u:12/CRET@127.0.0.1/db", "u:%ff@127.0.0.1/db"])
def test_a_password_that_is_not_escaped_is_not_told(url: str) -> None:
    """It would be taken for a host, or a port, which messages have."""
    with pytest.raises(ConfigurationError) as caught:
        PostgresBackend(f"postgresql://{url}")
    assert "CRET" not in str(caught.value)


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("schema", ["locks", "my-locks"])
def test_the_tables_are_in_the_schema_that_the_url_names(
    server: Postgres, pooler: PgBouncer, schema: str, pooled: bool
) -> None:
    """And those who name another one, or none, have other locks. PgBouncer, which takes no options, is sent none."""
    ask(server, f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    url = pooler.url if pooled else server.url
    mark = "&" if "?" in url else "?"
    named = f"{url}{mark}options=-csearch_path%3D{schema}"
    with (
        PostgresBackend(named, ttl_s=CALM_S) as one,
        PostgresBackend(url, ttl_s=CALM_S) as other,
        one.lock("/test/schema"),
        other.lock("/test/schema").holding(wait_s=0),
    ):
        assert len(ask(server, f'SELECT 1 FROM "{schema}".fencelock_contenders')) == 1


@pytest.mark.parametrize(
    "options", ["-csearch_path=a,b", '-c search_path="a b"', "--search_path=", "-csearch_path=a -csearch_path=b"]
)
def test_a_schema_that_is_not_one_name_is_refused(options: str) -> None:
    """The tables would be in another one than those of other programs that say the same."""
    with pytest.raises(ConfigurationError, match="the schema of the locks' tables is one name"):
        PostgresBackend(f"postgresql://u:p@127.0.0.1/db?options={quote(options)}")


def test_other_options_are_passed_on() -> None:
    """Those that come beside a schema."""
    parts = PostgresClient.check("postgresql://h/db?options=-csearch_path%3Dlocks%20-c%20geqo%3Doff")
    assert (parts["tables_in"], parts["options"]) == ("locks", "-c geqo=off")


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_grant_is_one_message_and_its_release_another(server: Postgres, new_url: str, open_: Open) -> None:
    """So is a transaction, and nothing else is sent but once a session."""
    hold_and_release(open_(new_url).lock("/test/messages"))  # which makes the tables
    database = new_url.rpartition("/")[2]

    def transactions(pairs: int) -> int:
        before = committed()
        with PostgresBackend(new_url, ttl_s=CALM_S) as backend:
            for _ in range(pairs):
                hold_and_release(backend.lock("/test/messages"))
        eventually(lambda: committed() > before + 2 * pairs, "the session has counted")
        return committed() - before

    def committed() -> int:
        (found,) = ask(server, "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", database)
        return int(found[0])

    assert transactions(15) - transactions(5) == 2 * 10


def test_statements_are_prepared_once_a_session(server: Postgres, open_: Open) -> None:
    """After a few times they are not even planned anew."""
    backend = open_(server.url)
    client = of_threads(backend).client
    prepared = "SELECT count(*)::int, sum(generic_plans)::int FROM pg_prepared_statements"
    hold_and_release(backend.lock("/test/prepared"))
    portal.run(client.ask(prepared))
    [[(before, _)]] = portal.run(client.ask(prepared))
    for _ in range(10):
        hold_and_release(backend.lock("/test/prepared"))
    [[(after, planned)]] = portal.run(client.ask(prepared))
    assert before == after == 8  # the time; three to take it, three to give it back, and this one
    assert planned >= 7


# -- a queue of messages that is full ----------------------------------------------------------------------------------


@pytest.fixture
def full_queue() -> Iterator[Postgres]:
    """A server whose queue of messages somebody has filled: it listens, and stays in a transaction."""
    with (
        optional(lambda: Postgres(options=["--max_notify_queue_pages=64"])) as server,
        psycopg.connect(server.url) as lazy,
        psycopg.connect(server.url, autocommit=True) as other,
    ):
        lazy.execute("LISTEN other")
        lazy.commit()
        lazy.execute("SELECT 1")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            while True:
                other.execute("SELECT pg_notify('other', repeat('x', 7000) || g) FROM generate_series(1, 20) g")
        yield server


def test_a_full_queue_of_messages_costs_no_lock_and_no_lead(
    full_queue: Postgres, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be told of anything then, in all databases of the server: what is given back is given back, and
    waiters look by themselves (mozilla/tls-observatory#109)."""
    backend, other = open_(full_queue.url, ttl_s=60), open_(full_queue.url, ttl_s=60)
    mine = backend.lock("/test/full")
    mine.acquire()
    waiting = InThread(lambda: hold_and_release(other.lock("/test/full")))
    eventually(lambda: len(mine.contenders()) == 2, "it waits")
    monkeypatch.setattr(lock, "_LOOK_AGAIN_S", 600)
    eventually(lambda: of_threads(other).listener._said, "it hears that nothing can be heard")
    began = time.monotonic()
    mine.release()
    assert waiting.result() > 0
    assert time.monotonic() - began < CALM_S
    with backend.election("/test/full").campaign("me", wait_s=WITHIN_S) as leadership:
        leadership.proclaim("still me")
        leadership.record("done")
        leader = other.election("/test/full").leader()
        assert leader is not None
        assert leader.value == "still me"

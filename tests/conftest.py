"""Define fixtures for all tests: real servers, started once, and cleaned before each test that uses them."""

import gc
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings

from fencelock import Scope
from lab.servers import EtcdMember, MariaDB, Postgres, Valkey
from lab.servers.process import Process
from tests.harness import skips
from tests.harness.servers import QUICK_ETCD, ask, optional
from tests.harness.waiting import eventually

pytest.register_assert_rewrite(*(f"tests.contract.{name}_contract" for name in ("core", "fence", "lock", "store")))
pytest_runtest_makereport = skips.pytest_runtest_makereport


def pytest_configure(config: pytest.Config) -> None:
    """Set Hypothesis up, and let Ctrl-C reach the processes to which a test sends it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's shell makes its background jobs ignore SIGINT, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine a server starts, and answers, later than a user would wait: not within 20 s, or httpx's 5 s.
    defaults = Process.__init__.__kwdefaults__
    assert defaults is not None
    defaults["ready_within_s"] = 90.0
    for part in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, 60.0)
    # Each client would read all certificates anew, which takes 50 ms, and speaks plain HTTP.
    patch("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context)).start()
    # A busy machine is no failure, and CI refuses no change for what chance finds in the rule of another.
    # A mutant (`make mutants`) is to be noticed, and nobody reads by which example.
    phases = [Phase.explicit, Phase.generate] if "MUTANT_UNDER_TEST" in os.environ else [*Phase]
    fixed = "CI" in os.environ and "NIGHTLY" not in os.environ
    slow = [HealthCheck.too_slow]
    # What it found is to be read before a test's own time is over.
    patch("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", 60).start()
    # .hypothesis keeps the constants of all modules: each worker would read our sources for them, for two seconds. What
    # once failed isn't kept: a run begins like any other.
    kept: dict[str, Any] = {"phases": phases, "suppress_health_check": slow, "database": None}
    settings.register_profile("patient", deadline=None, derandomize=fixed, **kept)
    settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in modules and tests: neither while they are loaded, nor whenever a test makes some."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of the lock contract that go beyond what a backend guarantees, and mark what is for the night.

    Where a class has a `SMOKE`, only the tests that it names go before the night: it is much like another class. What
    needs MariaDB, PgBouncer or the servers of Redlock is slow.
    """
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    of_processes = (Scope.EVERYBODY, Scope.MACHINE)
    for item in items:
        smoke = getattr(getattr(item, "cls", None), "SMOKE", None)
        beyond = smoke is not None and getattr(item, "originalname", item.name) not in smoke
        if beyond:
            item.add_marker(pytest.mark.exhaustive)
        if {"mariadb_server", "three_servers", "pooler"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        guarantees = getattr(getattr(item, "cls", None), "guarantees", None)
        promised = guarantees is None or (
            all(getattr(guarantees, mark.args[0]) for mark in item.iter_markers("promise"))
            and (guarantees.scope in of_processes or not {"workers", "own_system"} & set(item.fixturenames))  # type: ignore[attr-defined]
        )
        (chosen if promised else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
    # The longest one, the tutorial's, begins first: nobody waits for it alone at the end.
    items[:] = sorted(chosen, key=lambda item: "test_tutorial" not in item.nodeid)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run `async def` tests on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdMember]:
    """Start a real etcd, for tests that don't harm it."""
    with EtcdMember(options=QUICK_ETCD) as member:
        yield member


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Valkey) -> Valkey:
    """Start a real Valkey, and empty it."""
    with socket.create_connection(("127.0.0.1", valkey_server.port)) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(64).startswith(b"+OK")
    return valkey_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with optional(lambda: Postgres(durable=True)) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Postgres:
    """Start a real PostgreSQL, which syncs each commit, and empty it."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        for (name,) in tables:  # most tests need these again: to make them costs more than many a test
            connection.execute(f"DELETE FROM {name}".encode())
    return postgres_server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    with optional(MariaDB) as server:
        yield server


@pytest.fixture
def mariadb(mariadb_server: MariaDB) -> MariaDB:
    """Start a real MariaDB, and drop all tables: a start costs more than most tests."""
    ask(mariadb_server, "DO 0", *(f"DROP TABLE {name}" for (name,) in ask(mariadb_server, "SHOW TABLES")))
    return mariadb_server


@pytest.fixture(autouse=True)
def no_order_is_recorded(request: pytest.FixtureRequest) -> None:
    """Remove the auditor's record: an earlier test's orders would be missed in a store that is empty now."""
    if "etcd" in request.fixturenames:
        request.getfixturevalue("etcd").delete("/seckill/lock/!auditor!record")


# Threads that live as long as the process does: the one that all locks of threads share, asyncio's own, and gRPC's.
_LASTING = ("fencelock-threads", "asyncio_", "AnyIO", "ThreadPoolExecutor", "Dummy-")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Check that every thread that a test started has ended."""
    before = set(threading.enumerate())
    yield

    def ended() -> bool:
        return not [
            thread
            for thread in threading.enumerate()
            if thread not in before
            and not thread.name.startswith(_LASTING)
            and not any(text in repr(thread).lower() for text in ("grpc", "_poll_wrapper"))
        ]

    eventually(ended, f"all threads ended; now: {threading.enumerate()}")

"""An instance is not ready on a server that may lose what it has acknowledged, and says which setting it is."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from app.errors import StockUnavailable
from app.orders import Ask
from app.stock import Fence, registry
from lab.servers import MariaDB, Postgres, Standby
from lab.torture.proxy import Proxy
from tests.harness.servers import optional
from tests.harness.shop import client, shop
from tests.harness.waiting import WITHIN_S, eventually_async

pytestmark = pytest.mark.slow

Start = Callable[[ExitStack], Postgres | MariaDB]
OWN: dict[str, Any] = {"lock": "local://", "store_timeout_ms": 20_000}  # on a busy machine, too


def in_postgres(*settings: str) -> Start:
    options = [word for one in settings for word in ("-c", one)]
    return lambda started: started.enter_context(optional(lambda: Postgres(durable=True, options=options)))


def in_mariadb(*options: str) -> Start:
    return lambda started: started.enter_context(optional(lambda: MariaDB(durable=True, options=options)))


def standby(started: ExitStack) -> Standby:
    primary = in_postgres()(started)
    assert isinstance(primary, Postgres)
    return started.enter_context(Standby(primary))


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(in_postgres(), id="PostgreSQL as it comes"),
        pytest.param(in_postgres("synchronous_commit=local"), id="synchronous_commit=local"),
        pytest.param(in_mariadb(), id="MariaDB as it comes"),
    ],
)
async def test_a_server_that_keeps_its_word_is_ready(start: Start) -> None:
    with ExitStack() as started:
        async with shop("", start(started).url, **OWN) as one:
            assert (await one.ready(20))["store"] == "ok"


@pytest.mark.parametrize(
    ("start", "named"),
    [
        pytest.param(in_postgres("fsync=off"), "fsync", id="fsync=off"),
        pytest.param(in_postgres("full_page_writes=off"), "full_page_writes", id="full_page_writes=off"),
        pytest.param(in_postgres("synchronous_commit=off"), "synchronous_commit", id="synchronous_commit=off"),
        pytest.param(in_postgres("default_transaction_read_only=on"), "read-only", id="read-only by default"),
        pytest.param(standby, "standby|read-only", id="a standby"),
        pytest.param(in_mariadb("--innodb-flush-log-at-trx-commit=0"), "innodb_flush_log_at_trx_commit", id="flush=0"),
        pytest.param(in_mariadb("--innodb-flush-log-at-trx-commit=2"), "innodb_flush_log_at_trx_commit", id="flush=2"),
        pytest.param(in_mariadb("--read-only=ON"), "read-only", id="read_only"),
        pytest.param(
            in_mariadb("--wsrep-on=ON", "--wsrep-provider=none", "--binlog-format=ROW"), "Galera", id="a cluster"
        ),
    ],
)
async def test_a_server_that_may_lose_a_sale_is_not_ready(start: Start, named: str) -> None:
    with ExitStack() as started:
        async with shop("", start(started).url, **OWN) as one:
            with pytest.raises(StockUnavailable, match=named):
                await one.store.ensure_lasting()
            assert (await one.ready(20))["store"] == "not available"


async def test_a_setting_that_is_changed_is_seen_at_the_next_look() -> None:
    """Nothing has to be restarted, neither to notice it nor when it is right again."""
    with ExitStack() as started:
        server = in_postgres()(started)
        async with client("", server.url, **OWN) as http:
            for setting, status in (("on", 200), ("off", 503), ("on", 200)):
                with psycopg.connect(server.url, autocommit=True) as operator:
                    operator.execute(f"ALTER SYSTEM SET synchronous_commit = {setting}".encode())
                    operator.execute("SELECT pg_reload_conf()")
                await eventually_async(
                    lambda: http.get("/readyz"), until=lambda found, status=status: found.status_code == status
                )


async def test_a_silent_postgresql_is_left_at_the_deadline() -> None:
    """It is not asked to cancel a statement first, which would take the driver ten seconds more."""
    with optional(Postgres) as server, Proxy(server.port) as path:
        store = registry.connect(server.url.replace(f":{server.port}", f":{path.port}"), "fence", timeout_s=WITHIN_S)
        await store.set_stock("default", Fence(1, "etcd:1"), 5)
        path.swallow(new_ones=True)
        async with asyncio.timeout(5):
            with pytest.raises(StockUnavailable, match="did not answer"):
                await store.ping(timeout_s=0.2)
        await store.close()


async def test_a_postgresql_is_left_with_nothing_that_waits() -> None:
    """A statement that waits for somebody else's lock ends on the server, too: else it would be carried out later."""
    with optional(Postgres) as server:
        store = registry.connect(server.url, "fence", timeout_s=1)
        await store.set_stock("default", Fence(1, "etcd:1"), 5)
        with psycopg.connect(server.url) as stranger, psycopg.connect(server.url, autocommit=True) as watch:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            for held in ("UPDATE seckill_items SET stock = stock", "LOCK TABLE seckill_items"):
                stranger.execute(held.encode())
                for attempt in (store.prepare(Fence(2, "etcd:1"), "b", {"default": Ask()}), store.level("default")):
                    with contextlib.suppress(StockUnavailable):
                        await attempt
                await eventually_async(
                    lambda: asyncio.to_thread(watch.execute, waiting), until=lambda c: c.fetchone() == (0,)
                )
            stranger.rollback()
            assert watch.execute("SELECT token FROM seckill_items").fetchone() == (1,)
        await store.close()

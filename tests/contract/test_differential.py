"""All stores do the same: a random sale is played on each of them, step by step."""

from collections.abc import Iterator

import pytest
import redis

from app.stock import registry
from lab.servers import MariaDB, Postgres, Valkey
from tests.contract.differential import Play, Side
from tests.contract.test_stores import MySqlSystem, PostgresSystem
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.servers import optional


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Valkey | MariaDB | Postgres]]:
    with Valkey() as valkey, optional(MariaDB) as mariadb, optional(Postgres) as postgres:
        yield {"redis": valkey, "mysql": mariadb, "postgres": postgres}


GUARDS = {
    "tokens": {"redis": "fence", "mysql": "fence", "postgres": "fence"},
    "versions": {"redis": "compare", "mysql": "version", "postgres": "version"},
    "mixed": {"redis": "fence", "mysql": "version", "postgres": "timestamp"},
}


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))])
@pytest.mark.parametrize("guards", GUARDS)
async def test_the_same_sale_on_each_store(
    servers: dict[str, Valkey | MariaDB | Postgres], guards: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, levels, journals, orders, histories, counts and logs are equal after each step."""
    with redis.Redis.from_url(servers["redis"].url) as client:
        client.flushall()
    for system, name in ((MySqlSystem, "mysql"), (PostgresSystem, "postgres")):
        server = servers[name]
        system(server if isinstance(server, MariaDB) else server.url, "fence").clear()  # type: ignore[arg-type]
    sides = {"memory": Side(MemoryStockStore(MemoryServer()))}
    sides |= {
        name: Side(registry.connect(servers[name].url, guard, timeout_s=30)) for name, guard in GUARDS[guards].items()
    }
    play = Play(sides, seed, monkeypatch)
    try:
        for _ in range(60 if seed < 3 else 100):
            await play.step()
    finally:
        for side in sides.values():
            await side.store.close()

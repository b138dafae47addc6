"""All stores do the same: a random sale is played on each of them, step by step."""

import pytest

from app.stock import registry
from tests.contract.differential import Play, Side
from tests.harness.memory_store import MemoryServer, MemoryStockStore

GUARDS = {
    "by day": {"valkey": "fence", "postgres": "fence"},
    "tokens": {"valkey": "fence", "mariadb": "fence", "postgres": "fence"},
    "versions": {"valkey": "compare", "mariadb": "version", "postgres": "version"},
    "mixed": {"valkey": "fence", "mariadb": "version", "postgres": "timestamp"},
}
SEEDS = range(1, 9)
IN_CI, BY_NIGHT = (
    [pytest.param(name, seed, marks=mark) for name in list(GUARDS)[1:] for seed in seeds]
    for seeds, mark in ((SEEDS[:1], pytest.mark.slow), (SEEDS[1:], pytest.mark.exhaustive))
)


@pytest.mark.parametrize(("guards", "seed"), [*(("by day", seed) for seed in SEEDS[:2]), *IN_CI, *BY_NIGHT])
async def test_the_same_sale_on_each_store(
    request: pytest.FixtureRequest, guards: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, levels, journals, orders, histories, counts and logs are equal after each step."""
    sides = {"memory": Side(MemoryStockStore(MemoryServer()))}
    for name, guard in GUARDS[guards].items():
        sides[name] = Side(registry.connect(request.getfixturevalue(name).url, guard, timeout_s=30))
    play = Play(sides, seed, monkeypatch)
    try:
        for _ in range(60 if seed < 3 else 100):
            await play.step()
    finally:
        for side in sides.values():
            await side.store.close()

"""Each lock under the sale, with the guard that it allows: a holder that is overtaken spoils nothing."""

import asyncio
import contextlib

import httpx
import pytest

from app.embedded import LockServers, Valkey
from app.sale import Outcome, Purchase
from app.stock.redis.client import Script
from app.torture.proxy import Proxy
from tests.harness.servers import optional
from tests.harness.shop import Instance, shop

pytestmark = pytest.mark.slow

TTL_S = 2
COMMIT = Script("commit.lua").sha.encode()
LOCKS = ["etcd", "etcd-txn", "redis", "redis-fair", "redlock", "zookeeper", "mysql-row", "mysql-for-update"]


@pytest.mark.parametrize("lock", LOCKS)
async def test_a_paused_holder_is_overtaken_and_sells_nothing_twice(lock: str, valkey: Valkey) -> None:
    """It is stopped between its last check and its write; its lease ends, others sell all; then its write arrives."""
    with optional(lambda: LockServers(lock)) as servers, Proxy(valkey.port) as path:
        guard = "compare" if lock == "redlock" else "fence"
        own = {"lock": servers.url, "guard": guard, "lock_ttl_s": TTL_S, "purchase_timeout_ms": 60_000}
        first = Instance("", f"redis://127.0.0.1:{path.port}/0", **own)
        with first, contextlib.ExitStack() as mending:
            mending.callback(first.resume)
            async with shop("", valkey.url, instance="second", **own) as second:
                await second.set_stock("default", 6)
                assert buy(first) == "sold"
                path.stall_at(COMMIT)
                buying = asyncio.create_task(asyncio.to_thread(buy, first))
                assert await asyncio.to_thread(path.struck.wait, 15)
                first.pause()
                answers = [await second.buy(Purchase()) for _ in range(6)]
                assert [answer.outcome for answer in answers] == [Outcome.SOLD] * 5 + [Outcome.SOLD_OUT]
                path.restore()
                first.resume()
                assert await buying == "sold_out"
                audit = await second.audit("default")
                assert (audit.orders, audit.oversold, audit.violations) == (6, 0, [])


def buy(instance: Instance) -> str:
    answer = httpx.post(f"{instance.url}/stock/reduce", headers={"Accept": "application/json"}, timeout=60)
    return str(answer.json()["outcome"])

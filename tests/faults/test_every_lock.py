"""Under each lock, with the guard that it allows, a holder that was overtaken does no damage."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.orders import Outcome, Purchase
from app.stock.redis.client import Script
from lab.servers import EtcdMember, LockServers, Valkey
from lab.torture.proxy import Proxy
from tests.harness.servers import optional
from tests.harness.shop import TOKEN, Instance, shop
from tests.harness.waiting import eventually, eventually_async

pytestmark = pytest.mark.slow

TTL_S = 2
COMMIT = Script("put.lua").sha.encode()
LOCKS = ["etcd", "etcd-txn", "redis", "redis-fair", "redlock", "zookeeper", "postgres", "mysql-row", "mysql-for-update"]


IN_CI = ("etcd", "redis", "mysql-row")


@pytest.mark.parametrize(
    "lock", [pytest.param(one, marks=[] if one in IN_CI else pytest.mark.exhaustive) for one in LOCKS]
)
async def test_a_paused_holder_is_overtaken_and_sells_nothing_twice(lock: str, valkey: Valkey) -> None:
    """A holder is paused between its last check and its write; its lease ends, others sell all; then it writes."""
    with optional(lambda: LockServers(lock)) as servers, Proxy(valkey.port) as path:
        guard = "compare" if lock == "redlock" else "fence"
        own: dict[str, Any] = {"lock": servers.url, "guard": guard, "lock_ttl_s": TTL_S, "purchase_timeout_ms": 60_000}
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
                answers = [await second.submit(Purchase()) for _ in range(6)]
                assert [answer.outcome for answer in answers] == [Outcome.SOLD] * 5 + [Outcome.SOLD_OUT]
                path.restore()
                first.resume()
                assert await buying == "sold_out"
                audit = await second.audit("default")
                assert (audit.orders, audit.oversold, audit.violations) == (6, 0, [])


HUNG = [
    *(pytest.param(one, "blocks", marks=[] if one == "etcd" else pytest.mark.exhaustive) for one in LOCKS),
    pytest.param("etcd", "spins", marks=pytest.mark.exhaustive),
    ("etcd", "writes"),
]


@pytest.mark.parametrize(("lock", "how"), HUNG)
async def test_a_hung_loop_gives_way(
    lock: str, how: str, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance's loop hangs under the lock, its threads go on. Another one reports that, and sells a TTL later."""
    hang = tmp_path / "hang"
    monkeypatch.setenv("HANG_AT", str(hang))
    monkeypatch.setenv("HANG_HOW", how)
    with optional(lambda: LockServers(lock)) as servers:
        own: dict[str, Any] = {
            "lock": servers.url,
            "guard": "compare" if lock == "redlock" else "fence",
            "lock_ttl_s": 5,
        }
        hanging = Instance("", valkey.url, under=[sys.executable, "-m", "tests.harness.hung"], **own)
        other = Instance("", valkey.url, purchase_timeout_ms=60_000, **own)
        with hanging, other:
            async with shop("", valkey.url, **own) as operator:
                await operator.set_stock("default", 10)
                assert buy(hanging) == "sold"
                hang.touch()
                lost = asyncio.create_task(asyncio.to_thread(buy, hanging))
                await eventually_async(lambda: not hang.exists(), "it hangs")
                buying = asyncio.create_task(asyncio.to_thread(buy, other))
                await eventually_async(
                    lambda: other.get("/readyz")[1]["waits_for"] == [hanging.url.rpartition(":")[2]],
                    "the other one says for whom it waits",
                )
                assert await buying == "sold"
                await eventually_async(lambda: other.get("/readyz")[1]["waits_for"] == [], "it waits for nobody")
                hanging.kill()
                await asyncio.gather(lost, return_exceptions=True)
                assert (await operator.audit("default")).violations == []


def test_a_log_that_nobody_reads_stops_nothing(
    etcd: EtcdMember, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance whose standard error is a full pipe continues to sell, and stops on SIGTERM."""
    monkeypatch.setenv("HANG_AT", str(tmp_path / "hang"))
    monkeypatch.setenv("HANG_HOW", "log")
    with Instance(
        etcd.endpoint, valkey.url, under=[sys.executable, "-m", "tests.harness.hung"], log_level="debug"
    ) as instance:
        put = httpx.put(f"{instance.url}/stock", json={"stock": 10_000}, headers={"Authorization": f"Bearer {TOKEN}"})
        assert put.status_code == 200
        with httpx.Client(base_url=instance.url) as http:
            for _ in range(100):  # a line each, of more than a hundred bytes: twice the capacity of this pipe
                assert http.post("/stock/reduce").headers["x-seckill-outcome"] == "sold"
        instance.signal(signal.SIGTERM)
        eventually(lambda: not instance.running, "it has left")


def buy(instance: Instance) -> str:
    answer = httpx.post(f"{instance.url}/stock/reduce", headers={"Accept": "application/json"}, timeout=60)
    return str(answer.json()["outcome"])

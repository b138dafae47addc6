"""The service runs behind another server, which builds it before it forks its workers."""

import asyncio
import os
import sys
from collections import Counter
from contextlib import suppress

import httpx
import pytest

from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process, free_port
from tests.harness.shop import lock_url, shop

pytestmark = pytest.mark.slow


async def test_workers_that_are_forked_sell_each_unit_once(etcd: EtcdMember, valkey: Valkey) -> None:
    """With two workers of `gunicorn --preload` 100 of 200 buyers get one of the 100 units, and all numbers agree."""
    address = f"127.0.0.1:{free_port()}"
    options = ["--preload", "--workers", "2", "-k", "uvicorn.workers.UvicornWorker", "--bind", address]
    argv = [sys.executable, "-m", "gunicorn", *options, "app.main:create_app()"]
    env = {
        "SECKILL_LOCK": lock_url(etcd.endpoint),
        "SECKILL_STORE": valkey.url,
        "SECKILL_BATCH_MAX": "1",
        "SECKILL_PURCHASE_TIMEOUT_MS": "60000",
    }

    answered = set()

    def ready() -> bool:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"http://{address}/readyz")
            if answer.status_code == 200:
                answered.add(answer.json()["instance"])
        return len(answered) == 2

    async with shop(etcd.endpoint, valkey.url) as one:
        await one.set_stock("default", 100)
        with Process("gunicorn", lambda _: argv, env=os.environ | env, ready=ready, ready_within_s=90):
            limits = httpx.Limits(max_connections=50, max_keepalive_connections=0)  # a connection each, to any worker
            async with httpx.AsyncClient(base_url=f"http://{address}", limits=limits, timeout=60) as http:
                asked = [http.post("/stock/reduce", params={"buyer": f"b{number}"}) for number in range(200)]
                answers = await asyncio.gather(*asked)
            assert Counter(answer.headers["x-seckill-outcome"] for answer in answers) == {"sold": 100, "sold_out": 100}
        audit = await one.audit("default")
        assert audit.consistent, audit.violations
        assert (audit.stock, audit.lucky, audit.orders) == (0, 100, 100)
        assert len({order.instance for order in await one.orders("default", limit=100)}) == 2

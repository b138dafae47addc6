"""The lock system goes away in mid-sale and comes back: the sale goes on, with or without locks."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from app.errors import StockUnavailable
from lab.servers import MariaDB, Valkey
from tests.harness.servers import optional
from tests.harness.shop import Instance, shop
from tests.harness.waiting import WITHIN_S, eventually_async

STOCK = 1_000_000
BUYERS = 60


@pytest.mark.slow
async def test_redis_dies_in_mid_sale_and_comes_back() -> None:
    """With stock in MySQL, Redis' lock is killed and restarted twice: nobody is refused, all numbers agree."""
    told: Counter[str] = Counter()
    orders: set[str] = set()
    over = asyncio.Event()

    async def buyer(http: httpx.AsyncClient, urls: list[str]) -> None:
        number = 0
        while not over.is_set():
            number += 1
            answer = await http.post(f"{urls[number % len(urls)]}/stock/reduce")
            outcome = answer.headers.get("x-seckill-outcome", f"{answer.status_code} {answer.text}")
            told[outcome] += 1
            if outcome != "sold":
                return
            orders.add(answer.headers["x-seckill-order"])

    async def mode(instance: Instance) -> tuple[Any, bool]:
        """Return the mode that readiness and metrics report."""
        ready = await asyncio.to_thread(instance.get, "/readyz")
        scraped = str((await asyncio.to_thread(instance.get, "/metrics"))[1])
        assert ready[0] == 200
        return ready[1]["mode"], "seckill_optimistic 1.0" in scraped

    async def all_sell(expected: tuple[str, bool]) -> None:
        async def they_do() -> bool:
            return [await mode(one) for one in instances] == [expected] * len(instances)

        await eventually_async(they_do, f"the mode of all is {expected[0]}")

    async def both_sell(one: Any) -> None:
        """Wait until both instances have sold more than until now."""
        before: dict[str, int] | None = None

        async def more() -> bool:
            nonlocal before
            now = dict((await one.audit("default")).units_per_instance)
            before = now if before is None else before
            return len(now) == 2 and all(now[name] > before.get(name, 0) for name in now)

        await eventually_async(more, "both sell", despite=StockUnavailable)

    with optional(MariaDB) as mysql, Valkey() as redis:
        others: dict[str, Any] = {"lock": redis.url, "guard": "version"}
        # Few buyers per grant make the sale last long enough to be disturbed.
        fallback: dict[str, Any] = {
            "lock_fallback": "true",
            "lock_ttl_s": 600,
            "batch_max": 4,
            "purchase_timeout_ms": 60_000,
            "request_timeout_ms": 60_000,  # all buyers share a loop, and may open a connection long before they ask
        }
        with (
            Instance("", mysql.url, **others, **fallback) as first,
            Instance("", mysql.url, **others, **fallback) as second,
        ):
            instances = [first, second]
            async with (
                shop("", mysql.url, **others) as one,
                httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as http,
            ):
                await one.set_stock("default", STOCK)
                urls = [instance.url for instance in instances]
                buying = [asyncio.create_task(buyer(http, urls[i % 2 :] + urls[: i % 2])) for i in range(BUYERS)]
                for _ in range(2):
                    await all_sell(("lock", False))
                    await both_sell(one)
                    # In a thread: an instance drops a connection whose client stands still before it has asked.
                    await asyncio.to_thread(redis.kill)
                    await all_sell(("optimistic", True))
                    await both_sell(one)
                    await asyncio.to_thread(redis.start)
                await all_sell(("lock", False))
                over.set()
                await asyncio.wait_for(asyncio.gather(*buying), WITHIN_S)
                sold = len(orders)
                assert told == {"sold": sold}
                audit = await one.audit("default")
                assert (audit.stock, audit.lucky, audit.orders, audit.violations) == (STOCK - sold, sold, sold, [])

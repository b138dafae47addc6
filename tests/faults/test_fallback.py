"""The lock system goes away in mid-sale, and comes back: the sale goes on, by the one way or the other."""

import asyncio
from collections import Counter
from typing import Any

import httpx

from app.embedded import MariaDB, Valkey
from tests.harness.servers import optional
from tests.harness.shop import Instance, shop
from tests.harness.waiting import WITHIN_S, eventually_async

STOCK = 1000
BUYERS = 60


def test_redis_dies_in_mid_sale_and_comes_back() -> None:
    """Stock in MySQL, lock in Redis, which is killed and started again, twice: nobody is refused, all numbers agree."""
    told: Counter[str] = Counter()
    orders: set[str] = set()

    async def buyer(http: httpx.AsyncClient, urls: list[str]) -> None:
        number = 0
        while True:
            number += 1
            answer = await http.post(f"{urls[number % len(urls)]}/stock/reduce")
            outcome = answer.headers.get("x-seckill-outcome", f"{answer.status_code} {answer.text}")
            told[outcome] += 1
            if outcome == "sold_out":
                return
            orders.add(answer.headers["x-seckill-order"])

    async def way(instance: Instance) -> tuple[Any, bool]:
        """What readiness and metrics say."""
        ready = await asyncio.to_thread(instance.get, "/readyz")
        scraped = str((await asyncio.to_thread(instance.get, "/metrics"))[1])
        assert ready[0] == 200
        return ready[1]["way"], "seckill_optimistic 1.0" in scraped

    async def goes(instances: list[Instance], expected: tuple[str, bool]) -> None:
        async def all_do() -> bool:
            return [await way(one) for one in instances] == [expected] * len(instances)

        await eventually_async(all_do, f"all go by {expected[0]}")

    async def sells(one: Any) -> None:
        """Both instances, from now on."""
        before = dict((await one.audit("default")).units_per_instance)

        async def more() -> bool:
            now = (await one.audit("default")).units_per_instance
            return len(now) == 2 and all(now[name] > before.get(name, 0) for name in now)

        await eventually_async(more, "both sell")

    async def main(instances: list[Instance], redis: Valkey, mysql: MariaDB) -> None:
        options: dict[str, Any] = {"store": "mysql", "mysql_url": mysql.url, "guard": "version"}
        async with shop("http://127.0.0.1:1", redis.url, lock_backend="redis", **options) as one:
            await one.set_stock("default", STOCK)
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(limits=limits, timeout=60) as http:
                urls = [instance.url for instance in instances]
                buying = [asyncio.create_task(buyer(http, urls[i % 2 :] + urls[: i % 2])) for i in range(BUYERS)]
                for _ in range(2):
                    await goes(instances, ("lock", False))
                    await sells(one)
                    redis.kill()
                    await goes(instances, ("optimistic", True))
                    await sells(one)
                    redis.start()
                await goes(instances, ("lock", False))
                await asyncio.wait_for(asyncio.gather(*buying), 4 * WITHIN_S)
            assert told == {"sold": STOCK, "sold_out": BUYERS}
            audit = await one.audit("default")
            assert (audit.stock, audit.lucky, audit.orders, audit.violations) == (0, STOCK, STOCK, [])
            assert len(orders) == STOCK

    with optional(MariaDB) as mysql, Valkey() as redis:
        others = {
            "store": "mysql",
            "mysql_url": mysql.url,
            "guard": "version",
            "lock_backend": "redis",
            "lock_fallback": "true",
            "lock_ttl_s": 600,
        }
        # Few buyers for a grant: then the sale lasts long enough to be disturbed.
        others |= {"batch_max": 4, "purchase_timeout_ms": 60_000}
        with (
            Instance("http://127.0.0.1:1", redis.url, **others) as first,
            Instance("http://127.0.0.1:1", redis.url, **others) as second,
        ):
            asyncio.run(main([first, second], redis, mysql))
